/* What a process like the engine can still do to the one that holds the key: the parent here. */
#include "transport/process/confine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include "transport/fabric/tcp/seal.h"

#define KEY_FILE "/tmp/commd-test-confine.XXXXXX"
static char key_file[] = KEY_FILE;
static char secret[] = "the cluster key";

static int refused(int r)
{
    return r < 0 && (errno == EACCES || errno == EPERM) ? 0 : 1;
}

/* A bit for each thing that it could do. */
static int attack(void)
{
    pid_t parent = getppid();
    char buf[sizeof(secret)], path[64];
    struct iovec here = {buf, sizeof(buf)}, there = {secret, sizeof(secret)};
    int done;

    snprintf(path, sizeof(path), "/proc/%d/mem", (int)parent);
    done = refused(open(key_file, O_RDONLY));
    done |= refused(open(key_file, O_WRONLY | O_TRUNC)) << 1;
    done |= refused((int)process_vm_readv(parent, &here, 1, &there, 1, 0)) << 2;
    done |= refused((int)ptrace(PTRACE_SEIZE, parent, 0, 0)) << 3;
    done |= refused(open(path, O_RDONLY)) << 4;
    snprintf(path, sizeof(path), "/proc/%d/root%s", (int)parent, key_file);
    done |= refused(open(path, O_RDONLY)) << 5;
    done |= refused(unlink(key_file)) << 6;
    return done;
}

static int in_child(int (*fn)(void))
{
    pid_t pid = fork();
    int status;

    if (pid == 0)
        _exit(fn());
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static int loading(void)
{
    return confine(CONFINE_LOADING) ? 255 : attack();
}

static int serving(void)
{
    return confine(CONFINE_LOADING) || confine(CONFINE_SERVING) ? 255 : attack();
}

static int reads(void)
{
    if (confine(CONFINE_LOADING) || open("/proc/self/status", O_RDONLY) < 0 ||
        open("/dev/null", O_RDWR) < 0)
        return 1;
    if (confine(CONFINE_SERVING))
        return 2;
    return open("/proc/self/status", O_RDONLY) >= 0 || open("/dev/null", O_RDWR) >= 0 ? 3 : 0;
}

static char pipes[] = "/tmp/commd-test-pipes.XXXXXX";

static int opens_pipe(void)
{
    char path[64];

    snprintf(path, sizeof(path), "%s/control", pipes);
    return open(path, O_RDWR) < 0;
}

static int driving(void)
{
    return confine(CONFINE_DRIVER) ? 255 : attack() | opens_pipe() << 7;
}

/* Those of MPS lie where the driver is told. */
static void the_drivers_pipes_stay_open(void **state)
{
    char path[64];
    int r, fd = mkstemp(strcpy(key_file, KEY_FILE));

    assert_true(fd >= 0 && mkdtemp(pipes));
    close(fd);
    snprintf(path, sizeof(path), "%s/control", pipes);
    assert_int_equal(mkfifo(path, 0600), 0);
    setenv("CUDA_MPS_PIPE_DIRECTORY", pipes, 1);
    r = in_child(driving);
    unlink(key_file);
    unlink(path);
    rmdir(pipes);
    if (r == 255)
        skip();
    assert_int_equal(r, 0);
}

/* Where nothing is said, by an empty name either, they lie where NVIDIA has them. */
static void an_empty_name_for_the_pipes(void **state)
{
    int r, fd = mkstemp(strcpy(key_file, KEY_FILE));

    assert_true(fd >= 0);
    close(fd);
    strcpy(pipes, "/tmp/nvidia-mps");
    if (mkdir(pipes, 0700)) { /* a server's */
        unlink(key_file);
        skip();
    }
    assert_int_equal(mkfifo("/tmp/nvidia-mps/control", 0600), 0);
    setenv("CUDA_MPS_PIPE_DIRECTORY", "", 1);
    r = in_child(driving);
    unlink(key_file);
    unlink("/tmp/nvidia-mps/control");
    rmdir(pipes);
    if (r == 255)
        skip();
    assert_int_equal(r, 0);
}

static void the_key_is_out_of_reach(void **state)
{
    int fd = mkstemp(strcpy(key_file, KEY_FILE));

    assert_true(fd >= 0);
    close(fd);
    if (in_child(loading) == 255) {
        unlink(key_file);
        print_message("skipped: this kernel has no Landlock\n");
        skip();
    }
    assert_int_equal(in_child(loading), 0);
    assert_int_equal(in_child(serving), 0);
    assert_int_equal(in_child(reads), 0);
    assert_int_equal(in_child(attack) & 1, 1); /* without it: the file is open to us */
    unlink(key_file);
}

/* What the engine's unit allows, and less: every call but these is refused, as there, by EPERM. */
static int few_calls(void)
{
    enum { SET_MDWE = 65, REFUSE_EXEC_GAIN = 1 }; /* MemoryDenyWriteExecute, Linux 6.3 */
    static const unsigned allowed[] = {
        __NR_read,   __NR_write,      __NR_futex,        __NR_getrandom, __NR_mmap,
        __NR_munmap, __NR_mremap,     __NR_mprotect,     __NR_brk,       __NR_madvise,
        __NR_exit,   __NR_exit_group, __NR_clock_gettime};
    struct sock_filter code[2 * ARRAY_LEN(allowed) + 2];
    struct sock_fprog program = {.filter = code};
    unsigned n = 0;

    prctl(SET_MDWE, REFUSE_EXEC_GAIN, 0, 0, 0);
    code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0);
    for (unsigned i = 0; i < ARRAY_LEN(allowed); i++) {
        code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, allowed[i], 0, 1);
        code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    }
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
    program.len = (unsigned short)n;
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

static int seals_with(enum seal_cipher cipher)
{
    uint8_t key[SEAL_SECRET], record[4 + SEAL_MORE], got[4];
    struct iovec iov = {(void *)(uintptr_t) "text", 4};
    struct seal *out, *in;
    int r;

    if (getrandom(key, sizeof(key), 0) != sizeof(key))
        return 1;
    out = seal_new(cipher, key, true);
    in = seal_new(cipher, key, false);
    if (!out || !in)
        return 2;
    seal_set_records(out, 1);
    for (unsigned i = 0; i < 3; i++) { /* with new keys */
        r = seal_put(out, &iov, 1, record);
        if (r || seal_get(in, record, got) || memcmp(got, "text", 4))
            return 3;
    }
    seal_free(out);
    seal_free(in);
    return 0;
}

/* libcrypto is first used when a peer is added: then nothing can be opened any more. */
static int seals(void)
{
    int r;

#ifdef __SANITIZE_ADDRESS__
    return 255; /* its runtime makes other calls */
#endif
    confine(CONFINE_LOADING); /* it may lack Landlock; the calls are refused all the same */
    confine(CONFINE_SERVING);
    if (few_calls())
        return 255;
    if (open("/dev/null", O_RDONLY) >= 0)
        return 4;
    r = seals_with(SEAL_AES_128_GCM);
    return r ? r : seals_with(SEAL_CHACHA20_POLY1305);
}

static void data_are_encrypted_all_the_same(void **state)
{
    int r = in_child(seals);

    if (r == 255)
        skip();
    assert_int_equal(r, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_key_is_out_of_reach),
                                       cmocka_unit_test(the_drivers_pipes_stay_open),
                                       cmocka_unit_test(an_empty_name_for_the_pipes),
                                       cmocka_unit_test(data_are_encrypted_all_the_same)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* What a process like the engine can still do to the one that holds the key: the parent here. */
#include "transport/process/confine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>

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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_key_is_out_of_reach),
                                       cmocka_unit_test(the_drivers_pipes_stay_open),
                                       cmocka_unit_test(an_empty_name_for_the_pipes)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}

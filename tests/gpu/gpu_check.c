/* gpu_check.c - one check of a GPU, its driver or NCCL: what commd takes for granted about them.
 *
 *   gpu_check              the names of the checks
 *   gpu_check NAME         does it; the last line is PASS, FAIL or SKIPPED, and why or how fast
 *   gpu_check --quick NAME with fewer cases: for compute-sanitizer, which is slow
 *
 * COMMD_LIBCUDA and COMMD_LIBNCCL name the libraries; over tests/fakecuda a check tests this
 * program. Each check is a process of its own: a fault on a GPU is for good. tests/gpu/check.py
 * runs all of them, bounded in time. Exit code: 0, 1 failed, 77 skipped. */
#include "tests/gpu/gpu_check.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct cuda cu;
bool check_fake, check_quick;

static const struct {
    const char *name;
    int (*run)(void);
} checks[] = {
    {"device", check_device},
    {"kernels", check_kernels},
    {"words", check_words},
    {"word_host", check_word_host},
    {"batch", check_batch},
    {"ipc_killed", check_ipc_killed},
    {"ipc_killed_busy", check_ipc_killed_busy},
    {"ipc_freed", check_ipc_freed},
    {"ipc_open", check_ipc_open},
    {"ipc_small", check_ipc_small},
    {"ipc_again", check_ipc_again},
    {"ipc_apart", check_ipc_apart},
    {"ipc_confined", check_ipc_confined},
    {"ipc_other_user", check_ipc_other_user},
    {"ipc_sandbox", check_ipc_sandbox},
    {"descriptor", check_descriptor},
    {"descriptor_apart", check_descriptor_apart},
    {"range", check_range},
    {"queues", check_queues},
    {"depth", check_depth},
    {"host_func", check_host_func},
    {"facts", check_facts},
    {"nccl_version", check_nccl_version},
    {"nccl_twice", check_nccl_twice},
    {"nccl_hosts", check_nccl_hosts},
    {"nccl_imported", check_nccl_imported},
    {"nccl_one_process", check_nccl_one_process},
    {"nccl_abort", check_nccl_abort},
    {"nccl_killed", check_nccl_killed},
    {"nccl_many", check_nccl_many},
    {"slices", check_slices},
    {"changes", check_changes},
    {"open_large", check_open_large},
    {"bandwidth", check_bandwidth},
};

static const struct {
    const char *name;
    child_fn run;
} children[] = {{"words", child_words},
                {"exporter", child_exporter},
                {"small", child_small},
                {"nccl", child_nccl},
                {"communicators", child_communicators},
                {"opener", child_opener},
                {"busy", child_busy},
                {"deeds", child_deeds}};

/* ---- how it went ------------------------------------------------------------------------- */

static void say(const char *word, const char *format, va_list ap)
{
    char line[1000];

    vsnprintf(line, sizeof line, format, ap);
    printf("%s %s\n", word, line);
    fflush(stdout);
}

int pass(const char *format, ...)
{
    va_list ap;

    va_start(ap, format);
    say("PASS", format, ap);
    va_end(ap);
    return CHECK_PASS;
}

int fail(const char *format, ...)
{
    va_list ap;

    va_start(ap, format);
    say("FAIL", format, ap);
    va_end(ap);
    return CHECK_FAIL;
}

int skip(const char *format, ...)
{
    va_list ap;

    va_start(ap, format);
    say("SKIPPED", format, ap);
    va_end(ap);
    return CHECK_SKIP;
}

const char *text_of(cu_result r)
{
    static char text[200];

    cuda_text(&cu, r, text, sizeof text);
    return text;
}

void must(cu_result r, const char *what)
{
    if (r)
        exit(fail("%s: %s", what, text_of(r)));
}

void must_sys(long r, const char *what)
{
    if (r < 0)
        exit(fail("%s: %s", what, strerror(errno)));
}

/* ---- the driver -------------------------------------------------------------------------- */

cu_stream stream_new(void)
{
    cu_stream s;

    MUST(cu.stream_new(&s, CU_STREAM_NON_BLOCKING));
    return s;
}

cu_ptr device_new(size_t bytes)
{
    cu_ptr p;

    MUST(cu.mem_alloc(&p, bytes));
    return p;
}

void *host_new(size_t bytes, int fd, cu_ptr *ret_device)
{
    int flags = fd >= 0 ? MAP_SHARED : MAP_SHARED | MAP_ANONYMOUS;
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);

    must_sys(p == MAP_FAILED ? -1 : 0, "mmap");
    MUST(cu.host_register(p, bytes, CU_HOST_PORTABLE | CU_HOST_DEVICEMAP));
    if (ret_device)
        MUST(cu.host_pointer(ret_device, p, 0));
    return p;
}

void copy_now(cu_ptr to, cu_ptr from, size_t bytes)
{
    MUST(cu.copy(to, from, bytes, NULL));
    MUST(cu.ctx_synchronize());
}

bool drains(cu_stream s, unsigned ms)
{
    struct timespec t = {0, 1000000};

    while (ms-- && cu.stream_query(s) == CU_E_NOT_READY)
        nanosleep(&t, NULL);
    return cu.stream_query(s) != CU_E_NOT_READY;
}

bool context_works(void)
{
    uint32_t in = 77, out = 0;
    cu_ptr p;
    bool works = !cu.mem_alloc(&p, MIB) && !cu.copy(p, (cu_ptr)(uintptr_t)&in, sizeof in, NULL) &&
                 !cu.copy((cu_ptr)(uintptr_t)&out, p, sizeof out, NULL) && !cu.ctx_synchronize();

    return works && out == in && !cu.mem_free(p);
}

double now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double percentile(double *us, unsigned n, unsigned permille)
{
    qsort(us, n, sizeof *us, compare);
    return us[(n - 1) * permille / 1000];
}

static bool driver_open(void)
{
    cu_context ctx;
    cu_device dev;
    char why[256];
    int n = 0, e = cuda_load(getenv("COMMD_LIBCUDA"), 0, &cu, why, sizeof why);
    cu_result r = CU_SUCCESS;

    if (e) {
        skip("no driver: %s", why);
        return false;
    }
    check_fake = dlsym(cu.library, "fakecuda_calls") != NULL;
    role_take();
    r = cu.init(0);
    r = r ? r : cu.device_count(&n);
    r = r || n ? r : CU_E_NO_DEVICE;
    if (r) {
        skip("no GPU: %s", text_of(r));
        return false;
    }
    MUST(cu.device_get(&dev, 0));
    MUST(cu.primary_retain(&ctx, dev));
    MUST(cu.ctx_set(ctx));
    return true;
}

/* ---- other processes --------------------------------------------------------------------- */

static _Noreturn void peer_exec(const char *name, const char *host, int socket)
{
    char number[16];

    if (host)
        setenv("NCCL_HOSTID", host, 1);
    snprintf(number, sizeof number, "%d", socket);
    execl("/proc/self/exe", "gpu_check", "child", name, number, (char *)NULL);
    _exit(127);
}

static void own_proc(void)
{
    must_sys(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), "mount /");
    must_sys(mount("proc", "/proc", "proc", 0, NULL), "mount /proc");
}

bool peer_new(const char *name, const char *host, bool apart, struct peer *ret_peer)
{
    int pair[2];
    pid_t pid;

    must_sys(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), "socketpair");
    must_sys(fcntl(pair[0], F_SETFD, FD_CLOEXEC), "fcntl");
    pid = apart ? (pid_t)syscall(SYS_clone, CLONE_NEWPID | CLONE_NEWNS | SIGCHLD, 0, 0, 0, 0)
                : fork();
    if (!pid) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (apart) /* a driver needs its /proc/self */
            own_proc();
        peer_exec(name, host, pair[1]);
    }
    close(pair[1]);
    if (pid < 0 && apart) {
        close(pair[0]);
        return false;
    }
    must_sys(pid, "fork");
    *ret_peer = (struct peer){pid, pair[0]};
    return true;
}

int peer_end(struct peer *p)
{
    int status = 0;

    close(p->socket);
    must_sys(waitpid(p->pid, &status, 0), "waitpid");
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

void peer_kill(struct peer *p)
{
    kill(p->pid, SIGKILL);
    peer_end(p);
}

void peer_send(int socket, const void *data, size_t bytes, int fd)
{
    char control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec iov = {(void *)(uintptr_t)data, bytes};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
    struct cmsghdr *c;

    if (fd >= 0) {
        m.msg_control = control;
        m.msg_controllen = sizeof control;
        c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(c), &fd, sizeof fd);
    }
    if (sendmsg(socket, &m, MSG_NOSIGNAL) < 0)
        exit(fail("the other process has ended"));
}

bool peer_receive(int socket, void *data, size_t bytes, int *ret_fd)
{
    char control[CMSG_SPACE(sizeof(int))];
    struct iovec iov = {data, bytes};
    struct msghdr m = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *c;

    if (recvmsg(socket, &m, MSG_CMSG_CLOEXEC) != (ssize_t)bytes)
        return false;
    c = CMSG_FIRSTHDR(&m);
    if (c && ret_fd)
        memcpy(ret_fd, CMSG_DATA(c), sizeof *ret_fd);
    return true;
}

int memory_file(size_t bytes)
{
    int fd = memfd_create("gpu-check", MFD_CLOEXEC);

    must_sys(fd, "memfd_create");
    must_sys(ftruncate(fd, (off_t)bytes), "ftruncate");
    return fd;
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[argc - 1] : NULL;

    for (size_t i = 0; argc == 4 && !strcmp(argv[1], "child") && i < ARRAY_LEN(children); i++)
        if (!strcmp(argv[2], children[i].name))
            return driver_open() ? children[i].run(atoi(argv[3])) : CHECK_SKIP;
    check_quick = argc == 3 && !strcmp(argv[1], "--quick");
    if (argc > 3 || (argc == 3 && !check_quick))
        return 64;
    for (size_t i = 0; i < ARRAY_LEN(checks); i++) {
        if (!name)
            puts(checks[i].name);
        else if (!strcmp(name, checks[i].name))
            return driver_open() ? checks[i].run() : CHECK_SKIP;
    }
    return name ? 64 : 0;
}

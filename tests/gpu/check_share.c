/* check_share.c - memory of another process, where the two differ: in the user, in what Landlock
 * leaves them, in what commd-gpu.service does to commd-gpu. Each check says which of the steps the
 * one that opens cannot do; over tests/fakecuda that is legacy IPC, as that driver takes memory out
 * of other processes. */
#include <errno.h>
#include <grp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/gpu/gpu_check.h"
#include "tests/gpu/gpu_exporter.h"
#include "transport/gpu/kernel/image.h"
#include "transport/gpu/move.h"
#include "transport/process/confine.h"

/* What a process of this program becomes before its driver begins: letters in its environment. */
#define ROLE "GPU_CHECK_ROLE"
enum { SERVICE_UID = 65533, TENANT_UID = 65534, PAGE = 4096 };

static int confined; /* 0, or why it is not: -errno */

/* ---- roles ------------------------------------------------------------------------------- */

static void become(uid_t uid)
{
    must_sys(setgroups(0, NULL), "setgroups");
    must_sys(setresgid(uid, uid, uid), "setresgid");
    must_sys(setresuid(uid, uid, uid), "setresuid");
    /* as a process that this user has started */
    prctl(PR_SET_DUMPABLE, 1);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
}

/* ProtectProc=invisible, PrivateTmp=yes */
static void hide_others(void)
{
    must_sys(unshare(CLONE_NEWNS), "unshare");
    must_sys(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), "mount /");
    must_sys(mount("proc", "/proc", "proc", 0, "hidepid=2"), "mount /proc");
    if (!check_fake) /* that driver's kernels may lie there */
        must_sys(mount("tmpfs", "/tmp", "tmpfs", 0, NULL), "mount /tmp");
}

/* Of SystemCallFilter= what could matter to a driver: the calls that look into others. */
static void filter_calls(void)
{
#define REFUSE(call)                                                                               \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##call, 0, 1),                                         \
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM)
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        REFUSE(ptrace),
        REFUSE(process_vm_readv),
        REFUSE(process_vm_writev),
        REFUSE(kcmp),
        REFUSE(pidfd_getfd),
        REFUSE(perf_event_open),
        REFUSE(bpf),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {ARRAY_LEN(code), code};

    must_sys(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs");
    must_sys(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), "seccomp");
}

/* t, s: the user; h: sees no others; l: Landlock as commd-gpu has it; f: calls are filtered. */
void role_take(void)
{
    const char *role = getenv(ROLE);

    for (; role && *role; role++) {
        if (*role == 'h')
            hide_others();
        else if (*role == 't' || *role == 's')
            become(*role == 't' ? TENANT_UID : SERVICE_UID);
        else if (*role == 'f')
            filter_calls();
        else if (*role == 'l')
            confined = confine(CONFINE_DRIVER);
    }
}

/* ---- who opens --------------------------------------------------------------------------- */

struct offer {
    struct exported legacy, descriptor; /* whose descriptor comes with the message */
};
/* What went wrong with each, "" nothing. */
struct opened {
    int confined;
    char legacy[160], descriptor[160], words[160], kernel[160];
};

static void told(char *text, size_t len, cu_result r)
{
    snprintf(text, len, "%s", r ? text_of(r) : "");
}

/* A word in memory that both processes have: registered, and written by a stream. */
static cu_result words_work(int fd)
{
    void *p = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    cu_ptr words;
    cu_result r;

    if (p == MAP_FAILED)
        return CU_E_UNKNOWN;
    r = cu.host_register(p, PAGE, CU_HOST_PORTABLE | CU_HOST_DEVICEMAP);
    r = r ? r : cu.host_pointer(&words, p, 0);
    r = r ? r : cu.stream_write32(NULL, words, 1, CU_WRITE_DEFAULT);
    r = r ? r : cu.ctx_synchronize();
    return r || *(_Atomic uint32_t *)p == 1 ? r : CU_E_UNKNOWN;
}

static cu_result kernel_loads(void)
{
    cu_function f;
    cu_module module;
    cu_device dev;
    char text[512];
    cu_result r;

    if (gpu_images[0].kind == GPU_IMAGE_NONE)
        return CU_SUCCESS;
    r = cu.ctx_device(&dev);
    if (!r)
        r = gpu_image_load(&cu, dev, gpu_images, &module, text, sizeof text);
    return r ? r : cu.module_function(&f, module, gpu_kernel_name(0));
}

int child_opener(int socket)
{
    struct opened o = {.confined = confined};
    struct offer offer;
    cu_result r;
    int fd = -1, words = -1;
    char c;
    cu_ptr p;

    peer_send(socket, "", 1, -1); /* the driver has begun */
    if (!peer_receive(socket, &offer, sizeof offer, &fd) || !peer_receive(socket, &c, 1, &words))
        return CHECK_FAIL;
    r = offer.legacy.result;
    r = r ? r : cu.ipc_open(&p, offer.legacy.handle, CU_IPC_LAZY_PEER_ACCESS);
    told(o.legacy, sizeof o.legacy, r);
    if (!r && !is_marked(p, offer.legacy.bytes))
        snprintf(o.legacy, sizeof o.legacy, "opens, and is other memory");
    r = import_descriptor(fd, offer.descriptor.bytes, &p);
    told(o.descriptor, sizeof o.descriptor, r);
    if (!r && !is_marked(p, offer.descriptor.bytes))
        snprintf(o.descriptor, sizeof o.descriptor, "opens, and is other memory");
    told(o.words, sizeof o.words, words_work(words));
    told(o.kernel, sizeof o.kernel, kernel_loads());
    peer_send(socket, &o, sizeof o, -1);
    peer_receive(socket, &c, 1, NULL);
    return CHECK_PASS;
}

/* ---- the two together -------------------------------------------------------------------- */

/* false: one of them does not start; it has said why. */
static bool between(const char *exporter, const char *opener, struct opened *ret)
{
    struct peer legacy, descriptor, peer;
    struct offer offer;
    int none, fd, words = memory_file(PAGE);
    bool ok;
    char c;

    setenv(ROLE, exporter, 1);
    export_begin(false, 4 * MIB, false, &legacy, &offer.legacy, &none);
    export_begin(true, 4 * MIB, false, &descriptor, &offer.descriptor, &fd);
    setenv(ROLE, opener, 1);
    peer_new("opener", NULL, false, &peer);
    unsetenv(ROLE);
    ok = peer_receive(peer.socket, &c, 1, NULL);
    if (ok) {
        peer_send(peer.socket, &offer, sizeof offer, fd);
        peer_send(peer.socket, "", 1, words);
        ok = peer_receive(peer.socket, ret, sizeof *ret, NULL);
    }
    peer_kill(&peer);
    peer_kill(&legacy);
    peer_kill(&descriptor);
    close(fd);
    close(words);
    return ok;
}

static const char *or_works(const char *wrong)
{
    return wrong[0] ? wrong : "works";
}

/* Of all ways that a check tries. */
static char ways[900];
static bool failed;

static void add(const char *format, ...) _printf_(1, 2);
static void add(const char *format, ...)
{
    size_t n = strlen(ways);
    va_list ap;

    va_start(ap, format);
    vsnprintf(ways + n, sizeof ways - n, format, ap);
    va_end(ap);
}

/* Legacy IPC is what the device path lives on where buffers are cudaMalloc()'s: without it each
 * operation copies them. 0, or a verdict at once. */
static int one_way(const char *who, const char *exporter, const char *opener, bool fake_refuses)
{
    struct opened o;

    if (!between(exporter, opener, &o))
        return fail("%s: a process of it does not start, or ends", who);
    if (strchr(opener, 'l') && o.confined)
        return skip("no Landlock here, and commd-gpu is not confined: %s", strerror(-o.confined));
    add("%s%s: legacy IPC %s", ways[0] ? "; " : "", who, or_works(o.legacy));
    if (o.descriptor[0] || o.words[0] || o.kernel[0])
        add(", descriptors: %s, words: %s, kernels: %s", or_works(o.descriptor), or_works(o.words),
            or_works(o.kernel));
    else
        add("; descriptors, words and kernels work");
    failed |= o.descriptor[0] || o.words[0] || o.kernel[0];
    failed |= check_fake ? !o.legacy[0] == fake_refuses : o.legacy[0];
    return 0;
}

static int verdict(int r)
{
    return r ? r : failed ? fail("%s", ways) : pass("%s", ways);
}

int check_ipc_confined(void)
{
    int r = one_way("not confined", "", "", false);

    return verdict(r ? r : one_way("confined by Landlock as commd-gpu", "", "l", true));
}

int check_ipc_other_user(void)
{
    int r;

    if (getuid())
        return skip("needs root: it starts processes of other users");
    r = one_way("root opens a user's", "t", "", false);
    r = r ? r : one_way("a user opens root's", "", "t", true);
    return verdict(r ? r : one_way("a user opens another's, as commd-gpu does", "t", "s", true));
}

int check_ipc_sandbox(void)
{
    if (getuid())
        return skip("needs root: it makes a sandbox as commd-gpu.service has");
    return verdict(one_way("in the sandbox of commd-gpu.service", "t", "hsfl", true));
}

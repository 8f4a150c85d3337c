/* confine.c - the engine gives up what it does not need, by Landlock (Linux 5.13).
 *
 * The engine speaks to the network, and maps memory that any user can write. An attacker who took
 * it over would run as the user that owns the cluster key. Confined, the engine cannot open the key
 * file, nor trace or read the memory of commd, which is not confined. Linux 6.12 also keeps its
 * signals from commd.
 *
 * Before the network is opened only directories with libraries, devices, and what the kernel tells
 * of devices stay readable: UCX loads modules late, and starts threads, which would escape a later
 * call. Without UCX nothing is opened once the engine serves.
 *
 * Not covered: descriptors that are open already, the network, UNIX sockets that have a path. */
#include "transport/process/confine.h"

#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

/* linux/landlock.h of Debian 12 knows none but the first version. */
enum { CREATE_RULESET = 444, ADD_RULE = 445, RESTRICT_SELF = 446 };
enum { CREATE_VERSION = 1, RULE_PATH_BENEATH = 1 };
enum {
    WRITE_FILE = 1 << 1,
    READ_FILE = 1 << 2,
    READ_DIR = 1 << 3,
    REMOVE_FILE = 1 << 5,
    MAKE_FILE = 1 << 8,
    TRUNCATE = 1 << 14, /* from version 3 on */
};
enum { SCOPE_ABSTRACT_UNIX = 1 << 0, SCOPE_SIGNAL = 1 << 1 };

struct ruleset {
    uint64_t fs, net, scoped;
};

struct path_beneath {
    uint64_t allowed;
    int32_t parent;
} __attribute__((packed));

static uint64_t handled; /* rights that this kernel knows */

static void allow_opened(int rules, int fd, uint64_t access)
{
    struct path_beneath rule = {access, fd};
    struct stat st;

    if (fstat(fd, &st))
        return;
    if (!S_ISDIR(st.st_mode))
        rule.allowed &= WRITE_FILE | READ_FILE | TRUNCATE;
    rule.allowed &= handled;
    syscall(ADD_RULE, rules, RULE_PATH_BENEATH, &rule, 0);
}

static void allow(int rules, const char *path, uint64_t access)
{
    _cleanup_(close_fdp) int fd = open(path, O_PATH | O_CLOEXEC);

    if (fd >= 0)
        allow_opened(rules, fd, access);
}

/* The driver gives its threads names (/proc/self/task/TID/comm), and cuInit() fails where it
 * cannot. The directory stays open for good: the kernel may forget it otherwise, and the rule with
 * it. */
static void allow_names_of_threads(int rules)
{
    int fd = open("/proc/self/task", O_PATH | O_CLOEXEC);

    if (fd >= 0)
        allow_opened(rules, fd, READ_FILE | READ_DIR | WRITE_FILE | TRUNCATE);
}

/* UCX keeps its modules beside its libraries, wherever those are. */
static int allow_library(struct dl_phdr_info *info, size_t size, void *arg)
{
    char path[PATH_MAX];

    if (info->dlpi_name[0] != '/')
        return 0;
    snprintf(path, sizeof(path), "%s", info->dlpi_name);
    allow(*(int *)arg, dirname(path), READ_FILE | READ_DIR);
    return 0;
}

/* What the driver of GPUs, and NCCL between them, open late: devices, files in /dev/shm that NCCL
 * makes and removes, the pipes of MPS, NCCL's settings and, in virtual machines, how GPUs and
 * networks are connected; and NCCL's plugins with their libraries. Clouds install plugins in /opt
 * under names of their own (amazon, hpcx-..., microsoft), so all of /opt is readable. The cluster's
 * key is not there, and what a file's mode forbids stays forbidden. */
static void allow_driver(int rules)
{
    const char *pipes = getenv("CUDA_MPS_PIPE_DIRECTORY");

    allow(rules, "/dev/shm",
          READ_FILE | READ_DIR | WRITE_FILE | MAKE_FILE | REMOVE_FILE | TRUNCATE);
    allow(rules, pipes && pipes[0] ? pipes : "/tmp/nvidia-mps", READ_FILE | READ_DIR | WRITE_FILE);
    allow(rules, "/etc/nccl.conf", READ_FILE);
    allow(rules, "/run/nvidia-topologyd", READ_FILE | READ_DIR);
    allow(rules, "/opt", READ_FILE | READ_DIR);
    allow_names_of_threads(rules);
}

static void allow_loading(int rules)
{
    static const char *const readable[] = {
        "/proc", "/sys", "/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/libibverbs.d"};

    for (unsigned i = 0; i < ARRAY_LEN(readable); i++)
        allow(rules, readable[i], READ_FILE | READ_DIR);
    allow(rules, "/dev", READ_FILE | READ_DIR | WRITE_FILE);
    dl_iterate_phdr(allow_library, &rules);
}

int confine(enum confine_level level)
{
    long abi = syscall(CREATE_RULESET, NULL, 0, CREATE_VERSION);
    struct ruleset set = {0};
    _cleanup_(close_fdp) int rules = -1;
    size_t size = abi < 4 ? 8 : abi < 6 ? 16 : 24;

    if (abi < 1)
        return -errno;
    /* all rights of files: 13 of version 1, renaming across directories, cutting */
    set.fs = abi < 2 ? 0x1fff : abi < 3 ? 0x3fff : 0x7fff;
    handled = set.fs;
    if (abi >= 6) /* NCCL meets other processes of a node at abstract sockets */
        set.scoped = SCOPE_SIGNAL | (level == CONFINE_DRIVER ? 0 : SCOPE_ABSTRACT_UNIX);
    rules = (int)syscall(CREATE_RULESET, &set, size, 0);
    if (rules < 0)
        return -errno;
    if (level != CONFINE_SERVING)
        allow_loading(rules);
    if (level == CONFINE_DRIVER)
        allow_driver(rules);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || syscall(RESTRICT_SELF, rules, 0))
        return -errno;
    return 0;
}

/* ended.c - see ended.h. A process that has ended is a zombie until its parent has reaped it. While
 * it is a zombie, proc(5) tells its exit code to its user and to root. Later its pidfd tells
 * everybody (PIDFD_GET_INFO, Linux 6.15). So the pidfd is kept while the exit code is not known,
 * and is asked when a person wants to know. A user who has its share loses one of its own, and of
 * these the failed ones last: each commctl that ends is an entry, too. */
#include "daemon/process/ended.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "shm/util/wait.h"

enum {
    NEAR_MS = 3000,     /* between the end of a process and the moment at which its rank is gone */
    FLAG_EXITING = 0x4, /* PF_EXITING of the kernel's sched.h, as in proc(5)'s flags */
    INFO_EXIT = 1 << 3, /* PIDFD_INFO_EXIT */
};

/* struct pidfd_info of linux/pidfd.h, its first version. */
struct info {
    uint64_t mask, cgroup;
    uint32_t pid, tgid, ppid, ids[8];
    int32_t exit_code;
};
#define GET_INFO _IOWR(0xFF, 11, struct info)

void ended_init(struct ended *ended)
{
    *ended = (struct ended){0};
    for (unsigned i = 0; i < ENDED_MOST; i++)
        ended->at[i].pidfd = -1;
}

static void ended_forget(struct ended_process *p)
{
    close_fdp(&p->pidfd);
    *p = (struct ended_process){.pidfd = -1};
}

void ended_fini(struct ended *ended)
{
    for (unsigned i = 0; i < ENDED_MOST; i++)
        ended_forget(&ended->at[i]);
}

/* Does the kernel tell us of @pid what it tells the process's user? It does if we have
 * CAP_SYS_PTRACE or are that user. */
static bool may_see_status(uint32_t pid)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct caps[_LINUX_CAPABILITY_U32S_3] = {0};
    char path[32];
    struct stat st;

    if (!geteuid() && !syscall(SYS_capget, &header, caps) &&
        (caps[CAP_TO_INDEX(CAP_SYS_PTRACE)].effective & CAP_TO_MASK(CAP_SYS_PTRACE)))
        return true;
    snprintf(path, sizeof(path), "/proc/%u", pid);
    return !stat(path, &st) && st.st_uid == geteuid() && st.st_gid == getegid();
}

/* Asks proc(5). For a zombie: no other process can have its pid. */
static int ask_proc(const struct ended_process *p)
{
    char path[64], buf[1024], *field, *save = NULL;
    _cleanup_(close_fdp) int fd = -1;
    unsigned long flags = 0;
    int status = -1;
    char state = 0;
    ssize_t n;

    snprintf(path, sizeof(path), "/proc/%u/stat", p->pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    n = fd < 0 ? -1 : read(fd, buf, sizeof(buf) - 1);
    if (n <= 0 || (syscall(SYS_pidfd_send_signal, p->pidfd, 0, NULL, 0) && errno == ESRCH))
        return -1;
    buf[n] = 0;
    field = strrchr(buf, ')'); /* the end of field 2 */
    if (!field)
        return -1;
    field = strtok_r(field + 1, " \n", &save);
    for (unsigned i = 3; field; i++, field = strtok_r(NULL, " \n", &save)) {
        if (i == 3)
            state = *field;
        if (i == 9)
            flags = strtoul(field, NULL, 10);
        if (i == 52)
            status = (int)strtoul(field, NULL, 10);
    }
    if (state != 'Z' && state != 'X' && !(flags & FLAG_EXITING))
        return -1; /* the process lives; it has only closed its socket */
    if (status == 0 && !may_see_status(p->pid))
        return -1; /* the kernel hides the exit code as 0 */
    return status;
}

static void ask(struct ended_process *p)
{
    struct info info = {.mask = INFO_EXIT};

    if (p->status >= 0 || p->pidfd < 0)
        return;
    if (ioctl(p->pidfd, GET_INFO, &info) == 0 && (info.mask & INFO_EXIT))
        p->status = info.exit_code;
    else
        p->status = ask_proc(p);
    if (p->status >= 0)
        close_fdp(&p->pidfd);
}

/* Of two of one user's, the one to forget first: how it ended is not known, or it was exit code 0;
 * then the older one. */
static bool goes_first(const struct ended_process *p, const struct ended_process *q)
{
    bool failed = p->status > 0, other_failed = q->status > 0;

    return failed != other_failed ? other_failed : p->at_ms < q->at_ms;
}

/* A free entry, or the one to replace: one of @uid if @uid has its share, else the oldest of all.
 */
static struct ended_process *place_for(struct ended *ended, uint32_t uid)
{
    struct ended_process *oldest = NULL, *own = NULL;
    unsigned n = 0;

    for (unsigned i = 0; i < ENDED_MOST; i++) {
        struct ended_process *p = &ended->at[i];

        if (p->at_ms && p->uid == uid) {
            n++;
            ask(p);
            if (!own || goes_first(p, own))
                own = p;
        }
        if (!oldest || p->at_ms < oldest->at_ms)
            oldest = p;
    }
    return n >= ENDED_MAX_USER ? own : oldest;
}

void ended_note(struct ended *ended, uint32_t uid, uint32_t pid, int pidfd)
{
    struct ended_process *p;

    if (pidfd < 0)
        return;
    p = place_for(ended, uid);
    ended_forget(p);
    *p = (struct ended_process){.pid = pid,
                                .uid = uid,
                                .at_ms = now_ms(),
                                .pidfd = fcntl(pidfd, F_DUPFD_CLOEXEC, 0),
                                .status = -1};
    ask(p);
}

void ended_text(struct ended *ended, uint32_t pid, uint64_t at_ms, bool age, char buf[ENDED_TEXT])
{
    struct ended_process *found = NULL;
    const char *name;
    size_t used;

    buf[0] = 0;
    for (unsigned i = 0; i < ENDED_MOST; i++) {
        struct ended_process *p = &ended->at[i];

        if (p->at_ms && p->pid == pid && p->at_ms + NEAR_MS >= at_ms && p->at_ms <= at_ms + NEAR_MS)
            found = p;
    }
    if (!found)
        return;
    ask(found);
    if (found->status < 0)
        return;
    if (WIFEXITED(found->status)) {
        snprintf(buf, ENDED_TEXT, "exit code %d", WEXITSTATUS(found->status));
    } else {
        name = sigabbrev_np(WTERMSIG(found->status));
        snprintf(buf, ENDED_TEXT, "signal %d%s%s%s", WTERMSIG(found->status), name ? " (" : "",
                 name ? name : "", name ? ")" : "");
    }
    used = strlen(buf);
    if (age)
        snprintf(buf + used, ENDED_TEXT - used, ", %llu s ago",
                 (unsigned long long)(MAX(now_ms(), at_ms) - at_ms) / 1000);
}

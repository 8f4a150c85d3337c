/* alive.c - does another member of a one-node group still live, when no commd is there to tell?
 *
 * The pids of members are those that commd saw. They mean nothing to a process in another pid
 * namespace (a container), where the same number is another process or none. So every member takes
 * a lock (F_OFD_SETLK) on its own byte of the board's file, through an open file description of its
 * own. The kernel releases the lock when the process ends, however it ends. Every process that has
 * the file can ask for the lock, in any namespace. A lock is not a number that could be used again.
 *
 * Pids are looked at too, but only where commd and this process have one pid namespace: the kernel
 * shows commd's pid as not 0 here, and commd saw the pid that this process has.
 *
 * Limits. The lock costs a descriptor per group. A process that has used up half of its
 * descriptors, or has no /proc, takes no lock. If it dies after commd, only members that know its
 * pid see that. A child that was made by a bare clone() may hold the lock longer: its parent's
 * death is seen by pid only. A member that closes descriptors which are not its own, this one among
 * them, looks dead. But the others look only when commd has gone. */
#include "client/lib/context/group.h"

#include <fcntl.h>
#include <stdio.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/syscall.h>

/* All of this process, so that a forked child can close them. */
static struct alive *all;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void alive_lock(void)
{
    pthread_mutex_lock(&lock);
}

void alive_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

void alive_forked(void)
{
    for (struct alive *a = all; a; a = a->next)
        close_fdp(&a->fd);
    all = NULL;
    pthread_mutex_unlock(&lock);
}

static struct flock byte_of(unsigned rank)
{
    return (struct flock){
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)rank, .l_len = 1};
}

static int open_again(int fd)
{
    struct rlimit limit;
    char path[40];
    int own;

    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    own = open(path, O_RDWR | O_CLOEXEC);
    if (own >= 0 && getrlimit(RLIMIT_NOFILE, &limit) == 0 && (rlim_t)own >= limit.rlim_cur / 2)
        close_fdp(&own); /* they are the application's */
    return own;
}

void alive_begin(struct membership *g, int board_fd)
{
    struct alive *a = &g->alive;
    struct flock mine = byte_of(g->rank);

    a->begun = fork_generation() + 1;
    a->pids = g->ctx->commd_seen && (pid_t)g->members[g->rank].pid == getpid();
    if (g->board.nnodes > 1) /* they wait for the next commd */
        return;
    a->fd = open_again(board_fd);
    if (a->fd < 0)
        return;
    if (fcntl(a->fd, F_OFD_SETLK, &mine)) {
        close_fdp(&a->fd);
        return;
    }
    alive_lock();
    a->next = all;
    all = a;
    alive_unlock();
    /* release: pairs with acquire in alive_ended(); the lock is there before */
    atomic_store_explicit(&g->board.members[g->local].alive, MEMBER_LOCKED, memory_order_release);
}

void alive_end(struct membership *g)
{
    struct alive *a = &g->alive;

    alive_lock();
    list_remove(all, a, next);
    alive_unlock();
    if (a->begun != fork_generation() + 1) /* our parent's, if any */
        return;
    a->begun = 0;
    /* release: all that it has sent is in the board before; also for a commd that is not there */
    atomic_store_explicit(&g->board.members[g->local].alive, MEMBER_LEFT, memory_order_release);
    close_fdp(&a->fd);
}

static bool lock_is_free(const struct membership *g, unsigned rank)
{
    struct flock ask = byte_of(rank);

    assert(rank < g->board.world);
    return g->alive.fd >= 0 && fcntl(g->alive.fd, F_OFD_GETLK, &ask) == 0 && ask.l_type == F_UNLCK;
}

/* A process that nobody has waited for yet counts as ended, which kill(pid, 0) would not say. */
static bool process_ended(pid_t pid)
{
    struct pollfd p = {.fd = (int)syscall(SYS_pidfd_open, pid, 0), .events = POLLIN};
    bool ended;

    if (p.fd < 0)
        return errno == ESRCH;
    ended = poll(&p, 1, 0) > 0;
    close(p.fd);
    return ended;
}

/* @local: its number among those of this node. */
static bool seen_to_end(const struct membership *g, unsigned rank, unsigned local, bool *ret_left)
{
    _Atomic uint32_t *word = &g->board.members[local].alive;
    pid_t pid = (pid_t)g->members[rank].pid;
    bool is_free = false;

    if (atomic_load_explicit(word, memory_order_acquire) == MEMBER_LOCKED)
        is_free = lock_is_free(g, rank);
    /* it may have left since */
    *ret_left = atomic_load_explicit(word, memory_order_acquire) == MEMBER_LEFT;
    return is_free || *ret_left || (g->alive.pids && pid > 0 && process_ended(pid));
}

bool alive_ended(const struct membership *g, unsigned rank, bool *ret_left)
{
    return seen_to_end(g, rank, rank, ret_left);
}

uint32_t alive_gone(const struct membership *g, uint32_t *ret_ranks, uint32_t most)
{
    uint32_t n = 0, local = 0;
    bool left;

    for (unsigned k = 0; k < g->board.world && n < most; k++) {
        if (g->members[k].node != g->members[g->rank].node)
            continue; /* its commd says so; what the board says may be that it went on */
        if (k != g->rank && (board_is_gone(&g->board, k) || seen_to_end(g, k, local, &left)))
            ret_ranks[n++] = k;
        local++;
    }
    return n;
}

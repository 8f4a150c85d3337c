/* boards.c - the boards of this node's groups, and which user is charged for a board.
 *
 * commd keeps two things of a board: the mapping of its control pages, and one descriptor. The file
 * lives as long as any process holds it: a member, the engine, or a process to which a member has
 * handed it. A member that leaves the group may still hold it. So a board is charged to its user,
 * in bytes and as one of the user's groups, from the moment it is made until only commd holds it.
 * Then commd frees its pages and forgets it. The kernel charges pages that the engine or commd
 * touched first to the service; the same sum bounds these.
 *
 * Who holds a board? The kernel counts the writable open descriptions of a file. commd opens the
 * file twice by /proc/self/fd. The first description stays here; the second is for members and the
 * engine. The one that memfd_create() made is not counted, and is closed. The kernel grants a write
 * lease (F_SETLEASE) on the first description only if no other writable one exists: open, mapped,
 * or on its way in a socket. A client may open the file read-only. Some kernels count such a
 * description, too. On the others it does no harm, because the pages are freed all the same. We
 * hold the lease for the time of two system calls. If a process opens the file meanwhile, the
 * kernel sends us SIGIO, so SIGIO is ignored.
 *
 * Where there are no leases (fs.leases-enable is 0) or no /proc, a board is charged until the
 * clients that were its members have disconnected.
 *
 * The engine holds a board longer than the members, if other nodes still need something of it.
 * commd's descriptor outlives the engine's mapping. So the engine never has to free the pages,
 * which takes a second for some gigabytes. A thread of commd frees them (shm/util/closer.c), or the
 * loop itself if they are few. FREEING_MAX boards of one user are freed at a time, and these do not
 * count for the limits.
 *
 * commd looks whether a board can be freed when its group is closed, by a timer, and when the
 * board's user meets a limit. The work of a turn is bounded each time. */
#include "daemon/memory/boards_priv.h"

#include <assert.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "daemon/core/share.h"
#include "shm/util/memfd.h"

enum {
    LOOK_AT_LIMIT = 64, /* of the user's own boards; about a microsecond each */
    FREEING_MAX = 4,
    AT_ONCE = 16 << 20,  /* bytes freed on the loop in one call: about 2 ms */
    COUNTED_AT_ONCE = 8, /* buckets */
};

struct board_holder {
    unsigned local, slot;
    uint32_t life;
};

/* Shared by the thread that frees the pages and the loop. */
struct board_job {
    int fd; /* owned */
    bool punch;
    _Atomic bool done;
    _Atomic unsigned refs;
};

int boards_init(struct boards *boards, unsigned max_groups)
{
    struct rlimit files = {.rlim_cur = 1024};
    size_t n = 16;

    while (n < max_groups)
        n *= 2;
    boards->buckets = calloc(n, sizeof(struct board_entry *));
    if (!boards->buckets)
        return -ENOMEM;
    boards->nbuckets = n;
    TAILQ_INIT(&boards->left);
    getrlimit(RLIMIT_NOFILE, &files);
    boards->max_files = (unsigned)MIN(files.rlim_cur / 2, (rlim_t)UINT32_MAX);
    /* By default SIGIO ends the process, and any member can have it sent: see the top. */
    signal(SIGIO, SIG_IGN);
    return 0;
}

/* ---- users ----------------------------------------------------------------------------------- */

static struct board_user **board_user_find(struct boards *boards, uint32_t uid)
{
    struct board_user **at = &boards->users[uid % BOARD_USER_BUCKETS];

    while (*at && (*at)->uid != uid)
        at = &(*at)->next;
    return at;
}

struct board_user *board_user_get(struct boards *boards, uint32_t uid)
{
    struct board_user **at = board_user_find(boards, uid);

    if (*at)
        return *at;
    *at = calloc(1, sizeof(**at));
    if (*at) {
        (*at)->uid = uid;
        TAILQ_INIT(&(*at)->left);
    }
    return *at;
}

static void user_drop_idle(struct boards *boards, uint32_t uid)
{
    struct board_user **at = board_user_find(boards, uid), *user = *at;

    if (!user || user->count)
        return;
    *at = user->next;
    free(user);
}

void boards_held(const struct boards *boards, uint32_t uid, size_t *ret_bytes, unsigned *ret_count)
{
    const struct board_user *user = boards->users[uid % BOARD_USER_BUCKETS];

    while (user && user->uid != uid)
        user = user->next;
    *ret_bytes = user ? user->bytes : 0;
    *ret_count = user ? user->count : 0;
}

size_t boards_users(const struct boards *boards, uint32_t *uids, size_t room)
{
    size_t n = 0;

    for (unsigned i = 0; i < BOARD_USER_BUCKETS; i++)
        for (const struct board_user *user = boards->users[i]; user; user = user->next, n++)
            if (n < room)
                uids[n] = user->uid;
    return n;
}

size_t boards_most(const struct boards *boards)
{
    size_t most = 0;

    for (unsigned i = 0; i < BOARD_USER_BUCKETS; i++)
        for (const struct board_user *user = boards->users[i]; user; user = user->next)
            most = MAX(most, user->bytes);
    return most;
}

void board_charge(struct boards *boards, struct board_entry *entry)
{
    boards->bytes += entry->bytes;
    boards->count++;
    entry->user->bytes += entry->bytes;
    entry->user->count++;
}

static void board_discharge(struct boards *boards, struct board_entry *entry)
{
    assert(boards->count >= entry->user->count && boards->bytes >= entry->user->bytes);
    assert(entry->user->count && entry->user->bytes >= entry->bytes);
    boards->bytes -= entry->bytes;
    boards->count--;
    entry->user->bytes -= entry->bytes;
    entry->user->count--;
    user_drop_idle(boards, entry->user->uid);
    entry->user = NULL;
}

/* ---- the table of open groups ---------------------------------------------------------------- */

/* The upper half of a group id is a tag of its home; the home counts the lower half. */
struct board_entry **board_find(const struct boards *boards, uint64_t group)
{
    struct board_entry **at = &boards->buckets[(group ^ group >> 32) & (boards->nbuckets - 1)];

    while (*at && (*at)->group != group)
        at = &(*at)->next;
    return at;
}

struct board_entry *board_entry_free(struct board_entry *entry)
{
    if (entry) {
        board_ctl_free(entry->ctl);
        close_fdp(&entry->fd);
        free(entry->holders);
        free(entry->seen);
        free(entry);
    }
    return NULL;
}

/* Opens the file *@fd twice: *@own is for commd, *@fd becomes the description for all others. */
static int open_twice(struct boards *boards, int *fd, int *own)
{
    _cleanup_(close_fdp) int theirs = -1;
    int r = boards->no_lease ? -ENOENT : memfd_reopen(*fd, own);

    if (r == 0)
        r = memfd_reopen(*fd, &theirs);
    if (r == 0) {
        close(*fd);
        *fd = steal_fd(&theirs);
        return 0;
    }
    if (r != -ENOENT && r != -EACCES && r != -ENOTDIR)
        return r;
    boards->no_lease = true; /* no /proc */
    close_fdp(own);
    *own = fcntl(*fd, F_DUPFD_CLOEXEC, 0);
    return *own < 0 ? -errno : 0;
}

int boards_add(struct boards *boards, const struct board_geom *geom, uint32_t uid,
               struct board_entry **ret_entry, int *ret_fd)
{
    struct board_entry **at = board_find(boards, geom->group), *entry;
    _cleanup_(close_fdp) int fd = -1;
    int r;

    if (*at)
        return -EEXIST;
    entry = calloc(1, sizeof(*entry));
    if (!entry)
        return -ENOMEM;
    entry->fd = -1;
    r = board_create(geom, &fd, &entry->ctl);
    if (r == 0)
        r = open_twice(boards, &fd, &entry->fd);
    if (r == 0 && !(entry->user = board_user_get(boards, uid)))
        r = -ENOMEM;
    if (r) {
        board_entry_free(entry);
        return r;
    }
    entry->group = geom->group;
    entry->bytes = board_ctl_bytes(entry->ctl);
    board_charge(boards, entry);
    *at = entry;
    *ret_entry = entry;
    *ret_fd = steal_fd(&fd);
    return 0;
}

struct board_entry *boards_find(const struct boards *boards, uint64_t group)
{
    return *board_find(boards, group);
}

/* ---- operations ------------------------------------------------------------------------------ */

/* Takes the counter of the first member here. The member writes it, so the sum is as honest as the
 * users are. The counter wraps: at the highest rate, after half an hour without a look. */
static void count_ops(struct boards *boards, struct board_entry *entry)
{
    uint32_t ops = board_rank_ended(entry->ctl, 0);

    boards->ops += (uint32_t)(ops - entry->counted);
    entry->counted = ops;
}

/* Adds what the ranks have recorded of their operations. A rank that has begun none has no pages of
 * a recorder yet, and a look would allocate them. */
static void count_recorders(struct boards *boards, struct board_entry *entry)
{
    struct recorder_totals now = {0};
    const struct board_recorder *recorder;
    bool any = false;

    for (unsigned m = 0; (recorder = board_recorder(entry->ctl, m)); m++) {
        if (!board_rank_started(entry->ctl, m))
            continue;
        recorder_add(recorder, &now);
        any = true;
    }
    if (!any || (!entry->seen && !(entry->seen = calloc(1, sizeof(*entry->seen)))))
        return; /* no memory: the next look counts it */
    recorder_gain(&now, entry->seen, &boards->totals);
    *entry->seen = now;
}

bool boards_count(struct boards *boards, size_t *at)
{
    size_t end = MIN(*at + COUNTED_AT_ONCE, boards->nbuckets);

    for (; *at < end; ++*at)
        for (struct board_entry *entry = boards->buckets[*at]; entry; entry = entry->next) {
            count_ops(boards, entry);
            count_recorders(boards, entry);
        }
    return *at < boards->nbuckets;
}

/* ---- who holds it ---------------------------------------------------------------------------- */

static int lives_reach(struct boards *boards, unsigned slot)
{
    unsigned n = MAX(boards->nlives, 64u);
    uint32_t *lives;

    if (slot < boards->nlives)
        return 0;
    while (n <= slot)
        n *= 2;
    lives = realloc(boards->lives, n * sizeof(*lives));
    if (!lives)
        return -ENOMEM;
    memset(lives + boards->nlives, 0, (n - boards->nlives) * sizeof(*lives));
    boards->lives = lives;
    boards->nlives = n;
    return 0;
}

int boards_hand_out(struct boards *boards, struct board_entry *entry, unsigned local, unsigned slot)
{
    struct board_holder *more;

    assert(entry->state == BOARD_OPEN);
    if (lives_reach(boards, slot))
        return -ENOMEM;
    more = realloc(entry->holders, (entry->nholders + 1) * sizeof(*more));
    if (!more)
        return -ENOMEM;
    entry->holders = more;
    more[entry->nholders++] = (struct board_holder){local, slot, boards->lives[slot]};
    return 0;
}

bool boards_member_slot(const struct board_entry *entry, unsigned local, unsigned *ret_slot)
{
    for (unsigned i = 0; i < entry->nholders; i++) {
        if (entry->holders[i].local != local)
            continue;
        *ret_slot = entry->holders[i].slot;
        return true;
    }
    return false;
}

void boards_client_gone(struct boards *boards, unsigned slot)
{
    if (slot < boards->nlives) /* else the client was given no board */
        boards->lives[slot]++;
}

static bool members_here(const struct boards *boards, const struct board_entry *entry)
{
    for (unsigned i = 0; i < entry->nholders; i++)
        if (boards->lives[entry->holders[i].slot] == entry->holders[i].life)
            return true;
    return false;
}

static bool is_held(struct boards *boards, const struct board_entry *entry)
{
    if (boards->no_lease)
        return members_here(boards, entry);
    if (fcntl(entry->fd, F_SETLEASE, F_WRLCK) == 0) {
        fcntl(entry->fd, F_SETLEASE, F_UNLCK);
        return false;
    }
    if (errno != EINVAL && errno != EACCES && errno != EPERM && errno != ENOSYS)
        return true;
    boards->no_lease = true;
    return members_here(boards, entry);
}

/* ---- the end of a board ---------------------------------------------------------------------- */

static void board_set_state(struct board_entry *entry, enum board_state state)
{
    assert(state == entry->state + 1);
    entry->state = state;
}

void board_set_left(struct boards *boards, struct board_entry *entry)
{
    board_set_state(entry, BOARD_LEFT);
    TAILQ_INSERT_TAIL(&boards->left, entry, in_all);
    TAILQ_INSERT_TAIL(&entry->user->left, entry, in_user);
}

static void job_unref(struct board_job *job)
{
    /* acq_rel: the last user of the job sees all that the other one did */
    if (atomic_fetch_sub_explicit(&job->refs, 1, memory_order_acq_rel) == 1)
        free(job);
}

static void free_pages(int fd, bool punch)
{
    struct stat st;

    /* Frees the pages even if a process has the file open for reading. */
    if (punch && fstat(fd, &st) == 0)
        fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, st.st_size);
    close(fd);
}

static void job_run(void *arg)
{
    struct board_job *job = arg;

    free_pages(job->fd, job->punch);
    atomic_store_explicit(&job->done, true, memory_order_release); /* pairs with look_at() */
    job_unref(job);
}

static void board_forget(struct boards *boards, struct board_entry *entry)
{
    assert(entry->state != BOARD_OPEN && !entry->ctl);
    TAILQ_REMOVE(&boards->left, entry, in_all);
    TAILQ_REMOVE(&entry->user->left, entry, in_user);
    if (entry->state == BOARD_FREEING) {
        assert(boards->freeing >= entry->user->freeing && entry->user->freeing);
        assert(entry->user->freeing_bytes >= entry->bytes && boards->freeing_bytes >= entry->bytes);
        boards->freeing--;
        boards->freeing_bytes -= entry->bytes;
        entry->user->freeing--;
        entry->user->freeing_bytes -= entry->bytes;
        job_unref(entry->job);
    }
    if (entry->stored && boards->forgotten)
        boards->forgotten(entry->group, entry->user->uid);
    board_discharge(boards, entry);
    board_entry_free(entry);
}

/* Has a thread free the pages. False: too many boards of the user are being freed, or no memory. */
static bool free_elsewhere(struct boards *boards, struct board_entry *entry)
{
    struct board_job *job;

    if (entry->user->freeing >= FREEING_MAX)
        return false;
    job = calloc(1, sizeof(*job));
    if (!job)
        return false;
    *job = (struct board_job){.fd = steal_fd(&entry->fd), .punch = !boards->no_lease, .refs = 2};
    entry->job = job;
    board_set_state(entry, BOARD_FREEING);
    boards->freeing++;
    boards->freeing_bytes += entry->bytes;
    entry->user->freeing++;
    entry->user->freeing_bytes += entry->bytes;
    closer_call(boards->closer, entry->user->uid, job_run, job);
    return true;
}

/* Frees or forgets a board that was left, if that is possible now. *@budget: how many bytes this
 * thread may still free. */
static void look_at(struct boards *boards, struct board_entry *entry, uint64_t *budget)
{
    uint64_t pages;
    struct stat st;

    if (entry->state == BOARD_LEFT && !is_held(boards, entry)) {
        pages = fstat(entry->fd, &st) == 0 ? (uint64_t)st.st_blocks * 512 : UINT64_MAX;
        if (pages <= *budget) {
            *budget -= pages;
            free_pages(steal_fd(&entry->fd), !boards->no_lease);
            return board_forget(boards, entry);
        }
        free_elsewhere(boards, entry);
    }
    /* acquire: pairs with the release in job_run() */
    if (entry->state == BOARD_FREEING &&
        atomic_load_explicit(&entry->job->done, memory_order_acquire))
        board_forget(boards, entry);
}

void boards_del(struct boards *boards, uint64_t group)
{
    struct board_entry **at = board_find(boards, group), *entry = *at;
    uint64_t budget = AT_ONCE;

    if (!entry)
        return;
    *at = entry->next;
    count_ops(boards, entry);
    count_recorders(boards, entry);
    entry->ctl = board_ctl_free(entry->ctl);
    board_set_left(boards, entry);
    look_at(boards, entry, &budget);
}

bool boards_look(struct boards *boards, unsigned n)
{
    uint64_t budget = AT_ONCE;
    struct board_entry *entry, *last = TAILQ_LAST(&boards->left, board_list);

    for (bool more = last; more && n > 0; n--) {
        entry = TAILQ_FIRST(&boards->left);
        more = entry != last;
        TAILQ_REMOVE(&boards->left, entry, in_all);
        TAILQ_INSERT_TAIL(&boards->left, entry, in_all);
        look_at(boards, entry, &budget);
    }
    return !TAILQ_EMPTY(&boards->left);
}

/* ---- limits ---------------------------------------------------------------------------------- */

static bool board_fits(const struct boards *boards, const struct board_user *user, size_t bytes,
                       const struct board_limits *limits, char *why, size_t len)
{
    size_t own = user ? user->bytes - user->freeing_bytes : 0;
    unsigned n = user ? user->count - user->freeing : 0, left = 0;
    uint64_t others = boards->bytes - boards->freeing_bytes - own;
    uint64_t share = share_of(limits->bytes, limits->bytes_per_user, others);
    unsigned nothers = boards->count - boards->freeing - n;
    unsigned max = MIN(limits->groups, boards->max_files);
    /* unless one user may have all groups: at most half of what descriptors allow */
    unsigned most =
        limits->groups_per_user >= limits->groups ? max : MIN(limits->groups_per_user, max / 2);
    uint64_t nshare = share_of(max, most, nothers);
    struct board_entry *entry;
    char held[128] = "";

    if (bytes <= share && own <= share - bytes && n < nshare)
        return true;
    if (user)
        TAILQ_FOREACH(entry, &user->left, in_user)
            left++;
    if (left)
        snprintf(held, sizeof(held),
                 "; %u of them were left, but a process or the engine still "
                 "holds their memory",
                 left);
    if (n < nshare)
        snprintf(why, len,
                 "its %zu MiB would exceed limits.%s: this user has %zu MiB in %u groups%s",
                 bytes >> 20,
                 share < limits->bytes_per_user ? "max_board_bytes" : "max_board_bytes_per_user",
                 own >> 20, n, held);
    else if (nshare < limits->groups_per_user && max < limits->groups)
        snprintf(why, len,
                 "this user has %u groups, and commd has too few descriptors for more: "
                 "raise its LimitNOFILE%s",
                 n, held);
    else
        snprintf(why, len, "it would exceed limits.%s: this user has %u groups%s",
                 nshare < limits->groups_per_user ? "max_groups" : "max_groups_per_user", n, held);
    return false;
}

int boards_room(struct boards *boards, uint32_t uid, size_t bytes,
                const struct board_limits *limits, char *why, size_t len)
{
    struct board_user *user = *board_user_find(boards, uid);
    struct board_entry *entry;
    uint64_t budget = AT_ONCE;

    for (unsigned i = 0; i < LOOK_AT_LIMIT; i++) {
        if (board_fits(boards, user, bytes, limits, why, len))
            return 0;
        if (!user || !(entry = TAILQ_FIRST(&user->left)))
            return -EDQUOT;
        TAILQ_REMOVE(&user->left, entry, in_user);
        TAILQ_INSERT_TAIL(&user->left, entry, in_user);
        look_at(boards, entry, &budget);
        user = *board_user_find(boards, uid); /* a user without boards is freed */
    }
    return board_fits(boards, user, bytes, limits, why, len) ? 0 : -EDQUOT;
}

void boards_fini(struct boards *boards)
{
    struct board_entry *entry;

    boards->forgotten = NULL; /* the next commd takes them */
    for (size_t i = 0; i < boards->nbuckets; i++)
        while (boards->buckets[i])
            boards_del(boards, boards->buckets[i]->group);
    while (boards->buckets && (entry = TAILQ_FIRST(&boards->left)))
        board_forget(boards, entry);
    free(boards->buckets);
    free(boards->lives);
    *boards = (struct boards){0};
}

/* arenas.c - the clients' registered memory, as far as commd has to do with it.
 *
 * A client makes an arena, seals it and sends us the descriptor. A member of a common group on this
 * node asks for the arena, and is given the descriptor. commd never maps an arena, so its content
 * cannot hurt commd. Members that map it rely on two things, which are checked here and again by
 * them: the file is a memfd that cannot shrink (no member gets SIGBUS), and it has the announced
 * size.
 *
 * Who pays? The memory is charged to the client, which touches the pages first. commd holds one
 * descriptor of each arena, and closes it when the client frees the arena or goes. Three limits
 * bound the number of arenas: one for each client; a quarter of commd's descriptors for all users;
 * half of what the others leave of that for one user. The bytes of one user's arenas are bounded by
 * the memory of the machine.
 *
 * To close the last copy of a large arena takes long, because its pages are freed. The closer's
 * threads do that. Until they have, the arena counts for its user.
 *
 * Members that have mapped an arena keep the mapping when the arena is gone here: see
 * client/lib/arena/peer_arena.c. */
#include "daemon/memory/arenas.h"

#include <assert.h>
#include <stdio.h>
#include <sys/resource.h>

#include "daemon/core/share.h"
#include "shm/util/memfd.h"

enum { ARENAS_PER_USER = 2048 };

struct arena_entry {
    struct arena_entry *next; /* of the same client */
    uint64_t arena, bytes;
    uint32_t uid;
    int fd; /* owned */
};

/* The sums over a user's arenas. */
struct arena_user {
    struct arena_user *next; /* in its bucket */
    uint32_t uid;
    unsigned count;
    uint64_t bytes;
};

int arenas_init(struct arenas *arenas, unsigned nslots)
{
    struct rlimit files = {.rlim_cur = 1024};

    *arenas = (struct arenas){.nslots = nslots};
    getrlimit(RLIMIT_NOFILE, &files);
    arenas->max = (unsigned)MIN(files.rlim_cur / 4, (rlim_t)UINT32_MAX);
    arenas->max_per_user = MIN(arenas->max / 2, (unsigned)ARENAS_PER_USER);
    arenas->max_bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    arenas->slots = calloc(nslots, sizeof(struct arena_entry *));
    arenas->counts = calloc(nslots, sizeof(*arenas->counts));
    return arenas->slots && arenas->counts ? 0 : -ENOMEM;
}

static struct arena_user **arena_user_find(struct arenas *arenas, uint32_t uid)
{
    struct arena_user **at = &arenas->users[uid % ARENA_USER_BUCKETS];

    while (*at && (*at)->uid != uid)
        at = &(*at)->next;
    return at;
}

/* 0 or -ENOMEM. */
static int arena_charge(struct arenas *arenas, unsigned slot, uint32_t uid, uint64_t bytes)
{
    struct arena_user **at = arena_user_find(arenas, uid);

    assert(arenas->counts[slot] < ARENAS_PER_CLIENT);
    if (!*at && !(*at = calloc(1, sizeof(**at))))
        return -ENOMEM;
    (*at)->uid = uid;
    (*at)->count++;
    (*at)->bytes += bytes;
    arenas->counts[slot]++;
    arenas->count++;
    return 0;
}

static void arena_discharge(struct arenas *arenas, unsigned slot, const struct arena_entry *entry)
{
    struct arena_user **at = arena_user_find(arenas, entry->uid), *user = *at;

    assert(user && user->count && user->bytes >= entry->bytes);
    assert(arenas->counts[slot] && arenas->count >= user->count);
    arenas->counts[slot]--;
    arenas->count--;
    user->bytes -= entry->bytes;
    if (--user->count == 0) {
        *at = user->next;
        free(user);
    }
}

static struct arena_entry *arena_entry_free(struct arenas *arenas, struct arena_entry *entry)
{
    closer_fd(arenas->closer, entry->uid, entry->fd);
    free(entry);
    return NULL;
}

void arenas_drop(struct arenas *arenas, unsigned slot)
{
    assert(slot < arenas->nslots);
    while (arenas->slots[slot]) {
        struct arena_entry *entry = arenas->slots[slot];

        arenas->slots[slot] = entry->next;
        arena_discharge(arenas, slot, entry);
        arena_entry_free(arenas, entry);
    }
}

void arenas_fini(struct arenas *arenas)
{
    for (unsigned i = 0; arenas->slots && i < arenas->nslots; i++)
        arenas_drop(arenas, i);
    free(arenas->slots);
    free(arenas->counts);
    *arenas = (struct arenas){0};
}

static struct arena_entry **arena_find(const struct arenas *arenas, unsigned slot, uint64_t arena)
{
    struct arena_entry **at = &arenas->slots[slot];

    assert(slot < arenas->nslots);
    while (*at && (*at)->arena != arena)
        at = &(*at)->next;
    return at;
}

/* NULL: there is room. Else @why, with the reason. */
static const char *arena_room_check(struct arenas *arenas, unsigned slot, uint32_t uid,
                                    uint64_t bytes, char *why, size_t len)
{
    const struct arena_user *user = *arena_user_find(arenas, uid);
    uint64_t total = user ? user->bytes : 0;
    unsigned own = user ? user->count : 0, n = own + closer_pending(arenas->closer, uid);
    uint64_t share = share_of(arenas->max, arenas->max_per_user, arenas->count - own);

    if (bytes > arenas->max_bytes - MIN(total, arenas->max_bytes))
        snprintf(
            why, len,
            "user %u has %llu MiB of registered memory on this node already, with %llu MiB more "
            "it would exceed the machine's memory: free some",
            uid, (unsigned long long)(total >> 20), (unsigned long long)(bytes >> 20));
    else if (arenas->counts[slot] >= ARENAS_PER_CLIENT || n >= arenas->max_per_user)
        snprintf(why, len,
                 "at most %u arenas of registered memory are possible for a process and %u for a "
                 "user: free some, or allocate larger parts at once",
                 ARENAS_PER_CLIENT, arenas->max_per_user);
    else if (n >= share)
        snprintf(why, len,
                 "commd holds %u arenas of registered memory already, %u of this user, who "
                 "may have half of what others leave of %u: raise its LimitNOFILE",
                 arenas->count, n, arenas->max);
    else
        return NULL;
    return why;
}

static enum cause invalid(const char *text, char *why, size_t len)
{
    snprintf(why, len, "%s", text);
    return CAUSE_INVALID;
}

enum cause arenas_add(struct arenas *arenas, unsigned slot, uint32_t uid,
                      const struct msg_arena_add *msg, int *fd, char *why, size_t len)
{
    struct arena_entry *entry;
    size_t size;
    int r = *fd < 0 ? -EBADF : memfd_check(*fd, SIZE_MAX / 2, &size);

    if (r)
        return invalid("an arena has to come with a memfd sealed against shrinking, growing and "
                       "further seals",
                       why, len);
    if (size != msg->size)
        return invalid("the arena's file is not as large as was said", why, len);
    if (*arena_find(arenas, slot, msg->arena))
        return invalid("the number of the arena is taken", why, len);
    if (arena_room_check(arenas, slot, uid, size, why, len))
        return CAUSE_QUOTA;
    if (*fd >= closer_reserve()) {
        snprintf(why, len, "commd has no descriptor left for it: raise its LimitNOFILE");
        return CAUSE_QUOTA;
    }
    entry = calloc(1, sizeof(*entry));
    if (!entry || arena_charge(arenas, slot, uid, size)) {
        free(entry);
        snprintf(why, len, "commd is out of memory");
        return CAUSE_NOMEM;
    }
    *entry = (struct arena_entry){.next = arenas->slots[slot],
                                  .arena = msg->arena,
                                  .bytes = size,
                                  .uid = uid,
                                  .fd = steal_fd(fd)};
    arenas->slots[slot] = entry;
    return CAUSE_NONE;
}

void arenas_del(struct arenas *arenas, unsigned slot, uint64_t arena)
{
    struct arena_entry **at = arena_find(arenas, slot, arena), *entry = *at;

    if (!entry)
        return;
    *at = entry->next;
    arena_discharge(arenas, slot, entry);
    arena_entry_free(arenas, entry);
}

uint64_t arenas_bytes(const struct arenas *arenas, unsigned slot)
{
    uint64_t total = 0;

    assert(slot < arenas->nslots);
    for (const struct arena_entry *e = arenas->slots[slot]; e; e = e->next)
        total += e->bytes;
    return total;
}

int arenas_fd(const struct arenas *arenas, unsigned slot, uint32_t uid, uint64_t arena)
{
    const struct arena_entry *entry = *arena_find(arenas, slot, arena);

    return entry && entry->uid == uid ? entry->fd : -1;
}

size_t arenas_users(const struct arenas *arenas, uint32_t *uids, size_t room)
{
    size_t n = 0;

    for (unsigned i = 0; i < ARENA_USER_BUCKETS; i++)
        for (const struct arena_user *user = arenas->users[i]; user; user = user->next, n++)
            if (n < room)
                uids[n] = user->uid;
    return n;
}

void arenas_held(const struct arenas *arenas, uint32_t uid, uint64_t *ret_bytes,
                 unsigned *ret_count, uint64_t *ret_all)
{
    *ret_bytes = *ret_all = 0;
    *ret_count = 0;
    for (unsigned i = 0; i < ARENA_USER_BUCKETS; i++)
        for (const struct arena_user *user = arenas->users[i]; user; user = user->next) {
            *ret_all += user->bytes;
            if (user->uid != uid)
                continue;
            *ret_bytes = user->bytes;
            *ret_count = user->count;
        }
}

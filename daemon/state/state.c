/* state.c - the file of what commd knows, for the commd that follows it.
 *
 *   | head: magic, version, tries, word | half 0: its word, used, records | half 1: likewise |
 *
 * The file lies in memory of which the service manager, or the keeper, has a descriptor, so it is
 * there when commd has died at any instruction. Who writes: one thread of the present commd. Who
 * reads: the next one.
 *
 * A record is put behind the last one, with a checksum; then `used` takes it in (release). So a
 * record that was not finished is not there. When a half is full, or most of it does not count any
 * more, the records that count are copied to the other half; then `word` takes that half in. It
 * counts these turns, its lowest bit is the half, and the half has the same word: a word that was
 * not finished, or anything else, is no half's, and then the file is empty. A checksum has the word
 * in it, so what an earlier turn left behind is no record.
 *
 * A record that is damaged ends the file: those before it are what was true once. Nothing that is
 * read is believed: lengths here, contents in state_read.c, what it means in the core.
 *
 * What if there is no room: the events of the diary go, all of them, and no more are written, so
 * that the next commd gives no number twice. If that is not enough the file is made empty, because
 * a part of the truth could give a rank to somebody who is not in the group any more. */
#include "daemon/state/state_priv.h"

#include <stdatomic.h>
#include <sys/mman.h>

#include "shm/util/memfd.h"

enum {
    STATE_VERSION = 1,
    STATE_OLDEST = 1,  /* that is read: of the version before */
    HEAD = 4096,       /* bytes before the first half */
    LEAST = 2 * HEAD,  /* a file has */
    SLACK = 256 << 10, /* of records that do not count, besides as many as count */
    PUNCH = 1 << 20,   /* a half that had more has its memory taken away */
    PER_CLIENT = 768,  /* bytes that its records take at most, with their heads */
    PER_GROUP = 2048,
    PER_MEMBER = 192,
    PER_ARENA = 64,
    PER_EVENT = 448,
};
#define STATE_MAGIC UINT64_C(0x6574617473646d63) /* "cmdstate" */

struct head {
    uint64_t magic;
    uint32_t version, tries;
    uint64_t room;
    _Atomic uint64_t word; /* 0: there is nothing */
};
struct half {
    uint64_t word;
    _Atomic uint64_t used;
};
struct record {
    uint32_t len, kind;
    uint64_t check;
};
_Static_assert(sizeof(struct half) == 16 && sizeof(struct record) == 16, "records lie on 8 bytes");

static size_t record_size(size_t len)
{
    return sizeof(struct record) + ALIGN_UP(len, 8);
}

static struct half *half_with(const struct state *state, uint64_t word)
{
    char *halves = (char *)state->head + HEAD;

    return (struct half *)(halves + (word & 1) * (sizeof(struct half) + state->room));
}

static uint8_t *half_at(const struct state *state, uint64_t word, size_t at)
{
    assert(at <= state->room);
    return (uint8_t *)(half_with(state, word) + 1) + at;
}

/* Each turn has another word, and the other half. */
static uint64_t word_after(uint64_t word)
{
    return word == UINT64_MAX ? 2 : word + 1;
}

static uint64_t check_of(uint64_t word, uint32_t kind, const uint8_t *bytes, size_t len)
{
    uint64_t h = word * 0x9e3779b97f4a7c15u ^ ((uint64_t)kind << 32 | len);

    for (size_t i = 0; i < len; i += 8) {
        uint64_t part = 0;

        memcpy(&part, bytes + i, MIN(len - i, (size_t)8));
        h = (h ^ part) * 0xbf58476d1ce4e5b9u;
        h ^= h >> 29;
    }
    return h ^ h >> 32;
}

void file_drop(struct state *state, const char *why)
{
    state->dropped++;
    state->why = why;
}

unsigned state_dropped(const struct state *state, const char **ret_why)
{
    *ret_why = state->why ? state->why : "";
    return state->dropped;
}

bool state_is_whole(const struct state *state)
{
    return state->whole;
}

/* ---- what counts ----------------------------------------------------------------------------- */

static struct live_bucket *live_bucket_of(const struct state *state, uint64_t key)
{
    return &state->hashed[(key ^ key >> 32) * 0x9e3779b97f4a7c15u >> 54];
}
_Static_assert(STATE_BUCKETS == 1 << (64 - 54), "live_bucket_of()");

struct live *live_find(const struct state *state, enum kind kind, uint64_t key, uint64_t key2,
                       bool any_key2)
{
    struct live *live;

    LIST_FOREACH(live, live_bucket_of(state, key), hash)
        if (live->kind == kind && live->key == key && (any_key2 || live->key2 == key2))
            return live;
    return NULL;
}

static void lose_all(struct state *state)
{
    state->whole = false;
    atomic_store_explicit(&state->head->word, 0, memory_order_release);
}

bool live_add(struct state *state, enum kind kind, uint64_t key, uint64_t key2, size_t at,
              size_t len)
{
    struct live *live = malloc(sizeof(*live));

    if (!live) {
        lose_all(state);
        return false;
    }
    *live = (struct live){.kind = kind, .key = key, .key2 = key2, .at = at, .len = (uint32_t)len};
    TAILQ_INSERT_TAIL(&state->all, live, all);
    LIST_INSERT_HEAD(live_bucket_of(state, key), live, hash);
    state->live_bytes += record_size(len);
    return true;
}

void live_forget(struct state *state, struct live *live)
{
    assert(state->live_bytes >= record_size(live->len));
    state->live_bytes -= record_size(live->len);
    if (live->kind == KIND_CLIENT && live_client(state, (unsigned)live->key2) == live->key)
        state->ids[live->key2] = 0;
    TAILQ_REMOVE(&state->all, live, all);
    LIST_REMOVE(live, hash);
    free(live);
}

static void forget_kinds(struct state *state, uint64_t key, unsigned kinds)
{
    struct live *live, *next;

    for (live = LIST_FIRST(live_bucket_of(state, key)); live; live = next) {
        next = LIST_NEXT(live, hash);
        if (live->key == key && kinds & 1u << live->kind)
            live_forget(state, live);
    }
}

void live_forget_client(struct state *state, uint64_t id)
{
    forget_kinds(state, id, 1u << KIND_CLIENT | 1u << KIND_ARENA);
}

void live_forget_group(struct state *state, uint64_t id)
{
    forget_kinds(state, id,
                 1u << KIND_GROUP | 1u << KIND_GROUP_STEP | 1u << KIND_RANK_GONE |
                     1u << KIND_BROKEN);
}

uint64_t live_client(const struct state *state, unsigned slot)
{
    return slot < state->nids ? state->ids[slot] : 0;
}

bool live_set_client(struct state *state, unsigned slot, uint64_t id)
{
    assert(slot < STATE_SLOTS_MAX && id);
    if (slot >= state->nids) {
        unsigned n = MIN(2 * slot + 64, (unsigned)STATE_SLOTS_MAX);
        uint64_t *ids = realloc(state->ids, n * sizeof(*ids));

        if (!ids) {
            lose_all(state);
            return false;
        }
        memset(ids + state->nids, 0, (n - state->nids) * sizeof(*ids));
        state->ids = ids;
        state->nids = n;
    }
    assert(!state->ids[slot]);
    state->ids[slot] = id;
    return true;
}

static void forget_all(struct state *state)
{
    while (!TAILQ_EMPTY(&state->all))
        live_forget(state, TAILQ_FIRST(&state->all));
    assert(!state->live_bytes);
}

/* ---- writing --------------------------------------------------------------------------------- */

static void use_half(struct state *state, uint64_t word, size_t used)
{
    struct half *half = half_with(state, word);

    half->word = word;
    atomic_store_explicit(&half->used, used, memory_order_release);
    atomic_store_explicit(&state->head->word, word, memory_order_release);
    state->word = word;
    state->used = used;
}

static void punch_half(struct state *state, uint64_t word, size_t used)
{
    uintptr_t from = ALIGN_UP((uintptr_t)half_at(state, word, 0), HEAD);
    uintptr_t to = (uintptr_t)half_at(state, word, used) & ~(uintptr_t)(HEAD - 1);

    if (state->mapped && used > PUNCH && to > from)
        (void)madvise((void *)from, to - from, MADV_REMOVE); /* else it is used again, later */
}

/* To the other half. Until its word stands in the head nothing has changed. */
static void compact(struct state *state)
{
    uint64_t old = state->word, word = word_after(old);
    size_t at = 0, had = state->used;
    struct live *live;

    assert(state->live_bytes <= state->room);
    TAILQ_FOREACH(live, &state->all, all) {
        struct record *record = (struct record *)half_at(state, word, at);

        memcpy(record, half_at(state, old, live->at), record_size(live->len));
        record->check = check_of(word, record->kind, (uint8_t *)(record + 1), live->len);
        live->at = at;
        at += record_size(live->len);
    }
    assert(at == state->live_bytes);
    use_half(state, word, at);
    punch_half(state, old, had);
}

/* Their records in the half would count for the next commd, so it is left at once. */
static void drop_events(struct state *state)
{
    struct live *live, *next;

    if (state->no_events)
        return;
    state->no_events = true;
    for (live = TAILQ_FIRST(&state->all); live; live = next) {
        next = TAILQ_NEXT(live, all);
        if (live->kind == KIND_EVENT)
            live_forget(state, live);
    }
    compact(state);
}

bool file_event_room(struct state *state, size_t len)
{
    if (state->whole && record_size(len) > state->room - state->live_bytes)
        drop_events(state);
    return state->whole && !state->no_events;
}

uint8_t *file_room(struct state *state, size_t len)
{
    size_t want = record_size(len);

    if (!state->whole)
        return NULL;
    if (len <= UINT32_MAX && want > state->room - state->live_bytes)
        drop_events(state);
    if (len > UINT32_MAX || want > state->room - state->live_bytes) {
        lose_all(state);
        return NULL;
    }
    if (want > state->room - state->used || state->used > 2 * state->live_bytes + SLACK)
        compact(state);
    return half_at(state, state->word, state->used) + sizeof(struct record);
}

size_t file_commit(struct state *state, enum kind kind, size_t len)
{
    size_t at = state->used;
    struct record *record = (struct record *)half_at(state, state->word, at);

    assert(state->whole && record_size(len) <= state->room - at);
    record->len = (uint32_t)len;
    record->kind = kind;
    record->check = check_of(state->word, kind, (uint8_t *)(record + 1), len);
    state->used += record_size(len);
    atomic_store_explicit(&half_with(state, state->word)->used, state->used, memory_order_release);
    return at;
}

const uint8_t *file_record(const struct state *state, const struct live *live)
{
    return half_at(state, state->word, live->at) + sizeof(struct record);
}

void state_clear(struct state *state)
{
    forget_all(state);
    atomic_store_explicit(&state->head->word, 0, memory_order_release);
    state->head->tries = 0;
    use_half(state, word_after(state->word), 0);
    state->whole = true;
    state->no_events = false;
}

/* ---- reading --------------------------------------------------------------------------------- */

static void find_records(struct state *state, size_t used)
{
    size_t at = 0;

    while (at < used) {
        struct record record;
        const uint8_t *bytes;

        if (used - at < sizeof(record)) {
            file_drop(state, "a record is cut off");
            break;
        }
        memcpy(&record, half_at(state, state->word, at), sizeof(record));
        bytes = half_at(state, state->word, at) + sizeof(record);
        if (record_size(record.len) > used - at) {
            file_drop(state, "a record is longer than what there is");
            break;
        }
        if (record.check != check_of(state->word, record.kind, bytes, record.len)) {
            file_drop(state, "a record is damaged");
            break;
        }
        record_found(state, record.kind, bytes, record.len, at);
        at += record_size(record.len);
    }
    state->used = at;
}

/* What was written, or nothing. */
static void load_state(struct state *state)
{
    uint64_t word = atomic_load_explicit(&state->head->word, memory_order_acquire), used;
    const struct half *half = half_with(state, word);

    state->word = word;
    if (!word) {
        use_half(state, 2, 0);
        return;
    }
    used = atomic_load_explicit(&half->used, memory_order_acquire);
    if (half->word != word || used > state->room || used % 8) {
        file_drop(state, "its halves are damaged");
        use_half(state, word_after(word), 0);
        return;
    }
    find_records(state, used);
    if (state->whole) /* what comes next does not stand behind what is damaged */
        compact(state);
}

static void state_freep(struct state **state)
{
    state_free(*state);
}

static int state_in(void *memory, size_t size, bool mapped, bool fresh, struct state **ret_state)
{
    _cleanup_(state_freep) struct state *state = calloc(1, sizeof(*state));
    size_t room = ((size - HEAD) / 2 - sizeof(struct half)) & ~(size_t)7;

    if (!state || !(state->hashed = calloc(STATE_BUCKETS, sizeof(*state->hashed)))) {
        if (mapped)
            munmap(memory, size);
        return -ENOMEM;
    }
    TAILQ_INIT(&state->all);
    state->head = memory;
    state->size = size;
    state->room = room;
    state->mapped = mapped;
    state->whole = true;
    if (fresh) {
        state->head->magic = STATE_MAGIC;
        state->head->version = STATE_VERSION;
        state->head->room = room;
        use_half(state, 2, 0);
    } else if (state->head->magic != STATE_MAGIC || state->head->version < STATE_OLDEST ||
               state->head->version > STATE_VERSION || state->head->room != room) {
        return -EINVAL;
    } else {
        load_state(state);
        state->head->version = STATE_VERSION; /* what is written from now on is new */
    }
    *ret_state = steal_ptr(state);
    return 0;
}

int state_on(void *memory, size_t size, bool fresh, struct state **ret_state)
{
    if (size < LEAST)
        return -EINVAL;
    return state_in(memory, size, false, fresh, ret_state);
}

static int map_state(int fd, size_t size, bool fresh, struct state **ret_state)
{
    void *memory;
    int r = memfd_map(fd, size, &memory);

    return r ? r : state_in(memory, size, true, fresh, ret_state);
}

int state_new(size_t size, struct state **ret_state, int *ret_fd)
{
    _cleanup_(close_fdp) int fd = -1;
    int r = memfd_new("commd-state", size, &fd);

    if (r == 0)
        r = map_state(fd, size, true, ret_state);
    if (r == 0)
        *ret_fd = steal_fd(&fd);
    return r;
}

int state_open(int fd, struct state **ret_state)
{
    size_t size;

    if (memfd_check(fd, SIZE_MAX / 2, &size) || size < LEAST)
        return -EINVAL;
    return map_state(fd, size, false, ret_state);
}

struct state *state_free(struct state *state)
{
    if (!state)
        return NULL;
    if (state->hashed)
        forget_all(state);
    free(state->hashed);
    free(state->ids);
    if (state->mapped)
        munmap(state->head, state->size);
    free(state);
    return NULL;
}

size_t state_size(unsigned clients, unsigned groups, unsigned members, unsigned arenas)
{
    size_t records = (size_t)clients * PER_CLIENT + (size_t)groups * PER_GROUP +
                     (size_t)members * PER_MEMBER + (size_t)arenas * PER_ARENA +
                     (size_t)STATE_EVENTS * PER_EVENT;

    return ALIGN_UP(HEAD + 2 * (sizeof(struct half) + SLACK + records), (size_t)HEAD);
}

unsigned state_try(struct state *state)
{
    return state->head->tries++;
}

void state_taken_over(struct state *state)
{
    state->head->tries = 0;
}

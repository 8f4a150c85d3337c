/* test_state.c - the file that commd leaves to its successor: what is written is read, whatever
 * moment commd is killed at, and whatever bytes lie there. */
#include "tests/unit/daemon/core_bench.h"

#include <fcntl.h>

#include "daemon/state/state.pb-c.h"
#include "daemon/state/state_priv.h"

enum { BYTES = 16 << 10, WORD = 24 /* its place in the head */, HALVES = 4096 };

/* Two groups: "g" of clients 0 and 1, "h" of client 0 alone. */
struct fix {
    struct bench *bench;
    uint8_t memory[BYTES] __attribute__((aligned(64)));
    struct state *state;
    uint64_t g, h;
    char got[8192];
    bool refuse_clients, refuse_groups, refuse_events;
};

static void fix_note(struct fix *f, const char *format, ...) _printf_(2, 3);
static void fix_note(struct fix *f, const char *format, ...)
{
    size_t len = strlen(f->got);
    va_list args;

    va_start(args, format);
    vsnprintf(f->got + len, sizeof(f->got) - len, format, args);
    va_end(args);
}

static void on_counts(void *arg, const struct core_counts *counts)
{
    fix_note(arg, "counts %u %u\n", (unsigned)counts->clients, (unsigned)counts->groups_broken[8]);
    assert_int_equal(counts->groups_recovered[CORE_RECOVERED_NEW], counts->groups_broken[8]);
    assert_int_equal(counts->groups_revoked, counts->groups_broken[8]);
}

static bool on_client(void *arg, const struct state_client *client)
{
    struct fix *f = arg;

    if (f->refuse_clients)
        return false;
    fix_note(f, "client %u uid %u payer %u pid %u since %u %s token %u %s %s\n", client->is.slot,
             client->is.uid, client->is.payer, client->is.pid, (unsigned)client->is.since_ms,
             client->is.program, client->token[15], client->command, client->job);
    return true;
}

static bool on_arena(void *arg, const struct state_arena *arena)
{
    fix_note(arg, "arena %u of %u, %u\n", (unsigned)arena->id, arena->slot, (unsigned)arena->size);
    return true;
}

static bool on_group(void *arg, const struct core_kept_group *group)
{
    struct fix *f = arg;

    if (f->refuse_groups)
        return false;
    fix_note(f, "group %s of %u, %u on %u nodes of %s:", group->name, group->uid, group->size,
             group->nnodes, group->nodes[0]);
    for (uint32_t i = 0; i < group->nranks; i++)
        fix_note(f, " %u req %u slot %d pid %u", group->ranks[i].rank, group->ranks[i].req,
                 (int)group->ranks[i].slot, group->members[group->ranks[i].rank].pid);
    fix_note(f, "\n");
    return true;
}

static bool on_gone(void *arg, const struct core_rank_gone *gone)
{
    fix_note(arg, "rank %u gone %u after %u\n", gone->rank, gone->cause, gone->ops);
    return gone->again;
}

static bool on_broken(void *arg, const struct core_group_broken *broken)
{
    fix_note(arg, "broken %u by %d pid %u of %s: %s\n", broken->cause, broken->rank, broken->pid,
             broken->node, broken->text);
    return broken->again;
}

static const struct state_ops all = {.counts = on_counts,
                                     .client = on_client,
                                     .arena = on_arena,
                                     .group = on_group,
                                     .rank_gone = on_gone,
                                     .broken = on_broken};

static bool on_event(void *arg, const struct state_entry *event)
{
    struct fix *f = arg;

    if (f->refuse_events)
        return false;
    fix_note(f, "event %llu of %d, life %u at %llu, %u of %d: %s: %s\n",
             (unsigned long long)event->number, (int)event->payer, (unsigned)event->life,
             (unsigned long long)event->wall_ms, (unsigned)event->total, (int)event->whose,
             event->what, event->text);
    return true;
}

static const char *content(struct fix *f, struct state *state)
{
    f->got[0] = 0;
    state_read_events(state, on_event, f);
    state_read(state, &all, f);
    return f->got;
}

static unsigned dropped(const struct state *state)
{
    const char *why;

    return state_dropped(state, &why);
}

/* Another commd, after this one was killed. */
static void successor(struct fix *f)
{
    f->state = state_free(f->state);
    assert_int_equal(state_on(f->memory, BYTES, false, &f->state), 0);
}

static void add_client(struct state *state, unsigned slot, uint32_t pid)
{
    state_client(state, &(struct state_client){.is = {.slot = slot,
                                                      .uid = 1000,
                                                      .payer = 1001,
                                                      .pid = pid,
                                                      .since_ms = 5,
                                                      .program = "train"},
                                               .token = {[15] = 9},
                                               .command = "train.py --lr 1",
                                               .job = "run"});
}

static void add_event(struct state *state, uint64_t number, const char *text)
{
    state_entry(state, &(struct state_entry){.life = 77,
                                             .number = number,
                                             .wall_ms = 1000,
                                             .total = 2,
                                             .whose = number % 2 ? -1 : 1000,
                                             .payer = number % 2 ? -1 : 1001,
                                             .what = "test",
                                             .text = text});
}

static int setup(void **state)
{
    struct fix *f = aligned_alloc(64, ALIGN_UP(sizeof(*f), (size_t)64));
    struct core_config config = config_of(1);

    memset(f, 0, sizeof(*f));
    f->bench = bench_new(&config);
    for (unsigned i = 0; i < 2; i++) {
        hello(f->bench, i, 1000, false);
        join(f->bench, i, 5 + i, "g", i, 2);
    }
    join(f->bench, 0, 7, "h", 0, 1);
    f->g = home_group_id(42, 1);
    f->h = home_group_id(42, 2);
    assert_int_equal(state_on(f->memory, BYTES, true, &f->state), 0);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fix *f = *state;

    state_free(f->state);
    bench_free(f->bench);
    free(f);
    return 0;
}

static void write_some(struct fix *f)
{
    add_client(f->state, 0, 100);
    add_client(f->state, 1, 101);
    state_counts(f->state, &(struct core_counts){.clients = 2,
                                                 .groups_broken = {[8] = 1},
                                                 .groups_revoked = 1,
                                                 .groups_recovered = {[CORE_RECOVERED_NEW] = 1}});
    state_group(f->state, f->bench->core, f->g, false);
    state_group(f->state, f->bench->core, f->h, false);
    state_arena(f->state, &(struct state_arena){.slot = 1, .id = 3, .size = 4096});
    state_rank_gone(f->state, &(struct core_rank_gone){
                                  .group = f->g, .rank = 1, .ops = 12, .cause = CAUSE_LEFT});
    state_broken(f->state, &(struct core_group_broken){.group = f->h,
                                                       .cause = CAUSE_ABORTED,
                                                       .rank = -1,
                                                       .pid = 3,
                                                       .node = "a",
                                                       .text = "why \xff not"});
}

#define CLIENT_0 "client 0 uid 1000 payer 1001 pid 100 since 5 train token 9 train.py --lr 1 run\n"
#define CLIENT_1 "client 1 uid 1000 payer 1001 pid 101 since 5 train token 9 train.py --lr 1 run\n"
#define GROUP_G                                                                                    \
    "group g of 1000, 2 on 1 nodes of a: 0 req 5 slot 0 pid 100 1 req 6 slot 1 pid 101\n"
#define GROUP_H "group h of 1000, 1 on 1 nodes of a: 0 req 7 slot 0 pid 100\n"
#define WHAT_HAPPENED                                                                              \
    "arena 3 of 1, 4096\n"                                                                         \
    "rank 1 gone 16 after 12\n"                                                                    \
    "broken 8 by -1 pid 3 of a: why ? not\n"
#define SOME CLIENT_0 CLIENT_1 "counts 2 1\n" GROUP_G GROUP_H WHAT_HAPPENED

/* ---- what is written is read ----------------------------------------------------------------- */

static void all_of_it(void **state)
{
    struct fix *f = *state;

    write_some(f);
    assert_string_equal(content(f, f->state), SOME);
    for (unsigned i = 0; i < 5; i++) { /* one after the other */
        successor(f);
        assert_string_equal(content(f, f->state), SOME);
        assert_int_equal(dropped(f->state), 0);
    }
}

static void in_a_sealed_file(void **state)
{
    struct fix *f = *state;
    struct state *first, *second;
    int fd, pipes[2];

    assert_int_equal(state_new(state_size(4, 4, 16, 4), &first, &fd), 0);
    assert_int_equal(fcntl(fd, F_GET_SEALS) & (F_SEAL_SHRINK | F_SEAL_GROW),
                     F_SEAL_SHRINK | F_SEAL_GROW);
    add_client(first, 0, 100);
    state_free(first);
    assert_int_equal(state_open(fd, &second), 0);
    assert_string_equal(content(f, second), CLIENT_0);
    state_free(second);
    close(fd);
    assert_int_equal(pipe(pipes), 0);
    assert_int_equal(state_open(pipes[0], &second), -EINVAL);
    close(pipes[0]);
    close(pipes[1]);
}

static void what_has_ended_is_not_there(void **state)
{
    struct fix *f = *state;

    write_some(f);
    state_group_gone(f->state, f->h);
    state_arena_gone(f->state, 1, 3);
    successor(f);
    assert_string_equal(content(f, f->state),
                        CLIENT_0 CLIENT_1 "counts 2 1\n" GROUP_G "rank 1 gone 16 after 12\n");
    state_client_gone(f->state, 0);
    state_client_gone(f->state, 1);
    state_group_gone(f->state, f->g);
    successor(f);
    assert_string_equal(content(f, f->state), "counts 2 1\n");
}

/* Else the newcomer would be in the group of the one before it. */
static void a_slot_that_is_used_again(void **state)
{
    struct fix *f = *state;

    add_client(f->state, 0, 100);
    add_client(f->state, 1, 101);
    state_group(f->state, f->bench->core, f->g, false);
    state_arena(f->state, &(struct state_arena){.slot = 1, .id = 3, .size = 4096});
    state_client_gone(f->state, 1);
    add_client(f->state, 1, 101);
    successor(f);
    assert_string_equal(content(f, f->state),
                        CLIENT_0 "group g of 1000, 2 on 1 nodes of a: 0 req 5 slot 0 pid 100 1 req "
                                 "6 slot -1 pid 101\n" CLIENT_1);
}

/* It comes back with the number of its last request, and with no other. */
static void a_rank_that_asks_again(void **state)
{
    struct fix *f = *state;

    add_client(f->state, 0, 100);
    add_client(f->state, 1, 101);
    state_rank_asked(f->state, f->g, 1, 8); /* nothing is kept of it */
    state_group(f->state, f->bench->core, f->g, true);
    state_rank_asked(f->state, f->g, 1, 8);
    state_rank_asked(f->state, f->g, 1, 9);
    state_group_step(f->state, f->g, STATE_OPEN);
    for (unsigned i = 0; i < 2; i++) {
        assert_string_equal(content(f, f->state),
                            CLIENT_0 CLIENT_1 "group g of 1000, 2 on 1 nodes of a: 0 req 5 slot 0 "
                                              "pid 100 1 req 9 slot 1 pid 101\n");
        assert_int_equal(dropped(f->state), 0);
        successor(f);
    }
}

/* However often a client asks, the file is as long. */
static void who_asks_without_end(void **state)
{
    struct fix *f = *state;

    add_client(f->state, 0, 100);
    state_group(f->state, f->bench->core, f->g, true);
    for (uint32_t i = 0; i < 10000; i++)
        state_rank_asked(f->state, f->g, 1, i);
    assert_true(state_is_whole(f->state));
}

static void halves_turn(void **state)
{
    struct fix *f = *state;

    write_some(f);
    for (unsigned i = 0; i < 2000; i++) {
        add_client(f->state, 2 + i % 3, i);
        state_counts(f->state, &(struct core_counts){.clients = i});
        state_client_gone(f->state, 2 + i % 3);
        if (i % 100 == 0)
            successor(f);
    }
    assert_true(state_is_whole(f->state));
    successor(f);
    assert_string_equal(content(f, f->state),
                        CLIENT_0 CLIENT_1 GROUP_G GROUP_H WHAT_HAPPENED "counts 1999 0\n");
}

/* Entries of the diary: the next commd has those that nobody pushed out. */
static void what_happened(void **state)
{
    struct fix *f = *state;

    add_event(f->state, 1, "hello");
    add_client(f->state, 0, 100);
    add_event(f->state, 2, "pushed out");
    add_event(f->state, 4, "a\nb \x1b[1m \xff");
    state_entry_gone(f->state, 2);
    state_entry_gone(f->state, 3);
#define EVENT_1 "event 1 of -1, life 77 at 1000, 2 of -1: test: hello\n"
#define EVENT_2 "event 2 of 1001, life 77 at 1000, 2 of 1000: test: pushed out\n"
#define EVENT_4 "event 4 of 1001, life 77 at 1000, 2 of 1000: test: a?b ?[1m ?\n"
    assert_string_equal(content(f, f->state), EVENT_1 EVENT_4 CLIENT_0);
    successor(f); /* finds it again: its diary pushes it out once more */
    assert_string_equal(content(f, f->state), EVENT_1 EVENT_2 EVENT_4 CLIENT_0);
    state_entry_gone(f->state, 2);
    assert_string_equal(content(f, f->state), EVENT_1 EVENT_4 CLIENT_0);
    f->refuse_events = true;
    assert_string_equal(content(f, f->state), CLIENT_0);
    assert_int_equal(dropped(f->state), 2);
    f->refuse_events = false;
    assert_string_equal(content(f, f->state), CLIENT_0);
}

static void put_event(struct fix *f, uint64_t whose, uint64_t wall_ms, const char *what,
                      const char *text)
{
    CommdState__Event msg = COMMD_STATE__EVENT__INIT;
    size_t len;

    msg.number = 9;
    msg.life = msg.total = 1;
    msg.whose = whose;
    msg.wall_ms = wall_ms;
    msg.what = (ProtobufCBinaryData){strlen(what), (uint8_t *)what};
    msg.text = (ProtobufCBinaryData){strlen(text), (uint8_t *)text};
    len = commd_state__event__get_packed_size(&msg);
    commd_state__event__pack(&msg, file_room(f->state, len));
    file_commit(f->state, KIND_EVENT, len);
}

static void no_event_is_believed(void **state)
{
    static const struct {
        uint64_t whose, wall_ms;
        const char *what;
        size_t len;
    } bad[] = {{UINT32_MAX + 2ull, 1, "test", 4},
               {UINT64_MAX, 1, "test", 4},
               {1, 253402300800000, "test", 4},
               {1, UINT64_MAX, "test", 4},
               {1, 1, "te\nst", 4},
               {1, 1, "a_word_of_24_characters_", 4},
               {1, 1, "test", STATE_TEXT}};
    struct fix *f = *state;
    char text[STATE_TEXT + 1];

    for (unsigned i = 0; i < ARRAY_LEN(bad); i++) {
        memset(text, 't', sizeof(text));
        text[bad[i].len] = 0;
        put_event(f, bad[i].whose, bad[i].wall_ms, bad[i].what, text);
        successor(f);
        assert_string_equal(content(f, f->state), "");
        assert_int_equal(dropped(f->state), 1);
        state_clear(f->state);
    }
    put_event(f, UINT32_MAX + 1ull, 253402300799999, "what_a_later_one_has", "x");
    put_event(f, 0, 1, "test", "a number twice");
    successor(f);
    assert_string_equal(content(f, f->state),
                        "event 9 of -1, life 1 at 253402300799999, 1 of -1: what_a_later_one_has: "
                        "x\n");
    assert_int_equal(dropped(f->state), 1);
}

/* For a client as for another event. Then the next commd has none: it gives no number twice. */
static void events_give_way(void **state)
{
    struct fix *f = *state;

    for (unsigned of_clients = 0; of_clients < 2; of_clients++) {
        state_clear(f->state);
        add_event(f->state, 1, "hello");
        for (uint64_t number = 2; number < 9; number++)
            add_event(f->state, number, "pushed out");
        state_entry_gone(f->state, 2);
        for (unsigned i = 0; !f->state->no_events; i++) {
            assert_in_range(i, 0, 1000);
            if (of_clients)
                add_client(f->state, i, 100 + i);
            else
                add_event(f->state, 9 + i, "more");
        }
        add_event(f->state, 2000, "no more");
        assert_true(state_is_whole(f->state));
        for (unsigned turn = 0; turn < 2; turn++) {
            assert_null(strstr(content(f, f->state), "event"));
            assert_int_equal(!!strstr(f->got, CLIENT_0), of_clients);
            successor(f);
        }
        add_event(f->state, 1, "hello"); /* there is room again */
        assert_non_null(strstr(content(f, f->state), EVENT_1));
    }
}

static void without_room_there_is_nothing(void **state)
{
    struct fix *f = *state;

    write_some(f);
    for (unsigned i = 2; i < 200; i++)
        add_client(f->state, i, i);
    assert_false(state_is_whole(f->state));
    state_client_gone(f->state, 0);
    state_group_gone(f->state, f->g);
    successor(f);
    assert_true(state_is_whole(f->state));
    assert_string_equal(content(f, f->state), "");
}

static void there_is_room_for_what_limits_allow(void **state)
{
    enum { CLIENTS = 50, ARENAS = 500 };
    char program[MSG_NAME_MAX], command[MSG_COMMAND_MAX], text[MSG_TEXT_MAX], event[STATE_TEXT];
    uint64_t number = INT64_MAX - 2000;
    struct fix *f = *state;
    size_t size = state_size(CLIENTS, 2, 3, ARENAS);
    void *memory = calloc(1, size);
    struct state *full;

    memset(program, 'p', sizeof(program) - 1);
    memset(command, 'c', sizeof(command) - 1);
    memset(text, 't', sizeof(text) - 1);
    memset(event, 'e', sizeof(event) - 1);
    event[sizeof(event) - 1] = 0;
    program[sizeof(program) - 1] = command[sizeof(command) - 1] = text[sizeof(text) - 1] = 0;
    assert_int_equal(state_on(memory, size, true, &full), 0);
    for (unsigned turn = 0; turn < 50; turn++) {
        for (unsigned i = 0; i < CLIENTS; i++) {
            state_client_gone(full, i);
            state_client(full, &(struct state_client){.is = {.slot = i,
                                                             .uid = UINT32_MAX,
                                                             .payer = UINT32_MAX,
                                                             .pid = UINT32_MAX,
                                                             .since_ms = UINT64_MAX,
                                                             .program = program},
                                                      .command = command,
                                                      .job = program});
        }
        for (unsigned i = 0; i < ARENAS; i++)
            state_arena(full, &(struct state_arena){
                                  .slot = i % CLIENTS, .id = UINT64_MAX - i, .size = UINT64_MAX});
        state_group_gone(full, f->g);
        state_group(full, f->bench->core, f->g, false);
        state_broken(full, &(struct core_group_broken){
                               .group = f->g, .cause = 8, .node = program, .text = text});
        for (unsigned i = 0; i < (turn ? 20 : STATE_EVENTS); i++) {
            state_entry_gone(full, ++number - STATE_EVENTS);
            state_entry(full, &(struct state_entry){.life = 1,
                                                    .number = number,
                                                    .wall_ms = 253402300799999,
                                                    .total = number,
                                                    .whose = UINT32_MAX,
                                                    .payer = UINT32_MAX,
                                                    .what = "a_word_of_23_characters",
                                                    .text = event});
        }
    }
    assert_true(state_is_whole(full) && !full->no_events);
    state_free(full);
    free(memory);
}

/* ---- killed at any moment -------------------------------------------------------------------- */

/* Of a file in which bytes of the last record are not what they were: all but that one. */
static void a_torn_record_is_not_there(void **state)
{
    static uint8_t image[BYTES];
    struct fix *f = *state;
    size_t from, to;

    add_client(f->state, 0, 100);
    from = f->state->used;
    add_client(f->state, 1, 101);
    to = f->state->used;
    memcpy(image, f->memory, BYTES);
    for (size_t at = from; at < to; at++) {
        memcpy(f->memory, image, BYTES);
        f->memory[HALVES + 16 + at] ^= 0x41;
        successor(f);
        if (strcmp(content(f, f->state), CLIENT_0)) /* what fills it up to 8 bytes counts not */
            assert_string_equal(f->got, CLIENT_0 CLIENT_1);
        assert_int_equal(dropped(f->state), strcmp(f->got, CLIENT_0) == 0);
    }
}

/* As many bytes count as were taken in: a beginning of what was. */
static void every_truncation(void **state)
{
    static uint8_t image[BYTES];
    struct fix *f = *state;
    size_t used;

    write_some(f);
    used = f->state->used;
    memcpy(image, f->memory, BYTES);
    for (size_t cut = 0; cut <= used; cut++) {
        uint64_t word = cut;
        size_t len;

        memcpy(f->memory, image, BYTES);
        memcpy(f->memory + HALVES + 8, &word, 8);
        successor(f);
        len = strlen(content(f, f->state));
        assert_true(cut < used ? len < strlen(SOME) : len == strlen(SOME));
        if (cut > 800) /* both clients are there: groups name their slots */
            assert_memory_equal(f->got, SOME, len);
        assert_true(state_is_whole(f->state));
    }
}

/* The other half is being written: the first @n bytes of it are, and the word is not. */
static void a_torn_turn(void **state)
{
    static uint8_t before[BYTES], after[BYTES];
    struct fix *f = *state;
    struct state *next;

    write_some(f);
    memcpy(before, f->memory, BYTES);
    successor(f); /* turns */
    memcpy(after, f->memory, BYTES);
    assert_memory_not_equal(before + WORD, after + WORD, 8);
    f->state = state_free(f->state);
    for (size_t n = HALVES; n <= BYTES; n += 7) {
        memcpy(f->memory, before, BYTES);
        memcpy(f->memory + HALVES, after + HALVES, n - HALVES);
        assert_int_equal(state_on(f->memory, BYTES, false, &next), 0);
        assert_string_equal(content(f, next), SOME);
        state_free(next);
    }
}

static void a_word_of_no_half(void **state)
{
    struct fix *f = *state;

    for (uint64_t word = 3; word < 9; word++) {
        write_some(f);
        memcpy(f->memory + WORD, &word, 8);
        f->memory[WORD + 6] = 1;
        successor(f);
        assert_string_equal(content(f, f->state), "");
        assert_int_equal(dropped(f->state), 1);
        add_client(f->state, 0, 100);
        successor(f);
        assert_string_equal(content(f, f->state), CLIENT_0);
        state_clear(f->state);
    }
}

/* ---- any bytes ------------------------------------------------------------------------------- */

static uint64_t draw_state = 1;
static uint64_t some(uint64_t below)
{
    return core_mix(draw_state++) % below;
}

static void any_bytes_in_the_file(void **state)
{
    static uint8_t image[BYTES];
    struct fix *f = *state;
    struct state *next;

    write_some(f);
    add_event(f->state, 1, "hello");
    memcpy(image, f->memory, BYTES);
    f->state = state_free(f->state);
    for (unsigned i = 0; i < 20000; i++) {
        memcpy(f->memory, image, BYTES);
        for (uint64_t n = 1 + some(4); n; n--)
            f->memory[some(3) ? HALVES + some(1200) : some(BYTES)] = (uint8_t)some(256);
        if (state_on(f->memory, BYTES, false, &next))
            continue; /* another magic */
        content(f, next);
        if (state_is_whole(next) && !live_client(next, 2))
            add_client(next, 2, 102);
        state_free(next);
    }
}

/* With a checksum that is right: what a stranger could write. */
static void any_record(void **state)
{
    static const char hello_bytes[] =
        "\x08\x01\x10\x02\x1a\x04nodeJ\x01x\x52\x03\x01\x02\x03z\x01\x00";
    struct fix *f = *state;

    for (unsigned i = 0; i < 20000; i++) {
        size_t len = some(60);
        uint8_t *room;

        if (i % 200 == 0) {
            state_clear(f->state);
            write_some(f);
            add_event(f->state, 1, "hello");
        }
        room = file_room(f->state, len);
        if (!room) {
            state_clear(f->state);
            continue;
        }
        for (size_t at = 0; at < len; at++)
            room[at] =
                some(2) ? (uint8_t)some(256) : (uint8_t)hello_bytes[some(sizeof(hello_bytes))];
        file_commit(f->state, (enum kind)some(KIND_EVENT + 1), len);
        if (i % 20 == 0) {
            successor(f);
            content(f, f->state);
        }
    }
}

/* As a later version writes it. */
static void what_is_not_known_is_skipped(void **state)
{
    struct fix *f = *state;
    const struct live *live;
    uint8_t bytes[512], *room;
    size_t len;

    add_client(f->state, 0, 100);
    room = file_room(f->state, 3);
    memcpy(room, "abc", 3);
    file_commit(f->state, (enum kind)200, 3);
    add_client(f->state, 1, 101);
    successor(f);
    assert_string_equal(content(f, f->state), CLIENT_0 CLIENT_1);
    live = live_find(f->state, KIND_CLIENT, 1, 0, true);
    len = live->len;
    memcpy(bytes, file_record(f->state, live), len);
    state_client_gone(f->state, 0);
    memcpy(bytes + len, "\xf0\x07\x05", 3); /* field 126: 5 */
    room = file_room(f->state, len + 3);
    memcpy(room, bytes, len + 3);
    room[1] = 9; /* the id: never used again */
    file_commit(f->state, KIND_CLIENT, len + 3);
    successor(f);
    assert_string_equal(content(f, f->state), CLIENT_1 CLIENT_0);
    assert_int_equal(dropped(f->state), 0);
}

static void another_version(void **state)
{
    struct fix *f = *state;
    struct state *next;

    write_some(f);
    f->memory[8]++;
    assert_int_equal(state_on(f->memory, BYTES, false, &next), -EINVAL);
    f->memory[8] -= 2; /* there was none before version 1 */
    assert_int_equal(state_on(f->memory, BYTES, false, &next), -EINVAL);
    f->memory[8]++;
    f->memory[0]++;
    assert_int_equal(state_on(f->memory, BYTES, false, &next), -EINVAL);
    assert_int_equal(state_on(f->memory, 4096, false, &next), -EINVAL);
}

/* ---- taking over ----------------------------------------------------------------------------- */

static void what_is_refused_is_forgotten(void **state)
{
    struct fix *f = *state;

    write_some(f);
    f->refuse_groups = true;
    assert_string_equal(content(f, f->state), CLIENT_0 CLIENT_1 "counts 2 1\narena 3 of 1, 4096\n");
    assert_int_equal(dropped(f->state), 2);
    f->refuse_groups = false;
    successor(f);
    assert_string_equal(content(f, f->state), CLIENT_0 CLIENT_1 "counts 2 1\narena 3 of 1, 4096\n");
    state_group(f->state, f->bench->core, f->h, false);
    f->refuse_clients = true;
    assert_string_equal(content(f, f->state),
                        "counts 2 1\n"
                        "group h of 1000, 1 on 1 nodes of a: 0 req 7 slot -1 pid 100\n");
}

static void two_tries(void **state)
{
    struct fix *f = *state;

    write_some(f);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(state_try(f->state), 0);
        successor(f);
        assert_int_equal(state_try(f->state), 1);
        successor(f);
        assert_int_equal(state_try(f->state), STATE_TRIES);
        assert_string_equal(content(f, f->state), SOME);
        if (i == 0)
            state_taken_over(f->state);
    }
    state_clear(f->state);
    assert_int_equal(state_try(f->state), 0);
    assert_string_equal(content(f, f->state), "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(all_of_it, setup, teardown),
        cmocka_unit_test_setup_teardown(in_a_sealed_file, setup, teardown),
        cmocka_unit_test_setup_teardown(what_has_ended_is_not_there, setup, teardown),
        cmocka_unit_test_setup_teardown(a_slot_that_is_used_again, setup, teardown),
        cmocka_unit_test_setup_teardown(a_rank_that_asks_again, setup, teardown),
        cmocka_unit_test_setup_teardown(who_asks_without_end, setup, teardown),
        cmocka_unit_test_setup_teardown(halves_turn, setup, teardown),
        cmocka_unit_test_setup_teardown(what_happened, setup, teardown),
        cmocka_unit_test_setup_teardown(no_event_is_believed, setup, teardown),
        cmocka_unit_test_setup_teardown(events_give_way, setup, teardown),
        cmocka_unit_test_setup_teardown(without_room_there_is_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(there_is_room_for_what_limits_allow, setup, teardown),
        cmocka_unit_test_setup_teardown(a_torn_record_is_not_there, setup, teardown),
        cmocka_unit_test_setup_teardown(every_truncation, setup, teardown),
        cmocka_unit_test_setup_teardown(a_torn_turn, setup, teardown),
        cmocka_unit_test_setup_teardown(a_word_of_no_half, setup, teardown),
        cmocka_unit_test_setup_teardown(any_bytes_in_the_file, setup, teardown),
        cmocka_unit_test_setup_teardown(any_record, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_not_known_is_skipped, setup, teardown),
        cmocka_unit_test_setup_teardown(another_version, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_refused_is_forgotten, setup, teardown),
        cmocka_unit_test_setup_teardown(two_tries, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

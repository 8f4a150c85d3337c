/* test_diagnose.c - verdicts over tables of ranks that are made up here: chains, circles, and those
 * who must not be accused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

#include "client/ctl/diagnose.h"
#include "shm/proto/ranks_table.h"

#define KEY(key_, kind_, title_) #key_,
static const char *const keys[] = {RANKS_COLUMNS(KEY)};
enum { NKEYS = ARRAY_LEN(keys), ROWS_MOST = 4200 };

struct fix {
    struct msg_column columns[NKEYS];
    char **cells; /* owned, and so is each */
    struct msg_table table;
    struct finding *findings;
    unsigned n;
};

static int setup(void **state)
{
    struct fix *f = calloc(1, sizeof(*f));

    for (unsigned i = 0; i < NKEYS; i++)
        snprintf(f->columns[i].key, sizeof(f->columns[i].key), "%s", keys[i]);
    f->cells = calloc((size_t)ROWS_MOST * NKEYS, sizeof(*f->cells));
    f->table = (struct msg_table){.ncolumns = NKEYS, .columns = f->columns, .cells = f->cells};
    *state = f;
    return 0;
}

static void clear(struct fix *f)
{
    for (size_t i = 0; i < (size_t)f->table.nrows * NKEYS; i++) {
        free(f->cells[i]);
        f->cells[i] = NULL;
    }
    f->table.nrows = 0;
    free(f->findings);
    f->findings = NULL;
}

static int teardown(void **state)
{
    struct fix *f = *state;

    clear(f);
    free(f->cells);
    free(f);
    return 0;
}

static void set(struct fix *f, const char *key, const char *value)
{
    for (unsigned i = 0; i < NKEYS; i++)
        if (!strcmp(keys[i], key)) {
            char **cell = &f->cells[(size_t)(f->table.nrows - 1) * NKEYS + i];

            free(*cell);
            *cell = strdup(value);
            return;
        }
    fail_msg("no column %s", key);
}

/* A row: @words is "key=value key=value ..."; the rest is that of an idle rank of group "g", whose
 * pid is 100 more than its rank. */
static void row(struct fix *f, unsigned rank, const char *words)
{
    char number[16], copy[512], *save = NULL;

    assert_in_range(f->table.nrows, 0, ROWS_MOST - 1);
    f->table.nrows++;
    set(f, "group", "00000000000000aa");
    set(f, "name", "g");
    set(f, "size", "4");
    set(f, "nodes", "2");
    set(f, "state", "open");
    snprintf(number, sizeof(number), "%u", rank);
    set(f, "rank", number);
    snprintf(number, sizeof(number), "%u", 100 + rank);
    set(f, "pid", number);
    set(f, "node", "a");
    set(f, "process", "sleeping");
    set(f, "ops", "5");
    set(f, "started", "5");
    set(f, "last", "barrier");
    set(f, "done", "0");
    set(f, "busy_pct", "0");
    set(f, "watched_ms", "1000");
    snprintf(copy, sizeof(copy), "%s", words);
    for (char *word = strtok_r(copy, " ", &save); word; word = strtok_r(NULL, " ", &save)) {
        char *value = strchr(word, '=');

        assert_non_null(value);
        *value++ = 0;
        set(f, word, value);
    }
}

#define WAITS "started=6 operation=all_reduce asleep_ms=3000 busy_pct=100"

static const struct finding *verdict(struct fix *f)
{
    const char *key = "";

    free(f->findings);
    f->findings = NULL;
    assert_int_equal(diagnose(&f->table, &f->findings, &f->n, &key), 0);
    assert_int_equal(f->n, 1);
    return &f->findings[0];
}

#define assert_verdict(f, want)  assert_string_equal(verdict_name(verdict(f)->verdict), #want)
#define assert_evidence(f, text) assert_non_null(strstr((f)->findings[0].evidence, text))

static void the_late_are_named(void **state)
{
    struct fix *f = *state;

    row(f, 0, WAITS);
    row(f, 3, "node=b kernel=futex_wait");
    row(f, 1, WAITS);
    row(f, 2, "node=b");
    assert_verdict(f, NOT_ARRIVED);
    assert_int_equal(f->findings[0].rank, 2);
    assert_int_equal(f->findings[0].pid, 102);
    assert_int_equal(f->findings[0].waiting_ms, 3000);
    assert_evidence(f, "ranks 0-1 wait in operation 6 (all_reduce) for 3.0 s");
    assert_evidence(f, "ranks 2-3 have not begun it");
    assert_evidence(f, "the last that it completed is operation 5 (barrier)");
}

static void the_worse_fate_explains_more(void **state)
{
    struct fix *f = *state;

    row(f, 0, WAITS);
    row(f, 1, "");
    row(f, 2, "process=stopped");
    assert_verdict(f, RANK_STOPPED);
    assert_int_equal(f->findings[0].rank, 2);
    clear(f);
    row(f, 0, WAITS);
    row(f, 2, "process=traced");
    row(f, 1, "process=running");
    assert_verdict(f, RANK_STOPPED);
    assert_evidence(f, "debugger");
    clear(f);
    row(f, 0, WAITS); /* and that it sleeps in the one before since long is no wait */
    row(f, 1, "process=stopped ops=4 operation=barrier asleep_ms=9000");
    assert_verdict(f, RANK_STOPPED);
    assert_int_equal(f->findings[0].rank, 1);
    clear(f);
    row(f, 0, WAITS);
    row(f, 1, "process=stopped");
    row(f, 2, "process=died");
    assert_verdict(f, RANK_DEAD);
    assert_int_equal(f->findings[0].rank, 2);
}

/* Somebody looks at a rank that waits, with gdb: another one is to blame, which has not come. */
static void a_waiter_that_is_looked_at(void **state)
{
    static const char *const how[] = {"stopped", "traced", "frozen"};
    struct fix *f = *state;

    for (unsigned i = 0; i < ARRAY_LEN(how); i++) {
        row(f, 0, WAITS);
        row(f, 1, WAITS);
        set(f, "process", how[i]);
        row(f, 2, "");
        assert_verdict(f, NOT_ARRIVED);
        assert_int_equal(f->findings[0].rank, 2);
        clear(f);
        row(f, 0, WAITS " size=2"); /* nobody else waits */
        set(f, "process", how[i]);
        row(f, 1, "size=2");
        assert_verdict(f, NOT_ARRIVED);
        assert_int_equal(f->findings[0].rank, 1);
        assert_int_equal(f->findings[0].waiting_ms, 3000);
        clear(f);
        row(f, 0, WAITS " size=2"); /* all have begun it: that one holds it up */
        row(f, 1, WAITS " size=2");
        set(f, "process", how[i]);
        assert_verdict(f, RANK_STOPPED);
        assert_int_equal(f->findings[0].rank, 1);
        clear(f);
    }
}

static void who_alone_has_begun_it_is_asked_about(void **state)
{
    struct fix *f = *state;

    row(f, 0, WAITS " size=3");
    row(f, 1, "size=3");
    row(f, 2, "size=3");
    assert_verdict(f, NOT_ARRIVED);
    assert_evidence(f,
                    "ranks 1-2 have not begun it\nonly rank 0 has begun it: did it call one more?");
    clear(f);
    row(f, 0, WAITS " size=2");
    row(f, 1, "size=2");
    assert_verdict(f, NOT_ARRIVED);
    assert_null(strstr(f->findings[0].evidence, "one more"));
}

static void counters_wrap(void **state)
{
    struct fix *f = *state;

    row(f, 0, "ops=4294967295 started=0 operation=barrier asleep_ms=900");
    row(f, 1, "ops=4294967295 started=4294967295");
    assert_verdict(f, NOT_ARRIVED);
    assert_int_equal(f->findings[0].rank, 1);
}

static void nobody_is_accused_too_soon(void **state)
{
    struct fix *f = *state;

    row(f, 0, "started=6 operation=all_reduce asleep_ms=499 busy_pct=100");
    row(f, 1, "");
    row(f, 2, "message=recv message_peer=1 message_tag=0 message_ms=499");
    assert_verdict(f, HEALTHY);
    clear(f);
    row(f, 0, "started=6 operation=all_reduce asleep_ms=9000 done=3 busy_pct=50");
    row(f, 1, "done=3 busy_pct=50");
    assert_verdict(f, HEALTHY); /* it gets on: what it sleeps in now has only begun */
    clear(f);
    row(f, 0, "");
    row(f, 1, "started=6 operation=all_reduce"); /* begun, but does not sleep */
    assert_verdict(f, HEALTHY);
}

#define GPU_WAITS "gpu_begun=6 gpu_ended=5 gpu_operation=barrier gpu_ready=true gpu_ms=3000"
#define GPU_IDLE  "gpu_begun=5 gpu_ended=5"

/* All rows as if their groups' operations went by commd-gpu. */
static void gpus_that_wait(void **state)
{
    struct fix *f = *state;

    row(f, 0, GPU_WAITS);
    row(f, 1, GPU_IDLE);
    assert_verdict(f, NOT_ARRIVED);
    assert_int_equal(f->findings[0].rank, 1);
    clear(f);
    row(f, 0, GPU_WAITS); /* who has come is not to blame, though it is stopped */
    row(f, 1, GPU_WAITS " process=stopped");
    row(f, 2, GPU_IDLE);
    assert_verdict(f, NOT_ARRIVED);
    assert_int_equal(f->findings[0].rank, 2);
    clear(f);
    row(f, 0, GPU_WAITS);
    row(f, 1, GPU_IDLE " process=stopped");
    assert_verdict(f, RANK_STOPPED);
    clear(f);
    row(f, 0, GPU_WAITS);
    row(f, 1, "gpu_begun=7 gpu_ended=5 gpu_ready=false gpu_ms=2000");
    assert_verdict(f, GPU_BEHIND);
    assert_int_equal(f->findings[0].rank, 1);
    clear(f);
    row(f, 0, GPU_WAITS); /* its host has not seen the end yet, that is all */
    row(f, 1, GPU_IDLE " process=left");
    assert_verdict(f, HEALTHY);
    clear(f);
    row(f, 0, "gpu_begun=4294967297 gpu_ended=0"); /* nonsense */
    row(f, 1, "gpu_begun=0 gpu_ended=4294967295 gpu_ready=true gpu_ms=99999 gpu_operation=x");
    (void)verdict(f);
}

static void gpus_that_are_not_accused_too_soon(void **state)
{
    struct fix *f = *state;

    row(f, 0, "gpu_begun=6 gpu_ended=5 gpu_operation=barrier gpu_ready=true gpu_ms=499");
    row(f, 1, GPU_IDLE);
    assert_verdict(f, HEALTHY);
    clear(f);
    row(f, 0, GPU_WAITS " gpu_done=2"); /* it gets on */
    row(f, 1, GPU_IDLE " gpu_done=2");
    assert_verdict(f, HEALTHY);
    clear(f);
    row(f, 0, "gpu_begun=6 gpu_ended=5 gpu_ready=true gpu_ms=4999 gpu_operation=barrier");
    row(f, 1, "gpu_begun=6 gpu_ended=5 gpu_ready=true gpu_ms=4999 gpu_operation=barrier");
    assert_verdict(f, HEALTHY); /* a large one may take so long */
    clear(f);
    row(f, 0, "gpu_begun=6 gpu_ended=5 gpu_ready=true gpu_ms=5000 gpu_operation=barrier");
    row(f, 1, "gpu_begun=6 gpu_ended=5 gpu_ready=true gpu_ms=5000 gpu_silent_ms=1499");
    assert_verdict(f, GPU_STALL);
    clear(f);
    row(f, 0, GPU_WAITS);
    row(f, 1, GPU_WAITS " gpu_silent_ms=1500");
    assert_verdict(f, GPU_SERVICE_DEAD);
    clear(f);
    row(f, 0, "gpu_begun=6 gpu_ended=5 gpu_ready=false gpu_ms=9000");
    row(f, 1, "gpu_begun=6 gpu_ended=5 gpu_ready=false gpu_ms=9000");
    assert_verdict(f, COMPUTE_BOUND);
}

/* Rank 1 sits in a message that rank 0 of its group does not send. */
static void gpu_chains_go_through_hosts(void **state)
{
    struct fix *f = *state;

    row(f, 0, GPU_WAITS);
    row(f, 1, GPU_IDLE " message=recv message_peer=2 message_tag=0 message_ms=2000");
    row(f, 2, GPU_WAITS);
    assert_verdict(f, ORDER_INVERSION);
    clear(f);
    row(f, 0, GPU_WAITS);
    row(f, 1,
        GPU_IDLE " message=recv message_peer=2 message_tag=0 message_ms=2000 process=running");
    row(f, 2, GPU_WAITS);
    assert_verdict(f, NOT_ARRIVED);
    assert_int_equal(f->findings[0].rank, 1);
    clear(f);
    row(f, 0, WAITS);
    row(f, 1, "unready_ms=2000");
    assert_verdict(f, GPU_BEHIND);
    clear(f);
    row(f, 0, WAITS);
    row(f, 1, "unready_ms=2000 process=stopped");
    assert_verdict(f, RANK_STOPPED);
}

static void chains_are_followed_into_other_groups(void **state)
{
    struct fix *f = *state;

    row(f, 0, WAITS);
    row(f, 1, "");
    row(f, 1,
        "group=00000000000000bb name=h message=recv message_peer=7 message_tag=2 "
        "message_ms=2000");
    row(f, 7, "group=00000000000000bb name=h");
    assert_int_equal(diagnose(&f->table, &f->findings, &f->n, &(const char *){NULL}), 0);
    assert_int_equal(f->n, 2);
    assert_int_equal(f->findings[0].verdict, VERDICT_NOT_ARRIVED);
    assert_int_equal(f->findings[0].rank, 7);
    assert_evidence(f, "waits in recv from rank 7, tag 2");
    assert_evidence(f, "has not sent");
    assert_string_equal(f->findings[1].name, "h");
    assert_int_equal(f->findings[1].rank, 7);
}

static void circles_are_seen(void **state)
{
    struct fix *f = *state;

    /* two groups in another order */
    row(f, 0, WAITS);
    row(f, 1, "");
    row(f, 0, "group=00000000000000bb name=h");
    row(f, 1, "group=00000000000000bb name=h " WAITS);
    assert_int_equal(diagnose(&f->table, &f->findings, &f->n, &(const char *){NULL}), 0);
    assert_int_equal(f->n, 2);
    assert_int_equal(f->findings[0].verdict, VERDICT_ORDER_INVERSION);
    assert_int_equal(f->findings[1].verdict, VERDICT_ORDER_INVERSION);
    clear(f);

    /* both began them without waiting, and one still computes: it may begin the other in time */
    row(f, 0, "started=6 operation=all_reduce asleep_ms=5000 busy_pct=100");
    row(f, 1, "process=running");
    row(f, 0, "group=00000000000000bb name=h");
    row(f, 1, "process=running group=00000000000000bb name=h " WAITS);
    assert_int_equal(diagnose(&f->table, &f->findings, &f->n, &(const char *){NULL}), 0);
    assert_int_equal(f->findings[0].verdict, VERDICT_NOT_ARRIVED);
    assert_int_equal(f->findings[0].rank, 1);
    assert_evidence(f, "its process is running");
    clear(f);

    /* a circle to which the first waiter does not belong */
    row(f, 0, "message=recv message_peer=1 message_tag=0 message_ms=9000");
    row(f, 1, "message=recv message_peer=2 message_tag=0 message_ms=800");
    row(f, 2, "message=recv message_peer=1 message_tag=0 message_ms=800");
    assert_verdict(f, ORDER_INVERSION);
}

static unsigned times(const char *text, const char *word)
{
    unsigned n = 0;

    for (; (text = strstr(text, word)); text += strlen(word))
        n++;
    return n;
}

/* A circle is told once, whoever is met first, and from each of its groups the same is to blame. */
static void a_circle_is_the_same_from_everywhere(void **state)
{
    struct fix *f = *state;
    unsigned first = 0;

    for (unsigned longest = 0; longest < 4; longest++) {
        for (unsigned rank = 0; rank < 4; rank++) {
            row(f, rank, "message=recv message_tag=3");
            set(f, "message_ms", rank == longest ? "9000" : "8000");
            set(f, "message_peer", rank == 1 ? "2" : rank == 2 ? "3" : "1"); /* 1, 2, 3; and 0 */
        }
        assert_verdict(f, ORDER_INVERSION);
        assert_int_equal(f->findings[0].rank, 1);
        assert_int_equal(f->findings[0].waiting_ms, 9000);
        for (unsigned rank = 1; rank < 4; rank++) {
            char name[64];

            snprintf(name, sizeof(name), "rank %u (pid %u on node a) waits", rank, 100 + rank);
            assert_int_equal(times(f->findings[0].evidence, name), 1);
        }
        assert_evidence(f, "and so back to rank 1 (pid 101 on node a)");
        assert_int_equal(times(f->findings[0].evidence, "rank 0 (pid"), longest == 0);
        clear(f);
    }

    /* three groups, each of two of three ranks, that each begins with another one */
    for (unsigned group = 0; group < 3; group++)
        for (unsigned k = 0; k < 2; k++) {
            char words[200];

            snprintf(words, sizeof(words),
                     "group=00000000000000a%u name=g%u size=2 pid=%u asleep_ms=%u%s", group, group,
                     100 + (group + k) % 3, 1000 + group, k ? "" : " started=6 operation=barrier");
            row(f, k, words);
            if (k)
                set(f, "asleep_ms", "");
        }
    assert_int_equal(diagnose(&f->table, &f->findings, &f->n, &(const char *){NULL}), 0);
    assert_int_equal(f->n, 3);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(f->findings[i].verdict, VERDICT_ORDER_INVERSION);
        if (!i)
            first = (unsigned)f->findings[i].pid;
        assert_int_equal(f->findings[i].pid, first);
        assert_int_equal(times(f->findings[i].evidence, " waits in operation"), 3);
    }
}

/* Text that does not fit ends with a whole line. */
static void evidence_is_not_cut_in_a_word(void **state)
{
    struct fix *f = *state;
    char name[256];

    memset(name, 'n', sizeof(name) - 1);
    name[sizeof(name) - 1] = 0;
    for (unsigned rank = 0; rank < 60; rank++) {
        char words[100];

        snprintf(words, sizeof(words), "message=recv message_tag=-1 message_ms=900 message_peer=%u",
                 (rank + 1) % 60);
        row(f, rank, words);
        set(f, "name", name);
        set(f, "node", name);
        set(f, "message_tag", "");
    }
    assert_verdict(f, ORDER_INVERSION);
    assert_evidence(f, ", any tag, for 0.9 s\nand 52 more\nand so back to rank 0");
    assert_evidence(f, "none can go on");
}

/* Logs of a job know its ranks by their numbers in the whole of it. */
static void ranks_of_a_part_are_told_by_their_number_in_the_job(void **state)
{
    struct fix *f = *state;

    for (unsigned rank = 0; rank < 4; rank++)
        row(f, rank, "node=b");
    for (unsigned rank = 0; rank < 2; rank++) {
        row(f, rank, "group=00000000000000bb name=tp size=2 node=b");
        set(f, "pid", rank ? "103" : "102");
        if (!rank) {
            set(f, "started", "6");
            set(f, "operation", "all_reduce");
            set(f, "asleep_ms", "3000");
        }
    }
    assert_int_equal(diagnose(&f->table, &f->findings, &f->n, &(const char *){NULL}), 0);
    assert_int_equal(f->n, 2);
    assert_int_equal(f->findings[1].verdict, VERDICT_NOT_ARRIVED);
    assert_int_equal(f->findings[1].rank, 1);
    assert_int_equal(f->findings[1].world_rank, 3);
    assert_string_equal(f->findings[1].rank_group, "tp");
    assert_non_null(
        strstr(f->findings[1].evidence, "rank 2 (0 of the group) waits in operation 6"));
    assert_non_null(strstr(f->findings[1].evidence,
                           "rank 3 (1 of group \"tp\", pid 103 on node b) has not begun it"));
    assert_null(strstr(f->findings[1].remedy, "rank 1"));
}

/* In what they say of each other as well. */
static void peers_of_a_part_are_told_by_their_number_in_the_job(void **state)
{
    struct fix *f = *state;

    for (unsigned rank = 0; rank < 4; rank++)
        row(f, rank, "");
    for (unsigned rank = 0; rank < 2; rank++) {
        row(f, rank, "group=00000000000000bb name=tp size=2");
        set(f, "pid", rank ? "103" : "102");
        if (rank)
            continue;
        set(f, "message", "recv");
        set(f, "message_peer", "1");
        set(f, "message_ms", "3000");
        set(f, "unasked_from", "1");
    }
    assert_int_equal(diagnose(&f->table, &f->findings, &f->n, &(const char *){NULL}), 0);
    assert_int_equal(f->findings[1].verdict, VERDICT_NOT_ARRIVED);
    assert_non_null(
        strstr(f->findings[1].evidence, "waits in recv from rank 3 (1 of group \"tp\"), any tag"));
    assert_non_null(strstr(f->findings[1].evidence,
                           "a message of rank 3 (1 of group \"tp\") with tag 0 has come to rank 2 "
                           "(0 of group \"tp\"), which"));
}

/* Commd has a pid namespace of its own, and cannot see processes: each rank may be another one. */
static void ranks_whose_processes_are_not_seen(void **state)
{
    struct fix *f = *state;

    for (unsigned rank = 0; rank < 3; rank++) {
        row(f, rank, rank < 2 ? WAITS " size=3 pid=0" : "size=3 pid=0");
        set(f, "process", "");
    }
    for (unsigned rank = 0; rank < 2; rank++) { /* of another job */
        row(f, rank, "group=00000000000000bb name=h size=2 pid=0");
        set(f, "process", "");
        if (rank)
            continue;
        set(f, "started", "6");
        set(f, "asleep_ms", "9000");
    }
    assert_int_equal(diagnose(&f->table, &f->findings, &f->n, &(const char *){NULL}), 0);
    assert_int_equal(f->findings[0].verdict, VERDICT_NOT_ARRIVED);
    assert_int_equal(f->findings[0].rank, 2);
    assert_string_equal(f->findings[0].rank_group, "g");
}

/* A group that has ended is not what the job is now. */
static void a_job_that_has_become_smaller(void **state)
{
    struct fix *f = *state;

    for (unsigned rank = 0; rank < 4; rank++)
        row(f, rank, "state=ended process=left name=old");
    for (unsigned rank = 0; rank < 2; rank++) {
        row(f, rank, "group=00000000000000bb name=new size=2");
        set(f, "pid", rank ? "103" : "102");
        if (!rank) {
            set(f, "started", "6");
            set(f, "asleep_ms", "3000");
        }
    }
    assert_int_equal(diagnose(&f->table, &f->findings, &f->n, &(const char *){NULL}), 0);
    assert_int_equal(f->findings[1].verdict, VERDICT_NOT_ARRIVED);
    assert_int_equal(f->findings[1].rank, 1);
    assert_int_equal(f->findings[1].world_rank, 1);
    assert_non_null(strstr(f->findings[1].evidence, "rank 1 (pid 103 on node a) has not begun"));
}

/* What the kernel calls its places nobody has to know. */
static void what_a_process_waits_for_is_told_in_words(void **state)
{
    static const char *const places[][2] = {
        {"hrtimer_nanosleep", "its process is sleeping: it sleeps for a time"},
        {"poll_schedule_timeout.constprop.0", "files, sockets or a time"},
        {"futex_wait_queue", "it waits for a lock, or for another thread"},
        {"pipe_read", "it reads a pipe"},
        {"rpc_wait_bit_killable", "a file server"},
        {"some_place.isra.0", "its process is sleeping (in the kernel: some_place)"},
        {"", "its process is sleeping\n"},
    };
    struct fix *f = *state;

    for (unsigned i = 0; i < ARRAY_LEN(places); i++) {
        row(f, 0, WAITS);
        row(f, 1, "");
        set(f, "kernel", places[i][0]);
        assert_verdict(f, NOT_ARRIVED);
        assert_evidence(f, places[i][1]);
        assert_null(strstr(f->findings[0].evidence, "constprop"));
        clear(f);
    }
}

static void all_are_there_and_nothing_moves(void **state)
{
    struct fix *f = *state;

    row(f, 0, "size=2 " WAITS);
    row(f, 1, "size=2 node=b " WAITS);
    assert_verdict(f, LINK_STALL);
    assert_evidence(f, "all ranks have begun it");
    clear(f);
    row(f, 0, "size=2 nodes=1 " WAITS);
    row(f, 1, "size=2 nodes=1 " WAITS);
    assert_verdict(f, BROKEN);
    clear(f);
    row(f, 0, "size=1 message=recv message_tag=3 message_ms=800");
    assert_verdict(f, NOT_ARRIVED);
    assert_int_equal(f->findings[0].rank, -1);
    assert_evidence(f, "from any rank, tag 3");
    clear(f);

    /* of any rank: where all others wait it is the last one's */
    row(f, 0, "size=3 message=recv message_tag=3 message_ms=800");
    row(f, 1, "size=3");
    row(f, 2, "size=3 message=recv message_peer=0 message_tag=3 message_ms=900");
    assert_verdict(f, NOT_ARRIVED);
    assert_int_equal(f->findings[0].rank, 1);
    assert_evidence(f, "rank 1 (pid 101 on node a) has not sent");
    clear(f);
    row(f, 0, "size=3 message=recv message_tag=3 message_ms=800");
    row(f, 1, "size=3");
    row(f, 2, "size=3");
    assert_verdict(f, NOT_ARRIVED);
    assert_int_equal(f->findings[0].rank, -1);
    assert_evidence(f, "nobody has sent it");
}

/* Between the looks at two ranks the one that was awaited came. */
static void who_comes_while_it_is_looked_at_ends_the_wait(void **state)
{
    static const char *const last[] = {
        "started=6",               /* it came, and does not sleep */
        "started=6 asleep_ms=200", /* since it came */
        "started=6 ops=6 done=1",  /* and is through */
        "started=7 ops=6 done=1",  /* and in the next one */
        "started=7 ops=6 done=1 asleep_ms=9",
    };
    struct fix *f = *state;

    for (unsigned i = 0; i < ARRAY_LEN(last); i++) {
        clear(f);
        row(f, 0, WAITS);
        row(f, 1, last[i]);
        assert_verdict(f, HEALTHY);
        assert_evidence(f, "the last of them while it was looked at");
    }
    clear(f);
    row(f, 0, WAITS);
    row(f, 1, "started=7 ops=6 asleep_ms=2000"); /* it has been through for long */
    assert_verdict(f, LINK_STALL);
}

static void causes_of_broken_groups(void **state)
{
    static const struct {
        const char *cause;
        enum verdict verdict;
    } causes[] = {
        {"rank lost", VERDICT_RANK_DEAD},     {"node lost", VERDICT_NODE_DEAD},
        {"engine lost", VERDICT_ENGINE_DEAD}, {"aborted", VERDICT_NOT_ARRIVED},
        {"timeout", VERDICT_NOT_ARRIVED},
    };
    struct fix *f = *state;

    for (unsigned i = 0; i < ARRAY_LEN(causes); i++) {
        row(f, 0, "state=broken started=6 operation=all_reduce cause_rank=0");
        set(f, "cause", causes[i].cause);
        set(f, "cause_text", "some words");
        row(f, 1, "state=broken");
        assert_int_equal(verdict(f)->verdict, causes[i].verdict);
        assert_evidence(f, "some words");
        clear(f);
    }
    row(f, 0, "state=broken started=6 operation=all_reduce");
    row(f, 1, "state=broken cause=aborted cause_rank=1"); /* that one did not wait for any */
    assert_verdict(f, ABORTED);
    assert_int_equal(f->findings[0].rank, 1);
    clear(f);
    row(f, 0, "state=broken cause=mistake");
    row(f, 1, "state=broken");
    assert_verdict(f, BROKEN);
    clear(f);
    row(f, 0, "state=ended ended_s=7");
    row(f, 1, "state=ended process=died");
    assert_verdict(f, RANK_DEAD);
    assert_true(f->findings[0].ended);
    assert_int_equal(f->findings[0].ended_s, 7);
}

/* Of a node, an engine and the way between them each has its words, and its name is told. */
static void what_broke_it_is_told_apart(void **state)
{
    static const struct {
        const char *cause, *text, *node, *remedy;
        enum verdict verdict;
    } causes[] = {
        {"node lost", "node n1 was lost: silent for 3 s", "n1", "look at node n1",
         VERDICT_NODE_DEAD},
        {"node lost", "node n1 was lost: its commd ended the link", "n1",
         "on node n1 systemctl status commd", VERDICT_COMMD_DEAD},
        {"node lost", "commd of node n1 was restarted", "n1", "on node n1 systemctl status commd",
         VERDICT_COMMD_DEAD},
        {"node lost", "node n1 was lost: the link failed: Connection timed out", "n1",
         "nothing comes through to node n1", VERDICT_LINK_DEAD},
        {"engine lost", "the engine of node n2 was lost: killed by signal 9", "n2",
         "commd's log on node n2", VERDICT_ENGINE_DEAD},
        {"engine lost", "the engines of nodes n1 and n2 lost each other: no progress for 10 s",
         "n1", "a firewall on node n1 or n2", VERDICT_LINK_DEAD},
        {"node lost", "node n1 was lost: its certificate is revoked", "n1",
         "node n1 is shut out by its certificate", VERDICT_NODE_REFUSED},
        {"node lost",
         "node n1 was lost: its certificate, of \"n1\", has expired, and it did not come back",
         "n1", "node n1 is shut out by its certificate", VERDICT_NODE_REFUSED},
        {"node lost",
         "node n1 was lost: it refuses the certificate of node n2: revoked, and it did not come "
         "back",
         "n2", "cluster.ca and cluster.crl of node n1", VERDICT_NODE_REFUSED},
        {"node lost",
         "the engines of nodes n1 and n2 lost each other: authentication failed: what "
         "came was not sent so",
         "n1", "between nodes n1 and n2 changes", VERDICT_LINK_TAMPERED},
        {"engine lost",
         "the engines of nodes n1 and n2 lost each other: authentication failed at "
         "the other side",
         "n1", "between nodes n1 and n2 changes", VERDICT_LINK_TAMPERED},
        {"node lost", "the engines of nodes n1 and n2 lost each other: no progress for 10 s", "n1",
         "a firewall on node n1 or n2", VERDICT_LINK_DEAD},
        {"engine lost", "words of another version", "", "look at commd's log", VERDICT_ENGINE_DEAD},
        {"node lost", "commd on node n1 is stopping: its keeper has ended", "n1",
         "on node n1 systemctl status commd", VERDICT_COMMD_DEAD},
        {"node lost", "node  was lost: node ", "", "look at the node that the cause names",
         VERDICT_NODE_DEAD},
    };
    struct fix *f = *state;

    for (unsigned i = 0; i < ARRAY_LEN(causes); i++) {
        row(f, 0, "state=broken started=6 operation=all_reduce");
        set(f, "cause", causes[i].cause);
        set(f, "cause_text", causes[i].text);
        row(f, 1, "state=broken");
        assert_int_equal(verdict(f)->verdict, causes[i].verdict);
        assert_string_equal(f->findings[0].lost_node, causes[i].node);
        assert_evidence(f, causes[i].text);
        assert_non_null(strstr(f->findings[0].remedy, causes[i].remedy));
        clear(f);
    }
}

static void the_pace(void **state)
{
    struct fix *f = *state;

    row(f, 0, "done=50 moved=20 busy_pct=80 lately=40 lately_ms=3000");
    row(f, 1, "done=50 moved=20 busy_pct=75 lately=40 lately_ms=3000");
    row(f, 2, "done=50 moved=20 busy_pct=5 lately=40 lately_ms=3000");
    assert_verdict(f, SLOW_RANK);
    assert_int_equal(f->findings[0].rank, 2);
    clear(f);
    row(f, 0, "done=50 moved=20 busy_pct=50");
    row(f, 1, "done=50 moved=20 busy_pct=25");
    assert_verdict(f, HEALTHY);
    clear(f);
    row(f, 0, "done=50 moved=20 busy_pct=20");
    row(f, 1, "done=50 moved=20 busy_pct=3");
    assert_verdict(f, COMPUTE_BOUND);
    assert_true(verdict_is_well(f->findings[0].verdict));
    clear(f);
    row(f, 0, "done=50 moved=19 busy_pct=80"); /* a burst of operations is one step */
    row(f, 1, "done=50 moved=19 busy_pct=5");
    assert_verdict(f, HEALTHY);
    clear(f);

    /* all are in operations, and one of them gets no core for what it has to do there */
    row(f, 0, "done=50 busy_pct=98 starved_pct=10");
    row(f, 1, "done=50 busy_pct=97 starved_pct=21");
    assert_verdict(f, COMM_BOUND);
    assert_true(verdict_is_well(f->findings[0].verdict));
    row(f, 2, "done=50 busy_pct=99 starved_pct=60");
    assert_verdict(f, SLOW_RANK);
    assert_int_equal(f->findings[0].rank, 2);
    assert_evidence(f, "wanted a core, and had none, for 60 % of the time");
    row(f, 3, "done=50 busy_pct=99 starved_pct=31"); /* they have too few cores, all of them */
    assert_verdict(f, COMM_BOUND);
}

/* A rank or an engine that has used up its quota, whatever else is seen of it. */
static void quotas_that_are_used_up(void **state)
{
    struct fix *f = *state;

    row(f, 0, "done=50 moved=30 busy_pct=80 size=2");
    row(f, 1, "done=50 moved=30 busy_pct=70 size=2 node=b throttled_pct=100 starved_pct=60");
    assert_verdict(f, THROTTLED);
    assert_int_equal(f->findings[0].rank, 1);
    assert_evidence(f,
                    "the CPU quota of the control group of rank 1 (pid 101 on node b) was used up "
                    "in 100 % of its periods");
    assert_int_equal(times(f->findings[0].evidence, "\n"), 0);
    assert_non_null(strstr(f->findings[0].remedy, "cpu.max"));
    set(f, "throttled_pct", "49");
    assert_verdict(f, SLOW_RANK);
    clear(f);
    row(f, 0, "done=5 busy_pct=80 size=2");
    row(f, 1, "done=5 busy_pct=80 size=2 node=b engine_throttled_pct=90");
    assert_verdict(f, THROTTLED);
    assert_int_equal(f->findings[0].rank, -1);
    assert_string_equal(f->findings[0].node, "b");
    clear(f);
    row(f, 0, "size=2 throttled_pct=100"); /* of a group that does nothing */
    row(f, 1, "size=2");
    assert_verdict(f, HEALTHY);
    clear(f);
    row(f, 0, WAITS " size=2"); /* who has not come, and why */
    row(f, 1, "size=2 process=running throttled_pct=90");
    assert_verdict(f, THROTTLED);
    assert_int_equal(f->findings[0].rank, 1);
    clear(f);

    /* who waits for another one is not what holds that one up */
    row(f, 0, "done=50 moved=45 busy_pct=80 size=2 throttled_pct=60");
    row(f, 1, "done=50 moved=45 busy_pct=5 size=2");
    assert_verdict(f, SLOW_RANK);
    assert_int_equal(f->findings[0].rank, 1);
    set(f, "throttled_pct", "55");
    assert_verdict(f, THROTTLED);
    assert_int_equal(f->findings[0].rank, 1);
    assert_int_equal(times(f->findings[0].evidence, "CPU quota"), 1);
    clear(f);
    row(f, 0, WAITS " size=2 throttled_pct=60");
    row(f, 1, "size=2 process=running");
    assert_verdict(f, HEALTHY);
    assert_int_equal(f->findings[0].rank, -1); /* and nobody is named */
    assert_int_equal(f->findings[0].world_rank, -1);
    assert_string_equal(f->findings[0].rank_group, "");
}

/* What excuses a rank is not told beside what accuses it, and no line twice. */
static void a_slow_rank_is_told_once(void **state)
{
    struct fix *f = *state;

    row(f, 0, WAITS " size=2");
    row(f, 1, "size=2 process=running starved_pct=80");
    assert_verdict(f, SLOW_RANK);
    assert_int_equal(times(f->findings[0].evidence, "wanted a core"), 1);
    assert_null(strstr(f->findings[0].evidence, "it computes"));
    clear(f);
    row(f, 0, "done=50 moved=45 busy_pct=80 size=2"); /* it computes; that others run is a detail */
    row(f, 1, "done=50 moved=45 busy_pct=5 starved_pct=35 size=2");
    assert_verdict(f, SLOW_RANK);
    assert_int_equal(times(f->findings[0].evidence, "wanted a core"), 1);
    assert_true(strstr(f->findings[0].remedy, "py-spy") < strstr(f->findings[0].remedy, "taskset"));
}

/* All have come, and what carries their data stands still. */
static void an_engine_that_is_stopped(void **state)
{
    struct fix *f = *state;

    row(f, 0, WAITS " size=2");
    row(f, 1, WAITS " size=2 node=b engine=stopped");
    assert_verdict(f, ENGINE_STOPPED);
    assert_string_equal(f->findings[0].node, "b");
    assert_evidence(f, "the engine on node b is stopped");
    clear(f);
    row(f, 0, WAITS " size=2"); /* somebody has not come */
    row(f, 1, "size=2 node=b engine=stopped");
    assert_verdict(f, NOT_ARRIVED);
}

/* Who waits is told for whom at once; that it is a case for somebody comes later. */
static void a_wait_that_is_not_long_yet(void **state)
{
    static const struct {
        const char *process, *ms;
        bool well;
    } waits[] = {
        {"sleeping", "600", true}, {"sleeping", "4999", true}, {"sleeping", "5000", false},
        {"running", "5000", true}, {"running", "29999", true}, {"running", "30000", false},
        {"blocked", "4999", true}, {"blocked", "5000", false},
    };
    struct fix *f = *state;

    for (unsigned i = 0; i < ARRAY_LEN(waits); i++) {
        row(f, 0, "started=6 operation=all_reduce busy_pct=100");
        set(f, "asleep_ms", waits[i].ms);
        row(f, 1, "");
        set(f, "process", waits[i].process);
        assert_verdict(f, NOT_ARRIVED);
        assert_int_equal(f->findings[0].rank, 1);
        assert_int_equal(finding_is_well(&f->findings[0]), waits[i].well);
        clear(f);
    }
    row(f, 0, WAITS);
    row(f, 1, "process=stopped");
    assert_verdict(f, RANK_STOPPED);
    assert_false(finding_is_well(&f->findings[0]));
}

/* Checkpoints take most of the time: their waits are usual, and the job is slow by them. */
static void checkpoints_that_take_most_of_the_time(void **state)
{
    static const char waits[] = "started=6 operation=all_reduce asleep_ms=4000 busy_pct=90 "
                                "usual_ms=8000 lately=4 lately_ms=50000 lately_in_ms=40000";
    struct fix *f = *state;

    row(f, 1, waits);
    row(f, 2, waits);
    row(f, 0, "lately=4 lately_ms=50000 lately_in_ms=900");
    assert_verdict(f, SLOW_RANK);
    assert_int_equal(f->findings[0].rank, 0);
    assert_evidence(f, "for 1 % of the last 50.0 s, and others for 80 %");
    assert_non_null(strstr(f->findings[0].remedy, "a checkpoint"));
    set(f, "lately_in_ms", "30000"); /* by turns */
    assert_verdict(f, HEALTHY);
}

static void operations_that_differ(void **state)
{
    struct fix *f = *state;

    row(f, 0, "last=all_reduce");
    row(f, 1, "ops=4 started=4 last=broadcast"); /* only behind */
    row(f, 2, "last=reduce");
    assert_verdict(f, MISMATCH);
    assert_evidence(f, "called all_reduce");
    assert_evidence(f, "called reduce");
    assert_int_equal(f->findings[0].rank, -1); /* one against one */
}

/* What most of them called is the norm, whoever comes first. */
static void one_that_differs_from_most(void **state)
{
    struct fix *f = *state;

    for (int gpu = 0; gpu < 2; gpu++)
        for (unsigned other = 0; other < 4; other++) {
            for (unsigned rank = 0; rank < 4; rank++) {
                const char *name = rank == other ? "barrier" : "all_reduce";

                row(f, rank, gpu ? "last= gpu_begun=5 gpu_ended=5 gpu_error=mismatch" : "");
                set(f, gpu ? "gpu_last" : "last", name);
            }
            assert_verdict(f, MISMATCH);
            assert_int_equal(f->findings[0].rank, other);
            assert_evidence(f, other == 0 ? "ranks 1-3 called all_reduce" : "ranks 0");
            assert_evidence(f, "called barrier");
            assert_null(strstr(f->findings[0].remedy, "both"));
            clear(f);
        }

    row(f, 0, "ops=6 started=6 last=all_reduce"); /* nobody else is there: the others differ */
    row(f, 1, "");
    row(f, 2, "last=reduce");
    row(f, 3, "");
    assert_verdict(f, MISMATCH);
    assert_int_equal(f->findings[0].rank, 2);
}

static void joining(void **state)
{
    struct fix *f = *state;

    row(f, 0, "state=joining group= rank= pid= node=");
    row(f, 0, "state=joining group= rank= pid= node= missing=1-2");
    assert_verdict(f, NOT_JOINED);
    assert_evidence(f, "rank 1-2 of 4 has not joined");
}

/* Two users may each have a group of the same name, and neither has an id yet. */
static void groups_that_join_are_their_users(void **state)
{
    struct fix *f = *state;

    row(f, 0, "state=joining group= rank= pid= node= uid=1 missing=1-2");
    row(f, 0, "state=joining group= rank= pid= node= uid=2 missing=3");
    assert_int_equal(diagnose(&f->table, &f->findings, &f->n, &(const char *){NULL}), 0);
    assert_int_equal(f->n, 2);
    assert_non_null(strstr(f->findings[0].evidence, "rank 1-2 of 4"));
    assert_non_null(strstr(f->findings[1].evidence, "rank 3 of 4"));
    assert_non_null(strstr(f->findings[0].evidence, "user 2 waits for ranks of a group of this"));
    assert_non_null(strstr(f->findings[1].evidence, "user 1 waits for ranks of a group of this"));
    clear(f);
    row(f, 0, "state=joining group= rank= pid= node= uid=1 name=a missing=1-2");
    row(f, 0, "state=joining group= rank= pid= node= uid=2 name=b missing=3");
    row(f, 0, "state=joining group= rank= pid= node= uid=1 name=b missing=0");
    assert_int_equal(diagnose(&f->table, &f->findings, &f->n, &(const char *){NULL}), 0);
    assert_int_equal(f->n, 3);
    for (unsigned i = 0; i < f->n; i++)
        assert_int_equal(!strcmp(f->findings[i].name, "a"),
                         !strstr(f->findings[i].evidence, "ranks of two users"));
}

/* Nodes in @states ("b=silent c=down"), as a told it; and the verdict after a look at them. */
static const struct finding *with_unheard(struct fix *f, const char *states)
{
    static struct msg_column columns[] = {{.key = "node"}, {.key = "peer"}, {.key = "state"}};
    struct msg_table tables[2] = {f->table, {.ncolumns = 3, .columns = columns}};
    struct msg_tables answer = {.ntables = 2, .tables = tables};
    char copy[200], *cells[30], *save = NULL;

    snprintf(tables[0].name, sizeof(tables[0].name), "ranks");
    snprintf(tables[1].name, sizeof(tables[1].name), "links");
    snprintf(copy, sizeof(copy), "%s", states);
    for (char *word = strtok_r(copy, " ", &save); word; word = strtok_r(NULL, " ", &save)) {
        char **row = &cells[3 * tables[1].nrows++];

        row[0] = (char *)"a";
        row[1] = word;
        row[2] = strchr(word, '=');
        *row[2]++ = 0;
    }
    tables[1].cells = cells;
    (void)verdict(f);
    judge_links(&answer, f->findings, f->n);
    f->findings[0].node = ""; /* is in @copy */
    return &f->findings[0];
}

/* Ranks that wait in torch's store, each in a row of its own, on two nodes. */
static void ranks_that_start(void **state)
{
#define STARTS "state=starting group= uid=7 name=10.0.0.1:29500 started=0 ops=0 last= "
    struct fix *f = *state;
    const char *seats;
    char list[64];

    row(f, 2, STARTS "node=b joining_ms=1000");
    row(f, 0, STARTS "joining_ms=40000");
    assert_verdict(f, NOT_JOINED);
    assert_false(finding_is_well(&f->findings[0]));
    assert_int_equal(f->findings[0].waiting_ms, 40000);
    assert_evidence(f, "of 4 ranks 0,2 wait before the join (in torch's store");
    assert_evidence(f, "rank 0 (pid 100 on node a) for 40.0 s");
    assert_evidence(f, "no node tells of rank 1,3 of 4");
    assert_non_null(strstr(f->findings[0].remedy, "MASTER_ADDR"));
    assert_true(diagnose_missing(&f->table, "10.0.0.1:29500", "7", "starting", "", list,
                                 sizeof(list), &seats));
    assert_string_equal(list, "1,3");
    assert_false(diagnose_missing(&f->table, "10.0.0.1:29500", "8", "starting", "", list,
                                  sizeof(list), &seats));
    clear(f);
    row(f, 2, STARTS "joining_ms=1000"); /* they have only just begun */
    assert_verdict(f, NOT_JOINED);
    assert_true(finding_is_well(&f->findings[0]));
    clear(f);
    for (unsigned rank = 0; rank < 4; rank++)
        row(f, rank, STARTS "joining_ms=1000");
    assert_verdict(f, HEALTHY); /* they are about to join */
    assert_evidence(f, "all of its 4 ranks are there");
    set(f, "joining_ms", "40000");
    assert_verdict(f, NOT_JOINED);
    assert_evidence(f, "all of its 4 ranks are there");
}

static unsigned diagnose_all(struct fix *f)
{
    free(f->findings);
    f->findings = NULL;
    assert_int_equal(diagnose(&f->table, &f->findings, &f->n, &(const char *){NULL}), 0);
    return f->n;
}

static bool missing_of(struct fix *f, const char *recovery, char list[64], const char **ret_seats)
{
    list[0] = 0;
    return diagnose_missing(&f->table, "g", "0", "joining", recovery, list, 64, ret_seats);
}

/* A join that failed is told, and is not taken for the next one of that name. */
static void joins_that_failed(void **state)
{
    struct fix *f = *state;
    const char *seats;
    char list[64];

    row(f, 1, "state=ended group= cause=timeout joining_ms=10000 ended_s=5");
    set(f, "cause_text", "3 of 4 ranks did not come within 10 s: missing 0,2-3");
    assert_verdict(f, NOT_JOINED);
    assert_true(f->findings[0].ended);
    assert_evidence(f, "of 4 ranks 1 waited for the others, rank 1 (pid 101 on node a) for 10.0 s");
    assert_evidence(f, "timeout: 3 of 4 ranks did not come within 10 s: missing 0,2-3");
    assert_null(strstr(f->findings[0].evidence, "no node tells"));
    row(f, 2, "state=joining group= joining_ms=300 missing=0-1,3");
    assert_int_equal(diagnose_all(f), 2);
    assert_true(missing_of(f, "", list, &seats));
    assert_string_equal(list, "0-1,3");
}

#define GOES_ON "state=joining group= nodes= epoch=2 recovery="
#define REJOINS "state=joining group= nodes= size= epoch= recovery=rejoin joining_ms=700"

/* Ranks of the epoch before, and new processes, as two nodes tell of them. */
static void who_waits_to_go_on(void **state)
{
    struct fix *f = *state;
    const char *seats = "";
    char list[64];

    row(f, 0, GOES_ON "wait joining_ms=2000 missing=2 free_seats=3");
    row(f, 1, GOES_ON "wait joining_ms=1000 node=b");
    assert_verdict(f, NOT_JOINED);
    assert_int_equal(f->findings[0].waiting_ms, 2000);
    assert_evidence(f, "ranks 0-1 of epoch 1 wait to go on with new processes in the free seats, "
                       "rank 0 (pid 100 on node a) for 2.0 s");
    assert_evidence(f, "rank 2 of epoch 1 has not asked to go on, and is not known to be gone");
    assert_evidence(f, "seat 3 is free");
    assert_evidence(f, "no new process waits");
    assert_null(strstr(f->findings[0].evidence, "no node tells"));
    assert_int_equal(f->findings[0].rank, -1);
    assert_true(missing_of(f, "wait", list, &seats));
    assert_string_equal(list, "2");
    assert_string_equal(seats, "3");
    assert_false(missing_of(f, "", list, &seats));

    row(f, 2, "node=b epoch=1 state=broken cause=aborted");
    row(f, 3, REJOINS " node=b rank=");
    row(f, 3, REJOINS " node=b pid=200");
    assert_int_equal(diagnose_all(f), 3);
    assert_int_equal(f->findings[0].rank, 2);
    assert_int_equal(f->findings[0].pid, 102);
    assert_evidence(f, "rank 2 (pid 102 on node b) is still in epoch 1");
    assert_evidence(f, "2 new processes wait for a seat");
    assert_string_equal(
        f->findings[2].evidence,
        "2 new processes wait for a seat (of these for 3), pid 103 on node b for 0.7 s\n"
        "epoch 1 of the group waits for its own ranks first: 2");
    clear(f);
    row(f, 0, GOES_ON "shrink joining_ms=2000 missing=2");
    row(f, 2, "node=b epoch=1 state=broken cause=aborted process=stopped");
    diagnose_all(f);
    assert_int_equal(f->findings[0].verdict, VERDICT_RANK_STOPPED);
    assert_int_equal(f->findings[0].pid, 102);
    assert_evidence(f, "rank 2 of epoch 1 has not asked to go on, and is not known to be gone");
    assert_evidence(f, "rank 2 (pid 102 on node b) is stopped");
    assert_non_null(strstr(f->findings[0].remedy, "on node b: kill -CONT 102"));
    assert_null(strstr(f->findings[0].remedy, "what do these do"));
    clear(f);
    row(f, 1, GOES_ON "shrink joining_ms=1000 missing=0,2-3");
    assert_verdict(f, NOT_JOINED);
    assert_string_equal(f->findings[0].evidence,
                        "rank 1 of epoch 1 waits to go on without those who are gone, rank 1 (pid "
                        "101 on node a) for 1.0 s\n"
                        "ranks 0,2-3 of epoch 1 have not asked to go on, and are not known to be "
                        "gone");
    assert_false(finding_is_well(&f->findings[0]));
}

static void new_processes_for_whom_nobody_waits(void **state)
{
    static const struct {
        const char *group, *words;
    } others[] = {
        {"", ", and there is no such group"},
        {"uid=7 epoch=1", ", and there is no such group"},
        {"name=h epoch=1", ", and there is no such group"},
        {"epoch=1 next_epoch=2", ", and there is no such group"},
        {"epoch=1", ": it goes on as it is"},
        {GOES_ON "shrink joining_ms=1 missing=1", ": its ranks go on without"},
    };
    struct fix *f = *state;
    char want[160];

    for (unsigned i = 0; i < ARRAY_LEN(others); i++) {
        row(f, 3, REJOINS);
        if (*others[i].group)
            row(f, 0, others[i].group);
        assert_int_equal(diagnose_all(f), 1 + (*others[i].group != 0));
        assert_string_equal(verdict_name(f->findings[0].verdict), "NOT_JOINED");
        assert_int_equal(f->findings[0].new_processes, 1);
        snprintf(want, sizeof(want),
                 "1 new process waits for seat 3, pid 103 on node a for 0.7 s\nno rank of a "
                 "group of this name waits for new processes%s",
                 others[i].words);
        assert_string_equal(f->findings[0].evidence, want);
        clear(f);
    }
    row(f, 0, REJOINS " rank= state=ended cause=timeout ended_s=5");
    set(f, "cause_text", "it did not go on");
    assert_verdict(f, NOT_JOINED);
    assert_string_equal(f->findings[0].evidence,
                        "1 new process waited for a seat, pid 100 on node a for 0.7 s\n"
                        "timeout: it did not go on");
}

static void a_new_process_asks_for_a_taken_seat(void **state)
{
    static const char *const taken[] = {"epoch=1 pid=7",
                                        GOES_ON "wait joining_ms=1 missing=1 pid=7"};
    static const char *const free[] = {"epoch=1 pid=7 process=died", "epoch=1 pid=7 process=left",
                                       "epoch=1 pid=7 uid=8"};
    struct fix *f = *state;

    for (unsigned i = 0; i < ARRAY_LEN(taken); i++) {
        row(f, 3, REJOINS);
        row(f, 3, taken[i]);
        diagnose_all(f);
        assert_evidence(f,
                        "seat 3 is taken, and is not given to it: rank 3 (pid 7 on node a) lives");
        assert_non_null(strstr(f->findings[0].remedy, "rejoin without a number"));
        clear(f);
    }
    for (unsigned i = 0; i < ARRAY_LEN(free); i++) {
        row(f, 3, REJOINS);
        row(f, 3, free[i]);
        diagnose_all(f);
        assert_null(strstr(f->findings[0].evidence, "taken"));
        clear(f);
    }
    row(f, 3, REJOINS " rank=");
    row(f, 3, taken[0]);
    diagnose_all(f);
    assert_null(strstr(f->findings[0].evidence, "taken"));
}

/* A node that has none of the ranks that went on cannot tell of the next epoch. */
static void an_epoch_that_has_gone_on_is_no_trouble(void **state)
{
    struct fix *f = *state;

    row(f, 3, "epoch=1 state=ended ended_s=9 process=died node=b");
    row(f, 0, "epoch=1 state=ended ended_s=5 cause=aborted next_epoch=2");
    set(f, "cause_text", "rank 0 aborted");
    row(f, 0, "epoch=2 group=00000000000000ab");
    assert_int_equal(diagnose_all(f), 2);
    assert_string_equal(verdict_name(f->findings[0].verdict), "RECOVERED");
    assert_true(finding_is_well(&f->findings[0]));
    assert_int_equal(f->findings[0].next_epoch, 2);
    assert_string_equal(f->findings[0].evidence, "epoch 1, gone on as epoch 2\n"
                                                 "it had ended by: aborted: rank 0 aborted\n"
                                                 "rank 3 (pid 103 on node b) died");
    assert_int_equal(f->findings[0].rank, 3);
    assert_string_equal(f->findings[0].node, "b");
    assert_int_equal(f->findings[1].epoch, 2);
    assert_true(f->findings[1].verdict != VERDICT_RECOVERED);
}

/* On one node nothing breaks such a group, and who died is known all the same. */
static void who_died_before_a_group_went_on(void **state)
{
    struct fix *f = *state;

    row(f, 0, "epoch=1 next_epoch=2 nodes=1 process=left");
    row(f, 1, "epoch=1 next_epoch=2 nodes=1 process=died");
    set(f, "exit", "signal 9 (KILL), 34 s ago");
    assert_verdict(f, RECOVERED);
    assert_string_equal(f->findings[0].evidence,
                        "epoch 1, gone on as epoch 2\n"
                        "rank 1 (pid 101 on node a) died: signal 9 (KILL), 34 s ago");
    for (unsigned rank = 2; rank < 7; rank++)
        row(f, rank, "epoch=1 next_epoch=2 nodes=1 process=died");
    assert_verdict(f, RECOVERED);
    assert_evidence(f, "rank 4 (pid 104 on node a) died\n2 more of its ranks died");
}

/* Others are in the next epoch already: it is not they who have not come. */
static void who_was_left_behind_waits(void **state)
{
    struct fix *f = *state;

    row(f, 2, GOES_ON "shrink joining_ms=700 missing=0-1 node=b");
    row(f, 0, "epoch=2 group=00000000000000ab size=2 nodes=1");
    row(f, 1, "epoch=2 group=00000000000000ab size=2 nodes=1");
    diagnose_all(f);
    assert_string_equal(verdict_name(f->findings[0].verdict), "NOT_JOINED");
    assert_evidence(f, "rank 2 of epoch 1 waits to go on");
    assert_evidence(f, "the others have gone on as epoch 2, ranks 0-1 of 2, without it");
    assert_null(strstr(f->findings[0].evidence, "not asked to go on"));
    assert_int_equal(f->findings[0].rank, 2);
    assert_non_null(strstr(f->findings[0].remedy, "rejoin"));
}

/* It was refused, or has not asked: it has to rejoin all the same, unless it is in the next one. */
static void who_was_left_behind_has_to_rejoin(void **state)
{
    static const char *const here[] = {
        GOES_ON "shrink joining_ms=700 node=b state=ended ended_s=5 cause=rank_lost",
        "epoch=1 node=b",
        "epoch=1 node=b state=broken cause=rank_lost",
    };
    static const char *const fine[] = {"", "epoch=2 group=00000000000000ab node=b size=3",
                                       GOES_ON "shrink joining_ms=9 node=b"};
    struct fix *f = *state;

    for (unsigned i = 0; i < ARRAY_LEN(here); i++)
        for (unsigned k = 0; k < ARRAY_LEN(fine) - !i; k++) { /* 0, 2: one group, so one wait */
            row(f, 2, here[i]);
            if (i)
                row(f, 0, "epoch=1 next_epoch=2 process=left");
            row(f, 0, "epoch=2 group=00000000000000ab size=2");
            if (*fine[k])
                row(f, 2, fine[k]);
            diagnose_all(f);
            if (i)
                assert_string_equal(verdict_name(f->findings[0].verdict), "RECOVERED");
            assert_int_equal(!!strstr(f->findings[0].remedy, "rejoin as a new process"), !k);
            if (i)
                assert_int_equal(!!strstr(f->findings[0].evidence,
                                          "rank 2 (pid 102 on node b) was left behind in it"),
                                 !k);
            clear(f);
        }
}

/* commd in another pid namespace than the ranks: pid 0 helps nobody. */
static void processes_that_commd_does_not_see(void **state)
{
    static const char *const situations[] = {
        "command=train.py",
        "process=stopped",
        "process=traced",
        "process=frozen",
        "process=running starved_pct=90",
        "process=died exit=signal",
    };
    struct fix *f = *state;

    for (unsigned i = 0; i < ARRAY_LEN(situations); i++) {
        row(f, 0, WAITS " pid=0 asleep_ms=60000");
        row(f, 1, situations[i]);
        set(f, "pid", "0");
        (void)verdict(f);
        assert_int_equal(f->findings[0].rank, 1);
        assert_int_equal(f->findings[0].pid, -1);
        assert_null(strstr(f->findings[0].evidence, "pid 0"));
        assert_null(strstr(f->findings[0].remedy, " 0"));
        assert_null(strstr(f->findings[0].remedy, "/0/"));
        assert_evidence(f, "rank 1 (on node a)");
        assert_evidence(f, "RANK=1");
        if (!i)
            assert_evidence(f, "pgrep -af finds there, by its command: train.py");
        clear(f);
    }
}

/* All have begun it, and nothing but commd comes through. */
static void engines_without_a_connection(void **state)
{
    struct fix *f = *state;

    row(f, 0, WAITS " size=2");
    row(f, 1, WAITS " size=2 node=b");
    assert_verdict(f, LINK_STALL);
    assert_int_equal(with_unheard(f, "b=up")->verdict, VERDICT_LINK_STALL);
    assert_int_equal(with_unheard(f, "b=linking")->verdict, VERDICT_LINK_DEAD);
    assert_evidence(f, "the engines of nodes a and b have no connection");
    assert_non_null(strstr(f->findings[0].remedy, "firewall on node a or b"));
}

/* Whatever a node sends: no crash, no endless loop, an answer. */
static void nonsense(void **state)
{
    struct fix *f = *state;
    char text[2000];

    row(f, 0, "rank=18446744073709551615 pid=99999999999999999999 asleep_ms=-1 " WAITS);
    row(f, 1, "rank=9223372036854775807 busy_pct=1e9 message=x message_peer=-5 message_ms=9e9");
    row(f, 1, WAITS);
    row(f, 1, WAITS);
    memset(text, 'x', sizeof(text));
    text[sizeof(text) - 1] = 0;
    set(f, "operation", text);
    set(f, "name", text);
    set(f, "node", text);
    assert_int_equal(diagnose(&f->table, &f->findings, &f->n, &(const char *){NULL}), 0);
    assert_int_equal(f->n, 2);
}

static void a_column_that_is_missing_is_named(void **state)
{
    struct fix *f = *state;
    const char *key = NULL;

    row(f, 0, "");
    strcpy(f->columns[RANKS_operation].key, "other");
    assert_int_equal(diagnose(&f->table, &f->findings, &f->n, &key), -EPROTO);
    assert_string_equal(key, "operation");
    strcpy(f->columns[RANKS_operation].key, "operation");
}

static void many_ranks(void **state)
{
    struct fix *f = *state;

    for (unsigned rank = 0; rank < 4096; rank++)
        row(f, rank, rank % 2 ? WAITS : "");
    assert_verdict(f, NOT_ARRIVED);
    assert_int_equal(f->findings[0].rank, 0);
}

static void what_is_pending(void **state)
{
    struct fix *f = *state;
    struct wait_row *pending;
    const char *key;
    unsigned n;

    row(f, 2, WAITS);
    row(f, 0, WAITS);
    row(f, 1, "message=send message_peer=3 message_tag=1 message_ms=1500");
    row(f, 3, "process=left");
    assert_int_equal(pending_operations(&f->table, &pending, &n, &key), 0);
    assert_int_equal(n, 2);
    assert_int_equal(pending[0].number, 6);
    assert_int_equal(pending[0].waiting_ms, 3000);
    assert_string_equal(pending[0].waiting, "0,2");
    assert_string_equal(pending[0].missing, "1");
    assert_string_equal(pending[1].operation, "send");
    assert_string_equal(pending[1].missing, "3");
    free(pending);
}

/* Each in another operation, as a user who wants to keep root busy may write. It ends at all only
 * if it does not cost the cube of the ranks. */
static void many_pending(void **state)
{
    enum { MANY = 4096 };
    struct fix *f = *state;
    struct wait_row *pending;
    char words[64];
    const char *key;
    unsigned n;

    for (unsigned rank = 0; rank < MANY; rank++) {
        snprintf(words, sizeof(words), "started=%u", 2 * MANY - rank);
        row(f, MANY - 1 - rank, words);
    }
    assert_int_equal(pending_operations(&f->table, &pending, &n, &key), 0);
    assert_int_equal(n, MANY);
    assert_string_equal(pending[0].waiting, "4095");
    assert_string_equal(pending[0].missing, "0-4094");
    assert_string_equal(pending[MANY - 1].missing, "");
    free(pending);
}

/* The ranks of a group that was kicked end because of it. */
static void a_group_that_was_kicked(void **state)
{
    static const char text[] = "ended by root with commctl kick on node a: over";
    const struct finding *f;
    struct fix *fix = *state;

    row(fix, 0, "state=broken cause=aborted process=died");
    set(fix, "cause_text", text);
    row(fix, 1, "state=broken cause=aborted process=died");
    set(fix, "cause_text", text);
    f = verdict(fix);
    assert_int_equal(f->verdict, VERDICT_ABORTED);
    assert_int_equal(f->rank, -1);
    assert_non_null(strstr(f->evidence, "ended by root with commctl kick on node a"));
    assert_non_null(strstr(f->remedy, "ask who did it"));
    clear(fix);
    row(fix, 0, "state=broken cause=aborted");
    set(fix, "cause_text", "pid 7 was disconnected by user 8 with commctl kick on node a");
    assert_non_null(strstr(verdict(fix)->remedy, "ask who did it"));
    clear(fix);
    row(fix, 0, "state=broken cause=aborted cause_rank=0"); /* a rank may say so, too */
    set(fix, "cause_text", "see: ended by root with commctl kick on node a");
    assert_null(strstr(verdict(fix)->remedy, "ask who did it"));
}

static void a_rank_that_is_frozen(void **state)
{
    struct fix *f = *state;

    row(f, 0, WAITS);
    row(f, 1, "process=frozen");
    assert_verdict(f, RANK_STOPPED);
    assert_non_null(strstr(f->findings[0].remedy, "docker unpause"));
    clear(f);
    row(f, 0, WAITS);
    row(f, 1, "process=traced");
    assert_verdict(f, RANK_STOPPED);
    assert_null(strstr(f->findings[0].remedy, "kill -CONT")); /* does not help */
}

/* Ranks with uneven work wait for each other again and again: none of them is stuck, or slow. */
static void uneven_work(void **state)
{
    struct fix *f = *state;

    row(f, 0, "started=6 operation=all_reduce asleep_ms=900 busy_pct=90 usual_ms=500 lately=9");
    set(f, "lately_ms", "20000");
    set(f, "lately_in_ms", "6000");
    row(f, 1, "process=running lately=5 lately_ms=18000 lately_in_ms=5000 usual_ms=600");
    assert_verdict(f, HEALTHY);
    assert_evidence(f,
                    "it is waited for 0.9 s in operation 6, for rank 1 (pid 101 on node a); three "
                    "operations took 0.5 s and longer lately");
    assert_int_equal(f->findings[0].waiting_ms, 900);
    set(f, "lately_in_ms", "0"); /* it never waits: they always wait for it */
    row(f, 2, "process=running lately_in_ms=6000");
    assert_verdict(f, SLOW_RANK);
    assert_int_equal(f->findings[0].rank, 1);
    assert_evidence(f, "0 % of the time of the last 20.0 s, others up to 30 %");
    set(f, "process", "stopped");
    assert_verdict(f, RANK_STOPPED);
    clear(f);
    row(f, 0, "started=6 operation=all_reduce asleep_ms=1001 busy_pct=90 usual_ms=500 lately=9");
    row(f, 1, "");
    assert_verdict(f, NOT_ARRIVED); /* longer than it used to */
    clear(f);
    row(f, 0, "done=2 busy_pct=70 lately=4 lately_ms=900 lately_in_ms=700");
    row(f, 1, "done=2 busy_pct=10 lately=1 lately_ms=300 lately_in_ms=50");
    assert_verdict(f, HEALTHY); /* two operations say nothing */
}

/* The first step of a job, an evaluation. Who sleeps instead of computing is named at once. */
static void a_rank_that_computes(void **state)
{
    struct fix *f = *state;

    row(f, 0, "started=6 operation=all_reduce asleep_ms=4999 busy_pct=100");
    row(f, 1, "process=running");
    assert_verdict(f, HEALTHY);
    assert_int_equal(f->findings[0].rank, -1);
    assert_int_equal(f->findings[0].waiting_ms, 4999);
    assert_evidence(f, "rank 1 (pid 101 on node a) has not begun it; its process is running");
    assert_evidence(f, "it computes");
    set(f, "process", "sleeping");
    assert_verdict(f, NOT_ARRIVED);
    assert_int_equal(f->findings[0].rank, 1);
    assert_non_null(strstr(f->findings[0].remedy, "evaluate or save something? Then wait"));
    clear(f);
    row(f, 0, "started=6 operation=all_reduce asleep_ms=5000 busy_pct=100");
    row(f, 1, "process=running");
    assert_verdict(f, NOT_ARRIVED);
    clear(f);
    row(f, 0, "started=6 operation=all_reduce asleep_ms=30000 busy_pct=100");
    row(f, 1, "");
    assert_verdict(f, NOT_ARRIVED);
    assert_null(strstr(f->findings[0].remedy, "Then wait"));
}

#define SENDS(to, ms) "message=send message_tag=0 message_peer=" #to " message_ms=" #ms

/* A pipeline by messages, whose last stage is slow: whoever waits, waits for one that moves. */
static void a_pipeline_that_moves(void **state)
{
    struct fix *f = *state;

    row(f, 0, SENDS(1, 900));
    row(f, 1, SENDS(2, 150));
    row(f, 2, "");
    assert_verdict(f, HEALTHY);
    assert_int_equal(f->findings[0].rank, -1);
    assert_int_equal(f->findings[0].waiting_ms, 900);
    assert_evidence(f, "rank 1 (pid 101 on node a) waits in send to rank 2");
    assert_evidence(f, "that one moves");
    assert_string_equal(f->findings[0].remedy, "");
    set(f, "process", "stopped"); /* whose fate is known is named all the same */
    assert_verdict(f, RANK_STOPPED);
    assert_int_equal(f->findings[0].rank, 2);
    set(f, "process", "died");
    assert_verdict(f, RANK_DEAD);
    clear(f);

    row(f, 0, SENDS(1, 900)); /* the slow one itself is waited for, and takes one after the other */
    row(f, 1, "messages_done=1");
    assert_verdict(f, HEALTHY);
    set(f, "messages_done", "0");
    assert_verdict(f, NOT_ARRIVED);
    assert_int_equal(f->findings[0].rank, 1);
    clear(f);

    row(f, 0, SENDS(1, 30000)); /* it moves, and never takes this one */
    row(f, 1, "messages_done=9");
    assert_verdict(f, NOT_ARRIVED);
    clear(f);

    row(f, 0, WAITS); /* as well in a group of its own */
    row(f, 1, "");
    row(f, 1, "group=00000000000000bb name=h started=6 operation=all_reduce asleep_ms=200");
    assert_int_equal(diagnose(&f->table, &f->findings, &f->n, &(const char *){NULL}), 0);
    assert_int_equal(f->findings[0].verdict, VERDICT_HEALTHY);
    clear(f);

    row(f, 0, SENDS(1, 900)); /* what is stuck at the end is, however it came there */
    row(f, 1, SENDS(2, 100));
    row(f, 2, SENDS(3, 800));
    row(f, 3, "");
    assert_verdict(f, NOT_ARRIVED);
    assert_int_equal(f->findings[0].rank, 3);
    clear(f);

    row(f, 0, SENDS(1, 900)); /* a circle is one when all of it waits */
    row(f, 1, SENDS(0, 499));
    assert_verdict(f, HEALTHY);
    set(f, "message_ms", "500");
    assert_verdict(f, ORDER_INVERSION);
}

/* An engine that has no core keeps both ends of a message waiting. */
static void a_message_on_its_way(void **state)
{
    struct fix *f = *state;

    row(f, 0, SENDS(1, 900));
    row(f, 1, "message=recv message_tag=0 message_peer=0 message_ms=800");
    assert_verdict(f, HEALTHY);
    assert_int_equal(f->findings[0].rank, -1);
    assert_evidence(f, "rank 1 (pid 101 on node a) waits in recv from rank 0");
    assert_evidence(f, "the message is on its way between them");
    set(f, "message_tag", "-1");
    assert_verdict(f, HEALTHY);
    set(f, "message_tag", "1");
    assert_verdict(f, UNMATCHED);
    clear(f);
    row(f, 0, SENDS(1, 30000));
    row(f, 1, "message=recv message_tag=0 message_peer=0 message_ms=30000");
    assert_verdict(f, BROKEN);
    set(f, "node", "b");
    assert_verdict(f, LINK_STALL);
    assert_evidence(f, "both ends of the message are there");
}

#define RECEIVES(from, tag)                                                                        \
    "message=recv message_peer=" #from " message_tag=" #tag " message_ms=900"
#define LIES(from, tag) " unasked_from=" #from " unasked_tag=" #tag

/* Both sides wait, and want different messages. */
static void a_message_that_nothing_matches(void **state)
{
    struct fix *f = *state;

    /* another tag; others wait in an operation */
    row(f, 0, SENDS(1, 800));
    row(f, 1, RECEIVES(0, 8));
    row(f, 2, WAITS);
    row(f, 3, WAITS);
    assert_verdict(f, UNMATCHED);
    assert_int_equal(f->findings[0].rank, -1);
    assert_evidence(f, "rank 0 (pid 100 on node a) of group \"g\" waits to send to rank 1 with "
                       "tag 0, for 0.8 s");
    assert_evidence(f, "rank 1 (pid 101 on node a) of group \"g\" waits to receive from rank 0 "
                       "with tag 8, for 0.9 s");
    clear(f);

    /* a short one lies there, and its sender waits for an answer */
    row(f, 0, RECEIVES(1, 3));
    row(f, 1, RECEIVES(0, 8) LIES(0, 7));
    assert_verdict(f, UNMATCHED);
    assert_evidence(f, "a message of rank 0 with tag 7 has come to rank 1, which has not asked");
    clear(f);

    /* another rank, which waits for the sender in an operation; who wanted it says so */
    row(f, 0, SENDS(1, 800));
    row(f, 1, WAITS);
    row(f, 2, RECEIVES(0, 0));
    assert_verdict(f, UNMATCHED);
    assert_evidence(f, "rank 1 (pid 101 on node a) waits in operation 6 (all_reduce)");
    assert_evidence(f, "rank 2 (pid 102 on node a) of group \"g\" waits to receive from rank 0");
    clear(f);

    /* a short one to another rank */
    row(f, 0, WAITS);
    row(f, 1, RECEIVES(2, 9) LIES(0, 7));
    row(f, 2, RECEIVES(0, 7));
    assert_verdict(f, UNMATCHED);
    assert_evidence(f, "a message of rank 0 with tag 7 has come to rank 1");
    clear(f);

    /* from any rank, with a tag that none sends */
    row(f, 0, SENDS(1, 800));
    row(f, 1, "message=recv message_tag=8 message_ms=900");
    assert_verdict(f, UNMATCHED);
    assert_evidence(f, "waits to receive from any rank with tag 8");
}

/* Who may still send is not accused of another tag: that it sent something else is said. */
static void a_message_that_may_still_come(void **state)
{
    struct fix *f = *state;

    row(f, 0, "");
    row(f, 1, RECEIVES(0, 8) LIES(0, 7));
    assert_verdict(f, NOT_ARRIVED);
    assert_int_equal(f->findings[0].rank, 0);
    assert_evidence(f, "a message of rank 0 with tag 7 has come to rank 1, which has not asked");
    clear(f);
    row(f, 0, "size=2 message=recv message_tag=8 message_ms=900" LIES(1, 7));
    row(f, 1, "size=2");
    assert_verdict(f, NOT_ARRIVED);
    assert_evidence(f, "a message of rank 1 with tag 7 has come to rank 0");
    clear(f);

    /* both send, both receive, or one receives later: an order */
    row(f, 0, SENDS(1, 800));
    row(f, 1, SENDS(0, 800));
    assert_verdict(f, ORDER_INVERSION);
    clear(f);
    row(f, 0, RECEIVES(1, 0));
    row(f, 1, RECEIVES(0, 0));
    assert_verdict(f, ORDER_INVERSION);
    clear(f);
    row(f, 0, SENDS(1, 800));
    row(f, 1, WAITS);
    assert_verdict(f, ORDER_INVERSION);
}

/* The others have waited once for a rank, long, and go on: that is not its pace. */
static void one_long_wait(void **state)
{
    struct fix *f = *state;

    /* the first step of a job: the wait was in the second that was watched */
    row(f, 0, "done=25 moved=25 busy_pct=40 lately=1 lately_ms=6000 lately_in_ms=4500");
    row(f, 1, "done=25 moved=25 busy_pct=1 lately=25 lately_ms=500 lately_in_ms=10");
    assert_verdict(f, HEALTHY);
    clear(f);
    /* a checkpoint long ago, in a job of few operations, which rank 1 alone does not remember so */
    row(f, 0, "done=3 moved=3 busy_pct=2 lately=1 lately_ms=41000 lately_in_ms=20100");
    row(f, 1, "done=3 moved=3 busy_pct=2 lately=60 lately_ms=41000 lately_in_ms=100");
    assert_verdict(f, HEALTHY);
    clear(f);
    /* many operations since, of which it remembers the last */
    row(f, 0, "done=900 moved=28 busy_pct=50 lately=60 lately_ms=60 lately_in_ms=10");
    row(f, 1, "done=900 moved=28 busy_pct=3 lately=60 lately_ms=60 lately_in_ms=2");
    assert_verdict(f, HEALTHY);
    /* and as many, each of which waits */
    set(f, "moved", "49");
    row(f, 2, "done=900 moved=49 busy_pct=60 lately=60 lately_ms=60 lately_in_ms=30");
    assert_verdict(f, SLOW_RANK);
    assert_int_equal(f->findings[0].rank, 1);
}

/* Ranks that often wait for one that writes a checkpoint: from some time on it is said for whom,
 * though it may still come. */
static void a_wait_that_is_long_and_usual(void **state)
{
    struct fix *f = *state;

    row(f, 0, "started=6 operation=all_reduce asleep_ms=29999 busy_pct=90 usual_ms=600000");
    row(f, 1, "kernel=futex_wait");
    assert_verdict(f, HEALTHY);
    assert_evidence(f,
                    "it is waited for 30.0 s in operation 6, for rank 1 (pid 101 on node a); three "
                    "operations took 600.0 s and longer lately");
    clear(f);
    row(f, 0, "started=6 operation=all_reduce asleep_ms=30000 busy_pct=90 usual_ms=600000");
    row(f, 1, "kernel=futex_wait");
    assert_verdict(f, NOT_ARRIVED);
    assert_int_equal(f->findings[0].rank, 1);
    assert_int_equal(f->findings[0].waiting_ms, 30000);
    assert_evidence(f, "rank 0 waits in operation 6 (all_reduce) for 30.0 s");
    assert_evidence(f, "three operations took 600.0 s and longer lately: such a wait is usual");
    assert_non_null(strstr(f->findings[0].remedy, "a checkpoint"));
    clear(f);
    row(f, 0, "started=6 operation=all_reduce asleep_ms=700000 busy_pct=90 usual_ms=600000");
    row(f, 1, "");
    assert_verdict(f, NOT_ARRIVED);
    assert_evidence(f, "600.0 s and longer lately: this wait is longer, but not twice as long");
    clear(f);
    row(f, 0, "started=6 operation=all_reduce asleep_ms=1200001 busy_pct=90 usual_ms=600000");
    row(f, 1, "");
    assert_verdict(f, NOT_ARRIVED);
    assert_null(strstr(f->findings[0].evidence, "lately"));
    clear(f);
    row(f, 0, "size=2 started=6 operation=all_reduce asleep_ms=40000 busy_pct=90 usual_ms=35000");
    row(f, 1, "size=2 node=b started=6 operation=all_reduce asleep_ms=40000 busy_pct=90");
    assert_verdict(f, LINK_STALL);
    assert_evidence(f, "35.0 s and longer lately: this wait is longer, but not twice as long");
}

/* Ranks of a node that does not answer are not known to have begun it. */
static void a_node_that_is_silent(void **state)
{
    static struct msg_column columns[] = {{.key = "node"}, {.key = "peer"}, {.key = "state"}};
    static char *cells[] = {"a", "b", "silent"};
    struct msg_tables answer = {.ntables = 2};
    struct msg_table tables[2];
    struct fix *f = *state;

    row(f, 0, WAITS " size=2");
    assert_verdict(f, LINK_STALL);
    assert_evidence(f, "1 of its 2 ranks were not seen");
    tables[0] = f->table;
    tables[1] = (struct msg_table){.ncolumns = 3, .nrows = 1, .columns = columns, .cells = cells};
    snprintf(tables[0].name, sizeof(tables[0].name), "ranks");
    snprintf(tables[1].name, sizeof(tables[1].name), "links");
    answer.tables = tables;
    judge_links(&answer, f->findings, f->n);
    assert_int_equal(f->findings[0].verdict, VERDICT_NODE_SILENT);
    assert_string_equal(f->findings[0].node, "b");
    assert_evidence(f, "node b does not answer");
    clear(f);
    row(f, 0, "size=2 message=recv message_peer=1 message_tag=4 message_ms=900");
    assert_verdict(f, LINK_STALL);
    assert_evidence(f, "were not seen");
}

/* A job that gets on, or idles, while the commd of one of its nodes stands still. */
static void a_silent_node_of_a_group_that_gets_on(void **state)
{
    struct fix *f = *state;

    row(f, 0, "size=2 nodes=2 done=50 busy_pct=30 moved=30");
    assert_int_equal(with_unheard(f, "b=silent")->verdict, VERDICT_NODE_SILENT);
    assert_evidence(f, "node b does not answer");
    clear(f);
    row(f, 0, "size=2 nodes=2");
    assert_int_equal(with_unheard(f, "b=silent")->verdict, VERDICT_NODE_SILENT);
    clear(f);
    row(f, 0, "size=2 nodes=2"); /* it is all here */
    row(f, 1, "size=2 nodes=2 node=b");
    assert_int_equal(with_unheard(f, "c=silent")->verdict, VERDICT_HEALTHY);
}

/* Who does not answer is accused only if it is one of the group's nodes. */
static void a_silent_node_of_another_group(void **state)
{
    struct fix *f = *state;

    row(f, 0, WAITS " size=2 nodes=2"); /* on a, and on b or c */
    assert_int_equal(with_unheard(f, "b=silent c=silent")->verdict, VERDICT_LINK_STALL);
    assert_evidence(f, "nodes b, c do not answer: it is not known which of them are in the group");
    assert_non_null(strstr(f->findings[0].remedy, "look at nodes b, c"));
    assert_int_equal(with_unheard(f, "b=silent c=partial")->verdict, VERDICT_LINK_STALL);
    assert_evidence(f, "node b does not answer: it is not known whether it is in the group");
    /* with c the group of a would have ended */
    assert_int_equal(with_unheard(f, "b=silent c=down")->verdict, VERDICT_NODE_SILENT);
    assert_evidence(f, "node b does not answer; it is lost when");
    assert_int_equal(with_unheard(f, "c=partial")->verdict, VERDICT_LINK_STALL);
    assert_null(strstr(f->findings[0].evidence, "answer"));
    clear(f);
    row(f, 0, WAITS " size=3 nodes=3");
    assert_int_equal(with_unheard(f, "b=silent c=silent")->verdict, VERDICT_NODE_SILENT);
    assert_evidence(f, "nodes b, c do not answer; they are lost when");
    clear(f);
    row(f, 0, WAITS " size=3 nodes=2"); /* both of its nodes are here, one told only a part */
    row(f, 1, WAITS " size=3 nodes=2 node=b");
    assert_int_equal(with_unheard(f, "b=partial c=silent")->verdict, VERDICT_LINK_STALL);
    assert_null(strstr(f->findings[0].evidence, "answer"));
    clear(f);
    row(f, 0, WAITS " size=2 nodes=2 node=x"); /* a is not in it, so what is down there may be */
    assert_int_equal(with_unheard(f, "b=silent c=down")->verdict, VERDICT_LINK_STALL);
    assert_evidence(f, "it is not known whether it is in the group");
}

static void a_node_that_is_restarting(void **state)
{
    static const char joins[] =
        "commd of node b is restarting: a join with ranks there waits until it is back";
    struct fix *f = *state;

    row(f, 0, "state=joining group= nodes= joining_ms=700");
    assert_int_equal(with_unheard(f, "c=silent b=restarting")->verdict, VERDICT_NOT_JOINED);
    assert_evidence(f, joins);
    assert_string_equal(f->findings[0].lost_node, "b");
    assert_non_null(strstr(f->findings[0].remedy, "on node b systemctl status commd"));
    with_unheard(f, "b=restarting c=restarting");
    assert_evidence(f, "commd of nodes b, c is restarting");
    with_unheard(f, "b=down");
    assert_null(strstr(f->findings[0].evidence, "restarting"));
    assert_evidence(f, "node a has no link to node b: a join with ranks on both waits");
    assert_non_null(strstr(f->findings[0].remedy, "commctl nodes on node a says why"));
    with_unheard(f, "b=linking");
    assert_evidence(f, "the engines of nodes a and b have no connection: a join with");
    clear(f);
    row(f, 0, "state=joining size=2 joining_ms=700"); /* all ranks came, engines have to agree */
    assert_int_equal(with_unheard(f, "b=restarting")->verdict, VERDICT_NOT_JOINED);
    assert_evidence(f, joins);
    clear(f);
    row(f, 0, "size=2 nodes=2"); /* a group that runs goes on without it */
    assert_int_equal(with_unheard(f, "b=restarting")->verdict, VERDICT_COMMD_AWAY);
    assert_false(finding_is_well(&f->findings[0])); /* not all is known: exit code 1 */
    assert_evidence(f, "commd of node b is restarting: what ranks do there is not known");
    assert_string_equal(f->findings[0].lost_node, "b");
    assert_non_null(strstr(f->findings[0].remedy, "on node b systemctl status commd"));
    clear(f);
    row(f, 0, "size=2 nodes=2 epoch=1 next_epoch=2"); /* that is over anyway */
    assert_int_equal(with_unheard(f, "b=restarting")->verdict, VERDICT_RECOVERED);
    clear(f);
    row(f, 0, "size=2 nodes=2");
    row(f, 1, "size=2 nodes=2 node=c");
    assert_int_equal(with_unheard(f, "b=restarting")->verdict, VERDICT_HEALTHY);
    assert_null(strstr(f->findings[0].evidence, "restarting"));
}

/* Nothing is lost, but what is sent has to wait, and little gets through. */
static void a_link_that_crawls(void **state)
{
    static struct msg_column columns[] = {{.key = "node"},   {.key = "peer"},
                                          {.key = "rtt_us"}, {.key = "min_rtt_us"},
                                          {.key = "rate"},   {.key = "bandwidth"}};
    static char *cells[] = {"node0", "node1", "92000", "100", "1200000", "1200000000"};
    struct msg_tables answer = {.ntables = 2};
    struct msg_table tables[2];
    struct fix *f = *state;

    row(f, 0, "node=node0 done=5 busy_pct=99");
    row(f, 1, "node=node1 done=5 busy_pct=99");
    assert_verdict(f, COMM_BOUND);
    tables[0] = f->table;
    tables[1] = (struct msg_table){.ncolumns = 6, .nrows = 1, .columns = columns, .cells = cells};
    snprintf(tables[0].name, sizeof(tables[0].name), "ranks");
    snprintf(tables[1].name, sizeof(tables[1].name), "links");
    answer.tables = tables;
    judge_links(&answer, f->findings, f->n);
    assert_int_equal(f->findings[0].verdict, VERDICT_SLOW_LINK);
    assert_evidence(f, "what node node0 sends to node node1 waits: 92.0 ms there and back, at best "
                       "0.1 ms; 1.2 MB/s get through, where up to 1200.0 did");
}

/* However many links are not well, those of the group are found, and the worst is named. */
static void many_links_that_are_not_well(void **state)
{
    enum { LINKS = 700, COLUMNS = 8 };
    static struct msg_column columns[COLUMNS] = {
        {.key = "node"},        {.key = "peer"},   {.key = "state"},      {.key = "segments"},
        {.key = "retransmits"}, {.key = "rtt_us"}, {.key = "min_rtt_us"}, {.key = "rate"}};
    static char *others[COLUMNS] = {"x", "y", "up", "1000", "900", "100", "100", "1"},
                *lossy[COLUMNS] = {"a", "b", "up", "1000", "30", "100", "100", "1"},
                *lossier[COLUMNS] = {"b", "a", "up", "1000", "31", "100", "100", "1"};
    char **cells = calloc((size_t)LINKS * COLUMNS, sizeof(*cells));
    struct msg_tables answer = {.ntables = 2};
    struct msg_table tables[2];
    struct fix *f = *state;

    for (unsigned i = 0; i < LINKS; i++)
        memcpy(cells + (size_t)i * COLUMNS,
               i == 500   ? lossy
               : i == 600 ? lossier
                          : others,
               sizeof(others));
    row(f, 0, "node=a done=50 busy_pct=80");
    row(f, 1, "node=b done=50 busy_pct=85");
    assert_verdict(f, COMM_BOUND);
    tables[0] = f->table;
    tables[1] =
        (struct msg_table){.ncolumns = COLUMNS, .nrows = LINKS, .columns = columns, .cells = cells};
    snprintf(tables[0].name, sizeof(tables[0].name), "ranks");
    snprintf(tables[1].name, sizeof(tables[1].name), "links");
    answer.tables = tables;
    judge_links(&answer, f->findings, f->n);
    assert_int_equal(f->findings[0].verdict, VERDICT_SLOW_LINK);
    assert_evidence(f, "node b sends 3.1 % of what goes to node a again: 31 of 1000");
    assert_evidence(f, "1 more link between its nodes is not well: commctl links");
    links_worst_first(&tables[1]);
    assert_string_equal(cells[0], "x");
    assert_string_equal(cells[(size_t)(LINKS - 2) * COLUMNS], "b");
    assert_string_equal(cells[(size_t)(LINKS - 1) * COLUMNS], "a");
    free(cells);
}

/* Ranks end because another one has: it is the first that is to blame, whoever is asked. */
static void the_first_that_died(void **state)
{
    struct fix *f = *state;

    row(f, 0, "process=died gone=died gone_rank=2 gone_node=b gone_pid=102 gone_ops=5");
    row(f, 1, "process=died started=6 gone=died gone_rank=2 gone_node=b gone_pid=102 gone_ops=5");
    assert_verdict(f, RANK_DEAD); /* its own node says nothing any more */
    assert_int_equal(f->findings[0].rank, 2);
    assert_int_equal(f->findings[0].pid, 102);
    assert_string_equal(f->findings[0].node, "b");
    assert_evidence(f, "rank 2 (pid 102 on node b) has died; it had completed 5 operations");
    row(f, 2, "process=died node=b command=train");
    assert_verdict(f, RANK_DEAD);
    assert_int_equal(f->findings[0].rank, 2);
    assert_string_equal(f->findings[0].command, "train");
    clear(f);

    /* they ended because they had called what did not fit */
    row(f, 0, "last=all_reduce process=died gone=died gone_rank=0 gone_node=a gone_pid=100");
    row(f, 1, "process=died");
    assert_verdict(f, MISMATCH);
    assert_evidence(f, "called all_reduce");
}

/* Where to look depends on how it ended. */
static void how_a_rank_died(void **state)
{
    static const char *const ends[][2] = {
        {"exit code 1", "ended with an error"},    {"exit code 0", "without leaving the group"},
        {"signal 9 (KILL)", "for want of memory"}, {"signal 11 (SEGV)", "its core file"},
        {"signal 15 (TERM)", "somebody ended it"}, {"", "OOM killer"},
    };
    struct fix *f = *state;

    for (unsigned i = 0; i < ARRAY_LEN(ends); i++) {
        row(f, 0, "process=died ops=1");
        set(f, "exit", ends[i][0]);
        assert_verdict(f, RANK_DEAD);
        assert_evidence(f, ends[i][0]);
        assert_evidence(f, "it had completed 1 operation, the last one");
        assert_non_null(strstr(f->findings[0].remedy, ends[i][1]));
        clear(f);
    }
}

/* Rank 2 hangs, and then all are ended: they die in any order, and it is rank 2 all the same. */
static void a_job_that_was_ended_while_it_hung(void **state)
{
    static const char dead[] = "process=died gone=died gone_rank=3 gone_node=b gone_pid=103",
                      late[] = "node=b process=died gone=died gone_rank=3 gone_node=b";
    static const char *const states[] = {"broken", "ended"};
    struct fix *f = *state;

    for (unsigned i = 0; i < ARRAY_LEN(states); i++) {
        for (unsigned rank = 0; rank < 4; rank++) {
            row(f, rank, rank == 2 ? late : dead);
            set(f, "state", states[i]);
            if (rank == 2)
                continue;
            set(f, "started", "6");
            set(f, "operation", "all_reduce");
            set(f, "asleep_ms", "13000");
        }
        assert_verdict(f, NOT_ARRIVED);
        assert_int_equal(f->findings[0].rank, 2);
        assert_int_equal(f->findings[0].waiting_ms, 13000);
        assert_evidence(f, "its ranks were ended while it hung");
        assert_evidence(f, "ranks 0-1,3");
        assert_evidence(f, "for 13.0 s");
        assert_evidence(f, "rank 2 (pid 102 on node b) had not begun it");
        assert_null(strstr(f->findings[0].remedy, "OOM"));
        set(f, "asleep_ms", "4999"); /* so short a wait is no hang: the first died of itself */
        assert_verdict(f, RANK_DEAD);
        assert_int_equal(f->findings[0].rank, 3);
        set(f, "asleep_ms", "13000");
        row(f, 1, ""); /* one goes on: nobody has ended the job */
        set(f, "state", states[i]);
        assert_verdict(f, RANK_DEAD);
        assert_int_equal(f->findings[0].rank, 3);
        clear(f);
    }

    /* the one that had not come was gone first: the others, which waited for it, end of that */
    row(f, 0, "process=died gone=died gone_rank=1 gone_node=a gone_pid=101 size=2");
    set(f, "started", "6");
    set(f, "asleep_ms", "13000");
    row(f, 1, "process=died size=2 gone=died gone_rank=1 gone_node=a gone_pid=101");
    assert_verdict(f, RANK_DEAD);
    assert_int_equal(f->findings[0].rank, 1);
    clear(f);

    /* and so it is if that one was told to end, as all were */
    row(f, 0, "process=died gone=died gone_rank=1 gone_node=a gone_pid=101 size=2");
    set(f, "started", "6");
    set(f, "asleep_ms", "13000");
    row(f, 1, "process=died size=2 gone=died gone_rank=1 gone_node=a gone_pid=101");
    set(f, "exit", "signal 15 (TERM)");
    assert_verdict(f, NOT_ARRIVED);
    assert_int_equal(f->findings[0].rank, 1);
    assert_evidence(f, "were ended while it hung, by signal 15 (TERM); until then:");
    set(f, "exit", "signal 11 (SEGV)");
    assert_verdict(f, RANK_DEAD);
    clear(f);

    /* a message that nobody sent */
    row(f, 0, "process=died state=ended message=recv message_peer=1 message_ms=9000");
    row(f, 1, "process=died state=ended");
    assert_verdict(f, NOT_ARRIVED);
    assert_int_equal(f->findings[0].rank, 1);
    assert_evidence(f, "had not sent");
    clear(f);

    /* and one that nothing matched */
    row(f, 0, "process=died state=ended message=recv message_peer=1 message_tag=8 message_ms=9000");
    row(f, 1, "process=died state=ended message=send message_peer=0 message_tag=7 message_ms=9000");
    assert_verdict(f, UNMATCHED);
    assert_evidence(f, "its ranks were ended while it hung; until then:");
    assert_evidence(f, "had waited to send to rank 0 with tag 7, for 9.0 s");
}

/* A row of a group of two of them, in a job that was ended by SIGTERM. */
static void row_of_part(struct fix *f, unsigned rank, unsigned world, const char *name)
{
    char number[16];

    row(f, rank, "size=2 state=broken process=died gone=died gone_rank=1 gone_node=a");
    set(f, "name", name);
    set(f, "group", name);
    snprintf(number, sizeof(number), "%u", 100 + world);
    set(f, "pid", number);
}

/* Rank 2 hangs, the others wait for it in the whole group: so say all groups of the job, also by
 * their GPUs. */
static void a_job_with_parts_that_was_ended(void **state)
{
    static const char *const waits[] = {
        "started=6 operation=barrier asleep_ms=13000",
        "gpu_begun=6 gpu_ended=5 gpu_operation=barrier gpu_ready=true gpu_ms=13000 gpu_done=1",
    };
    struct fix *f = *state;
    char words[256];

    for (unsigned i = 0; i < ARRAY_LEN(waits); i++) {
        snprintf(words, sizeof(words), "state=broken process=died gone=died gone_rank=3 %s %s",
                 "gone_node=a", waits[i]);
        for (unsigned rank = 0; rank < 4; rank++)
            row(f, rank, rank == 2 ? "state=broken process=died gpu_begun=5 gpu_ended=5" : words);
        for (unsigned rank = 0; rank < 4; rank++)
            row_of_part(f, rank % 2, rank, rank < 2 ? "tp0" : "tp1");
        assert_int_equal(diagnose(&f->table, &f->findings, &f->n, &(const char *){NULL}), 0);
        assert_int_equal(f->n, 3);
        for (unsigned k = 0; k < 3; k++) {
            assert_string_equal(verdict_name(f->findings[k].verdict), "NOT_ARRIVED");
            assert_int_equal(f->findings[k].world_rank, 2);
            assert_int_equal(f->findings[k].waiting_ms, 13000);
            assert_non_null(strstr(f->findings[k].evidence, "were ended while it hung"));
        }
        clear(f);
    }

    /* in a group that it has left long ago it waits no more */
    row(f, 0, "process=left started=6 operation=barrier asleep_ms=13000 name=old");
    set(f, "group", "old");
    row_of_part(f, 0, 0, "tp");
    row_of_part(f, 1, 1, "tp");
    assert_int_equal(diagnose(&f->table, &f->findings, &f->n, &(const char *){NULL}), 0);
    assert_int_equal(f->n, 2);
    assert_string_equal(verdict_name(f->findings[1].verdict), "RANK_DEAD");
}

/* The first one waited as well, and had an end of its own: that is why the others ended. */
static void a_waiter_that_was_gone_first_by_itself(void **state)
{
    static const char *const ends[] = {"signal 9 (KILL)", "signal 11 (SEGV)", "exit code 1"};
    static const char waits[] = "process=died started=6 operation=all_reduce asleep_ms=13000 "
                                "size=3 gone=died gone_rank=0 gone_node=a gone_pid=100";
    struct fix *f = *state;

    for (unsigned i = 0; i < ARRAY_LEN(ends); i++) {
        row(f, 0, waits);
        set(f, "exit", ends[i]);
        row(f, 1, waits);
        set(f, "exit", "signal 15 (TERM)");
        row(f, 2, "process=died size=3 gone=died gone_rank=0 gone_node=a gone_pid=100");
        assert_verdict(f, RANK_DEAD);
        assert_int_equal(f->findings[0].rank, 0);
        assert_evidence(f, ends[i]);
        clear(f);
    }

    /* all were killed, and so that one was */
    row(f, 0, waits);
    set(f, "exit", "signal 9 (KILL)");
    row(f, 1, waits);
    set(f, "exit", "signal 9 (KILL)");
    row(f, 2, "process=died size=3 gone=died gone_rank=0 gone_node=a gone_pid=100");
    assert_verdict(f, NOT_ARRIVED);
    assert_int_equal(f->findings[0].rank, 2);
    assert_evidence(f, "were ended while it hung, by signal 9 (KILL); until then:");
}

/* Who leaves while the others have more to do is to blame, also when they end because of it. */
static void the_first_that_left(void **state)
{
    struct fix *f = *state;

    row(f, 0, "started=6 operation=all_reduce gone=left gone_rank=2 gone_node=b gone_pid=102");
    set(f, "gone_ops", "5");
    row(f, 1, "started=6 operation=all_reduce process=died");
    assert_verdict(f, RANK_LEFT);
    assert_int_equal(f->findings[0].rank, 2);
    assert_evidence(f, "rank 2 (pid 102 on node b) left the group after operation 5");
    assert_evidence(f, "ranks 0-1 began operation 6 (all_reduce), which it did not");
    assert_non_null(strstr(f->findings[0].remedy, "did an exception end its program?"));
    assert_non_null(strstr(f->findings[0].remedy, "drop_last"));
}

/* Most have left, as they should, and one has called an operation more. */
static void one_that_calls_one_more(void **state)
{
    static const char left[] = "process=left gone=left gone_rank=1 gone_node=a gone_ops=5";
    static const char asked[] = "does only rank 0 (pid 100 on node a) go on: did it call one more?";
    struct fix *f = *state;

    row(f, 0, "started=6 operation=all_reduce asleep_ms=900 gone=left gone_rank=1 gone_node=a");
    set(f, "gone_ops", "5");
    for (unsigned rank = 1; rank < 4; rank++) {
        row(f, rank, left);
        set(f, "exit", rank == 3 ? "" : "exit code 0");
    }
    assert_verdict(f, RANK_LEFT); /* nobody knows how the last of them ended */
    assert_int_equal(f->findings[0].rank, 1);
    assert_non_null(strstr(f->findings[0].remedy, asked));
    set(f, "exit", "exit code 0");
    assert_verdict(f, MISMATCH);
    assert_int_equal(f->findings[0].rank, 0);
    assert_evidence(f, "ranks 1-3 have left the group");
    assert_evidence(f, "only rank 0 (pid 100 on node a) began operation 6 (all_reduce)");
    set(f, "exit", "exit code 1"); /* an exception */
    assert_verdict(f, RANK_LEFT);
    assert_int_equal(f->findings[0].rank, 1);
    assert_null(strstr(f->findings[0].remedy, "one more"));
}

#define LEFT(rank, node) " gone=left gone_ops=5 gone_rank=" #rank " gone_node=" #node
#define DIED(rank, node) " gone=died gone_ops=5 gone_rank=" #rank " gone_node=" #node

#define assert_first_gone(f, want, who)                                                            \
    do {                                                                                           \
        assert_verdict(f, want);                                                                   \
        assert_int_equal((f)->findings[0].rank, who);                                              \
    } while (0)

/* Nodes hear of who is gone in another order, and name different ones. */
static void nodes_that_disagree_who_was_gone_first(void **state)
{
    struct fix *f = *state;

    /* nobody on a had begun more than who left, c says nothing any more */
    row(f, 0, "node=a" DIED(1, b));
    row(f, 1, "node=b process=died started=6 operation=all_reduce" LEFT(2, c));
    assert_first_gone(f, RANK_LEFT, 2);
    assert_string_equal(f->findings[0].node, "c");
    assert_evidence(f, "rank 2 (on node c) left the group after operation 5");
    assert_evidence(f, "rank 1 began operation 6 (all_reduce), which it did not");
    assert_evidence(f, "rank 1 has died");
    clear(f);

    /* on c itself nobody missed who left there */
    row(f, 0, "node=a" DIED(1, b));
    row(f, 1, "node=b process=died started=6 operation=all_reduce" LEFT(2, c));
    row(f, 2, "node=c process=left" DIED(1, b));
    assert_first_gone(f, RANK_LEFT, 2);
    clear(f);
    row(f, 2, "node=c process=left" DIED(1, b));
    row(f, 1, "node=b process=died started=6 operation=all_reduce" LEFT(2, c));
    assert_first_gone(f, RANK_LEFT, 2);
    clear(f);

    /* 0 left because 3 had died: that was heard on a, and on c only after it */
    row(f, 0, "node=a process=left started=6" DIED(3, b));
    row(f, 1, "node=c started=6 operation=all_reduce" LEFT(0, a));
    row(f, 3, "node=b process=died" DIED(3, b));
    assert_first_gone(f, RANK_DEAD, 3);
    clear(f);
    row(f, 1, "node=c started=6 operation=all_reduce" LEFT(0, a));
    row(f, 3, "node=b process=died" DIED(3, b)); /* a says nothing any more */
    assert_first_gone(f, RANK_DEAD, 3);
    clear(f);

    /* and nonsense ends */
    row(f, 0, "node=a" DIED(1, b));
    row(f, 1, "node=b" DIED(2, c));
    row(f, 2, "node=c" DIED(0, a));
    assert_verdict(f, RANK_DEAD);
}

/* A link that loses is the culprit only of groups over both of its nodes, which are in operations
 * much of the time and get on. */
static void a_link_that_loses(void **state)
{
    static struct msg_column columns[] = {{.key = "node"},     {.key = "peer"},
                                          {.key = "segments"}, {.key = "retransmits"},
                                          {.key = "rtt_us"},   {.key = "min_rtt_us"}};
    static char *cells[] = {"node0", "node9", "1000", "900", "1", "1", "node1", "node0", "2000",
                            "100",   "1500",  "100",  "x",   "y", "",  "z",     "-1",    ""};
    struct msg_table tables[2] = {
        [1] = {.name = "links", .ncolumns = 6, .nrows = 3, .columns = columns, .cells = cells}};
    struct msg_tables answer = {.ntables = 2, .tables = tables};
    struct fix *f = *state;

    row(f, 0, "node=node0 done=50 busy_pct=80 watched_ms=1000 nodes=2");
    row(f, 1, "node=node1 done=50 busy_pct=85 watched_ms=1000 nodes=2");
    assert_int_equal(diagnose(&f->table, &f->findings, &f->n, &(const char *){NULL}), 0);
    assert_int_equal(f->findings[0].verdict, VERDICT_COMM_BOUND);
    snprintf(f->table.name, sizeof(f->table.name), "ranks");
    tables[0] = f->table;
    judge_links(&answer, f->findings, f->n);
    assert_int_equal(f->findings[0].verdict, VERDICT_SLOW_LINK);
    assert_non_null(strstr(f->findings[0].evidence,
                           "node node1 sends 5.0 % of what goes to node node0 again: 100 of 2000 "
                           "segments in the last second; there and back 1.5 ms, at best 0.1 ms"));
    assert_non_null(strstr(f->findings[0].remedy, "from node node1 to node node0"));

    f->findings[0].verdict = VERDICT_COMPUTE_BOUND;
    judge_links(&answer, f->findings, f->n);
    assert_int_equal(f->findings[0].verdict, VERDICT_COMPUTE_BOUND);
    f->findings[0].verdict = VERDICT_HEALTHY;
    cells[6] = "node7"; /* not one of the group's */
    judge_links(&answer, f->findings, f->n);
    assert_int_equal(f->findings[0].verdict, VERDICT_HEALTHY);
    cells[6] = "node1";
    columns[3].key[0] = 'x'; /* another version: nothing is known to be lost */
    tables[1].nrows = 0;
    judge_links(&answer, f->findings, f->n);
    answer.ntables = 1;
    judge_links(&answer, f->findings, f->n);
    assert_int_equal(f->findings[0].verdict, VERDICT_HEALTHY);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(the_late_are_named),
        T(the_worse_fate_explains_more),
        T(a_waiter_that_is_looked_at),
        T(who_alone_has_begun_it_is_asked_about),
        T(counters_wrap),
        T(nobody_is_accused_too_soon),
        T(gpus_that_wait),
        T(gpus_that_are_not_accused_too_soon),
        T(gpu_chains_go_through_hosts),
        T(chains_are_followed_into_other_groups),
        T(circles_are_seen),
        T(a_circle_is_the_same_from_everywhere),
        T(evidence_is_not_cut_in_a_word),
        T(ranks_of_a_part_are_told_by_their_number_in_the_job),
        T(peers_of_a_part_are_told_by_their_number_in_the_job),
        T(ranks_whose_processes_are_not_seen),
        T(a_job_that_has_become_smaller),
        T(what_a_process_waits_for_is_told_in_words),
        T(all_are_there_and_nothing_moves),
        T(who_comes_while_it_is_looked_at_ends_the_wait),
        T(causes_of_broken_groups),
        T(what_broke_it_is_told_apart),
        T(the_pace),
        T(quotas_that_are_used_up),
        T(a_slow_rank_is_told_once),
        T(an_engine_that_is_stopped),
        T(a_wait_that_is_not_long_yet),
        T(checkpoints_that_take_most_of_the_time),
        T(operations_that_differ),
        T(one_that_differs_from_most),
        T(joining),
        T(groups_that_join_are_their_users),
        T(ranks_that_start),
        T(who_waits_to_go_on),
        T(new_processes_for_whom_nobody_waits),
        T(a_new_process_asks_for_a_taken_seat),
        T(an_epoch_that_has_gone_on_is_no_trouble),
        T(who_died_before_a_group_went_on),
        T(who_was_left_behind_waits),
        T(who_was_left_behind_has_to_rejoin),
        T(joins_that_failed),
        T(processes_that_commd_does_not_see),
        T(engines_without_a_connection),
        T(nonsense),
        T(a_column_that_is_missing_is_named),
        T(many_ranks),
        T(what_is_pending),
        T(many_pending),
        T(a_group_that_was_kicked),
        T(a_rank_that_is_frozen),
        T(a_rank_that_computes),
        T(a_pipeline_that_moves),
        T(a_message_on_its_way),
        T(a_message_that_nothing_matches),
        T(a_message_that_may_still_come),
        T(one_long_wait),
        T(uneven_work),
        T(a_wait_that_is_long_and_usual),
        T(a_node_that_is_silent),
        T(a_node_that_is_restarting),
        T(a_silent_node_of_another_group),
        T(a_silent_node_of_a_group_that_gets_on),
        T(a_link_that_crawls),
        T(many_links_that_are_not_well),
        T(the_first_that_died),
        T(how_a_rank_died),
        T(a_job_that_was_ended_while_it_hung),
        T(a_job_with_parts_that_was_ended),
        T(a_waiter_that_was_gone_first_by_itself),
        T(the_first_that_left),
        T(one_that_calls_one_more),
        T(nodes_that_disagree_who_was_gone_first),
        T(a_link_that_loses),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

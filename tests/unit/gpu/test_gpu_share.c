/* test_gpu_share.c - users whose operations go to GPUs that run them as they like: by weight where
 * all want more, all of it for one alone, and nobody waits for ever. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "transport/gpu/gpu_lines.h"
#include "transport/gpu/gpu_share.h"

enum { USERS = 4, GPUS = 3, FLYING = 64, RATE = 1 << 20 };
#define MIB ((uint64_t)1 << 20)

struct flight {
    uint64_t bytes, left;
};

/* What a user does on one set of GPUs: one operation after the other, all there at once. */
struct sim_user {
    struct gpu_share share[GPUS];
    unsigned gpus; /* bits */
    uint64_t least, most;
    unsigned waits; /* bits */
    bool away;
    uint64_t next; /* bytes of the operation that is to go; 0: none was drawn */
    struct flight flight[FLYING];
    unsigned nflying;
    uint64_t done, started, stood; /* bytes, operations; turns in which nothing of it went */
};

struct sim {
    struct gpu_shared gpu[GPUS];
    struct sim_user user[USERS];
    unsigned nusers;
    bool together; /* streams share a GPU; else it runs one operation after the other */
    unsigned order[USERS * FLYING], norder; /* users of what flies, as it came */
    uint64_t seed, turn, idle; /* turns in which GPU 0 had nothing, though somebody wanted it */
    uint64_t still;            /* in which none had anything */
};

static struct sim s;

static uint64_t draw(uint64_t below)
{
    s.seed = s.seed * 6364136223846793005 + 1442695040888963407;
    return (s.seed >> 33) % below;
}

static void sim_begin(unsigned nusers, bool together)
{
    memset(&s, 0, sizeof s);
    s.seed = 7;
    s.nusers = nusers;
    s.together = together;
    for (unsigned g = 0; g < GPUS; g++)
        gpu_shared_init(&s.gpu[g]);
}

static struct sim_user *sim_user(unsigned i, uint32_t weight, uint64_t least, uint64_t most)
{
    struct sim_user *u = &s.user[i];

    u->gpus = 1;
    u->least = least;
    u->most = most;
    for (unsigned g = 0; g < GPUS; g++)
        gpu_share_init(&u->share[g], 1000 + i, weight);
    return u;
}

static void wait_on(struct sim_user *u, unsigned g, bool waits)
{
    if (waits == (u->waits >> g & 1))
        return;
    u->waits ^= 1u << g;
    if (waits)
        gpu_share_wait(&s.gpu[g], &u->share[g]);
    else
        gpu_share_unwait(&s.gpu[g], &u->share[g]);
}

/* As gpu_user.c does. */
static bool user_go(unsigned i)
{
    struct sim_user *u = &s.user[i];
    bool may = true;

    if (u->away)
        return false;
    if (!u->next)
        u->next = u->least + draw(u->most - u->least + 1);
    for (unsigned g = 0; g < GPUS; g++) {
        if (!(u->gpus >> g & 1))
            continue;
        wait_on(u, g, gpu_share_full(&s.gpu[g], &u->share[g], u->next));
        may &= !(u->waits >> g & 1);
    }
    for (unsigned g = 0; may && g < GPUS; g++)
        may = !(u->gpus >> g & 1) || gpu_share_may(&s.gpu[g], &u->share[g]);
    if (!may)
        return false;
    assert_true(u->nflying < FLYING);
    for (unsigned g = 0; g < GPUS; g++) {
        if (!(u->gpus >> g & 1))
            continue;
        wait_on(u, g, false);
        gpu_share_charge(&s.gpu[g], &u->share[g], u->next, s.turn);
        gpu_share_take(&s.gpu[g], &u->share[g], u->next);
    }
    s.order[s.norder++] = i;
    u->flight[u->nflying++] = (struct flight){u->next, MAX(u->next, (uint64_t)SHARE_LEAST)};
    u->started++;
    u->next = 0;
    return true;
}

static void user_landed(unsigned i)
{
    struct sim_user *u = &s.user[i];
    unsigned at = 0;

    while (s.order[at] != i)
        at++;
    memmove(&s.order[at], &s.order[at + 1], (--s.norder - at) * sizeof s.order[0]);
    u->done += u->flight[0].bytes;
    for (unsigned g = 0; g < GPUS; g++)
        if (u->gpus >> g & 1)
            gpu_share_give(&s.gpu[g], &u->share[g], u->flight[0].bytes);
    memmove(&u->flight[0], &u->flight[1], --u->nflying * sizeof u->flight[0]);
}

static void user_run(unsigned i, uint64_t bytes)
{
    struct sim_user *u = &s.user[i];

    while (bytes && u->nflying) {
        uint64_t part = MIN(bytes, u->flight[0].left);

        bytes -= part;
        u->flight[0].left -= part;
        if (!u->flight[0].left)
            user_landed(i);
    }
}

/* A turn of the loop, and as much of the GPUs' time. */
static void sim_turn(void)
{
    unsigned busy = 0;
    bool wants = false;

    s.turn++;
    for (unsigned k = 0; k < s.nusers; k++) {
        unsigned i = (unsigned)(k + s.turn) % s.nusers;
        uint64_t before = s.user[i].started;

        for (unsigned n = draw(4); n < 4 && user_go(i);)
            n++;
        s.user[i].stood = s.user[i].started == before ? s.user[i].stood + 1 : 0;
        wants |= !s.user[i].away && (s.user[i].gpus & 1);
    }
    for (unsigned g = 0; g < GPUS; g++)
        s.gpu[g].turn++;
    for (unsigned i = 0; i < s.nusers; i++)
        busy += s.user[i].nflying > 0;
    s.idle += wants && !s.gpu[0].ops;
    s.still += !s.norder;
    if (s.together) {
        for (unsigned i = 0; i < s.nusers; i++)
            user_run(i, RATE / MAX(busy, 1u));
    } else {
        for (uint64_t left = RATE; left && s.norder;) {
            struct flight *f = &s.user[s.order[0]].flight[0];
            uint64_t part = MIN(left, f->left);

            left -= part;
            user_run(s.order[0], part);
        }
    }
}

static void sim_run(unsigned turns)
{
    for (unsigned t = 0; t < turns; t++)
        sim_turn();
}

static void assert_ratio(unsigned a, unsigned b, double ratio, const char *what)
{
    double got = (double)s.user[a].done / (double)s.user[b].done;

    if (got < ratio * 0.95 || got > ratio * 1.05)
        fail_msg("%s: %.2f instead of %.2f", what, got, ratio);
}

/* Whatever the sizes are, and however the GPU shares itself. */
static void bytes_follow_weights(void **state)
{
    static const struct {
        uint64_t least[2], most[2];
        const char *what;
    } rows[] = {
        {{MIB, MIB}, {MIB, MIB}, "alike"},
        {{MIB, 16 * MIB}, {MIB, 16 * MIB}, "small ones of who has more"},
        {{64 * MIB, MIB}, {64 * MIB, MIB}, "large ones of who has more"},
        {{MIB, MIB}, {100 * MIB, 40 * MIB}, "mixed"},
        {{1024 * MIB, 1024 * MIB}, {1024 * MIB, 1024 * MIB}, "one at a time"},
        {{1024 * MIB, MIB}, {1024 * MIB, MIB}, "one at a time beside small ones"},
    };

    (void)state;
    for (unsigned i = 0; i < 2 * ARRAY_LEN(rows); i++) {
        sim_begin(2, i & 1);
        sim_user(0, 30, rows[i / 2].least[0], rows[i / 2].most[0]);
        sim_user(1, 10, rows[i / 2].least[1], rows[i / 2].most[1]);
        sim_run(200000);
        assert_ratio(0, 1, 3, rows[i / 2].what);
        assert_int_equal(s.idle, 0);
    }
}

static void small_ones_count_as_some(void **state)
{
    (void)state;
    sim_begin(2, false);
    sim_user(0, 10, 1, 1);
    sim_user(1, 10, 1024, 1024);
    sim_run(20000);
    assert_in_range(s.user[0].started, s.user[1].started * 19 / 20, s.user[1].started * 21 / 20);
}

/* The lightest of four still has its share, and a new weight holds at once. */
static void nobody_starves(void **state)
{
    uint64_t stood = 0;

    (void)state;
    sim_begin(4, true);
    for (unsigned i = 0; i < 3; i++)
        sim_user(i, 1000, MIB, 32 * MIB);
    sim_user(3, 100, MIB, 32 * MIB);
    for (unsigned t = 0; t < 200000; t++) {
        sim_turn();
        stood = MAX(stood, s.user[3].stood);
    }
    assert_ratio(0, 3, 10, "the first");
    assert_ratio(2, 3, 10, "the third");
    assert_in_range(stood, 1, 3 * 10 * 32 * 2);
    fair_node_weigh(&s.user[3].share[0].node, 1000);
    for (unsigned i = 0; i < 4; i++)
        s.user[i].done = 0;
    sim_run(200000);
    assert_ratio(0, 3, 1, "after it was weighed anew");
}

static void who_is_alone_has_all(void **state)
{
    uint64_t before;

    (void)state;
    sim_begin(2, true);
    sim_user(0, 1, 4 * MIB, 4 * MIB);
    sim_user(1, 1000, 4 * MIB, 4 * MIB)->away = true;
    sim_run(1000);
    assert_int_equal(s.idle, 0);
    assert_in_range(s.user[0].nflying, SHARE_DEPTH - 1, SHARE_DEPTH);
    s.user[1].away = false;
    sim_run(10000);
    s.user[1].away = true; /* and its claim ends with it */
    wait_on(&s.user[1], 0, false);
    sim_run(1000);
    before = s.user[0].done;
    sim_run(1000);
    assert_in_range(s.user[0].done - before, 995 * MIB, 1005 * MIB);
    assert_int_equal(s.idle, 0);
    assert_in_range(s.user[0].nflying, SHARE_DEPTH - 1, SHARE_DEPTH);
}

/* Who has little there does not wait for one who has all it can. */
static void little_goes_at_once(void **state)
{
    (void)state;
    sim_begin(2, true);
    sim_user(0, 10, 1024 * MIB, 1024 * MIB);
    sim_user(1, 10, 1000, 1000)->away = true;
    sim_run(100);
    for (unsigned n = 0; n < 200; n++) {
        uint64_t before = s.user[1].started;

        s.user[1].away = false;
        assert_true(user_go(1));
        assert_int_equal(s.user[1].started, before + 1);
        s.user[1].away = true;
        sim_run(5);
        assert_int_equal(s.user[1].nflying, 0);
    }
}

/* Three users on two GPUs each, in a circle; each is ahead of another one on one of them. */
static void a_circle_of_users_goes_on(void **state)
{
    (void)state;
    for (unsigned seed = 1; seed <= 50; seed++) {
        sim_begin(3, seed & 1);
        s.seed = seed;
        for (unsigned i = 0; i < 3; i++) {
            struct sim_user *u = sim_user(i, 1 + (uint32_t)draw(30), MIB, 300 * MIB);

            u->gpus = 3u << i & 7;
            if (i == 2)
                u->gpus = 5;
            gpu_share_charge(&s.gpu[i], &u->share[i], 1ull << (20 + draw(20)), 0);
        }
        for (unsigned t = 0; t < 30000; t++) {
            sim_turn();
            assert_int_equal(s.still, 0);
        }
        for (unsigned i = 0; i < 3; i++)
            if (s.user[i].started < 5)
                fail_msg("seed %u: user %u has got %llu operations", seed, i,
                         (unsigned long long)s.user[i].started);
    }
}

/* On another GPU a user's claim counts for nothing. */
static void other_gpus_are_nobody_s_affair(void **state)
{
    (void)state;
    sim_begin(2, true);
    sim_user(0, 1, MIB, MIB)->gpus = 1;
    sim_user(1, 1000, 1024 * MIB, 1024 * MIB)->gpus = 2;
    sim_run(2 * SHARE_BESIDE_MS);
    assert_in_range(s.user[0].nflying, SHARE_DEPTH - 1, SHARE_DEPTH);
    assert_false(gpu_share_beside(&s.gpu[0], &s.user[0].share[0], s.turn));
}

static void others_are_remembered_for_a_while(void **state)
{
    struct gpu_share a, b;
    struct gpu_shared g;

    (void)state;
    gpu_shared_init(&g);
    gpu_share_init(&a, 1, 10);
    gpu_share_init(&b, 2, 10);
    gpu_share_charge(&g, &a, 1, 5000);
    assert_true(gpu_share_beside(&g, &b, 5000));
    assert_true(gpu_share_beside(&g, &a, 5000)); /* whoever was before: it is not known */
    assert_false(gpu_share_beside(&g, &a, 5000 + SHARE_BESIDE_MS));
    gpu_share_charge(&g, &b, 1, 9000);
    gpu_share_charge(&g, &a, 1, 9001);
    assert_true(gpu_share_beside(&g, &a, 9900));
    gpu_share_charge(&g, &a, 1, 10100);
    assert_false(gpu_share_beside(&g, &a, 10100));
}

/* However large it is, and who never waits for its own pays as well. */
static void a_huge_one_is_paid_for(void **state)
{
    for (uint32_t weight = 1; weight <= 100; weight *= 10) {
        uint64_t huge = weight * (3ull << 30), bytes = 0;
        struct gpu_shared g;
        struct gpu_share a, b;

        gpu_shared_init(&g);
        gpu_share_init(&a, 1, weight);
        gpu_share_init(&b, 2, FAIR_WEIGHT);
        gpu_share_wait(&g, &b);
        assert_true(gpu_share_may(&g, &a));
        gpu_share_charge(&g, &a, huge, 1);
        for (; !gpu_share_may(&g, &a); bytes += SHARE_BYTES_BESIDE)
            gpu_share_charge(&g, &b, SHARE_BYTES_BESIDE, 1);
        assert_in_range(bytes, huge / weight * FAIR_WEIGHT - SHARE_BYTES_BESIDE,
                        huge / weight * FAIR_WEIGHT + SHARE_BYTES_BESIDE);
    }
    (void)state;
}

/* ---- the log ----------------------------------------------------------------------------- */

static unsigned lines_of(struct gpu_lines *lines, uint32_t uid, uint64_t now_ms, unsigned wanted)
{
    unsigned n = 0;
    uint64_t left_out;

    while (wanted--)
        n += gpu_lines_pass(lines, uid, now_ms, &left_out);
    return n;
}

/* One user who floods the log has a dozen lines, another its own, and what was left out is told. */
static void lines_of_a_user_are_bounded(void **state)
{
    struct gpu_lines lines = {0};
    uint64_t left_out = 0;

    (void)state;
    assert_int_equal(lines_of(&lines, 1000, 50000, 80000), GPU_LINES_BURST);
    assert_int_equal(lines_of(&lines, 1001, 50000, 3), 3);
    assert_int_equal(lines_of(&lines, 1000, 50000 + GPU_LINES_EVERY_MS - 1, 9), 0);
    assert_true(gpu_lines_pass(&lines, 1000, 50000 + GPU_LINES_EVERY_MS, &left_out));
    assert_int_equal(left_out, 9); /* those before were told with user 1001's lines */
    assert_false(gpu_lines_pass(&lines, 1000, 50000 + GPU_LINES_EVERY_MS, &left_out));
}

/* More users than there are places, each with few lines. */
static void lines_of_all_users_are_bounded(void **state)
{
    struct gpu_lines lines = {0};
    unsigned n = 0;

    (void)state;
    for (uint32_t uid = 0; uid < 10000; uid++)
        n += lines_of(&lines, uid, 50000, 2);
    assert_int_equal(n, GPU_LINES_ALL);
    for (uint32_t uid = 0; uid < GPU_LINES_USERS; uid++) /* others have their places by now */
        assert_int_equal(lines_of(&lines, 20000 + uid, 500000 + 200 * uid, 2), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_follow_weights),
        cmocka_unit_test(small_ones_count_as_some),
        cmocka_unit_test(nobody_starves),
        cmocka_unit_test(who_is_alone_has_all),
        cmocka_unit_test(little_goes_at_once),
        cmocka_unit_test(a_circle_of_users_goes_on),
        cmocka_unit_test(other_gpus_are_nobody_s_affair),
        cmocka_unit_test(others_are_remembered_for_a_while),
        cmocka_unit_test(a_huge_one_is_paid_for),
        cmocka_unit_test(lines_of_a_user_are_bounded),
        cmocka_unit_test(lines_of_all_users_are_bounded),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

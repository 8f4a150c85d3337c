/* test_fair.c - who sends next: shares by weight, and nobody waits for long. Pure: no fabric, no
 * time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "transport/schedule/fair.h"

enum { KB = 1 << 10, MESSAGE = 256 << 10, MANY = 200 };

static uint64_t rng;

static uint64_t rnd(void)
{
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return rng;
}

/* Sends without end, in messages of its own sizes. */
struct sender {
    struct fair_node node;
    size_t least, most; /* of a message */
    uint64_t sent;
};

static size_t next_size(const struct sender *s)
{
    return s->least + (s->most > s->least ? rnd() % (s->most - s->least) : 0);
}

static void serve(struct fair *f, uint64_t bytes)
{
    for (uint64_t sum = 0; sum < bytes;) {
        struct sender *s = container_of(fair_first(f), struct sender, node);
        size_t len = next_size(s);

        fair_charge(f, &s->node, len);
        s->sent += len;
        sum += len;
    }
}

static void sender_init(struct sender *s, uint32_t weight, size_t least, size_t most)
{
    *s = (struct sender){.least = least, .most = most};
    fair_node_init(&s->node, weight);
}

static void assert_share(uint64_t part, uint64_t of, double want)
{
    double ratio = (double)part / (double)of / want;

    if (ratio < 0.9 || ratio > 1.1)
        fail_msg("%g of the share", ratio);
}

static void bytes_follow_the_weights_whatever_the_sizes(void **state)
{
    static const size_t sizes[][4] = {{MESSAGE, MESSAGE, MESSAGE, MESSAGE},
                                      {200, 300, MESSAGE, MESSAGE},
                                      {MESSAGE, MESSAGE, 200, 300},
                                      {1, MESSAGE, 1, MESSAGE}};

    rng = 4711;
    for (unsigned i = 0; i < ARRAY_LEN(sizes); i++) {
        struct sender a, b;
        struct fair f;

        fair_init(&f, 0);
        sender_init(&a, 30, sizes[i][0], sizes[i][1]);
        sender_init(&b, 10, sizes[i][2], sizes[i][3]);
        fair_enter(&f, &a.node);
        fair_enter(&f, &b.node);
        serve(&f, 64 * MESSAGE);
        assert_share(a.sent, b.sent, 3);
        fair_node_weigh(&a.node, 5); /* from now on */
        a.sent = b.sent = 0;
        serve(&f, 64 * MESSAGE);
        assert_share(a.sent, b.sent, 0.5);
    }
}

static void who_is_alone_gets_all(void **state)
{
    struct sender a;
    struct fair f;

    fair_init(&f, 0);
    assert_null(fair_first(&f));
    sender_init(&a, 1, MESSAGE, MESSAGE);
    fair_enter(&f, &a.node);
    fair_enter(&f, &a.node); /* nothing */
    serve(&f, 1000 * MESSAGE);
    assert_int_equal(a.sent, 1000ull * MESSAGE);
    fair_leave(&f, &a.node);
    fair_leave(&f, &a.node);
    assert_null(fair_first(&f));
}

/* One of the least weight beside many of the largest: it is served once in so many bytes as its
 * share says, and one message of each. */
static void nobody_starves(void **state)
{
    static struct sender others[MANY];
    struct sender weak;
    uint64_t share = 0;
    struct fair f;

    rng = 1;
    fair_init(&f, 0);
    for (unsigned i = 0; i < MANY; i++) {
        sender_init(&others[i], FAIR_WEIGHT_MAX, 1, MESSAGE);
        fair_enter(&f, &others[i].node);
        share += FAIR_WEIGHT_MAX;
    }
    sender_init(&weak, 1, KB, KB);
    fair_enter(&f, &weak.node);
    for (unsigned i = 0; i < 3; i++) {
        weak.sent = 0;
        serve(&f, share * KB + MANY * (uint64_t)MESSAGE);
        assert_true(weak.sent >= KB);
    }
}

/* Sends operations of so many messages, and has nothing to send for a while after each. */
struct worker {
    struct sender s;
    unsigned length, left;
    uint64_t away, back; /* bytes that the link could carry meanwhile; when it comes back */
};

static void come_back(struct fair *f, struct worker *w, uint64_t now)
{
    if (w->s.node.listed || w->back > now)
        return;
    w->left = w->length;
    fair_enter(f, &w->s.node);
}

/* They share a link that is never held back: it idles only while both are away. */
static void work(struct fair *f, struct worker *a, struct worker *b, uint64_t bytes)
{
    for (uint64_t now = 0; now < bytes; now += MESSAGE) {
        struct worker *w;

        come_back(f, a, now);
        come_back(f, b, now);
        if (!fair_first(f))
            continue;
        w = fair_first(f) == &a->s.node ? a : b;
        fair_charge(f, &w->s.node, MESSAGE);
        w->s.sent += MESSAGE;
        if (--w->left)
            continue;
        fair_leave(f, &w->s.node);
        w->back = now + MESSAGE + w->away;
    }
}

static double ratio_with_pauses(size_t keep, uint64_t away)
{
    struct worker a = {.length = 64, .away = away}, b = {.length = 64, .away = away};
    struct fair f;

    fair_init(&f, keep);
    sender_init(&a.s, 30, MESSAGE, MESSAGE);
    sender_init(&b.s, 10, MESSAGE, MESSAGE);
    work(&f, &a, &b, 10000ull * MESSAGE);
    return (double)a.s.sent / (double)b.s.sent;
}

/* Operations of 16 MB, and pauses in which the other could send up to 2 MB: the weights hold. */
static void short_pauses_cost_no_share(void **state)
{
    double without = ratio_with_pauses(0, 8 * MESSAGE);

    if (without > 2.7)
        fail_msg("%g without: this test tells nothing", without);
    for (unsigned away = 0; away <= 8; away++) {
        double ratio = ratio_with_pauses(8 * MESSAGE, away * MESSAGE);

        if (ratio < 2.7 || ratio > 3.3)
            fail_msg("%g with pauses of %u messages", ratio, away);
    }
}

/* Whenever it comes and goes: beside who always sends, nobody gets more in any time than the half
 * and what it may have missed. */
static void no_pattern_of_pauses_gains(void **state)
{
    enum { KEEP = 8 * MESSAGE };

    for (rng = 1; rng < 200; rng += 3) {
        int64_t ahead = 0, least = 0, gained = 0; /* of the others, in bytes */
        uint64_t seed = rng, often = 1 + rnd() % 24;
        struct sender busy, tricky;
        struct fair f;

        fair_init(&f, KEEP);
        sender_init(&busy, 10, 1, MESSAGE);
        sender_init(&tricky, 10, 1, seed % 2 ? MESSAGE : KB);
        fair_enter(&f, &busy.node);
        for (unsigned i = 0; i < 20000; i++) {
            if (rnd() % often == 0)
                (tricky.node.listed ? fair_leave : fair_enter)(&f, &tricky.node);
            serve(&f, 1);
            ahead = (int64_t)(tricky.sent - busy.sent);
            least = MIN(least, ahead);
            gained = MAX(gained, ahead - least);
        }
        if (gained > KEEP + 2 * MESSAGE)
            fail_msg("seed %llu: %lld bytes", (unsigned long long)seed, (long long)gained);
        rng = seed;
    }
}

/* Who was away for longer, or has just come, has missed nothing: the others go on at once. */
static void long_pauses_save_nothing_up(void **state)
{
    struct sender busy, back;
    struct fair f;

    fair_init(&f, 8 * MESSAGE);
    sender_init(&busy, 10, MESSAGE, MESSAGE);
    fair_enter(&f, &busy.node);
    serve(&f, 100 * MESSAGE);
    sender_init(&back, 10, MESSAGE, MESSAGE);
    for (unsigned i = 0; i < 2; i++) {
        fair_enter(&f, &back.node);
        back.sent = busy.sent = 0;
        serve(&f, 4 * MESSAGE);
        assert_int_equal(back.sent, busy.sent);
        fair_leave(&f, &back.node);
        serve(&f, 12 * MESSAGE);
    }
    fair_enter(&f, &back.node); /* in step with the others */
    serve(&f, 2 * MESSAGE);
    fair_leave(&f, &back.node);
    serve(&f, 6 * MESSAGE);
    fair_enter(&f, &back.node);
    back.sent = busy.sent = 0;
    serve(&f, 5 * MESSAGE);
    assert_int_equal(back.sent, 5 * MESSAGE); /* away for no longer: what it missed */
}

/* Who comes back after a pause waits for at most one message of each of the others, and has saved
 * nothing up. */
static void pause_saves_nothing_up(void **state)
{
    struct sender busy[3], back;
    struct fair f;

    fair_init(&f, 0);
    for (unsigned i = 0; i < 3; i++) {
        sender_init(&busy[i], 10, MESSAGE, MESSAGE);
        fair_enter(&f, &busy[i].node);
    }
    sender_init(&back, 10, MESSAGE, MESSAGE);
    for (unsigned round = 0; round < 5; round++) {
        serve(&f, 1000 * MESSAGE);
        for (unsigned i = 0; i < 3; i++)
            busy[i].sent = 0;
        back.sent = 0;
        fair_enter(&f, &back.node);
        serve(&f, 4 * MESSAGE);
        assert_int_equal(back.sent, MESSAGE);
        serve(&f, 400 * MESSAGE);
        assert_share(back.sent, busy[0].sent, 1);
        fair_leave(&f, &back.node);
    }
}

/* A user's groups have a queue of their own: many of them are together one user. */
static void many_groups_are_one_user(void **state)
{
    static struct sender groups[MANY];
    struct sender many, one;
    struct fair users, inside;

    fair_init(&users, 0);
    fair_init(&inside, 0);
    sender_init(&many, 10, MESSAGE, MESSAGE);
    sender_init(&one, 10, MESSAGE, MESSAGE);
    fair_enter(&users, &many.node);
    fair_enter(&users, &one.node);
    for (unsigned i = 0; i < MANY; i++) {
        sender_init(&groups[i], 10, i % 2 ? MESSAGE : 100, i % 2 ? MESSAGE : 100);
        fair_enter(&inside, &groups[i].node);
    }
    for (unsigned i = 0; i < 40000; i++) {
        struct sender *s = container_of(fair_first(&users), struct sender, node);
        size_t len = MESSAGE;

        if (s == &many) {
            struct sender *g = container_of(fair_first(&inside), struct sender, node);

            len = next_size(g);
            fair_charge(&inside, &g->node, len);
            g->sent += len;
        }
        fair_charge(&users, &s->node, len);
        s->sent += len;
    }
    assert_share(many.sent, one.sent, 1);
    for (unsigned i = 1; i < MANY; i++) /* and they are all alike */
        assert_true(groups[i].sent <= groups[0].sent + 2 * MESSAGE &&
                    groups[0].sent <= groups[i].sent + 2 * MESSAGE);
}

/* Little beside much stays modest however often it comes; who floods with little does not. */
static void modest_is_who_keeps_to_its_share(void **state)
{
    struct sender bulk, small, flood;
    uint64_t ahead = 0;
    struct fair f;

    fair_init(&f, 0);
    sender_init(&bulk, 10, MESSAGE, MESSAGE);
    sender_init(&small, 10, 300, 300);
    sender_init(&flood, 10, 300, 300);
    fair_enter(&f, &bulk.node);
    for (unsigned i = 0; i < 1000; i++) {
        assert_true(fair_modest(&f, &small.node, 64 * KB));
        fair_charge(&f, &small.node, 300);
        if (i % 10 == 0)
            serve(&f, MESSAGE);
    }
    assert_false(fair_modest(&f, &bulk.node, 64 * KB));
    while (fair_modest(&f, &flood.node, 64 * KB)) {
        fair_charge(&f, &flood.node, 300);
        ahead += 300;
        assert_true(ahead <= MESSAGE + 65 * KB); /* what the other is ahead, and so much */
    }
    serve(&f, 2 * MESSAGE);
    assert_true(fair_modest(&f, &flood.node, 64 * KB)); /* the others have caught up */
}

/* Going ahead of the queue does not put back those who wait in it. */
static void overtaking_does_not_move_the_queue(void **state)
{
    struct sender a, b, late;
    struct fair f;

    fair_init(&f, 0);
    sender_init(&a, 10, MESSAGE, MESSAGE);
    sender_init(&b, 10, MESSAGE, MESSAGE);
    sender_init(&late, 10, MESSAGE, MESSAGE);
    fair_enter(&f, &a.node);
    fair_enter(&f, &b.node);
    for (unsigned i = 0; i < 4; i++)
        fair_charge(&f, &b.node, MESSAGE); /* far ahead */
    fair_enter(&f, &late.node);
    serve(&f, 8 * MESSAGE);
    assert_int_equal(b.sent, 0);
    assert_int_equal(a.sent, 4 * MESSAGE);
    assert_int_equal(late.sent, 4 * MESSAGE);
}

/* Times wrap. */
static void times_wrap(void **state)
{
    struct sender a, b;
    struct fair f;

    fair_init(&f, 0);
    f.time = UINT64_MAX - 3 * MESSAGE;
    sender_init(&a, FAIR_WEIGHT_MAX, MESSAGE, MESSAGE);
    sender_init(&b, FAIR_WEIGHT_MAX / 4, MESSAGE, MESSAGE);
    a.node.time = b.node.time = f.time - MESSAGE;
    fair_enter(&f, &a.node);
    fair_enter(&f, &b.node);
    serve(&f, 100 * MESSAGE);
    assert_true(f.time < 1u << 30);
    assert_share(a.sent, b.sent, 4);
}

/* Who is new, or was away while they went halfway around, is neither behind all others nor before
 * them, whatever the time is by then. */
static void who_is_new_is_in_step_at_any_time(void **state)
{
    for (unsigned i = 0; i < 64; i++) {
        struct sender busy, fresh;
        struct fair f;

        fair_init(&f, 8 * MESSAGE);
        f.time = (1ull << 58) * i + (1ull << 57);
        sender_init(&busy, 10, MESSAGE, MESSAGE);
        busy.node.time = f.time;
        fair_enter(&f, &busy.node);
        sender_init(&fresh, 10, MESSAGE, MESSAGE);
        assert_int_equal(fresh.node.time, 0);
        fair_enter(&f, &fresh.node);
        serve(&f, 40 * MESSAGE);
        assert_int_equal(fresh.sent, busy.sent);
    }
}

static void weights_are_bounded(void **state)
{
    struct fair_node n;

    fair_node_init(&n, 0);
    assert_int_equal(n.weight, 1);
    fair_node_weigh(&n, UINT32_MAX);
    assert_int_equal(n.weight, FAIR_WEIGHT_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_follow_the_weights_whatever_the_sizes),
        cmocka_unit_test(who_is_alone_gets_all),
        cmocka_unit_test(nobody_starves),
        cmocka_unit_test(pause_saves_nothing_up),
        cmocka_unit_test(short_pauses_cost_no_share),
        cmocka_unit_test(no_pattern_of_pauses_gains),
        cmocka_unit_test(long_pauses_save_nothing_up),
        cmocka_unit_test(many_groups_are_one_user),
        cmocka_unit_test(modest_is_who_keeps_to_its_share),
        cmocka_unit_test(overtaking_does_not_move_the_queue),
        cmocka_unit_test(times_wrap),
        cmocka_unit_test(who_is_new_is_in_step_at_any_time),
        cmocka_unit_test(weights_are_bounded),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

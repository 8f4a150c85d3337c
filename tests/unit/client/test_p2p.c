/* test_p2p.c - messages between ranks on one and several nodes: random programs of sends and
 * receives, polled in random order, compared exactly; and what can go wrong with a message. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "client/lib/p2p/p2p.h"
#include "tests/lib/cluster.h"
#include "tests/lib/cores.h"

enum { MAX_OPS = 400, IDLE_ROUNDS = 100000, TAGS = 3 };

static struct p2p *p2p_of(struct cluster *c, unsigned rank)
{
    struct p2p *p;

    assert_int_equal(p2p_get(c->group[rank]->now, &p), 0);
    pthread_mutex_trylock(&p->lock); /* held by all who call what is tested here */
    return p;
}

/* ---- random programs ------------------------------------------------------------------------- */

struct item {
    struct p2p_op op;
    unsigned rank;
    unsigned nth; /* of the messages with its (source, destination, tag) */
    size_t size;
    bool posted, open; /* open: it is a receive of any size */
};

struct program {
    struct cluster *c;
    struct item item[MAX_OPS];
    unsigned n;
    unsigned mode[CLUSTER_MAX_RANKS]; /* of receives: 1 any source, 2 any tag */
    unsigned sent[CLUSTER_MAX_RANKS][CLUSTER_MAX_RANKS][TAGS];
    size_t longest[CLUSTER_MAX_RANKS]; /* message for each rank */
};

static uint8_t byte_of(unsigned src, unsigned dst, int tag, unsigned nth, size_t i)
{
    return (uint8_t)(src * 31 + dst * 17 + (unsigned)tag * 7 + nth * 3 + i + (i >> 8) * 5);
}

/* Around all limits at which a message takes another way. */
static size_t random_size(struct cluster *c)
{
    static const size_t edges[] = {0,
                                   8,
                                   MAIL_FIRST_LINE,
                                   MAIL_INLINE_MAX,
                                   4096,
                                   32768,
                                   MAIL_EAGER_MAX,
                                   MAIL_CHUNK_NET,
                                   3 * MAIL_CHUNK_NET};
    size_t edge = edges[cluster_rand(c, cluster_rand(c, 4) ? 6 : ARRAY_LEN(edges))];

    switch (cluster_rand(c, 3)) {
    case 0:
        return edge;
    case 1:
        return edge + 1 + cluster_rand(c, 50);
    default:
        return cluster_rand(c, (uint32_t)edge + 1);
    }
}

static void add(struct program *g, unsigned rank, bool send, int peer, int tag, size_t size)
{
    struct item *it = &g->item[g->n++];

    it->rank = rank;
    it->size = size;
    it->op.send = send;
    it->op.peer = peer;
    it->op.tag = tag;
    it->op.deadline_ms = it->op.limit_ms = -1;
}

static void program_make(struct program *g, unsigned messages)
{
    struct cluster *c = g->c;
    struct item swap;

    for (unsigned k = 0; k < c->world; k++)
        g->mode[k] = cluster_rand(c, 4);
    for (unsigned i = 0; i < messages; i++) {
        unsigned src = cluster_rand(c, c->world), dst = cluster_rand(c, c->world);
        int tag = (int)cluster_rand(c, TAGS);
        size_t size = random_size(c);

        add(g, src, true, (int)dst, tag, size);
        add(g, dst, false, g->mode[dst] & 1 ? COMMD_ANY_SOURCE : (int)src,
            g->mode[dst] & 2 ? COMMD_ANY_TAG : tag, 0);
        g->longest[dst] = MAX(g->longest[dst], size);
    }
    for (unsigned i = g->n; i > 1; i--) {
        unsigned k = cluster_rand(c, i);

        swap = g->item[i - 1];
        g->item[i - 1] = g->item[k];
        g->item[k] = swap;
    }
}

static void post(struct program *g, struct item *it)
{
    unsigned *nth;

    it->posted = true;
    it->op.size = it->op.send ? it->size : g->longest[it->rank];
    it->op.buf = malloc(MAX(it->op.size, (size_t)1));
    if (it->op.send) {
        nth = &g->sent[it->rank][it->op.peer][it->op.tag];
        it->nth = (*nth)++;
        for (size_t i = 0; i < it->op.size; i++)
            it->op.buf[i] = byte_of(it->rank, (unsigned)it->op.peer, it->op.tag, it->nth, i);
    }
    p2p_begin(p2p_of(g->c, it->rank), &it->op);
}

/* Posts the next item of @rank, if there is one. Items of a rank are posted in their order. */
static bool post_next(struct program *g, unsigned rank)
{
    for (unsigned i = 0; i < g->n; i++)
        if (g->item[i].rank == rank && !g->item[i].posted) {
            post(g, &g->item[i]);
            return true;
        }
    return false;
}

static bool all_done(const struct program *g)
{
    for (unsigned i = 0; i < g->n; i++)
        if (!g->item[i].posted || g->item[i].op.state != P2P_DONE)
            return false;
    return true;
}

static void program_run(struct program *g)
{
    struct cluster *c = g->c;
    unsigned idle = 0;

    while (idle < IDLE_ROUNDS) {
        unsigned rank = cluster_rand(c, c->world);
        bool moved = cluster_turn(c);

        if (cluster_rand(c, 3) == 0)
            moved |= post_next(g, rank);
        else
            moved |= p2p_poll(p2p_of(c, rank), NULL);
        idle = moved ? 0 : idle + 1;
        if (!moved && all_done(g))
            return;
    }
}

/* The n-th receive that took a message of (source, tag) must have taken the n-th of them. */
static void program_check(struct program *g)
{
    static unsigned got[CLUSTER_MAX_RANKS][CLUSTER_MAX_RANKS][TAGS];

    memset(got, 0, sizeof got);
    for (unsigned i = 0; i < g->n; i++) {
        struct item *it = &g->item[i];
        struct commd_status *st = &it->op.status;
        unsigned nth;

        assert_int_equal(it->op.err.code, 0);
        if (it->op.send)
            continue;
        assert_in_range(st->source, 0, g->c->world - 1);
        assert_in_range(st->tag, 0, TAGS - 1);
        if (it->op.peer >= 0)
            assert_int_equal(st->source, it->op.peer);
        if (it->op.tag >= 0)
            assert_int_equal(st->tag, it->op.tag);
        nth = got[st->source][it->rank][st->tag]++;
        for (size_t b = 0; b < st->bytes; b++)
            if (it->op.buf[b] != byte_of((unsigned)st->source, it->rank, st->tag, nth, b))
                fail_msg("rank %u, message %u of rank %d with tag %d: byte %zu of %zu is wrong",
                         it->rank, nth, st->source, st->tag, b, st->bytes);
        for (unsigned k = 0; k < g->n; k++) {
            struct item *s = &g->item[k];

            if (s->op.send && (int)s->rank == st->source && s->op.peer == (int)it->rank &&
                s->op.tag == st->tag && s->nth == nth)
                assert_int_equal(s->size, st->bytes);
        }
    }
}

static void program_free(struct program *g)
{
    for (unsigned i = 0; i < g->n; i++)
        free(g->item[i].op.buf);
    memset(g, 0, sizeof *g);
}

static struct cluster *random_cluster(uint64_t seed)
{
    static const struct {
        unsigned world, nnodes;
        uint16_t rank_node[8];
    } shapes[] = {
        {2, 1, {0, 0}},       {2, 2, {0, 1}},    {5, 1, {0}},
        {4, 2, {0, 1, 0, 1}}, {3, 3, {2, 0, 1}}, {8, 3, {0, 1, 1, 2, 0, 2, 1, 0}},
        {1, 1, {0}},
    };
    unsigned k = (unsigned)(seed % ARRAY_LEN(shapes));

    return cluster_new(shapes[k].world, shapes[k].nnodes, shapes[k].rank_node, seed + 1);
}

static void random_programs_deliver_exactly(void **state)
{
    static struct program g;
    const char *one = getenv("P2P_SEED");
    uint64_t from = one ? strtoull(one, NULL, 0) : 0, to = one ? from + 1 : 42;

    for (uint64_t seed = from; seed < to; seed++) {
        g.c = random_cluster(seed);
        for (unsigned k = 0; seed % 2 && k < g.c->world; k++)
            p2p_of(g.c, 0)->peers[k].way.around = UINT32_MAX; /* as if its stores were slow */
        program_make(&g, 20 + cluster_rand(g.c, MAX_OPS / 2 - 20));
        program_run(&g);
        if (!all_done(&g))
            fail_msg("seed %llu: the program does not end; %s", (unsigned long long)seed,
                     g.c->last_error);
        program_check(&g);
        assert_int_equal(g.c->board_errors + g.c->peers_down, 0);
        cluster_free(g.c);
        program_free(&g);
    }
}

/* ---- single messages, in a cluster that the test turns --------------------------------------- */

static struct p2p_op message(bool send, int peer, int tag, void *buf, size_t size)
{
    return (struct p2p_op){.send = send,
                           .peer = peer,
                           .tag = tag,
                           .buf = buf,
                           .size = size,
                           .limit_ms = -1,
                           .deadline_ms = -1};
}

static void begin(struct cluster *c, unsigned rank, struct p2p_op *op)
{
    p2p_begin(p2p_of(c, rank), op);
}

/* Everybody has turns until nothing moves. */
static void settle(struct cluster *c)
{
    for (unsigned idle = 0; idle < 200;) {
        bool moved = false;

        for (unsigned n = 0; n < c->nnodes; n++)
            moved |= cluster_turn(c);
        for (unsigned k = 0; k < c->world; k++)
            moved |= p2p_poll(p2p_of(c, k), NULL);
        idle = moved ? 0 : idle + 1;
    }
}

/* Looks for reasons to give up, as often as waiting would, with turns in between. */
static void despair(struct cluster *c, unsigned rank, struct p2p_op *op)
{
    for (unsigned i = 0; i < 3 && op->state != P2P_DONE; i++) {
        settle(c);
        p2p_hopeless(p2p_of(c, rank), op, false);
    }
    settle(c);
}

static const uint16_t here[] = {0, 0, 0}, apart[] = {0, 1, 1};

static struct cluster *three(bool one_node)
{
    return cluster_new(3, one_node ? 1 : 2, one_node ? here : apart, 7);
}

static void mark_gone(struct cluster *c, unsigned rank, unsigned cause)
{
    for (unsigned n = 0; n < c->nnodes; n++)
        board_mark_gone(c->node[n].ctl, rank, 0, cause, 4711);
}

/* Sends of all sizes that were complete before the sender went are received; what was not
 * complete is an error that names it. */
static void messages_survive_their_sender(void **state)
{
    static const size_t sizes[] = {0, 20, 80, 5000, 60000};
    static uint8_t from[60000], to[60000];

    for (unsigned i = 0; i < 4 * ARRAY_LEN(sizes); i++) {
        struct cluster *c = three(i & 1);
        size_t size = sizes[i / 4];
        struct p2p_op send = message(true, 1, 5, from, size);
        struct p2p_op first = message(false, 0, 5, to, sizeof to);
        struct p2p_op second = message(false, 0, 5, to, sizeof to);

        memset(from, 'a' + (int)i, sizeof from);
        begin(c, 0, &send);
        assert_int_equal(send.state, P2P_DONE);
        mark_gone(c, 0, i & 2 ? CAUSE_LEFT : CAUSE_RANK_LOST);
        /* the news is faster than the message: the engines have not had a turn yet */
        begin(c, 1, &first);
        p2p_hopeless(p2p_of(c, 1), &first, false);
        if (c->nnodes > 1) { /* and so is the question: the sender's engine has not looked yet */
            engine_poll(c->node[1].engine);
            c->node[0].fabric->ops->progress(c->node[0].fabric);
            c->node[1].fabric->ops->progress(c->node[1].fabric);
            p2p_hopeless(p2p_of(c, 1), &first, false);
        }
        despair(c, 1, &first);
        assert_int_equal(first.state, P2P_DONE);
        assert_int_equal(first.err.code, 0);
        assert_int_equal(first.status.bytes, size);
        assert_memory_equal(from, to, size);
        begin(c, 1, &second);
        despair(c, 1, &second);
        assert_int_equal(second.state, P2P_DONE);
        assert_int_equal(second.err.code, COMMD_E_RANK_LOST);
        assert_int_equal(second.err.rank, 0);
        assert_non_null(strstr(second.err.message, i & 2 ? "left the group" : "died"));
        assert_int_equal(second.err.left, i & 2 ? 1 : 0);
        cluster_free(c);
    }
}

/* All nodes but the receiver's are done with the group when it asks. */
static void probes_are_answered_after_the_group_was_closed(void **state)
{
    struct cluster *c = three(false);
    struct p2p_op send, recv;
    char a[] = "last words", b[16] = "";

    send = message(true, 1, 1, a, sizeof a);
    begin(c, 0, &send);
    mark_gone(c, 0, CAUSE_LEFT);
    engine_board_del(c->node[0].engine, 0x77, false);
    settle(c);
    for (unsigned i = 0; i < 2; i++) {
        recv = message(false, 0, 1, b, sizeof b);
        begin(c, 1, &recv);
        despair(c, 1, &recv);
        assert_int_equal(recv.state, P2P_DONE);
        assert_int_equal(recv.err.code, i ? COMMD_E_RANK_LOST : 0);
        assert_string_equal(b, "last words");
    }
    cluster_free(c);
}

/* All members of a node are dead, and its engine is told so before it has looked at what they have
 * sent: more than it would have on its way at a time. */
static void messages_outlive_the_board_they_were_sent_from(void **state)
{
    enum { SENDERS = 5, RECEIVERS = 4, EACH = MAIL_RING / 2 }; /* a ring full of each: 320 */
    static const uint16_t nodes[SENDERS + RECEIVERS] = {0, 0, 0, 0, 0, 1, 1, 1, 1};
    static uint8_t from[30000], to[30000];

    for (unsigned lost = 0; lost < 2; lost++) {
        struct cluster *c = cluster_new(SENDERS + RECEIVERS, 2, nodes, 7 + lost);

        fabric_loop_set_rndv(c->node[0].fabric, 0); /* all are on their way until they are there */
        for (unsigned k = 0; k < SENDERS * RECEIVERS * EACH; k++) {
            size_t size = k % EACH ? 8 : sizeof from; /* the first with its payload in a slot */
            unsigned pair = k / EACH, src = pair % SENDERS, dst = SENDERS + pair / SENDERS;
            struct p2p_op send = message(true, (int)dst, (int)(k % EACH), from, size);

            memset(from, (int)k, size);
            begin(c, src, &send);
            assert_int_equal(send.state, P2P_DONE);
        }
        for (unsigned k = 0; k < SENDERS; k++)
            mark_gone(c, k, lost ? CAUSE_RANK_LOST : CAUSE_LEFT);
        engine_board_del(c->node[0].engine, 0x77, lost);
        for (unsigned k = 0; k < SENDERS * RECEIVERS * (EACH + 1); k++) {
            unsigned pair = k / (EACH + 1), nth = k % (EACH + 1), src = pair % SENDERS;
            unsigned dst = SENDERS + pair / SENDERS;
            size_t size = nth ? 8 : sizeof from;
            struct p2p_op recv = message(false, (int)src, COMMD_ANY_TAG, to, sizeof to);

            begin(c, dst, &recv);
            despair(c, dst, &recv);
            assert_int_equal(recv.state, P2P_DONE);
            assert_int_equal(recv.err.code, nth < EACH ? 0 : COMMD_E_RANK_LOST);
            if (nth == EACH)
                continue;
            memset(from, (int)(pair * EACH + nth), size);
            assert_int_equal(recv.status.tag, nth);
            assert_int_equal(recv.status.bytes, size);
            assert_memory_equal(to, from, size);
        }
        assert_int_equal(c->board_errors + c->peers_down, 0);
        cluster_free(c);
    }
}

static void a_long_message_of_a_dead_sender_is_an_error(void **state)
{
    static uint8_t from[4 << 20], to[4 << 20]; /* more than the slots hold */

    for (unsigned i = 0; i < 8; i++) {
        struct cluster *c = three(i & 1);
        struct p2p_op send = message(true, 1, 0, from, sizeof from);
        struct p2p_op recv = message(false, i & 2 ? COMMD_ANY_SOURCE : 0, 0, to, sizeof to);

        begin(c, 0, &send);
        if (i & 4) { /* it is in the middle of it */
            begin(c, 1, &recv);
            for (unsigned k = 0; k < 50; k++) {
                cluster_turn(c);
                p2p_poll(p2p_of(c, 1), NULL);
                if (!send.moved)
                    p2p_poll(p2p_of(c, 0), NULL);
            }
        }
        assert_int_equal(send.moved > 0, i >= 4);
        assert_int_not_equal(send.state, P2P_DONE);
        mark_gone(c, 0, CAUSE_RANK_LOST);
        if (!(i & 4))
            begin(c, 1, &recv);
        for (unsigned k = 0; k < 400 && recv.state != P2P_DONE; k++) {
            cluster_turn(c);
            p2p_poll(p2p_of(c, 1), NULL);
            p2p_hopeless(p2p_of(c, 1), &recv, false);
        }
        assert_int_equal(recv.state, P2P_DONE);
        assert_int_equal(recv.err.code, COMMD_E_RANK_LOST);
        assert_int_equal(recv.err.rank, 0);
        cluster_free(c);
    }
}

/* Sends to who is gone fail; others of the group go on. */
static void a_lost_rank_concerns_only_its_partners(void **state)
{
    static uint8_t big[200000], to[200000];

    for (unsigned i = 0; i < 2; i++) {
        struct cluster *c = three(i & 1);
        struct p2p_op early = message(true, 2, 0, big, sizeof big);
        struct p2p_op late = message(true, 2, 0, big, 8);
        struct p2p_op any = message(false, COMMD_ANY_SOURCE, 0, to, sizeof to);
        struct p2p_op send = message(true, 1, 0, big, sizeof big);
        struct p2p_op recv = message(false, 0, 0, to, sizeof to);

        begin(c, 0, &early);
        settle(c);
        begin(c, 1, &any);
        mark_gone(c, 2, CAUSE_RANK_LOST);
        begin(c, 0, &late);
        despair(c, 0, &early);
        despair(c, 1, &any);
        assert_int_equal(early.err.code, COMMD_E_RANK_LOST);
        assert_int_equal(late.err.code, COMMD_E_RANK_LOST);
        assert_int_equal(late.err.rank, 2);
        assert_int_equal(any.err.code, COMMD_E_RANK_LOST);
        assert_int_equal(any.err.rank, 2);
        begin(c, 0, &send);
        begin(c, 1, &recv);
        settle(c);
        assert_int_equal(send.state, P2P_DONE);
        assert_int_equal(recv.state, P2P_DONE);
        assert_int_equal(send.err.code + recv.err.code, 0);
        assert_memory_equal(big, to, sizeof big);
        cluster_free(c);
    }
}

/* From any source: who left is not missed while others are there. */
static void any_source_waits_for_those_who_stay(void **state)
{
    for (unsigned i = 0; i < 2; i++) {
        struct cluster *c = three(i & 1);
        char a[] = "x", b[2] = "";
        struct p2p_op any = message(false, COMMD_ANY_SOURCE, COMMD_ANY_TAG, b, sizeof b);
        struct p2p_op more = message(false, COMMD_ANY_SOURCE, COMMD_ANY_TAG, b, sizeof b);
        struct p2p_op send = message(true, 1, 3, a, sizeof a);

        mark_gone(c, 2, CAUSE_LEFT);
        begin(c, 1, &any);
        despair(c, 1, &any);
        assert_int_equal(any.state, P2P_POSTED);
        begin(c, 0, &send);
        settle(c);
        assert_int_equal(any.state, P2P_DONE);
        assert_int_equal(any.status.source, 0);
        assert_int_equal(any.status.tag, 3);
        mark_gone(c, 0, CAUSE_LEFT);
        begin(c, 1, &more);
        despair(c, 1, &more);
        assert_int_equal(more.state, P2P_DONE);
        assert_int_equal(more.err.code, COMMD_E_RANK_LOST);
        cluster_free(c);
    }
}

/* The message is lost, its sender is released, the next one arrives. */
static void a_message_longer_than_the_buffer_is_refused(void **state)
{
    static const size_t sizes[] = {30, 9000, 70000, 1 << 20};
    static uint8_t from[1 << 20], to[64];

    for (unsigned i = 0; i < 2 * ARRAY_LEN(sizes); i++) {
        struct cluster *c = three(i & 1);
        size_t size = sizes[i / 2];
        struct p2p_op send = message(true, 1, 9, from, size), next = message(true, 1, 9, "ok", 3);
        struct p2p_op recv = message(false, 0, 9, to, 16), good = message(false, 0, 9, to, 16);
        char sent[32];

        memset(to, '.', sizeof to);
        begin(c, 0, &send);
        begin(c, 0, &next);
        begin(c, 1, &recv);
        begin(c, 1, &good);
        settle(c);
        assert_int_equal(send.state, P2P_DONE);
        assert_int_equal(send.err.code, 0);
        assert_int_equal(recv.state, P2P_DONE);
        assert_int_equal(recv.err.code, COMMD_E_MISMATCH);
        assert_int_equal(recv.err.rank, 0);
        snprintf(sent, sizeof sent, "%zu bytes with tag 9", size);
        assert_non_null(strstr(recv.err.message, sent));
        assert_int_equal(to[16], '.');
        assert_int_equal(good.state, P2P_DONE);
        assert_int_equal(good.err.code, 0);
        assert_string_equal((char *)to, "ok");
        cluster_free(c);
    }
}

/* Who cannot do its part of a message says so in its place: the other one is told by name, unless
 * it was done before, and the next message arrives. */
static void who_cannot_do_its_part_is_named(void **state)
{
    static const size_t sizes[] = {0, 30, 9000, 70000, 1 << 20};
    static uint8_t from[1 << 20], to[1 << 20];

    for (unsigned i = 0; i < 24 * ARRAY_LEN(sizes); i++) {
        struct cluster *c = three(i & 1);
        bool early = i & 2, any = i & 4;
        unsigned who = i / 8 % 3 + 1; /* 1: the sender, 2: the receiver, 3: both */
        size_t size = sizes[i / 24];
        struct p2p_op send = message(true, 1, 9, from, size), next = message(true, 1, 9, "ok", 3);
        struct p2p_op recv = message(false, any ? COMMD_ANY_SOURCE : 0, 9, to, sizeof to), good;

        send.declined = who & 1 ? COMMD_E_NOMEM : 0;
        recv.declined = who & 2 ? COMMD_E_GPU_LOST : 0;
        good = message(false, 0, 9, to, 16);
        memset(to, '.', 16);
        if (early)
            begin(c, 1, &recv);
        settle(c);
        begin(c, 0, &send);
        begin(c, 0, &next);
        settle(c);
        if (!early)
            begin(c, 1, &recv);
        begin(c, 1, &good);
        settle(c);
        assert_int_equal(send.state, P2P_DONE);
        assert_int_equal(recv.state, P2P_DONE);
        assert_int_equal(recv.err.code, send.declined);
        assert_int_equal(send.err.code, who == 2 && size > MAIL_EAGER_MAX ? recv.declined : 0);
        if (recv.err.code) {
            assert_int_equal(recv.err.rank, 0);
            assert_non_null(strstr(recv.err.message, "rank 0 (node"));
            assert_non_null(strstr(recv.err.message, "cannot send it: it has no more host memory"));
        }
        if (send.err.code) {
            assert_int_equal(send.err.rank, 1);
            assert_non_null(strstr(send.err.message, "cannot receive it"));
        }
        assert_int_equal(good.state, P2P_DONE);
        assert_int_equal(good.err.code, 0);
        assert_string_equal((char *)to, "ok");
        for (unsigned k = 0; k < 3; k++)
            assert_true(TAILQ_EMPTY(&p2p_of(c, k)->ops));
        cluster_free(c);
    }
}

/* More short messages than there is room for: the rest waits, and nothing is lost or turned round.
 */
static void messages_that_nobody_takes_wait(void **state)
{
    enum { MANY = 200 };
    static struct p2p_op send[MANY];
    static uint32_t value[MANY], got;
    static uint8_t middle[MANY][3000], in[3000];

    for (unsigned i = 0; i < 4; i++) {
        struct cluster *c = three(i & 1);
        size_t size = i & 2 ? sizeof middle[0] : sizeof value[0];
        unsigned done = 0;

        for (unsigned k = 0; k < MANY; k++) {
            value[k] = k;
            memset(middle[k], (int)k, sizeof middle[k]);
            send[k] = message(true, 1, 0, i & 2 ? middle[k] : (void *)&value[k], size);
            begin(c, 0, &send[k]);
            done += send[k].state == P2P_DONE;
        }
        assert_in_range(done, MAIL_EAGER_NET / 2, MANY - 1);
        for (unsigned k = 0; k < MANY; k++) {
            struct p2p_op recv = message(false, 0, 0, i & 2 ? in : (void *)&got, size);

            begin(c, 1, &recv);
            settle(c);
            assert_int_equal(recv.state, P2P_DONE);
            if (i & 2)
                assert_memory_equal(in, middle[k], sizeof in);
            else
                assert_int_equal(got, k);
        }
        for (unsigned k = 0; k < MANY; k++)
            assert_int_equal(send[k].state, P2P_DONE);
        cluster_free(c);
    }
}

/* Unmatched messages fill all their slots; a long one with another tag still comes through. */
static void unmatched_messages_do_not_stop_a_stream(void **state)
{
    static uint8_t from[2 << 20], to[2 << 20];

    for (unsigned i = 0; i < 2; i++) {
        struct cluster *c = three(i & 1);
        struct p2p_op pile[2 * MAIL_OUT_SLOTS];
        struct p2p_op send = message(true, 1, 1, from, sizeof from);
        struct p2p_op recv = message(false, 0, 1, to, sizeof to);

        memset(from, 0x5a, sizeof from);
        for (unsigned k = 0; k < ARRAY_LEN(pile); k++) {
            pile[k] = message(true, 1, 0, from, 40000);
            begin(c, 0, &pile[k]);
        }
        begin(c, 0, &send);
        begin(c, 1, &recv);
        settle(c);
        assert_int_equal(send.state, P2P_DONE);
        assert_int_equal(recv.state, P2P_DONE);
        assert_memory_equal(from, to, sizeof to);
        cluster_free(c);
    }
}

/* What rank 0 says of a payload for rank 1 that it is writing. */
static void announce(struct cluster *c, uint32_t id, size_t len)
{
    struct mail_rec rec = {
        .kind = MAIL_EAGER, .dst = 1, .slot = 5, .id = id, .len = len, .off = 4096};
    struct p2p_peer *peer = &p2p_of(c, 0)->peers[1];

    mail_put(&peer->tx, &rec);
    mail_flag(peer->tx.word, peer->tx.bit);
}

/* A receive takes what is there of a message that is still being written, whatever the sender says
 * of how much that is, and gives up if the sender dies in the middle. */
static void a_payload_is_taken_as_it_is_written(void **state)
{
    static const struct {
        uint32_t id, filled;
        size_t taken;
    } rows[] = {{7, 0, MAIL_PIECE},     {7, 20000, 20000},           {6, 20000, MAIL_PIECE},
                {8, 30000, MAIL_PIECE}, {7, MAIL_PIECE, MAIL_PIECE}, {7, 100, MAIL_PIECE}};
    static uint8_t to[30000];

    for (unsigned i = 0; i < 2 * ARRAY_LEN(rows); i++) {
        struct cluster *c = three(true);
        struct p2p_op recv = message(false, i & 1 ? COMMD_ANY_SOURCE : 0, 0, to, sizeof to);
        struct mail *m = &c->group[0]->now->board.mail;
        struct mail_box *box = mail_box(m, 0);
        uint8_t *slot = mail_out(m, 0, 5) + 4096;

        memset(to, 0, sizeof to);
        memset(slot, 0x11, sizeof to);
        mail_fill_to(box, 5, rows[i / 2].id, rows[i / 2].filled);
        announce(c, 7, sizeof to);
        begin(c, 1, &recv);
        settle(c);
        assert_int_equal(recv.state, P2P_PULLING);
        assert_int_equal(recv.moved, rows[i / 2].taken);
        assert_int_equal(to[recv.moved - 1], 0x11);
        assert_int_equal(to[recv.moved], 0);
        assert_int_equal(atomic_load(&box->out[5]), 0);
        if (i & 1) {
            mail_fill_to(box, 5, 7, UINT32_MAX);
            settle(c);
            assert_int_equal(recv.err.code, 0);
            assert_memory_equal(to, slot, sizeof to);
            assert_int_equal(atomic_load(&box->out[5]), 7);
        } else {
            mark_gone(c, 0, CAUSE_RANK_LOST);
            despair(c, 1, &recv);
            assert_int_equal(recv.err.code, COMMD_E_RANK_LOST);
        }
        assert_int_equal(recv.state, P2P_DONE);
        cluster_free(c);
    }
}

/* The sender ends its message and goes, all after the receiver's last look and before it looks who
 * is gone: what was sent is received. In every way to find out, and with every way to send. */
static void who_sends_and_leaves_between_two_looks_is_heard(void **state)
{
    enum { RECORD, SLOT, STREAM, WAYS };
    enum { LEFT, DIED, LEFT_ANY, DIED_ANY, LEFT_WORK, BROKEN, CASES };
    static uint8_t from[MAIL_EAGER_MAX + 5000], to[sizeof from];

    memset(from, 0x11, sizeof from);
    for (unsigned i = 0; i < WAYS * CASES; i++) {
        unsigned way = i % WAYS, how = i / WAYS;
        size_t size = way == RECORD ? 30 : way == SLOT ? 30000 : sizeof from;
        struct cluster *c = three(true);
        struct p2p *me = p2p_of(c, 1);
        struct p2p_op send = message(true, 1, 0, from, size);
        struct p2p_op recv = message(
            false, how == LEFT_ANY || how == DIED_ANY ? COMMD_ANY_SOURCE : 0, 0, to, sizeof to);
        struct mail_box *box = mail_box(&c->group[0]->now->board.mail, 0);

        memset(to, 0, sizeof to);
        begin(c, 1, &recv);
        if (way == SLOT) { /* announced, and not all of it written */
            memset(mail_out(&c->group[0]->now->board.mail, 0, 5) + 4096, 0x11, size);
            announce(c, 7, (uint32_t)size);
        } else if (way == STREAM) {
            begin(c, 0, &send);
        }
        p2p_poll(me, &recv); /* the last look */
        assert_int_not_equal(recv.state, P2P_DONE);
        if (way == SLOT) {
            mail_fill_to(box, 5, 7, (uint32_t)size);
        } else {
            if (way == RECORD)
                begin(c, 0, &send);
            p2p_poll(p2p_of(c, 0), &send);
            assert_int_equal(send.state, P2P_DONE);
        }
        if (how == BROKEN)
            board_mark_broken(c->node[0].ctl, CAUSE_ABORTED, 0, 0, "node0", "enough");
        else
            mark_gone(c, 0, how == DIED || how == DIED_ANY ? CAUSE_RANK_LOST : CAUSE_LEFT);
        if (how == LEFT_WORK)
            p2p_look_after(me, NULL);
        else
            p2p_hopeless(me, &recv, false);
        assert_int_equal(recv.state, P2P_DONE);
        assert_int_equal(recv.err.code, 0);
        assert_int_equal(recv.status.bytes, size);
        assert_memory_equal(to, from, size);
        cluster_free(c);
    }
}

/* The receiver says that the message is too long for it, and leaves: the send is over, not lost. */
static void who_declines_and_leaves_between_two_looks_is_heard(void **state)
{
    static uint8_t from[MAIL_EAGER_MAX + 1], to[16];
    struct cluster *c = three(true);
    struct p2p_op send = message(true, 1, 0, from, sizeof from);
    struct p2p_op recv = message(false, 0, 0, to, sizeof to);

    begin(c, 0, &send);
    p2p_poll(p2p_of(c, 0), &send); /* the last look */
    begin(c, 1, &recv);
    p2p_poll(p2p_of(c, 1), &recv);
    assert_int_equal(recv.err.code, COMMD_E_MISMATCH);
    mark_gone(c, 1, CAUSE_LEFT);
    assert_int_equal(send.state, P2P_OFFERED);
    p2p_hopeless(p2p_of(c, 0), &send, false);
    assert_int_equal(send.state, P2P_DONE);
    assert_int_equal(send.err.code, 0);
    cluster_free(c);
}

/* One slot after the other, and one that is still in use is left out. */
static void slots_are_used_in_turn(void **state)
{
    struct cluster *c = three(true);
    struct p2p *p = p2p_of(c, 0);
    static uint8_t from[100], to[100];
    struct p2p_op lie = message(true, 2, 0, from, sizeof from); /* nobody receives it */

    begin(c, 0, &lie);
    for (unsigned i = 0; i < 3 * MAIL_OUT_SLOTS; i++) {
        struct p2p_op send = message(true, 1, 0, from, sizeof from);
        struct p2p_op recv = message(false, 0, 0, to, sizeof to);
        unsigned expected = 1 + i % (MAIL_OUT_SLOTS - 1);

        begin(c, 0, &send);
        assert_int_equal(send.state, P2P_DONE);
        assert_int_equal(p->next_slot, (expected + 1) % MAIL_OUT_SLOTS);
        begin(c, 1, &recv);
        settle(c);
        assert_int_equal(recv.state, P2P_DONE);
    }
    assert_true(p->slot[0].busy);
    cluster_free(c);
}

/* A message goes to the receive that was posted first of those that accept it. */
static void receives_are_served_in_order(void **state)
{
    struct cluster *c = three(true);
    char b[4][2] = {"", "", "", ""};
    struct p2p_op recv[] = {
        message(false, COMMD_ANY_SOURCE, 1, b[0], 2), message(false, 0, COMMD_ANY_TAG, b[1], 2),
        message(false, COMMD_ANY_SOURCE, COMMD_ANY_TAG, b[2], 2), message(false, 0, 2, b[3], 2)};
    struct p2p_op send[] = {message(true, 1, 2, "a", 2), message(true, 1, 1, "b", 2),
                            message(true, 1, 2, "c", 2), message(true, 1, 2, "d", 2)};

    for (unsigned i = 0; i < ARRAY_LEN(recv); i++)
        begin(c, 1, &recv[i]);
    for (unsigned i = 0; i < ARRAY_LEN(send); i++)
        begin(c, 0, &send[i]);
    settle(c);
    for (unsigned i = 0; i < ARRAY_LEN(recv); i++)
        assert_int_equal(recv[i].state, P2P_DONE);
    assert_string_equal(b[0], "b");
    assert_string_equal(b[1], "a");
    assert_string_equal(b[2], "c");
    assert_string_equal(b[3], "d");
    /* and of those that lie there, the oldest is taken */
    for (unsigned i = 0; i < ARRAY_LEN(send); i++)
        begin(c, 0, &send[i]);
    settle(c);
    begin(c, 1, &recv[2]);
    assert_string_equal(b[2], "a");
    begin(c, 1, &recv[0]);
    assert_string_equal(b[0], "b");
    begin(c, 1, &recv[3]);
    assert_string_equal(b[3], "c");
    cluster_free(c);
}

static void self_messages(void **state)
{
    static uint8_t from[100000], to[100000];
    struct cluster *c = three(true);
    struct p2p_op send = message(true, 0, 1, from, 100), big = message(true, 0, 2, from, 100000);
    struct p2p_op recv = message(false, 0, 2, to, 100000), any = message(false, -1, -1, to, 100);

    memset(from, 7, sizeof from);
    begin(c, 0, &send);
    assert_int_equal(send.state, P2P_DONE);
    begin(c, 0, &big);
    assert_int_equal(big.state, P2P_OFFERED);
    begin(c, 0, &recv);
    assert_int_equal(big.state, P2P_DONE);
    assert_int_equal(recv.state, P2P_DONE);
    assert_memory_equal(from, to, sizeof to);
    begin(c, 0, &any);
    assert_int_equal(any.state, P2P_DONE);
    assert_int_equal(any.status.bytes, 100);
    begin(c, 0, &big);
    recv = message(false, 0, 2, NULL, 100000);
    recv.declined = COMMD_E_NOMEM;
    begin(c, 0, &recv);
    assert_int_equal(big.err.code, COMMD_E_NOMEM);
    big.declined = COMMD_E_GPU_LOST;
    begin(c, 0, &big);
    assert_int_equal(big.state, P2P_DONE);
    recv = message(false, 0, 2, to, 100000);
    begin(c, 0, &recv);
    assert_int_equal(recv.err.code, COMMD_E_GPU_LOST);
    big.declined = 0;
    begin(c, 0, &big); /* given up: nobody may find it later */
    p2p_interrupt(p2p_of(c, 0), &big);
    memset(&big, 0xff, sizeof big);
    recv = message(false, 0, 2, to, 100000);
    begin(c, 0, &recv);
    assert_int_equal(recv.state, P2P_POSTED);
    cluster_free(c);
}

static void a_broken_group_fails_its_messages(void **state)
{
    struct cluster *c = three(true);
    char b[8];
    struct p2p_op recv = message(false, 1, 0, b, sizeof b), late = message(true, 1, 0, b, 8);

    begin(c, 0, &recv);
    board_mark_broken(c->node[0].ctl, CAUSE_ABORTED, 2, 99, "node0", "rank 2 aborted: enough");
    despair(c, 0, &recv);
    begin(c, 0, &late);
    assert_int_equal(recv.err.code, COMMD_E_ABORTED);
    assert_non_null(strstr(recv.err.message, "rank 2 aborted: enough"));
    assert_int_equal(recv.err.rank, 2);
    assert_int_equal(late.err.code, COMMD_E_ABORTED);
    cluster_free(c);
}

/* A limit takes back what nobody has heard of. */
static void timeouts(void **state)
{
    static uint8_t big[300000];
    struct cluster *c = three(true);
    char b[8];
    struct commd_op op = {.size = sizeof op,
                          .coll = COMMD_RECV,
                          .dtype = COMMD_U8,
                          .recv = b,
                          .count = 8,
                          .peer = 2,
                          .tag = 4,
                          .timeout_ms = 20};
    struct p2p_op send = message(true, 0, 4, "again", 6);

    assert_int_equal(commd_run(c->group[0], &op), COMMD_E_TIMEOUT);
    assert_int_equal(commd_last_error()->rank, 2);
    assert_non_null(strstr(commd_last_error()->message, "receive from rank 2, tag 4"));
    assert_non_null(strstr(commd_last_error()->message, "20 ms"));
    begin(c, 2, &send);
    assert_int_equal(commd_run(c->group[0], &op), 0);
    assert_string_equal(b, "again");
    op.coll = COMMD_SEND;
    op.send = big;
    op.count = sizeof big;
    assert_int_equal(commd_run(c->group[0], &op), COMMD_E_TIMEOUT);
    assert_non_null(strstr(commd_last_error()->message, "nobody has received it"));
    /* rank 2 has heard of it and may ask any time: this rank can no longer be used */
    op.count = 1;
    assert_int_equal(commd_run(c->group[0], &op), COMMD_E_TIMEOUT);
    cluster_free(c);
}

static void arguments(void **state)
{
    struct cluster *c = three(true);
    struct commd_group *g = c->group[0];
    char b[8];

    assert_int_equal(commd_send(g, b, 1, COMMD_U8, 3, 0), COMMD_E_INVALID);
    assert_string_equal(commd_last_error()->message, "send: rank 3; allowed: 0 to 2");
    assert_int_equal(commd_send(g, b, 1, COMMD_U8, COMMD_ANY_SOURCE, 0), COMMD_E_INVALID);
    assert_int_equal(commd_send(g, b, 1, COMMD_U8, 1, COMMD_ANY_TAG), COMMD_E_INVALID);
    assert_int_equal(commd_send(g, b, 1, 99, 1, 0), COMMD_E_INVALID);
    assert_int_equal(commd_send(g, NULL, 1, COMMD_U8, 1, 0), COMMD_E_INVALID);
    assert_int_equal(commd_send(g, b, SIZE_MAX / 4, COMMD_F64, 1, 0), COMMD_E_INVALID);
    assert_int_equal(commd_send(NULL, b, 1, COMMD_U8, 1, 0), COMMD_E_INVALID);
    assert_int_equal(commd_recv(g, b, 1, COMMD_U8, -2, 0, NULL), COMMD_E_INVALID);
    assert_string_equal(commd_last_error()->message,
                        "recv: source -2; allowed: 0 to 2, COMMD_ANY_SOURCE");
    assert_int_equal(commd_recv(g, b, 1, COMMD_U8, 1, -2, NULL), COMMD_E_INVALID);
    assert_int_equal(commd_recv(NULL, b, 1, COMMD_U8, 1, 0, NULL), COMMD_E_INVALID);
    assert_int_equal(commd_send(g, NULL, 0, COMMD_U8, 1, 0), 0);
    cluster_free(c);
}

/* ---- hostile members ------------------------------------------------------------------------- */

/* A record with every field at random, of which most are plausible, in a cell where it is read. */
static void forge(struct cluster *c, const struct mail *m)
{
    static const uint64_t lens[] = {0, 1, 88, 89, 65536, 262144, 262145, 1ull << 40, UINT64_MAX};
    uint32_t ring = cluster_rand(c, 2 + (m->nnodes > 1)), n;
    struct mail_rec rec = {.kind = (uint8_t)cluster_rand(c, MAIL_KINDS + 1),
                           .slot = (uint8_t)cluster_rand(c, MAIL_OUT_SLOTS + 2),
                           .rx = (uint8_t)cluster_rand(c, 6),
                           .src = (uint16_t)cluster_rand(c, m->world + 1),
                           .dst = (uint16_t)cluster_rand(c, m->world + 1),
                           .id = cluster_rand(c, 20),
                           .peer_id = cluster_rand(c, 20),
                           .tag = (int32_t)cluster_rand(c, 5) - 1,
                           .ack = cluster_rand(c, 40),
                           .len = lens[cluster_rand(c, ARRAY_LEN(lens))]};
    struct mail_tx tx;

    if (ring == 2)
        mail_engine_tx_init(m, cluster_rand(c, m->nlocal), &tx);
    else
        mail_tx_init(m, cluster_rand(c, m->nlocal), cluster_rand(c, m->world), &tx);
    if (rec.kind != MAIL_INLINE)
        rec.off = lens[cluster_rand(c, ARRAY_LEN(lens))];
    n = *tx.head + cluster_rand(c, 2);
    mail_fill(tx.cells, tx.len, n, &rec);
    mail_flag(tx.word, tx.bit);
}

static void scribble(struct cluster *c)
{
    unsigned k = cluster_rand(c, c->world);
    const struct mail *m = &c->group[k]->now->board.mail;
    size_t areas[] = {m->off_boxes,        m->off_bits,  m->off_engine_heads, m->off_heads,
                      m->off_engine_rings, m->off_rings, m->off_out};
    unsigned a = cluster_rand(c, ARRAY_LEN(areas) - 1);
    size_t len = areas[a + 1] - areas[a];

    if (cluster_rand(c, 2) || !len)
        forge(c, m);
    else
        m->base[areas[a] + cluster_rand(c, (uint32_t)len)] ^= (uint8_t)cluster_rand(c, 256);
}

/* Whatever a member writes into the mail of its board: nobody crashes, reads or writes outside of
 * it, or loops for ever. What members get may be wrong, and their group may break. */
static void hostile_members_harm_only_their_group(void **state)
{
    static struct program g;

    for (uint64_t seed = 0; seed < 300; seed++) {
        g.c = random_cluster(seed);
        program_make(&g, 60);
        for (unsigned i = 0; i < 1500; i++) {
            unsigned rank = cluster_rand(g.c, g.c->world);

            cluster_turn(g.c);
            if (cluster_rand(g.c, 8) == 0)
                scribble(g.c);
            if (cluster_rand(g.c, 3) == 0)
                post_next(&g, rank);
            else
                p2p_poll(p2p_of(g.c, rank), NULL);
        }
        for (unsigned i = 0; i < g.n; i++)
            if (g.item[i].posted && g.item[i].op.state != P2P_DONE)
                p2p_hopeless(p2p_of(g.c, g.item[i].rank), &g.item[i].op, false);
        assert_int_equal(g.c->peers_down, 0); /* no engine is blamed */
        cluster_free(g.c);
        program_free(&g);
    }
}

/* Which records break a group, and how they are told. */
static void a_record_that_cannot_be_is_an_error(void **state)
{
    static const struct mail_rec bad[] = {
        {.kind = MAIL_EAGER, .slot = MAIL_OUT_SLOTS, .len = 100},
        {.kind = MAIL_EAGER, .len = MAIL_EAGER_MAX + 1},
        {.kind = MAIL_EAGER, .len = 100, .off = MAIL_EAGER_MAX - 99},
        {.kind = MAIL_EAGER, .len = 100, .off = UINT64_MAX - 50},
        {.kind = MAIL_INLINE, .len = MAIL_INLINE_MAX + 1},
        {.kind = MAIL_INLINE, .len = 3, .tag = -1},
        {.kind = MAIL_RTS, .len = UINT64_MAX},
        {.kind = MAIL_DATA, .slot = MAIL_OUT_SLOTS},
        {.kind = MAIL_PROBE},
        {.kind = MAIL_DECLINED, .len = 3},
        {.kind = MAIL_KINDS},
        {.kind = MAIL_INLINE, .src = 2},
        {.kind = MAIL_INLINE, .dst = 2},
    };

    for (unsigned i = 0; i < ARRAY_LEN(bad); i++) {
        struct cluster *c = three(true);
        struct mail_rec rec = bad[i];
        struct mail_tx tx;
        char b[8];
        struct p2p_op recv = message(false, 0, 0, b, sizeof b);

        rec.src = rec.src ? rec.src : 0;
        rec.dst = rec.dst ? rec.dst : 1;
        mail_tx_init(&c->group[1]->now->board.mail, 1, 0, &tx);
        mail_put(&tx, &rec);
        mail_flag(tx.word, tx.bit);
        begin(c, 1, &recv);
        despair(c, 1, &recv);
        assert_int_equal(recv.state, P2P_DONE);
        assert_int_equal(recv.err.code, COMMD_E_PROTOCOL);
        assert_non_null(strstr(recv.err.message, "rank 0"));
        cluster_free(c);
    }
}

/* A message that is too long for its receive is not taken, also while the sender cannot be told. */
static void parts_that_nobody_wants_are_dropped(void **state)
{
    struct cluster *c = three(true);
    const struct mail *m = &c->group[1]->now->board.mail;
    uint8_t b[64] = {0}, none[64] = {0};
    struct p2p_op recv = message(false, 0, 0, b, 8);
    struct mail_rec rec = {.kind = MAIL_RTS, .dst = 1, .id = 5, .len = sizeof b};
    struct mail_tx tx;

    for (unsigned i = 0; i < m->ring; i++) { /* rank 0 takes nothing */
        struct p2p_op send = message(true, 0, 0, b, 1);

        begin(c, 1, &send);
        assert_int_equal(send.state, P2P_DONE);
    }
    begin(c, 1, &recv);
    mail_tx_init(m, 1, 0, &tx);
    mail_put(&tx, &rec);
    memset(mail_out(m, 0, m->data_begin), 1, sizeof b);
    rec = (struct mail_rec){.kind = MAIL_DATA, .dst = 1, .id = 6, .off = 8, .len = sizeof b - 8};
    rec.slot = (uint8_t)m->data_begin;
    rec.peer_id = recv.id;
    mail_put(&tx, &rec);
    mail_flag(tx.word, tx.bit);
    p2p_poll(p2p_of(c, 1), NULL);
    assert_memory_equal(b, none, sizeof b);
    assert_int_equal(recv.state, P2P_PULLING);
    p2p_drain(p2p_of(c, 0), 1);
    p2p_poll(p2p_of(c, 1), NULL);
    assert_int_equal(recv.state, P2P_DONE);
    assert_int_equal(recv.err.code, COMMD_E_MISMATCH);
    cluster_free(c);
}

/* What another rank says that it cannot do, with any code and length. */
static void any_word_of_a_rank_is_checked(void **state)
{
    static uint8_t big[1 << 20];
    struct cluster *c = three(true);
    struct mail_tx tx;

    mail_tx_init(&c->group[1]->now->board.mail, 1, 0, &tx);
    for (unsigned told = 1; told <= UINT8_MAX; told++) {
        struct p2p_op recv = message(false, 0, 0, big, 8), ops[2];
        struct p2p_op send = message(true, 0, 0, big, sizeof big);
        struct mail_rec rec = {
            .kind = MAIL_DECLINED, .declined = (uint8_t)told, .dst = 1, .len = UINT64_MAX};

        begin(c, 1, &recv);
        begin(c, 1, &send);
        mail_put(&tx, &rec);
        rec.kind = MAIL_SKIP;
        rec.peer_id = recv.id; /* which is no send */
        mail_put(&tx, &rec);
        rec.peer_id = send.id;
        mail_put(&tx, &rec);
        mail_put(&tx, &rec); /* of one that has ended */
        mail_flag(tx.word, tx.bit);
        p2p_poll(p2p_of(c, 1), NULL);
        ops[0] = recv;
        ops[1] = send;
        for (unsigned i = 0; i < 2; i++) {
            int code = ops[i].err.code;

            assert_int_equal(ops[i].state, P2P_DONE);
            assert_true(code && !commd_error_breaks_group(code) && code != COMMD_E_FORKED);
            assert_int_equal(ops[i].err.rank, 0);
            assert_int_equal(ops[i].status.bytes, 0);
        }
        p2p_drain(p2p_of(c, 0), 1);
    }
    assert_int_equal(p2p_of(c, 1)->bad, 0);
    cluster_free(c);
}

/* What a member cannot write for its engine, and credit that nobody gave: the board breaks, and all
 * its members are told. */
static void the_engine_refuses_what_cannot_be(void **state)
{
    static const struct mail_rec bad[] = {
        {.kind = MAIL_EAGER, .dst = 1, .slot = MAIL_EAGER_NET, .len = 100},
        {.kind = MAIL_EAGER, .dst = 1, .rx = MAIL_RX_SLOTS, .len = 100},
        {.kind = MAIL_DATA, .dst = 1, .slot = MAIL_EAGER_NET, .len = MAIL_CHUNK_NET + 1},
        {.kind = MAIL_DATA, .dst = 1, .slot = MAIL_EAGER_NET, .rx = MAIL_IN_SLOTS},
        {.kind = MAIL_DATA, .dst = 1, .slot = MAIL_EAGER_NET + MAIL_DATA_NET},
        {.kind = MAIL_PONG, .dst = 1},
        {.kind = MAIL_CTS, .dst = 1},
        {.kind = MAIL_INLINE, .dst = 0},
        {.kind = MAIL_INLINE, .dst = 3},
        {.kind = MAIL_INLINE, .dst = 1, .src = 2},
        {.kind = MAIL_RTS, .dst = 1, .len = 5}, /* too many of them */
    };

    for (unsigned i = 0; i < ARRAY_LEN(bad); i++) {
        struct cluster *c = three(false);
        unsigned node = i + 1 == ARRAY_LEN(bad), n = node ? MAIL_RING + 1 : 1;
        char b[8];
        struct p2p_op recv = message(false, node ? 0 : 1, 0, b, sizeof b);
        struct mail_tx tx;

        mail_engine_tx_init(&c->group[0]->now->board.mail, 0, &tx);
        for (unsigned k = 0; k < n; k++)
            mail_put(&tx, &bad[i]);
        mail_flag(tx.word, tx.bit);
        for (unsigned k = 0; k < 100; k++)
            cluster_turn(c);
        assert_int_equal(c->board_errors, 1);
        assert_non_null(strstr(c->last_error, node ? "than there was room for" : "cannot be"));
        assert_int_equal(c->peers_down, 0);
        begin(c, node, &recv);
        despair(c, node, &recv);
        assert_int_equal(recv.err.code, COMMD_E_PROTOCOL);
        cluster_free(c);
    }
}

/* A member of another node says that it has taken what nobody has sent to it: that would give
 * credit without end. */
static void nobody_takes_more_than_was_sent(void **state)
{
    static const struct mail_rec acks[] = {
        {.kind = MAIL_INLINE, .dst = 1, .len = 3, .ack = 1},
        {.kind = MAIL_ACK, .dst = 1, .ack = UINT32_MAX},
    };

    for (unsigned i = 0; i < ARRAY_LEN(acks); i++) {
        struct cluster *c = three(false);
        char b[8];
        struct p2p_op recv = message(false, 0, 0, b, sizeof b);
        struct mail_tx tx;

        mail_engine_tx_init(&c->group[0]->now->board.mail, 0, &tx);
        mail_put(&tx, &acks[i]);
        mail_flag(tx.word, tx.bit);
        for (unsigned k = 0; k < 100; k++)
            cluster_turn(c);
        begin(c, 1, &recv);
        despair(c, 1, &recv);
        assert_int_equal(recv.err.code, COMMD_E_PROTOCOL);
        assert_non_null(strstr(recv.err.message, "rank 0 took more than was sent"));
        assert_int_equal(c->peers_down, 0);
        cluster_free(c);
    }
}

/* Who sends or receives a message to or from another node leaves its core to an engine there. */
static void a_far_message_waits_for_the_engine(void **state)
{
    static const uint16_t nodes[] = {0, 0, 1}; /* ranks 0 and 1 share a node */
    struct cluster *c = cluster_new(3, 2, nodes, 7);
    const struct p2p_op far = {.peer = 2, .size = MAIL_EAGER_MAX + 1},
                        is_short = {.peer = 2, .size = 8}, near = {.peer = 1, .size = 1 << 20},
                        any = {.peer = COMMD_ANY_SOURCE, .size = 1 << 20},
                        begun = {.peer = COMMD_ANY_SOURCE,
                                 .state = P2P_PULLING,
                                 .size = 1 << 20,
                                 .len = MAIL_EAGER_MAX + 1,
                                 .status.source = 2};
    struct p2p *p = p2p_of(c, 0);
    struct board_hdr *h = c->group[0]->now->board.hdr;
    const cpu_set_t all = stay_on_core();

    atomic_store(&h->engine_core, core_now() + 1);
    assert_int_equal(p2p_waits_for(p, &far), WAIT_FOR_HERE);
    atomic_store(&h->engine_core, core_now());
    assert_int_equal(p2p_waits_for(p, &far), WAIT_FOR_ENGINE);
    assert_int_equal(p2p_waits_for(p, &is_short), WAIT_FOR_ENGINE);
    assert_int_equal(p2p_waits_for(p, &any), WAIT_FOR_HERE);
    assert_int_equal(p2p_waits_for(p, &begun), WAIT_FOR_ENGINE); /* its source is known */
    assert_int_equal(p2p_waits_for(p, &near), WAIT_FOR_OTHERS);
    atomic_store(&c->group[2]->now->board.hdr->engine_core, core_now());
    assert_int_equal(p2p_waits_for(p2p_of(c, 2), &any), WAIT_FOR_ENGINE); /* alone on its node */
    leave_core(&all);
    cluster_free(c);
}

/* Who sleeps until it gets something is not woken because an engine, or another rank, has read what
 * it sent before; who may wait for room for parts is. */
static void who_needs_no_slot_is_not_rung(void **state)
{
    for (unsigned one_node = 0; one_node < 2; one_node++) {
        struct cluster *c = three(one_node);
        uint8_t sent[4096] = {0}, got[4096], none[8];
        struct p2p_op send = message(true, 1, 0, sent, sizeof sent),
                      there = message(false, 0, 0, got, sizeof got),
                      recv = message(false, 1, 0, none, sizeof none),
                      lengthy = message(true, 1, 1, calloc(1, 4 << 20), 4 << 20),
                      parts = message(false, 0, 1, malloc(4 << 20), 4 << 20);
        struct p2p *p = p2p_of(c, 0);
        struct mail_box *box = p->box;
        uint32_t bell;

        begin(c, 0, &send);
        begin(c, 0, &recv);
        p2p_say_content(p);
        assert_int_equal(atomic_load(&box->content), 1);
        bell = bell_prepare(&box->bell, &box->sleepers); /* as if it slept on */
        begin(c, 1, &there);
        settle(c);
        assert_int_equal(there.state, P2P_DONE);
        assert_int_equal(atomic_load(&box->out[p->next_slot - 1]), p->next_use); /* it was read */
        assert_int_equal(atomic_load(&box->bell), bell);

        begin(c, 0, &lengthy);
        begin(c, 1, &parts);
        while (lengthy.state != P2P_STREAMING && lengthy.state != P2P_DONE) {
            cluster_turn(c);
            p2p_poll(p2p_of(c, 1), NULL);
            p2p_poll(p2p_of(c, 0), NULL);
        }
        assert_int_equal(atomic_load(&box->content), 0);
        bell = atomic_load(&box->bell);
        settle(c);
        assert_int_equal(lengthy.state, P2P_DONE);
        assert_int_equal(parts.state, P2P_DONE);
        assert_true(atomic_load(&box->bell) != bell);
        bell_cancel(&box->sleepers);
        p2p_interrupt(p, &recv);
        free(lengthy.buf);
        free(parts.buf);
        cluster_free(c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_needs_no_slot_is_not_rung),
        cmocka_unit_test(nobody_takes_more_than_was_sent),
        cmocka_unit_test(random_programs_deliver_exactly),
        cmocka_unit_test(messages_survive_their_sender),
        cmocka_unit_test(probes_are_answered_after_the_group_was_closed),
        cmocka_unit_test(messages_outlive_the_board_they_were_sent_from),
        cmocka_unit_test(a_long_message_of_a_dead_sender_is_an_error),
        cmocka_unit_test(a_lost_rank_concerns_only_its_partners),
        cmocka_unit_test(any_source_waits_for_those_who_stay),
        cmocka_unit_test(a_message_longer_than_the_buffer_is_refused),
        cmocka_unit_test(who_cannot_do_its_part_is_named),
        cmocka_unit_test(messages_that_nobody_takes_wait),
        cmocka_unit_test(unmatched_messages_do_not_stop_a_stream),
        cmocka_unit_test(a_payload_is_taken_as_it_is_written),
        cmocka_unit_test(who_sends_and_leaves_between_two_looks_is_heard),
        cmocka_unit_test(who_declines_and_leaves_between_two_looks_is_heard),
        cmocka_unit_test(slots_are_used_in_turn),
        cmocka_unit_test(receives_are_served_in_order),
        cmocka_unit_test(self_messages),
        cmocka_unit_test(a_broken_group_fails_its_messages),
        cmocka_unit_test(timeouts),
        cmocka_unit_test(a_far_message_waits_for_the_engine),
        cmocka_unit_test(arguments),
        cmocka_unit_test(hostile_members_harm_only_their_group),
        cmocka_unit_test(a_record_that_cannot_be_is_an_error),
        cmocka_unit_test(parts_that_nobody_wants_are_dropped),
        cmocka_unit_test(any_word_of_a_rank_is_checked),
        cmocka_unit_test(the_engine_refuses_what_cannot_be),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

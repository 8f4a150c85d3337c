/* test_engine_inbox.c - what other engines and hostile members send to an engine: who pays for it.
 * Messages are forged: sent over the loop fabric of one node as its engine would. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/lib/cluster.h"
#include "transport/engine/engine_internal.h"

enum { GOOD = 1000, BAD = 4001, BODY = 256 << 10, LIMIT = 64 << 20 };
enum { MOST_MESSAGES = (FLOW_CREDIT + FLOW_AHEAD + 1) * SCHED_MAX_NODES };

static const uint16_t two[] = {0, 1}, three[] = {0, 1, 2};
static uint8_t body[PLAN_CHUNK_NET];

static void sent(void *arg, int st)
{
}

static void turns(struct cluster *c, unsigned n)
{
    while (n--)
        cluster_turn(c);
}

static struct cluster *cluster_of(unsigned nodes, bool claims)
{
    struct cluster *c = cluster_new(nodes, nodes, nodes == 2 ? two : three, 3);

    for (unsigned n = 0; n < nodes; n++)
        fabric_loop_set_rndv(c->node[n].fabric, claims ? 1000 : SIZE_MAX);
    c->uid = GOOD;
    return c;
}

/* The @n-th record for its ring. */
static void forge_nth(struct cluster *c, unsigned from, unsigned to, uint64_t group, uint32_t uid,
                      const struct mail_rec *rec, size_t len, uint32_t n)
{
    struct fabric *f = c->node[from].fabric;
    struct wire_mail w = {
        .h = {.group = group, .op = n, .step = WIRE_MAIL, .uid = uid, .len = (uint32_t)len}};

    memcpy(w.rec, rec, sizeof w.rec);
    assert_true(f->ops->send(f, to, &w, sizeof w, len ? body : NULL, len, sent, NULL) >= 0);
    for (unsigned i = 0; i < 4; i++)
        c->node[to].fabric->ops->progress(c->node[to].fabric);
    c->node[from].fabric->ops->progress(c->node[from].fabric);
}

static void forge(struct cluster *c, unsigned from, unsigned to, uint64_t group, uint32_t uid,
                  const struct mail_rec *rec, size_t len)
{
    forge_nth(c, from, to, group, uid, rec, len, 0);
}

/* A part of a long message, from rank 0 to rank 1: with a body, and nobody has asked for it. */
static const struct mail_rec part = {
    .kind = MAIL_DATA, .src = 0, .dst = 1, .slot = MAIL_EAGER_NET, .len = BODY};
/* A message without a body. */
static const struct mail_rec word = {.kind = MAIL_INLINE, .src = 0, .dst = 1, .len = 4};
static const struct mail_rec probe = {.kind = MAIL_PROBE, .src = 0, .dst = 1};

static struct cluster_group *open_group(struct cluster *c, uint64_t id, uint32_t uid)
{
    struct commd_context *ctx[CLUSTER_MAX_RANKS];

    for (unsigned k = 0; k < CLUSTER_MAX_RANKS; k++)
        ctx[k] = &c->ctx;
    c->uid = uid;
    return cluster_group_new(c, id, two, 2, ctx, -1);
}

static bool works(struct cluster *c)
{
    struct commd_op op[3];
    enum run_state st[3];
    float x[3] = {1, 2, 4};

    for (unsigned k = 0; k < c->world; k++)
        op[k] = (struct commd_op){.size = sizeof op[k],
                                  .coll = COMMD_ALL_REDUCE,
                                  .dtype = COMMD_F32,
                                  .send = &x[k],
                                  .recv = &x[k],
                                  .count = 1};
    if (!cluster_run(c, op, st, NULL))
        return false;
    for (unsigned k = 0; k < c->world; k++)
        if (st[k] != RUN_DONE || x[k] != (c->world == 3 ? 7 : 3))
            return false;
    return true;
}

/* ---- pending --------------------------------------------------------------------------------- */

static void flood_of_unknown_groups(bool claims)
{
    struct cluster *c = cluster_of(2, claims);
    const struct pending *l = &c->node[1].engine->pending;
    struct cluster_group *g;
    struct mail_rec rec;
    struct mail_rx rx;

    forge(c, 0, 1, 0x500, GOOD, &word, 0);
    for (unsigned i = 0; i < 600; i++) {
        forge(c, 0, 1, i % 2 ? 0x1000 : 0x2000 + i, BAD, &part, BODY);
        assert_true(l->cost <= LIMIT);
    }
    forge_nth(c, 0, 1, 0x500, GOOD, &word, 0, 1);
    assert_int_equal(c->peers_down, 0);
    assert_int_equal(c->board_errors, 0);
    assert_true(works(c));
    g = open_group(c, 0x500, GOOD); /* has lost nothing */
    assert_int_equal(c->board_errors, 0);
    mail_rx_init(&eboard_find(c->node[1].engine, 0x500)->b.mail, 0, 0, &rx);
    assert_true(mail_take(&rx, &rec) && mail_take(&rx, &rec) && !mail_ready(&rx));
    cluster_group_free(c, g);
    g = open_group(c, 0x1000, BAD); /* has */
    assert_int_equal(c->board_errors, 1);
    assert_int_equal(c->last_failed, 0x1000);
    assert_non_null(strstr(c->last_error, "more messages came before the group was known here"));
    cluster_group_free(c, g);
    assert_true(works(c));
    cluster_free(c);
}

static void flood_of_unknown_groups_hurts_who_floods(void **state)
{
    flood_of_unknown_groups(false);
    flood_of_unknown_groups(true);
}

/* Small messages of ever more groups: entries cost, too. */
static void pending_of_many_groups_is_bounded(void **state)
{
    struct cluster *c = cluster_of(2, false);
    const struct pending *l = &c->node[1].engine->pending;

    forge(c, 0, 1, 0x500, GOOD, &word, 0);
    for (unsigned i = 0; i < 6000; i++)
        forge(c, 0, 1, 0x10000 + i, BAD, &word, 0);
    assert_true(l->cost <= LIMIT);
    assert_in_range(l->n, 2000, 4096);
    assert_int_equal(pending_oldest(c->node[1].engine)->h.group, 0x500);
    pending_expire(c->node[1].engine, (int64_t)now_ms() + 1000);
    assert_int_equal(l->n, 0);
    assert_int_equal(l->cost, 0);
    assert_true(LIST_EMPTY(&l->users));
    assert_int_equal(c->peers_down, 0);
    cluster_free(c);
}

/* Many users, as an engine that lies may say: it is found by what it takes as a peer. */
static void lying_engine_takes_from_itself(void **state)
{
    struct cluster *c = cluster_of(3, false);

    for (unsigned i = 0; i < 20; i++)
        forge(c, 0, 1, 0x500, GOOD, &part, BODY);
    for (unsigned i = 0; i < 400; i++)
        forge(c, 2, 1, 0x10000 + i, i % 3 ? 5000 + i : GOOD, &part, BODY);
    for (unsigned i = 0; i < 400; i++)
        forge(c, 2, 1, 0x500, GOOD, &part, BODY);
    assert_false(pending_flooded(c->node[1].engine, 0x500, 0));
    assert_int_equal(pending_oldest(c->node[1].engine)->h.group, 0x500);
    assert_int_equal(pending_oldest(c->node[1].engine)->peer, 0);
    cluster_free(c);
}

/* One group alone, of a well-behaved number of messages' many times over. */
static void pending_group_is_bounded(void **state)
{
    struct cluster *c = cluster_of(2, false);
    struct cluster_group *g;

    for (unsigned i = 0; i < MOST_MESSAGES + 1; i++)
        forge(c, 0, 1, 0x600, BAD, &word, 0);
    assert_true(pending_flooded(c->node[1].engine, 0x600, 0));
    assert_int_equal(c->node[1].engine->pending.n, 0);
    forge(c, 0, 1, 0x600, BAD, &word, 0); /* no further one is kept */
    assert_int_equal(c->node[1].engine->pending.n, 0);
    g = open_group(c, 0x600, BAD);
    assert_int_equal(c->last_failed, 0x600);
    cluster_group_free(c, g);
    assert_int_equal(c->peers_down, 0);
    cluster_free(c);
}

/* ---- known groups ---------------------------------------------------------------------------- */

static void forge_at(struct cluster *c, unsigned from, unsigned to, uint64_t group, size_t len,
                     uint32_t op, uint32_t step)
{
    struct fabric *f = c->node[from].fabric;
    struct wire_hdr h = {.group = group, .op = op, .step = step, .len = (uint32_t)len, .uid = BAD};

    assert_true(f->ops->send(f, to, &h, sizeof h, body, len, sent, NULL) >= 0);
    for (unsigned i = 0; i < 4; i++)
        c->node[to].fabric->ops->progress(c->node[to].fabric);
}

static void forge_step(struct cluster *c, unsigned from, unsigned to, uint64_t group, size_t len)
{
    forge_at(c, from, to, group, len, 0, 3);
}

/* The same message again and again. */
static void full_inbox_fails_its_group(void **state)
{
    struct cluster *c = cluster_of(2, false);
    struct cluster_group *g = open_group(c, 0x700, BAD);
    struct eboard *eb = eboard_find(c->node[1].engine, 0x700);

    for (unsigned i = 0; i < 2 * LIMIT / sizeof body; i++)
        forge_step(c, 0, 1, 0x700, sizeof body);
    assert_true(eb->inbox.bytes <= LIMIT);
    assert_int_equal(c->peers_down, 0);
    assert_int_equal(c->board_errors, 1);
    assert_int_equal(c->last_failed, 0x700);
    assert_string_equal(c->last_error, "another node's engine sent more than was asked for");
    assert_true(works(c));
    cluster_group_free(c, g);

    g = open_group(c, 0x701, BAD); /* by number */
    eb = eboard_find(c->node[1].engine, 0x701);
    for (unsigned i = 0; i < MOST_MESSAGES + 1; i++)
        forge_step(c, 0, 1, 0x701, 1);
    assert_int_equal(eb->inbox.n, MOST_MESSAGES);
    assert_int_equal(c->board_errors, 2);
    assert_int_equal(c->peers_down, 0);
    cluster_group_free(c, g);
    cluster_free(c);
}

/* Data and checks, each once: what a sender that keeps the rule cannot have sent yet. */
static void message_from_far_ahead_fails_its_group(void **state)
{
    static const struct {
        uint32_t op, step;
        bool may;
    } m[] = {
        {0, FLOW_CREDIT - 1, true}, {0, FLOW_CREDIT, false}, {1, FLOW_AHEAD - 1, true},
        {1, FLOW_AHEAD, false},     {2, 0, false},           {UINT32_MAX / 2, 1, false},
    };
    struct cluster *c = cluster_of(2, false);
    struct cluster_group *g;
    unsigned failed = 0;

    for (unsigned i = 0; i < 2 * ARRAY_LEN(m); i++) {
        uint64_t id = 0x710 + i;
        bool early = i >= ARRAY_LEN(m); /* before the group is known */
        unsigned k = i % ARRAY_LEN(m);

        if (early)
            forge_at(c, 0, 1, id, 1000, m[k].op, m[k].step);
        g = open_group(c, id, BAD);
        if (!early)
            forge_at(c, 0, 1, id, 1000, m[k].op, m[k].step);
        failed += !m[k].may;
        assert_int_equal(c->board_errors, failed);
        assert_int_equal(eboard_find(c->node[1].engine, id)->inbox.n, m[k].may);
        if (!m[k].may)
            assert_string_equal(c->last_error,
                                "another node's engine sent more than was asked for");
        cluster_group_free(c, g);
    }
    assert_int_equal(c->peers_down, 0);
    assert_true(works(c));
    cluster_free(c);
}

static void check_from_far_ahead_fails_its_group(void **state)
{
    struct cluster *c = cluster_of(2, false);
    struct fabric *f = c->node[0].fabric;

    for (uint32_t op = 0; op < 3; op++) {
        struct cluster_group *g = open_group(c, 0x730 + op, BAD);
        struct wire_check w = {.h = {.group = g->id, .op = op, .step = WIRE_CHECK, .uid = BAD}};

        assert_true(f->ops->send(f, 1, &w, sizeof w, NULL, 0, sent, NULL) >= 0);
        for (unsigned i = 0; i < 4; i++)
            c->node[1].fabric->ops->progress(c->node[1].fabric);
        assert_int_equal(c->board_errors, op == 2);
        cluster_group_free(c, g);
    }
    cluster_free(c);
}

/* A node says something in the name of a group in which it has no part. */
static void node_without_a_part_is_not_heard(void **state)
{
    struct cluster *c = cluster_of(3, false);
    struct cluster_group *g;

    forge(c, 2, 1, 0x800, GOOD, &word, 0); /* before it is known, and after */
    g = open_group(c, 0x800, GOOD);
    forge(c, 2, 1, 0x800, GOOD, &word, 0);
    for (unsigned i = 0; i < 10; i++)
        forge_step(c, 2, 1, 0x800, sizeof body);
    assert_int_equal(c->board_errors, 0);
    assert_int_equal(eboard_find(c->node[1].engine, 0x800)->inbox.n, 0);
    assert_null(eboard_find(c->node[1].engine, 0x800)->mail);
    cluster_group_free(c, g);
    cluster_free(c);
}

static void others_groups_do_not_push_closed_ones_out(void **state)
{
    struct cluster *c = cluster_of(2, false);
    const struct pending *asks = &c->node[0].engine->pending,
                         *answers = &c->node[1].engine->pending;

    cluster_group_free(c, open_group(c, 0x900, GOOD));
    for (unsigned i = 0; i < ENGINE_CLOSED + 50; i++)
        cluster_group_free(c, open_group(c, 0x20000 + i, BAD));
    forge(c, 0, 1, 0x900, GOOD, &part, BODY);
    forge(c, 0, 1, 0x900, GOOD, &probe,
          0); /* answered at once: the asking side has closed it, too */
    turns(c, 100);
    assert_int_equal(answers->n, 0);
    assert_int_equal(asks->n, 0);
    forge(c, 0, 1, 0x20000, BAD, &word, 0); /* forgotten by its own user's many others */
    assert_int_equal(answers->n, 1);
    forge(c, 0, 1, 0x20000 + ENGINE_CLOSED, BAD, &word, 0);
    assert_int_equal(answers->n, 1);
    cluster_free(c);
}

/* ---- boards ---------------------------------------------------------------------------------- */

/* A member may write the header between commd's making and the engine's mapping. */
static void header_that_contradicts_commd_is_refused(void **state)
{
    static const struct {
        size_t at;
        uint32_t value;
    } lies[] = {
        {offsetof(struct board_hdr, world), 4},    {offsetof(struct board_hdr, nnodes), 3},
        {offsetof(struct board_hdr, me), 1},       {offsetof(struct board_hdr, nlocal), 2},
        {offsetof(struct board_hdr, group), 0x78}, {offsetof(struct board_hdr, version), 1},
        {offsetof(struct board_hdr, magic), 1},    {offsetof(struct board_hdr, off.mail), 4096},
    };
    struct cluster *c = cluster_of(2, false);
    uint32_t peers[] = {0, 1}, rank_node[] = {0, 0, 1};
    uint16_t pos[] = {0, 0, 1};

    for (unsigned i = 0; i <= ARRAY_LEN(lies); i++) {
        struct board_geom g = {.group = 0xa00,
                               .epoch = 1,
                               .world = 3,
                               .nnodes = 2,
                               .me = 0,
                               .nlocal = 2,
                               .rank_node = pos};
        struct msg_board_add m = {.group = 0xa00,
                                  .nnodes = 2,
                                  .me = 0,
                                  .world = 3,
                                  .peers = peers,
                                  .rank_node = rank_node,
                                  .uid = BAD};
        struct board_ctl *ctl;
        struct board b;
        int fd;

        assert_int_equal(board_create(&g, &fd, &ctl), 0);
        assert_int_equal(board_map(fd, &b), 0);
        if (i < ARRAY_LEN(lies) && lies[i].value != 2)
            memcpy((uint8_t *)b.hdr + lies[i].at, &lies[i].value, sizeof lies[i].value);
        else if (i < ARRAY_LEN(lies))
            b.hdr->nlocal = 1;
        assert_int_equal(engine_board_add(c->node[0].engine, &m, fd),
                         i < ARRAY_LEN(lies) ? -EPROTO : 0);
        engine_board_del(c->node[0].engine, 0xa00, true);
        board_unmap(&b);
        board_ctl_free(ctl);
        close(fd);
    }
    cluster_free(c);
}

/* The same without the help of a size that does not fit: numbers that leave the layout as it is. */
static void header_of_another_group_is_refused(void **state)
{
    struct cluster *c = cluster_of(2, false);
    uint32_t peers[] = {0, 1}, rank_node[] = {0, 1};
    uint16_t pos[] = {0, 1};
    struct board_geom g = {.group = 0xa00,
                           .epoch = 1,
                           .world = 2,
                           .nnodes = 2,
                           .me = 0,
                           .nlocal = 1,
                           .rank_node = pos};
    struct msg_board_add right = {.group = 0xa00,
                                  .nnodes = 2,
                                  .me = 0,
                                  .world = 2,
                                  .peers = peers,
                                  .rank_node = rank_node,
                                  .uid = BAD},
                         m;
    struct engine *e = c->node[0].engine;
    uint32_t more[] = {0, 1, 2}, all_here[] = {0, 0}, none_here[] = {1, 1},
             far[] = {0, FABRIC_MAX_PEERS};
    struct board_ctl *ctl;
    int fd;

    assert_int_equal(board_create(&g, &fd, &ctl), 0);
    m = right;
    m.group = 0xa01;
    assert_int_equal(engine_board_add(e, &m, fd), -EPROTO);
    m = right;
    m.me = 1;
    assert_int_equal(engine_board_add(e, &m, fd), -EPROTO);
    m = right;
    m.world = 1;
    assert_int_equal(engine_board_add(e, &m, fd), -EPROTO);
    m = right;
    m.nnodes = 3;
    m.peers = more;
    assert_int_equal(engine_board_add(e, &m, fd), -EPROTO);
    m = right;
    m.rank_node = none_here;
    assert_int_equal(engine_board_add(e, &m, fd), -EPROTO);
    m = right;
    m.rank_node = all_here;
    assert_int_equal(engine_board_add(e, &m, fd), -EPROTO);
    m = right;
    m.peers = far;
    assert_int_equal(engine_board_add(e, &m, fd), -EPROTO);
    assert_int_equal(engine_board_add(e, &right, fd), 0);
    engine_board_del(e, 0xa00, true);
    board_ctl_free(ctl);
    close(fd);
    cluster_free(c);
}

/* ---- what members write ---------------------------------------------------------------------- */

/* A network of which the test says what becomes of a message. */
static struct net {
    struct fabric *f;
    const struct fabric_ops *real;
    struct fabric_ops ops;
    struct engine *engine;
    bool slow, stuck;
    unsigned n, done;
    size_t bytes;
    uint64_t groups[4096];
    struct wire_mail last;
    struct {
        fabric_done_fn done;
        void *arg;
    } on_their_way[4096];
} net;

static int net_send(struct fabric *f, unsigned peer, const void *hdr, size_t hdr_len,
                    const void *bytes, size_t len, fabric_done_fn done, void *arg)
{
    uint64_t until = now_ns() + 100000;

    assert_true(net.n < ARRAY_LEN(net.groups));
    assert_int_equal(hdr_len, sizeof net.last);
    memcpy(&net.last, hdr, sizeof net.last);
    net.groups[net.n] = net.last.h.group;
    net.on_their_way[net.n].done = done;
    net.on_their_way[net.n++].arg = arg;
    net.bytes += len;
    while (net.slow && now_ns() < until)
        ;
    return net.stuck ? 0 : 1;
}

static void net_begin(struct cluster *c, bool slow, bool stuck)
{
    net = (struct net){
        .f = c->node[0].fabric, .engine = c->node[0].engine, .slow = slow, .stuck = stuck};
    net.real = net.f->ops;
    net.ops = *net.real;
    net.ops.send = net_send;
    net.f->ops = &net.ops;
}

/* All that is on its way has gone. */
static void net_deliver(void)
{
    unsigned n = net.n;

    if (net.engine)
        sends_were_taken(net.engine, 1, UINT32_MAX);
    net.bytes = 0;
    for (; net.stuck && net.done < n; net.done++)
        net.on_their_way[net.done].done(net.on_their_way[net.done].arg, 0);
}

static void net_end(void)
{
    net_deliver();
    net.f->ops = net.real;
}

static unsigned sends_of(uint64_t group)
{
    unsigned n = 0;

    for (unsigned i = 0; i < net.n; i++)
        n += net.groups[i] == group;
    return n;
}

static void member_writes(struct commd_group *g, const struct mail_rec *rec, struct mail_tx *tx)
{
    if (!tx->cells)
        mail_engine_tx_init(&g->now->board.mail, g->now->local, tx);
    mail_put(tx, rec);
    mail_flag(tx->word, tx->bit);
}

/* As a member's ring does. */
static void engine_wake(struct engine *e, uint64_t group)
{
    eboard_activate(eboard_find(e, group));
}

enum { MANY = 40 };

static void user_with_many_boards_has_its_share_of_a_turn(void **state)
{
    struct cluster *c = cluster_of(2, false);
    struct cluster_group *bad[MANY], *good = open_group(c, 0xb00, GOOD);
    struct engine *e = c->node[0].engine;

    for (unsigned i = 0; i < MANY; i++)
        bad[i] = open_group(c, 0xc00 + i, BAD);
    for (unsigned round = 0; round < 2; round++) {
        bool alone = round == 1;

        net_begin(c, true, false);
        while (engine_arm(e))
            ;
        for (unsigned i = 0; i < MANY; i++) {
            member_writes(bad[i]->member[0], &word, &(struct mail_tx){.put = 0});
            engine_wake(e, bad[i]->id);
        }
        if (!alone) {
            member_writes(good->member[0], &word, &(struct mail_tx){.put = 0});
            engine_wake(e, good->id);
        }
        engine_poll(e);
        assert_int_equal(sends_of(0xb00), alone ? 0 : 1);
        assert_int_equal(net.n, alone ? MANY : 2);
        for (unsigned i = 0; i < MANY; i++)
            engine_poll(e);
        for (unsigned i = 0; i < MANY; i++) /* all in turn */
            assert_int_equal(sends_of(0xc00 + i), 1);
        net_end();
        for (unsigned i = 0; i < MANY; i++) { /* fresh rings */
            cluster_group_free(c, bad[i]);
            bad[i] = round ? NULL : open_group(c, 0xc00 + i, BAD);
        }
    }
    cluster_group_free(c, good);
    cluster_free(c);
}

static void user_fills_the_queue_to_a_peer_only_so_far(void **state)
{
    struct cluster *c = cluster_of(2, false);
    struct cluster_group *bad[8], *good = open_group(c, 0xb00, GOOD);
    struct engine *e = c->node[0].engine;
    unsigned rounds = 0, before;

    net_begin(c, false, true);
    for (unsigned i = 0; i < ARRAY_LEN(bad); i++) {
        struct mail_tx tx = {.put = 0};
        struct mail_rec rec = part;

        bad[i] = open_group(c, 0xd00 + i, BAD);
        for (rec.slot = MAIL_EAGER_NET; rec.slot < MAIL_EAGER_NET + MAIL_DATA_NET; rec.slot++)
            member_writes(bad[i]->member[0], &rec, &tx);
    }
    for (unsigned i = 0; i < 20; i++)
        engine_poll(e);
    assert_in_range(net.bytes, 1, (1 << 20) + BODY);
    while (engine_arm(e))
        ;
    assert_false(engine_idle(e)); /* the rest is not forgotten */
    member_writes(good->member[0], &part, &(struct mail_tx){.put = 0});
    engine_wake(e, 0xb00);
    engine_poll(e);
    before = net.n;
    sends_were_taken(e, 1,
                     BODY); /* the others' first: now it is the turn of who has sent nothing */
    engine_poll(e);
    assert_int_equal(net.n, before + 1);
    assert_int_equal(sends_of(0xb00), 1);
    while (net.n < ARRAY_LEN(bad) * MAIL_DATA_NET + 1 && rounds++ < 100) {
        net_deliver();
        for (unsigned i = 0; i < 10; i++)
            engine_poll(e);
        assert_true(net.bytes <= (1 << 20) + BODY);
    }
    assert_int_equal(net.n, ARRAY_LEN(bad) * MAIL_DATA_NET + 1);
    assert_int_equal(c->board_errors, 0);
    net_end();
    assert_int_equal(eboard_find(e, 0xb00)->user->sending, 0);
    assert_int_equal(eboard_find(e, 0xd00)->user->sending, 0);
    for (unsigned i = 0; i < ARRAY_LEN(bad); i++)
        cluster_group_free(c, bad[i]);
    cluster_group_free(c, good);
    cluster_free(c);
}

static void slot_is_not_used_again_before_it_is_sent(void **state)
{
    struct cluster *c = cluster_of(2, false);
    struct cluster_group *bad = open_group(c, 0xe00, BAD);
    struct mail_tx tx = {.put = 0};

    net_begin(c, false, true);
    member_writes(bad->member[0], &part, &tx);
    member_writes(bad->member[0], &part, &tx);
    engine_poll(c->node[0].engine);
    assert_int_equal(net.n, 1);
    assert_int_equal(c->last_failed, 0xe00);
    assert_string_equal(c->last_error, "rank 0 used a slot again before it was sent");
    net_end();
    cluster_group_free(c, bad);
    cluster_free(c);
}

/* What was sent last is on its way when an operation comes that has nothing to send. */
static void barrier_takes_no_memory(void **state)
{
    struct cluster *c = cluster_of(2, false);
    struct eboard *eb = eboard_find(c->node[0].engine, c->group[0]->now->board.group);
    struct commd_op op[2];
    enum run_state st[2];
    struct payload *acc;

    assert_true(works(c));
    acc = eb->acc;
    acc->refs++;
    for (unsigned k = 0; k < 2; k++)
        op[k] = (struct commd_op){.size = sizeof op[k], .coll = COMMD_BARRIER};
    assert_true(cluster_run(c, op, st, NULL));
    assert_int_equal(st[0], RUN_DONE);
    assert_ptr_equal(eb->acc, acc);
    assert_true(works(c));
    assert_ptr_not_equal(eb->acc, acc);
    payload_put(acc);
    cluster_free(c);
}

/* Members write as fast as the engine reads: a look ends, and the next one begins with another. */
static void member_that_always_writes_has_its_share_of_a_look(void **state)
{
    static const uint16_t places[] = {0, 0, 1};
    struct cluster *c = cluster_new(3, 2, places, 3);
    struct mail_tx tx = {.put = 0}, other = {.put = 0};
    struct mail_rec rec = part, one = word;

    rec.dst = one.dst = 2;
    one.src = 1;
    net_begin(c, false, false);
    for (unsigned i = 0; i < MAIL_ENGINE_RING; i++)
        member_writes(c->group[0], &rec, &tx);
    member_writes(c->group[1], &one, &other);
    engine_poll(c->node[0].engine);
    assert_int_equal(c->board_errors, 0);
    assert_in_range(net.bytes, BODY, 3 << 20);
    engine_poll(c->node[0].engine);
    assert_true(net.bytes < 6 << 20);
    assert_true(net.n < MAIL_ENGINE_RING);
    assert_int_equal(atomic_load(other.head), 1); /* the other's was taken meanwhile */
    net_end();
    cluster_free(c);
}

static void probes_without_end_fail_their_group(void **state)
{
    struct cluster *c = cluster_of(2, false);
    struct mail_rec ask = {.kind = MAIL_PROBE, .src = 1, .dst = 0};

    net_begin(c, false, true);
    for (unsigned i = 0; i < 1000; i++)
        forge(c, 1, 0, 0x77, 0, &ask, 0);
    assert_true(net.n < 400);
    assert_int_equal(c->last_failed, 0x77);
    assert_int_equal(c->peers_down, 0);
    net_end();
    cluster_free(c);
}

/* What lies behind a short record: nothing of the engine's, nothing of other records. */
static void nothing_else_goes_over_the_wire(void **state)
{
    struct cluster *c = cluster_of(2, false);
    struct mail_rec rec = {.kind = MAIL_INLINE, .src = 0, .dst = 1, .len = MAIL_INLINE_MAX}, out;
    struct mail_tx tx = {.put = 0};

    net_begin(c, false, false);
    memset(rec.inl, 0xaa, sizeof rec.inl);
    member_writes(c->group[0], &rec, &tx);
    member_writes(c->group[0], &word, &tx);
    engine_poll(c->node[0].engine);
    assert_int_equal(net.n, 2);
    memcpy(&out, net.last.rec, sizeof out);
    assert_int_equal(out.len, 4);
    assert_int_equal(out.seq, 0);
    for (unsigned i = MAIL_FIRST_LINE; i < MAIL_INLINE_MAX; i++)
        assert_int_equal(out.inl[i], 0);
    net_end();
    cluster_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flood_of_unknown_groups_hurts_who_floods),
        cmocka_unit_test(pending_of_many_groups_is_bounded),
        cmocka_unit_test(lying_engine_takes_from_itself),
        cmocka_unit_test(pending_group_is_bounded),
        cmocka_unit_test(full_inbox_fails_its_group),
        cmocka_unit_test(message_from_far_ahead_fails_its_group),
        cmocka_unit_test(check_from_far_ahead_fails_its_group),
        cmocka_unit_test(node_without_a_part_is_not_heard),
        cmocka_unit_test(others_groups_do_not_push_closed_ones_out),
        cmocka_unit_test(header_that_contradicts_commd_is_refused),
        cmocka_unit_test(header_of_another_group_is_refused),
        cmocka_unit_test(user_with_many_boards_has_its_share_of_a_turn),
        cmocka_unit_test(user_fills_the_queue_to_a_peer_only_so_far),
        cmocka_unit_test(barrier_takes_no_memory),
        cmocka_unit_test(slot_is_not_used_again_before_it_is_sent),
        cmocka_unit_test(member_that_always_writes_has_its_share_of_a_look),
        cmocka_unit_test(probes_without_end_fail_their_group),
        cmocka_unit_test(nothing_else_goes_over_the_wire),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

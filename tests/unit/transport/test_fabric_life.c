/* test_fabric_life.c - a random life of three fabrics, as one more contract.
 *
 * Each side sends, takes, drops, deletes and adds as the dice say, in and outside of callbacks. A
 * pair of sides has an epoch, from which the tokens are made; whoever deletes the other begins the
 * next one. The life is right if each send and each recv completes exactly once, with a reason that
 * is true; if messages come in order, once, and only within the epoch of their link; and if links
 * made anew at the end work. Buffers are freed when they are done with, so that a sanitizer sees
 * who touches them later. TCP makes the lives of one seed differ a little. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif
#include "tests/unit/transport/fabric_sides.h"

enum {
    LIVES = 6,
    STEPS = 4000,
    OPEN_MAX = 64, /* sends, and claims, of one side */
    FINAL = 20,
};

struct letter {
    uint32_t epoch, seq, from;
    uint32_t len;
};

struct tie { /* of one side to another */
    bool there, down;
    unsigned generation; /* counts the ties */
    uint32_t epoch, seq_out, seq_in;
};

struct thing { /* a send, or a body on its way in */
    struct being *being;
    struct thing *next, **at; /* in being->claims */
    unsigned peer, generation;
    struct letter letter;
    void *claim;
    uint8_t *buf;
    bool busy; /* the fabric has it */
};

struct being {
    struct life *life;
    struct side *side;
    unsigned index, sends, recvs, nclaims;
    struct tie tie[SIDES];
    struct thing *claims;
    bool calling; /* inside a call that may not call back */
    struct fabric_events events;
};

struct life {
    struct world *w;
    struct being being[SIDES];
    uint32_t epoch[SIDES][SIDES];
    uint64_t rng;
    unsigned deep, delivered, cancelled;
    bool wild, ending;
};

static void act(struct being *b);

static bool chance(struct life *l, unsigned of)
{
    return rnd(&l->rng) % of == 0;
}

static uint8_t byte_at(const struct letter *l, size_t i)
{
    return (uint8_t)(l->seq * 7 + l->from * 31 + l->epoch * 13 + i + (i >> 8));
}

static bool same_bytes(const uint8_t *p, const struct letter *l)
{
    for (size_t i = 0; i < l->len; i++)
        if (p[i] != byte_at(l, i))
            return false;
    return true;
}

/* Callbacks act, too, but not for ever. */
static void maybe_act(struct being *b)
{
    struct life *l = b->life;

    if (!l->wild || l->ending || l->deep >= 2 || !chance(l, 4))
        return;
    l->deep++;
    act(b);
    l->deep--;
}

/* --- completions --------------------------------------------------------------------------- */

static void check_end(struct thing *t, int st)
{
    struct being *b = t->being;
    struct tie *tie = &b->tie[t->peer];

    assert_false(b->calling);
    assert_true(t->busy);
    t->busy = false;
    assert_true(st == 0 || st == -EIO || st == -ECANCELED);
    if (st == -ECANCELED) /* only of a tie that was cut by this side */
        assert_true(!tie->there || tie->generation != t->generation || b->life->ending);
    b->life->cancelled += st == -ECANCELED;
}

static void thing_free(struct thing *t)
{
    free(t->buf);
    free(t);
}

static void send_done(void *arg, int st)
{
    struct thing *t = arg;
    struct being *b = t->being;

    check_end(t, st);
    b->sends--;
    thing_free(t);
    maybe_act(b);
}

static void recv_done(void *arg, int st)
{
    struct thing *t = arg;
    struct being *b = t->being;

    check_end(t, st);
    if (st == 0)
        assert_true(same_bytes(t->buf, &t->letter));
    b->recvs--;
    thing_free(t);
    maybe_act(b);
}

/* --- what a side can do ---------------------------------------------------------------------- */

static void do_send(struct being *b, unsigned peer, size_t len)
{
    struct fabric *f = b->side->f;
    struct tie *tie = &b->tie[peer];
    struct thing *t = calloc(1, sizeof(*t));
    int r;

    assert_non_null(t);
    *t = (struct thing){.being = b, .peer = peer, .generation = tie->generation};
    t->letter = (struct letter){tie->epoch, tie->seq_out, b->index, (uint32_t)len};
    t->buf = malloc(len + 1);
    assert_non_null(t->buf);
    for (size_t i = 0; i < len; i++)
        t->buf[i] = byte_at(&t->letter, i);
    t->busy = b->calling = true;
    f->more = len % 3 == 0; /* only a hint: true or not */
    r = f->ops->send(f, peer, &t->letter, sizeof(t->letter), t->buf, len, send_done, t);
    f->more = false;
    b->calling = false;
    if (!tie->there)
        assert_int_equal(r, -ENOTCONN);
    else if (tie->down)
        assert_int_equal(r, -EIO);
    else
        assert_true(r == 0 || r == 1 || r == -EIO);
    tie->seq_out += r >= 0;
    if (r == 0)
        b->sends++;
    else
        thing_free(t);
}

static struct thing *claim_out(struct thing *t)
{
    *t->at = t->next;
    if (t->next)
        t->next->at = t->at;
    t->being->nclaims--;
    return t;
}

static void do_take(struct thing *t)
{
    struct being *b = t->being;
    struct tie *tie = &b->tie[t->peer];
    struct fabric *f = b->side->f;
    bool gone = !tie->there || tie->generation != t->generation;
    int r;

    claim_out(t);
    t->buf = malloc(t->letter.len);
    assert_non_null(t->buf);
    t->busy = b->calling = true;
    r = f->ops->recv(f, t->claim, t->buf, t->letter.len, recv_done, t);
    b->calling = false;
    if (gone)
        assert_int_equal(r, -ECANCELED);
    else if (tie->down)
        assert_int_equal(r, -EIO);
    else
        assert_true(r == 0 || r == 1 || r == -EIO);
    if (r == 1)
        assert_true(same_bytes(t->buf, &t->letter));
    if (r == 0)
        b->recvs++;
    else
        thing_free(t);
}

static void do_drop(struct thing *t)
{
    struct being *b = t->being;

    claim_out(t);
    b->calling = true;
    b->side->f->ops->drop(b->side->f, t->claim);
    b->calling = false;
    thing_free(t);
}

static void do_del(struct being *b, unsigned peer)
{
    struct life *l = b->life;
    struct tie *tie = &b->tie[peer];

    if (!tie->there)
        return;
    tie->there = false;
    if (l->epoch[b->index][peer] == tie->epoch)
        l->epoch[peer][b->index] = ++l->epoch[b->index][peer];
    b->calling = true;
    b->side->f->ops->peer_del(b->side->f, peer);
    b->calling = false;
}

static void do_add(struct being *b, unsigned peer)
{
    struct side *s = b->side, *o = &b->life->w->side[peer];
    struct tie *tie = &b->tie[peer];
    uint8_t mine[32], theirs[32];

    if (tie->there)
        return;
    *tie = (struct tie){
        .there = true, .generation = tie->generation + 1, .epoch = b->life->epoch[b->index][peer]};
    token(mine, b->index, peer, 0);
    token(theirs, peer, b->index, 0);
    memcpy(mine + 8, &tie->epoch, sizeof(tie->epoch));
    memcpy(theirs + 8, &tie->epoch, sizeof(tie->epoch));
    b->calling = true;
    assert_int_equal(s->f->ops->peer_add(s->f, peer, o->addr, o->addr_len, mine, theirs), 0);
    b->calling = false;
}

static size_t any_size(uint64_t *rng)
{
    uint64_t kind = rnd(rng) % 20;

    return rnd(rng) % (kind == 0 ? MB : kind < 4 ? 200 << 10 : kind < 8 ? 40 << 10 : 300);
}

static struct thing *any_claim(struct being *b)
{
    struct thing *t = b->claims;

    for (uint64_t skip = rnd(&b->life->rng) % 4; t && t->next && skip; skip--)
        t = t->next;
    return t;
}

static void act(struct being *b)
{
    struct life *l = b->life;
    unsigned what = rnd(&l->rng) % 100, peer = (b->index + 1 + rnd(&l->rng) % (SIDES - 1)) % SIDES;
    struct thing *t = any_claim(b);

    if (b->tie[peer].down || (what == 0 && chance(l, 3)))
        do_del(b, peer);
    else if (what < 50 && !b->tie[peer].there)
        do_add(b, peer);
    else if (what < 12 && t)
        do_take(t);
    else if (what < 18 && t)
        do_drop(t);
    else if (b->sends < OPEN_MAX)
        do_send(b, peer, any_size(&l->rng));
}

/* --- events ----------------------------------------------------------------------------------- */

static struct thing *claim_in(struct being *b, const struct fabric_msg *m,
                              const struct letter *letter)
{
    struct thing *t = calloc(1, sizeof(*t));

    assert_non_null(t);
    *t = (struct thing){.being = b,
                        .peer = m->peer,
                        .generation = b->tie[m->peer].generation,
                        .letter = *letter,
                        .claim = m->claim,
                        .next = b->claims,
                        .at = &b->claims};
    if (t->next)
        t->next->at = &t->next;
    b->claims = t;
    b->nclaims++;
    return t;
}

static void life_msg(void *arg, const struct fabric_msg *m)
{
    struct being *b = arg;
    struct tie *tie = &b->tie[m->peer];
    struct letter letter;
    struct thing *t;

    assert_false(b->calling);
    assert_int_equal(m->hdr_len, sizeof(letter));
    memcpy(&letter, m->hdr, sizeof(letter));
    assert_true(tie->there && !tie->down);
    assert_int_equal(letter.from, m->peer);
    assert_int_equal(letter.epoch, tie->epoch);
    assert_int_equal(letter.seq, tie->seq_in++);
    assert_int_equal(letter.len, m->body_len);
    b->life->delivered++;
    if (!m->claim) {
        assert_true(same_bytes(m->body, &letter));
    } else {
        t = claim_in(b, m, &letter);
        if (!b->life->wild || chance(b->life, 3))
            do_take(t);
        else if (b->nclaims > OPEN_MAX || chance(b->life, 4))
            do_drop(t);
        /* else it waits */
    }
    maybe_act(b);
}

static void life_down(void *arg, unsigned peer, int err, const char *why)
{
    struct being *b = arg;

    assert_false(b->calling);
    assert_true(b->tie[peer].there && !b->tie[peer].down);
    assert_true(err < 0 && why && *why);
    b->tie[peer].down = true;
    maybe_act(b);
}

/* --- a life ----------------------------------------------------------------------------------- */

static unsigned open_things(const struct life *l)
{
    unsigned n = 0;

    for (unsigned i = 0; i < SIDES; i++)
        n += l->being[i].sends + l->being[i].recvs;
    return n;
}

static void each_tie(struct life *l, void (*fn)(struct being *b, unsigned peer))
{
    for (unsigned k = 0; k < SIDES * SIDES; k++)
        if (k / SIDES != k % SIDES)
            fn(&l->being[k / SIDES], k % SIDES);
}

static void send_any(struct being *b, unsigned peer)
{
    do_send(b, peer, any_size(&b->life->rng));
}

static unsigned arrived(const struct life *l)
{
    unsigned n = 0;

    for (unsigned k = 0; k < SIDES * SIDES; k++)
        n += l->being[k / SIDES].tie[k % SIDES].seq_in * (k / SIDES != k % SIDES);
    return n;
}

/* New links, on which everything arrives. */
static void final_links(struct life *l)
{
    l->wild = false;
    each_tie(l, do_del);
    pump_until(l->w, open_things(l) == 0);
    each_tie(l, do_add);
    for (unsigned n = 0; n < FINAL; n++)
        each_tie(l, send_any);
    pump_until(l->w, arrived(l) == FINAL * SIDES * (SIDES - 1) && open_things(l) == 0);
    for (unsigned i = 0; i < SIDES; i++)
        while (l->being[i].claims) /* of links that are long gone */
            i % 2 ? do_take(l->being[i].claims) : do_drop(l->being[i].claims);
}

static void wild_days(struct life *l)
{
    for (unsigned step = 0; step < STEPS; step++) {
        unsigned i = rnd(&l->rng) % SIDES;

        act(&l->being[i]);
        if (chance(l, 3))
            l->w->side[i].f->ops->progress(l->w->side[i].f);
        if (chance(l, 8))
            turn(l->w);
    }
}

static void begin(struct life *l)
{
    for (unsigned i = 0; i < SIDES; i++) {
        l->being[i] = (struct being){.life = l, .side = &l->w->side[i], .index = i};
        l->being[i].events = (struct fabric_events){life_msg, life_down, &l->being[i], NULL};
        l->w->side[i].instead = &l->being[i].events;
    }
    each_tie(l, do_add);
}

static void end(struct life *l)
{
    l->ending = true;
    for (unsigned i = 0; i < SIDES; i++) {
        struct thing *t;

        l->w->side[i].f = fabric_free(l->w->side[i].f);
        while ((t = l->being[i].claims))
            thing_free(claim_out(t)); /* the fabric has freed the claim itself */
    }
    assert_int_equal(open_things(l), 0);
    world_free(l->w);
}

void contract_random_life(void **state)
{
    const char *more = getenv("TEST_FABRIC_LIVES"); /* to explore by hand */
    unsigned lives = more ? (unsigned)atoi(more) : LIVES, delivered = 0, cancelled = 0;

    for (unsigned i = 0; i < lives; i++) {
        struct life l = {.w = world_new(*state, SIDES), .rng = 1000003 * (i + 1), .wild = true};

        begin(&l);
        wild_days(&l);
        if (i % 2)
            final_links(&l);
        end(&l);
        delivered += l.delivered;
        cancelled += l.cancelled;
    }
    assert_true(delivered > lives * STEPS / 20); /* it was no still life */
    assert_true(cancelled > lives);
}

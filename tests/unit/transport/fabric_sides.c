/* fabric_sides.c - see fabric_sides.h. */
#include "tests/unit/transport/fabric_sides.h"

#include <poll.h>
#include <time.h>

uint64_t rnd(uint64_t *s)
{
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return *s;
}

static void fill(uint8_t *buf, size_t len, uint32_t seq)
{
    for (size_t i = 0; i < len; i++)
        buf[i] = (uint8_t)(seq * 7 + i + (i >> 8));
}

static bool right(const uint8_t *buf, size_t len, uint32_t seq)
{
    for (size_t i = 0; i < len; i++) {
        if (buf[i] != (uint8_t)(seq * 7 + i + (i >> 8)))
            return false;
    }
    return true;
}

void token(uint8_t out[32], unsigned from, unsigned to, unsigned incarnation)
{
    memset(out, 0x55, 32);
    out[0] = (uint8_t)from;
    out[1] = (uint8_t)to;
    out[31] = (uint8_t)incarnation;
}

/* ---- a side ---------------------------------------------------------------------------------- */

void on_body(void *arg, int st)
{
    struct body *b = arg;

    assert_false(b->side->calling);
    b->done++;
    b->st = st;
    b->side->taken++;
    if (st == 0 && !right(b->buf, b->len, b->seq))
        b->side->bad_bytes++;
}

void take_body(struct body *b)
{
    struct side *s = b->side;
    void *claim = b->claim;
    int r;

    b->claim = NULL;
    b->buf = malloc(b->len);
    assert_non_null(b->buf);
    s->calling = true;
    r = s->f->ops->recv(s->f, claim, b->buf, b->len, on_body, b);
    s->calling = false;
    if (r != 0)
        on_body(b, r > 0 ? 0 : r);
}

static void on_claim(struct side *s, const struct fabric_msg *m, const struct head *h)
{
    struct body *b = calloc(1, sizeof(*b));
    enum take take = s->take == TAKE_IN_TURNS ? s->bodies % 3 : s->take;

    assert_non_null(b);
    assert_true(s->bodies < MAX_LOG);
    *b = (struct body){.side = s, .seq = h->seq, .len = h->len, .claim = m->claim};
    s->body[s->bodies++] = b;
    if (take == TAKE_AT_ONCE)
        take_body(b);
    if (take == TAKE_DROP) {
        s->f->ops->drop(s->f, m->claim);
        b->claim = NULL;
    }
}

void on_msg(void *arg, const struct fabric_msg *m)
{
    struct side *s = arg;
    struct head h = {0};

    if (s->instead) {
        s->instead->on_msg(s->instead->arg, m);
        return;
    }
    assert_false(s->calling);
    assert_true(m->hdr_len >= 8 && m->hdr_len <= sizeof(h));
    assert_int_equal((uintptr_t)m->hdr % 16, 0);
    memcpy(&h, m->hdr, m->hdr_len);
    s->msgs++;
    if (h.seq != s->next_seq[m->peer]++)
        s->bad_order++;
    assert_int_equal(m->body_len, h.len);
    assert_true(!m->body == !!m->claim);
    if (m->claim)
        on_claim(s, m, &h);
    else if (!right(m->body, m->body_len, h.seq))
        s->bad_bytes++;
    if (s->echo_on_msg) {
        h = (struct head){.seq = --s->echo_on_msg};
        assert_true(s->f->ops->send(s->f, m->peer, &h, 8, NULL, 0, NULL, NULL) >= 0);
    }
    if (s->del_on_msg)
        s->f->ops->peer_del(s->f, s->del_on_msg - 1);
}

void on_peer_down(void *arg, unsigned peer, int err, const char *why)
{
    struct side *s = arg;

    if (s->instead) {
        s->instead->on_peer_down(s->instead->arg, peer, err, why);
        return;
    }
    assert_false(s->calling);
    assert_true(err < 0);
    assert_true(why && *why);
    s->down++;
    s->down_peer = peer;
    s->down_err = err;
    snprintf(s->down_why, sizeof(s->down_why), "%s", why);
}

static void on_apart(void *arg, unsigned peer)
{
    struct fabric_traffic traffic;
    struct side *s = arg;

    s->aparts++;
    s->connected = s->f->ops->traffic(s->f, peer, &traffic);
}

static int make_fabric(struct world *w, const struct fabric_events *ev, struct fabric **ret_f)
{
    static const struct fabric_fault_conf fault = {
        .seed = 42, .max_delay = 5, .stop_every = 50, .stop_for = 60};
    char why[256] = "";
    int r;

    if (strcmp(w->kind, "loop") && strcmp(w->kind, "fault")) {
        struct fabric_conf conf = {.kind = w->kind, .device = "lo", .tls = "tcp"};

        if (!strncmp(w->kind, "tcp", 3)) {
            conf.kind = "tcp";
            conf.channels = strstr(w->kind, "x 3") ? 3 : 0;
            conf.express = strstr(w->kind, "express");
            conf.mend_ms = strstr(w->kind, "mend") ? 20000 : 0;
            conf.wants.encryption = strstr(w->kind, "sealed") ? FABRIC_ENCRYPT_ON
                                    : strstr(w->kind, "auto") ? FABRIC_ENCRYPT_AUTO
                                                              : FABRIC_ENCRYPT_OFF;
            conf.wants.trusted = strstr(w->kind, "trusted");
            conf.encryption_threads = strstr(w->kind, "threads") ? 2 : 0;
        }
        r = fabric_new(&conf, ev, ret_f, why);
        if (r)
            fail_msg("%s", why);
        return r;
    }
    if (!strcmp(w->kind, "fault")) {
        struct fabric_events inner_ev;
        struct fabric *inner;

        r = fabric_fault_new(&fault, ev, &inner_ev, ret_f);
        if (r == 0)
            r = fabric_loop_new(w->hub, &inner_ev, &inner);
        if (r == 0)
            fabric_fault_attach(*ret_f, inner);
        return r;
    }
    return fabric_loop_new(w->hub, ev, ret_f);
}

static void side_open(struct world *w, unsigned i)
{
    struct side *s = &w->side[i];
    struct fabric_events ev = {on_msg, on_peer_down, s, w->n == 2 ? on_apart : NULL};

    memset(s, 0, sizeof(*s));
    assert_int_equal(make_fabric(w, &ev, &s->f), 0);
    s->addr_len = sizeof(s->addr);
    assert_int_equal(s->f->ops->address(s->f, s->addr, &s->addr_len), 0);
}

void side_close(struct side *s)
{
    s->f = fabric_free(s->f);
    for (unsigned i = 0; i < s->bodies; i++) {
        free(s->body[i]->buf);
        free(s->body[i]);
    }
    s->bodies = 0;
}

struct world *world_new(const char *kind, unsigned n)
{
    struct world *w = calloc(1, sizeof(*w));

    assert_non_null(w);
    w->kind = kind;
    w->n = n;
    w->hub = fabric_hub_new();
    for (unsigned i = 0; i < n; i++)
        side_open(w, i);
    return w;
}

void world_free(struct world *w)
{
    for (unsigned i = 0; i < w->n; i++)
        side_close(&w->side[i]);
    fabric_hub_free(w->hub);
    free(w);
}

/* Side @i gets to know side @j under the number j. */
void add(struct world *w, unsigned i, unsigned j, unsigned incarnation)
{
    struct side *s = &w->side[i], *t = &w->side[j];
    uint8_t mine[32], theirs[32];

    token(mine, i, j, incarnation);
    token(theirs, j, i, incarnation);
    assert_int_equal(s->f->ops->peer_add(s->f, j, t->addr, t->addr_len, mine, theirs), 0);
    s->next_seq[j] = 0;
}

struct world *linked(const char *kind)
{
    struct world *w = world_new(kind, 2);

    add(w, 0, 1, 1);
    add(w, 1, 0, 1);
    return w;
}

/* ---- pumping --------------------------------------------------------------------------------- */

double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Sleeps as an engine would, when all sides agree that there is nothing to do. */
void rest(struct world *w)
{
    struct pollfd fds[SIDES];
    int timeout = 100;

    for (unsigned i = 0; i < w->n; i++) {
        struct fabric *f = w->side[i].f;
        int r = f ? f->ops->arm(f) : 0;

        if (r == 1)
            return;
        if (r == 2)
            timeout = 1;
        fds[i] = (struct pollfd){.fd = f ? f->ops->fd(f) : -1, .events = POLLIN};
    }
    poll(fds, w->n, timeout);
}

bool turn(struct world *w)
{
    bool any = false;

    for (unsigned i = 0; i < w->n; i++) {
        if (w->side[i].f)
            any |= w->side[i].f->ops->progress(w->side[i].f);
    }
    return any;
}

/* Nothing more is going to happen: many turns in a row without any. */
void pump_until_quiet(struct world *w)
{
    double limit = now() + 300;

    for (unsigned quiet = 0; quiet < 50; quiet++) {
        struct timespec ms = {0, 1000000};

        if (turn(w)) {
            quiet = 0;
            assert_true(now() < limit);
        } else {
            nanosleep(&ms, NULL); /* the kernel's TCP works without us */
        }
    }
}

static void on_sent(void *arg, int st)
{
    struct sending *s = arg;

    assert_false(s->side->calling);
    s->done++;
    s->st = st;
}

void put(struct side *s, unsigned peer, uint32_t seq, size_t hdr_len, size_t len,
         struct sending *out)
{
    struct head h = {.seq = seq, .len = (uint32_t)len};
    int r;

    *out = (struct sending){.side = s, .buf = malloc(len + 1)};
    assert_non_null(out->buf);
    fill(out->buf, len, seq);
    s->calling = true;
    r = s->f->ops->send(s->f, peer, &h, hdr_len, out->buf, len, on_sent, out);
    s->calling = false;
    memset(&h, 0xee, sizeof(h)); /* the header was copied */
    assert_true(r == 0 || r == 1);
    out->done += r == 1;
}

unsigned count_done(const struct sending *s, unsigned n)
{
    unsigned done = 0;

    for (unsigned i = 0; i < n; i++) {
        assert_true(s[i].done <= 1);
        done += s[i].done;
    }
    return done;
}

void free_sendings(struct sending *s, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        free(s[i].buf);
}

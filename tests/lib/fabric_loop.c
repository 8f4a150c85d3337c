/* fabric_loop.c - a fabric inside one process: for tests.
 *
 * Model. A hub knows its fabrics by number; the number is the address. Two peers are mates
 * once both sides have added each other with matching tokens. A sent message waits in its
 * sender's peer (out) until the receiver's progress() takes it, so every pair is a FIFO and
 * nothing happens but in the calls of a single thread: same calls, same order.
 *
 * A body below the limit is copied in send(), which then returns 1, or, without a mate, when
 * it is delivered. A larger one stays with the sender: the message moves to the sender's lent
 * list and the receiver gets a claim that points to it. Whichever side goes first cuts the
 * tie, so neither can meet freed memory of the other:
 *
 *     sender's peer --lent--> msg <--> claim --peer--> receiver's peer
 *
 * Eager bodies are handed out from a copy that is freed right after on_msg: a handler that
 * keeps the pointer is found by the address sanitizer. */
#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/queue.h>

#include "tests/lib/fabric_loop.h"

enum { DELIVER_BUDGET = 16 }; /* messages per peer and progress() */

struct loop_claim;

struct loop_msg {
    fabric_done_fn done; /* NULL once the sender has its completion */
    void *arg;
    const void *body; /* the sender's, or copy */
    void *copy;       /* owned */
    size_t body_len, hdr_len;
    struct loop_claim *claim;
    int st;
    STAILQ_ENTRY(loop_msg) link;
    _Alignas(16) uint8_t hdr[FABRIC_HDR_MAX];
};

STAILQ_HEAD(msgs, loop_msg);

struct loop_peer {
    struct loop *loop; /* borrowed */
    unsigned refs;     /* slot, claims */
    unsigned index;
    uint64_t remote; /* number of the other fabric */
    uint8_t token[32], expect[32];
    struct loop_peer *mate; /* borrowed; NULL before the link and after */
    bool down, down_told, gone;
    struct msgs out, lent;
};

struct loop_claim {
    struct loop_peer *peer; /* referenced: the receiver's */
    struct loop_msg *msg;   /* NULL when the sender is gone */
    size_t len;
    void *buf; /* of a recv in flight */
    fabric_done_fn done;
    void *arg;
    STAILQ_ENTRY(loop_claim) recv_link;
    LIST_ENTRY(loop_claim) link;
};

struct loop {
    struct fabric base;
    struct fabric_events ev;
    struct fabric_hub *hub;
    uint64_t number;
    size_t rndv;
    int wake; /* eventfd */
    struct loop_peer *slot[FABRIC_MAX_PEERS];
    struct msgs finished;
    STAILQ_HEAD(, loop_claim) recvs;
    LIST_HEAD(, loop_claim) claims;
    LIST_ENTRY(loop) link;
};

struct fabric_hub {
    uint64_t last;
    LIST_HEAD(, loop) loops;
};

static void signal_loop(struct loop *l)
{
    uint64_t one = 1;
    ssize_t n = write(l->wake, &one, sizeof(one)); /* fails only when it is signalled anyway */

    (void)n;
}

static void peer_unref(struct loop_peer *p)
{
    if (--p->refs == 0)
        free(p);
}

static void msg_free(struct loop_msg *m)
{
    free(m->copy);
    free(m);
}

/* Takes @m, which is on no list. */
static void finish(struct loop *l, struct loop_msg *m, int st)
{
    if (m->claim)
        m->claim->msg = NULL;
    m->claim = NULL;
    if (!m->done) {
        msg_free(m);
        return;
    }
    m->st = st;
    STAILQ_INSERT_TAIL(&l->finished, m, link);
    signal_loop(l);
}

static void finish_all(struct loop_peer *p, int st)
{
    struct loop_msg *m;

    while ((m = STAILQ_FIRST(&p->lent)) || (m = STAILQ_FIRST(&p->out))) {
        STAILQ_REMOVE_HEAD(m == STAILQ_FIRST(&p->lent) ? &p->lent : &p->out, link);
        finish(p->loop, m, st);
    }
}

static void set_down(struct loop_peer *p)
{
    p->down = true;
    p->mate = NULL;
    finish_all(p, -EIO);
    signal_loop(p->loop);
}

static struct loop *find_loop(const struct fabric_hub *hub, uint64_t number)
{
    struct loop *l;

    LIST_FOREACH(l, &hub->loops, link) {
        if (l->number == number)
            return l;
    }
    return NULL;
}

/* The other side's view of us, if it has one with these tokens. */
static struct loop_peer *find_mate(struct loop *l, const struct loop_peer *p)
{
    for (unsigned i = 0; i < FABRIC_MAX_PEERS; i++) {
        struct loop_peer *q = l->slot[i];

        if (q && !q->down && !q->mate && q->remote == p->loop->number &&
            !memcmp(q->expect, p->token, 32) && !memcmp(q->token, p->expect, 32))
            return q;
    }
    return NULL;
}

static void greet(struct loop_peer *p)
{
    struct loop *l = find_loop(p->loop->hub, p->remote);

    if (!l)
        return;
    p->mate = find_mate(l, p);
    if (!p->mate) {
        l->base.stats.strangers++; /* a hello that nobody expects, or not yet */
        return;
    }
    p->mate->mate = p;
    signal_loop(l);
    signal_loop(p->loop);
}

static int loop_address(struct fabric *f, void *buf, size_t *inout_len)
{
    struct loop *l = container_of(f, struct loop, base);

    if (*inout_len < sizeof(l->number))
        return -ENOSPC;
    memcpy(buf, &l->number, sizeof(l->number));
    *inout_len = sizeof(l->number);
    return 0;
}

static int loop_peer_add(struct fabric *f, unsigned index, const void *addr, size_t addr_len,
                         const uint8_t token[32], const uint8_t expect[32])
{
    struct loop *l = container_of(f, struct loop, base);
    struct loop_peer *p;

    if (index >= FABRIC_MAX_PEERS || addr_len != sizeof(p->remote))
        return -EINVAL;
    if (l->slot[index])
        return -EEXIST;
    for (unsigned i = 0; i < FABRIC_MAX_PEERS; i++) {
        if (l->slot[i] &&
            (!memcmp(l->slot[i]->token, token, 32) || !memcmp(l->slot[i]->expect, expect, 32)))
            return -EADDRINUSE;
    }
    p = calloc(1, sizeof(*p));
    if (!p)
        return -ENOMEM;
    *p = (struct loop_peer){.loop = l, .refs = 1, .index = index};
    memcpy(&p->remote, addr, sizeof(p->remote));
    memcpy(p->token, token, 32);
    memcpy(p->expect, expect, 32);
    STAILQ_INIT(&p->out);
    STAILQ_INIT(&p->lent);
    l->slot[index] = p;
    greet(p);
    return 0;
}

static void loop_peer_del(struct fabric *f, unsigned index)
{
    struct loop *l = container_of(f, struct loop, base);
    struct loop_peer *p = index < FABRIC_MAX_PEERS ? l->slot[index] : NULL;

    if (!p)
        return;
    l->slot[index] = NULL;
    p->gone = true;
    if (p->mate)
        set_down(p->mate);
    p->mate = NULL;
    finish_all(p, -ECANCELED);
    peer_unref(p);
}

static bool copy_body(struct loop_msg *m)
{
    if (m->copy || m->body_len == 0)
        return true;
    m->copy = malloc(m->body_len);
    if (!m->copy)
        return false;
    memcpy(m->copy, m->body, m->body_len);
    m->body = m->copy;
    return true;
}

static int loop_send(struct fabric *f, unsigned index, const void *hdr, size_t hdr_len,
                     const void *body, size_t body_len, fabric_done_fn done, void *arg)
{
    struct loop *l = container_of(f, struct loop, base);
    struct loop_peer *p = index < FABRIC_MAX_PEERS ? l->slot[index] : NULL;
    struct loop_msg *m;
    bool now;

    if (!p)
        return -ENOTCONN;
    if (hdr_len > FABRIC_HDR_MAX)
        return -EINVAL;
    if (p->down)
        return -EIO;
    now = p->mate && body_len < l->rndv;
    m = malloc(sizeof(*m));
    if (!m)
        return -ENOMEM;
    *m = (struct loop_msg){.done = now ? NULL : done,
                           .arg = arg,
                           .body = body,
                           .body_len = body_len,
                           .hdr_len = hdr_len};
    if (hdr_len)
        memcpy(m->hdr, hdr, hdr_len);
    if (now && !copy_body(m)) {
        free(m);
        return -ENOMEM;
    }
    STAILQ_INSERT_TAIL(&p->out, m, link);
    if (p->mate)
        signal_loop(p->mate->loop);
    return now;
}

static void loop_claim_free(struct loop_claim *c)
{
    LIST_REMOVE(c, link);
    peer_unref(c->peer);
    free(c);
}

/* The message that @c stands for is read or given up: its sender's turn. */
static void claim_settle(struct loop_claim *c)
{
    struct loop_msg *m = c->msg;

    if (m) {
        struct loop_peer *sender = c->peer->mate; /* else set_down() had cut the tie */

        STAILQ_REMOVE(&sender->lent, m, loop_msg, link);
        finish(sender->loop, m, 0);
    }
    loop_claim_free(c);
}

static int loop_recv(struct fabric *f, void *claim, void *buf, size_t len, fabric_done_fn done,
                     void *arg)
{
    struct loop *l = container_of(f, struct loop, base);
    struct loop_claim *c = claim;
    int r = 0;

    if (!c->msg)
        r = c->peer->gone ? -ECANCELED : -EIO;
    else if (len < c->len)
        r = -EMSGSIZE;
    if (r) {
        claim_settle(c);
        return r;
    }
    c->buf = buf;
    c->done = done;
    c->arg = arg;
    STAILQ_INSERT_TAIL(&l->recvs, c, recv_link);
    signal_loop(l);
    return 0;
}

static void loop_drop(struct fabric *f, void *claim)
{
    claim_settle(claim);
}

/* Hands @m over; it is on no list. */
static void deliver_eager(struct loop *l, struct loop_peer *p, struct loop_msg *m)
{
    bool copied = copy_body(m);
    struct fabric_msg fm = {
        .peer = p->index,
        .hdr = m->hdr,
        .hdr_len = m->hdr_len,
        .body = m->body_len ? m->body : "",
        .body_len = m->body_len,
    };
    void *copy = m->copy;
    _Alignas(16) uint8_t hdr[FABRIC_HDR_MAX];

    if (!copied) {
        set_down(p->mate);
        set_down(p);
        finish(p->loop, m, -EIO);
        return;
    }
    memcpy(hdr, m->hdr, m->hdr_len);
    fm.hdr = hdr;
    m->copy = NULL;
    finish(p->mate->loop, m, 0); /* before on_msg, which may drop the peer and its mate */
    l->ev.on_msg(l->ev.arg, &fm);
    free(copy);
}

static void deliver_claim(struct loop *l, struct loop_peer *p, struct loop_msg *m)
{
    struct loop_claim *c = malloc(sizeof(*c));
    struct fabric_msg fm = {
        .peer = p->index,
        .hdr = m->hdr,
        .hdr_len = m->hdr_len,
        .body_len = m->body_len,
        .claim = c,
    };
    _Alignas(16) uint8_t hdr[FABRIC_HDR_MAX];

    STAILQ_INSERT_TAIL(&p->mate->lent, m, link);
    if (!c) {
        set_down(p->mate);
        set_down(p);
        return;
    }
    *c = (struct loop_claim){.peer = p, .msg = m, .len = m->body_len};
    p->refs++;
    m->claim = c;
    LIST_INSERT_HEAD(&l->claims, c, link);
    memcpy(hdr, m->hdr, m->hdr_len); /* the handler may settle the claim */
    fm.hdr = hdr;
    l->ev.on_msg(l->ev.arg, &fm);
}

static bool loop_deliver(struct loop *l, unsigned index)
{
    bool any = false;

    for (unsigned n = 0; n < DELIVER_BUDGET; n++) {
        struct loop_peer *p = l->slot[index];
        struct loop_msg *m = p && p->mate ? STAILQ_FIRST(&p->mate->out) : NULL;

        if (!m)
            break;
        STAILQ_REMOVE_HEAD(&p->mate->out, link);
        any = true;
        if (m->body_len && m->body_len >= p->mate->loop->rndv)
            deliver_claim(l, p, m);
        else
            deliver_eager(l, p, m);
    }
    return any;
}

static bool loop_run_finished(struct loop *l)
{
    struct msgs now = STAILQ_HEAD_INITIALIZER(now);
    struct loop_msg *m;
    bool any = false;

    STAILQ_CONCAT(&now, &l->finished); /* bounded: what callbacks add waits for its turn */
    while ((m = STAILQ_FIRST(&now))) {
        STAILQ_REMOVE_HEAD(&now, link);
        any = true;
        m->done(m->arg, m->st);
        msg_free(m);
    }
    return any;
}

static bool run_recvs(struct loop *l, bool stopping)
{
    STAILQ_HEAD(, loop_claim) now = STAILQ_HEAD_INITIALIZER(now);
    struct loop_claim *c;
    bool any = false;

    STAILQ_CONCAT(&now, &l->recvs);
    while ((c = STAILQ_FIRST(&now))) {
        fabric_done_fn done = c->done;
        void *arg = c->arg;
        int st = 0;

        STAILQ_REMOVE_HEAD(&now, recv_link);
        any = true;
        if (c->peer->gone || stopping)
            st = -ECANCELED;
        else if (!c->msg)
            st = -EIO;
        else
            memcpy(c->buf, c->msg->body, c->len);
        claim_settle(c);
        if (done)
            done(arg, st);
    }
    return any;
}

static bool tell_down(struct loop *l, unsigned index)
{
    struct loop_peer *p = l->slot[index];

    if (!p || !p->down || p->down_told)
        return false;
    p->down_told = true;
    l->ev.on_peer_down(l->ev.arg, index, -ECONNRESET, "the other side is gone");
    return true;
}

static bool loop_progress(struct fabric *f)
{
    struct loop *l = container_of(f, struct loop, base);
    uint64_t count;
    bool any;

    any = read(l->wake, &count, sizeof(count)) > 0;
    if (!any)
        return false;
    any = loop_run_finished(l);
    any |= run_recvs(l, false);
    for (unsigned i = 0; i < FABRIC_MAX_PEERS; i++) {
        any |= loop_deliver(l, i);
        any |= tell_down(l, i);
    }
    if (any)
        signal_loop(l); /* budgets may have left something */
    return any;
}

static int loop_fd(struct fabric *f)
{
    return container_of(f, struct loop, base)->wake;
}

/* Every change signals the eventfd, so there is nothing to ask for. */
static int loop_arm(struct fabric *f)
{
    return 0;
}

static void loop_free(struct fabric *f)
{
    struct loop *l = container_of(f, struct loop, base);

    LIST_REMOVE(l, link);
    run_recvs(l, true);
    for (unsigned i = 0; i < FABRIC_MAX_PEERS; i++)
        loop_peer_del(f, i);
    while (!STAILQ_EMPTY(&l->recvs) || !STAILQ_EMPTY(&l->finished)) {
        run_recvs(l, true);
        loop_run_finished(l);
    }
    while (!LIST_EMPTY(&l->claims))
        claim_settle(LIST_FIRST(&l->claims));
    close_fdp(&l->wake);
    free(l);
}

static const struct fabric_ops loop_ops = {
    .name = "loop",
    .address = loop_address,
    .peer_add = loop_peer_add,
    .peer_del = loop_peer_del,
    .send = loop_send,
    .recv = loop_recv,
    .drop = loop_drop,
    .progress = loop_progress,
    .fd = loop_fd,
    .arm = loop_arm,
    .free = loop_free,
};

struct fabric_hub *fabric_hub_new(void)
{
    return calloc(1, sizeof(struct fabric_hub));
}

/* The fabrics of a hub end before it. */
struct fabric_hub *fabric_hub_free(struct fabric_hub *hub)
{
    if (hub && !LIST_EMPTY(&hub->loops))
        abort();
    free(hub);
    return NULL;
}

int fabric_loop_new(struct fabric_hub *hub, const struct fabric_events *ev,
                    struct fabric **ret_fabric)
{
    struct loop *l = calloc(1, sizeof(*l));

    if (!l)
        return -ENOMEM;
    l->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (l->wake < 0) {
        int r = -errno;

        free(l);
        return r;
    }
    l->base.ops = &loop_ops;
    l->ev = *ev;
    l->hub = hub;
    l->number = ++hub->last;
    l->rndv = 32 << 10;
    STAILQ_INIT(&l->finished);
    STAILQ_INIT(&l->recvs);
    LIST_INSERT_HEAD(&hub->loops, l, link);
    *ret_fabric = &l->base;
    return 0;
}

void fabric_loop_set_rndv(struct fabric *f, size_t bytes)
{
    container_of(f, struct loop, base)->rndv = bytes;
}

void fabric_loop_break(struct fabric *f, unsigned peer)
{
    struct loop *l = container_of(f, struct loop, base);
    struct loop_peer *p = peer < FABRIC_MAX_PEERS ? l->slot[peer] : NULL;

    if (!p || p->down)
        return;
    if (p->mate)
        set_down(p->mate);
    set_down(p);
}

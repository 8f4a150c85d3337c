/* fabric_fault.c - a fabric that delays messages and breaks links.
 *
 * Model. Everything goes through to the inner fabric, except that
 *   - an arrived message is kept (an eager body is copied) for a random number of progress()
 *     calls. Per peer the order stays: a message waits for those before it, so delays only
 *     shift peers against each other;
 *   - after each stop_every messages of a peer the next one waits for stop_for calls, and what
 * comes behind it: as if this side were stopped for a while;
 *   - after break_after messages sent and received, a link is cut: the inner peer is deleted,
 *     which the other side sees as a broken link, and reported down here.
 * The inner fabric then says -ECANCELED, because for it the peer was deleted; requests are
 * therefore wrapped and that becomes -EIO as for any other broken link. */
#include <errno.h>
#include <string.h>
#include <sys/queue.h>

#include "tests/lib/fabric_fault.h"

struct kept {
    struct fabric_msg msg;
    unsigned due; /* progress() calls left */
    STAILQ_ENTRY(kept) link;
    void *body; /* owned */
    _Alignas(16) uint8_t hdr[FABRIC_HDR_MAX];
};

/* Outlives its slot until the last request and claim is done. */
struct fault_link {
    unsigned refs;
    unsigned messages, arrived;
    bool broken, told, gone;
    STAILQ_HEAD(, kept) kept;
};

struct wrapped {
    struct fault_link *link; /* referenced */
    fabric_done_fn done;
    void *arg;
};

struct fault_claim {
    struct fault_link *link; /* referenced */
    void *inner;
    LIST_ENTRY(fault_claim) entry;
};

struct fault {
    struct fabric base;
    struct fabric_events ev;
    struct fabric_fault_conf conf;
    struct fabric *inner; /* owned */
    uint64_t rng;
    struct fault_link *link[FABRIC_MAX_PEERS];
    LIST_HEAD(, fault_claim) claims;
    unsigned held; /* kept messages and untold breaks */
};

static uint64_t rnd(uint64_t *s)
{
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return *s;
}

static void link_unref(struct fault_link *l)
{
    if (--l->refs == 0)
        free(l);
}

static void drop_inner(struct fault *f, void *claim)
{
    if (claim)
        f->inner->ops->drop(f->inner, claim);
}

static void drop_kept(struct fault *f, struct fault_link *l)
{
    struct kept *k;

    while ((k = STAILQ_FIRST(&l->kept))) {
        STAILQ_REMOVE_HEAD(&l->kept, link);
        f->held--;
        drop_inner(f, k->msg.claim);
        free(k->body);
        free(k);
    }
}

static void break_link(struct fault *f, unsigned peer)
{
    f->link[peer]->broken = true;
    f->held++;
    drop_kept(f, f->link[peer]);
    f->inner->ops->peer_del(f->inner, peer);
}

/* True when this message is the one too many. */
static bool count_message(struct fault *f, unsigned peer)
{
    if (!f->conf.break_after || ++f->link[peer]->messages <= f->conf.break_after)
        return false;
    break_link(f, peer);
    return true;
}

static void on_inner_msg(void *arg, const struct fabric_msg *msg)
{
    struct fault *f = arg;
    struct kept *k;

    if (count_message(f, msg->peer)) {
        drop_inner(f, msg->claim);
        return;
    }
    k = calloc(1, sizeof(*k));
    if (!k)
        abort(); /* a test without memory proves nothing */
    k->msg = *msg;
    k->due = f->conf.max_delay ? rnd(&f->rng) % (f->conf.max_delay + 1) : 0;
    if (f->conf.stop_every && ++f->link[msg->peer]->arrived % f->conf.stop_every == 0)
        k->due = f->conf.stop_for;
    memcpy(k->hdr, msg->hdr, msg->hdr_len);
    k->msg.hdr = k->hdr;
    if (msg->body) {
        k->body = malloc(msg->body_len + 1);
        if (!k->body)
            abort();
        memcpy(k->body, msg->body, msg->body_len);
        k->msg.body = k->body;
    }
    STAILQ_INSERT_TAIL(&f->link[msg->peer]->kept, k, link);
    f->held++;
}

static void on_inner_down(void *arg, unsigned peer, int err, const char *why)
{
    struct fault *f = arg;

    f->link[peer]->broken = f->link[peer]->told = true;
    drop_kept(f, f->link[peer]);
    f->ev.on_peer_down(f->ev.arg, peer, err, why);
}

static void on_inner_done(void *arg, int st)
{
    struct wrapped w = *(struct wrapped *)arg;

    free(arg);
    if (st == -ECANCELED && w.link->broken && !w.link->gone)
        st = -EIO;
    link_unref(w.link);
    if (w.done)
        w.done(w.arg, st);
}

static struct wrapped *wrap(struct fault_link *l, fabric_done_fn done, void *arg)
{
    struct wrapped *w = malloc(sizeof(*w));

    if (!w)
        return NULL;
    *w = (struct wrapped){l, done, arg};
    l->refs++;
    return w;
}

static void unwrap(struct wrapped *w)
{
    link_unref(w->link);
    free(w);
}

static struct fault_link *link_of(struct fault *f, unsigned peer)
{
    return peer < FABRIC_MAX_PEERS ? f->link[peer] : NULL;
}

static int fault_address(struct fabric *base, void *buf, size_t *inout_len)
{
    struct fault *f = container_of(base, struct fault, base);

    return f->inner->ops->address(f->inner, buf, inout_len);
}

static int fault_peer_add(struct fabric *base, unsigned peer, const void *addr, size_t addr_len,
                          const uint8_t token[32], const uint8_t expect[32])
{
    struct fault *f = container_of(base, struct fault, base);
    struct fault_link *l;
    int r;

    if (link_of(f, peer))
        return -EEXIST; /* the inner peer may be gone already */
    l = calloc(1, sizeof(*l));
    if (!l)
        return -ENOMEM;
    l->refs = 1;
    STAILQ_INIT(&l->kept);
    r = f->inner->ops->peer_add(f->inner, peer, addr, addr_len, token, expect);
    if (r)
        link_unref(l);
    else
        f->link[peer] = l;
    return r;
}

static void fault_peer_del(struct fabric *base, unsigned peer)
{
    struct fault *f = container_of(base, struct fault, base);
    struct fault_link *l = link_of(f, peer);

    if (!l)
        return;
    f->link[peer] = NULL;
    l->gone = true;
    drop_kept(f, l);
    if (l->broken && !l->told)
        f->held--;
    f->inner->ops->peer_del(f->inner, peer);
    link_unref(l);
}

static int fault_send(struct fabric *base, unsigned peer, const void *hdr, size_t hdr_len,
                      const void *body, size_t body_len, fabric_done_fn done, void *arg)
{
    struct fault *f = container_of(base, struct fault, base);
    struct fault_link *l = link_of(f, peer);
    struct wrapped *w;
    int r;

    if (!l)
        return -ENOTCONN;
    if (l->broken || count_message(f, peer))
        return -EIO;
    w = wrap(l, done, arg);
    if (!w)
        return -ENOMEM;
    r = f->inner->ops->send(f->inner, peer, hdr, hdr_len, body, body_len, on_inner_done, w);
    if (r != 0)
        unwrap(w);
    return r;
}

static void fault_claim_free(struct fault_claim *c)
{
    LIST_REMOVE(c, entry);
    link_unref(c->link);
    free(c);
}

static int fault_recv(struct fabric *base, void *claim, void *buf, size_t len, fabric_done_fn done,
                      void *arg)
{
    struct fault *f = container_of(base, struct fault, base);
    struct fault_claim *c = claim;
    struct wrapped *w = wrap(c->link, done, arg);
    int r = -ENOMEM;

    if (w)
        r = f->inner->ops->recv(f->inner, c->inner, buf, len, on_inner_done, w);
    else
        drop_inner(f, c->inner);
    if (r == -ECANCELED && c->link->broken && !c->link->gone)
        r = -EIO;
    if (r != 0 && w)
        unwrap(w);
    fault_claim_free(c);
    return r;
}

static void fault_drop(struct fabric *base, void *claim)
{
    struct fault *f = container_of(base, struct fault, base);
    struct fault_claim *c = claim;

    drop_inner(f, c->inner);
    fault_claim_free(c);
}

/* Takes @k, which is on no list. */
static void release(struct fault *f, struct fault_link *l, struct kept *k)
{
    struct fault_claim *c = NULL;

    if (k->msg.claim) {
        c = malloc(sizeof(*c));
        if (!c)
            abort();
        *c = (struct fault_claim){.link = l, .inner = k->msg.claim};
        l->refs++;
        LIST_INSERT_HEAD(&f->claims, c, entry);
        k->msg.claim = c;
    }
    f->held--;
    f->ev.on_msg(f->ev.arg, &k->msg);
    free(k->body);
    free(k);
}

/* One link's turn: what is due goes out, and with it nothing that came later. */
static void step(struct fault *f, unsigned peer)
{
    struct fault_link *l;
    struct kept *k;

    for (bool first = true; (l = f->link[peer]) && (k = STAILQ_FIRST(&l->kept)); first = false) {
        if (k->due > 0 && first)
            k->due--;
        if (k->due > 0)
            break;
        STAILQ_REMOVE_HEAD(&l->kept, link);
        release(f, l, k);
    }
    l = f->link[peer];
    if (l && l->broken && !l->told) {
        l->told = true;
        f->held--;
        f->ev.on_peer_down(f->ev.arg, peer, -ECONNRESET, "broken on purpose");
    }
}

static bool fault_progress(struct fabric *base)
{
    struct fault *f = container_of(base, struct fault, base);
    bool any = f->held > 0;

    any |= f->inner->ops->progress(f->inner);
    for (unsigned i = 0; i < FABRIC_MAX_PEERS && f->held; i++)
        step(f, i);
    base->stats = f->inner->stats;
    return any;
}

static int fault_fd(struct fabric *base)
{
    struct fault *f = container_of(base, struct fault, base);

    return f->inner->ops->fd(f->inner);
}

static int fault_arm(struct fabric *base)
{
    struct fault *f = container_of(base, struct fault, base);

    return f->held ? 1 : f->inner->ops->arm(f->inner);
}

static void fault_free(struct fabric *base)
{
    struct fault *f = container_of(base, struct fault, base);

    while (!LIST_EMPTY(&f->claims))
        fault_drop(base, LIST_FIRST(&f->claims));
    for (unsigned i = 0; i < FABRIC_MAX_PEERS; i++)
        fault_peer_del(base, i);
    fabric_free(f->inner);
    free(f);
}

static const struct fabric_ops fault_ops = {
    .name = "fault",
    .address = fault_address,
    .peer_add = fault_peer_add,
    .peer_del = fault_peer_del,
    .send = fault_send,
    .recv = fault_recv,
    .drop = fault_drop,
    .progress = fault_progress,
    .fd = fault_fd,
    .arm = fault_arm,
    .free = fault_free,
};

int fabric_fault_new(const struct fabric_fault_conf *conf, const struct fabric_events *ev,
                     struct fabric_events *ret_inner, struct fabric **ret_fabric)
{
    struct fault *f = calloc(1, sizeof(*f));

    if (!f)
        return -ENOMEM;
    f->base.ops = &fault_ops;
    f->ev = *ev;
    f->conf = *conf;
    f->rng = conf->seed ? conf->seed : 1;
    LIST_INIT(&f->claims);
    *ret_inner = (struct fabric_events){on_inner_msg, on_inner_down, f, NULL};
    *ret_fabric = &f->base;
    return 0;
}

void fabric_fault_attach(struct fabric *fault, struct fabric *inner)
{
    container_of(fault, struct fault, base)->inner = inner;
}

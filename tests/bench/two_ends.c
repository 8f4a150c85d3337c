#include "tests/bench/two_ends.h"

#include <errno.h>
#include <stdio.h>

void die(const char *what)
{
    fprintf(stderr, "%s: %s\n", program_invocation_short_name, what);
    exit(1);
}

static void on_done(void *arg, int st)
{
    struct end *e = arg;

    if (st)
        die("the link broke");
    e->inflight--;
}

static void on_body(void *arg, int st)
{
    struct end *e = arg;

    if (st)
        die("the link broke");
    e->got++;
}

static void on_msg(void *arg, const struct fabric_msg *m)
{
    struct end *e = arg;
    uint8_t *in = e->in[e->got % e->nbufs];

    if (!m->claim || e->f->ops->recv(e->f, m->claim, in, m->body_len, on_body, e) == 1)
        e->got++;
}

static void on_down(void *arg, unsigned peer, int err, const char *why)
{
    die(why);
}

void end_open(struct end *e, enum fabric_encryption encryption, unsigned threads, unsigned nbufs)
{
    struct fabric_conf conf = {.kind = "tcp",
                               .device = "lo",
                               .tls = "tcp",
                               .mend_ms = 60000,
                               .wants.encryption = encryption,
                               .encryption_threads = threads};
    struct fabric_events ev = {.on_msg = on_msg, .on_peer_down = on_down, .arg = e};
    char why[256];

    assert(nbufs <= END_BUFS);
    *e = (struct end){.nbufs = nbufs};
    for (unsigned i = 0; i < nbufs; i++)
        if (!(e->in[i] = calloc(1, END_BODY)))
            die("no memory");
    if (fabric_tcp_new(&conf, &ev, &e->f, why))
        die(why);
}

void end_close(struct end *e)
{
    fabric_free(e->f);
    for (unsigned i = 0; i < e->nbufs; i++)
        free(e->in[i]);
}

void ends_meet(struct end e[2])
{
    static const uint8_t token[2][32] = {{1}, {2}};

    for (unsigned i = 0; i < 2; i++) {
        uint8_t addr[FABRIC_ADDR_MAX];
        size_t len = sizeof(addr);

        if (e[!i].f->ops->address(e[!i].f, addr, &len) ||
            e[i].f->ops->peer_add(e[i].f, 0, addr, len, token[i], token[!i]))
            die("no address");
    }
}

void ends_turn(struct end e[2])
{
    e[0].f->ops->progress(e[0].f);
    e[1].f->ops->progress(e[1].f);
}

void end_send(struct end *e, const uint8_t *body, size_t len)
{
    uint64_t header = 0;
    int r = e->f->ops->send(e->f, 0, &header, sizeof(header), body, len, on_done, e);

    if (r < 0)
        die("cannot send");
    e->inflight += r == 0;
}

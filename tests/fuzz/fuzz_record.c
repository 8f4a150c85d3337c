/* fuzz_record.c - somebody on the network between two peers of the TCP fabric that encrypt, from
 * the first byte of the greeting on.
 *
 * First byte: bit 0: ChaCha20-Poly1305 instead of AES; bits 1 to 3: so many records and one more;
 * bit 4: a new key after each of them; bits 5, 6: who seals, who opens does so by libipsec-mb,
 * where there is one; bit 7: another thread opens what it may. Then pieces: kind, number, value,
 * where:
 *
 *   RECORD   a record by itself, with the byte at @where changed by @value, is offered to who has
 *            read all records before number @number: it takes exactly the one that is next, as it
 *            was made.
 *   STREAM   all records as a stream, cut into reads of @value + 1 bytes, and from record @number
 *            on changed, left out, swapped, repeated, cut or made longer: what comes out of it is
 *            the beginning of what was sent, up to there and no byte further.
 *   HELLO    a hello, or the answer to one, or its ACCEPT, with a byte changed, or of another life:
 *            none is taken but the right ones.
 *   MENDS    the same of a hello that goes on with a stream, or with another one.
 *   PROBES   probes, and answers to some, or to more than there were; in the clear, or one of them
 *            malformed: each probe is answered once, and whatever else ends the link. */
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "transport/fabric/tcp/aead.h"
#include "transport/fabric/tcp/fabric_tcp_priv.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { RECORDS_MAX = 8, TEXT_MAX = 64, ROOM = TEXT_MAX + SEAL_MORE, PIECES_MAX = 3 };
enum piece_kind { RECORD, STREAM, HELLO, MENDS, PROBES, KINDS };
enum { PROBES_MAX = 4, MALFORMED = 4 };
enum { FLIP, LEAVE_OUT, SWAP, REPEAT, CUT, LENGTHEN, CHANGES };

struct piece {
    uint8_t kind, number, value, where;
};

struct scene {
    const struct aead_ops *seals_by, *opens_by;
    enum seal_cipher cipher;
    unsigned n;
    bool threads;
    uint8_t secret[SEAL_SECRET];
    uint8_t text[RECORDS_MAX][TEXT_MAX], record[RECORDS_MAX][ROOM];
    size_t len[RECORDS_MAX]; /* of the text */
};

static void must(bool ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "fuzz_record: %s\n", what);
        abort();
    }
}

static struct seal *opener(const struct scene *s)
{
    struct seal *opens = seal_new_by(s->opens_by, s->cipher, s->secret, false);

    must(opens != NULL, "no memory");
    return opens;
}

static const struct aead_ops *library(const struct scene *s, bool ipsec_mb)
{
    const struct aead_ops *ops = ipsec_mb && s->cipher == SEAL_AES_128_GCM ? aead_ipsec_mb() : NULL;

    return ops ? ops : &aead_libcrypto;
}

static void scene_open(struct scene *s, uint8_t how)
{
    struct seal *seals;

    *s = (struct scene){.cipher = how & 1 ? SEAL_CHACHA20_POLY1305 : SEAL_AES_128_GCM,
                        .n = 1 + ((how >> 1) & 7),
                        .threads = how & 128,
                        .secret = {how, 1, 2}};
    s->seals_by = library(s, how & 32);
    s->opens_by = library(s, how & 64);
    seals = seal_new_by(s->seals_by, s->cipher, s->secret, true);
    must(seals != NULL, "no memory");
    if (how & 16)
        seal_set_records(seals, 1);
    for (unsigned i = 0; i < s->n; i++) {
        struct iovec iov = {s->text[i], s->len[i] = 1 + (i * 23 + how) % TEXT_MAX};

        for (size_t k = 0; k < s->len[i]; k++)
            s->text[i][k] = (uint8_t)(i + k);
        must(!seal_put(seals, &iov, 1, s->record[i]), "not sealed");
    }
    seal_free(seals);
}

/* ---- records by themselves ------------------------------------------------------------------- */

static void try_record(const struct scene *s, struct seal *opens, unsigned next, unsigned other,
                       const struct piece *p)
{
    uint8_t record[SEAL_DATA + SEAL_MORE] = {0}, got[SEAL_DATA];
    size_t size = s->len[other] + SEAL_MORE, len;
    bool right;

    memcpy(record, s->record[other], size);
    record[p->where % size] ^= p->value;
    right = other == next && !p->value;
    len = seal_length(record);
    must(len <= SEAL_DATA, "a length that no record has");
    if (!len) {
        must(!right, "a right record has no length");
        return;
    }
    must(!seal_get(opens, record, got) == right, right ? "the right one is refused" : "a forgery");
    if (right)
        must(len == s->len[next] && !memcmp(got, s->text[next], len), "another text");
}

static void offer_records(const struct scene *s, const struct piece *p)
{
    struct piece as_it_was = {0};
    struct seal *opens = opener(s);
    unsigned next = p->number % s->n;

    for (unsigned i = 0; i < next; i++)
        try_record(s, opens, i, i, &as_it_was);
    try_record(s, opens, next, (p->number >> 4) % s->n, p);
    if ((p->number >> 4) % s->n != next || p->value)
        try_record(s, opens, next, next, &as_it_was); /* what was refused has changed nothing */
    seal_free(opens);
}

/* ---- a stream of them ------------------------------------------------------------------------ */

struct life {
    struct tcp t;
    struct tcp_peer *peer;
    struct conn *c;
    int fd[2];
};

/* What has been read of the stream is a message without end, into memory of the test. */
static struct inbound *sink_of(struct life *l, size_t len)
{
    struct inbound *b = calloc(1, sizeof(*b));

    must(b && (b->buf = calloc(1, len)), "no memory");
    b->peer = l->peer;
    b->len = len + 1; /* so it never ends */
    l->peer->refs++;
    LIST_INSERT_HEAD(&l->peer->bodies, b, link);
    return b;
}

static void life_open(struct life *l, const struct scene *s)
{
    *l = (struct life){0};
    STAILQ_INIT(&l->t.to_fail);
    TAILQ_INIT(&l->t.conns);
    TAILQ_INIT(&l->t.writers);
    TAILQ_INIT(&l->t.free_reqs);
    TAILQ_INIT(&l->t.jobs);
    TAILQ_INIT(&l->t.free_jobs);
    l->t.epoll = epoll_create1(EPOLL_CLOEXEC);
    l->t.chunk = chunk_new();
    must(l->t.chunk && !jobs_init(&l->t, s->threads), "no memory");
    l->t.buf = l->t.chunk->data;
    l->peer = calloc(1, sizeof(*l->peer));
    l->c = calloc(1, sizeof(*l->c));
    must(l->peer && l->c && !socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, l->fd),
         "no memory");
    *l->peer = (struct tcp_peer){.t = &l->t, .refs = 1, .state = PEER_UP, .channels = 1};
    LIST_INIT(&l->peer->bodies);
    *l->c = (struct conn){.t = &l->t, .peer = l->peer, .fd = l->fd[1], .state = CONN_OPEN};
    LIST_INSERT_HEAD(&l->t.peers, l->peer, all_link);
    l->peer->conn[0] = l->c;
    TAILQ_INIT(&l->c->out);
    TAILQ_INIT(&l->c->plain);
    TAILQ_INIT(&l->c->kept);
    l->c->opens = opener(s);
}

static void reqs_free(struct req_list *list)
{
    struct fabric_req *req;

    while ((req = TAILQ_FIRST(list))) {
        TAILQ_REMOVE(list, req, link);
        free(req->copy);
        free(req);
    }
}

static void life_close(struct life *l)
{
    struct inbound *b = LIST_FIRST(&l->peer->bodies);
    struct req_list doomed = TAILQ_HEAD_INITIALIZER(doomed);

    conn_end_jobs(l->c, &doomed);
    jobs_fini(&l->t);
    close(l->t.epoll);
    if (b)
        free(b->buf);
    free(b);
    reqs_free(&l->c->plain);
    reqs_free(&l->c->out);
    reqs_free(&l->t.free_reqs);
    conn_unseal(l->c);
    free(l->c->rest);
    free(l->c);
    free(l->peer);
    close(l->fd[0]);
    close(l->fd[1]);
}

/* The stream with one change; *ret_good: how many records stand before it. */
static size_t stream_of(const struct scene *s, const struct piece *p, uint8_t *out,
                        unsigned *ret_good)
{
    unsigned at = p->number % s->n, order[RECORDS_MAX + 1], n = 0;
    unsigned how = (p->number >> 4) % CHANGES;
    uint8_t *to = out, *bad = NULL;

    for (unsigned i = 0; i < s->n; i++) {
        if (i == at && how == LEAVE_OUT)
            continue;
        if (i == at && how == REPEAT)
            order[n++] = i;
        order[n++] = i;
    }
    if (how == SWAP) {
        unsigned other = (at + 1) % s->n;

        order[at] = other;
        order[other] = at;
        at = other == at ? s->n : MIN(at, other);
    }
    for (unsigned i = 0; i < n; i++) {
        size_t size = s->len[order[i]] + SEAL_MORE;

        if (i == at)
            bad = to;
        memcpy(to, s->record[order[i]], size);
        to += size;
    }
    if (bad && how == FLIP)
        bad[p->where % (s->len[at] + SEAL_MORE)] ^= (uint8_t)(p->value | 1);
    if (bad && how == LENGTHEN)
        bad[1] ^= 0x20;
    if (bad && how == CUT)
        to = bad + p->where % (s->len[at] + SEAL_MORE);
    *ret_good = at + (how == REPEAT);
    return (size_t)(to - out);
}

static void read_stream(const struct scene *s, const struct piece *p)
{
    static struct life l;
    uint8_t bytes[(RECORDS_MAX + 1) * ROOM], want[RECORDS_MAX * TEXT_MAX];
    size_t len, text = 0, all = 0, step = (size_t)p->value + 1;
    struct inbound *b;
    unsigned good;

    life_open(&l, s);
    b = l.c->sink = sink_of(&l, READ_MAX);
    l.c->sink_left = READ_MAX + 1;
    len = stream_of(s, p, bytes, &good);
    for (unsigned i = 0; i < good; i++) {
        memcpy(want + text, s->text[i], s->len[i]);
        text += s->len[i];
    }
    for (unsigned i = 0; i < s->n; i++)
        all += s->len[i];
    must(text <= all, "more records than there are");
    for (size_t at = 0; at < len && !l.peer->failed; at += step) {
        size_t n = MIN(step, len - at);

        must(send(l.fd[0], bytes + at, n, MSG_NOSIGNAL) == (ssize_t)n, "socket is full");
        while (!l.peer->failed && conn_recv_sealed(l.c) > 0)
            if (s->threads)
                jobs_turn(&l.t);
    }
    conn_await_opens(l.c);
    /* a thread opens several: all of them count, or none, and what came behind them may have */
    if (s->threads && l.peer->failed)
        must(b->got < all || text == all, "a body is whole that was not sent so");
    else
        must(b->got == text && !memcmp(b->buf, want, text), "other bytes than were sent");
    must(!l.peer->failed || l.peer->err == -EBADMSG, "another failure");
    life_close(&l);
}

/* ---- probes ---------------------------------------------------------------------------------- */

/* One frame of the other side. False: none that may come. */
static bool probe_make(const struct piece *p, unsigned i, unsigned probes, struct frame *ret)
{
    bool answers = p->value >> i & 1, malformed = i == (p->where & 7);

    *ret = (struct frame){.type = answers ? FRAME_PROBED : FRAME_PROBE,
                          .len = answers ? 0 : PROBE_LEN,
                          .id = p->value};
    if (!malformed)
        return !answers || probes;
    switch (p->where >> 3 & (MALFORMED - 1)) {
    case 0:
        ret->len++;
        break;
    case 1:
        ret->hdr_len = p->value | 1;
        break;
    case 2:
        ret->len = ~ret->len;
        break;
    default:
        ret->type = FRAME_LAST + 1;
    }
    return false;
}

static void probe_send(struct life *l, struct seal *seals, const struct frame *f)
{
    uint8_t plain[SEAL_DATA] = {0}, record[SEAL_DATA + SEAL_MORE];
    struct iovec iov = {plain, sizeof(*f) + (f->type == FRAME_PROBE ? PROBE_LEN : 0)};
    const void *bytes = seals ? record : plain;

    memcpy(plain, f, sizeof(*f));
    must(!seals || !seal_put(seals, &iov, 1, record), "not sealed");
    if (seals)
        iov.iov_len += SEAL_MORE;
    must(send(l->fd[0], bytes, iov.iov_len, MSG_NOSIGNAL) == (ssize_t)iov.iov_len,
         "socket is full");
    while (!l->peer->failed && conn_read(l->c))
        ;
}

static void probe(const struct scene *s, const struct piece *p)
{
    static struct life l;
    bool clear = p->where & 0x80, right = true;
    unsigned n = 1 + p->number % PROBES_MAX, probes = (p->number >> 4) % PROBES_MAX, probed = 0;
    struct seal *theirs = clear ? NULL : seal_new(s->cipher, s->secret, true);

    life_open(&l, s);
    l.t.nopen = l.t.nconns = 1;
    l.c->probes = probes;
    must(clear || theirs, "no memory");
    if (clear)
        conn_unseal(l.c);
    else
        must((l.c->seals = seal_new(s->cipher, s->secret, true)) != NULL, "no memory");
    for (unsigned i = 0; i < n && right; i++) {
        struct frame f;

        right = probe_make(p, i, probes, &f) && !clear;
        probe_send(&l, theirs, &f);
        probed += right && f.type == FRAME_PROBE;
        probes -= right && f.type == FRAME_PROBED;
        must(l.peer->failed == !right, right ? "a right one ends the link" : "a wrong one passed");
    }
    must(right || l.peer->err == -EPROTO, "another failure");
    must(l.c->probes == probes, "other probes are open");
    must(l.peer->answers == probed, "other answers than probes");
    seal_free(theirs);
    life_close(&l);
}

/* ---- greetings ------------------------------------------------------------------------------- */

static struct tcp_peer side_of(unsigned life, bool connects)
{
    struct tcp_peer peer = {.connects = connects, .encrypted = true, .version = HELLO_VERSION};

    peer.token[0] = (uint8_t)(connects ? 1 : 2);
    peer.expect[0] = (uint8_t)(connects ? 2 : 1);
    peer.token[1] = peer.expect[1] = (uint8_t)life;
    must(!peer_ids(&peer), "no memory");
    return peer;
}

static void change(void *at, size_t size, const struct piece *p)
{
    ((uint8_t *)at)[p->where % size] ^= p->value;
}

static void greet(const struct piece *p, bool mends)
{
    enum { ASK, ANSWER, ACCEPT, WORDS } word = (p->number >> 1) % WORDS; /* that is changed */
    bool older = p->number & 1, other = mends && p->number & 0x80;
    bool right = !p->value && !older;
    struct tcp_peer a = side_of(1, true), b = side_of(1, false), old_a = side_of(2, true),
                    old_b = side_of(2, false);
    struct hello ask = {.magic = HELLO_MAGIC, .version = HELLO_VERSION, .channels = 1}, answer;
    struct conn one = {.peer = &a}, two = {.peer = &b};

    ask.ciphers = SEAL_AES_128_GCM;
    if (mends) {
        ask.of = HELLO_MENDS;
        ask.got = p->value;
        a.conn[0] = &one;
        b.conn[0] = &two;
        one.begun[p->where % MAC_LEN] = other;
    }
    must(!hello_say(&one, older && word == ASK ? &old_a : &a, &ask, false), "no hello");
    if (word == ASK) {
        change(&ask, sizeof(ask), p);
        must(hello_is_of(&b, &ask, NULL) == (right && !other), "whose hello?");
        return;
    }
    two.hello = answer = ask;
    must(!hello_say(&two, older && word == ANSWER ? &old_b : &b, &answer, true), "no answer");
    if (word == ANSWER) {
        change(&answer, sizeof(answer), p);
        must(hello_is_of(&a, &answer, &ask) == right, "whose answer?");
        must(!hello_is_of(&b, &ask, &ask), "a hello is no answer");
        return;
    }
    one.hello = answer;
    must(!conn_agree(&one, &a, true) && !conn_agree(&two, &b, false), "no keys");
    two.heard = one.accept;
    change(&two.heard, sizeof(two.heard), p);
    must(accept_is_right(&two) == !p->value, "whose ACCEPT?");
    conn_unseal(&one);
    conn_unseal(&two);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct scene s;
    struct piece p;

    if (size == 0)
        return 0;
    scene_open(&s, data[0]);
    for (size_t at = 1, n = 0; size - at >= sizeof(p) && n < PIECES_MAX; at += sizeof(p), n++) {
        memcpy(&p, data + at, sizeof(p));
        if (p.kind % KINDS == RECORD)
            offer_records(&s, &p);
        else if (p.kind % KINDS == STREAM)
            read_stream(&s, &p);
        else if (p.kind % KINDS == PROBES)
            probe(&s, &p);
        else
            greet(&p, p.kind % KINDS == MENDS);
    }
    return 0;
}

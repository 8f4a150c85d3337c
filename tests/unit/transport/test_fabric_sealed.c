/* test_fabric_sealed.c - streams over TCP that are encrypted: records by themselves, and two sides
 * with a man in the middle who changes, drops, repeats, swaps and injects what goes over the
 * network. What the fabric promises in quiet is in test_fabric.c, with cuts in test_fabric_mend.c.
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif
#include "tests/unit/transport/fabric_raw.h"

#include <poll.h>
#include <time.h>

#include "shm/util/wait.h"
#include "tests/lib/heap_has.h"
#include "transport/fabric/tcp/aead.h"

/* ---- records --------------------------------------------------------------------------------- */

/* No heap has these bytes by chance, which are looked for there. */
static const uint8_t secret[SEAL_SECRET] = "a secret of tests, 32 bytes long";
static const uint8_t other_secret[SEAL_SECRET] = "another secret of 32 bytes, also";

struct pair {
    struct seal *out, *in;
};

/* A cipher, by one of the libraries that have it. */
struct way {
    enum seal_cipher cipher;
    const struct aead_ops *ops;
};

static unsigned all_ways(struct way ret_ways[3])
{
    ret_ways[0] = (struct way){SEAL_AES_128_GCM, &aead_libcrypto};
    ret_ways[1] = (struct way){SEAL_CHACHA20_POLY1305, &aead_libcrypto};
    ret_ways[2] = (struct way){SEAL_AES_128_GCM, aead_ipsec_mb()};
    return ret_ways[2].ops ? 3 : 2;
}

static struct pair pair_of(const struct way *way)
{
    struct pair p = {seal_new_by(way->ops, way->cipher, secret, true),
                     seal_new_by(way->ops, way->cipher, secret, false)};

    assert_non_null(p.out);
    assert_non_null(p.in);
    return p;
}

static struct pair pair_new(void)
{
    struct way way = {SEAL_AES_128_GCM, aead_best(SEAL_AES_128_GCM)};

    return pair_of(&way);
}

static void pair_free(struct pair *p)
{
    p->out = seal_free(p->out);
    p->in = seal_free(p->in);
}

/* The record of @text in two pieces. */
static size_t record_of(struct seal *s, const char *text, uint8_t *out)
{
    size_t n = strlen(text), half = n / 2;
    struct iovec iov[] = {{(void *)(uintptr_t)text, half},
                          {(void *)(uintptr_t)(text + half), n - half}};

    assert_int_equal(seal_put(s, iov + !half, half ? 2 : 1, out), 0);
    assert_int_equal(seal_length(out), n);
    return n + SEAL_MORE;
}

static void reads(struct seal *s, const uint8_t *record, const char *text)
{
    char got[256] = "";

    assert_int_equal(seal_get(s, record, (uint8_t *)got), 0);
    assert_string_equal(got, text);
}

static void records_come_back(void **state)
{
    static uint8_t data[SEAL_DATA], record[SEAL_DATA + SEAL_MORE];
    struct way ways[3];
    unsigned n = all_ways(ways);

    for (unsigned i = 0; i < n; i++) {
        struct pair p = pair_of(&ways[i]);
        struct iovec iov = {data, sizeof(data)};
        uint8_t first[64], second[64];

        record_of(p.out, "one", first);
        record_of(p.out, "one", second);
        assert_memory_not_equal(first, second, 3 + SEAL_MORE); /* nobody sees that they are alike */
        reads(p.in, first, "one");
        reads(p.in, second, "one");
        for (unsigned k = 0; k < sizeof(data); k++)
            data[k] = (uint8_t)k;
        assert_int_equal(seal_put(p.out, &iov, 1, record), 0);
        assert_null(memmem(record, sizeof(record), data, 16));
        assert_int_equal(seal_get(p.in, record, record + SEAL_HEAD), 0); /* in place */
        assert_memory_equal(record + SEAL_HEAD, data, sizeof(data));
        pair_free(&p);
    }
}

/* Each bit of a record counts; and what is refused changes nothing. */
static void each_bit_of(const struct way *way)
{
    struct pair p = pair_of(way);
    uint8_t record[64], got[64];
    size_t n = record_of(p.out, "a record", record);

    for (size_t bit = 0; bit < 8 * n; bit++) {
        size_t len;

        record[bit / 8] ^= (uint8_t)(1 << bit % 8);
        len = seal_length(record);
        if (len && len <= sizeof(got) - SEAL_MORE)
            assert_int_equal(seal_get(p.in, record, got), -EBADMSG);
        record[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    reads(p.in, record, "a record");
    pair_free(&p);
}

static void each_bit_is_checked(void **state)
{
    struct way ways[3];
    unsigned n = all_ways(ways);

    for (unsigned i = 0; i < n; i++)
        each_bit_of(&ways[i]);
}

static void order_is_checked(void **state)
{
    struct pair p = pair_new();
    uint8_t record[3][64], got[64];

    for (unsigned i = 0; i < 3; i++)
        record_of(p.out, i ? "two" : "one", record[i]);
    assert_int_equal(seal_get(p.in, record[1], got), -EBADMSG); /* one is left out */
    reads(p.in, record[0], "one");
    assert_int_equal(seal_get(p.in, record[0], got), -EBADMSG); /* repeated */
    assert_int_equal(seal_get(p.in, record[2], got), -EBADMSG); /* swapped, and of the same text */
    reads(p.in, record[1], "two");
    reads(p.in, record[2], "two");
    pair_free(&p);
}

static void keys_are_of_one_stream(void **state)
{
    struct seal *out = seal_new(SEAL_AES_128_GCM, secret, true),
                *in = seal_new(SEAL_AES_128_GCM, other_secret, false),
                *cipher = seal_new(SEAL_CHACHA20_POLY1305, secret, false);
    uint8_t record[64], got[64];

    record_of(out, "text", record);
    assert_int_equal(seal_get(in, record, got), -EBADMSG);
    assert_int_equal(seal_get(cipher, record, got), -EBADMSG);
    seal_free(out);
    seal_free(in);
    seal_free(cipher);
}

/* The key changes in the stream, at a record of the sender's choice; no old one comes again. */
static void keys_wear_out(void **state)
{
    struct pair p = pair_new();
    uint8_t record[8][64], got[64];

    seal_set_records(p.out, 3);
    for (unsigned i = 0; i < 8; i++) {
        record_of(p.out, "text", record[i]);
        assert_int_equal(seal_generation(p.out), i / 3);
    }
    for (unsigned i = 0; i < 8; i++) {
        if (i >= 3) { /* as if it were of the generation before */
            uint8_t lie[64];

            memcpy(lie, record[i], sizeof(lie));
            lie[4]--;
            assert_int_equal(seal_get(p.in, lie, got), -EBADMSG);
        }
        reads(p.in, record[i], "text");
        assert_int_equal(seal_generation(p.in), i / 3);
    }
    pair_free(&p);
}

/* Who reads this memory later cannot read what was sent before. */
static void old_keys_are_forgotten(void **state)
{
    struct iovec label = {(void *)(uintptr_t) "key", 3};
    static uint8_t key[SEAL_SECRET], hidden[SEAL_SECRET], record[64], got[64];
    struct way ways[3];
    unsigned n = all_ways(ways);

    assert_int_equal(seal_mac(secret, &label, 1, key), 0);
    hide(key, sizeof(key));
    memcpy(hidden, secret, sizeof(hidden));
    hide(hidden, sizeof(hidden));
    for (unsigned i = 0; i < n; i++) {
        struct pair p = pair_of(&ways[i]);

        if (heap_has(key) != 1) { /* a sanitizer, or malloc(), has put it elsewhere */
            pair_free(&p);
            skip();
        }
        assert_int_equal(heap_has(hidden), 1);
        seal_set_records(p.out, 1);
        for (unsigned k = 0; k < 2; k++) {
            record_of(p.out, "text", record);
            assert_int_equal(seal_get(p.in, record, got), 0);
        }
        assert_int_equal(seal_generation(p.in), 1);
        assert_int_equal(heap_has(key), 0);
        assert_int_equal(heap_has(hidden), 0);
        pair_free(&p);
        p = pair_of(&ways[i]);
        pair_free(&p);
        assert_int_equal(heap_has(key), 0);
    }
}

/* By the clock, and with the first record from then on. */
static void keys_grow_old(void **state)
{
    struct pair p = pair_new();
    uint64_t since = seal_since_ms(p.out);
    uint8_t record[64];

    for (unsigned i = 0; i < 4; i++) {
        seal_tick(p.out, since + SEAL_MS - (i == 0));
        record_of(p.out, "text", record);
        reads(p.in, record, "text");
        assert_int_equal(seal_generation(p.out), i > 0);
        assert_int_equal(seal_generation(p.in), i > 0);
        since = seal_since_ms(p.out) - (i > 0);
    }
    pair_free(&p);
}

static void ciphers_are_chosen(void **state)
{
    unsigned both = SEAL_AES_128_GCM | SEAL_CHACHA20_POLY1305;

    assert_int_equal(seal_choose(both, both), SEAL_AES_128_GCM);
    assert_int_equal(seal_choose(both, SEAL_CHACHA20_POLY1305), SEAL_CHACHA20_POLY1305);
    assert_int_equal(seal_choose(SEAL_AES_128_GCM, SEAL_CHACHA20_POLY1305), 0);
    assert_int_equal(seal_choose(both, ~both), 0);
    assert_true(seal_ciphers() & SEAL_CHACHA20_POLY1305);
}

/* ---- a man in the middle ----------------------------------------------------------------------
 */

enum { PASS = 4096 };

struct middle {
    const char *kind;    /* of the fabrics; NULL: they mend nothing */
    int listener, fd[2]; /* towards the side that connects, and the other one */
    uint8_t buf[3 * PASS];
    size_t passed[2]; /* bytes, per direction */
    int way;          /* which direction is looked at */
    bool meddled;     /* once is enough */
};

typedef size_t (*meddle_fn)(struct middle *m, uint8_t *p, size_t n);

/* Passes on what has come, meddled with once @from bytes have passed in that direction. */
static void pass_on(struct middle *m, meddle_fn meddle, size_t from)
{
    for (int way = 0; way < 2; way++) {
        ssize_t n = recv(m->fd[way], m->buf, PASS, MSG_DONTWAIT);
        size_t len = n > 0 ? (size_t)n : 0;

        if (!len)
            continue;
        if (way == m->way && meddle && !m->meddled && m->passed[way] + len > from) {
            size_t clean = from > m->passed[way] ? from - m->passed[way] : 0;

            m->meddled = true;
            len = clean + meddle(m, m->buf + clean, len - clean);
        }
        m->passed[way] += (size_t)n;
        if (len)
            send(m->fd[!way], m->buf, len, MSG_NOSIGNAL);
    }
}

static size_t flip(struct middle *m, uint8_t *p, size_t n)
{
    p[n / 2] ^= 4;
    return n;
}

static size_t drop(struct middle *m, uint8_t *p, size_t n)
{
    return 0;
}

static size_t repeat(struct middle *m, uint8_t *p, size_t n)
{
    memcpy(p + n, p, n);
    return 2 * n;
}

static size_t inject(struct middle *m, uint8_t *p, size_t n)
{
    struct frame bye = {.type = FRAME_BYE};

    memmove(p + sizeof(bye), p, n);
    memcpy(p, &bye, sizeof(bye));
    return n + sizeof(bye);
}

/* The next connection of the side that connects. */
static void middle_takes(struct middle *m, struct world *w)
{
    struct sockaddr_in in = address_of(&w->side[1]);

    pump_until(w, readable(m->listener));
    m->fd[0] = accept(m->listener, NULL, NULL);
    m->fd[1] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(m->fd[1], (struct sockaddr *)&in, sizeof(in)), 0);
    memset(m->passed, 0, sizeof(m->passed));
}

/* Two sides that reach each other through @m alone. */
static struct world *in_the_middle(struct middle *m)
{
    struct world *w = world_new(m->kind ? m->kind : "tcp sealed", 2);
    struct tcp_addr a;
    uint8_t mine[32], theirs[32];

    m->listener = raw_listen(&w->side[1], &a);
    token(mine, 0, 1, 1);
    token(theirs, 1, 0, 1);
    assert_int_equal(w->side[0].f->ops->peer_add(w->side[0].f, 1, &a, sizeof(a), mine, theirs), 0);
    assert_int_equal(w->side[1].f->ops->peer_add(w->side[1].f, 0, w->side[0].addr,
                                                 w->side[0].addr_len, theirs, mine),
                     0);
    middle_takes(m, w);
    return w;
}

static void middle_end(struct middle *m)
{
    close(m->listener);
    close(m->fd[0]);
    close(m->fd[1]);
}

#define pass_until(w, m, meddle, from, condition)                                                  \
    for (unsigned turns_ = 0; !(condition); turns_++) {                                            \
        assert_true(turns_ < 1000000);                                                             \
        turn(w);                                                                                   \
        pass_on(m, meddle, from);                                                                  \
    }

static void passes_what_is_left_alone(void **state)
{
    static struct middle m;
    struct world *w;
    struct sending out[2];

    m = (struct middle){0};
    w = in_the_middle(&m);
    put(&w->side[0], 1, 0, 8, 100, &out[0]);
    put(&w->side[0], 1, 1, 8, MB, &out[1]);
    pass_until(w, &m, NULL, 0, w->side[1].taken == 1 && count_done(out, 2) == 2);
    assert_int_equal(w->side[1].bad_bytes + w->side[1].bad_order, 0);
    free_sendings(out, 2);
    world_free(w);
    middle_end(&m);
}

/* The oldest key in use is told: of which cipher, its age, and how many came before it. */
static void the_key_is_told(void **state)
{
    uint64_t start = now_ms();
    struct world *w = linked("tcp sealed");
    struct fabric_traffic traffic;
    struct sending out[6];
    struct seal *seals[2];

    pump_until(w, inside(&w->side[0])->nopen && inside(&w->side[1])->nopen);
    for (unsigned i = 0; i < 2; i++) {
        seals[i] = inside(&w->side[i])->slot[!i]->conn[0]->seals;
        seal_set_records(seals[i], 1);
    }
    for (unsigned i = 0; i < ARRAY_LEN(out); i++)
        put(&w->side[i % 2], 1 - i % 2, i / 2, 8, 100, &out[i]);
    pump_until(w, w->side[0].msgs == 3 && w->side[1].msgs == 3);
    assert_true(w->side[0].f->ops->traffic(w->side[0].f, 1, &traffic));
    assert_int_equal(traffic.encryption, seal_by_ipsec_mb(seals[0]) ? LINK_AES_128_GCM_IPSEC_MB
                                         : seal_kind(seals[0]) == SEAL_AES_128_GCM
                                             ? LINK_AES_128_GCM
                                             : LINK_CHACHA20_POLY1305);
    assert_true(traffic.generation >= 1 && traffic.generation <= seal_generation(seals[0]) + 2);
    assert_true(traffic.key_ms <= now_ms() - start);
    pump_until(w, count_done(out, ARRAY_LEN(out)) == ARRAY_LEN(out));
    free_sendings(out, ARRAY_LEN(out));
    world_free(w);
}

/* Whatever he does, a wrong byte is handed to nobody, and the link ends and says why. */
static void meddling_ends_the_link(void **state)
{
    static const meddle_fn ways[] = {flip, repeat, inject, drop};
    static struct middle m;

    for (unsigned i = 0; i < ARRAY_LEN(ways) * 2; i++) {
        struct sending out[64];
        struct world *w;
        struct side *hit;
        size_t from;

        m = (struct middle){.way = (int)(i % 2)};
        w = in_the_middle(&m);
        hit = &w->side[!m.way];
        /* behind the greeting */
        pass_until(w, &m, NULL, 0, inside(&w->side[0])->nopen && inside(&w->side[1])->nopen);
        for (unsigned k = 0; k < ARRAY_LEN(out); k++)
            put(&w->side[m.way], (unsigned)!m.way, k, 8, 3000, &out[k]);
        from = m.passed[m.way] + 5000;
        pass_until(w, &m, ways[i / 2], from, hit->down == 1);
        assert_int_equal(hit->down_err, -EBADMSG);
        assert_non_null(strstr(hit->down_why, "authentication"));
        assert_int_equal(hit->bad_bytes + hit->bad_order, 0);
        close(m.fd[0]);
        close(m.fd[1]);
        pump_until(w, count_done(out, ARRAY_LEN(out)) == ARRAY_LEN(out));
        free_sendings(out, ARRAY_LEN(out));
        world_free(w);
        close(m.listener);
    }
}

/* At the first byte of a record: it seems to be longer than what follows. */
static size_t lengthen(struct middle *m, uint8_t *p, size_t n)
{
    p[1] ^= 0x20;
    return n;
}

/* The last thing that is sent, when both sides wait for each other. */
static void what_nobody_follows_is_missed(void **state)
{
    static const meddle_fn ways[] = {drop, lengthen};
    static struct middle m;

    for (unsigned i = 0; i < ARRAY_LEN(ways) * 2; i++) {
        double limit = now() + 300;
        struct sending out;
        struct world *w;
        struct side *hit, *other;

        m = (struct middle){.way = (int)(i % 2)};
        w = in_the_middle(&m);
        hit = &w->side[!m.way];
        other = &w->side[m.way];
        pass_until(w, &m, NULL, 0, inside(&w->side[0])->nopen && inside(&w->side[1])->nopen);
        pump_until_quiet(w);
        pass_on(&m, NULL, 0);
        put(other, (unsigned)!m.way, 0, 8, 100, &out);
        while (!hit->down || !other->down) {
            struct timespec ms = {0, 1000000};

            assert_true(now() < limit);
            turn(w);
            pass_on(&m, ways[i / 2], m.passed[m.way]);
            nanosleep(&ms, NULL);
        }
        assert_int_equal(hit->down_err, -EBADMSG);
        assert_non_null(strstr(hit->down_why, "authentication failed"));
        assert_string_equal(other->down_why, "authentication failed at the other side");
        assert_int_equal(hit->msgs, 0);
        free_sendings(&out, 1);
        world_free(w);
        middle_end(&m);
    }
}

static int put_fails(struct aead *a, const uint8_t nonce[AEAD_NONCE], const struct iovec *iov,
                     unsigned n, uint8_t *record)
{
    return -EIO;
}

/* The other side would take what follows for out of order, so nothing does. */
static void what_cannot_be_encrypted_ends_the_link(void **state)
{
    struct world *w = linked("tcp sealed");
    struct side *s = &w->side[0];
    struct aead_ops broken;
    struct aead *aead;

    pump_until(w, inside(s)->nopen && inside(&w->side[1])->nopen);
    aead = *(struct aead **)inside(s)->slot[1]->conn[0]->seals; /* its first member */
    broken = *aead->ops;
    broken.put = put_fails;
    aead->ops = &broken;
    assert_int_equal(s->f->ops->send(s->f, 1, "head", 4, NULL, 0, NULL, NULL), -EIO);
    pump_until(w, s->down && w->side[1].down);
    assert_int_equal(s->down_err, -EIO);
    assert_string_equal(s->down_why, "cannot encrypt what is to be sent");
    assert_string_equal(w->side[1].down_why, "the other side has closed the link");
    assert_int_equal(w->side[1].msgs, 0);
    world_free(w);
}

/* Whoever has sent nothing since sends no probe either, so that nodes may sleep. */
static void quiet_sides_sleep(void **state)
{
    static struct middle m;
    struct world *w;
    struct sending out;
    double limit = now() + 300;

    m = (struct middle){.kind = "tcp mend sealed"};
    w = in_the_middle(&m);
    put(&w->side[0], 1, 0, 8, 100, &out);
    while (inside(&w->side[0])->timer_on || inside(&w->side[1])->timer_on ||
           m.passed[0] < SEAL_DATA || m.passed[1] == sizeof(struct hello)) {
        struct timespec ms = {0, 1000000};

        assert_true(now() < limit);
        turn(w);
        pass_on(&m, NULL, 0);
        nanosleep(&ms, NULL);
    }
    assert_int_equal(w->side[1].msgs, 1);
    assert_int_equal(w->side[0].down + w->side[1].down, 0);
    assert_true(m.passed[0] < 2 * SEAL_DATA); /* one probe, and its answer */
    assert_int_equal(m.passed[1], sizeof(struct hello) + sizeof(struct frame) + SEAL_MORE);
    free_sendings(&out, 1);
    world_free(w);
    middle_end(&m);
}

/* ---- answers --------------------------------------------------------------------------------- */

static void nap(void)
{
    struct timespec ms = {0, 1000000};

    nanosleep(&ms, NULL);
}

/* In one direction nothing gets through any more, whether it is acknowledged or there is no room
 * for it. Both sides wait for each other, and would for good. */
static void who_holds_all_back_is_noticed(void **state)
{
    enum { MANY = 250 };
    static struct middle m;

    for (unsigned i = 0; i < 4; i++) {
        unsigned n = i < 2 ? 1 : MANY;
        double limit = now() + 300;
        struct sending out[MANY];
        struct side *s, *other;
        struct world *w;
        struct conn *c;

        m = (struct middle){.way = (int)(i % 2), .kind = "tcp mend sealed"};
        w = in_the_middle(&m);
        s = &w->side[m.way];
        other = &w->side[!m.way];
        pass_until(w, &m, NULL, 0, inside(s)->nopen && inside(other)->nopen);
        inside(s)->mend_ms = inside(other)->mend_ms = 400;
        c = inside(s)->slot[!m.way]->conn[0];
        for (unsigned k = 0; k < n; k++)
            put(s, (unsigned)!m.way, k, 8, n == 1 ? 100 : 60000, &out[k]);
        for (; !s->down; nap()) {
            ssize_t back = recv(m.fd[!m.way], m.buf, PASS, MSG_DONTWAIT);

            assert_true(now() < limit);
            turn(w);
            if (back > 0)
                send(m.fd[m.way], m.buf, (size_t)back, MSG_NOSIGNAL);
            if (n == 1)
                while (recv(m.fd[m.way], m.buf, PASS, MSG_DONTWAIT) > 0)
                    continue;
            assert_true(s->down || c->state == CONN_OPEN);
        }
        assert_int_equal(s->down_err, -ETIMEDOUT);
        assert_non_null(strstr(s->down_why, "no answer for 800 ms"));
        assert_int_equal(other->msgs + other->bad_bytes, 0);
        pump_until(w, count_done(out, n) == n);
        free_sendings(out, n);
        world_free(w);
        middle_end(&m);
    }
}

/* Who still sends, or was stopped for less, is there. */
static void who_comes_late_is_not_lost(void **state)
{
    enum { MANY = 100 };
    struct world *w = linked("tcp mend sealed");
    struct side *a = &w->side[0], *b = &w->side[1];
    struct sending out[MANY + 1];
    struct conn *c;

    pump_until(w, inside(a)->nopen && inside(b)->nopen);
    inside(a)->mend_ms = inside(b)->mend_ms = 400; /* 8 ticks and one more */
    c = inside(a)->slot[1]->conn[0];
    put(a, 1, 0, 8, 100, &out[MANY]);
    for (; !c->answer_ticks || c->answer_ticks > 5; nap())
        a->f->ops->progress(a->f); /* the other side is stopped */
    assert_int_equal(c->probes, 1);
    pump_until(w, !c->probes && !inside(a)->timer_on && !inside(b)->timer_on);
    conn_put_probe(c);
    for (unsigned i = 0; i < MANY; i++) { /* it sends, and reads nothing */
        struct timespec some = {0, 25000000};

        put(b, 0, i, 8, 100, &out[i]);
        a->f->ops->progress(a->f);
        nanosleep(&some, NULL);
    }
    pump_until(w, a->msgs == MANY && !c->probes);
    assert_int_equal(a->down + b->down, 0);
    free_sendings(out, MANY + 1);
    world_free(w);
}

static void answers_are_asked_for(void **state)
{
    struct world *w = linked("tcp mend sealed");
    struct side *s = &w->side[0];

    pump_until(w, inside(s)->nopen && inside(&w->side[1])->nopen);
    assert_int_equal(conn_put_frame(inside(&w->side[1])->slot[0]->conn[0], FRAME_PROBED, 0), 0);
    pump_until(w, s->down == 1);
    assert_int_equal(s->down_err, -EPROTO);
    world_free(w);
}

/* Of a stream that was idle, with the first record; of another one by the timer. */
static void keys_of_streams_grow_old(void **state)
{
    struct world *w = linked("tcp mend sealed");
    struct side *a = &w->side[0], *b = &w->side[1];
    struct sending out[2];
    struct seal *seals;

    put(a, 1, 0, 8, 100, &out[0]);
    pump_until(w, b->msgs == 1 && !inside(a)->timer_on && !inside(b)->timer_on);
    seals = inside(a)->slot[1]->conn[0]->seals;
    seal_age(seals, SEAL_MS);
    put(a, 1, 1, 8, 100, &out[1]);
    assert_int_equal(seal_generation(seals), 1);
    pump_until(w, b->msgs == 2);
    assert_int_equal(seal_generation(inside(b)->slot[0]->conn[0]->opens), 1);
    seal_age(seals, SEAL_MS);
    pump_until(w, seal_generation(seals) == 2); /* with the probe */
    pump_until(w, seal_generation(inside(b)->slot[0]->conn[0]->opens) == 2);
    assert_int_equal(a->down + b->down, 0);
    free_sendings(out, 2);
    world_free(w);
}

static bool at_its_end(int fd)
{
    char byte;

    return recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

/* The stream goes on with the next attempt. What was sent behind that ACCEPT, and acknowledged, is
 * there. */
static void a_changed_accept_costs_no_stream(void **state)
{
    enum { MANY = 12 };
    static struct middle m;
    struct sending out[MANY];
    struct side *a, *b;
    struct world *w;

    m = (struct middle){.kind = "tcp mend sealed"};
    w = in_the_middle(&m);
    a = &w->side[0];
    b = &w->side[1];
    put(a, 1, 0, 8, 100, &out[0]);
    pass_until(w, &m, NULL, 0, b->msgs == 1);
    for (unsigned i = 0; i < 3; i++) {
        close(m.fd[0]);
        close(m.fd[1]);
        pump_until(w, !a->connected);
        for (unsigned k = 1; k < MANY && i == 0; k++)
            put(a, 1, k, 8, 1000, &out[k]);
        m.meddled = false;
        middle_takes(&m, w);
        if (i < 2)
            pass_until(w, &m, lengthen, sizeof(struct hello), m.meddled && at_its_end(m.fd[1]));
    }
    pass_until(w, &m, NULL, 0, b->msgs == MANY && count_done(out, MANY) == MANY);
    assert_int_equal(a->down + b->down + b->bad_order + b->bad_bytes, 0);
    free_sendings(out, MANY);
    world_free(w);
    middle_end(&m);
}

/* Nor does a hello of an attempt, or the answer to it: the next one goes on. */
static void a_changed_hello_costs_no_stream(void **state)
{
    static struct middle m;

    for (int way = 0; way < 2; way++) {
        struct sending out[2];
        struct side *a, *b;
        struct world *w;

        m = (struct middle){.kind = "tcp mend sealed", .way = way};
        w = in_the_middle(&m);
        a = &w->side[0];
        b = &w->side[1];
        put(a, 1, 0, 8, 100, &out[0]);
        pass_until(w, &m, NULL, 0, b->msgs == 1);
        *addr_port(&inside(b)->slot[0]->addr) = htons(1); /* it does not come past him */
        for (unsigned i = 0; i < 2; i++) {
            close(m.fd[0]);
            close(m.fd[1]);
            pump_until(w, !a->connected);
            m.meddled = false;
            middle_takes(&m, w);
            if (i == 0)
                pass_until(w, &m, flip, 0, m.meddled && at_its_end(m.fd[0]));
        }
        put(a, 1, 1, 8, 100, &out[1]);
        pass_until(w, &m, NULL, 0, b->msgs == 2 && count_done(out, 2) == 2);
        assert_int_equal(a->down + b->down + b->bad_order + b->bad_bytes, 0);
        free_sendings(out, 2);
        world_free(w);
        middle_end(&m);
    }
}

int run_sealed_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(records_come_back),
        cmocka_unit_test(each_bit_is_checked),
        cmocka_unit_test(order_is_checked),
        cmocka_unit_test(keys_are_of_one_stream),
        cmocka_unit_test(keys_wear_out),
        cmocka_unit_test(ciphers_are_chosen),
        cmocka_unit_test(passes_what_is_left_alone),
        cmocka_unit_test(the_key_is_told),
        cmocka_unit_test(meddling_ends_the_link),
        cmocka_unit_test(what_cannot_be_encrypted_ends_the_link),
        cmocka_unit_test(what_nobody_follows_is_missed),
        cmocka_unit_test(old_keys_are_forgotten),
        cmocka_unit_test(quiet_sides_sleep),
        cmocka_unit_test(keys_grow_old),
        cmocka_unit_test(keys_of_streams_grow_old),
        cmocka_unit_test(who_holds_all_back_is_noticed),
        cmocka_unit_test(who_comes_late_is_not_lost),
        cmocka_unit_test(answers_are_asked_for),
        cmocka_unit_test(a_changed_accept_costs_no_stream),
        cmocka_unit_test(a_changed_hello_costs_no_stream),
    };

    return cmocka_run_group_tests_name("fabric tcp, sealed", tests, NULL, NULL);
}

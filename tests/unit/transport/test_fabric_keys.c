/* test_fabric_keys.c - fresh secrets for streams that are encrypted and under way: in records by
 * themselves, and between two sides which get them in any order, late, or not at all. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif
#include "tests/unit/transport/fabric_raw.h"

static const uint8_t secret[SEAL_SECRET] = {1, 2, 3};

/* The fresh secret number @n of the test. */
static void fresh_of(unsigned n, uint8_t out[SEAL_SECRET])
{
    memset(out, 0xab, SEAL_SECRET);
    memcpy(out, &n, sizeof(n));
}

/* ---- records --------------------------------------------------------------------------------- */

static void refresh(struct seal *s, unsigned n)
{
    uint8_t fresh[SEAL_SECRET];

    fresh_of(n, fresh);
    seal_refresh(s, fresh);
}

static void record_of(struct seal *s, const char *text, uint8_t *out)
{
    struct iovec iov = {(void *)(uintptr_t)text, strlen(text)};

    assert_int_equal(seal_put(s, &iov, 1, out), 0);
}

static int opened(struct seal *s, const uint8_t *record)
{
    uint8_t got[256];

    return seal_get(s, record, got);
}

static void a_generation_begins_with_a_fresh_secret(void **state)
{
    struct seal *out = seal_new(SEAL_AES_128_GCM, secret, true),
                *in = seal_new(SEAL_AES_128_GCM, secret, false),
                *old = seal_new(SEAL_AES_128_GCM, secret, false),
                *other = seal_new(SEAL_AES_128_GCM, secret, false);
    uint8_t record[64];

    record_of(out, "before", record);
    assert_int_equal(opened(in, record), 0);
    assert_int_equal(opened(old, record), 0);
    assert_int_equal(opened(other, record), 0);
    refresh(in, 7);
    refresh(other, 8);
    refresh(out, 7);
    record_of(out, "after", record);
    assert_int_equal(seal_generation(out), 1);
    assert_int_equal(opened(in, record), 0);
    assert_int_equal(seal_generation(in), 1);
    assert_int_equal(opened(old, record), -EBADMSG); /* who knows all but the fresh secret */
    assert_int_equal(opened(other, record), -EBADMSG);
    record[2] = record[3] = 0; /* said to be of none */
    assert_int_equal(opened(old, record), -EBADMSG);
    seal_free(out);
    seal_free(in);
    seal_free(old);
    seal_free(other);
}

/* Fresh secrets, and generations that are worn, in any mixture; the receiver knows several, of
 * which the sender passes over some. */
static void generations_of_both_kinds(void **state)
{
    enum { MANY = 400 };
    struct seal *out = seal_new(SEAL_CHACHA20_POLY1305, secret, true),
                *in = seal_new(SEAL_CHACHA20_POLY1305, secret, false);
    uint64_t rng = 1;
    unsigned told = 0, used = 0;
    uint8_t record[64];

    seal_set_records(out, 5);
    for (unsigned i = 0; i < MANY; i++) {
        if (rnd(&rng) % 4 == 0 && told < used + SEAL_FRESH)
            refresh(in, ++told);
        if (told > used && rnd(&rng) % 6 == 0)
            refresh(out, used += 1 + (unsigned)(rnd(&rng) % (told - used)));
        record_of(out, "text", record);
        assert_int_equal(opened(in, record), 0);
        assert_int_equal(seal_generation(in), seal_generation(out));
    }
    assert_true(used > 20 && seal_generation(out) > MANY / 5);
    seal_free(out);
    seal_free(in);
}

/* A stream stands still, and keys change: what was sent before is opened when it comes. */
static void secrets_wait_for_what_is_on_its_way(void **state)
{
    enum { TOLD = 16 };
    struct seal *out = seal_new(SEAL_AES_128_GCM, secret, true),
                *in = seal_new(SEAL_AES_128_GCM, secret, false);
    uint8_t record[2][64];

    refresh(out, 1);
    record_of(out, "text", record[0]);
    refresh(out, TOLD);
    record_of(out, "text", record[1]);
    for (unsigned i = 1; i <= TOLD; i++)
        refresh(in, i);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(opened(in, record[i]), 0);
    assert_int_equal(seal_generation(in), 2);
    seal_free(out);
    seal_free(in);
}

/* ---- two sides ------------------------------------------------------------------------------- */

/* Of the two sides @i and the other one. */
static struct tcp_peer *peer_of(struct world *w, unsigned i)
{
    return inside(&w->side[i])->slot[!i];
}

static void give_to(struct world *w, unsigned i, unsigned n)
{
    uint8_t fresh[SEAL_SECRET];

    fresh_of(n, fresh);
    w->side[i].f->ops->peer_key(w->side[i].f, !i, fresh);
}

/* All streams of side @i seal with, and open by, the generation @seals and @opens at least. */
static bool all_at(struct world *w, unsigned i, uint32_t seals, uint32_t opens)
{
    struct tcp_peer *peer = peer_of(w, i);

    for (unsigned k = 0; k < peer->channels + peer->express; k++)
        if (!peer->conn[k] || !peer->conn[k]->seals ||
            seal_generation(peer->conn[k]->seals) < seals ||
            seal_generation(peer->conn[k]->opens) < opens)
            return false;
    return true;
}

/* All streams of side @i have agreed on secret @n. */
static bool agreed(struct world *w, unsigned i, unsigned n)
{
    struct tcp_peer *peer = peer_of(w, i);
    uint8_t fresh[SEAL_SECRET];

    fresh_of(n, fresh);
    for (unsigned k = 0; k < peer->channels + peer->express; k++)
        if (!peer->conn[k] || peer->conn[k]->key_used != seal_name(fresh))
            return false;
    return true;
}

static void talk(struct world *w, unsigned i, uint32_t seq, size_t len)
{
    unsigned msgs = w->side[!i].msgs, taken = w->side[!i].taken;
    struct sending out;

    put(&w->side[i], !i, seq, 8, len, &out);
    pump_until(w, w->side[!i].msgs == msgs + 1 && out.done == 1 &&
                      w->side[!i].taken == taken + (len > FABRIC_EXPRESS_MAX));
    free_sendings(&out, 1);
}

static const char *const kinds[] = {"tcp sealed", "tcp x 3 sealed", "tcp express sealed",
                                    "tcp mend sealed", "tcp sealed threads"};

static void both_get_it_one_after_the_other(void **state)
{
    for (unsigned i = 0; i < 2 * ARRAY_LEN(kinds); i++) {
        struct world *w = linked(kinds[i / 2]);
        unsigned first = i % 2;

        talk(w, 0, 0, 100);
        talk(w, 1, 0, 100);
        give_to(w, first, 1);
        talk(w, 0, 1, 100);
        talk(w, 1, 1, MB);
        assert_int_equal(seal_generation(peer_of(w, 0)->conn[0]->seals), 0); /* one has it */
        give_to(w, !first, 1);
        pump_until(w, agreed(w, 0, 1) && agreed(w, 1, 1));
        assert_int_equal(peer_of(w, 0)->conn[0]->key_ticks + peer_of(w, 1)->conn[0]->key_ticks, 0);
        talk(w, 0, 2, MB);
        talk(w, 1, 2, 100);
        assert_int_equal(seal_generation(peer_of(w, 0)->conn[0]->seals), 1);
        assert_int_equal(seal_generation(peer_of(w, 1)->conn[0]->seals), 1);
        give_to(w, first, 1); /* again: it is the same */
        talk(w, 0, 3, 100);
        talk(w, 1, 3, 100);
        assert_int_equal(seal_generation(peer_of(w, 0)->conn[0]->seals), 1);
        assert_int_equal(w->side[0].down + w->side[1].down, 0);
        world_free(w);
    }
}

static void one_never_gets_it(void **state)
{
    struct world *w = linked("tcp sealed");

    give_to(w, 0, 1); /* before there is a connection */
    talk(w, 0, 0, 100);
    give_to(w, 0, 2);
    talk(w, 0, 1, MB);
    talk(w, 1, 0, 100);
    give_to(w, 1, 3); /* another one */
    talk(w, 0, 2, 100);
    talk(w, 1, 1, MB);
    assert_true(all_at(w, 0, 0, 0) && seal_generation(peer_of(w, 0)->conn[0]->seals) == 0);
    assert_int_equal(seal_generation(peer_of(w, 1)->conn[0]->seals), 0);
    give_to(w, 0, 3);
    pump_until(w, agreed(w, 0, 3) && agreed(w, 1, 3));
    talk(w, 0, 3, 100);
    talk(w, 1, 2, 100);
    assert_true(all_at(w, 0, 1, 1) && all_at(w, 1, 1, 1));
    world_free(w);
}

/* As if somebody held back what says that a side has it, to keep the link at the keys of before. */
static void it_is_not_waited_for_for_good(void **state)
{
    for (unsigned i = 0; i < 2; i++) {
        struct world *w = linked("tcp mend sealed");
        struct side *s = &w->side[i];
        struct conn *c;

        talk(w, i, 0, 100);
        pump_until(w, inside(s)->nopen == 1);
        give_to(w, i, 1);
        c = peer_of(w, i)->conn[0];
        assert_int_equal(c->key_ticks, KEY_TICKS);
        talk(w, i, 1, 100); /* which counts for nothing */
        pump_until(w, c->key_ticks < KEY_TICKS);
        c->key_ticks = 2;
        pump_until(w, s->down == 1);
        assert_int_equal(s->down_err, -EBADMSG);
        assert_non_null(
            strstr(s->down_why, "authentication failed: the other engine has not taken"));
        world_free(w);
    }
}

static void both_have_it_before_they_connect(void **state)
{
    struct world *w = linked("tcp x 3 sealed");

    give_to(w, 0, 1);
    give_to(w, 1, 1);
    talk(w, 0, 0, MB);
    talk(w, 1, 0, MB);
    pump_until(w, agreed(w, 0, 1) && agreed(w, 1, 1));
    world_free(w);
}

/* What the keys of the beginning were made of does not outlive the beginning. */
static void no_secrets_stay(void **state)
{
    static const uint8_t none[SEAL_SECRET];
    struct world *w = linked("tcp x 3 sealed");
    struct side *s = &w->side[0];
    uint8_t mine[32], theirs[32];

    talk(w, 0, 0, MB);
    talk(w, 1, 0, MB);
    for (unsigned i = 0; i < 2; i++) {
        struct tcp_peer *peer = peer_of(w, i);

        assert_memory_equal(peer->token, none, 32);
        assert_memory_equal(peer->expect, none, 32);
        assert_memory_equal(peer->streams, none, SEAL_SECRET);
        assert_memory_not_equal(peer->link, none, SEAL_SECRET);
    }
    token(mine, 0, 1, 1); /* tokens are still told apart */
    token(theirs, 2, 0, 1);
    assert_int_equal(s->f->ops->peer_add(s->f, 2, s->addr, s->addr_len, mine, theirs), -EADDRINUSE);
    token(mine, 0, 2, 1);
    token(theirs, 1, 0, 1);
    assert_int_equal(s->f->ops->peer_add(s->f, 2, s->addr, s->addr_len, mine, theirs), -EADDRINUSE);
    world_free(w);
}

static void one_in_the_clear_takes_none(void **state)
{
    struct world *w = linked("tcp");
    struct side *s = &w->side[0];

    give_to(w, 0, 1);
    give_to(w, 1, 1);
    talk(w, 0, 0, 100);
    talk(w, 1, 0, 100);
    assert_int_equal(s->down, 0);
    assert_int_equal(conn_put_frame(peer_of(w, 1)->conn[0], FRAME_KEY, 5), 0);
    pump_until(w, s->down == 1);
    assert_int_equal(s->down_err, -EPROTO);
    world_free(w);
    w = linked("tcp");
    talk(w, 0, 0, 100);
    pump_until(w, inside(&w->side[1])->nopen == 1);
    conn_put_probe(peer_of(w, 1)->conn[0]); /* which a side in the clear does not answer */
    pump_until(w, w->side[0].down == 1);
    assert_int_equal(w->side[0].down_err, -EPROTO);
    world_free(w);
}

/* Secrets come to both sides in the same order, late, and some to one side only, while messages are
 * under way and sockets break. */
static void life(const char *kind, uint64_t seed)
{
    enum { N = 120 };
    static const size_t sizes[] = {0, 8, 100, 5000, 40000, 300000};
    struct world *w = linked(kind);
    struct sending out[2][N];
    unsigned put_by[2] = {0}, given[2] = {0}, cuts = 0, newest = 0;
    uint64_t rng = seed * 0x9e3779b97f4a7c15u + 1;
    bool mends = strstr(kind, "mend");

    for (unsigned i = 0; i < 2; i++)
        w->side[i].take = TAKE_AT_ONCE;
    while (w->side[0].msgs < N || w->side[1].msgs < N) {
        unsigned i = (unsigned)(rnd(&rng) % 2);
        struct tcp_peer *peer = peer_of(w, i);

        assert_int_equal(w->side[0].down + w->side[1].down, 0);
        if (put_by[i] < N && rnd(&rng) % 3) {
            put(&w->side[i], !i, put_by[i], 8, sizes[rnd(&rng) % ARRAY_LEN(sizes)],
                &out[i][put_by[i]]);
            put_by[i]++;
        }
        if (rnd(&rng) % 16 == 0)
            newest++;
        if (rnd(&rng) % 8 == 0 && given[i] < newest)
            give_to(w, i, given[i] += 1 + (unsigned)(rnd(&rng) % (newest - given[i])));
        if (mends && rnd(&rng) % 24 == 0 && peer->conn[0] && peer->conn[0]->state == CONN_OPEN &&
            peer->state == PEER_UP)
            cuts += !shutdown(peer->conn[0]->fd, SHUT_RDWR);
        if (!turn(w))
            rest(w);
    }
    pump_until(w, count_done(out[0], N) == N && count_done(out[1], N) == N &&
                      w->side[0].taken == w->side[0].bodies &&
                      w->side[1].taken == w->side[1].bodies);
    give_to(w, 0, newest + 1);
    give_to(w, 1, newest + 1);
    pump_until(w, agreed(w, 0, newest + 1) && agreed(w, 1, newest + 1));
    talk(w, 0, N, 100);
    talk(w, 1, N, 100);
    assert_true(seal_generation(peer_of(w, 0)->conn[0]->seals) > 0);
    assert_true(!mends || cuts > 0);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(w->side[i].bad_order + w->side[i].bad_bytes + w->side[i].down, 0);
        free_sendings(out[i], N);
    }
    world_free(w);
}

static void secrets_come_at_any_time(void **state)
{
    static const char *const lives[] = {"tcp sealed",          "tcp x 3 sealed",
                                        "tcp express sealed",  "tcp mend sealed",
                                        "tcp x 3 mend sealed", "tcp mend sealed threads"};

    for (uint64_t seed = 1; seed <= 6; seed++)
        life(lives[seed % ARRAY_LEN(lives)], seed);
}

int run_key_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_generation_begins_with_a_fresh_secret),
        cmocka_unit_test(generations_of_both_kinds),
        cmocka_unit_test(secrets_wait_for_what_is_on_its_way),
        cmocka_unit_test(both_get_it_one_after_the_other),
        cmocka_unit_test(one_never_gets_it),
        cmocka_unit_test(it_is_not_waited_for_for_good),
        cmocka_unit_test(both_have_it_before_they_connect),
        cmocka_unit_test(no_secrets_stay),
        cmocka_unit_test(one_in_the_clear_takes_none),
        cmocka_unit_test(secrets_come_at_any_time),
    };

    return cmocka_run_group_tests_name("fabric tcp, fresh keys", tests, NULL, NULL);
}

/* test_fabric_greet.c - what two sides say to each other first, and the keys that come of it: each
 * bit counts, in each role, and all is compared with what was computed by other means. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif
#include "tests/unit/transport/fabric_raw.h"
#include "transport/fabric/agree.h"

#define TEXT(s) ((struct iovec){(void *)(uintptr_t)(s), strlen(s)})

/* Two sides as they stand when both hellos are said. */
struct greeting {
    struct tcp_peer a, b; /* @a connects */
    struct conn asks, answers;
    struct hello ask, answer;
};

static struct tcp_peer peer_of(bool connects)
{
    struct tcp_peer peer = {.connects = connects, .encrypted = true, .version = HELLO_VERSION};

    memset(peer.token, connects ? 1 : 2, sizeof(peer.token));
    memset(peer.expect, connects ? 2 : 1, sizeof(peer.expect));
    assert_int_equal(peer_ids(&peer), 0);
    return peer;
}

static struct greeting greeted(void)
{
    struct greeting g = {.a = peer_of(true), .b = peer_of(false)};

    g.ask = (struct hello){.magic = HELLO_MAGIC, .version = HELLO_VERSION, .channels = 1};
    g.ask.ciphers = SEAL_AES_128_GCM;
    assert_int_equal(hello_say(&g.asks, &g.a, &g.ask, false), 0);
    g.answers.hello = g.answer = g.ask;
    assert_int_equal(hello_say(&g.answers, &g.b, &g.answer, true), 0);
    g.asks.hello = g.answer;
    return g;
}

static struct greeting agreed(void)
{
    struct greeting g = greeted();

    assert_int_equal(conn_agree(&g.asks, &g.a, true), 0);
    assert_int_equal(conn_agree(&g.answers, &g.b, false), 0);
    return g;
}

static void greeting_end(struct greeting *g)
{
    conn_unseal(&g->asks);
    conn_unseal(&g->answers);
}

static void each_bit_of_a_hello_is_checked(void **state)
{
    struct greeting g = greeted();

    assert_true(hello_is_of(&g.b, &g.ask, NULL));
    assert_true(hello_is_of(&g.a, &g.answer, &g.ask));
    for (size_t bit = 0; bit < 8 * sizeof(struct hello); bit++) {
        struct hello ask = g.ask, answer = g.answer;

        ((uint8_t *)&ask)[bit / 8] ^= (uint8_t)(1 << bit % 8);
        ((uint8_t *)&answer)[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_false(hello_is_of(&g.b, &ask, NULL));
        assert_false(hello_is_of(&g.a, &answer, &g.ask));
        assert_false(hello_is_of(&g.a, &g.answer, &ask)); /* it is no answer to that one */
    }
}

/* Both sides know the same secret, so a side's own hello has a mac that is right. */
static void hellos_are_of_one_peer(void **state)
{
    struct greeting g = greeted();

    assert_false(hello_is_of(&g.a, &g.ask, NULL));
    assert_false(hello_is_of(&g.a, &g.ask, &g.ask));
    assert_false(hello_is_of(&g.b, &g.answer, NULL));
    assert_false(hello_is_of(&g.b, &g.answer, &g.ask));
    g.b.their_id[ID_LEN - 1] ^= 1; /* of a peer whose id is another one at its end */
    assert_false(hello_is_of(&g.b, &g.ask, NULL));
}

static void answers_are_to_one_hello(void **state)
{
    struct greeting g = greeted(), other = greeted();

    assert_true(hello_is_of(&g.b, &other.ask, NULL)); /* of the same peer */
    assert_false(hello_is_of(&g.a, &other.answer, &g.ask));
    assert_false(hello_is_of(&g.a, &g.answer, NULL));
    assert_false(hello_is_of(&g.b, &g.ask, &g.ask));
}

static void hellos_are_never_alike(void **state)
{
    struct greeting g = greeted(), other = greeted();

    assert_memory_not_equal(g.ask.nonce, other.ask.nonce, NONCE_LEN);
    assert_memory_not_equal(g.answer.nonce, other.answer.nonce, NONCE_LEN);
    assert_memory_not_equal(g.ask.nonce, g.answer.nonce, NONCE_LEN);
}

static bool opens_with(struct greeting *g, const struct accept *accept)
{
    g->answers.heard = *accept;
    g->answers.peer = &g->b;
    return accept_is_right(&g->answers);
}

static void any_other_accept_is_refused(void **state)
{
    struct greeting g = agreed(), other = agreed();

    assert_true(opens_with(&g, &g.asks.accept));
    assert_false(opens_with(&g, &other.asks.accept));
    for (size_t bit = 0; bit < 8 * sizeof(struct accept); bit++) {
        struct accept accept = g.asks.accept;

        ((uint8_t *)&accept)[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_false(opens_with(&g, &accept));
    }
    greeting_end(&g);
    greeting_end(&other);
}

/* As the head of fabric_tcp_greet.c says it. */
static void what_is_said_is_known(void **state)
{
    struct greeting g = agreed();
    uint8_t one[32], two[32], link[SEAL_SECRET], mac[SEAL_SECRET];
    struct iovec larger[] = {TEXT("link"), {two, 32}}, id = TEXT("id");
    struct iovec ask[] = {TEXT("hello"), {&g.ask, offsetof(struct hello, mac)}};
    struct iovec answer[] = {
        TEXT("answer"), {&g.answer, offsetof(struct hello, mac)}, {&g.ask, sizeof(struct hello)}};
    struct iovec both[] = {TEXT("accept"), {g.ask.mac, MAC_LEN}, {g.answer.mac, MAC_LEN}};

    memset(one, 1, sizeof(one));
    memset(two, 2, sizeof(two));
    seal_mac(one, larger, 2, link);
    seal_mac(one, &id, 1, mac);
    assert_memory_equal(g.ask.id, mac, ID_LEN);
    seal_mac(two, &id, 1, mac);
    assert_memory_equal(g.answer.id, mac, ID_LEN);
    seal_mac(link, ask, 2, mac);
    assert_memory_equal(g.ask.mac, mac, MAC_LEN);
    seal_mac(link, answer, 3, mac);
    assert_memory_equal(g.answer.mac, mac, MAC_LEN);
    seal_mac(link, both, 3, mac);
    assert_memory_equal(g.asks.accept.mac, mac, MAC_LEN);
    for (size_t i = 0; i + 16 <= sizeof(struct hello); i++) { /* no token goes over the network */
        assert_memory_not_equal((uint8_t *)&g.ask + i, one, 16);
        assert_memory_not_equal((uint8_t *)&g.answer + i, two, 16);
    }
    greeting_end(&g);
}

/* ---- keys ------------------------------------------------------------------------------------ */

static int passes(struct seal *from, struct seal *to)
{
    struct iovec iov = TEXT("text");
    uint8_t record[64], got[64];
    int r;

    assert_int_equal(seal_put(from, &iov, 1, record), 0);
    r = seal_get(to, record, got);
    assert_true(r || !memcmp(got, "text", 4));
    return r;
}

static void keys_are_of_one_direction(void **state)
{
    struct greeting g = agreed();

    assert_int_equal(passes(g.asks.seals, g.asks.opens), -EBADMSG); /* it comes back */
    assert_int_equal(passes(g.answers.seals, g.answers.opens), -EBADMSG);
    greeting_end(&g);
    g = agreed();
    assert_int_equal(passes(g.asks.seals, g.answers.opens), 0);
    assert_int_equal(passes(g.answers.seals, g.asks.opens), 0);
    greeting_end(&g);
}

static void keys_are_of_one_stream_of_a_link(void **state)
{
    struct greeting g = agreed(), other = agreed();

    assert_int_equal(passes(g.asks.seals, other.answers.opens), -EBADMSG);
    assert_int_equal(passes(g.answers.seals, other.asks.opens), -EBADMSG);
    greeting_end(&g);
    greeting_end(&other);
}

static int agree_on(unsigned asked, unsigned answered)
{
    struct greeting g = greeted();
    int r;

    g.asks.said.ciphers = (uint16_t)asked;
    g.asks.hello.ciphers = (uint16_t)answered;
    r = conn_agree(&g.asks, &g.a, true);
    assert_true(r || (g.asks.seals && g.asks.opens));
    greeting_end(&g);
    return r;
}

static void the_cipher_is_agreed(void **state)
{
    unsigned both = SEAL_AES_128_GCM | SEAL_CHACHA20_POLY1305;

    assert_int_equal(agree_on(both, SEAL_AES_128_GCM), 0);
    assert_int_equal(agree_on(both, SEAL_CHACHA20_POLY1305), 0); /* the other CPU has no AES */
    assert_int_equal(agree_on(SEAL_AES_128_GCM, SEAL_CHACHA20_POLY1305), -EPROTO);
    assert_int_equal(agree_on(both, both), -EPROTO);
    assert_int_equal(agree_on(both, 4), -EPROTO);
    assert_int_equal(agree_on(both, 0), -EPROTO); /* in the clear */
}

/* All that two sides can say, and where they can be. */
static void two_sides_agree_on_encryption(void **state)
{
    enum { OFF = FABRIC_ENCRYPT_OFF, AUTO = FABRIC_ENCRYPT_AUTO, ON = FABRIC_ENCRYPT_ON };
    enum { CLEAR = AGREED_CLEAR, SEALED = AGREED_ENCRYPTED, NO = AGREED_ON_AND_OFF };
    enum { WARY = AGREED_UNTRUSTED };
    static const struct {
        int ours, theirs, loopback, both_trust, one_trusts, none_trusts;
    } rows[] = {
        {OFF, OFF, CLEAR, CLEAR, WARY, WARY},
        {OFF, AUTO, CLEAR, CLEAR, WARY, WARY},
        {OFF, ON, NO, NO, NO, NO},
        {AUTO, OFF, CLEAR, CLEAR, WARY, WARY},
        {AUTO, AUTO, CLEAR, SEALED, SEALED, SEALED},
        {AUTO, ON, SEALED, SEALED, SEALED, SEALED},
        {ON, OFF, NO, NO, NO, NO},
        {ON, AUTO, SEALED, SEALED, SEALED, SEALED},
        {ON, ON, SEALED, SEALED, SEALED, SEALED},
    };

    for (unsigned i = 0; i < ARRAY_LEN(rows); i++)
        for (unsigned trust = 0; trust < 4; trust++) {
            const struct fabric_wants ours = {(enum fabric_encryption)rows[i].ours, trust & 1},
                                      theirs = {(enum fabric_encryption)rows[i].theirs, trust & 2};
            int want = trust == 3 ? rows[i].both_trust
                       : trust    ? rows[i].one_trusts
                                  : rows[i].none_trusts;

            assert_int_equal(fabric_agree(&ours, &theirs, true), rows[i].loopback);
            assert_int_equal(fabric_agree(&ours, &theirs, false), want);
        }
}

static void who_does_not_agree_is_named(void **state)
{
    const struct fabric_wants on = {FABRIC_ENCRYPT_ON, false}, off = {FABRIC_ENCRYPT_OFF, true},
                              wary = {FABRIC_ENCRYPT_AUTO, false};
    char why[256];

    fabric_disagree(&on, "a", &off, "b", why, sizeof(why));
    assert_string_equal(why, "transport.encryption is on on node a and off on node b: set it to "
                             "auto on node b, then systemctl reload commd there");
    fabric_disagree(&off, "b", &wary, "a", why, sizeof(why));
    assert_string_equal(why,
                        "transport.encryption is off on node b and auto on node a, and "
                        "transport.trusted_network is not true on node a: set the first to auto on "
                        "node b, or the second to true, then systemctl reload commd there");
    fabric_disagree(&wary, "a", &off, "b", why, sizeof(why));
    assert_non_null(strstr(why, "is auto on node a and off on node b, and transport.trusted_"
                                "network is not true on node a: "));
}

/* What @s, on loopback, makes of a node with @wants at @first_byte.0.0.1. */
static int meets(struct world *w, uint8_t wants, uint8_t first_byte)
{
    struct side *s = &w->side[0];
    uint8_t mine[32] = {2}, theirs[32] = {1}; /* the other side connects */
    struct tcp_addr a;
    int r;

    assert_int_equal(s->addr_len, sizeof(a));
    memcpy(&a, s->addr, sizeof(a));
    a.wants = wants;
    a.ip[0] = first_byte;
    r = s->f->ops->peer_add(s->f, 1, &a, sizeof(a), mine, theirs);
    if (r)
        return r;
    r = inside(s)->slot[1]->encrypted;
    s->f->ops->peer_del(s->f, 1);
    pump_until_quiet(w);
    return r;
}

static void who_says_off_takes_nobody_into_the_clear(void **state)
{
    struct world *w = world_new("tcp auto", 1);

    assert_int_equal(meets(w, FABRIC_ENCRYPT_OFF, 127), 0);
    assert_int_equal(meets(w, FABRIC_ENCRYPT_OFF, 10), -EACCES);
    assert_int_equal(meets(w, FABRIC_ENCRYPT_OFF | WANTS_TRUSTED, 10), -EACCES);
    assert_int_equal(meets(w, FABRIC_ENCRYPT_AUTO, 127), 0);
    assert_int_equal(meets(w, FABRIC_ENCRYPT_AUTO, 10), 1);
    assert_int_equal(meets(w, FABRIC_ENCRYPT_ON, 127), 1);
    assert_int_equal(meets(w, FABRIC_ENCRYPT_ON + 1, 10), -EINVAL);
    world_free(w);
    w = world_new("tcp auto trusted", 1);
    assert_int_equal(meets(w, FABRIC_ENCRYPT_OFF, 10), -EACCES);
    assert_int_equal(meets(w, FABRIC_ENCRYPT_OFF | WANTS_TRUSTED, 10), 0);
    assert_int_equal(meets(w, FABRIC_ENCRYPT_AUTO | WANTS_TRUSTED, 10), 1);
    world_free(w);
    w = world_new("tcp sealed", 1);
    assert_int_equal(meets(w, FABRIC_ENCRYPT_OFF | WANTS_TRUSTED, 10), -EACCES);
    world_free(w);
}

/* ---- records --------------------------------------------------------------------------------- */

/* Of "one" under the secret 1, 2, 3, 0..., with a new key after two of them; as Python's hmac and
 * cryptography make them. */
static const char *const known[2][4] = {
    {"030000000000000043ef6d80c8b0e7008fb2314bf32f289fcc26e7",
     "03000000000000002913fdfe9ca901f84538df977a37cde341799b",
     "03000000010000001c653bb38ea6eeb880976ae1979c25ccaad7e0",
     "03000000010000002d79d551b3ab941c3814f65fb961a72ee4ce1c"},
    {"0300000000000000439dfca245787800891a3d2775f7ae71aba6ee",
     "0300000000000000e5bd6287556b7efe23d11675129f9ee52c629c",
     "030000000100000046333a5cfd71410af3c7493a37623282133da8",
     "0300000001000000b7bb618a96d8e19cbbc7b6f2947b86d0c171bb"},
};

static void what_is_sealed_is_known(void **state)
{
    static const uint8_t secret[SEAL_SECRET] = {1, 2, 3};
    struct iovec iov = TEXT("one");

    for (unsigned i = 0; i < 2; i++) {
        struct seal *s = seal_new(i ? SEAL_CHACHA20_POLY1305 : SEAL_AES_128_GCM, secret, true);

        seal_set_records(s, 2);
        for (unsigned k = 0; k < 4; k++) {
            uint8_t record[3 + SEAL_MORE];
            char text[2 * sizeof(record) + 1];

            assert_int_equal(seal_put(s, &iov, 1, record), 0);
            for (size_t b = 0; b < sizeof(record); b++)
                sprintf(text + 2 * b, "%02x", record[b]);
            assert_string_equal(text, known[i][k]);
        }
        seal_free(s);
    }
}

static void lengths_are_checked(void **state)
{
    static const uint32_t wrong[] = {0, SEAL_DATA + 1, 1u << 31, UINT32_MAX};
    uint32_t head[2] = {SEAL_DATA};

    assert_int_equal(seal_length((uint8_t *)head), SEAL_DATA);
    for (unsigned i = 0; i < ARRAY_LEN(wrong); i++) {
        head[0] = wrong[i];
        assert_int_equal(seal_length((uint8_t *)head), 0);
    }
}

int run_greet_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_bit_of_a_hello_is_checked),
        cmocka_unit_test(hellos_are_of_one_peer),
        cmocka_unit_test(answers_are_to_one_hello),
        cmocka_unit_test(hellos_are_never_alike),
        cmocka_unit_test(any_other_accept_is_refused),
        cmocka_unit_test(what_is_said_is_known),
        cmocka_unit_test(keys_are_of_one_direction),
        cmocka_unit_test(keys_are_of_one_stream_of_a_link),
        cmocka_unit_test(the_cipher_is_agreed),
        cmocka_unit_test(two_sides_agree_on_encryption),
        cmocka_unit_test(who_does_not_agree_is_named),
        cmocka_unit_test(who_says_off_takes_nobody_into_the_clear),
        cmocka_unit_test(what_is_sealed_is_known),
        cmocka_unit_test(lengths_are_checked),
    };

    return cmocka_run_group_tests_name("fabric tcp, greetings", tests, NULL, NULL);
}

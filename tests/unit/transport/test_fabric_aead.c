/* test_fabric_aead.c - the libraries that encrypt records: that they make the same bytes, and which
 * one is taken. In a build without libipsec-mb libcrypto is compared with itself. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif
#include "tests/unit/transport/fabric_raw.h"

#include "transport/fabric/tcp/aead.h"

static const uint8_t key[AEAD_KEY] = {7, 1, 2};

static const struct aead_ops *other(void)
{
    const struct aead_ops *ops = aead_ipsec_mb();

    return ops ? ops : &aead_libcrypto;
}

static struct aead *with_key(const struct aead_ops *ops, bool seals)
{
    struct aead *a = ops->new (SEAL_AES_128_GCM, seals);

    assert_non_null(a);
    assert_int_equal(ops->set_key(a, key), 0);
    return a;
}

/* ---- the same bytes -------------------------------------------------------------------------- */

struct two {
    struct aead *out[2], *in[2];
    uint8_t data[SEAL_DATA], record[2][SEAL_DATA + SEAL_MORE], got[SEAL_DATA];
};

static void both_make_it(struct two *t, size_t len, size_t first)
{
    struct iovec iov[] = {{t->data, first}, {t->data + first, len - first}};
    uint8_t nonce[AEAD_NONCE] = {(uint8_t)len, (uint8_t)first, 3};
    uint16_t head[SEAL_HEAD / sizeof(uint16_t)] = {(uint16_t)len, (uint16_t)first};

    for (unsigned i = 0; i < 2; i++) {
        memcpy(t->record[i], head, SEAL_HEAD);
        assert_int_equal(
            t->out[i]->ops->put(t->out[i], nonce, iov, first < len ? 2 : 1, t->record[i]), 0);
    }
    assert_memory_equal(t->record[0], t->record[1], len + SEAL_MORE);
    for (unsigned i = 0; i < 2; i++) {
        assert_true(t->in[i]->ops->get(t->in[i], nonce, t->record[i], t->got));
        assert_memory_equal(t->got, t->data, len);
    }
    t->record[0][len + SEAL_MORE - 1 - len % SEAL_TAG] ^= (uint8_t)(1 << first % 8);
    for (unsigned i = 0; i < 2; i++) /* in place */
        assert_int_equal(
            t->in[i]->ops->get(t->in[i], nonce, t->record[i], t->record[i] + SEAL_HEAD), i);
    assert_memory_equal(t->record[1] + SEAL_HEAD, t->data, len);
}

static void libraries_make_the_same_bytes(void **state)
{
    static const size_t large[] = {1000, 4095, 4096, 4097, SEAL_DATA - 1, SEAL_DATA};
    static struct two t;

    for (unsigned i = 0; i < 2; i++) {
        t.out[i] = with_key(i ? other() : &aead_libcrypto, true);
        t.in[i] = with_key(i ? other() : &aead_libcrypto, false);
    }
    for (unsigned i = 0; i < sizeof(t.data); i++)
        t.data[i] = (uint8_t)(i * 7 + i / 256);
    for (size_t len = 1; len <= 300; len++) {
        both_make_it(&t, len, len);
        for (size_t first = 1; first < len; first += len < 70 ? 1 : 13)
            both_make_it(&t, len, first);
    }
    for (unsigned i = 0; i < ARRAY_LEN(large); i++)
        for (size_t first = 1; first <= large[i]; first = MIN(2 * first + 1, first + 2000))
            both_make_it(&t, large[i], first);
    for (unsigned i = 0; i < 2; i++) {
        aead_free(t.out[i]);
        aead_free(t.in[i]);
    }
}

/* ---- which one ------------------------------------------------------------------------------- */

/* libcrypto with a fault; wrong bytes are not in records of the lengths that are timed. */
static enum fault { NO_MEMORY, WRONG_BYTE, WRONG_OUT, HEAD_IGNORED, ANY_TAG, NO_TAG, FAULTS } fault;

static struct aead *faulty_new(enum seal_cipher cipher, bool seals)
{
    return fault == NO_MEMORY ? NULL : aead_libcrypto.new(cipher, seals);
}

static int faulty_put(struct aead *a, const uint8_t nonce[AEAD_NONCE], const struct iovec *iov,
                      unsigned n, uint8_t *record)
{
    size_t len = seal_length(record);

    if (aead_libcrypto.put(a, nonce, iov, n, record))
        return -EIO;
    if (fault == WRONG_BYTE && len == 1000)
        record[SEAL_HEAD + len / 2] ^= 1;
    return 0;
}

static bool faulty_get(struct aead *a, const uint8_t nonce[AEAD_NONCE], const uint8_t *record,
                       uint8_t *out)
{
    static uint8_t copy[SEAL_DATA + SEAL_MORE];
    size_t len = seal_length(record);
    bool right = aead_libcrypto.get(a, nonce, record, out);

    if (fault == WRONG_OUT && len == 1000)
        out[len - 1] ^= 1;
    if (fault == HEAD_IGNORED) {
        memcpy(copy, record, len + SEAL_MORE);
        copy[2] ^= 0x80;
        right |= aead_libcrypto.get(a, nonce, copy, out);
    }
    return fault == NO_TAG ? false : fault == ANY_TAG ? true : right;
}

static int slow_put(struct aead *a, const uint8_t nonce[AEAD_NONCE], const struct iovec *iov,
                    unsigned n, uint8_t *record)
{
    for (unsigned i = 0; i < 3; i++)
        aead_libcrypto.put(a, nonce, iov, n, record);
    return aead_libcrypto.put(a, nonce, iov, n, record);
}

static struct aead_ops slow_ops(void)
{
    struct aead_ops ops = aead_libcrypto;

    ops.put = slow_put;
    return ops;
}

static void who_is_wrong_is_not_taken(void **state)
{
    struct aead_ops slow = slow_ops(), faulty = aead_libcrypto;

    faulty.new = faulty_new;
    faulty.put = faulty_put;
    faulty.get = faulty_get;
    for (fault = 0; fault < FAULTS; fault++)
        assert_ptr_equal(aead_choose(&faulty, &slow), &slow);
    assert_ptr_equal(aead_choose(&faulty, &slow), &faulty); /* without a fault */
    assert_ptr_equal(aead_choose(NULL, &slow), &slow);
}

static void who_is_faster_is_taken(void **state)
{
    struct aead_ops slow = slow_ops();

    assert_ptr_equal(aead_choose(&aead_libcrypto, &slow), &aead_libcrypto);
    assert_ptr_equal(aead_choose(&slow, &aead_libcrypto), &aead_libcrypto);
    assert_ptr_equal(aead_best(SEAL_CHACHA20_POLY1305), &aead_libcrypto);
    assert_ptr_equal(aead_best(SEAL_AES_128_GCM), aead_best(SEAL_AES_128_GCM));
}

int run_aead_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(libraries_make_the_same_bytes),
        cmocka_unit_test(who_is_wrong_is_not_taken),
        cmocka_unit_test(who_is_faster_is_taken),
    };

    return cmocka_run_group_tests_name("fabric tcp, ciphers", tests, NULL, NULL);
}

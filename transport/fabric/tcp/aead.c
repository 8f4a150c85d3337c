/* aead.c - which library has the cipher, decided by what it does: a few records are made by one
 * library and opened by the other, to and fro, also with a bit changed; then both are timed. All
 * of that takes a millisecond or two, once. The rest is libcrypto's ciphers. */
#undef NDEBUG
#include "transport/fabric/tcp/aead.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/rand.h>

#include "shm/util/wait.h"

/* ---- libcrypto ------------------------------------------------------------------------------- */

struct evp {
    struct aead base;
    EVP_CIPHER_CTX *ctx;
    const EVP_CIPHER *cipher; /* libcrypto's own */
    bool seals;
};

static struct evp *evp_of(struct aead *a)
{
    return container_of(a, struct evp, base);
}

static struct aead *evp_free(struct aead *a)
{
    EVP_CIPHER_CTX_free(evp_of(a)->ctx);
    free(evp_of(a));
    return NULL;
}

static struct aead *evp_new(enum seal_cipher cipher, bool seals)
{
    struct evp *e = calloc(1, sizeof(*e));

    if (!e)
        return NULL;
    *e = (struct evp){{&aead_libcrypto}, EVP_CIPHER_CTX_new(), NULL, seals};
    e->cipher = cipher == SEAL_AES_128_GCM ? EVP_aes_128_gcm() : EVP_chacha20_poly1305();
    return e->ctx ? &e->base : evp_free(&e->base);
}

static int evp_set_key(struct aead *a, const uint8_t key[AEAD_KEY])
{
    const struct evp *e = evp_of(a);

    return EVP_CipherInit_ex(e->ctx, e->cipher, NULL, key, NULL, e->seals) ? 0 : -ENOMEM;
}

static void evp_forget(struct aead *a)
{
    EVP_CIPHER_CTX_reset(evp_of(a)->ctx);
}

static int evp_put(struct aead *a, const uint8_t nonce[AEAD_NONCE], const struct iovec *iov,
                   unsigned n, uint8_t *record)
{
    EVP_CIPHER_CTX *ctx = evp_of(a)->ctx;
    uint8_t *at = record + SEAL_HEAD;
    int len;

    if (!EVP_EncryptInit_ex(ctx, NULL, NULL, NULL, nonce) ||
        !EVP_EncryptUpdate(ctx, NULL, &len, record, SEAL_HEAD))
        return -EIO;
    for (unsigned i = 0; i < n; i++, at += len)
        if (!EVP_EncryptUpdate(ctx, at, &len, iov[i].iov_base, (int)iov[i].iov_len))
            return -EIO;
    assert(at == record + SEAL_HEAD + seal_length(record));
    if (!EVP_EncryptFinal_ex(ctx, at, &len) ||
        !EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_AEAD_GET_TAG, SEAL_TAG, at))
        return -EIO;
    return 0;
}

static bool evp_get(struct aead *a, const uint8_t nonce[AEAD_NONCE], const uint8_t *record,
                    uint8_t *out)
{
    EVP_CIPHER_CTX *ctx = evp_of(a)->ctx;
    size_t n = seal_length(record);
    uint8_t end[SEAL_TAG];
    int len;

    return EVP_DecryptInit_ex(ctx, NULL, NULL, NULL, nonce) &&
           EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_AEAD_SET_TAG, SEAL_TAG,
                               (void *)(uintptr_t)(record + SEAL_HEAD + n)) &&
           EVP_DecryptUpdate(ctx, NULL, &len, record, SEAL_HEAD) &&
           EVP_DecryptUpdate(ctx, out, &len, record + SEAL_HEAD, (int)n) && len == (int)n &&
           EVP_DecryptFinal_ex(ctx, end, &len);
}

const struct aead_ops aead_libcrypto = {evp_new,    evp_free, evp_set_key,
                                        evp_forget, evp_put,  evp_get};

/* ---- which one ------------------------------------------------------------------------------- */

enum { TIMED = 10 };

/* What two libraries are compared by: one makes records, the other one opens them. */
struct trial {
    const struct aead_ops *to, *from;
    struct aead *out, *in;
    uint8_t key[AEAD_KEY], nonce[AEAD_NONCE];
    uint8_t data[SEAL_DATA], got[SEAL_DATA], record[SEAL_DATA + SEAL_MORE];
};

static struct trial *trial_free(struct trial *t)
{
    if (!t)
        return NULL;
    aead_free(t->out);
    aead_free(t->in);
    free(t);
    return NULL;
}

static struct trial *trial_new(const struct aead_ops *to, const struct aead_ops *from)
{
    struct trial *t = calloc(1, sizeof(*t));

    if (!t)
        return NULL;
    t->to = to;
    t->from = from;
    t->out = to->new (SEAL_AES_128_GCM, true);
    t->in = from->new (SEAL_AES_128_GCM, false);
    if (!t->out || !t->in || RAND_bytes(t->key, sizeof(t->key)) != 1 ||
        RAND_bytes(t->nonce, sizeof(t->nonce)) != 1 || RAND_bytes(t->data, sizeof(t->data)) != 1 ||
        to->set_key(t->out, t->key) || from->set_key(t->in, t->key))
        return trial_free(t);
    return t;
}

static bool trial_put(struct trial *t, size_t len, size_t first)
{
    struct iovec iov[] = {{t->data, first}, {t->data + first, len - first}};
    uint16_t head[SEAL_HEAD / sizeof(uint16_t)] = {(uint16_t)len, 1, 2, 3};

    memcpy(t->record, head, SEAL_HEAD);
    return !t->to->put(t->out, t->nonce, iov, first < len ? 2 : 1, t->record);
}

static bool trial_get(struct trial *t)
{
    return t->from->get(t->in, t->nonce, t->record, t->got);
}

/* Of header, data and tag. The length is in the header: its bits are left alone. */
static bool sees_changes(struct trial *t, size_t len)
{
    const size_t at[] = {2, SEAL_HEAD, SEAL_HEAD + len - 1, SEAL_HEAD + len, len + SEAL_MORE - 1};
    bool all = true;

    for (unsigned i = 0; i < ARRAY_LEN(at); i++) {
        t->record[at[i]] ^= 0x80;
        all &= !trial_get(t);
        t->record[at[i]] ^= 0x80;
    }
    return all;
}

static bool agrees(const struct aead_ops *to, const struct aead_ops *from)
{
    static const uint16_t lens[] = {1, 8, 15, 16, 17, 64, 255, 256, 1000, 4096 + 24, SEAL_DATA};
    struct trial *t = trial_new(to, from);
    bool all = t != NULL;

    for (unsigned i = 0; all && i < ARRAY_LEN(lens); i++) {
        size_t len = lens[i], first = i % 2 && len > 1 ? len / 3 + 1 : len;

        all = trial_put(t, len, first) && sees_changes(t, len) && trial_get(t) &&
              !memcmp(t->got, t->data, len);
        for (unsigned k = 0; k < AEAD_NONCE; k++)
            t->nonce[k] += (uint8_t)(k + 1);
    }
    trial_free(t);
    return all;
}

/* The least time for a large record and a small one, to and fro: others may use the core, too. */
static uint64_t cost_ns(const struct aead_ops *ops)
{
    struct trial *t = trial_new(ops, ops);
    uint64_t least = UINT64_MAX;

    for (unsigned i = 0; t && i < TIMED; i++) {
        uint64_t begin = now_ns(), took;
        bool done =
            trial_put(t, SEAL_DATA, 24) && trial_get(t) && trial_put(t, 64, 24) && trial_get(t);

        took = now_ns() - begin;
        least = done ? MIN(least, took) : least;
    }
    trial_free(t);
    return least;
}

const struct aead_ops *aead_choose(const struct aead_ops *fast, const struct aead_ops *known)
{
    if (fast && agrees(fast, known) && agrees(known, fast) && cost_ns(fast) < cost_ns(known))
        return fast;
    return known;
}

const struct aead_ops *aead_best(enum seal_cipher cipher)
{
    static const struct aead_ops *best;

    if (cipher != SEAL_AES_128_GCM)
        return &aead_libcrypto;
    if (!best)
        best = aead_choose(aead_ipsec_mb(), &aead_libcrypto);
    return best;
}

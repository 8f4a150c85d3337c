/* seal.c - records of a stream that are encrypted and authenticated (how: aead.h).
 *
 *   key, iv of a generation = HMAC(secret, "key"), HMAC(secret, "iv"), cut to their lengths
 *   secret of the next one  = HMAC(secret, "next", the fresh secret that it begins with, or
 * nothing)
 *
 * 2^22 records of 16 KB under one key keep far below the limits of AES-GCM (RFC 8446, 5.5). */
#undef NDEBUG
#include "transport/fabric/tcp/aead.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "shm/util/wait.h"

enum { IV = AEAD_NONCE, IDLE = 16 };
_Static_assert(sizeof((struct seal_batch){.number = 0}.iv) == IV, "of seal.h and of aead.h");

struct fresh {
    uint16_t mark; /* in records of the generation that begins with it; 0: with none */
    uint8_t secret[SEAL_SECRET];
};

struct record_head {
    uint16_t len, mark;
    uint32_t generation;
};
_Static_assert(sizeof(struct record_head) == SEAL_HEAD, "wire layout");

struct seal {
    struct aead *aead, *spare; /* @spare: of a generation that is tried */
    struct aead *idle[IDLE];   /* with the key of now: batches have had them */
    unsigned nidle, nlent;
    uint8_t secret[SEAL_SECRET], iv[IV];
    enum seal_cipher kind;
    bool seals;
    uint32_t generation;
    uint64_t number; /* of the next record */
    uint64_t since;  /* number of the first of this generation */
    uint64_t since_ms, records;
    bool old; /* SEAL_MS are over */
    uint16_t mark;
    struct fresh fresh[SEAL_FRESH]; /* the newest first */
    unsigned nfresh;
};

int seal_mac(const uint8_t key[SEAL_SECRET], const struct iovec *iov, unsigned n,
             uint8_t ret_mac[SEAL_SECRET])
{
    uint8_t text[512];
    unsigned len = SEAL_SECRET;
    size_t at = 0;
    bool made;

    for (unsigned i = 0; i < n; i++) {
        assert(iov[i].iov_len <= sizeof(text) - at);
        memcpy(text + at, iov[i].iov_base, iov[i].iov_len);
        at += iov[i].iov_len;
    }
    made = HMAC(EVP_sha256(), key, SEAL_SECRET, text, at, ret_mac, &len);
    OPENSSL_cleanse(text, at); /* it may be a token */
    return made ? 0 : -ENOMEM;
}

static int derive(const uint8_t secret[SEAL_SECRET], const char *what, uint8_t ret[SEAL_SECRET])
{
    struct iovec label = {(void *)(uintptr_t)what, strlen(what)};

    return seal_mac(secret, &label, 1, ret);
}

uint32_t seal_name(const uint8_t fresh[SEAL_SECRET])
{
    uint8_t mac[SEAL_SECRET];
    uint32_t name = 0;

    if (!derive(fresh, "name", mac))
        memcpy(&name, mac, sizeof(name));
    return name;
}

void seal_refresh(struct seal *s, const uint8_t fresh[SEAL_SECRET])
{
    struct fresh *first = s->fresh;

    memmove(first + 1, first, (SEAL_FRESH - 1) * sizeof(*first));
    memcpy(first->secret, fresh, SEAL_SECRET);
    first->mark = (uint16_t)(seal_name(fresh) % UINT16_MAX + 1);
    s->nfresh = s->seals ? 1 : MIN(s->nfresh + 1, (unsigned)SEAL_FRESH);
}

/* It is used, so neither it nor those before it come any more. */
static void forget_from(struct seal *s, const struct fresh *used)
{
    s->nfresh = (unsigned)(used - s->fresh);
    OPENSSL_cleanse(s->fresh + s->nfresh, (SEAL_FRESH - s->nfresh) * sizeof(*used));
}

unsigned seal_ciphers(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("aes") && __builtin_cpu_supports("pclmul"))
        return SEAL_AES_128_GCM | SEAL_CHACHA20_POLY1305;
    return SEAL_CHACHA20_POLY1305;
#else
    return SEAL_AES_128_GCM | SEAL_CHACHA20_POLY1305;
#endif
}

unsigned seal_choose(unsigned ours, unsigned theirs)
{
    unsigned both = ours & theirs & (SEAL_AES_128_GCM | SEAL_CHACHA20_POLY1305);

    return both & -both;
}

/* Sets @aead to the generation of @secret. */
static int take_key(struct aead *aead, const uint8_t secret[SEAL_SECRET], uint8_t ret_iv[IV])
{
    uint8_t key[SEAL_SECRET], iv[SEAL_SECRET];
    int r = -ENOMEM;

    if (!derive(secret, "key", key) && !derive(secret, "iv", iv))
        r = aead->ops->set_key(aead, key);
    memcpy(ret_iv, iv, IV);
    OPENSSL_cleanse(key, sizeof(key));
    OPENSSL_cleanse(iv, sizeof(iv));
    return r;
}

struct seal *seal_new_by(const struct aead_ops *ops, enum seal_cipher cipher,
                         const uint8_t secret[SEAL_SECRET], bool seals)
{
    struct seal *s = calloc(1, sizeof(*s));

    if (!s)
        return NULL;
    s->kind = cipher;
    s->seals = seals;
    s->records = SEAL_RECORDS;
    s->since_ms = now_ms();
    memcpy(s->secret, secret, sizeof(s->secret));
    s->aead = ops->new (cipher, seals);
    s->spare = ops->new (cipher, seals);
    if (!s->aead || !s->spare || take_key(s->aead, s->secret, s->iv))
        return seal_free(s);
    return s;
}

struct seal *seal_new(enum seal_cipher cipher, const uint8_t secret[SEAL_SECRET], bool seals)
{
    return seal_new_by(aead_best(cipher), cipher, secret, seals);
}

static void idle_free(struct seal *s)
{
    while (s->nidle)
        aead_free(s->idle[--s->nidle]);
}

struct seal *seal_free(struct seal *s)
{
    if (!s)
        return NULL;
    assert(!s->nlent);
    idle_free(s);
    aead_free(s->aead);
    aead_free(s->spare);
    OPENSSL_cleanse(s, sizeof(*s));
    free(s);
    return NULL;
}

static void nonce_of(const uint8_t iv[IV], uint64_t number, uint8_t ret[IV])
{
    memcpy(ret, iv, IV);
    for (unsigned i = 0; i < 8; i++)
        ret[IV - 1 - i] ^= (uint8_t)(number >> (8 * i));
}

/* Goes on with @secret, for which @spare has been set to @iv, and which is of @fresh, or of none.
 */
static void turn_over(struct seal *s, uint8_t secret[SEAL_SECRET], const uint8_t iv[IV],
                      const struct fresh *fresh)
{
    struct aead *old = s->aead;

    s->aead = s->spare;
    s->spare = old;
    old->ops->forget(old);
    idle_free(s);
    memcpy(s->secret, secret, SEAL_SECRET);
    memcpy(s->iv, iv, IV);
    s->generation++;
    s->mark = fresh ? fresh->mark : 0;
    if (fresh)
        forget_from(s, fresh);
    s->since = s->number;
    s->since_ms = now_ms();
    s->old = false;
}

static bool is_worn(const struct seal *s)
{
    return s->number - s->since >= s->records || s->nfresh || s->old;
}

void seal_tick(struct seal *s, uint64_t now)
{
    s->old |= now >= s->since_ms + SEAL_MS;
}

void seal_age(struct seal *s, uint64_t ms)
{
    s->since_ms -= ms;
}

static int generation_next(const struct seal *s, const struct fresh *fresh,
                           uint8_t ret_secret[SEAL_SECRET], uint8_t ret_iv[IV])
{
    static const char next[] = "next";
    struct iovec of[] = {{(void *)(uintptr_t)next, sizeof(next) - 1},
                         {fresh ? (void *)(uintptr_t)fresh->secret : NULL, SEAL_SECRET}};
    int r = seal_mac(s->secret, of, fresh ? 2 : 1, ret_secret);

    return r ? r : take_key(s->spare, ret_secret, ret_iv);
}

static int wear(struct seal *s)
{
    uint8_t secret[SEAL_SECRET], iv[IV];
    const struct fresh *fresh = s->nfresh ? s->fresh : NULL;
    int r = generation_next(s, fresh, secret, iv);

    if (!r)
        turn_over(s, secret, iv, fresh);
    OPENSSL_cleanse(secret, sizeof(secret));
    return r;
}

int seal_put(struct seal *s, const struct iovec *iov, unsigned n, uint8_t *out)
{
    struct record_head head;
    uint8_t nonce[IV];
    size_t all = 0;
    int r;

    assert(s->seals && n > 0);
    if (is_worn(s) && (r = wear(s)))
        return r;
    for (unsigned i = 0; i < n; i++)
        all += iov[i].iov_len;
    assert(all > 0 && all <= SEAL_DATA);
    head = (struct record_head){(uint16_t)all, s->mark, s->generation};
    memcpy(out, &head, SEAL_HEAD);
    nonce_of(s->iv, s->number, nonce);
    r = s->aead->ops->put(s->aead, nonce, iov, n, out);
    s->number += !r;
    return r;
}

size_t seal_length(const uint8_t head[SEAL_HEAD])
{
    uint16_t len;

    memcpy(&len, head, sizeof(len));
    return len <= SEAL_DATA ? len : 0;
}

static bool open_with(const struct seal *s, struct aead *aead, const uint8_t iv[IV],
                      const uint8_t *record, uint8_t *out)
{
    uint8_t nonce[IV];

    nonce_of(iv, s->number, nonce);
    return aead->ops->get(aead, nonce, record, out);
}

/* The record is the first of a generation. */
static bool open_next(struct seal *s, uint16_t mark, const uint8_t *record, uint8_t *out)
{
    uint8_t secret[SEAL_SECRET], iv[IV];
    const struct fresh *fresh = NULL;
    bool good;

    for (unsigned i = 0; mark && i < s->nfresh && !fresh; i++)
        if (s->fresh[i].mark == mark)
            fresh = &s->fresh[i];
    if ((mark && !fresh) || generation_next(s, fresh, secret, iv))
        return false;
    good = open_with(s, s->spare, iv, record, out);
    if (good)
        turn_over(s, secret, iv, fresh);
    OPENSSL_cleanse(secret, sizeof(secret));
    return good;
}

int seal_get(struct seal *s, const uint8_t *record, uint8_t *out)
{
    struct record_head head;
    bool good = false;

    assert(!s->seals && seal_length(record));
    memcpy(&head, record, sizeof(head));
    if (head.generation == s->generation)
        good = open_with(s, s->aead, s->iv, record, out);
    else if (head.generation == s->generation + 1)
        good = open_next(s, head.mark, record, out);
    s->number += good;
    return good ? 0 : -EBADMSG;
}

/* ---- elsewhere ------------------------------------------------------------------------------- */

static struct aead *aead_to_lend(struct seal *s)
{
    struct aead *aead = s->nidle ? s->idle[--s->nidle] : NULL;
    uint8_t iv[IV];

    if (aead)
        return aead;
    aead = s->aead->ops->new (s->kind, s->seals);
    return aead && !take_key(aead, s->secret, iv) ? aead : aead_free(aead);
}

unsigned seal_lend(struct seal *s, unsigned n, struct seal_batch *ret_batch)
{
    struct seal_batch batch = {NULL};

    assert(n > 0);
    if (s->seals && is_worn(s) && wear(s))
        return 0;
    if (s->seals)
        n = (unsigned)MIN((uint64_t)n, s->records - (s->number - s->since));
    batch.aead = aead_to_lend(s);
    if (!batch.aead)
        return 0;
    memcpy(batch.iv, s->iv, IV);
    batch.number = s->number;
    batch.generation = s->generation;
    batch.mark = s->mark;
    s->number += n;
    s->nlent++;
    *ret_batch = batch;
    return n;
}

void seal_return(struct seal *s, struct seal_batch *batch)
{
    struct aead *aead = steal_ptr(batch->aead);

    assert(aead && s->nlent);
    s->nlent--;
    if (batch->generation == s->generation && s->nidle < IDLE)
        s->idle[s->nidle++] = aead;
    else
        aead_free(aead);
}

int seal_batch_put(const struct seal_batch *batch, unsigned i, const void *data, size_t len,
                   uint8_t *out)
{
    struct record_head head = {(uint16_t)len, batch->mark, batch->generation};
    struct iovec iov = {(void *)(uintptr_t)data, len};
    uint8_t nonce[IV];

    assert(len > 0 && len <= SEAL_DATA);
    memcpy(out, &head, SEAL_HEAD);
    nonce_of(batch->iv, batch->number + i, nonce);
    return batch->aead->ops->put(batch->aead, nonce, &iov, 1, out);
}

int seal_batch_get(const struct seal_batch *batch, unsigned i, const uint8_t *record, uint8_t *out)
{
    uint8_t nonce[IV];

    nonce_of(batch->iv, batch->number + i, nonce);
    return batch->aead->ops->get(batch->aead, nonce, record, out) ? 0 : -EBADMSG;
}

bool seal_goes_on(const struct seal *s, const uint8_t at[SEAL_HEAD])
{
    struct record_head head;

    memcpy(&head, at, sizeof(head));
    return head.generation == s->generation;
}

/* ---- what there is ----------------------------------------------------------------------------
 */

void seal_set_records(struct seal *s, uint64_t records)
{
    assert(records > 0);
    s->records = records;
}

uint32_t seal_generation(const struct seal *s)
{
    return s->generation;
}

uint64_t seal_number(const struct seal *s)
{
    return s->number;
}

enum seal_cipher seal_kind(const struct seal *s)
{
    return s->kind;
}

bool seal_by_ipsec_mb(const struct seal *s)
{
    return s->aead->ops != &aead_libcrypto;
}

uint64_t seal_since_ms(const struct seal *s)
{
    return s->since_ms;
}

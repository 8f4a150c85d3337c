/* aead_ipsec_mb.c - AES-128-GCM by libipsec-mb. It takes what the CPU has by itself, and tests
 * itself at its start. It is used only as it comes from Debian: so that it wipes registers and
 * stack (SAFE_DATA). The bytes of a record cannot make it fail, so nothing here does. */
#include "transport/fabric/tcp/aead.h"

#include <errno.h>
#include <string.h>

#include <intel-ipsec-mb.h>
#include <openssl/crypto.h>

static IMB_MGR *mgr; /* functions alone are taken from it: it knows no key and no record */

struct gcm {
    struct aead base;
    struct gcm_key_data key __attribute__((aligned(64)));
};

static const struct aead_ops gcm_ops;

static struct gcm *gcm_of(struct aead *a)
{
    return container_of(a, struct gcm, base);
}

static struct aead *gcm_new(enum seal_cipher cipher, bool seals)
{
    struct gcm *g;

    if (cipher != SEAL_AES_128_GCM)
        return NULL;
    g = aligned_alloc(_Alignof(struct gcm), sizeof(*g));
    if (!g)
        return NULL;
    memset(g, 0, sizeof(*g));
    g->base.ops = &gcm_ops;
    return &g->base;
}

static struct aead *gcm_free(struct aead *a)
{
    return free_wiped(gcm_of(a), sizeof(struct gcm));
}

static int gcm_set_key(struct aead *a, const uint8_t key[AEAD_KEY])
{
    IMB_AES128_GCM_PRE(mgr, key, &gcm_of(a)->key);
    return 0;
}

static void gcm_forget(struct aead *a)
{
    explicit_bzero(&gcm_of(a)->key, sizeof(gcm_of(a)->key));
}

static int gcm_put(struct aead *a, const uint8_t nonce[AEAD_NONCE], const struct iovec *iov,
                   unsigned n, uint8_t *record)
{
    const struct gcm_key_data *key = &gcm_of(a)->key;
    uint8_t *at = record + SEAL_HEAD;
    struct gcm_context_data now;

    IMB_AES128_GCM_INIT(mgr, key, &now, nonce, record, SEAL_HEAD);
    for (unsigned i = 0; i < n; at += iov[i++].iov_len)
        IMB_AES128_GCM_ENC_UPDATE(mgr, key, &now, at, iov[i].iov_base, iov[i].iov_len);
    IMB_AES128_GCM_ENC_FINALIZE(mgr, key, &now, at, SEAL_TAG);
    explicit_bzero(&now, sizeof(now));
    return 0;
}

static bool gcm_get(struct aead *a, const uint8_t nonce[AEAD_NONCE], const uint8_t *record,
                    uint8_t *out)
{
    size_t n = seal_length(record);
    struct gcm_context_data now;
    uint8_t tag[SEAL_TAG];

    IMB_AES128_GCM_DEC(mgr, &gcm_of(a)->key, &now, out, record + SEAL_HEAD, n, nonce, record,
                       SEAL_HEAD, tag, SEAL_TAG);
    explicit_bzero(&now, sizeof(now));
    return !CRYPTO_memcmp(tag, record + SEAL_HEAD + n, SEAL_TAG);
}

static const struct aead_ops gcm_ops = {gcm_new,    gcm_free, gcm_set_key,
                                        gcm_forget, gcm_put,  gcm_get};

const struct aead_ops *aead_ipsec_mb(void)
{
    static const uint64_t need = IMB_FEATURE_AESNI | IMB_FEATURE_PCLMULQDQ | IMB_FEATURE_SAFE_DATA;
    IMB_ARCH arch;

    if (!mgr) {
        mgr = alloc_mb_mgr(0);
        if (mgr)
            init_mb_mgr_auto(mgr, &arch);
    }
    return mgr && !imb_get_errno(mgr) && (mgr->features & need) == need ? &gcm_ops : NULL;
}

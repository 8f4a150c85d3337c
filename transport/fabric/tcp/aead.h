/* aead.h - what encrypts and authenticates a record (seal.h) under one key, in one direction:
 * libcrypto, or libipsec-mb, which takes less of a core where the CPU has VAES. Both make the same
 * bytes, so the two sides of a stream need not have the same. */
#ifndef COMMD_AEAD_H
#define COMMD_AEAD_H

#include "transport/fabric/tcp/seal.h"

enum { AEAD_NONCE = 12, AEAD_KEY = 32 /* AES-128 takes the first 16 */ };

struct aead {
    const struct aead_ops *ops; /* of whoever made it */
};

struct aead_ops {
    /* Without a key. NULL: no memory, or there is no such cipher. */
    struct aead *(*new)(enum seal_cipher cipher, bool seals);
    struct aead *(*free)(struct aead *a); /* the key is wiped; NULL */
    int (*set_key)(struct aead *a, const uint8_t key[AEAD_KEY]);
    void (*forget)(struct aead *a); /* the key must not stay in memory; next comes another one */
    /* The header stands at @record. Puts the @n pieces of data behind it, and the tag. */
    int (*put)(struct aead *a, const uint8_t nonce[AEAD_NONCE], const struct iovec *iov, unsigned n,
               uint8_t *record);
    /* False: the tag is another one, and what is at @out is nothing. */
    bool (*get)(struct aead *a, const uint8_t nonce[AEAD_NONCE], const uint8_t *record,
                uint8_t *out);
};

extern const struct aead_ops aead_libcrypto;
/* NULL: built without libipsec-mb, or this CPU is not for it. AES-128-GCM alone. */
const struct aead_ops *aead_ipsec_mb(void);

/* @fast where it agrees with @known on random records, to and fro, and takes less time for some. */
const struct aead_ops *aead_choose(const struct aead_ops *fast, const struct aead_ops *known);
/* The choice for this process, which is made at the first call. */
const struct aead_ops *aead_best(enum seal_cipher cipher);

static inline struct aead *aead_free(struct aead *a)
{
    return a ? a->ops->free(a) : NULL;
}

#endif

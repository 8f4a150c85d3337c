/* seal.h - one direction of a stream as records that are encrypted and authenticated (AEAD, RFC
 * 5116). No I/O, no memory but its own.
 *
 *   record: length of the data (u16), what its generation began with (u16), generation of the key
 *           (u32); data; tag
 *
 * The header is authenticated with the data. The nonce is the number of the record in the stream
 * (as in RFC 8446, 5.3), so a record that is repeated, left out, or comes in another place is
 * refused like one that was changed. The sender goes on to the next generation of its key after
 * SEAL_RECORDS records or SEAL_MS, whichever is first; the key before it cannot be had from it. A
 * key that grows old while nothing is sent makes way with the first record afterwards. The
 * same where both sides have a fresh secret from elsewhere: the next key is of that, too, so that
 * who has the key before does not get the next one either. */
#ifndef COMMD_SEAL_H
#define COMMD_SEAL_H

#include <sys/uio.h>

#include "shm/util/base.h"

enum {
    SEAL_SECRET = 32,
    SEAL_HEAD = 8,
    SEAL_TAG = 16,
    SEAL_MORE = SEAL_HEAD + SEAL_TAG,
    SEAL_DATA = 16 << 10, /* of a record, at most: what is decrypted stays in a core's cache */
    SEAL_RECORDS = 1 << 22,
    SEAL_MS = 3600 * 1000,
    /* Secrets that a receiver knows and has not seen used yet: so often may keys change while a
     * stream stands still, as one that is cut. */
    SEAL_FRESH = 16,
};

/* Bits, so that two sides can find what both have; the lower one is preferred. */
enum seal_cipher { SEAL_AES_128_GCM = 1, SEAL_CHACHA20_POLY1305 = 2 };

struct seal;
struct aead;
struct aead_ops;

/* HMAC-SHA256 of @n pieces under @key: what all keys are derived by. Negative errno: no memory. */
int seal_mac(const uint8_t key[SEAL_SECRET], const struct iovec *iov, unsigned n,
             uint8_t ret_mac[SEAL_SECRET]);
/* Those that this CPU has instructions for, or the one that is fast without. */
unsigned seal_ciphers(void);
/* The one that two sides use who have these; 0: they have none in common. */
unsigned seal_choose(unsigned ours, unsigned theirs);

/* NULL: no memory, or libcrypto lacks that cipher. @secret is of this direction of this stream
 * alone. */
struct seal *seal_new(enum seal_cipher cipher, const uint8_t secret[SEAL_SECRET], bool seals);
struct seal *seal_free(struct seal *s);
/* For tests: by a certain library. */
struct seal *seal_new_by(const struct aead_ops *ops, enum seal_cipher cipher,
                         const uint8_t secret[SEAL_SECRET], bool seals);

/* Makes a record of the @n pieces at @iov, 1 to SEAL_DATA bytes together, at @out, which has room
 * for SEAL_MORE bytes more. Negative errno: the cipher failed, and the stream ends. */
int seal_put(struct seal *s, const struct iovec *iov, unsigned n, uint8_t *out);
/* How many bytes of data the record at @head has; 0: it is none. */
size_t seal_length(const uint8_t head[SEAL_HEAD]);
/* Checks the whole record at @record, and writes its data to @out, which may be where they lie.
 * -EBADMSG: it is not the next one of the stream; what is at @out then is nothing. */
int seal_get(struct seal *s, const uint8_t *record, uint8_t *out);

/* Records of one key, one after another, that may be made or opened elsewhere, also by another
 * thread, while @s goes on with what follows. */
struct seal_batch {
    struct aead *aead; /* of this batch alone until it is returned */
    uint8_t iv[12];
    uint64_t number;
    uint32_t generation;
    uint16_t mark;
};

/* The next records of the stream, at most @n: how many that are. 0: no memory. */
unsigned seal_lend(struct seal *s, unsigned n, struct seal_batch *ret_batch);
void seal_return(struct seal *s, struct seal_batch *batch);
/* Record @i of the batch, as by seal_put() and seal_get(). */
int seal_batch_put(const struct seal_batch *batch, unsigned i, const void *data, size_t len,
                   uint8_t *out);
int seal_batch_get(const struct seal_batch *batch, unsigned i, const uint8_t *record, uint8_t *out);
/* Does the record at @head say that it is of the key of now? Others are not for a batch. */
bool seal_goes_on(const struct seal *s, const uint8_t head[SEAL_HEAD]);

/* The name of a fresh secret, which tells nothing of it. 0: no memory. */
uint32_t seal_name(const uint8_t fresh[SEAL_SECRET]);
/* @s seals: its next generation begins with the next record, and with @fresh. @s opens: a
 * generation that comes may begin with @fresh; of more than SEAL_FRESH the oldest is forgotten. */
void seal_refresh(struct seal *s, const uint8_t fresh[SEAL_SECRET]);

/* The time: where the key is SEAL_MS old, the next record begins a generation. */
void seal_tick(struct seal *s, uint64_t now);

/* For tests: the key is so much older. */
void seal_age(struct seal *s, uint64_t ms);
/* For tests: the next generation comes after so many records. */
void seal_set_records(struct seal *s, uint64_t records);
uint32_t seal_generation(const struct seal *s);
uint64_t seal_number(const struct seal *s); /* of records so far */

enum seal_cipher seal_kind(const struct seal *s);
bool seal_by_ipsec_mb(const struct seal *s);
uint64_t seal_since_ms(const struct seal *s); /* when the generation began, by now_ms() */

#endif

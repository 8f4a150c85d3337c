/* encryption.h - how data between two engines are protected, as engines tell and views show. */
#ifndef COMMD_ENCRYPTION_H
#define COMMD_ENCRYPTION_H

#include <string.h>

#include "shm/util/base.h"

/* What a link ends with whose other side did not send what came; more may stand behind it. */
#define TEXT_FORGED "authentication failed"

/* Numbers of control messages: append only. */
enum link_encryption {
    LINK_UNTOLD, /* there is no connection, or the engine is of version 10 */
    LINK_AES_128_GCM,
    LINK_CHACHA20_POLY1305,
    LINK_CLEAR_LOOPBACK,
    LINK_CLEAR_OFF, /* transport.encryption of one of the two nodes */
    LINK_CLEAR_OLD, /* the engine there cannot encrypt */
    LINK_CLEAR_UCX,
    LINK_AES_128_GCM_IPSEC_MB, /* this side uses libipsec-mb, and else OpenSSL */
    LINK_ENCRYPTIONS
};

static inline const char *link_encryption_word(enum link_encryption e)
{
    static const char *const words[LINK_ENCRYPTIONS] = {
        [LINK_UNTOLD] = "",
        [LINK_AES_128_GCM] = "AES-128-GCM",
        [LINK_CHACHA20_POLY1305] = "ChaCha20-Poly1305",
        [LINK_CLEAR_LOOPBACK] = "clear (loopback)",
        [LINK_CLEAR_OFF] = "clear: transport.encryption is off",
        [LINK_CLEAR_OLD] = "clear: the node is of an older version",
        [LINK_CLEAR_UCX] = "clear: RDMA or UCX, trusted network",
        [LINK_AES_128_GCM_IPSEC_MB] = "AES-128-GCM (libipsec-mb)",
    };

    return words[e < LINK_ENCRYPTIONS ? e : LINK_UNTOLD];
}

/* LINK_UNTOLD for a word that is not known. */
static inline enum link_encryption link_encryption_read(const char *word)
{
    unsigned e = LINK_ENCRYPTIONS;

    while (--e && strcmp(link_encryption_word((enum link_encryption)e), word))
        continue;
    return (enum link_encryption)e;
}

static inline bool link_is_encrypted(enum link_encryption e)
{
    return e == LINK_AES_128_GCM || e == LINK_CHACHA20_POLY1305 || e == LINK_AES_128_GCM_IPSEC_MB;
}

/* Can somebody on the network read and forge the data? */
static inline bool link_is_open(enum link_encryption e)
{
    return e >= LINK_CLEAR_OFF && e <= LINK_CLEAR_UCX;
}

/* How many threads an engine has beside its own to encrypt large messages, by its setting ("auto"
 * or a number) and the cores that it may use. For auto at most a quarter of these: they are for the
 * ranks. And at most two, since to encrypt a byte and decrypt one takes half as long as to send and
 * receive it where the CPU has VAES, and about as long where OpenSSL does without: so one thread is
 * half idle then, or two are. */
enum { ENCRYPTION_THREADS_MAX = 16 };
static inline unsigned encryption_threads(const char *setting, unsigned cores)
{
    if (strcmp(setting, "auto"))
        return (unsigned)MIN(strtoul(setting, NULL, 10), (unsigned long)ENCRYPTION_THREADS_MAX);
    return MIN(cores / 4, 2u);
}

#endif

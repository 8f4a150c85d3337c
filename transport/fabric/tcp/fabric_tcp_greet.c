/* fabric_tcp_greet.c - who is who at the two ends of a connection, and the keys of its stream.
 *
 * Two peers have a token per direction from the TLS control plane, which nobody else knows. The
 * tokens themselves never go over the network (but to peers of before: fabric_tcp_old.c):
 *
 *   link    = HMAC(the smaller token, "link", the larger)
 *   streams = HMAC(the smaller token, "streams", the larger)
 *   id     = HMAC(token, "id"): says which peer a hello is of, and nothing else
 *   mac    of a hello    = HMAC(link, "hello", the hello), of the one that answers it
 *                          HMAC(link, "answer", the hello, the one that it answers)
 *   mac    of ACCEPT     = HMAC(link, "accept", both macs)
 *   mac    of a hello that goes on with a stream
 *                        = HMAC(link, "hello", the hello, the mac of ACCEPT at its beginning)
 *   secret of a direction of a stream that begins = HMAC(streams, "to" or "from", both macs)
 *
 * (HMAC-SHA256, ids and macs cut to 16 bytes; as a handshake this is the three messages of
 * ISO/IEC 9798-4, 5.2.2.) Each hello has random bytes, so a hello of another connection that is
 * repeated gets no further than to an answer, and both sides have a part in all keys. A mac is of
 * the role of its sender, so that nobody's own hello is an answer to it.
 *
 * A stream that goes on over another socket keeps its keys: the records are of the stream. What
 * goes on is the stream of now: a hello that went on with one of before, under the same tokens,
 * would cut a socket that is well. */
#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include <openssl/crypto.h>

#include "transport/fabric/tcp/fabric_tcp_priv.h"

#define PIECE(s) ((struct iovec){(void *)(uintptr_t)(s), sizeof(s) - 1})

static int cut_mac(const uint8_t key[SEAL_SECRET], const struct iovec *iov, unsigned n,
                   uint8_t *ret, size_t len)
{
    uint8_t mac[SEAL_SECRET];
    int r = seal_mac(key, iov, n, mac);

    if (!r)
        memcpy(ret, mac, len);
    OPENSSL_cleanse(mac, sizeof(mac));
    return r;
}

int peer_ids(struct tcp_peer *peer)
{
    bool first = memcmp(peer->token, peer->expect, sizeof(peer->token)) < 0;
    uint8_t *smaller = first ? peer->token : peer->expect,
            *larger = first ? peer->expect : peer->token;
    struct iovec link[] = {PIECE("link"), {larger, sizeof(peer->token)}},
                 streams[] = {PIECE("streams"), link[1]}, id = PIECE("id");

    if (seal_mac(smaller, link, 2, peer->link) || seal_mac(smaller, streams, 2, peer->streams) ||
        cut_mac(peer->token, &id, 1, peer->id, ID_LEN) ||
        cut_mac(peer->expect, &id, 1, peer->their_id, ID_LEN))
        return -ENOMEM;
    return 0;
}

void peer_forget(struct tcp_peer *peer)
{
    OPENSSL_cleanse(peer->streams, sizeof(peer->streams));
}

/* @asked: what it answers, or NULL. @c: the stream with which it goes on, if it does. */
static int hello_mac(const struct tcp_peer *peer, const struct hello *hello,
                     const struct hello *asked, const struct conn *c, uint8_t ret_mac[MAC_LEN])
{
    bool goes_on = !asked && hello->of == HELLO_MENDS;
    struct iovec iov[] = {asked ? PIECE("answer") : PIECE("hello"),
                          {(void *)(uintptr_t)hello, offsetof(struct hello, mac)},
                          {(void *)(uintptr_t)asked, asked ? sizeof(*asked) : 0}};

    if (goes_on)
        iov[2] = (struct iovec){(void *)(uintptr_t)c->begun, MAC_LEN};
    return cut_mac(peer->link, iov, asked || goes_on ? 3 : 2, ret_mac, MAC_LEN);
}

int hello_say(struct conn *c, struct tcp_peer *peer, struct hello *hello, bool answers)
{
    int r;

    if (peer_is_old(peer)) {
        memcpy(hello->token, peer->token, sizeof(hello->token));
        return 0;
    }
    memcpy(hello->id, peer->id, ID_LEN);
    memset(hello->reserved, 0, sizeof(hello->reserved));
    if (getrandom(hello->nonce, NONCE_LEN, 0) != NONCE_LEN)
        return -EIO;
    r = hello_mac(peer, hello, answers ? &c->hello : NULL, c, hello->mac);
    c->said = *hello;
    return r;
}

bool hello_is_of(const struct tcp_peer *peer, const struct hello *hello, const struct hello *asked)
{
    const struct conn *c =
        hello->channel < ARRAY_LEN(peer->conn) ? peer->conn[hello->channel] : NULL;
    uint8_t mac[MAC_LEN];

    if (hello->version != peer->version)
        return false;
    if (peer_is_old(peer))
        return old_hello_is_of(peer, hello);
    if (!c && hello->of == HELLO_MENDS)
        return false;
    return !CRYPTO_memcmp(peer->their_id, hello->id, ID_LEN) &&
           !hello_mac(peer, hello, asked, c, mac) && !CRYPTO_memcmp(mac, hello->mac, MAC_LEN);
}

static struct seal *stream_seal(const struct tcp_peer *peer, enum seal_cipher cipher,
                                struct iovec *macs, bool to, bool seals)
{
    uint8_t secret[SEAL_SECRET];
    struct seal *s = NULL;

    macs[0] = to ? PIECE("to") : PIECE("from");
    if (!seal_mac(peer->streams, macs, 3, secret))
        s = seal_new(cipher, secret, seals);
    OPENSSL_cleanse(secret, sizeof(secret));
    return s;
}

int conn_agree(struct conn *c, struct tcp_peer *peer, bool connects)
{
    const struct hello *asks = connects ? &c->said : &c->hello,
                       *answer = connects ? &c->hello : &c->said;
    struct iovec macs[] = {PIECE("accept"),
                           {(void *)(uintptr_t)asks->mac, MAC_LEN},
                           {(void *)(uintptr_t)answer->mac, MAC_LEN}};

    c->accept.magic = ACCEPT_MAGIC;
    if (peer_is_old(peer))
        return 0;
    if (cut_mac(peer->link, macs, 3, c->accept.mac, MAC_LEN))
        return -ENOMEM;
    if (asks->of != HELLO_BEGINS)
        return 0;
    memcpy(c->begun, c->accept.mac, MAC_LEN);
    if (!peer->encrypted)
        return 0;
    assert(!c->seals && !c->opens && c->got == 0 && c->sent == 0);
    if (answer->ciphers != seal_choose(asks->ciphers, answer->ciphers) || !answer->ciphers)
        return -EPROTO;
    c->seals = stream_seal(peer, (enum seal_cipher)answer->ciphers, macs, connects, true);
    c->opens = stream_seal(peer, (enum seal_cipher)answer->ciphers, macs, !connects, false);
    return c->seals && c->opens ? 0 : -ENOMEM;
}

int hello_digest(const struct hello *hello, uint8_t ret_digest[32])
{
    static const uint8_t of_nobody[SEAL_SECRET];
    struct iovec iov[] = {PIECE("heard"), {(void *)(uintptr_t)hello, sizeof(*hello)}};

    return seal_mac(of_nobody, iov, 2, ret_digest);
}

bool hello_was_heard(const struct conn *c)
{
    static const uint8_t untold[sizeof(c->hello.heard)];
    uint8_t digest[sizeof(untold)];

    return !memcmp(c->hello.heard, untold, sizeof(untold)) || hello_digest(&c->said, digest) ||
           !memcmp(c->hello.heard, digest, sizeof(digest));
}

bool accept_is_right(const struct conn *c)
{
    return !CRYPTO_memcmp(&c->heard, &c->accept, accept_size(c->peer));
}

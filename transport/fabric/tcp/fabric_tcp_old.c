/* fabric_tcp_old.c - peers of HELLO_OLD, so that nodes can be upgraded one after the other.
 *
 * Such a peer cannot encrypt, and its hello says its token itself. What a peer speaks is in its
 * address, which comes over the TLS control plane: nobody on the way can make a peer seem older.
 * It is greeted where data may go in the clear: both are on loopback, or transport.trusted_network
 * says that nobody else is on the network; and transport.encryption is not on. Our own address then
 * has HELLO_OLD as the oldest that is let in, which is all that such a peer looks at; else it
 * refuses our address as we refuse its. */
#include <string.h>

#include "transport/fabric/tcp/fabric_tcp_priv.h"

/* As far as the token it is the same as struct hello. */
struct old_hello {
    uint8_t same[offsetof(struct hello, ciphers)];
    uint8_t token[32];
    uint64_t got;
};
_Static_assert(sizeof(struct old_hello) == 56, "wire layout");

static bool on_loopback(const struct sockaddr_storage *addr)
{
    const struct sockaddr_in *in = (const struct sockaddr_in *)addr;
    const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)addr;

    return addr->ss_family == AF_INET ? ntohl(in->sin_addr.s_addr) >> 24 == 127
                                      : IN6_IS_ADDR_LOOPBACK(&in6->sin6_addr);
}

bool both_on_loopback(const struct tcp *t, const struct sockaddr_storage *addr)
{
    return on_loopback(&t->addr) && (!addr || on_loopback(addr));
}

bool old_is_let_in(const struct tcp *t, const struct sockaddr_storage *addr)
{
    if (t->wants.encryption == FABRIC_ENCRYPT_ON)
        return false;
    return t->wants.trusted || both_on_loopback(t, addr);
}

bool peer_is_old(const struct tcp_peer *peer)
{
    return peer->version == HELLO_OLD;
}

static size_t size_of(uint16_t version)
{
    return version == HELLO_OLD ? sizeof(struct old_hello) : sizeof(struct hello);
}

size_t hello_size(const struct conn *c)
{
    if (c->peer)
        return size_of(c->peer->version);
    if (c->hello_got < offsetof(struct hello, channel))
        return offsetof(struct hello, channel);
    return size_of(c->hello.version);
}

void hello_read(struct conn *c)
{
    struct old_hello old;

    if (c->hello_got == sizeof(old)) {
        memcpy(&old, &c->hello, sizeof(old));
        memset(&c->hello, 0, sizeof(c->hello));
        memcpy(&c->hello, old.same, sizeof(old.same));
        memcpy(c->hello.token, old.token, sizeof(old.token));
        c->hello.got = old.got;
    }
    c->hello_got = sizeof(c->hello);
}

bool hello_send(int fd, const struct hello *hello)
{
    struct old_hello old = {.got = hello->got};
    const void *data = hello;
    size_t len = size_of(hello->version);

    if (hello->version == HELLO_OLD) {
        memcpy(old.same, hello, sizeof(old.same));
        memcpy(old.token, hello->token, sizeof(old.token));
        data = &old;
    }
    return send(fd, data, len, MSG_NOSIGNAL) == (ssize_t)len;
}

bool old_hello_is_of(const struct tcp_peer *peer, const struct hello *hello)
{
    return net_same_token(peer->expect, hello->token);
}

size_t accept_size(const struct tcp_peer *peer)
{
    return peer_is_old(peer) ? sizeof(uint32_t) : sizeof(struct accept);
}

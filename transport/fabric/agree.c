/* agree.c - see agree.h. In the clear only where nobody else is: on loopback, or where both sides
 * say that the network is trusted. So a node never goes into the clear because another one says
 * off. */
#include "transport/fabric/agree.h"

#include <stdio.h>

enum agreed fabric_agree(const struct fabric_wants *one, const struct fabric_wants *other,
                         bool loopback)
{
    bool on = one->encryption == FABRIC_ENCRYPT_ON || other->encryption == FABRIC_ENCRYPT_ON;
    bool off = one->encryption == FABRIC_ENCRYPT_OFF || other->encryption == FABRIC_ENCRYPT_OFF;

    if (on)
        return off ? AGREED_ON_AND_OFF : AGREED_ENCRYPTED;
    if (loopback)
        return AGREED_CLEAR;
    if (!off)
        return AGREED_ENCRYPTED;
    return one->trusted && other->trusted ? AGREED_CLEAR : AGREED_UNTRUSTED;
}

static const char *encryption_word(const struct fabric_wants *wants)
{
    static const char *const words[] = {
        [FABRIC_ENCRYPT_OFF] = "off", [FABRIC_ENCRYPT_AUTO] = "auto", [FABRIC_ENCRYPT_ON] = "on"};

    return words[wants->encryption];
}

void fabric_disagree(const struct fabric_wants *one, const char *name,
                     const struct fabric_wants *other, const char *other_name, char *why,
                     size_t size)
{
    const char *off = one->encryption == FABRIC_ENCRYPT_OFF ? name : other_name;
    const char *wary = one->trusted ? other_name : name;
    char says[256];

    snprintf(says, sizeof(says), "transport.encryption is %s on node %s and %s on node %s",
             encryption_word(one), name, encryption_word(other), other_name);
    if (fabric_agree(one, other, false) == AGREED_UNTRUSTED)
        snprintf(why, size,
                 "%s, and transport.trusted_network is not true on node %s: set the first to auto "
                 "on node %s, or the second to true, then systemctl reload commd there",
                 says, wary, off);
    else
        snprintf(why, size, "%s: set it to auto on node %s, then systemctl reload commd there",
                 says, off);
}

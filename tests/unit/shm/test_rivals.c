/* test_rivals.c - which of many connections has to go. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

#include <arpa/inet.h>

#include "shm/util/rivals.h"

static struct rival rival_of(const char *text)
{
    struct sockaddr_in6 in6 = {.sin6_family = AF_INET6};
    union {
        struct sockaddr_storage any;
        struct sockaddr_in in;
    } addr = {.in.sin_family = AF_INET};

    if (inet_pton(AF_INET, text, &addr.in.sin_addr) == 1)
        return rival_at(&addr, false);
    assert_int_equal(inet_pton(AF_INET6, text, &in6.sin6_addr), 1);
    return rival_at(&in6, false);
}

/* The digit @host of an address of IPv4, or the letter of one of the net fd00::/64. */
static struct rival named(char host)
{
    char text[16];

    snprintf(text, sizeof(text), host < 'a' ? "10.0.0.%c" : "fd00::%c", host);
    return rival_of(text);
}

/* The number of the one of @all that has to go. '+': its rank is greater; '!': it goes before
 * others of its address. */
static int victim(const char *all)
{
    struct rivals rivals = {.victim = NULL};

    for (const char *one = all; *one; one += 2 + (one[2] == ' ')) {
        struct rival from = named(one[0]);

        rivals_count(&rivals, &from);
    }
    for (const char *one = all; *one; one += 2 + (one[2] == ' ')) {
        struct rival from = named(one[0]);

        rivals_look(&rivals, (void *)(uintptr_t)one, &from, 1 + (one[1] == '+'), one[1] == '!');
    }
    return rivals.victim ? (int)((const char *)rivals.victim - all) / 3 : -1;
}

static void who_has_to_go(void **state)
{
    static const struct {
        const char *all; /* see named(), and what of it; the oldest first */
        int victim;
    } rows[] = {
        {"", -1},
        {"1.", 0},
        {"1. 2. 3.", 0},       /* the oldest */
        {"1. 2. 2.", 1},       /* of the address that has most */
        {"2. 1. 2+ 1.", 2},    /* by rank before that */
        {"1+ 2+ 2. 2+", 1},    /* both */
        {"1. 1! 2!", 1},       /* and by a wish after that */
        {"1. 2! 1.", 0},       /* not before it */
        {"1. 1. a. b. c.", 2}, /* of the net that has most */
        {"a. b. b. 1. 1.", 1}, /* of the address that has most there */
        {"a. b. 1. 1. 1.", 2}, /* an address of IPv4 is a net */
    };

    for (unsigned i = 0; i < ARRAY_LEN(rows); i++)
        assert_int_equal(victim(rows[i].all), rows[i].victim);
}

static void which_addresses_are_alike(void **state)
{
    static const struct {
        const char *one, *other;
        bool same_net, same;
    } rows[] = {
        {"10.0.0.1", "::ffff:10.0.0.1", true, true},
        {"10.0.0.1", "10.0.0.2", false, false},
        {"::ffff:10.0.0.1", "::ffff:10.0.0.2", false, false},
        {"10.0.0.1", "::10.0.0.1", false, false},
        {"fd00::1", "fd00::2", true, false},
        {"fd00::1", "fd00::ffff:ffff:ffff:ffff", true, false},
        {"fd00:0:0:1::1", "fd00:0:0:2::1", false, false},
        {"fd00::1", "fe00::1", false, false},
    };
    struct sockaddr_in6 in6 = {.sin6_family = AF_INET6};

    for (unsigned i = 0; i < ARRAY_LEN(rows); i++) {
        struct rival one = rival_of(rows[i].one), other = rival_of(rows[i].other);

        assert_int_equal(one.net == other.net, rows[i].same_net);
        assert_int_equal(one.host == other.host, rows[i].same);
    }
    assert_int_equal(rival_at(&in6, true).net, rival_at(&in6, true).host); /* it is one by itself */
}

/* The slots of a table meet, addresses do not: else a stranger could choose whom to hurt. */
static void addresses_do_not_meet(void **state)
{
    struct rivals rivals = {.victim = NULL};
    struct rival host[RIVALS_MAX];
    unsigned n = 0;

    for (uint32_t i = 0; n < RIVALS_MAX; i++) {
        uint64_t one = hash_bytes(HASH_BEGIN, &i, sizeof(i)); /* as of an address */

        if (one % RIVALS_SLOTS > RIVALS_SLOTS - 4) /* around its end */
            host[n++] = (struct rival){one, one};
    }
    for (unsigned i = 0; i < n; i++)
        rivals_count(&rivals, &host[i]);
    for (unsigned i = 0; i < n; i++) {
        rivals_look(&rivals, host + i, &host[i], 1, false);
        assert_ptr_equal(rivals.victim, host); /* each has one */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_has_to_go),
        cmocka_unit_test(which_addresses_are_alike),
        cmocka_unit_test(addresses_do_not_meet),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_rivals.c - which of many connections has to go. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <arpa/inet.h>

#include "shm/util/rivals.h"

static uint64_t host_of(const char *text)
{
    struct sockaddr_in6 in6 = {.sin6_family = AF_INET6};
    union {
        struct sockaddr_storage any;
        struct sockaddr_in in;
    } addr = {.in.sin_family = AF_INET};

    if (inet_pton(AF_INET, text, &addr.in.sin_addr) == 1)
        return rivals_host(&addr);
    assert_int_equal(inet_pton(AF_INET6, text, &in6.sin6_addr), 1);
    return rivals_host(&in6);
}

/* The number of the one of @all that has to go. '+': its rank is greater; '!': it goes before
 * others of its address. */
static int victim(const char *all)
{
    struct rivals rivals = {.victim = NULL};
    char host[] = "10.0.0.0";

    for (const char *one = all; *one; one += 2 + (one[2] == ' ')) {
        host[7] = one[0];
        rivals_count(&rivals, host_of(host));
    }
    for (const char *one = all; *one; one += 2 + (one[2] == ' ')) {
        host[7] = one[0];
        rivals_look(&rivals, (void *)(uintptr_t)one, host_of(host), 1 + (one[1] == '+'),
                    one[1] == '!');
    }
    return rivals.victim ? (int)((const char *)rivals.victim - all) / 3 : -1;
}

static void who_has_to_go(void **state)
{
    static const struct {
        const char *all; /* the last digit of an address, and what of it, the oldest first */
        int victim;
    } rows[] = {
        {"", -1},           {"1.", 0}, {"1. 2. 3.", 0}, /* the oldest */
        {"1. 2. 2.", 1},                                /* of the address that has most */
        {"2. 1. 2+ 1.", 2},                             /* by rank before that */
        {"1+ 2+ 2. 2+", 1},                             /* both */
        {"1. 1! 2!", 1},                                /* and by a wish after that */
        {"1. 2! 1.", 0},                                /* not before it */
    };

    for (unsigned i = 0; i < ARRAY_LEN(rows); i++)
        assert_int_equal(victim(rows[i].all), rows[i].victim);
}

static void which_addresses_are_alike(void **state)
{
    assert_int_equal(host_of("10.0.0.1"), host_of("::ffff:10.0.0.1"));
    assert_int_not_equal(host_of("10.0.0.1"), host_of("10.0.0.2"));
    assert_int_not_equal(host_of("fd00::1"), host_of("fd00::2"));
    assert_int_not_equal(host_of("10.0.0.1"), host_of("::10.0.0.1"));
}

/* The slots of a table meet, addresses do not: else a stranger could choose whom to hurt. */
static void addresses_do_not_meet(void **state)
{
    struct rivals rivals = {.victim = NULL};
    uint64_t host[RIVALS_MAX];
    unsigned n = 0;

    for (uint32_t i = 0; n < RIVALS_MAX; i++) {
        uint64_t one = hash_bytes(HASH_BEGIN, &i, sizeof(i)); /* as of an address */

        if (one % RIVALS_SLOTS > RIVALS_SLOTS - 4) /* around its end */
            host[n++] = one;
    }
    for (unsigned i = 0; i < n; i++)
        rivals_count(&rivals, host[i]);
    for (unsigned i = 0; i < n; i++) {
        rivals_look(&rivals, host + i, host[i], 1, false);
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

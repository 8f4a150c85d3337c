/* test_fabric_ucx.c - what only UCX can pass or fail: transports, cookies, and the spin guard. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif
#include "tests/unit/transport/fabric_sides.h"

#include <poll.h>
#include <sys/resource.h>
#include <time.h>

#ifdef HAVE_UCX

#include "transport/fabric/ucx/fabric_ucx_priv.h"

static void ucx_refuses_bad_config(void **state)
{
    refused("ucx", "lo", "foo", NULL, -ENODEV,
            "transport.ucx_tls: UCX has no transport \"foo\" on device lo (allowed here: tcp");
    refused("ucx", "lo", "tcp,foo", NULL, -ENODEV,
            "transport.ucx_tls: UCX has no transport \"foo\" on device lo (allowed here: tcp");
    refused("ucx", "lo", "rc,ud", NULL, -ENODEV,
            "transport.ucx_tls: UCX has no transport \"rc\" on device lo (allowed here: tcp");
    refused("ucx", "lo", "", NULL, -EINVAL, "transport.ucx_tls: empty");
    refused("ucx", "lo", "tcp", "nonsense", -EINVAL, "Invalid value for PORT_RANGE: 'nonsense'");
}

static struct ucx_peer *inside(struct side *s, unsigned peer)
{
    return container_of(s->f, struct ucx, base)->slot[peer];
}

/* Messages that name an existing peer's slot, as those of a predecessor would. */
static void forged_messages_are_dropped(void **state)
{
    struct world *w = linked("ucx");
    struct sending s[4];

    put(&w->side[0], 1, 0, 8, 10, &s[0]);
    pump_until(w, w->side[1].msgs == 1);
    w->side[1].f->stats.strangers = 0;
    inside(&w->side[0], 1)->cookie_out ^= 1;
    put(&w->side[0], 1, 1, 8, 10, &s[1]);
    put(&w->side[0], 1, 1, 8, MB, &s[2]);
    pump_until(w, w->side[1].f->stats.strangers == 2 && count_done(s, 3) == 3);
    assert_int_equal(s[2].st, -EIO); /* refused, not swallowed */
    inside(&w->side[0], 1)->cookie_out ^= 1;
    inside(&w->side[0], 1)->remote_slot = FABRIC_MAX_PEERS + 7;
    put(&w->side[0], 1, 1, 8, 10, &s[3]);
    pump_until(w, w->side[1].f->stats.strangers == 3);
    assert_int_equal(w->side[1].msgs, 1);
    assert_int_equal(w->side[0].down + w->side[1].down, 0);
    free_sendings(s, 4);
    world_free(w);
}

static void gap_takes_the_link_down(void **state)
{
    struct world *w = linked("ucx");
    struct sending s[2];

    put(&w->side[0], 1, 0, 8, 10, &s[0]);
    pump_until(w, w->side[1].msgs == 1);
    inside(&w->side[0], 1)->seq_out++;
    put(&w->side[0], 1, 1, 8, 10, &s[1]);
    pump_until(w, w->side[1].down == 1);
    assert_int_equal(w->side[1].down_err, -EPROTO);
    assert_int_equal(w->side[1].msgs, 1);
    free_sendings(s, 2);
    world_free(w);
}

/* A peer that never answers leaves UCX's descriptor readable for ever; an engine that sleeps
 * on it must not burn a core. */
static void no_spinning_on_a_silent_peer(void **state)
{
    struct world *w = world_new("ucx", 2);
    struct fabric *f = w->side[0].f;
    struct rusage before, after;
    unsigned wakes = 0;
    double end;

    add(w, 0, 1, 1); /* side 1 is never progressed */
    getrusage(RUSAGE_SELF, &before);
    for (end = now() + 0.5; now() < end;) {
        struct pollfd pfd = {.fd = f->ops->fd(f), .events = POLLIN};
        int r;

        if (f->ops->progress(f))
            continue;
        r = f->ops->arm(f);
        if (r == 1)
            continue;
        poll(r == 2 ? NULL : &pfd, r != 2, r == 2 ? 1 : 20);
        wakes++;
    }
    getrusage(RUSAGE_SELF, &after);
    print_message("%u wake-ups in 0.5 s, %ld us of CPU\n", wakes,
                  (after.ru_utime.tv_sec - before.ru_utime.tv_sec + after.ru_stime.tv_sec -
                   before.ru_stime.tv_sec) *
                          1000000L +
                      (after.ru_utime.tv_usec - before.ru_utime.tv_usec) +
                      (after.ru_stime.tv_usec - before.ru_stime.tv_usec));
    assert_true(wakes < 2000);
    world_free(w);
}

int run_ucx_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ucx_refuses_bad_config),
        cmocka_unit_test(forged_messages_are_dropped),
        cmocka_unit_test(gap_takes_the_link_down),
        cmocka_unit_test(no_spinning_on_a_silent_peer),
    };

    return cmocka_run_group_tests_name("fabric ucx only", tests, NULL, NULL);
}

#endif

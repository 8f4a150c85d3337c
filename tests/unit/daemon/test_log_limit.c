/* The limit of log lines: by whom, of all together, what is told of those left out. */
#include "daemon/process/log_limit.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "daemon/process/clock.h"

static char log_text[65536];

void log_write(enum conf_log_level level, const char *fmt, ...)
{
    size_t used = strlen(log_text);
    va_list ap;

    used += (size_t)snprintf(log_text + used, sizeof(log_text) - used, "%d ", (int)level);
    va_start(ap, fmt);
    used += (size_t)vsnprintf(log_text + used, sizeof(log_text) - used, fmt, ap);
    va_end(ap);
    snprintf(log_text + used, sizeof(log_text) - used, "\n");
}

bool log_enabled(enum conf_log_level level)
{
    return true;
}

static int setup(void **state)
{
    log_text[0] = '\0';
    *state = calloc(1, sizeof(struct log_limit));
    return *state ? 0 : -1;
}

static int teardown(void **state)
{
    free(*state);
    return 0;
}

static unsigned passed(struct log_limit *t, const char *who, unsigned count, uint64_t now)
{
    unsigned n = 0;

    while (count--)
        n += log_limit_pass(t, CONF_LOG_INFO, who, NULL, now);
    return n;
}

static void a_burst_then_one_each_ten_seconds(void **state)
{
    uint64_t left_out = log_limit_left_out();
    struct log_limit *t = *state;

    assert_int_equal(passed(t, "user 1", 1000, 5000), LOG_LIMIT_BURST);
    assert_int_equal(log_limit_left_out() - left_out, 1000 - LOG_LIMIT_BURST);
    assert_int_equal(passed(t, "user 2", 1, 5000), 1); /* another user is not touched */
    assert_int_equal(passed(t, "user 1", 10, 5000 + LOG_LIMIT_EVERY_MS - 1), 0);
    assert_int_equal(passed(t, "user 1", 10, 5000 + LOG_LIMIT_EVERY_MS), 1);
    assert_int_equal(log_limit_tell(t, 5000 + LOG_LIMIT_EVERY_MS), 0);
    assert_string_equal(log_text, "2 user 1: 1009 more lines left out in 10 s\n");
    assert_int_equal(log_limit_tell(t, 1000000), 0);
    assert_string_equal(log_text, "2 user 1: 1009 more lines left out in 10 s\n");
}

static void summaries_come_less_often_while_it_goes_on(void **state)
{
    struct log_limit *t = *state;
    unsigned lines = 0;

    for (uint64_t now = 1000; now < 1000 + 3600 * 1000; now += 100) {
        passed(t, "user 1", 3, now);
        log_limit_tell(t, now);
    }
    for (const char *at = log_text; (at = strchr(at, '\n')); at++)
        lines++;
    assert_in_range(lines, 12, 20); /* an hour: 10, 20, 40 ... 300 s */
}

static void the_summary_is_as_serious_as_the_worst(void **state)
{
    struct log_limit *t = *state;

    const uint64_t now = clock_ms();
    unsigned seconds;
    char end;

    passed(t, "user 1", LOG_LIMIT_BURST, now);
    assert_false(log_limit_pass(t, CONF_LOG_DEBUG, "user 1", NULL, now));
    assert_false(log_limit_pass(t, CONF_LOG_ERROR, "user 1", NULL, now));
    assert_false(log_limit_pass(t, CONF_LOG_INFO, "user 1", NULL, now));
    log_limit_fini(t);
    assert_int_equal(sscanf(log_text, "0 user 1: 3 more lines left out in %u s%c", &seconds, &end),
                     2);
    assert_in_range(seconds, 1, 600); /* of now, not until the end of time */
}

static void all_together_are_bounded(void **state)
{
    struct log_limit *t = *state;
    unsigned lines = 0;
    char who[32];

    for (unsigned i = 0; i < 5000; i++) {
        snprintf(who, sizeof(who), "user %u", i);
        lines += passed(t, who, 20, 1000);
    }
    assert_int_equal(lines, LOG_LIMIT_ALL);
    /* who found no room shares one entry */
    assert_string_equal(t->others.who, "others");
    assert_true(t->others.left_out > 0);
}

static void kinds_are_said_once(void **state)
{
    struct log_limit *t = *state;

    assert_true(log_limit_pass(t, CONF_LOG_WARN, "a", "x", 1000));
    assert_true(log_limit_pass(t, CONF_LOG_WARN, "a", "y", 1000));
    assert_false(log_limit_pass(t, CONF_LOG_WARN, "a", "x", 2000));
    assert_true(log_limit_pass(t, CONF_LOG_WARN, "b", "x", 2000));
    assert_true(log_limit_pass(t, CONF_LOG_WARN, "a", NULL, 2000));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        T(a_burst_then_one_each_ten_seconds),
        T(summaries_come_less_often_while_it_goes_on),
        T(the_summary_is_as_serious_as_the_worst),
        T(all_together_are_bounded),
        T(kinds_are_said_once),
#undef T
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The log: what stands in a line, and that a line is one write. stderr is a pipe in packet
 * mode here, so a read returns exactly what one write put in. */
#include "daemon/process/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include <fcntl.h>
#include <regex.h>
#include <sys/stat.h>

static struct {
    int saved, read, write;
} pipe_state = {-1, -1, -1};

static int setup(void **state)
{
    int fds[2];

    if (pipe2(fds, O_DIRECT | O_NONBLOCK | O_CLOEXEC) < 0)
        return -1;
    pipe_state.read = fds[0];
    pipe_state.write = fds[1];
    pipe_state.saved = dup(STDERR_FILENO);
    if (dup2(fds[1], STDERR_FILENO) < 0)
        return -1;
    unsetenv("JOURNAL_STREAM");
    log_init("commd", CONF_LOG_DEBUG);
    return 0;
}

static int teardown(void **state)
{
    dup2(pipe_state.saved, STDERR_FILENO);
    close_fdp(&pipe_state.saved);
    close_fdp(&pipe_state.read);
    close_fdp(&pipe_state.write);
    unsetenv("JOURNAL_STREAM");
    return 0;
}

/* The next packet as text; "" when there is none. */
static const char *next_line(void)
{
    static char buf[8192];
    ssize_t n = read(pipe_state.read, buf, sizeof(buf) - 1);

    assert_true(n > 0 || errno == EAGAIN);
    buf[MAX(n, 0)] = '\0';
    return buf;
}

static void use_journal(long off)
{
    char stream[64];
    struct stat st;

    assert_int_equal(fstat(STDERR_FILENO, &st), 0);
    snprintf(stream, sizeof(stream), "%ju:%ju", (uintmax_t)st.st_dev,
             (uintmax_t)st.st_ino + (uintmax_t)off);
    setenv("JOURNAL_STREAM", stream, 1);
    log_init("commd", CONF_LOG_DEBUG);
}

static void assert_matches(const char *text, const char *pattern)
{
    regex_t re;

    assert_int_equal(regcomp(&re, pattern, REG_EXTENDED | REG_NOSUB), 0);
    if (regexec(&re, text, 0, NULL, 0) != 0)
        fail_msg("\"%s\" does not match %s", text, pattern);
    regfree(&re);
}

#define STAMP "^[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}\\.[0-9]{3} "

static void plain_lines_carry_time_name_and_pid(void **state)
{
    char pattern[256];

    log_warn("node %d silent -> %s", 3, "suspected");
    snprintf(pattern, sizeof(pattern), STAMP "commd\\[%d\\] warn: node 3 silent -> suspected\n$",
             (int)getpid());
    assert_matches(next_line(), pattern);
    assert_string_equal(next_line(), "");
    log_init("commd-engine", CONF_LOG_DEBUG);
    log_error("x");
    assert_matches(next_line(), STAMP "commd-engine\\[[0-9]+\\] error: x\n$");
    log_info("x");
    assert_matches(next_line(), " info: x\n$");
    log_debug("x");
    assert_matches(next_line(), " debug: x\n$");
}

static void journal_lines_carry_the_priority(void **state)
{
    use_journal(0);
    log_error("a %d", 1);
    assert_string_equal(next_line(), "<3>a 1\n");
    log_warn("b");
    assert_string_equal(next_line(), "<4>b\n");
    log_info("c");
    assert_string_equal(next_line(), "<6>c\n");
    log_debug("d");
    assert_string_equal(next_line(), "<7>d\n");
}

static void what_deceives_a_reader_is_replaced(void **state)
{
    static const char *const pairs[][2] = {
        {"caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x99\x82", "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x99\x82"},
        {"a\xc2\x9b"
         "31mb",
         "a??31mb"}, /* CSI as a C1 control */
        {"a\x9b"
         "b",
         "a?b"}, /* no UTF-8 */
        {"a\xe2\x80\xae"
         "b",
         "a???b"}, /* right to left override */
        {"a\xe2\x80\xa8"
         "b",
         "a???b"}, /* line separator */
        {"a\xc0\x8a"
         "b",
         "a??b"}, /* a newline in two bytes */
        {"a\xed\xa0\x80"
         "b",
         "a???b"}, /* a surrogate */
        {"cut \xe2\x82", "cut ??"},
        {"a\x1b[2J\nuser 0: x", "a?[2J?user 0: x"},
    };

    for (unsigned i = 0; i < ARRAY_LEN(pairs); i++) {
        char text[64];

        snprintf(text, sizeof(text), "%s", pairs[i][0]);
        log_clean(text);
        assert_string_equal(text, pairs[i][1]);
    }
}

/* A shell in a service that redirects stderr inherits the variable all the same. */
static void another_stderr_is_not_the_journal(void **state)
{
    static const char *const bad[] = {"", "1", "x:y", "1:", "1:2:3"};

    use_journal(1);
    log_info("x");
    assert_matches(next_line(), STAMP);
    for (unsigned i = 0; i < ARRAY_LEN(bad); i++) {
        setenv("JOURNAL_STREAM", bad[i], 1);
        log_init("commd", CONF_LOG_DEBUG);
        log_info("x");
        assert_matches(next_line(), STAMP);
    }
}

static void levels_filter(void **state)
{
    log_set_level(CONF_LOG_WARN);
    assert_true(log_enabled(CONF_LOG_ERROR));
    assert_true(log_enabled(CONF_LOG_WARN));
    assert_false(log_enabled(CONF_LOG_INFO));
    assert_false(log_enabled(CONF_LOG_DEBUG));
    log_info("x");
    log_debug("x");
    assert_string_equal(next_line(), "");
    log_warn("x");
    assert_matches(next_line(), " warn: x\n$");
}

static void debug_arguments_are_not_evaluated_in_vain(void **state)
{
    int evaluated = 0;

    log_set_level(CONF_LOG_INFO);
    log_debug("%d", ++evaluated);
    assert_int_equal(evaluated, 0);
}

static void a_message_cannot_forge_a_line(void **state)
{
    use_journal(0);
    log_info("name %s", "a\n<0>panic\r\x1b[31m\x7f\t.");
    assert_string_equal(next_line(), "<6>name a?<0>panic??[31m??.\n");
    log_info("%s", "B\xc3\xa4r"); /* UTF-8 stays */
    assert_string_equal(next_line(), "<6>B\xc3\xa4r\n");
}

static void long_lines_are_cut_and_say_so(void **state)
{
    char text[5000], expected[8192];

    use_journal(0);
    memset(text, 'x', sizeof(text));
    for (size_t len = 2040; len <= 2050; len++) {
        text[len] = '\0';
        log_info("%s", text);
        if (3 + len + 1 <= 2048)
            snprintf(expected, sizeof(expected), "<6>%s\n", text);
        else
            snprintf(expected, sizeof(expected), "<6>%.*s...\n", 2048 - 3 - 4, text);
        assert_string_equal(next_line(), expected);
        text[len] = 'x';
    }
    text[sizeof(text) - 1] = '\0';
    log_info("%s", text);
    assert_string_equal(next_line(), expected);
}

static void errno_is_printed_and_kept(void **state)
{
    use_journal(0);
    errno = ENOENT;
    log_warn("open: %m");
    assert_int_equal(errno, ENOENT);
    assert_string_equal(next_line(), "<4>open: No such file or directory\n");
    unsetenv("JOURNAL_STREAM");
    log_init("commd", CONF_LOG_INFO);
    errno = EPERM;
    log_warn("open: %m");
    assert_int_equal(errno, EPERM);
    assert_matches(next_line(), " warn: open: Operation not permitted\n$");
}

static void a_full_pipe_loses_the_line_not_the_daemon(void **state)
{
    struct log_counts before, after;

    use_journal(0);
    log_counts(&before);
    while (write(STDERR_FILENO, "x", 1) == 1)
        ;
    assert_int_equal(errno, EAGAIN);
    errno = EIO;
    log_error("lost");
    assert_int_equal(errno, EIO);
    while (*next_line())
        ;
    log_error("kept");
    assert_string_equal(next_line(), "<3>kept\n");
    log_counts(&after);
    assert_int_equal(after.lost - before.lost, 1);
    assert_int_equal(after.written[CONF_LOG_ERROR] - before.written[CONF_LOG_ERROR], 1);
    assert_int_equal(after.written[CONF_LOG_WARN], before.written[CONF_LOG_WARN]);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    static const struct CMUnitTest tests[] = {
        TEST(plain_lines_carry_time_name_and_pid),
        TEST(journal_lines_carry_the_priority),
        TEST(another_stderr_is_not_the_journal),
        TEST(levels_filter),
        TEST(debug_arguments_are_not_evaluated_in_vain),
        TEST(a_message_cannot_forge_a_line),
        TEST(what_deceives_a_reader_is_replaced),
        TEST(long_lines_are_cut_and_say_so),
        TEST(errno_is_printed_and_kept),
        TEST(a_full_pipe_loses_the_line_not_the_daemon),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

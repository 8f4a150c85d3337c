/* test_subuid.c - whose the uids of /etc/subuid are, of files of every kind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "daemon/process/subuid.h"

enum { OWN = 990, ALICE = 1000, BOB = 1001 };

static unsigned asked;

static bool names(void *arg, const char *name, uint32_t *ret_uid)
{
    static const struct {
        const char *name;
        uint32_t uid;
    } known[] = {{"root", 0}, {"commd", OWN}, {"alice", ALICE}, {"bob", BOB}};

    (void)arg;
    asked++;
    for (unsigned i = 0; i < ARRAY_LEN(known); i++)
        if (!strcmp(known[i].name, name)) {
            *ret_uid = known[i].uid;
            return true;
        }
    return false;
}

static struct subuid_report report;

static struct payers *parsed(const char *text)
{
    struct payers *payers = subuid_parse(text, strlen(text), OWN, names, NULL, &report);

    assert_non_null(payers);
    for (unsigned i = 0; i < payers->n; i++) {
        assert_true(payers->ranges[i].first <= payers->ranges[i].last);
        assert_true(!i || payers->ranges[i - 1].last < payers->ranges[i].first);
    }
    return payers;
}

static void a_range_is_its_persons(void **state)
{
    struct payers *payers = parsed("bob:165536:65536\n"
                                   "# a comment\n\n"
                                   "alice:100000:65536\n"
                                   "alice:400000:10\n"
                                   "1002:300000:1");

    assert_int_equal(report.refused + report.strangers + report.overlaps, 0);
    assert_int_equal(payers->n, 4);
    assert_int_equal(payer_of(payers, 99999), 99999);
    assert_int_equal(payer_of(payers, 100000), ALICE);
    assert_int_equal(payer_of(payers, 165535), ALICE);
    assert_int_equal(payer_of(payers, 165536), BOB);
    assert_int_equal(payer_of(payers, 231071), BOB);
    assert_int_equal(payer_of(payers, 231072), 231072);
    assert_int_equal(payer_of(payers, 300000), 1002);
    assert_int_equal(payer_of(payers, 300001), 300001);
    assert_int_equal(payer_of(payers, 400009), ALICE);
    assert_int_equal(payer_of(payers, ALICE), ALICE);
    assert_int_equal(payer_of(payers, 0), 0);
    assert_int_equal(payer_of(payers, UINT32_MAX), UINT32_MAX);
    assert_int_equal(payer_of(NULL, 100000), 100000);
    free(payers);
}

/* Nobody gets the share of root, or of our own user. */
static void what_root_has_is_not_roots(void **state)
{
    struct payers *payers = parsed("root:100000:1000\n"
                                   "root:200000:1000\n"
                                   "commd:300000:1000\n"
                                   "0:400000:1000\n");

    assert_int_equal(payer_of(payers, 100500), 100000);
    assert_int_equal(payer_of(payers, 200500), 200000);
    assert_int_equal(payer_of(payers, 300500), 300000);
    assert_int_equal(payer_of(payers, 400500), 400000);
    free(payers);
    payers = parsed("alice:0:100\n"
                    "alice:500:1000\n" /* has our own user in it */
                    "alice:2000:100\n");
    assert_int_equal(report.refused, 2);
    assert_int_equal(report.line, 1);
    assert_int_equal(payer_of(payers, 0), 0);
    assert_int_equal(payer_of(payers, OWN), OWN);
    assert_int_equal(payer_of(payers, 2050), ALICE);
    free(payers);
}

/* Nobody can use up another's share. */
static void what_overlaps_is_one_user(void **state)
{
    struct payers *payers = parsed("alice:100000:65536\n"
                                   "bob:165535:65536\n"
                                   "alice:500000:10\n"
                                   "alice:505000:10\n"
                                   "alice:500005:10\n");

    assert_int_equal(report.overlaps, 1);
    assert_int_equal(payer_of(payers, 100000), 100000);
    assert_int_equal(payer_of(payers, 165535), 100000);
    assert_int_equal(payer_of(payers, 231070), 100000);
    assert_int_equal(payer_of(payers, 231071), 231071);
    assert_int_equal(payer_of(payers, 500014), ALICE); /* of one person, no matter */
    assert_int_equal(payer_of(payers, 500015), 500015);
    free(payers);
    payers = parsed("alice:100000:100\nbob:100010:10\nbob:100090:100\n");
    assert_int_equal(payers->n, 1);
    assert_int_equal(payer_of(payers, 100189), 100000);
    free(payers);
}

static void who_is_not_known_is_one_user(void **state)
{
    struct payers *payers;

    asked = 0;
    payers = parsed("carol:100000:10\ncarol:200000:10\n");
    assert_int_equal(asked, 1);
    assert_int_equal(report.strangers, 2);
    assert_int_equal(payer_of(payers, 100009), 100000);
    assert_int_equal(payer_of(payers, 200009), 100000);
    free(payers);
}

static void garbage_is_refused(void **state)
{
    static const char *const lines[] = {
        "alice",
        "alice:",
        "alice:100000",
        "alice:100000:",
        ":100000:10",
        "alice:x:10",
        "alice:100000:10x",
        "alice:-100000:10",
        "alice:+100000:10",
        "alice: 100000:10",
        "alice:100000:10:10",
        "alice:100000:0",
        "alice:99999999999:1",
        "alice:4294967295:1",
        "alice:4294967280:1", /* commd-gpu's */
        "alice:100000:4294967295",
        "alice:4294967279:2",
        "alice:100000:10\r",
    };
    struct payers *payers;
    char name[400], nul[] = "ali\0e:100000:10";

    for (unsigned i = 0; i < ARRAY_LEN(lines); i++) {
        payers = parsed(lines[i]);
        assert_int_equal(report.refused, 1);
        assert_int_equal(payers->n, 0);
        free(payers);
    }
    payers = subuid_parse(nul, sizeof(nul) - 1, OWN, names, NULL, &report);
    assert_int_equal(report.refused, 1);
    free(payers);
    memset(name, 'a', sizeof(name));
    memcpy(name + sizeof(name) - 8, ":1000:1", 8);
    free(parsed(name));
    assert_int_equal(report.refused, 1);
    payers = parsed("alice:4294967279:1"); /* the last that there is */
    assert_int_equal(payer_of(payers, 4294967279), ALICE);
    assert_int_equal(payer_of(payers, 4294967280), 4294967280);
    free(payers);
    payers = parsed("");
    assert_int_equal(payers->n, 0);
    free(payers);
}

static void a_file_has_an_end(void **state)
{
    enum { LINES = SUBUID_MAX + 3 };
    char *text = malloc(LINES * 32);
    struct payers *payers;
    size_t len = 0;

    for (unsigned i = 0; i < LINES; i++)
        len += (size_t)sprintf(text + len, "%u:%u:2\n", 1000 + i, 1000000 + 2 * i);
    payers = subuid_parse(text, len, OWN, names, NULL, &report);
    assert_non_null(payers);
    assert_int_equal(payers->n, SUBUID_MAX);
    assert_int_equal(report.refused, 3);
    assert_int_equal(report.line, SUBUID_MAX + 1);
    assert_int_equal(payer_of(payers, 1000000 + 2 * SUBUID_MAX - 1), 1000 + SUBUID_MAX - 1);
    free(payers);
    free(text);
}

static void written(const char *path, const char *text, mode_t mode)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    assert_true(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    assert_int_equal(fchmod(fd, mode), 0);
    close(fd);
}

static void files_of_every_kind(void **state)
{
    char folder[] = "/tmp/test_subuid.XXXXXX", path[64];
    struct payers *payers;
    struct subuid *subuid;

    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/subuid", folder);
    assert_null(subuid_load(path, OWN, &report));
    assert_int_equal(report.error, -ENOENT);
    assert_null(subuid_load(folder, OWN, &report));
    assert_int_equal(report.error, -EINVAL);
    assert_int_equal(mkfifo(path, 0600), 0); /* nobody writes there: it is not waited for */
    assert_null(subuid_load(path, OWN, &report));
    assert_int_equal(report.error, -EINVAL);
    unlink(path);
    written(path, "1000:100000:10\n", 0666);
    assert_null(subuid_load(path, OWN, &report));
    assert_int_equal(report.error, -EPERM);
    written(path, "root:100000:10\n1000:200000:10\n", 0644);
    payers = subuid_load(path, OWN, &report);
    assert_non_null(payers);
    assert_int_equal(report.error + report.strangers, 0); /* the system knows root */
    assert_int_equal(payer_of(payers, 200009), 1000);
    free(payers);
    subuid = subuid_begin(path, OWN);
    assert_non_null(subuid);
    while (!subuid_take(&subuid, &payers, &report))
        usleep(1000);
    assert_null(subuid);
    assert_int_equal(payer_of(payers, 200009), 1000);
    free(payers);
    assert_null(subuid_free(subuid_begin(path, OWN)));
    unlink(path);
    rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_range_is_its_persons),    cmocka_unit_test(what_root_has_is_not_roots),
        cmocka_unit_test(what_overlaps_is_one_user), cmocka_unit_test(who_is_not_known_is_one_user),
        cmocka_unit_test(garbage_is_refused),        cmocka_unit_test(a_file_has_an_end),
        cmocka_unit_test(files_of_every_kind),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

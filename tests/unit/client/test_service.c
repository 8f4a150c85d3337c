/* Is a commd of the whole node meant to run here? (client/lib/context/service.c) */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>

#include "client/lib/context/context.h"

static char root[64];

static void sh(const char *format, const char *text)
{
    char command[2048];

    snprintf(command, sizeof command, format, root, text);
    assert_int_equal(system(command), 0);
}

static int begin(void **state)
{
    (void)state;
    snprintf(root, sizeof root, "/tmp/commd-service.XXXXXX");
    return !mkdtemp(root);
}

static int end(void **state)
{
    (void)state;
    sh("rm -r %s%s", "");
    return 0;
}

static bool expected(char why[600])
{
    why[0] = 0;
    return service_expected(root, why, 600);
}

static void a_unit_counts_where_systemd_runs(void **state)
{
    char why[600];

    (void)state;
    assert_false(expected(why));
    sh("mkdir -p %s/etc/systemd/system/%s", "multi-user.target.wants");
    sh("ln -s ../commd.service %s/etc/systemd/system/%s", "multi-user.target.wants/commd.service");
    assert_false(expected(why)); /* the image of a container */
    sh("mkdir -p %s/run/%s", "systemd/system");
    assert_false(expected(why)); /* the package has been removed */
    sh("touch %s/etc/systemd/system/%s", "commd.service");
    assert_true(expected(why));
    assert_non_null(strstr(why, "multi-user.target.wants/commd.service"));
}

static void nodes_of_the_configuration_count(void **state)
{
    static const struct {
        const char *text;
        bool nodes;
    } cases[] = {
        {"", false},
        {"cluster:\n  #nodes:\n    #- {name: a}\n", false},
        {"cluster:\n  nodes:\n    #- {name: a}\nlisten:\n  http: [\n", false},
        {"cluster:\n  nodes: []\n", false},
        {"cluster:\n  nodes: [ ]  # none\n", false},
        {"cluster:\n  nodes:  # all\n\n    # first\n  - {name: a, address: 10.0.0.1}\n", true},
        {"cluster:\n  nodes: [{name: a, address: 10.0.0.1}]\n", true},
        {"cluster:\n  nodes: [ {name: a, address: 10.0.0.1}]\n", true},
        {"cluster:\n  nodes:\n    - name: a\n", true},
    };
    char why[600];

    (void)state;
    sh("mkdir -p %s%s", COMMD_SYSCONFDIR "/commd");
    sh("mkdir -p %s%s", COMMD_SBINDIR);
    sh("touch %s%s", COMMD_SBINDIR "/commd");
    for (unsigned i = 0; i < ARRAY_LEN(cases); i++) {
        char path[600];
        FILE *file;

        snprintf(path, sizeof path, "%s" COMMD_SYSCONFDIR "/commd/commd.yaml", root);
        file = fopen(path, "w");
        assert_non_null(file);
        fputs(cases[i].text, file);
        fclose(file);
        assert_int_equal(expected(why), cases[i].nodes);
        assert_int_equal(strstr(why, path) != NULL, cases[i].nodes);
    }
    sh("rm %s%s", COMMD_SBINDIR "/commd"); /* the package has been removed */
    assert_false(expected(why));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_unit_counts_where_systemd_runs, begin, end),
        cmocka_unit_test_setup_teardown(nodes_of_the_configuration_count, begin, end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

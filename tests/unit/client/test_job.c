/* Which job does a group's name belong to? (client/lib/context/job.c) */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>

#include "client/lib/context/group.h"

/* The environment of a process: "A=x B=y". */
static void environment(const char *text)
{
    char buf[512], *save = NULL;

    clearenv();
    snprintf(buf, sizeof buf, "%s", text);
    for (char *word = strtok_r(buf, " ", &save); word; word = strtok_r(NULL, " ", &save)) {
        char *value = strchr(word, '=');

        *value = 0;
        setenv(word, value + 1, 1);
    }
}

static void names_have_their_job(void **state)
{
    static const struct {
        const char *environment, *name, *full;
    } cases[] = {
        {"", "hello", "hello"},
        {"", "/hello", "hello"},
        {"COMMD_JOB=a", "hello", "a/hello"},
        {"COMMD_JOB=b", "hello", "b/hello"},
        {"COMMD_JOB=a", "/hello", "hello"},
        {"COMMD_JOB=b", "/a/hello", "a/hello"},
        {"SLURM_JOB_ID=17 SLURM_STEP_ID=0", "hello", "slurm-17/hello"},
        {"SLURM_JOB_ID=17 SLURM_STEP_ID=1", "hello", "slurm-17/hello"},
        {"SLURM_JOB_ID=17", "hello", "slurm-17/hello"},
        {"SLURM_JOB_ID=", "hello", "hello"},
        {"SLURM_JOB_ID=17 COMMD_JOB=a", "hello", "a/hello"},
        {"SLURM_JOB_ID=17 COMMD_JOB=", "hello", "hello"},
        /* of the step, and only with --mpi=pmix */
        {"SLURM_JOB_ID=17 PMIX_NAMESPACE=slurm.pmix.17.0", "hello", "slurm-17/hello"},
        /* two mpirun in one allocation */
        {"SLURM_JOB_ID=17 PMIX_NAMESPACE=prterun-b-9@1", "hello", "mpi-prterun-b-9@1/hello"},
        {"TORCHELASTIC_RUN_ID=none", "hello", "hello"},
        {"TORCHELASTIC_RUN_ID=none SLURM_JOB_ID=17", "hello", "slurm-17/hello"},
        {"TORCHELASTIC_RUN_ID=x SLURM_JOB_ID=17", "hello", "torchrun-x/hello"},
    };
    char full[MSG_GROUP_MAX];

    (void)state;
    for (unsigned i = 0; i < ARRAY_LEN(cases); i++) {
        environment(cases[i].environment);
        assert_int_equal(job_name_of(cases[i].name, full), 0);
        assert_string_equal(full, cases[i].full);
    }
}

static void refused(const char *name, const char *text)
{
    char full[MSG_GROUP_MAX];

    assert_int_equal(job_name_of(name, full), COMMD_E_INVALID);
    assert_non_null(strstr(commd_last_error()->message, text));
}

static void a_name_that_cannot_be_is_refused(void **state)
{
    char name[MSG_GROUP_MAX + 1], full[MSG_GROUP_MAX];

    (void)state;
    environment("");
    refused(NULL, "1 to 255 bytes");
    refused("", "1 to 255 bytes");
    refused("/", "1 to 255 bytes");
    refused("a\nb", "byte 1 is a control character");
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = 0;
    refused(name, "1 to 255 bytes");
    name[MSG_GROUP_MAX - 1] = 0;
    assert_int_equal(job_name_of(name, full), 0);
    assert_string_equal(full, name);
    environment("SLURM_JOB_ID=17");
    refused(name, "264 bytes with its job (SLURM_JOB_ID)");
    name[MSG_GROUP_MAX - 10] = 0;
    assert_int_equal(job_name_of(name, full), 0);
    assert_int_equal(strlen(full), MSG_GROUP_MAX - 1);
    environment("COMMD_JOB=a\tb");
    refused("hello", "COMMD_JOB: byte 1 is a control character");
    assert_int_equal(job_name_of("/hello", full), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_have_their_job),
        cmocka_unit_test(a_name_that_cannot_be_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

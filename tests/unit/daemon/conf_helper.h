/* conf_helper.h - what the tests of the configuration share. */
#ifndef COMMD_TESTS_CONF_HELPER_H
#define COMMD_TESTS_CONF_HELPER_H

#include "daemon/conf/conf.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include <fcntl.h>
#include <sys/stat.h>

#define F "c.yaml"

/* This host's name as commd takes it, without asking the code under test. */
static inline const char *host(void)
{
    static char name[256];

    assert_int_equal(gethostname(name, sizeof(name) - 1), 0);
    name[strcspn(name, ".")] = '\0';
    return name;
}

static inline struct conf *load_ok(const char *text)
{
    struct conf *conf = NULL;
    char *error = NULL;
    int r = conf_load(F, text, strlen(text), &conf, &error);

    if (r != 0)
        fail_msg("%d: %s", r, error ? error : "no text");
    assert_null(error);
    assert_non_null(conf);
    return conf;
}

/* A directory of the test's own with a file in it. */
struct files {
    char dir[64];
    char path[128];
};

static inline int make_dir(void **state)
{
    static struct files files;

    strcpy(files.dir, "/tmp/test_conf.XXXXXX");
    if (!mkdtemp(files.dir))
        return -1;
    snprintf(files.path, sizeof(files.path), "%s/file", files.dir);
    *state = &files;
    return 0;
}

static inline int remove_dir(void **state)
{
    struct files *files = *state;

    unlink(files->path);
    return rmdir(files->dir);
}

static inline void write_file(const char *path, const void *data, size_t len, mode_t mode)
{
    int fd;

    unlink(path);
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, len), len);
    assert_int_equal(fchmod(fd, mode), 0);
    close(fd);
}

#endif

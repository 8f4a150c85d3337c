/* The key file: what is taken, and the text for all that is not. */
#include "tests/unit/daemon/conf_helper.h"

static int load_key(const char *path, uint8_t ret_key[32], char **ret_error)
{
    char text[512];
    struct conf *conf;
    int r;

    snprintf(text, sizeof(text), "cluster: {key_file: %s}", path);
    conf = load_ok(text);
    r = conf_load_key(conf, ret_key, ret_error);
    conf_free(conf);
    return r;
}

static void check_key_error(const char *path, int expected_r, const char *fmt, ...) _printf_(3, 4);

static void check_key_error(const char *path, int expected_r, const char *fmt, ...)
{
    char *error = NULL, expected[512];
    uint8_t key[32] = {0}, zero[32] = {0};
    va_list args;

    va_start(args, fmt);
    vsnprintf(expected, sizeof(expected), fmt, args);
    va_end(args);
    assert_int_equal(load_key(path, key, &error), expected_r);
    assert_non_null(error);
    assert_string_equal(error, expected);
    assert_memory_equal(key, zero, sizeof(key)); /* no half of a key is left */
    free(error);
}

#define HEX "000102030405060708090a0b0c0d0e0f101112131415161718191A1B1C1D1E1F"

static void key_is_read(void **state)
{
    static const char *const hex[] = {HEX, HEX "\n", HEX "\r\n"};
    struct files *files = *state;
    uint8_t key[32], expected[32];
    char *error = NULL;

    for (unsigned i = 0; i < 32; i++)
        expected[i] = (uint8_t)i;
    for (unsigned i = 0; i < ARRAY_LEN(hex); i++) {
        memset(key, 0xff, sizeof(key));
        write_file(files->path, hex[i], strlen(hex[i]), i ? 0600 : 0400);
        assert_int_equal(load_key(files->path, key, &error), 0);
        assert_null(error);
        assert_memory_equal(key, expected, sizeof(key));
    }
    memset(expected, 0xa5, sizeof(expected));
    write_file(files->path, expected, sizeof(expected), 0600);
    assert_int_equal(load_key(files->path, key, &error), 0);
    assert_memory_equal(key, expected, sizeof(key));
}

static void key_of_the_wrong_length(void **state)
{
    static const char *const bad[] = {
        "",
        "\n",
        "0011\n",
        HEX "0",
        HEX "\n\n",
        HEX "\nx",
        HEX HEX,
        "x" HEX,
        "g00102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f",
        "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1g",
        "0123456789012345678901234567890",   /* 31 bytes */
        "012345678901234567890123456789012", /* 33 */
    };
    struct files *files = *state;

    for (unsigned i = 0; i < ARRAY_LEN(bad); i++) {
        write_file(files->path, bad[i], strlen(bad[i]), 0600);
        check_key_error(files->path, -EINVAL,
                        "%s: the cluster key is not 64 hex digits or 32 bytes; make one by: "
                        "openssl rand -hex 32 > %s",
                        files->path, files->path);
    }
}

static void key_open_to_others(void **state)
{
    static const mode_t modes[] = {0640, 0604, 0620, 0602, 0610, 0644, 0666, 0440};
    struct files *files = *state;

    for (unsigned i = 0; i < ARRAY_LEN(modes); i++) {
        write_file(files->path, HEX, strlen(HEX), modes[i]);
        check_key_error(files->path, -EACCES,
                        "%s: mode %04o opens the cluster key to other users; repair by: chmod "
                        "600 %s",
                        files->path, (unsigned)modes[i], files->path);
    }
}

static void key_cannot_be_read(void **state)
{
    struct files *files = *state;

    check_key_error(files->path, -ENOENT,
                    "%s: cannot open the cluster key: No such file or directory; make one for "
                    "all nodes by: openssl rand -hex 32 > %s",
                    files->path, files->path);
    check_key_error(files->dir, -EINVAL,
                    "%s: the cluster key is not a regular file; make one by: openssl rand -hex "
                    "32 > FILE",
                    files->dir);
    assert_int_equal(mkfifo(files->path, 0600), 0); /* must not block */
    check_key_error(files->path, -EINVAL,
                    "%s: the cluster key is not a regular file; make one by: openssl rand -hex "
                    "32 > FILE",
                    files->path);
    if (geteuid() != 0) {
        write_file(files->path, HEX, strlen(HEX), 0);
        check_key_error(files->path, -EACCES,
                        "%s: cannot open the cluster key: Permission denied; it must belong to "
                        "the user that runs commd: chown commd %s",
                        files->path, files->path);
    }
}

static void key_as_a_credential(void **state)
{
    static const char file[] = "$CREDENTIALS_DIRECTORY/file";
    struct files *files = *state;
    uint8_t key[32];
    char *error = NULL;

    unsetenv("CREDENTIALS_DIRECTORY");
    check_key_error(file, -ENOENT,
                    "%s: $CREDENTIALS_DIRECTORY is not set; only systemd's LoadCredential= sets "
                    "it",
                    file);
    setenv("CREDENTIALS_DIRECTORY", files->dir, 1);
    write_file(files->path, HEX, strlen(HEX), 0440); /* the mask of systemd's ACL */
    assert_int_equal(load_key(file, key, &error), 0);
    write_file(files->path, HEX, strlen(HEX), 0444);
    check_key_error(file, -EACCES,
                    "%s: mode 0444 opens the cluster key to other users; repair by: chmod 600 %s",
                    files->path, files->path);
    unsetenv("CREDENTIALS_DIRECTORY");
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(key_is_read, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(key_of_the_wrong_length, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(key_open_to_others, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(key_cannot_be_read, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(key_as_a_credential, make_dir, remove_dir),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

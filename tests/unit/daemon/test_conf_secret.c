/* The key file: what is taken, and the text for all that is not. */
#include "tests/unit/daemon/conf_helper.h"

static int load_keys(const char *path, struct conf_keys *ret_keys, char **ret_error)
{
    char text[512];
    struct conf *conf;
    int r;

    snprintf(text, sizeof(text), "cluster: {key_file: %s}", path);
    conf = load_ok(text);
    r = conf_load_keys(conf, ret_keys, ret_error);
    conf_free(conf);
    return r;
}

static void check_key_error(const char *path, int expected_r, const char *fmt, ...) _printf_(3, 4);

static void check_key_error(const char *path, int expected_r, const char *fmt, ...)
{
    char *error = NULL, expected[512];
    struct conf_keys keys = {0}, none = {0};
    va_list args;

    va_start(args, fmt);
    vsnprintf(expected, sizeof(expected), fmt, args);
    va_end(args);
    assert_int_equal(load_keys(path, &keys, &error), expected_r);
    assert_non_null(error);
    assert_string_equal(error, expected);
    assert_memory_equal(&keys, &none, sizeof(keys)); /* no half of a key is left */
    free(error);
}

#define HEX "000102030405060708090a0b0c0d0e0f101112131415161718191A1B1C1D1E1F"

#define HEX2                                                                                       \
    "ff"                                                                                           \
    "0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"

static void keys_are_read(void **state)
{
    static const struct {
        const char *text;
        unsigned n;
    } hex[] = {{HEX, 1},           {HEX "\n", 1},           {HEX "\r\n", 1},
               {HEX "\n" HEX2, 2}, {HEX "\n" HEX2 "\n", 2}, {HEX "\r\n" HEX2 "\r\n", 2}};
    struct files *files = *state;
    struct conf_keys keys;
    uint8_t expected[32];
    char *error = NULL;

    for (unsigned i = 0; i < 32; i++)
        expected[i] = (uint8_t)i;
    for (unsigned i = 0; i < ARRAY_LEN(hex); i++) {
        memset(&keys, 0xff, sizeof(keys));
        write_file(files->path, hex[i].text, strlen(hex[i].text), i ? 0600 : 0400);
        assert_int_equal(load_keys(files->path, &keys, &error), 0);
        assert_null(error);
        assert_int_equal(keys.n, hex[i].n);
        assert_memory_equal(keys.key[0], expected, sizeof(expected));
        assert_int_equal(keys.key[1][0], 0xff);
        if (keys.n == 2)
            assert_memory_equal(keys.key[1] + 1, expected + 1, sizeof(expected) - 1);
    }
    memset(expected, 0xa5, sizeof(expected));
    expected[31] = 0;
    write_file(files->path, expected, sizeof(expected), 0600);
    assert_int_equal(load_keys(files->path, &keys, &error), 0);
    assert_int_equal(keys.n, 1);
    assert_memory_equal(keys.key[0], expected, sizeof(expected));
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
        HEX "\n\n" HEX2,
        HEX "\n" HEX2 "\n" HEX,
        "\n" HEX,
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
                        "%s: the cluster key is not 64 hex digits or 32 bytes, nor are there two "
                        "in two lines; make one by: openssl rand -hex 32 > %s",
                        files->path, files->path);
    }
}

/* Of a file that somebody wrote to have one, or of /dev/zero. */
static void key_of_one_byte(void **state)
{
    struct files *files = *state;
    char text[2 * 65 + 1], zeros[32] = {0};

    write_file(files->path, zeros, sizeof(zeros), 0600);
    for (unsigned i = 0; i < 2; i++) {
        check_key_error(files->path, -EINVAL,
                        "%s: the cluster key is one byte 32 times, which anybody can guess; make "
                        "one by: openssl rand -hex 32 > %s",
                        files->path, files->path);
        sprintf(text, HEX "\n%064d\n", 0); /* the second one is accepted, too */
        write_file(files->path, text, strlen(text), 0600);
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
                        "400 %s",
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
    struct conf_keys keys;
    char *error = NULL;

    unsetenv("CREDENTIALS_DIRECTORY");
    check_key_error(file, -ENOENT,
                    "%s: $CREDENTIALS_DIRECTORY is not set; only systemd's LoadCredential= sets "
                    "it",
                    file);
    setenv("CREDENTIALS_DIRECTORY", files->dir, 1);
    write_file(files->path, HEX, strlen(HEX), 0440); /* the mask of systemd's ACL */
    assert_int_equal(load_keys(file, &keys, &error), 0);
    write_file(files->path, HEX, strlen(HEX), 0444);
    check_key_error(file, -EACCES,
                    "%s: mode 0444 opens the cluster key to other users; repair by: chmod 400 %s",
                    files->path, files->path);
    unsetenv("CREDENTIALS_DIRECTORY");
}

/* Reads the four files, all of which are @path but the one that is @which, @other. */
static int load_pems(const char *path, enum conf_pem which, const char *other,
                     struct conf_pems *ret_pems, char **ret_error)
{
    static const char *const keys[CONF_PEMS] = {"certificate", "certificate_key", "ca", "crl"};
    char text[1024] = "cluster:\n";
    struct conf *conf;
    size_t at = strlen(text);
    int r;

    for (unsigned i = 0; i < CONF_PEMS; i++)
        at += (size_t)sprintf(text + at, "  %s: \"%s\"\n", keys[i], i == which ? other : path);
    conf = load_ok(text);
    r = conf_load_pems(conf, ret_pems, ret_error);
    conf_free(conf);
    return r;
}

static void check_pem_error(const char *path, enum conf_pem which, const char *other,
                            int expected_r, const char *fmt, ...) _printf_(5, 6);

static void check_pem_error(const char *path, enum conf_pem which, const char *other,
                            int expected_r, const char *fmt, ...)
{
    char *error = NULL, expected[512];
    struct conf_pems pems;
    va_list args;

    va_start(args, fmt);
    vsnprintf(expected, sizeof(expected), fmt, args);
    va_end(args);
    assert_int_equal(load_pems(path, which, other, &pems, &error), expected_r);
    assert_non_null(error);
    assert_string_equal(error, expected);
    conf_pems_fini(&pems);
    free(error);
}

static void files_of_certificates_are_read(void **state)
{
    struct files *files = *state;
    struct conf_pems pems;
    char *error = NULL;

    write_file(files->path, "text", 4, 0400);
    assert_int_equal(load_pems(files->path, CONF_PEM_CRL, "", &pems, &error), 0);
    for (unsigned i = 0; i < CONF_PEM_CRL; i++) {
        assert_string_equal(pems.file[i].path, files->path);
        assert_int_equal(pems.file[i].len, 4);
        assert_memory_equal(pems.file[i].text, "text", 4);
    }
    assert_null(pems.file[CONF_PEM_CRL].path);
    conf_pems_fini(&pems);
}

static void files_of_certificates_that_are_wrong(void **state)
{
    static const char *const what[CONF_PEMS] = {
        "certificate of this node", "private key of this node's certificate",
        "certificate of the CA", "list of revoked certificates"};
    struct files *files = *state;
    size_t size = (1 << 20) + 1;
    char *large = calloc(1, size);

    for (enum conf_pem which = 0; which < CONF_PEMS; which++) {
        write_file(files->path, "text", 4, 0400);
        check_pem_error(files->path, which, "/nowhere/at/all", -ENOENT,
                        "/nowhere/at/all: cannot open the %s: No such file or directory; "
                        "doc/operations.md, \"Certificates\", says how it is made",
                        what[which]);
        check_pem_error(files->path, which, files->dir, -EINVAL, "%s: the %s is not a regular file",
                        files->dir, what[which]);
    }
    write_file(files->path, large, size, 0400);
    check_pem_error(files->path, CONF_PEM_CRL, "", -EFBIG,
                    "%s: the certificate of this node has more than 1048576 bytes", files->path);
    free(large);
    /* the others may be open to all */
    write_file(files->path, "text", 4, 0444);
    check_pem_error(
        files->path, CONF_PEM_CRL, "", -EACCES,
        "%s: mode 0444 opens the private key of this node's certificate to other users; "
        "repair by: chmod 400 %s",
        files->path, files->path);
    if (geteuid() != 0) {
        write_file(files->path, "text", 4, 0);
        check_pem_error(files->path, CONF_PEM_CRL, "", -EACCES,
                        "%s: cannot open the certificate of this node: Permission denied; it must "
                        "be open to the user that runs commd: chmod 444 %s",
                        files->path, files->path);
    }
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(keys_are_read, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(key_of_the_wrong_length, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(key_of_one_byte, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(key_open_to_others, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(key_cannot_be_read, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(key_as_a_credential, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(files_of_certificates_are_read, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(files_of_certificates_that_are_wrong, make_dir, remove_dir),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* conf_secret.c - the cluster key: 32 bytes that only the nodes of a cluster have. There are two
 * keys while the operator replaces one by another.
 *
 * A user that reads the file can join the cluster. So a file that other users can open is refused.
 * The open file is checked and not its path: what was checked is what is read. Only the caller's
 * copy of the key outlives a call. */
#include "daemon/conf/conf.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#define CREDENTIALS "$CREDENTIALS_DIRECTORY"

enum {
    KEY_BYTES = CONF_KEY_BYTES,
    KEY_DIGITS = 2 * KEY_BYTES,
    KEY_FILE_MAX = CONF_KEYS_MAX * (KEY_DIGITS + 2)
};

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static bool parse_hex_line(const char *line, size_t len, uint8_t ret_key[KEY_BYTES])
{
    if (len > KEY_DIGITS && line[len - 1] == '\r')
        len--;
    if (len != KEY_DIGITS)
        return false;
    for (unsigned i = 0; i < KEY_BYTES; i++) {
        int high = hex_digit(line[2 * i]), low = hex_digit(line[2 * i + 1]);

        if (high < 0 || low < 0)
            return false;
        ret_key[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}

/* @ret_keys may hold half a key on false: read_keys() clears it. */
static bool parse_keys(const char *text, size_t len, struct conf_keys *ret_keys)
{
    ret_keys->n = 0;
    if (len == KEY_BYTES) {
        memcpy(ret_keys->key[ret_keys->n++], text, KEY_BYTES);
        return true;
    }
    while (len) {
        const char *end = memchr(text, '\n', len);
        size_t line = end ? (size_t)(end - text) : len;

        if (ret_keys->n == CONF_KEYS_MAX || !parse_hex_line(text, line, ret_keys->key[ret_keys->n]))
            return false;
        ret_keys->n++;
        line += end != NULL;
        text += line;
        len -= line;
    }
    return ret_keys->n > 0;
}

/* The path with $CREDENTIALS_DIRECTORY at its front replaced. */
static int expand(const char *file, bool *ret_credential, char **ret_path, char **ret_error)
{
    const char *rest = file + strlen(CREDENTIALS), *dir;

    *ret_credential = !strncmp(file, CREDENTIALS "/", strlen(CREDENTIALS "/"));
    dir = *ret_credential ? getenv("CREDENTIALS_DIRECTORY") : "";
    if (!dir)
        return fail_with(-ENOENT, ret_error,
                         "%s: " CREDENTIALS " is not set; only systemd's LoadCredential= sets it",
                         file);
    if (asprintf(ret_path, "%s%s", dir, *ret_credential ? rest : file) >= 0)
        return 0;
    *ret_path = NULL;
    return -ENOMEM;
}

static int open_key(const char *path, int *ret_fd, char **ret_error)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK), r = -errno;

    if (fd >= 0) {
        *ret_fd = fd;
        return 0;
    }
    if (r == -ENOENT)
        return fail_with(r, ret_error,
                         "%s: cannot open the cluster key: %s; make one for all nodes by: openssl "
                         "rand -hex 32 > %s",
                         path, strerror(-r), path);
    if (r == -EACCES)
        return fail_with(
            r, ret_error,
            "%s: cannot open the cluster key: %s; it must belong to the user that runs "
            "commd: chown commd %s",
            path, strerror(-r), path);
    return fail_with(r, ret_error, "%s: cannot open the cluster key: %s", path, strerror(-r));
}

static int check_file(int fd, const char *path, bool credential, char **ret_error)
{
    /* systemd gives credentials to the unit's user by an ACL, whose mask stat() shows as the
     * group's bits; the directory above admits that user only. */
    mode_t others = credential ? 07 : 077;
    struct stat st;

    if (fstat(fd, &st) < 0)
        return fail_with(-errno, ret_error, "%s: cannot read the cluster key: %m", path);
    if (!S_ISREG(st.st_mode))
        return fail_with(
            -EINVAL, ret_error,
            "%s: the cluster key is not a regular file; make one by: openssl rand -hex "
            "32 > FILE",
            path);
    if (st.st_mode & others)
        return fail_with(-EACCES, ret_error,
                         "%s: mode %04o opens the cluster key to other users; repair by: chmod 400 "
                         "%s",
                         path, (unsigned)(st.st_mode & 07777), path);
    return 0;
}

static int read_keys(int fd, const char *path, struct conf_keys *ret_keys, char **ret_error)
{
    char text[KEY_FILE_MAX + 1]; /* one more: a longer file shows as longer */
    size_t len = 0;
    ssize_t n;
    int r = 0;

    do {
        n = read(fd, text + len, sizeof(text) - len);
        if (n > 0)
            len += (size_t)n;
    } while ((n > 0 && len < sizeof(text)) || (n < 0 && errno == EINTR));
    if (n < 0) {
        r = fail_with(-errno, ret_error, "%s: cannot read the cluster key: %m", path);
    } else if (!parse_keys(text, len, ret_keys)) {
        explicit_bzero(ret_keys, sizeof(*ret_keys));
        r = fail_with(
            -EINVAL, ret_error,
            "%s: the cluster key is not 64 hex digits or 32 bytes, nor are there two in two "
            "lines; make one by: openssl rand -hex 32 > %s",
            path, path);
    }
    explicit_bzero(text, sizeof(text));
    return r;
}

int conf_load_keys(const struct conf *conf, struct conf_keys *ret_keys, char **ret_error)
{
    _cleanup_(freep) char *path = NULL;
    _cleanup_(close_fdp) int fd = -1;
    bool credential;
    int r;

    *ret_error = NULL;
    r = expand(conf->key_file, &credential, &path, ret_error);
    if (r < 0)
        return r;
    r = open_key(path, &fd, ret_error);
    if (r < 0)
        return r;
    r = check_file(fd, path, credential, ret_error);
    if (r < 0)
        return r;
    return read_keys(fd, path, ret_keys, ret_error);
}

/* conf_secret.c - the cluster key: 32 bytes that only the nodes of a cluster have; and the files of
 * this node's certificate, which are read here and understood in daemon/link/tls_identity.c. There
 * are two keys of the cluster while the operator replaces one by another.
 *
 * A user that reads the cluster key can join the cluster, and one that reads the private key of the
 * certificate can pose as this node. So a file that other users can open is refused. The open file
 * is checked and not its path: what was checked is what is read. Only the caller's copy of a key
 * outlives a call. */
#include "daemon/conf/conf.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#define CREDENTIALS "$CREDENTIALS_DIRECTORY"

enum {
    KEY_BYTES = CONF_KEY_BYTES,
    KEY_DIGITS = 2 * KEY_BYTES,
    KEY_FILE_MAX = CONF_KEYS_MAX * (KEY_DIGITS + 2),
    PEM_FILE_MAX = 1 << 20, /* a list of some 25,000 revoked certificates */
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

/* What errors call a file, and how it is made. */
struct secret {
    const char *what, *made_by;
    bool open; /* other users may read it */
};

static const struct secret cluster_key = {
    "cluster key", "make one for all nodes by: openssl rand -hex 32 > ", false};
static const struct secret pem_files[CONF_PEMS] = {
    [CONF_PEM_CERTIFICATE] = {"certificate of this node", NULL, true},
    [CONF_PEM_KEY] = {"private key of this node's certificate", NULL, false},
    [CONF_PEM_CA] = {"certificate of the CA", NULL, true},
    [CONF_PEM_CRL] = {"list of revoked certificates", NULL, true},
};

static int open_secret(const struct secret *is, const char *path, int *ret_fd, char **ret_error)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK), r = -errno;

    if (fd >= 0) {
        *ret_fd = fd;
        return 0;
    }
    if (r == -ENOENT && !is->made_by)
        return fail_with(
            r, ret_error,
            "%s: cannot open the %s: %s; doc/operations.md, \"Certificates\", says how "
            "it is made",
            path, is->what, strerror(-r));
    if (r == -ENOENT)
        return fail_with(r, ret_error, "%s: cannot open the %s: %s; %s%s", path, is->what,
                         strerror(-r), is->made_by, path);
    if (r == -EACCES)
        return fail_with(
            r, ret_error, "%s: cannot open the %s: %s; %s the user that runs commd: %s %s", path,
            is->what, strerror(-r), is->open ? "it must be open to" : "it must belong to",
            is->open ? "chmod 444" : "chown commd", path);
    return fail_with(r, ret_error, "%s: cannot open the %s: %s", path, is->what, strerror(-r));
}

static int check_file(const struct secret *is, int fd, const char *path, bool credential,
                      char **ret_error)
{
    /* systemd gives credentials to the unit's user by an ACL, whose mask stat() shows as the
     * group's bits; the directory above admits that user only. */
    mode_t others = is->open ? 0 : credential ? 07 : 077;
    struct stat st;

    if (fstat(fd, &st) < 0)
        return fail_with(-errno, ret_error, "%s: cannot read the %s: %m", path, is->what);
    if (!S_ISREG(st.st_mode) && is->made_by)
        return fail_with(-EINVAL, ret_error,
                         "%s: the %s is not a regular file; make one by: openssl rand -hex "
                         "32 > FILE",
                         path, is->what);
    if (!S_ISREG(st.st_mode))
        return fail_with(-EINVAL, ret_error, "%s: the %s is not a regular file", path, is->what);
    if (st.st_mode & others)
        return fail_with(-EACCES, ret_error,
                         "%s: mode %04o opens the %s to other users; repair by: chmod 400 "
                         "%s",
                         path, (unsigned)(st.st_mode & 07777), is->what, path);
    return 0;
}

/* Opens @file, which may be a credential, and checks it. */
static int open_checked(const struct secret *is, const char *file, char **ret_path, int *ret_fd,
                        char **ret_error)
{
    bool credential;
    int r;

    *ret_error = NULL;
    r = expand(file, &credential, ret_path, ret_error);
    if (r < 0)
        return r;
    r = open_secret(is, *ret_path, ret_fd, ret_error);
    if (r < 0)
        return r;
    return check_file(is, *ret_fd, *ret_path, credential, ret_error);
}

/* Up to @size bytes; *ret_len says how many also after a failure. @what: the file, in errors. */
static int read_secret(int fd, const char *path, const char *what, char *buf, size_t size,
                       size_t *ret_len, char **ret_error)
{
    size_t len = 0;
    ssize_t n;

    do {
        n = read(fd, buf + len, size - len);
        if (n > 0)
            len += (size_t)n;
    } while ((n > 0 && len < size) || (n < 0 && errno == EINTR));
    *ret_len = len;
    return n < 0 ? fail_with(-errno, ret_error, "%s: cannot read the %s: %m", path, what) : 0;
}

static int read_keys(int fd, const char *path, struct conf_keys *ret_keys, char **ret_error)
{
    char text[KEY_FILE_MAX + 1]; /* one more: a longer file shows as longer */
    size_t len;
    int r;

    r = read_secret(fd, path, cluster_key.what, text, sizeof(text), &len, ret_error);
    if (!r && !parse_keys(text, len, ret_keys))
        r = fail_with(
            -EINVAL, ret_error,
            "%s: the cluster key is not 64 hex digits or 32 bytes, nor are there two in two "
            "lines; make one by: openssl rand -hex 32 > %s",
            path, path);
    for (unsigned i = 0; !r && i < ret_keys->n; i++)
        if (!memcmp(ret_keys->key[i], ret_keys->key[i] + 1, KEY_BYTES - 1))
            r = fail_with(-EINVAL, ret_error,
                          "%s: the cluster key is one byte %d times, which anybody can guess; make "
                          "one by: openssl rand -hex 32 > %s",
                          path, KEY_BYTES, path);
    if (r)
        explicit_bzero(ret_keys, sizeof(*ret_keys));
    explicit_bzero(text, sizeof(text));
    return r;
}

int conf_load_keys(const struct conf *conf, struct conf_keys *ret_keys, char **ret_error)
{
    _cleanup_(freep) char *path = NULL;
    _cleanup_(close_fdp) int fd = -1;
    int r = open_checked(&cluster_key, conf->key_file, &path, &fd, ret_error);

    return r < 0 ? r : read_keys(fd, path, ret_keys, ret_error);
}

/* ---- certificates ---------------------------------------------------------------------------- */

bool conf_proves_by_key(const struct conf *conf)
{
    return strcmp(conf->authentication, "certificate") != 0;
}

bool conf_proves_by_certificate(const struct conf *conf)
{
    return strcmp(conf->authentication, "key") != 0;
}

static int load_pem(const struct secret *is, const char *file, struct conf_pem_file *ret_pem,
                    char **ret_error)
{
    _cleanup_(close_fdp) int fd = -1;
    int r = open_checked(is, file, &ret_pem->path, &fd, ret_error);

    if (r < 0)
        return r;
    ret_pem->text = malloc(PEM_FILE_MAX + 1);
    if (!ret_pem->text)
        return -ENOMEM;
    r = read_secret(fd, ret_pem->path, is->what, ret_pem->text, PEM_FILE_MAX + 1, &ret_pem->len,
                    ret_error);
    if (!r && ret_pem->len > PEM_FILE_MAX)
        r = fail_with(-EFBIG, ret_error, "%s: the %s has more than %d bytes", ret_pem->path,
                      is->what, PEM_FILE_MAX);
    return r;
}

int conf_load_pems(const struct conf *conf, struct conf_pems *ret_pems, char **ret_error)
{
    const char *const files[CONF_PEMS] = {
        [CONF_PEM_CERTIFICATE] = conf->certificate,
        [CONF_PEM_KEY] = conf->certificate_key,
        [CONF_PEM_CA] = conf->ca,
        [CONF_PEM_CRL] = conf->crl,
    };

    *ret_pems = (struct conf_pems){0};
    *ret_error = NULL;
    for (unsigned i = 0; i < CONF_PEMS; i++) {
        int r = files[i][0] ? load_pem(&pem_files[i], files[i], &ret_pems->file[i], ret_error) : 0;

        if (r < 0)
            return r;
    }
    return 0;
}

void conf_pems_fini(struct conf_pems *pems)
{
    for (unsigned i = 0; i < CONF_PEMS; i++) {
        struct conf_pem_file *file = &pems->file[i];

        if (file->text)
            explicit_bzero(file->text, file->len);
        free(file->text);
        free(file->path);
    }
    *pems = (struct conf_pems){0};
}

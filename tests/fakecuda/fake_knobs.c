/* fake_knobs.c - what tests set: from the environment, or, in a process that runs already, from the
 * file that FAKECUDA_KNOBS names: lines NAME=VALUE, which go before the environment. Replace the
 * file by rename(); it is read again when it is another one. */
#include "tests/fakecuda/fake.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    char text[4096];
    struct stat seen;
} file;
static struct fake_call *_Atomic calls;

/* ---- values ---------------------------------------------------------------------------------- */

static void reload(const char *path) /* under lock */
{
    struct stat st;
    ssize_t n;
    int fd;

    if (stat(path, &st)) {
        file.text[0] = '\0';
        file.seen = (struct stat){0};
        return;
    }
    if (st.st_ino == file.seen.st_ino && st.st_size == file.seen.st_size &&
        !memcmp(&st.st_mtim, &file.seen.st_mtim, sizeof st.st_mtim))
        return;
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    n = read(fd, file.text, sizeof file.text - 1);
    file.text[n > 0 ? n : 0] = '\0';
    file.seen = st;
    close(fd);
}

static const char *in_file(const char *name) /* under lock: the value, up to the end of its line */
{
    size_t len = strlen(name);

    for (const char *line = file.text; line && *line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (!strncmp(line, name, len) && line[len] == '=')
            return line + len + 1;
    }
    return NULL;
}

int fake_knob_text(const char *name, char *text, size_t len)
{
    const char *path = getenv("FAKECUDA_KNOBS"), *value = NULL;

    pthread_mutex_lock(&lock);
    if (path && path[0]) {
        reload(path);
        value = in_file(name);
    }
    if (!value)
        value = getenv(name);
    snprintf(text, len, "%.*s", value ? (int)strcspn(value, "\n") : 0, value ? value : "");
    pthread_mutex_unlock(&lock);
    return value != NULL;
}

int fakecuda_knob(const char *name, char *text, size_t len)
{
    return fake_knob_text(name, text, len);
}

uint64_t fake_knob(const char *name, uint64_t otherwise)
{
    char text[64];

    if (!fake_knob_text(name, text, sizeof text) || !text[0])
        return otherwise;
    return strtoull(text, NULL, 0);
}

/* ---- calls ----------------------------------------------------------------------------------- */

static bool is_function(const char *name, const char *said, size_t len)
{
    return !strncmp(name, said, len) && (!name[len] || !strncmp(name + len, "_v2", 4));
}

/* FAKECUDA_FAIL=function:n[:code],...: the n-th call since this was set; n = 0: every call. */
static cu_result shall_fail(const char *name)
{
    static char last[256];
    static unsigned counts[16];
    char text[256];
    cu_result r = 0;
    unsigned i = 0;

    if (!fake_knob_text("FAKECUDA_FAIL", text, sizeof text) && !last[0])
        return 0;
    pthread_mutex_lock(&lock);
    if (strcmp(last, text)) {
        memcpy(last, text, sizeof last);
        memset(counts, 0, sizeof counts);
    }
    for (const char *item = text; *item && i < 16; i++) {
        size_t len = strcspn(item, ":,");
        unsigned n = 0;
        int code = CU_E_UNKNOWN;

        if (sscanf(item + len, ":%u:%d", &n, &code) >= 1 && is_function(name, item, len) &&
            (++counts[i] == n || n == 0))
            r = code;
        item += strcspn(item, ",");
        item += *item == ',';
    }
    pthread_mutex_unlock(&lock);
    return r;
}

cu_result fake_enter(struct fake_call *call, int need)
{
    cu_result r;

    if (!atomic_exchange(&call->listed, true)) {
        pthread_mutex_lock(&lock);
        call->next = atomic_load(&calls);
        atomic_store(&calls, call);
        pthread_mutex_unlock(&lock);
    }
    atomic_fetch_add(&call->count, 1);
    r = shall_fail(call->name);
    if (r || need == FAKE_ANYTIME)
        return r;
    if (fake_in_host_fn)
        return CU_E_NOT_PERMITTED;
    r = fake_initialized();
    if (r || need == FAKE_INIT)
        return r;
    if (!fake_current())
        return CU_E_INVALID_CONTEXT;
    if (!fake_current()->retained)
        return FAKE_E_CONTEXT_DESTROYED;
    return atomic_load(&fake_current()->sticky);
}

uint64_t fakecuda_calls(const char *function)
{
    uint64_t n = 0;

    for (struct fake_call *c = atomic_load(&calls); c; c = c->next)
        if (is_function(c->name, function, strlen(function)))
            n += atomic_load(&c->count);
    return n;
}

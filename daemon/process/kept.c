/* kept.c - descriptors under names, for the next commd.
 *
 * In the keeper their numbers are above all that they get in commd. So each is moved by a dup2()
 * alone, and none is overwritten before it was moved. Half of the descriptors that a process may
 * have is the most that can be kept, for this reason.
 *
 * A message is what commd sent, and commd may be at its end: it is checked like a stranger's. */
#include "daemon/process/kept.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "daemon/process/log.h"
#include "daemon/process/notify.h"

enum { KEPT_SPARE = 32 }; /* descriptors that the keeper has besides */

int kept_init(struct kept *kept)
{
    struct rlimit limit;

    *kept = (struct kept){.max = STORE_MAX};
    if (getrlimit(RLIMIT_NOFILE, &limit))
        return -errno;
    if (limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    if (limit.rlim_max < 2 * STORE_MAX + KEPT_SPARE)
        kept->max =
            limit.rlim_max < 2 * KEPT_SPARE ? 0 : ((unsigned)limit.rlim_max - KEPT_SPARE) / 2;
    kept->fds = calloc(STORE_MAX, sizeof(*kept->fds));
    return kept->fds ? 0 : -ENOMEM;
}

void kept_fini(struct kept *kept)
{
    for (unsigned i = 0; i < kept->n; i++)
        close(kept->fds[i].fd);
    free(kept->fds);
    *kept = (struct kept){.n = 0};
}

static struct kept_fd *kept_find(const struct kept *kept, const char *name)
{
    for (unsigned i = 0; i < kept->n; i++)
        if (strcmp(kept->fds[i].name, name) == 0)
            return &kept->fds[i];
    return NULL;
}

static void kept_drop(struct kept *kept, const char *name)
{
    struct kept_fd *found = kept_find(kept, name);

    if (!found)
        return;
    close(found->fd);
    kept->name_bytes -= strlen(name) + 1;
    *found = kept->fds[--kept->n];
}

void kept_put(struct kept *kept, const char *name, int fd)
{
    _cleanup_(close_fdp) int own = fd;
    int high;

    kept_drop(kept, name);
    if (kept->n == kept->max || kept->name_bytes + strlen(name) + 1 > STORE_NAMES_MAX) {
        log_warn("%u descriptors are kept for the next commd -> \"%s\" is not", kept->n, name);
        return;
    }
    high = fcntl(own, F_DUPFD_CLOEXEC, STORE_FIRST_FD + (int)kept->max + KEPT_SPARE / 2);
    if (high < 0) {
        log_warn("cannot keep \"%s\" for the next commd: %m", name);
        return;
    }
    strcpy(kept->fds[kept->n].name, name);
    kept->fds[kept->n++].fd = high;
    kept->name_bytes += strlen(name) + 1;
}

/* What stands behind @key in one of the lines; "": no line, or too long. */
static void line_of(const char *text, const char *key, char value[STORE_NAME_MAX])
{
    size_t len;

    value[0] = '\0';
    for (; *text; text += *text == '\n') {
        len = strcspn(text, "\n");
        if (strncmp(text, key, strlen(key)) == 0 && len - strlen(key) < STORE_NAME_MAX)
            snprintf(value, STORE_NAME_MAX, "%.*s", (int)(len - strlen(key)), text + strlen(key));
        text += len;
    }
}

bool kept_message(struct kept *kept, const char *text, const int *fds, unsigned nfds)
{
    char put[STORE_NAME_MAX], drop[STORE_NAME_MAX], name[STORE_NAME_MAX];
    bool one;

    line_of(text, "FDSTORE=", put);
    line_of(text, "FDSTOREREMOVE=", drop);
    line_of(text, "FDNAME=", name);
    one = strcmp(put, "1") == 0 && nfds == 1 && store_name_is_good(name);
    if (one)
        kept_put(kept, name, fds[0]);
    else if (strcmp(drop, "1") == 0 && store_name_is_good(name))
        kept_drop(kept, name);
    for (unsigned i = one; i < nfds; i++)
        close(fds[i]);
    return put[0] || drop[0];
}

static int set_number(const char *variable, long number)
{
    char text[32];

    snprintf(text, sizeof(text), "%ld", number);
    return setenv(variable, text, 1);
}

int kept_hand_over(const struct kept *kept, int message)
{
    _cleanup_(freep) char *names = malloc(kept->name_bytes + 1);
    char where[32];
    size_t used = 0;
    int fd = STORE_FIRST_FD;

    if (!names)
        return -ENOMEM;
    names[0] = '\0';
    message = fcntl(message, F_DUPFD_CLOEXEC, STORE_FIRST_FD + (int)kept->max);
    if (message < 0)
        return -errno;
    for (unsigned i = 0; i < kept->n; i++, fd++) {
        if (dup2(kept->fds[i].fd, fd) < 0) /* without FD_CLOEXEC */
            return -errno;
        used += (size_t)sprintf(names + used, "%s%s", i ? ":" : "", kept->fds[i].name);
    }
    if (dup2(message, fd) < 0)
        return -errno;
    snprintf(where, sizeof(where), NOTIFY_FD_PREFIX "%d", fd);
    if (setenv("NOTIFY_SOCKET", where, 1) || setenv("LISTEN_FDNAMES", names, 1) ||
        set_number("LISTEN_FDS", kept->n) || set_number("LISTEN_PID", getpid()))
        return -errno;
    if (getenv("WATCHDOG_PID") && set_number("WATCHDOG_PID", getpid()))
        return -errno;
    return 0;
}

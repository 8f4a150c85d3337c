/* subuid.c - makes of each line NAME:FIRST:COUNT a range of uids and the uid that is charged for
 * it.
 *
 * Rules:
 *  - NAME is the name of a user, or a uid. That user is charged.
 *  - Ranges of root and of our own user go to containers of many people, and must not have root's
 *    share. So each such line is a user of its own: the first uid of the range is charged.
 *  - The same holds for a line with the name of no user.
 *  - If lines of several people overlap, a uid in both belongs to none of them for certain, and
 * none may use up the share of another. So all these ranges together are one user: the lowest uid
 * is charged.
 *  - A line that contains root or our own user is refused, and so is a malformed line.
 *
 * To look up a name may mean to ask a server. So a running commd reads the file in a thread, and
 * does not wait for it. The thread and the loop share one struct; the last of the two frees it. */
#include "daemon/process/subuid.h"

#include <fcntl.h>
#include <pthread.h>
#include <pwd.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/stat.h>

enum {
    UIDS_END = 0xfffffff0, /* from here on uids have other meanings: CORE_GPU_UID, (uid_t)-1 */
    NAME_LONGEST = 256,
    ENTRY_BYTES = 64 << 10, /* for getpwnam_r() */
};

enum reading { READING, READ, FORGOTTEN };
struct subuid {
    _Atomic(enum reading) state;
    uint32_t own;
    struct payers *payers; /* owned */
    struct subuid_report report;
    char path[]; /* ends with NUL */
};

/* ---- a line ---------------------------------------------------------------------------------- */

/* Parses a number of digits alone. */
static bool number(const char *text, size_t len, uint64_t *ret_value)
{
    uint64_t value = 0;

    if (!len || len > 10)
        return false;
    for (size_t i = 0; i < len; i++) {
        if (text[i] < '0' || text[i] > '9')
            return false;
        value = 10 * value + (uint64_t)(text[i] - '0');
    }
    *ret_value = value;
    return true;
}

struct names {
    subuid_name_fn *uid_of;
    void *arg;
    char last[NAME_LONGEST]; /* the name that was looked up last; "": none */
    bool known;
    uint32_t uid;
};

/* The uid that is charged for the range of user @text that begins with uid @first. */
static uint32_t payer_named(struct names *names, const char *text, size_t len, uint32_t first,
                            uint32_t own, struct subuid_report *report)
{
    uint64_t uid;

    if (!number(text, len, &uid)) {
        if (strlen(names->last) != len || memcmp(names->last, text, len)) {
            memcpy(names->last, text, len);
            names->last[len] = 0;
            names->known = names->uid_of(names->arg, names->last, &names->uid);
            if (!names->known)
                names->uid = first;
        }
        report->strangers += !names->known;
        uid = names->uid;
    }
    return uid && uid != own && uid < UIDS_END ? (uint32_t)uid : first;
}

/* False: the line is malformed. */
static bool range_of_line(const char *line, size_t len, uint32_t own, struct names *names,
                          struct payer_range *ret_range, struct subuid_report *report)
{
    const char *second = memchr(line, ':', len), *third;
    uint64_t first, count;

    if (!second || second == line || second - line >= NAME_LONGEST ||
        memchr(line, 0, (size_t)(second - line)))
        return false;
    third = memchr(second + 1, ':', len - (size_t)(second + 1 - line));
    if (!third || !number(second + 1, (size_t)(third - second - 1), &first) ||
        !number(third + 1, len - (size_t)(third + 1 - line), &count))
        return false;
    if (!first || !count || first >= UIDS_END || count > UIDS_END - first ||
        (first <= own && own < first + count))
        return false;
    ret_range->first = (uint32_t)first;
    ret_range->last = (uint32_t)(first + count - 1);
    ret_range->payer =
        payer_named(names, line, (size_t)(second - line), (uint32_t)first, own, report);
    return true;
}

/* ---- the file -------------------------------------------------------------------------------- */

static int by_first(const void *a, const void *b)
{
    const struct payer_range *x = a, *y = b;

    return (x->first > y->first) - (x->first < y->first);
}

static void join_overlaps(struct payers *payers, struct subuid_report *report)
{
    struct payer_range *last = payers->ranges;
    unsigned n = payers->n;

    qsort(payers->ranges, n, sizeof(payers->ranges[0]), by_first);
    for (unsigned i = 1; i < n; i++) {
        const struct payer_range *next = &payers->ranges[i];

        if (next->first > last->last) {
            *++last = *next;
            continue;
        }
        if (next->payer != last->payer) {
            last->payer = last->first;
            report->overlaps++;
        }
        last->last = MAX(last->last, next->last);
    }
    payers->n = n ? (unsigned)(last - payers->ranges) + 1 : 0;
}

struct payers *subuid_parse(const char *text, size_t len, uint32_t own, subuid_name_fn *uid_of,
                            void *arg, struct subuid_report *ret_report)
{
    struct names names = {.uid_of = uid_of, .arg = arg};
    struct payers *payers;
    unsigned line = 0, most = 1;

    *ret_report = (struct subuid_report){0};
    for (size_t i = 0; i < len; i++)
        most += text[i] == '\n';
    most = MIN(most, (unsigned)SUBUID_MAX);
    payers = calloc(1, sizeof(*payers) + most * sizeof(payers->ranges[0]));
    while (payers && len) {
        const char *end = memchr(text, '\n', len);
        size_t n = end ? (size_t)(end - text) : len;

        line++;
        if (n && *text != '#') {
            if (payers->n < most &&
                range_of_line(text, n, own, &names, &payers->ranges[payers->n], ret_report))
                payers->n++;
            else if (!ret_report->refused++)
                ret_report->line = line;
        }
        n += end != NULL;
        text += n;
        len -= n;
    }
    if (payers)
        join_overlaps(payers, ret_report);
    return payers;
}

static bool system_name(void *arg, const char *name, uint32_t *ret_uid)
{
    _cleanup_(freep) char *buf = malloc(ENTRY_BYTES);
    struct passwd entry, *found = NULL;

    if (!buf || getpwnam_r(name, &entry, buf, ENTRY_BYTES, &found) || !found)
        return false;
    *ret_uid = found->pw_uid;
    return true;
}

/* Reads the file. Refuses one that all users can write, because it says which uid is charged. 0 or
 * negative errno. */
static int read_subuid(const char *path, char **ret_text, size_t *ret_len)
{
    _cleanup_(close_fdp) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    _cleanup_(freep) char *text = NULL;
    size_t len = 0;
    struct stat st;

    if (fd < 0 || fstat(fd, &st))
        return -errno;
    if (!S_ISREG(st.st_mode))
        return -EINVAL;
    if (st.st_mode & S_IWOTH)
        return -EPERM;
    if (st.st_size > SUBUID_MAX_BYTES)
        return -EFBIG;
    text = malloc((size_t)st.st_size + 1);
    if (!text)
        return -ENOMEM;
    while (len < (size_t)st.st_size) {
        ssize_t n = read(fd, text + len, (size_t)st.st_size - len);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (n == 0)
            break;
        len += (size_t)n;
    }
    *ret_text = steal_ptr(text);
    *ret_len = len;
    return 0;
}

struct payers *subuid_load(const char *path, uint32_t own, struct subuid_report *ret_report)
{
    _cleanup_(freep) char *text = NULL;
    size_t len = 0;
    int r = read_subuid(path, &text, &len);

    *ret_report = (struct subuid_report){.error = r};
    return r ? NULL : subuid_parse(text, len, own, system_name, NULL, ret_report);
}

/* ---- in a thread ----------------------------------------------------------------------------- */

static void end_of(struct subuid *subuid)
{
    free(subuid->payers);
    free(subuid);
}

static void *read_it(void *arg)
{
    struct subuid *subuid = arg;

    subuid->payers = subuid_load(subuid->path, subuid->own, &subuid->report);
    /* acq_rel: pairs with the exchange of subuid_free() and the load of subuid_take() */
    if (atomic_exchange_explicit(&subuid->state, READ, memory_order_acq_rel) == FORGOTTEN)
        end_of(subuid);
    return NULL;
}

struct subuid *subuid_begin(const char *path, uint32_t own)
{
    struct subuid *subuid = calloc(1, sizeof(*subuid) + strlen(path) + 1);
    sigset_t all, before;
    pthread_attr_t attr;
    pthread_t thread;
    int r;

    if (!subuid)
        return NULL;
    subuid->own = own;
    strcpy(subuid->path, path);
    sigfillset(&all);
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for the loop */
    r = pthread_create(&thread, &attr, read_it, subuid);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    if (!r)
        return subuid;
    free(subuid);
    return NULL;
}

bool subuid_take(struct subuid **subuid, struct payers **ret_payers,
                 struct subuid_report *ret_report)
{
    if (atomic_load_explicit(&(*subuid)->state, memory_order_acquire) != READ)
        return false;
    *ret_payers = steal_ptr((*subuid)->payers);
    *ret_report = (*subuid)->report;
    end_of(*subuid);
    *subuid = NULL;
    return true;
}

struct subuid *subuid_free(struct subuid *subuid)
{
    if (subuid && atomic_exchange_explicit(&subuid->state, FORGOTTEN, memory_order_acq_rel) == READ)
        end_of(subuid);
    return NULL;
}

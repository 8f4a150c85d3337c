/* store.c - descriptors that outlive this process, by the protocol of systemd's fd store
 * (sd_notify(3), sd_listen_fds(3)): FDSTORE=1 with a descriptor, FDSTOREREMOVE=1 with its name, and
 * at the next start LISTEN_FDS descriptors from number 3 on, named by LISTEN_FDNAMES.
 *
 * The manager hands over all it has, and commd says what it need not have any more: the table here
 * holds each name that the manager has. So the table knows how much that is. There is a bound, not
 * only on the number: the kernel takes no variable of the environment that is longer than 128 KiB
 * (MAX_ARG_STRLEN), so with longer LISTEN_FDNAMES the next commd could not be started at all.
 *
 * FDPOLL=0: systemd would else forget a descriptor that has hung up, such as the pidfd of a process
 * that has ended meanwhile; and just this one has to be told of. */
#include "daemon/process/store.h"

#include <fcntl.h>
#include <stdio.h>

#include "daemon/process/notify.h"
#include "shm/util/hash.h"

enum { HEADS = 1024, NONE = -1 };

struct entry {
    char name[STORE_NAME_MAX]; /* "": free */
    int fd;                    /* owned: inherited and not taken; -1: none */
    int next;                  /* of its row */
};

static struct {
    bool kept;
    struct entry *entries; /* owned; STORE_MAX of them */
    int heads[HEADS];      /* rows of entries, by the hash of the name */
    int unused;            /* row of free entries */
    size_t name_bytes;     /* of LISTEN_FDNAMES as it would be now */
} store;

/* ---- the table ------------------------------------------------------------------------------- */

static unsigned row_of(const char *name)
{
    return (unsigned)(hash_text(HASH_BEGIN, name) % HEADS);
}

bool store_name_is_good(const char *name)
{
    size_t len = strlen(name);

    return len && len < STORE_NAME_MAX &&
           strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_") == len;
}

static struct entry *entry_find(const char *name)
{
    int i = store.entries ? store.heads[row_of(name)] : NONE;

    while (i != NONE && strcmp(store.entries[i].name, name) != 0)
        i = store.entries[i].next;
    return i == NONE ? NULL : &store.entries[i];
}

/* @fd becomes the table's. False: the table is full. */
static bool entry_add(const char *name, int fd)
{
    int i = store.unused, *head = &store.heads[row_of(name)];

    if (i == NONE || store.name_bytes + strlen(name) + 1 > STORE_NAMES_MAX)
        return false;
    store.unused = store.entries[i].next;
    store.name_bytes += strlen(name) + 1;
    strcpy(store.entries[i].name, name);
    store.entries[i].fd = fd;
    store.entries[i].next = *head;
    *head = i;
    return true;
}

static void entry_forget(struct entry *entry)
{
    int *link = &store.heads[row_of(entry->name)], i = (int)(entry - store.entries);

    while (*link != i)
        link = &store.entries[*link].next;
    *link = entry->next;
    store.name_bytes -= strlen(entry->name) + 1;
    close_fdp(&entry->fd);
    entry->name[0] = '\0';
    entry->next = store.unused;
    store.unused = i;
}

static bool entry_forget_all(const char *name)
{
    struct entry *entry;
    bool any = false;

    for (; (entry = entry_find(name)); any = true)
        entry_forget(entry);
    return any;
}

/* ---- what was inherited ---------------------------------------------------------------------- */

/* The next name of a list with colons; "unknown" at its end, as systemd calls what has no name. */
static void next_name(const char **list, char name[STORE_NAME_MAX])
{
    size_t len = strcspn(*list, ":");

    if (len && len < STORE_NAME_MAX)
        snprintf(name, STORE_NAME_MAX, "%.*s", (int)len, *list);
    else
        strcpy(name, "unknown");
    *list += len + ((*list)[len] == ':');
}

static void inherit(unsigned n, const char *names)
{
    char name[STORE_NAME_MAX];

    for (int fd = STORE_FIRST_FD; fd < STORE_FIRST_FD + (int)n; fd++) {
        next_name(&names, name);
        if (fcntl(fd, F_SETFD, FD_CLOEXEC))
            continue; /* it is not open */
        if (!store_name_is_good(name))
            strcpy(name, "unknown");
        if (!entry_add(name, fd))
            close(fd);
    }
}

void store_begin(void)
{
    const char *names = getenv("LISTEN_FDNAMES"), *manager = getenv("NOTIFY_SOCKET");
    uint64_t pid, n;
    int given;

    assert(!store.entries);
    store.kept = manager && manager[0];
    if (store.kept && sscanf(manager, NOTIFY_FD_PREFIX "%d", &given) == 1)
        fcntl(given, F_SETFD, FD_CLOEXEC);
    store.entries = calloc(STORE_MAX, sizeof(*store.entries));
    if (!store.entries)
        return;
    store.name_bytes = 0;
    store.unused = 0;
    for (int i = 0; i < STORE_MAX; i++) {
        store.entries[i].fd = -1;
        store.entries[i].next = i + 1 < STORE_MAX ? i + 1 : NONE;
    }
    for (int i = 0; i < HEADS; i++)
        store.heads[i] = NONE;
    /* the variables are inherited: they count for the process that the manager has started */
    if (notify_variable("LISTEN_PID", &pid) && pid == (uint64_t)getpid() &&
        notify_variable("LISTEN_FDS", &n))
        inherit((unsigned)MIN(n, (uint64_t)STORE_MAX), names ? names : "");
    unsetenv("LISTEN_PID");
    unsetenv("LISTEN_FDS");
    unsetenv("LISTEN_FDNAMES");
}

void store_end(void)
{
    for (int i = 0; store.entries && i < STORE_MAX; i++)
        close_fdp(&store.entries[i].fd);
    free(store.entries);
    store.entries = NULL;
    store.kept = false;
}

bool store_is_kept(void)
{
    return store.kept && store.entries;
}

int store_take(const char *name)
{
    struct entry *entry = entry_find(name);

    return entry ? steal_fd(&entry->fd) : -1;
}

int store_take_fitting(bool (*fits)(int fd, const void *arg), const void *arg)
{
    for (int i = 0; store.entries && i < STORE_MAX; i++)
        if (store.entries[i].fd >= 0 && fits(store.entries[i].fd, arg))
            return steal_fd(&store.entries[i].fd);
    return -1;
}

const char *store_next(unsigned *io)
{
    while (store.entries && *io < STORE_MAX) {
        const struct entry *entry = &store.entries[(*io)++];

        if (entry->fd >= 0)
            return entry->name;
    }
    return NULL;
}

/* ---- what is kept ---------------------------------------------------------------------------- */

static void send_remove(const char *name)
{
    /* if it does not arrive, the next commd gets what it does not know, and drops it */
    notify_send("FDSTOREREMOVE=1\nFDNAME=%s", name);
}

int store_put(const char *name, int fd)
{
    char text[STORE_NAME_MAX + 32];
    int r;

    assert(store_name_is_good(name) && fd >= 0);
    if (!store_is_kept())
        return 0;
    if (entry_forget_all(name))
        send_remove(name);
    if (!entry_add(name, -1))
        return -ENOSPC;
    snprintf(text, sizeof(text), "FDSTORE=1\nFDNAME=%s\nFDPOLL=0", name);
    r = notify_send_fd(text, fd);
    if (r)
        entry_forget_all(name);
    return r;
}

void store_drop(const char *name)
{
    char copy[STORE_NAME_MAX]; /* @name may be the entry's own */

    snprintf(copy, sizeof(copy), "%s", name);
    if (entry_forget_all(copy) && store.kept)
        send_remove(copy);
}

void store_drop_rest(void)
{
    const char *name;

    for (unsigned i = 0; (name = store_next(&i));)
        store_drop(name);
}

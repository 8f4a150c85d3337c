/* boards_adopt.c - boards of the commd before this one, which this commd takes over, and what it
 * takes to leave boards to the next one. The life of a board: boards.c. */
#include "daemon/memory/boards_priv.h"

#include <assert.h>
#include <fcntl.h>

#include "shm/util/memfd.h"

/* What was done on the board so far was counted there. */
static void count_from_here(struct board_entry *entry)
{
    const struct board_recorder *recorder;

    entry->counted = board_rank_ended(entry->ctl, 0);
    entry->seen = calloc(1, sizeof(*entry->seen));
    if (!entry->seen)
        return;
    for (unsigned m = 0; (recorder = board_recorder(entry->ctl, m)); m++)
        if (board_rank_started(entry->ctl, m))
            recorder_add(recorder, entry->seen);
}

int boards_adopt(struct boards *boards, const struct board_geom *geom, uint32_t uid, int *fd,
                 struct board_entry **ret_entry)
{
    struct board_entry **at = board_find(boards, geom->group), *entry;
    int r;

    if (*at)
        return -EEXIST;
    entry = calloc(1, sizeof(*entry));
    if (!entry)
        return -ENOMEM;
    entry->fd = -1;
    r = board_adopt(geom, *fd, &entry->ctl);
    if (r == 0 && !(entry->user = board_user_get(boards, uid)))
        r = -ENOMEM;
    if (r) {
        board_entry_free(entry);
        return r;
    }
    entry->fd = steal_fd(fd);
    entry->group = geom->group;
    entry->bytes = board_ctl_bytes(entry->ctl);
    count_from_here(entry);
    board_charge(boards, entry);
    *at = entry;
    *ret_entry = entry;
    return 0;
}

int boards_adopt_left(struct boards *boards, uint64_t group, uint32_t uid, int *fd)
{
    struct board_entry *entry;
    size_t size;
    int r = memfd_check(*fd, SIZE_MAX / 2, &size);

    if (r)
        return r < 0 ? r : BOARD_E_BAD;
    entry = calloc(1, sizeof(*entry));
    if (!entry || !(entry->user = board_user_get(boards, uid))) {
        free(entry);
        return -ENOMEM;
    }
    entry->fd = steal_fd(fd);
    entry->group = group;
    entry->bytes = size;
    entry->stored = true;
    board_charge(boards, entry);
    board_set_left(boards, entry);
    return 0;
}

int boards_reopen(const struct board_entry *entry, int *ret_fd)
{
    int r = memfd_reopen(entry->fd, ret_fd);

    assert(entry->state == BOARD_OPEN);
    if (r != -ENOENT && r != -EACCES && r != -ENOTDIR)
        return r;
    *ret_fd = fcntl(entry->fd, F_DUPFD_CLOEXEC, 0); /* no /proc: see open_twice() */
    return *ret_fd < 0 ? -errno : 0;
}

void boards_stored(struct board_entry *entry)
{
    entry->stored = true;
}

int boards_own_fd(const struct board_entry *entry)
{
    return entry->fd;
}

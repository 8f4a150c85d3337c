/* boards.c - a hash table of boards.
 *
 * commd keeps of a board the mapping of its control pages only; the file lives as long as a
 * member, the engine or that mapping. The sum of the files' sizes is bounded by
 * limits.max_board_bytes, which the caller checks before it adds one. */
#include "daemon/boards.h"

int boards_init(struct boards *boards, unsigned max_groups)
{
    size_t n = 16;

    while (n < max_groups)
        n *= 2;
    boards->buckets = calloc(n, sizeof(struct board_entry *));
    if (!boards->buckets)
        return -ENOMEM;
    boards->nbuckets = n;
    return 0;
}

void boards_fini(struct boards *boards)
{
    for (size_t i = 0; i < boards->nbuckets; i++)
        while (boards->buckets[i])
            boards_del(boards, boards->buckets[i]->group);
    free(boards->buckets);
    *boards = (struct boards){0};
}

/* The upper half of a group id is its home's, the lower half is counted there. */
static struct board_entry **find(const struct boards *boards, uint64_t group)
{
    struct board_entry **at = &boards->buckets[(group ^ group >> 32) & (boards->nbuckets - 1)];

    while (*at && (*at)->group != group)
        at = &(*at)->next;
    return at;
}

int boards_add(struct boards *boards, const struct board_geom *geom,
               struct board_entry **ret_entry, int *ret_fd)
{
    struct board_entry **at = find(boards, geom->group), *entry;
    int r;

    if (*at)
        return -EEXIST;
    entry = calloc(1, sizeof(*entry));
    if (!entry)
        return -ENOMEM;
    r = board_create(geom, ret_fd, &entry->ctl);
    if (r) {
        free(entry);
        return r;
    }
    entry->group = geom->group;
    entry->bytes = board_ctl_bytes(entry->ctl);
    boards->bytes += entry->bytes;
    boards->count++;
    *at = entry;
    *ret_entry = entry;
    return 0;
}

struct board_entry *boards_find(const struct boards *boards, uint64_t group)
{
    return *find(boards, group);
}

void boards_del(struct boards *boards, uint64_t group)
{
    struct board_entry **at = find(boards, group), *entry = *at;

    if (!entry)
        return;
    *at = entry->next;
    boards->bytes -= entry->bytes;
    boards->count--;
    board_ctl_free(entry->ctl);
    free(entry);
}

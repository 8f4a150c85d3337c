/* ranks.c - consecutive ranks become a range, and no number is written by half. */
#include "shm/util/ranks.h"

#include <stdio.h>

void rank_list_init(struct rank_list *list, char *buf, size_t len)
{
    assert(len >= 8);
    *list = (struct rank_list){.buf = buf, .len = len, .lowest = -1};
    buf[0] = 0;
}

/* Writes the range; room for ",..." always stays. */
static void write_range(struct rank_list *list)
{
    size_t used = strlen(list->buf), room = list->len - used - 4;
    const char *comma = used ? "," : "";
    int n = list->first == list->last
                ? snprintf(list->buf + used, room, "%s%u", comma, list->first)
                : snprintf(list->buf + used, room, "%s%u-%u", comma, list->first, list->last);

    if ((size_t)n < room)
        return;
    list->full = true;
    snprintf(list->buf + used, list->len - used, "%s...", comma);
}

void rank_list_add(struct rank_list *list, unsigned rank)
{
    if (list->n++ == 0) {
        list->lowest = (int)rank;
        list->first = rank;
    } else if (rank != list->last + 1) {
        if (!list->full)
            write_range(list);
        list->first = rank;
    }
    list->last = rank;
}

void rank_list_end(struct rank_list *list)
{
    if (list->n && !list->full)
        write_range(list);
}

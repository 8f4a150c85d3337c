/* refused.c - a small table against log floods.
 *
 * One line per offender, then silence for five minutes, then one line with a count. The table
 * does not grow: an entry is given to somebody else only after its five minutes, and whoever
 * finds no room is counted under "others", so that a scan from many addresses cannot write
 * more than REFUSED_ENTRIES + 1 lines in that time. */
#include "daemon/refused.h"

#include <stdio.h>

static bool entry_note(struct refused_entry *entry, uint64_t now_ms, unsigned *ret_count)
{
    bool first = entry->logged_ms == 0;

    if (!first && now_ms - entry->logged_ms < REFUSED_REPEAT_MS) {
        entry->count++;
        return false;
    }
    *ret_count = entry->count;
    entry->count = 0;
    entry->logged_ms = now_ms ? now_ms : 1;
    return true;
}

bool refused_note(struct refused *refused, const char *who, uint64_t now_ms,
                  unsigned *ret_count)
{
    struct refused_entry *room = NULL;

    for (unsigned i = 0; i < REFUSED_ENTRIES; i++) {
        struct refused_entry *entry = &refused->entries[i];

        if (strncmp(entry->who, who, REFUSED_KEY - 1) == 0)
            return entry_note(entry, now_ms, ret_count);
        if (!room && (!entry->who[0] || now_ms - entry->logged_ms >= REFUSED_REPEAT_MS))
            room = entry;
    }
    if (!room)
        return entry_note(&refused->others, now_ms, ret_count);
    *room = (struct refused_entry){0};
    snprintf(room->who, sizeof(room->who), "%s", who);
    return entry_note(room, now_ms, ret_count);
}

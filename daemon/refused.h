/* refused.h - who was turned away lately, so that each is logged once and then counted. */
#ifndef COMMD_REFUSED_H
#define COMMD_REFUSED_H

#include "shm/base.h"

enum { REFUSED_ENTRIES = 64, REFUSED_KEY = 96, REFUSED_REPEAT_MS = 5 * 60 * 1000 };

struct refused {
    struct refused_entry {
        char who[REFUSED_KEY]; /* "": free */
        uint64_t logged_ms;
        unsigned count; /* since the last line */
    } entries[REFUSED_ENTRIES];
    struct refused_entry others; /* all for whom there was no room */
};

/* Notes that @who (address and kind of offence) was turned away. True: write a line, and
 * *ret_count of them were silent since the last one. False: it was logged lately. */
bool refused_note(struct refused *refused, const char *who, uint64_t now_ms,
                  unsigned *ret_count);

#endif

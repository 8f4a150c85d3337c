/* diary.h - the last things that happened on this node, for commctl events. No I/O, no clock. */
#ifndef COMMD_DIARY_H
#define COMMD_DIARY_H

#include "shm/util/base.h"

#include <sys/queue.h>

enum { DIARY_MAX = 512, DIARY_NODE = DIARY_MAX / 2, DIARY_TEXT = 320 };
#define DIARY_EVERYBODY (-1)

struct diary_entry {
    TAILQ_ENTRY(diary_entry) entry;
    uint64_t number; /* from 1; 0: free */
    uint64_t wall_ms;
    int64_t whose;    /* who may see it: uid, or DIARY_EVERYBODY */
    int64_t payer;    /* whose room it takes, likewise */
    const char *what; /* borrowed, for ever */
    char text[DIARY_TEXT];
};

struct diary_owner {
    int64_t whose;  /* of a uid that may see them; of a payer */
    unsigned kept;  /* 0: free */
    uint64_t total; /* kept or not */
};

TAILQ_HEAD(diary_list, diary_entry);
struct diary {
    struct diary_list kept, free;
    uint64_t last; /* number */
    struct diary_entry entries[DIARY_MAX];
    struct diary_owner seers[DIARY_MAX + 1], payers[DIARY_MAX + 1];
};

void diary_init(struct diary *diary);
/* @text is cut. */
void diary_add(struct diary *diary, const char *what, int64_t whose, int64_t payer,
               uint64_t wall_ms, const char *text);
/* The first one after number @since; only those that @uid may see, if it is not NULL. */
const struct diary_entry *diary_next(const struct diary *diary, uint64_t since,
                                     const uint32_t *uid);
/* How many there have been that it could see. */
uint64_t diary_total(const struct diary *diary, const uint32_t *uid);

#endif

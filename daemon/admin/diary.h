/* diary.h - what happened last on this node, for commctl events. No I/O, no clock. */
#ifndef COMMD_DIARY_H
#define COMMD_DIARY_H

#include "shm/util/base.h"

#include <sys/queue.h>

enum { DIARY_MAX = 512, DIARY_NODE = DIARY_MAX / 2, DIARY_WHAT = 24, DIARY_TEXT = 320 };
#define DIARY_EVERYBODY (-1)

struct diary_entry {
    TAILQ_ENTRY(diary_entry) entry;
    uint64_t number; /* from 1; 0: free */
    uint64_t wall_ms;
    int64_t whose;  /* the uid that may see the entry, or DIARY_EVERYBODY */
    int64_t payer;  /* the payer whose room the entry takes, or DIARY_EVERYBODY */
    uint64_t total; /* entries of @whose so far, with this one */
    char what[DIARY_WHAT], text[DIARY_TEXT];
};

struct diary_owner {
    int64_t whose;  /* in seers: a uid; in payers: a payer; or DIARY_EVERYBODY */
    unsigned kept;  /* its entries in the diary; 0: this struct is free */
    uint64_t total; /* its entries so far, kept or not */
};

TAILQ_HEAD(diary_list, diary_entry);
struct diary {
    struct diary_list kept, free;
    uint64_t last; /* number of the newest entry */
    uint64_t life; /* within which numbers are not used again */
    struct diary_entry entries[DIARY_MAX];
    struct diary_owner seers[DIARY_MAX + 1], payers[DIARY_MAX + 1];
};

void diary_init(struct diary *diary);
/* @text is cut at DIARY_TEXT. Returns the number of the entry that was pushed out; 0: none. */
uint64_t diary_add(struct diary *diary, const char *what, int64_t whose, int64_t payer,
                   uint64_t wall_ms, const char *text);
/* Adds one that another diary had. False: it cannot stand behind the last one, or says what no
 * entry says. @ret_pushed: as diary_add(). */
bool diary_restore(struct diary *diary, const struct diary_entry *from, uint64_t *ret_pushed);
/* The first entry after number @since, or NULL. @uid: only entries that this uid may see; NULL: all
 * entries. */
const struct diary_entry *diary_next(const struct diary *diary, uint64_t since,
                                     const uint32_t *uid);
/* How many entries there have been that *@uid could see. NULL: how many there have been. */
uint64_t diary_total(const struct diary *diary, const uint32_t *uid);

#endif

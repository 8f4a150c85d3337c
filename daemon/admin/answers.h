/* answers.h - an answer to commctl while it is made: see answers.c. */
#ifndef COMMD_ANSWERS_H
#define COMMD_ANSWERS_H

#include "daemon/admin/table.h"
#include "daemon/core/core.h"

struct daemon;

struct answer {
    struct daemon *d;
    uint32_t uid;      /* who asks */
    uint64_t since;    /* "events" */
    uint64_t total;    /* "events": msg_tables.ask */
    uint64_t until_us; /* when the turn ends */
    struct core_scan scan;
    unsigned slot;  /* of clients, where a scan of them is */
    uint32_t *uids; /* owned: of "tenants" */
    size_t nuids, at;
    uint64_t sent_rate; /* "tenants": of all users */
    struct table table;
    char unwell[MSG_TEXT_MAX]; /* "" when all is well */
};

/* Returns true when @a is done, or failed; else it wants to be called again. */
typedef bool answer_fill_fn(struct answer *a);

/* The function that answers @verb, NULL: there is none. */
answer_fill_fn *answer_fill(const char *verb);
/* The answer where there is none. */
void answer_unknown(struct answer *a, const char *verb);
/* Is it a verb that changes something? Then the core decides. */
bool answer_is_change(const char *verb);
/* Sends what the core did of it, or without @done why it did nothing. */
void answer_changed(struct daemon *d, unsigned slot, bool done, unsigned groups, const char *text);
/* Has the log say more or less, and answers. */
void answer_log_level(struct daemon *d, unsigned slot, uint32_t uid, unsigned level);
/* Has the configuration read again, and answers; not done: not all of it is in force. */
void answer_reload(struct daemon *d, unsigned slot);
/* Adds to what is not well. */
void answer_unwell(struct answer *a, const char *fmt, ...) _printf_(2, 3);

/* Adds all for which this node is not well. */
void answer_check_well(struct answer *a);

/* Words of the tables, which HTTP uses too. */
const char *answer_engine_word(const struct daemon *d, const struct core_status *status);
/* "up", "down", "starting"; "none" where there is none. */
const char *answer_gpu_word(const struct core_gpu_view *gpu);
/* For how long no data can come through to or from a node whose commd is linked; 0: they can. */
uint64_t answer_apart_ms(const struct core_peer_view *peer);
const char *answer_peer_word(const struct core_peer_view *peer);
const char *answer_state_word(const struct core_status *status, bool unwell);
/* Why there is no link to @node, or "". */
const char *answer_node_error(const struct daemon *d, unsigned node,
                              const struct core_peer_view *view);

#endif

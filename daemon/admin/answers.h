/* answers.h - an answer to commctl, while commd makes it. See answers.c. */
#ifndef COMMD_ANSWERS_H
#define COMMD_ANSWERS_H

#include "daemon/admin/table.h"
#include "daemon/core/core.h"

struct daemon;

struct answer {
    struct daemon *d;
    uint32_t uid;      /* of the client that asks */
    uint64_t since;    /* "events": only those after this number */
    uint64_t total;    /* "events": how many there were; goes out as msg_tables.ask */
    uint64_t until_us; /* when the turn ends */
    struct core_scan scan;
    unsigned slot;  /* where a scan of the clients stands */
    uint32_t *uids; /* owned: the users of "tenants" */
    size_t nuids, at;
    uint64_t sent_rate; /* "tenants": of all users */
    struct table table;
    char unwell[MSG_TEXT_MAX]; /* "" when all is well */
};

/* Returns true when the answer is done or has failed. Else the function wants another call. */
typedef bool answer_fill_fn(struct answer *a);

/* The function that answers @verb. NULL: no function does. */
answer_fill_fn *answer_fill(const char *verb);
/* The answer to a verb that commd does not know. */
void answer_unknown(struct answer *a, const char *verb);
/* Does @verb change something? Then the core decides. */
bool answer_is_change(const char *verb);
/* Answers a verb that changes something. @done: @text says what the core did, else why it did
 * nothing. */
void answer_changed(struct daemon *d, unsigned slot, bool done, unsigned groups, const char *text);
/* Sets how much the log says, and answers. */
void answer_log_level(struct daemon *d, unsigned slot, uint32_t uid, unsigned level);
/* Reads the configuration again, and answers. "Not done" means that some settings are not in force.
 */
void answer_reload(struct daemon *d, unsigned slot);
/* Sends an answer with @table, which may be NULL, to the client in @slot. @text: what is wrong, or
 * "".
 * @ask: of "events", see struct msg_tables. */
void answer_send(struct daemon *d, unsigned slot, bool healthy, struct table *table,
                 const char *text, uint64_t ask);
/* Adds one reason to @a->unwell. */
void answer_unwell(struct answer *a, const char *fmt, ...) _printf_(2, 3);

/* Adds every reason for which this node is not well. */
void answer_check_well(struct answer *a);

/* tenants.c, as an answer_fill_fn. @uid: this user alone; NULL: all users. */
bool tenants_fill(struct answer *a, const uint32_t *uid);
/* Frees what tenants_fill() has allocated. */
void tenants_fini(struct answer *a);

/* Words of the tables, which HTTP uses too. */
const char *answer_engine_word(const struct daemon *d, const struct core_status *status);
/* Of commd-gpu: "up", "down", "starting"; "none" where no commd-gpu is wanted. */
const char *answer_gpu_word(const struct core_gpu_view *gpu);
/* For how long no data have come through to or from the node, though its commd is linked. 0: data
 * come through. */
uint64_t answer_apart_ms(const struct core_peer_view *peer);
/* What of this node dies again and again, and what to do: commd, its engine, commd-gpu. False: none
 * does. */
bool answer_dies_again(const struct daemon *d, char *buf, size_t len);
const char *answer_peer_word(const struct core_peer_view *peer);
const char *answer_state_word(const struct core_status *status, bool unwell);
/* Why there is no link to @node, or "". */
const char *answer_node_error(const struct daemon *d, unsigned node,
                              const struct core_peer_view *view);

#endif

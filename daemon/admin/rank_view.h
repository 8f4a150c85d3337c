/* rank_view.h - what the ranks of this node are doing, group by group: read from the boards and
 * from /proc, for people. Changes nothing. Nobody decides by it: most of it is the ranks' to write.
 */
#ifndef COMMD_RANK_VIEW_H
#define COMMD_RANK_VIEW_H

#include "daemon/admin/process_view.h"
#include "daemon/admin/records.h"
#include "daemon/admin/table.h"
#include "daemon/core/core.h"
#include "shm/board/board.h"

struct daemon;

enum { RANKS_MAX_ROWS = 2048 }; /* that one node answers with */

enum rank_fate { RANK_HERE, RANK_LEFT, RANK_DIED };

struct rank_row {
    uint32_t rank, pid;
    unsigned local; /* its place on the board */
    enum rank_fate fate;
    uint64_t gone_ms;        /* when it was gone, now_ms(); 0: it is here */
    uint64_t joining_ms;     /* since when it waits in its join, clock_ms(); 0: it does not */
    uint64_t joined_ms;      /* until when it did; 0: it still does */
    struct board_seat seat;  /* the last look */
    uint32_t first_ops;      /* the first look: ops */
    uint32_t first_gpu;      /* likewise: operations by commd-gpu that had ended */
    uint32_t first_messages; /* likewise */
    /* How many, in how many it was in an operation, and how many found that it had moved on. */
    unsigned looks, looks_in, looks_moved;
    /* Of its last RECORDER_RING operations those that it remembers, which are all in which it
     * slept: how many that counted; how long ago the first began; how long it was in them;
     * recorder_usual_ns(). */
    struct {
        unsigned n;
        uint64_t since_ms, in_ms, usual_ms;
    } lately;
    /* Since when, and until then, for how long its process had waited for a core. */
    uint64_t cpu_since_ns, cpu_waited_ns;
    struct process_quota quota;                       /* at the first look */
    struct rank_records records;                      /* owned; empty where nobody wants them */
    char command[MSG_COMMAND_MAX], run[MSG_NAME_MAX]; /* of torchrun */
};

struct rank_group {
    uint64_t id;
    uint32_t uid, payer, size, nnodes;
    enum core_group_state state;
    enum cause cause;
    bool elsewhere;    /* its rank waits, and not yet for commd: waits.h */
    int cause_rank;    /* -1: nobody in particular */
    uint64_t ended_ms; /* clock_ms(); 0: it has not */
    unsigned first_row, nrows;
    enum recorder_timing timing; /* that records.c has asked for */
    uint32_t looked_ops;         /* what its first rank had completed at looked_us */
    /* Who was gone first of those that the others miss: a rank that died, or left before them. */
    struct {
        enum rank_fate fate; /* RANK_HERE: nobody */
        uint32_t rank, pid, ops;
        char node[MSG_NAME_MAX];
    } gone;
    char name[MSG_GROUP_MAX];
    char text[MSG_TEXT_MAX]; /* the cause, or the ranks that are missing while it is joining */
};

/* Whose groups, and which. */
struct ranks_wish {
    uint32_t uid, payer;       /* who asks; who is charged for the question */
    bool all;                  /* everybody's */
    char group[MSG_GROUP_MAX]; /* name or id, "": any */
    bool records;              /* with the operations of each rank */
    bool links;                /* none: the links are wanted, not the ranks */
};

struct ranks {
    struct ranks_wish wish;
    struct rank_group *groups; /* owned */
    struct rank_row *rows;     /* owned: of all groups, in their order */
    unsigned ngroups, nrows, rows_room, groups_room;
    bool cut; /* there are more than fit */
    int error;
    /* where the scan, and then the table, stands */
    struct core_scan scan;
    unsigned slot;   /* clients before it have been looked at */
    bool found;      /* all groups; of their rows those before cpu_at have been looked at */
    unsigned cpu_at; /* by ranks_look_at_cpus() */
    unsigned group_at, row_at;
    uint64_t begun_ms;
    struct process_groups groups_of; /* of the row before, in the same look */
    /* The engine of this node: its quota at the first look; the rest when the table is begun. */
    struct {
        uint32_t pid; /* 0: there is none */
        struct process_quota quota;
        const char *word; /* "": it can work; NULL: not looked at */
        unsigned throttled_pct;
    } engine;
    /* records.c: groups that are timed; the next row to look at; when rates were last found */
    unsigned watched, look_at;
    uint64_t looked_us;
};

void ranks_init(struct ranks *ranks, const struct ranks_wish *wish);
void ranks_fini(struct ranks *ranks);
bool ranks_wished(const struct ranks_wish *wish, uint32_t uid, uint64_t id, const char *name);
/* Takes @view and its ranks in; false: it has no room. */
bool ranks_add(struct ranks *ranks, struct daemon *d, const struct core_group_view *view);
/* The same with one that has ended. */
bool ranks_add_past(struct ranks *ranks, const struct rank_group *group,
                    const struct rank_row *rows);
/* Finds all groups that are wished for, and begins to watch their processes, until @until_us; true:
 * done. */
bool ranks_find(struct ranks *ranks, struct daemon *d, uint64_t until_us);
/* A part of it. One file is read for each rank: 2,048 of them take longer than a turn may. */
bool ranks_look_at_cpus(struct ranks *ranks, uint64_t until_us);
/* One look at all of them: are they in an operation? */
void ranks_look(struct ranks *ranks, struct daemon *d);
/* What one of them is doing; nothing is changed if its group is closed by now. */
void ranks_look_closely(const struct rank_group *group, struct rank_row *row, struct daemon *d);
/* Who was gone first of one group, by what its ranks have begun; likewise. */
void ranks_look_gone(struct rank_group *group, const struct rank_row *rows, struct daemon *d);
/* Writes the table, until @until_us; true: done. It has been begun by ranks_table(). */
void ranks_table(struct table *table);
bool ranks_fill(struct ranks *ranks, struct daemon *d, struct table *table, uint64_t until_us);

#endif

/* rank_view.h - what the ranks of this node are doing, group by group, for people. It is read from
 * the boards and from /proc; nothing is changed. Ranks write most of it themselves, so no code
 * decides by it. */
#ifndef COMMD_RANK_VIEW_H
#define COMMD_RANK_VIEW_H

#include "daemon/admin/process_view.h"
#include "daemon/admin/records.h"
#include "daemon/admin/table.h"
#include "daemon/core/core.h"
#include "shm/board/board.h"

struct daemon;

enum {
    RANKS_MAX_ROWS = 2048, /* in the answer of one node */
    RANKS_SEATS = 128,
};

enum rank_fate { RANK_HERE, RANK_LEFT, RANK_DIED };

struct rank_row {
    uint32_t rank, pid; /* @rank: MSG_ANY_SEAT: a new process that takes any */
    unsigned local;     /* the member's index on the board */
    enum rank_fate fate;
    uint64_t gone_ms;        /* when the rank was gone, now_ms(); 0: it is here */
    uint64_t joining_ms;     /* when its join began, clock_ms(); 0: it waits in no join */
    uint64_t joined_ms;      /* when its join ended; 0: it waits still */
    struct board_seat seat;  /* at the last look */
    uint32_t first_ops;      /* ops at the first look */
    uint32_t first_gpu;      /* at the first look: ended operations by commd-gpu */
    uint32_t first_messages; /* at the first look */
    unsigned looks;          /* how many there were */
    unsigned looks_in;       /* looks at which the rank was in an operation */
    unsigned looks_moved;    /* looks at which the rank had moved on since the look before */
    /* The timed ones among its last RECORDER_RING operations. Every operation in which the rank
     * slept is timed. */
    struct {
        unsigned n;        /* how many count, see look_back() */
        uint64_t since_ms; /* how long ago the first one began */
        uint64_t in_ms;    /* how long the rank was in all of them */
        uint64_t usual_ms; /* recorder_usual_ns() */
    } lately;
    uint64_t cpu_since_ns;       /* when the process was looked at first */
    uint64_t cpu_waited_ns;      /* for how long it had waited for a core by then */
    struct process_quota quota;  /* at the first look */
    struct rank_records records; /* owned; empty if the wish has no records */
    char command[MSG_COMMAND_MAX], run[MSG_NAME_MAX]; /* run: of torchrun */
};

struct rank_group {
    uint64_t id;
    uint32_t uid, payer, size, nnodes;
    enum core_group_state state;
    enum cause cause;
    uint64_t epoch, next_epoch; /* as core_group_view, and so are the next two */
    uint32_t recovery;
    char seats[RANKS_SEATS];
    bool elsewhere;    /* its rank waits for something other than commd: waits.h */
    int cause_rank;    /* -1: nobody in particular */
    uint64_t ended_ms; /* clock_ms(); 0: the group has not ended */
    unsigned first_row, nrows;
    enum recorder_timing timing; /* what records.c has asked the ranks for */
    uint32_t looked_ops;         /* operations that its first rank had completed at looked_us */
    /* The rank that was gone first, if the others need it: it died, or it left before them. */
    struct {
        enum rank_fate fate; /* RANK_HERE: there is no such rank */
        uint32_t rank, pid, ops;
        char node[MSG_NAME_MAX];
    } gone;
    char name[MSG_GROUP_MAX];
    char text[MSG_TEXT_MAX]; /* the cause; of a joining group the missing ranks */
};

/* Which groups the asker wants to see. */
struct ranks_wish {
    uint32_t uid, payer;       /* of the asker; payer: the uid that is charged for the question */
    bool all;                  /* groups of all users, not only of @uid */
    char group[MSG_GROUP_MAX]; /* name or id; "": any */
    bool records;              /* with the operations of each rank */
    bool links;                /* no groups: only the links are wanted */
};

struct ranks {
    struct ranks_wish wish;
    struct rank_group *groups; /* owned */
    struct rank_row *rows;     /* owned: of all groups, in their order */
    unsigned ngroups, nrows, rows_room, groups_room;
    bool cut; /* some ranks found no room */
    int error;
    /* How far the search for groups has come. */
    struct core_scan scan;
    unsigned slot;   /* the next client to look at */
    bool found;      /* all groups are found */
    unsigned cpu_at; /* the next row for ranks_look_at_cpus() */
    /* How far the table has come. */
    unsigned group_at, row_at;
    uint64_t begun_ms;
    struct process_groups groups_of; /* of the row before, in the same look */
    /* The engine of this node. */
    struct {
        uint32_t pid;               /* 0: there is none */
        struct process_quota quota; /* at the first look */
        const char *word;           /* at the end: "": the engine can work; NULL: not looked at */
        unsigned throttled_pct;     /* at the end */
    } engine;
    /* For records.c. */
    unsigned watched;   /* how many groups are timed */
    unsigned look_at;   /* the next row to look at */
    uint64_t looked_us; /* when rates were found last */
};

/* "shrink", "wait", "rejoin"; "" for none. */
const char *rank_recovery_word(unsigned recovery);
void ranks_init(struct ranks *ranks, const struct ranks_wish *wish);
void ranks_fini(struct ranks *ranks);
bool ranks_wished(const struct ranks_wish *wish, uint32_t uid, uint64_t id, const char *name);
/* Adds the group @view and its ranks. False: there is no room. */
bool ranks_add(struct ranks *ranks, struct daemon *d, const struct core_group_view *view);
/* Adds a group that has ended. False: there is no room. */
bool ranks_add_past(struct ranks *ranks, const struct rank_group *group,
                    const struct rank_row *rows);
/* Finds the groups of the wish, and looks at their processes for the first time. Works until
 * @until_us; true: done. */
bool ranks_find(struct ranks *ranks, struct daemon *d, uint64_t until_us);
/* The second part of ranks_find(): notes how long each rank's process has waited for a core. It
 * reads a file for each rank; 2,048 of them take longer than a turn may. */
bool ranks_look_at_cpus(struct ranks *ranks, uint64_t until_us);
/* One look at all ranks: is each in an operation? */
void ranks_look(struct ranks *ranks, struct daemon *d);
/* Fills in what one rank is doing. Leaves @row as it is if the group is closed by now. */
void ranks_look_closely(const struct rank_group *group, struct rank_row *row, struct daemon *d);
/* Fills in @group->gone, by what its ranks have begun. Leaves it as it is if the group is closed by
 * now. */
void ranks_look_gone(struct rank_group *group, const struct rank_row *rows, struct daemon *d);
/* Begins the table of ranks. */
void ranks_table(struct table *table);
/* Adds the rows to @table. Works until @until_us; true: done. */
bool ranks_fill(struct ranks *ranks, struct daemon *d, struct table *table, uint64_t until_us);

#endif

/* finding.h - between the files that decide on a verdict: how they write its text, whom they blame,
 * and what each of them finds. A find_X() that returns a bool returns false, and changes nothing,
 * if it is not so. diagnose.h is for all others. */
#ifndef COMMCTL_FINDING_H
#define COMMCTL_FINDING_H

#include "client/ctl/diagnose.h"
#include "client/ctl/seats.h"

enum { GROUP_NAME = 48, SEAT_NAME = 256, RANK_NAME = 128, RANKS_NAME = 256, PID_NAME = 24 };

/* finding.c: one more line, if there is room for it. @text: FINDING_TEXT bytes. */
void tell(char *text, const char *fmt, ...) _printf_(2, 3);
const char *group_name(const struct seat *s, char buf[GROUP_NAME]);
const char *seat_name(const struct seat *s, char buf[SEAT_NAME]);
/* For a command that a person copies: "PID" where commd does not see the process. */
const char *pid_name(const struct seat *s, char buf[PID_NAME]);
/* If the culprit lives and commd does not see its process: tells how to find the process. */
void tell_unseen(struct finding *f);
/* Of @rank of @of's group, without its process. */
const char *rank_name(const struct seats *seats, const struct seat *of, int64_t rank,
                      char buf[RANK_NAME]);
/* list_ranks() for people, who know ranks by their numbers in the job. */
unsigned name_ranks(const struct seats *seats, const struct seat *of, seat_match_fn *match,
                    char buf[RANKS_NAME]);
const char *process_name(const struct seat *s, char buf[SEAT_NAME]);
const char *or_unknown(const char *operation);
void blame(struct finding *f, const struct seat *s);
/* Tells who waits in what, since when. @named: and in which group. */
void say_waiting(struct finding *f, const struct seats *seats, const struct seat *waiter,
                 bool named);
void find_dead(struct finding *f, const struct seat *s);
void find_stopped(struct finding *f, const struct seat *s);

/* joining.c: who waits in a join, or before it, and who has not come. */
void find_joining(struct finding *f, const struct seats *seats, const struct seat *of);
/* Is the process of @s in a group of that name and of a later epoch, or waits for one? For a rank
 * that waits itself: of its epoch. */
bool goes_on(const struct seats *seats, const struct seat *s);
/* The remedy where others have gone on without a rank. */
void tell_rejoin(struct finding *f);

/* pace.c: how fast a group gets on, and whether one rank delays it again and again. */
void find_pace(struct finding *f, const struct seats *seats, const struct seat *of);
/* Has @waiter waited no longer than is usual in its group lately? */
bool find_usual(struct finding *f, const struct seats *seats, const struct seat *waiter);

/* gone.c: a row whose node says which rank was gone first; NULL: no rank is missed. */
const struct seat *first_gone(const struct seats *seats, const struct seat *of);
/* The row of that rank; NULL: no node tells of it. */
const struct seat *row_of_first(const struct seats *seats, const struct seat *of);
/* Blames that rank. */
bool find_gone(struct finding *f, const struct seats *seats, const struct seat *of);

/* unlike.c: did its ranks call different operations, by their hosts or by commd-gpu? */
bool find_unlike(struct finding *f, const struct seats *seats, const struct seat *of, bool gpu);

/* hampered.c: tells that @s gets too little of its cores, as one reason among others. */
void tell_starved(struct finding *f, const struct seat *s);
bool is_throttled(const struct seat *s);
/* Is the quota of an engine used up? The quota of a rank that does not wait? Does one rank get no
 * core? The last two are asked after pace.c has looked for a slow rank. */
bool find_engine_throttled(struct finding *f, const struct seats *seats, const struct seat *of);
bool find_throttled(struct finding *f, const struct seats *seats, const struct seat *of);
bool find_starved(struct finding *f, const struct seats *seats, const struct seat *of);
/* All three; what is found replaces the verdict on a group that seemed well. */
void find_hampered(struct finding *f, const struct seats *seats, const struct seat *of);

/* lost.c: by the cause that commd gave: a node, an engine, the way between them, or another. */
void find_lost(struct finding *f, enum cause cause, enum cause_told told,
               char names[2][MSG_NAME_MAX]);

/* killed.c: all ranks were ended while they hung. Blames the rank that they waited for. */
bool find_killed(struct finding *f, const struct seats *seats, const struct seat *of);

/* chain.c: follows the chain from @waiter, which has waited for long, and blames the rank at its
 * end. Strictly: also if that rank moves, or may compute. */
void follow(struct finding *f, const struct seats *seats, const struct seat *waiter);
void follow_strictly(struct finding *f, const struct seats *seats, const struct seat *waiter);
/* Of the stopped ranks that wait for ranks which have not come, the one that waits longest; or
 * NULL. */
const struct seat *held_waiter(const struct seats *seats, const struct seat *of);

/* unmatched.c: do @a and @b send and receive the same message? */
bool is_under_way(const struct seat *a, const struct seat *b);
/* Does the other side of the message that @s waits for ask for another message, for ever? */
bool find_unmatched(struct finding *f, const struct seats *seats, const struct seat *s);
/* Tells of a message that has come to @s, which @s does not ask for. */
void say_unasked(struct finding *f, const struct seats *seats, const struct seat *s);

/* gpu_chain.c: the rank that @waiter's GPU waits for; NULL: all have come to its operation. */
const struct seat *gpu_waited_for(const struct seats *seats, const struct seat *waiter);
/* @s has called the operation of @waiter, and its stream has not come to it. */
void find_behind(struct finding *f, const struct seat *waiter, const struct seat *s);
/* All ranks have announced the operation of @waiter, and their streams have come to it. */
void find_gpu_stall(struct finding *f, const struct seats *seats, const struct seat *waiter);
/* Did the last operation by commd-gpu of a rank end badly? That is the verdict, whatever the rank
 * did then. */
bool find_gpu_failed(struct finding *f, const struct seats *seats, const struct seat *of);

#endif

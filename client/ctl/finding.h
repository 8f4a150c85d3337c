/* finding.h - how a verdict comes about, between the files that decide on it: lines of text, who is
 * to blame, and what more than one of them finds. Outside: diagnose.h. */
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
/* How such a process is found, if it is to blame and there still. */
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
/* Who waits in what, since when. @named: its group, too. */
void say_waiting(struct finding *f, const struct seats *seats, const struct seat *waiter,
                 bool named);
void find_dead(struct finding *f, const struct seat *s);
void find_stopped(struct finding *f, const struct seat *s);

/* joining.c: who waits in a join, or before it, and who has not come. */
void find_joining(struct finding *f, const struct seats *seats, const struct seat *of);

/* pace.c: how fast a group gets on, and whether one rank holds it up again and again. */
void find_pace(struct finding *f, const struct seats *seats, const struct seat *of);
/* Is the wait of @waiter as long as others of its group, lately? False: it is longer. */
bool find_usual(struct finding *f, const struct seats *seats, const struct seat *waiter);

/* gone.c: a row whose node says who was gone first; NULL: nobody is missed. */
const struct seat *first_gone(const struct seats *seats, const struct seat *of);
/* The row of that one itself; NULL: no node tells of it. */
const struct seat *row_of_first(const struct seats *seats, const struct seat *of);
/* Blames that one. False: there is none. */
bool find_gone(struct finding *f, const struct seats *seats, const struct seat *of);

/* unlike.c: did its ranks call different operations, by their hosts or by commd-gpu? */
bool find_unlike(struct finding *f, const struct seats *seats, const struct seat *of, bool gpu);

/* hampered.c: as a reason besides others */
void tell_starved(struct finding *f, const struct seat *s);
bool is_throttled(const struct seat *s);
/* Is the quota of an engine used up, or that of a rank that does not wait? Does one of the ranks
 * get no core? Who is slow is asked before the last two. */
bool find_engine_throttled(struct finding *f, const struct seats *seats, const struct seat *of);
bool find_throttled(struct finding *f, const struct seats *seats, const struct seat *of);
bool find_starved(struct finding *f, const struct seats *seats, const struct seat *of);
/* All of these, instead of what was said of a group that seemed well. */
void find_hampered(struct finding *f, const struct seats *seats, const struct seat *of);

/* lost.c: by the cause that commd gave: a node, an engine, the way between them, or another. */
void find_lost(struct finding *f, enum cause cause, enum cause_told told,
               char names[2][MSG_NAME_MAX]);

/* killed.c: blames whom the ranks waited for when all of them were ended. False: they were not. */
bool find_killed(struct finding *f, const struct seats *seats, const struct seat *of);

/* chain.c: from @waiter, who has waited for long, to who keeps everybody waiting; strictly: also if
 * that one moves, or may compute. */
void follow(struct finding *f, const struct seats *seats, const struct seat *waiter);
void follow_strictly(struct finding *f, const struct seats *seats, const struct seat *waiter);
/* Somebody has stopped the only ones that wait: one of them, if others have not come; or NULL. */
const struct seat *held_waiter(const struct seats *seats, const struct seat *of);

/* unmatched.c: do @a and @b send and receive the same message? */
bool is_under_way(const struct seat *a, const struct seat *b);
/* Does the other side of the message that @s waits for want another one, for good? */
bool find_unmatched(struct finding *f, const struct seats *seats, const struct seat *s);
/* A message that @s has and does not ask for. */
void say_unasked(struct finding *f, const struct seats *seats, const struct seat *s);

/* gpu_chain.c: for whom @waiter's GPU waits; NULL: all have come to its operation. */
const struct seat *gpu_waited_for(const struct seats *seats, const struct seat *waiter);
void find_behind(struct finding *f, const struct seat *waiter, const struct seat *s);
void find_gpu_stall(struct finding *f, const struct seats *seats, const struct seat *waiter);
/* Did the last operation by commd-gpu of one of them end badly? */
bool find_gpu_failed(struct finding *f, const struct seats *seats, const struct seat *of);

#endif

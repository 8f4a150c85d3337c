/* copy.h - copies between a process's own memory and memory that another core reads or has
 * written. See copy.c for why that is not memcpy(). */
#ifndef COMMD_COPY_H
#define COMMD_COPY_H

#include "shm/util/base.h"

/* What a writer has learned about its readers. Private, zero at first. */
struct copy_way {
    unsigned around;  /* copies that still go past the caches */
    unsigned again;   /* how many did the last time */
    unsigned slow_ps; /* what a line took in the last copy through the caches, which seemed slow;
                         else 0 */
    unsigned sure;    /* slow copies that are not doubted: going around was no faster */
    unsigned sure_again;
    unsigned untimed; /* copies through that are not timed, the last that was being fast */
};

/* A copy through the caches took @line_ps for each line. */
void copy_went_through(struct copy_way *way, unsigned line_ps);
/* The next one went around them, to compare. */
void copy_went_around(struct copy_way *way, unsigned line_ps);

/* For who writes to a window otherwise, as a reduction does: before and after @n bytes. */
struct copy_turn {
    uint64_t begin; /* 0: it is not timed */
    bool around;    /* write past the caches */
};
struct copy_turn copy_begin(struct copy_way *way);
void copy_end(struct copy_way *way, const struct copy_turn *turn, size_t n);
/* How far ahead of a read a line is asked for that another core has written: a page, for the
 * processor's own prefetching stops at its end. Less than COPY_AHEAD_MIN does not gain. */
enum { COPY_AHEAD = 4096, COPY_AHEAD_MIN = 4 * COPY_AHEAD };
/* Less tells nothing: half of it fits into the store buffer, and seems to cost nothing. */
enum { COPY_TIMED_MIN = 8192 };

/* To where another core will read. A release store that follows publishes it. */
void copy_in(struct copy_way *way, void *to, const void *from, size_t n);
/* The same past the caches, for a place whose lines are known to be in a reader's cache. */
void copy_around(void *to, const void *from, size_t n);
/* From where another core has written, to where only we look. */
void copy_out(void *to, const void *from, size_t n);

/* Which of two ways is the faster one for results that are large, past the caches or through them?
 * That follows from what the caches hold, which a virtual machine may be wrong about, and others
 * use. So it is measured, in rounds: operations of about the same size. Now and then the other way
 * is tried for two rounds, of which the second counts: the first finds the caches as the way before
 * has left them. */
enum choice_state { CHOICE_USES, CHOICE_CHANGES, CHOICE_TRIES };
struct copy_choice {
    bool around; /* the way of this round */
    enum choice_state state;
    unsigned left;    /* USES: rounds until the other way is tried */
    unsigned again;   /* how many that were the last time */
    unsigned line_ps; /* USES: what a line takes, of some rounds; else what it took */
};

/* Begins with what is thought to be right. */
void choice_begin(struct copy_choice *choice, bool around);
/* A round has ended in which a line took @line_ps. */
void choice_round(struct copy_choice *choice, unsigned line_ps);

/* Which instructions are in use: "avx512", "avx2", "sse2" or "libc". */
const char *copy_kernels(void);
/* Tests: force them by name; false when this CPU lacks them. NULL returns to automatic. */
bool copy_force(const char *name);

#endif

/* arena_commd.h - for tests without a commd: a thread at the other ends of contexts' sockets that
 * answers what libcommd says about arenas. Any arena is given to anyone who asks. */
#ifndef COMMD_TEST_ARENA_COMMD_H
#define COMMD_TEST_ARENA_COMMD_H

#include "client/lib/async/async.h"

struct arena_commd;

/* @ctx: contexts that have no socket yet; each gets one. */
struct arena_commd *arena_commd_new(struct commd_context *const *ctx, unsigned n);
/* Ends the thread; the contexts keep their sockets, at which nobody listens any more. */
struct arena_commd *arena_commd_free(struct arena_commd *c);
/* From now on it refuses to hand arenas out, or no longer; or answers nothing at all. */
enum arena_commd_behaviour { ARENA_COMMD_GIVES, ARENA_COMMD_REFUSES, ARENA_COMMD_SILENT };
void arena_commd_set(struct arena_commd *c, enum arena_commd_behaviour behaviour);
/* Hands sessions out at the commd-gpu whose control socket is @control; -1: there is none. */
void arena_commd_gpu(struct arena_commd *c, int control);
/* The same, with a commd-gpu that @give hands each @fd to, on the thread: takes it. @client: whose
 * it is, the context's place. */
typedef void arena_commd_give(void *arg, unsigned client, int fd);
void arena_commd_service(struct arena_commd *c, arena_commd_give *give, void *arg);
/* Of the next @n sessions commd-gpu gets no end, as if commd had died between the two. */
void arena_commd_halves(struct arena_commd *c, unsigned n);
/* How many arenas it holds, and how many it has handed out. */
unsigned arena_commd_held(struct arena_commd *c);
unsigned arena_commd_given(struct arena_commd *c);

#endif

/* commd.h - collectives for training processes, carried out by the node's commd.
 *
 * A context is one connection to the local daemon. A group is an ordered set of ranks on one
 * or more nodes; it is made by all its members joining it under one name. Members of a group
 * on one node exchange data in shared memory; nodes exchange data through the engines.
 *
 * Thread safety: every function may be called from any thread. Collectives of one group are
 * executed in the order in which the calls were made; all ranks must make them in the same
 * order. Collectives of different groups never wait for each other. Where ranks of a node share a
 * core, and there is one for each, a thread that waits in a call may be moved to another core of
 * those that it may run on (sched_setaffinity(); its mask is afterwards what it was).
 *
 * fork(): a context belongs to the process that connected. In a forked child every call on it
 * fails with COMMD_E_FORKED; the parent is not disturbed.
 *
 * Errors: functions return 0 or one of COMMD_E_* (negative). commd_last_error() gives the
 * details of the calling thread's last failed call. After a failed collective the contents of
 * its output buffer are undefined.
 *
 * Memory: buffers belong to the caller. They must stay valid and untouched by others until a
 * blocking call returns or the work of an asynchronous call is done. Any memory will do; in memory
 * of commd_alloc() large operations are faster. Memory of a GPU: see "tensors on GPUs" below.
 */
#ifndef COMMD_COMMD_H
#define COMMD_COMMD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define COMMD_VERSION_MAJOR 0
#define COMMD_VERSION_MINOR 1
#define COMMD_VERSION_PATCH 0

struct commd_context;
struct commd_group;
struct commd_work;

/* Stable numbers; new ones may be added. */
enum commd_result {
    COMMD_OK = 0,
    COMMD_E_INVALID = -1,     /* arguments; nothing was started, the group is fine */
    COMMD_E_MISMATCH = -2,    /* ranks called different operations; the group is fine */
    COMMD_E_QUOTA = -3,       /* a limit of the daemon */
    COMMD_E_TIMEOUT = -4,     /* the caller's limit passed; names who had not come */
    COMMD_E_RANK_LOST = -5,   /* a member process died or left; the group is broken */
    COMMD_E_NODE_LOST = -6,   /* a node or its commd is gone; the group is broken */
    COMMD_E_ENGINE_LOST = -7, /* a node's commd-engine is gone; the group is broken */
    COMMD_E_ABORTED = -8,     /* commd_group_abort() by some member; the group is broken */
    COMMD_E_NO_DAEMON = -9,   /* no commd behind the socket */
    COMMD_E_PROTOCOL = -10,   /* the other side does not speak our protocol or version */
    COMMD_E_DENIED = -11,     /* not allowed for this user */
    COMMD_E_NOMEM = -12,
    COMMD_E_FORKED = -13,      /* used in a process that did not connect itself */
    COMMD_E_INTERNAL = -14,    /* our own bug */
    COMMD_E_INTERRUPTED = -15, /* commd_interrupt_fn asked to stop waiting */
    /* The node's commd-gpu is gone, or its GPU failed; the operation is lost, the next one in the
     * group starts it again */
    COMMD_E_GPU_LOST = -17
};

enum commd_dtype {
    COMMD_I8 = 0,
    COMMD_U8 = 1,
    COMMD_I16 = 2,
    COMMD_U16 = 3,
    COMMD_I32 = 4,
    COMMD_U32 = 5,
    COMMD_I64 = 6,
    COMMD_U64 = 7,
    COMMD_F16 = 8,
    COMMD_BF16 = 9,
    COMMD_F32 = 10,
    COMMD_F64 = 11,
    COMMD_BOOL = 12 /* one byte, 0 or 1 */
};

enum commd_redop {
    COMMD_SUM = 0,
    COMMD_AVG = 1, /* sum divided by the group's size; integers truncate toward zero */
    COMMD_PROD = 2,
    COMMD_MIN = 3,
    COMMD_MAX = 4,
    COMMD_BAND = 5, /* bitwise; integers and bool */
    COMMD_BOR = 6,
    COMMD_BXOR = 7,
    COMMD_PREMUL_SUM = 8 /* sum of each rank's contribution times its own commd_op.scale; f16,
                            bf16, f32, f64. The product is rounded to the type first. */
};

/* What is known about a failure. Strings are NUL-terminated and never NULL. */
struct commd_error {
    int code;          /* enum commd_result */
    int rank;          /* the rank it is about (in the group), -1: none in particular */
    int pid;           /* process id of that rank on its node, 0: unknown */
    uint64_t epoch;    /* of the group, 0: none */
    uint64_t seq;      /* number of the operation in the group, from 1; 0: none */
    char node[64];     /* node it is about, "" if none */
    char op[24];       /* "all_reduce", "join", ... */
    char message[512]; /* one line for people: what, who, why and what to do */
    int left;          /* COMMD_E_RANK_LOST, of a rank that an operation waits for: 1: the rank has
                          left the group, 0: it has died */
};

/* "0.1.0" */
const char *commd_version(void);
/* Fixed text for a code, e.g. "rank lost"; never NULL. */
const char *commd_strerror(int code);
/* Has an operation that has ended with this code broken its group? COMMD_E_TIMEOUT and
 * COMMD_E_INTERRUPTED break none in two cases: commd_work_wait() returns, and the work goes on; or
 * the operation is a message that the other rank had not begun. */
bool commd_error_breaks_group(int code);
/* Details of this thread's last failed call; valid until its next call into the library. */
const struct commd_error *commd_last_error(void);
/* Bytes of one element, 0 for an unknown dtype. */
size_t commd_dtype_size(int dtype);

/* ---- context --------------------------------------------------------------------------------- */

struct commd_options {
    size_t size;        /* sizeof(struct commd_options) */
    const char *socket; /* NULL: $COMMD_SOCKET, else see commd_connect() */
    int64_t timeout_ms; /* for connecting, and the default of every operation and join;
                           0: $COMMD_TIMEOUT (seconds), else 1800 s; -1: none */
    /* NULL: nothing. Else the name under which ranks meet elsewhere, as in torch's store, before
     * they join a group: this process is rank @waits_rank of @waits_size. commctl shows that until
     * the context joins a group or ends, and @timeout_ms is for connecting alone. */
    const char *waits_for;
    unsigned waits_rank, waits_size;
};

/* Connects to the local daemon. @options may be NULL. If no socket is named (options,
 * $COMMD_SOCKET), that is the system's daemon, at /run/commd/commd.sock, else the user's own. If
 * there is neither, a daemon is started for this user alone: it serves this node, and ends when it
 * was idle for a minute. A line on stderr says so; COMMD_AUTOSTART=0 forbids it. Errors:
 * COMMD_E_NO_DAEMON, COMMD_E_PROTOCOL, COMMD_E_QUOTA, COMMD_E_DENIED, COMMD_E_TIMEOUT. */
int commd_connect(const struct commd_options *options, struct commd_context **ret_context);
/* Leaves all groups of the context and frees it and them; NULL is fine. No other thread may
 * be inside a call on it. Pending asynchronous operations fail with COMMD_E_ABORTED. What
 * commd_alloc() gave stays valid, as ordinary memory, and still has to be freed. */
void commd_disconnect(struct commd_context *context);
/* Name of the node this context is connected to. */
const char *commd_node_name(const struct commd_context *context);

/* Called about every 100 ms while a blocking call waits; a non-zero return makes it fail with
 * COMMD_E_INTERRUPTED (Python uses this for Ctrl-C). NULL switches it off. */
typedef int (*commd_interrupt_fn)(void *arg);
void commd_set_interrupt(struct commd_context *context, commd_interrupt_fn fn, void *arg);

/* ---- registered memory ----------------------------------------------------------------------- */

/* Allocates @bytes bytes (0 is taken for 1) of zeros that the members of a group on one node can
 * work in without copying. They do in an all_reduce of 64 KiB and more (512 KiB where there are
 * more ranks than cores; 16 times as much where pages can be larger than 4 KiB), and in a
 * broadcast, all_gather or reduce_scatter of 4 MiB and more, all blocks together. The buffers of
 * all ranks have to lie in such memory, each within one allocation of the context of its group;
 * they may be in place or not, at any address. For all other operations, over several nodes, and
 * with COMMD_PREMUL_SUM or blocks given by address, it is memory like any other.
 *
 * The address is a multiple of 4096 (65536), and sizes are rounded up to that, so this is for
 * large buffers. The memory is provided now, not when it is touched. It belongs to the process:
 * free it with commd_free(), before or after commd_disconnect(). After that it is ordinary memory;
 * after a restart of commd too, until the context next joins a group or allocates. fork(): parent
 * and child see the same memory, as with mmap(MAP_SHARED); freeing in the child does nothing.
 *
 * Trust: ranks of this user on this node that are in a group with this one can be given the memory
 * by commd, nobody else. They can then read and write all that was allocated together with a
 * buffer, not only the buffers of operations. After an operation has failed nobody writes into its
 * buffers any more; if one of the others could not be stopped the contents of the output are lost,
 * and its allocation is ordinary memory from then on.
 *
 * May be called from any thread. Errors: COMMD_E_NOMEM; COMMD_E_QUOTA (commd keeps at most 256
 * files for a process, each 32 MiB of small allocations or one of 4 MiB and more, and for a user no
 * more bytes than the machine has); COMMD_E_NO_DAEMON, COMMD_E_NODE_LOST, COMMD_E_TIMEOUT. */
int commd_alloc(struct commd_context *context, size_t bytes, void **ret_ptr);
/* Frees what commd_alloc() gave; no operation may be under way in it. NULL is fine.
 * COMMD_E_INVALID: commd_alloc() did not give @ptr, and nothing was done. */
int commd_free(void *ptr);

/* ---- groups ---------------------------------------------------------------------------------- */

/* Joins group @name (1 to 255 bytes) as @rank of @size and returns when all ranks have
 * joined. A name belongs to a job: commd knows it as "JOB/NAME", of 255 bytes at most, where the
 * environment has COMMD_JOB, or the id of torchrun's run, mpirun's or Slurm's job, in that order.
 * Else, or with COMMD_JOB empty, there is no job, and ranks of a user meet wherever they were
 * started. "/NAME" is NAME without a job: so jobs meet, too. @timeout_ms: -1 none, 0 the context's.
 * All ranks belong to one user. Errors: COMMD_E_TIMEOUT naming the missing ranks, COMMD_E_INVALID
 * for a duplicate rank or a size that differs between ranks, COMMD_E_QUOTA, COMMD_E_NODE_LOST,
 * COMMD_E_NO_DAEMON. */
int commd_group_join(struct commd_context *context, const char *name, int rank, int size,
                     int64_t timeout_ms, struct commd_group **ret_group);
/* Leaves and frees; NULL is fine. Not collective: the other ranks need not leave, and operations
 * that this rank has completed can still be completed by the others. What it has sent goes out
 * first, as long as an operation may take: in a collective over several nodes that it has completed
 * before the others called it (see collectives), and messages from a GPU by commd_run() or
 * commd_send(). */
void commd_group_leave(struct commd_group *group);
/* Revokes the group, for everybody: pending and later operations on all ranks fail with
 * COMMD_E_ABORTED; the error names this rank and @reason. May be called from any thread, also while
 * others are blocked in the group, and does not wait for ranks. */
int commd_group_abort(struct commd_group *group, const char *reason);

/* They change when the group is recovered. The epoch is 1 at first, and larger after each. */
int commd_group_rank(const struct commd_group *group);
int commd_group_size(const struct commd_group *group);
int commd_group_nodes(const struct commd_group *group);
uint64_t commd_group_epoch(const struct commd_group *group);
/* Number of collectives issued so far in this group. */
uint64_t commd_group_seq(const struct commd_group *group);
/* Default limit of each operation, ms; -1 none. */
void commd_group_set_timeout(struct commd_group *group, int64_t timeout_ms);

/* Collective over @parent: its ranks with the same @colour form a new group, in ascending order of
 * @key, and of their rank in @parent where keys are equal. @colour < 0: take no part; *ret_group is
 * NULL then. Costs one gathering over @parent and one control round trip. Ends with @parent's error
 * if that is broken meanwhile. */
int commd_group_split(struct commd_group *parent, int colour, int key, int64_t timeout_ms,
                      struct commd_group **ret_group);
/* Joins group @name as commd_group_join() does, whose ranks are @ranks of @parent, @size of them,
 * and only these call it, all with the same list: ranks[i] is rank i of the new group. It does not
 * wait for who cannot come any more: COMMD_E_RANK_LOST or COMMD_E_NODE_LOST, with the rank in
 * @parent, when one of @ranks has died, has left @parent and did not come, or its node is lost;
 * COMMD_E_ABORTED, and by whom, when @parent is revoked, and this rank had not been told before:
 * by an operation that failed, commd_group_check(), commd_group_abort() or this call. Ranks that
 * have been told may make groups of a @parent that is broken or revoked.
 * @timeout_ms 0: the limit of @parent's operations. */
int commd_group_subgroup(struct commd_group *parent, const char *name, const int *ranks, int size,
                         int64_t timeout_ms, struct commd_group **ret_group);

/* ---- recovery -----------------------------------------------------------------------------------
 * When a rank dies, or an engine or a node is lost, or a rank revokes the group, the others go on
 * in the group's next epoch: every rank that lives calls commd_group_recover(). Which ranks live is
 * what commd knows; no rank, store or node has to have survived. A group that is not broken can be
 * recovered too, to take in new ranks: then all ranks make the call at the same place of the
 * program.
 *
 * A seat is a rank that has no process. New processes take seats with commd_group_rejoin().
 *
 * The new epoch has nothing of the older one: no operation or message of it arrives, and tags and
 * numbers of operations begin anew. Groups that were made by commd_group_split() are groups of
 * their own. Those with no rank that was lost go on; commd_group_check() tells. The others are
 * left, and split off again.
 *
 * Buffers after an error: an operation changes its input only where that is its output too. Such a
 * buffer still holds its input if a rank did not come to the operation; if one died in the middle
 * of a long one, a part of it may hold a result. See commd_group_recover(3). */

/* The values are part of the ABI. */
enum commd_recovery {
    COMMD_RECOVER_SHRINK = 0, /* the ranks that live; dense, in the order of their old ranks */
    COMMD_RECOVER_WAIT = 1    /* they keep their ranks; new processes take the seats */
};

/* Zeros are the defaults. */
struct commd_recover_options {
    size_t size_of;     /* sizeof(struct commd_recover_options) */
    const char *name;   /* where ranks and new processes meet; NULL: the group's name */
    int policy;         /* enum commd_recovery */
    int size;           /* WAIT: ranks of the new epoch; 0: as many as now. More: the group grows */
    int min_size;       /* fewer ranks than this are an error; 0: 1 */
    int64_t wait_ms;    /* WAIT: no longer for seats that are free, then it goes on with the ranks
                           that are there, dense; 0 and -1: until timeout_ms */
    int64_t timeout_ms; /* of the whole call; 0: the context's, -1: none */
};

/* Brings @group into its next epoch; returns when all ranks of that are there. All ranks that live
 * call it, with the same policy, size and min_size. @options may be NULL: shrink. It waits for
 * every rank of the old epoch that commd does not know to have died, left or been on a node that is
 * lost; with COMMD_RECOVER_WAIT also for the seats. A rank that dies meanwhile is not waited for,
 * nor a node that is lost. Whoever asks first decides policy, size and min_size: a rank that gives
 * others fails at once with COMMD_E_INVALID, the others go on waiting for it, and it may call again
 * with theirs. The call goes on if commd is restarted, and if commd is started anew, without what
 * it knew: see commd_group_recover(3). When it returns, the other groups of the context know of the
 * ranks that are lost, too: commd_group_check() tells of each.
 *
 * 0: @group, the same pointer, is in its new epoch; rank, size and nodes may be others, see
 * commd_group_rank_before(). The older epoch is left. Works of it have ended, and stay valid until
 * they are freed. The default limit of operations is kept. If two parts of a cluster lost each
 * other, both may go on, each without the other: @min_size of more than half of the ranks keeps the
 * smaller part from that.
 *
 * An error: @group is as it was, and the call may be repeated. COMMD_E_TIMEOUT names the ranks that
 * did not call, and the seats that are free. COMMD_E_RANK_LOST: fewer ranks than @min_size live; or
 * the others take this rank for lost, so it has to leave and rejoin. COMMD_E_INVALID: arguments, or
 * arguments that differ between ranks. COMMD_E_PROTOCOL: commd of a node is too old.
 * COMMD_E_INTERRUPTED, COMMD_E_QUOTA, COMMD_E_NODE_LOST, COMMD_E_NO_DAEMON, COMMD_E_NOMEM.
 *
 * Threads: as with commd_group_leave(), no other thread may be inside a call of this group, but
 * for commd_group_abort(), commd_work_test() and commd_work_wait(). Operations that are pending in
 * a broken group end before the call returns; if the group is not broken there must be none. */
int commd_group_recover(struct commd_group *group, const struct commd_recover_options *options);

/* For a process that is not in the group: takes seat @rank, or with -1 the lowest that is free, of
 * the group that is called @name (as in commd_group_join(); options->name is ignored, and so are
 * policy and wait_ms). options->size: 0: as the ranks of the group say, else it has to be the same.
 * Returns when they have recovered with COMMD_RECOVER_WAIT, before or after this call. If they did
 * not wait for this process, or have shrunk, it goes on waiting for their next recovery. Their
 * number is the new group's size, and the rank may be a lower one than @rank, if seats below it
 * stayed free. Errors: as commd_group_join(); COMMD_E_TIMEOUT says if there was a group to
 * rejoin. */
int commd_group_rejoin(struct commd_context *context, const char *name, int rank,
                       const struct commd_recover_options *options, struct commd_group **ret_group);

/* The rank that @rank of this epoch had in the epoch before. -1: it is a new process, the group has
 * not been recovered, or there is no such rank. */
int commd_group_rank_before(const struct commd_group *group, int rank);

/* Does the group stand? 0: yes; else what it is broken by, as a collective would say it, with the
 * details in commd_last_error(). Does not wait for anything, and may be called from any thread that
 * may call the group's operations. A rank that is gone may have completed operations that this rank
 * has not called yet, where senders wait for nobody (see collectives): their data can still be
 * taken, and the group stands until that is done. Of a group that was revoked this rank has been
 * told by this call: its operations fail from then on, in all threads. */
int commd_group_check(struct commd_group *group);

/* ---- collectives --------------------------------------------------------------------------------
 * @count is in elements. Buffers of count 0 may be NULL. Send and receive buffers may be the
 * same address where noted ("in place"), else they must not overlap.
 *
 * "Block r": what rank r sends or receives. Blocks lie one after the other, in rank order, unless
 * commd_op gives an address for each. The forms ending in _v take a number of elements for each
 * block; arrays of counts have one entry per rank and must be the same on all ranks where all
 * ranks give them (all_gather_v, reduce_scatter_v) or fit each other (what i sends to j is what
 * j expects from i), else the operation fails on all ranks with COMMD_E_MISMATCH.
 *
 * Ranks that call different operations get COMMD_E_MISMATCH in that operation, all of them. But who
 * only sends does not wait for who receives: the root of a broadcast or a scatter, the others of a
 * reduce or a gather.
 *
 * Within one node it may be 16 operations ahead of the others where it sends up to 8 KiB, and with
 * more as far as its window on the board reaches. (All meet in a broadcast of 4 MiB and more, in a
 * reduce of more than 8 KiB in which they share the work, or with COMMD_PREMUL_SUM, and in the
 * forms with counts.) Over several nodes it may be one operation ahead, in broadcast and reduce of
 * so little that one message holds it (commctl tuning: small_net); with more, and in gather and
 * scatter, it goes on when all have called the operation, before they have the data. In such a
 * small broadcast the ranks on the root's node go on when they have what the root sent.
 *
 * There a mismatch is an error of that operation on the ranks that find it, and of a later one on
 * who has sent: of its next, once it is found. That one fails on all ranks, with both descriptions;
 * those between may have succeeded. The group goes on. Likewise a rank may have completed such an
 * operation, and one is lost before it has got the data: then the next operation says so. Over
 * several nodes who leaves the group waits until what it has sent has come to all nodes, and what
 * was sent by a process that ends without leaving may be lost.
 *
 * After such a mismatch ranks may have called different numbers of operations: compare
 * commd_group_seq(), or recover the group. Where all meet, the operations up to that of the
 * furthest rank fail also on a rank that was behind and calls them right. A program that skips
 * calls after an error may get data of another iteration from a call that succeeds. */

/* recv[i] = op over ranks of send[i]; recv == send is in place. */
int commd_all_reduce(struct commd_group *group, const void *send, void *recv, size_t count,
                     int dtype, int redop);
/* As all_reduce, but only @root gets the result; elsewhere @recv is not touched. */
int commd_reduce(struct commd_group *group, const void *send, void *recv, size_t count, int dtype,
                 int redop, int root);
/* @buf of @root to @buf of everybody. */
int commd_broadcast(struct commd_group *group, void *buf, size_t count, int dtype, int root);
/* recv holds size * count elements, rank r's at r * count. In place: send == recv + rank *
 * count elements. */
int commd_all_gather(struct commd_group *group, const void *send, void *recv, size_t count,
                     int dtype);
/* Rank r contributes counts[r] elements; recv holds all of them. In place: send is the own
 * block in recv. */
int commd_all_gather_v(struct commd_group *group, const void *send, void *recv,
                       const size_t *counts, int dtype);
/* As all_gather, but only @root receives; elsewhere @recv is not touched. */
int commd_gather(struct commd_group *group, const void *send, void *recv, size_t count, int dtype,
                 int root);
/* Rank r sends @send_count elements, which is recv_counts[r] at @root; elsewhere @recv_counts
 * may be NULL. */
int commd_gather_v(struct commd_group *group, const void *send, size_t send_count, void *recv,
                   const size_t *recv_counts, int dtype, int root);
/* Block r of @root's @send to @recv of rank r; elsewhere @send may be NULL. In place at @root:
 * recv is the own block in send. */
int commd_scatter(struct commd_group *group, const void *send, void *recv, size_t count, int dtype,
                  int root);
int commd_scatter_v(struct commd_group *group, const void *send, const size_t *send_counts,
                    void *recv, size_t recv_count, int dtype, int root);
/* send holds size * count elements; recv[i] = op over ranks of send[rank * count + i]. In
 * place: recv == send + rank * count elements. */
int commd_reduce_scatter(struct commd_group *group, const void *send, void *recv, size_t count,
                         int dtype, int redop);
/* Rank r receives counts[r] elements. In place: recv is the own block in send. */
int commd_reduce_scatter_v(struct commd_group *group, const void *send, void *recv,
                           const size_t *counts, int dtype, int redop);
/* Block r of @send to rank r; block r of @recv is from rank r. In place: recv == send. */
int commd_all_to_all(struct commd_group *group, const void *send, void *recv, size_t count,
                     int dtype);
int commd_all_to_all_v(struct commd_group *group, const void *send, const size_t *send_counts,
                       void *recv, const size_t *recv_counts, int dtype);
/* Returns when every rank has called it. */
int commd_barrier(struct commd_group *group);

/* ---- point to point -----------------------------------------------------------------------------
 * Independent of collectives. A message is matched by (source, tag), in the order in which that
 * source sent messages with that tag; messages with other tags may overtake it. Sends and
 * receives of a group may be made by several threads at once. A rank may send to itself.
 *
 * A message that was sent is received, also when its sender has left or died since. When a rank
 * is lost the operations that need it fail with COMMD_E_RANK_LOST; others go on. An operation
 * that runs into its limit has no effect if the other side has not taken part in it yet (a
 * receive to which nothing was sent); else the group is broken. */

enum { COMMD_ANY_SOURCE = -1, COMMD_ANY_TAG = -1 };

/* What a receive got. */
struct commd_status {
    int source, tag;
    size_t bytes; /* received: at most the buffer's */
};

/* Returns when @buf may be used again: at once for small messages (up to 64 KiB, while few of
 * them are waiting to be received), after the receiver has taken part for large ones. @tag: 0 to
 * INT32_MAX. */
int commd_send(struct commd_group *group, const void *buf, size_t count, int dtype, int dest,
               int tag);
/* @source may be COMMD_ANY_SOURCE, @tag COMMD_ANY_TAG; @ret_status may be NULL. A message that is
 * shorter than the buffer is fine; a longer one fails with COMMD_E_MISMATCH and is lost, the
 * group can still be used. COMMD_E_RANK_LOST: @source has died or left before it sent; from
 * COMMD_ANY_SOURCE: a rank has died, or all others have left. */
int commd_recv(struct commd_group *group, void *buf, size_t count, int dtype, int source, int tag,
               struct commd_status *ret_status);

/* ---- any operation, blocking or not -------------------------------------------------------------
 * Fields that an operation does not use are ignored. */
enum commd_coll {
    COMMD_BARRIER = 0,
    COMMD_ALL_REDUCE = 1,
    COMMD_BROADCAST = 2,
    COMMD_ALL_GATHER = 3,
    COMMD_REDUCE_SCATTER = 4,
    COMMD_REDUCE = 5,
    COMMD_GATHER = 6,
    COMMD_SCATTER = 7,
    COMMD_ALL_TO_ALL = 8,
    COMMD_ALL_GATHER_V = 9,
    COMMD_REDUCE_SCATTER_V = 10,
    COMMD_GATHER_V = 11,
    COMMD_SCATTER_V = 12,
    COMMD_ALL_TO_ALL_V = 13,
    /* point to point */
    COMMD_SEND = 64,
    COMMD_RECV = 65
};

/* Where the buffers of an operation are. */
enum commd_memory {
    COMMD_MEMORY_ANY = 0, /* libcommd asks the CUDA driver, if this process has loaded it */
    COMMD_MEMORY_HOST = 1,
    COMMD_MEMORY_CUDA = 2
};

struct commd_op {
    size_t size; /* sizeof(struct commd_op) */
    int coll;    /* enum commd_coll */
    int dtype;
    int redop;
    int root;
    const void *send; /* broadcast: NULL, recv is used */
    void *recv;
    size_t count;       /* elements: of the vector, or of each block; _v forms: not used */
    int64_t timeout_ms; /* 0: the group's; -1: none */
    /* _v forms: elements of each rank's block; both for all_to_all_v. gather_v: recv_counts at the
     * root, and everywhere send_counts[0] is what this rank sends. scatter_v: send_counts at the
     * root, and everywhere recv_counts[0] is what this rank receives. all_gather_v: recv_counts;
     * reduce_scatter_v: send_counts. Copied before commd_start() returns. */
    const size_t *send_counts, *recv_counts;
    /* Addresses of the blocks instead of send or recv, where those have one block for each rank;
     * NULL: one after the other. Copied before commd_start() returns. */
    const void *const *send_blocks;
    void *const *recv_blocks;
    double scale; /* COMMD_PREMUL_SUM */
    int peer;     /* send, recv: the other rank, or COMMD_ANY_SOURCE */
    int tag;
    int memory;   /* enum commd_memory */
    void *stream; /* buffers on a GPU: a CUstream (cudaStream_t); NULL: the default stream */
};

/* Runs @op on the calling thread and returns when it is done; on a GPU, when it is enqueued. */
int commd_run(struct commd_group *group, const struct commd_op *op);

/* Starts @op; it progresses without the caller. @on_done (may be NULL) is called once, after the
 * work became done, from the library's thread or from one that waits for a work of this context; it
 * must not block and must not call blocking functions of this library. Fails only for invalid
 * arguments (nothing started); everything else is reported through the work. */
typedef void (*commd_done_fn)(void *arg, const struct commd_error *error); /* NULL: success */
int commd_start(struct commd_group *group, const struct commd_op *op, commd_done_fn on_done,
                void *arg, struct commd_work **ret_work);
/* Starts @n operations as one submission: one hand-over, one work, which is done when all of them
 * are; its result is that of the first that failed. They run in this order. @n is at least 1. If
 * one of them has invalid arguments nothing is started. */
int commd_start_batch(struct commd_group *group, const struct commd_op *ops, size_t n,
                      commd_done_fn on_done, void *arg, struct commd_work **ret_work);
/* What a finished receive got; undefined before. */
void commd_work_status(const struct commd_work *work, struct commd_status *ret_status);
/* 1 done (then *ret_error, if not NULL, is its code), 0 not yet. */
int commd_work_test(struct commd_work *work, int *ret_error);
/* Waits up to @timeout_ms (-1: as long as the operation's own limit allows). Returns the
 * operation's result, or COMMD_E_TIMEOUT if it is still pending (it stays pending). The caller may
 * carry out meanwhile what others have started in this context, and call their on_done; it is no
 * cancellation point. If that thread is suspended (by a debugger, or by a signal handler that takes
 * long), others do not wait for it: after some 0.2 s the library's thread carries on. They do wait
 * if the thread is suspended in the middle of a step, in an on_done, or while it waits for a
 * message; and so does a thread that leaves a group. */
int commd_work_wait(struct commd_work *work, int64_t timeout_ms);
/* Drops the handle; a pending operation continues. NULL is fine. */
void commd_work_free(struct commd_work *work);

/* ---- tensors on GPUs ----------------------------------------------------------------------------
 * An operation's buffers lie in host memory or in memory of one GPU, all of them. A barrier is one
 * on a GPU if commd_op.memory is COMMD_MEMORY_CUDA. All operations, types and operators are there
 * for both. Ranks of a group may differ in where their buffers are, see COMMD_DEVICE_PATH in
 * commd(3).
 *
 * Memory. COMMD_MEMORY_ANY: if the process had loaded the CUDA driver (libcuda.so.1) by
 * commd_connect() or its last commd_group_join(), the driver is asked what each buffer is; else it
 * is host memory. Pinned host memory is host memory, managed memory is taken for the GPU's. A
 * caller that knows says so, and saves the question. COMMD_LIBCUDA names another library.
 *
 * Streams. Such an operation comes after what was enqueued on commd_op.stream before the call. No
 * call waits for another rank, nor for the stream, but for a group's first operation on GPUs: there
 * the ranks agree which way they go, through commd-gpu or through host memory, see commd_run(3).
 * If ranks will use groups in different order, call a barrier on the GPU in each group before, in
 * one order on all ranks.
 *   commd_run() and the functions named after operations enqueue it (the latter on the default
 *     stream) and return: what is enqueued on that stream later comes after it.
 *   commd_start() starts it; what is enqueued on the stream later does not wait for it.
 *     commd_work_wait_stream() makes a stream wait, commd_work_wait() the caller, and
 *     commd_work_test() looks: done is when the results are in the buffers.
 * The stream may be destroyed as soon as the call has returned: what it was given is carried out.
 * Buffers must stay valid and untouched until then. Operations of a group are executed in the order
 * of the calls, whichever streams they are on.
 *
 * commd_recv() with @ret_status waits until the message is there. A message that is shorter than
 * the buffer leaves the rest of a buffer on a GPU undefined.
 *
 * Errors. What is wrong with the arguments is told by the call. Also COMMD_E_INVALID: a stream that
 * is being captured into a graph (operations cannot be part of one); buffers in both kinds of
 * memory, or on two GPUs. A failure that comes later is told by the work; if there is none
 * (commd_run()), by the next call in the group, once. On a GPU that call starts nothing. One in
 * host memory takes part, so that no rank waits for one that was told, and then returns the
 * failure; but commd_start() tells of none there. If a collective in host memory waits for ranks
 * when a collective on a GPU before it turns out to have failed, it goes on if they come. They may
 * have been told by another call, and come no more: so after 10 s it ends with COMMD_E_ABORTED,
 * which says what has failed, and the group is broken, for all. This holds for the collective that
 * is under way then, and for the next one: a rank that came to that one goes on. Streams never hang
 * because of a failure: they go on, with undefined results. COMMD_E_NOMEM: the memory through which
 * an operation goes is used up, see COMMD_DEVICE_STAGING and COMMD_DEVICE_ARENA in commd(3). What
 * one rank has no memory for fails the operation on all, and the group goes on; of a message it
 * fails both parts, but for a send that has ended by then. A process may use several GPUs; a group
 * is best used with buffers on one.
 *
 * The time limit of an operation begins when what was enqueued before it is done.
 *
 * Threads: as everywhere, any thread may make these calls. Which of two calls of two threads on one
 * group is first is not said. The CUDA context is that of the stream, or the primary one of the
 * buffer's GPU, and the caller's current one is as before. on_done must not call CUDA. */

/* What is enqueued on @stream (as commd_op.stream) from now on comes after the operation. Where its
 * buffers are in host memory, it waits for that on the host. May be called several times, with
 * several streams, also while another thread leaves the group. Does not tell how the operation
 * ended: commd_work_test() or commd_work_wait() does, later. Returns 0; COMMD_E_INVALID: @stream is
 * being captured, or is none; what the operation failed with, if it has. */
int commd_work_wait_stream(struct commd_work *work, void *stream);

#ifdef __cplusplus
}
#endif

#endif

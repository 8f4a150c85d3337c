/* codec_priv.h - the field lists that check, decode and encode are made from.
 *
 * Every message is one row of CODEC_OWN, or of CODEC_TYPES where several messages have one struct,
 * every field one entry F(KIND, field) of its struct's list. A file that does something with each
 * field defines X_NUM, X_NAME, ... once and expands the lists, so that a new field is written
 * in three places: msg.h, commd.proto and here; test_codec asks that none is left out. The kinds:
 *
 *   NUM      any value                       NAME     non-empty name
 *   FLAG     0 or 1                          OPTNAME  name or ""
 *   CAUSE    enum cause                      TEXT     one line for people
 *   RANKREF  int32, -1 or a rank             TOKEN    exactly 32 bytes
 *   NODEREF  int32, -1 or a node index       ADDR     addr with addr_len
 *   NODE     node index                      RANK     a rank
 *   MEMBERS  members with size               NODES    nodes with nnodes
 *   SORTED   (a rule only) nodes by name
 *   INDEXES  board_add's three lists        TABLES   tables with ntables
 *   GPU      index of a GPU                  GPUS     how many GPUs
 *   KEY      MSG_KEY bytes; left out: zeros  KEPT     kept with nkept
 *   ASKS     asks with nasks                 RANKS    ascending ranks, with their number
 *   SEAT     rank and size, as recovery has them
 *   OWN      a rank below the size that MEMBERS has
 */
#ifndef COMMD_CODEC_PRIV_H
#define COMMD_CODEC_PRIV_H

#include "shm/proto/codec.h"

/* Messages that have a struct of their own: M(X, enum name, envelope field and struct, schema
 * type). */
#define CODEC_OWN(M, X)                                                                            \
    M(X, CLIENT_HELLO, client_hello, ClientHello)                                                  \
    M(X, CLIENT_JOIN, client_join, ClientJoin)                                                     \
    M(X, CLIENT_WITHDRAW, client_withdraw, ClientWithdraw)                                         \
    M(X, CLIENT_LEAVE, client_leave, ClientLeave)                                                  \
    M(X, CLIENT_ABORT, client_abort, ClientAbort)                                                  \
    M(X, ADMIN, admin, Admin)                                                                      \
    M(X, CLIENT_ASK_ABSENT, client_ask_absent, ClientAskAbsent)                                    \
    M(X, ARENA_ADD, arena_add, ArenaAdd)                                                           \
    M(X, ARENA_DEL, arena_del, ArenaDel)                                                           \
    M(X, ARENA_ASK, arena_ask, ArenaAsk)                                                           \
    M(X, WELCOME, welcome, Welcome)                                                                \
    M(X, JOINED, joined, Joined)                                                                   \
    M(X, JOIN_FAILED, join_failed, JoinFailed)                                                     \
    M(X, REFUSED, refused, Refused)                                                                \
    M(X, TABLES, tables, Tables)                                                                   \
    M(X, ABSENT, absent, Absent)                                                                   \
    M(X, ARENA_ANSWER, arena_answer, ArenaAnswer)                                                  \
    M(X, PEER_HELLO, peer_hello, PeerHello)                                                        \
    M(X, HEARTBEAT, heartbeat, Heartbeat)                                                          \
    M(X, ENGINE_STATE, engine_state, EngineState)                                                  \
    M(X, ENGINE_READY, engine_ready, EngineReady)                                                  \
    M(X, JOIN, join, Join)                                                                         \
    M(X, JOIN_NEWS, join_news, JoinNews)                                                           \
    M(X, JOIN_CANCEL, join_cancel, JoinCancel)                                                     \
    M(X, JOIN_REFUSED, join_refused, JoinRefused)                                                  \
    M(X, COMMIT, commit, Commit)                                                                   \
    M(X, GONE, gone, Gone)                                                                         \
    M(X, BROKEN, broken, Broken)                                                                   \
    M(X, SYNC, sync, Sync)                                                                         \
    M(X, HELD, held, Held)                                                                         \
    M(X, PAUSE, pause, Pause)                                                                      \
    M(X, ASK_ABSENT, ask_absent, AskAbsent)                                                        \
    M(X, ABSENT_HERE, absent_here, AbsentHere)                                                     \
    M(X, ASK_RANKS, ask_ranks, AskRanks)                                                           \
    M(X, PEER_KEYS, peer_keys, PeerKeys)                                                           \
    M(X, ENGINE_HELLO, engine_hello, EngineHello)                                                  \
    M(X, ENGINE_PEER_ADD, engine_peer_add, EnginePeerAdd)                                          \
    M(X, ENGINE_PEER_KEY, engine_peer_key, EnginePeerKey)                                          \
    M(X, BOARD_ADD, board_add, BoardAdd)                                                           \
    M(X, BOARD_HELD, board_held, BoardHeld)                                                        \
    M(X, PING, ping, Ping)                                                                         \
    M(X, ENGINE_TRAFFIC, engine_traffic, EngineTraffic)                                            \
    M(X, ENGINE_SENT, engine_sent, EngineSent)                                                     \
    M(X, GPU_ASK, gpu_ask, GpuAsk)                                                                 \
    M(X, GPU_ANSWER, gpu_answer, GpuAnswer)                                                        \
    M(X, GPU_HELLO, gpu_hello, GpuHello)                                                           \
    M(X, GPU_SESSION, gpu_session, GpuSession)                                                     \
    M(X, GPU_DEVICE, gpu_device, GpuDevice)
#define CODEC_OWN_TYPE(T, name, field, schema)   T(name, field, field)
#define CODEC_OWN_STRUCT(S, name, field, schema) S(field, schema, name)

/* T(enum name, envelope field, struct): all messages. */
#define CODEC_TYPES(T)                                                                             \
    CODEC_OWN(CODEC_OWN_TYPE, T)                                                                   \
    T(RANKS_HERE, ranks_here, tables)                                                              \
    T(ENGINE_PEER_DEL, engine_peer_del, engine_peer)                                               \
    T(ENGINE_PEER_READY, engine_peer_ready, engine_peer)                                           \
    T(ENGINE_PEER_DOWN, engine_peer_down, engine_peer)                                             \
    T(BOARD_DEL, board_del, board)                                                                 \
    T(BOARD_HOLD, board_hold, board_held)                                                          \
    T(BOARD_GO, board_go, board_held)                                                              \
    T(PAUSED, paused, pause)                                                                       \
    T(BOARD_PAUSE, board_pause, pause)                                                             \
    T(BOARD_ERROR, board_error, board)                                                             \
    T(DOORBELL_ADD, doorbell_add, doorbell)                                                        \
    T(DOORBELL_DEL, doorbell_del, doorbell)                                                        \
    T(GPU_SESSION_DEL, gpu_session_del, gpu_session)                                               \
    T(ENGINE_RESUMED, engine_resumed, ping)                                                        \
    T(ENGINE_KEEP, engine_keep, ping)

/* S(struct, schema type, schema constant): all structs. */
#define CODEC_STRUCTS(S)                                                                           \
    CODEC_OWN(CODEC_OWN_STRUCT, S)                                                                 \
    S(engine_peer, EnginePeer, ENGINE_PEER)                                                        \
    S(board, Board, BOARD)                                                                         \
    S(doorbell, Doorbell, DOORBELL)

/* clang-format off */
#define FIELDS_client_hello(F)                                                                     \
    F(NUM, version) F(FLAG, admin) F(OPTNAME, program) F(TEXT, command) F(TEXT, job)               \
    F(TEXT, waits_for) F(NUM, waits_rank) F(NUM, waits_size)                                       \
    F(KEY, resume) F(KEPT, kept) F(ASKS, asks) F(NUM, plans)
#define FIELDS_client_join(F)                                                                      \
    F(NUM, req) F(NUM, timeout_ms) F(NUM, limit_ms) F(SEAT, rank) F(NAME, name)                    \
    F(NUM, follows) F(NUM, least) F(NUM, wait_ms)                                                  \
    F(NUM, was_rank) F(NUM, was_size) F(NUM, was_epoch) F(NUM, was_nodes) F(RANKS, gone)
#define FIELDS_client_withdraw(F) F(NUM, req)
#define FIELDS_client_leave(F) F(NUM, group) F(NUM, ops)
#define FIELDS_client_abort(F) F(NUM, group) F(TEXT, text)
#define FIELDS_admin(F)                                                                            \
    F(NAME, verb) F(OPTNAME, group) F(NUM, watch_ms) F(FLAG, records)                              \
    F(NUM, pid) F(NUM, rank) F(NUM, since) F(TEXT, text) F(FLAG, links)
#define FIELDS_client_ask_absent(F)   F(NUM, group) F(NUM, req) F(NUM, seq)
#define FIELDS_arena_add(F)    F(NUM, req) F(NUM, arena) F(NUM, size)
#define FIELDS_arena_del(F)    F(NUM, arena)
#define FIELDS_arena_ask(F)    F(NUM, req) F(RANK, rank) F(NUM, group) F(NUM, arena)
#define FIELDS_arena_answer(F) F(NUM, req) F(CAUSE, cause) F(TEXT, text)
#define FIELDS_welcome(F)                                                                          \
    F(NUM, version) F(NUM, pid) F(NUM, incarnation) F(NAME, node) F(NAME, cluster)                 \
    F(KEY, key) F(FLAG, resumed) F(KEPT, kept) F(NUM, took_over_ms)
#define FIELDS_joined(F)                                                                           \
    F(NUM, req)                                                                                    \
    F(FLAG, new_doorbell) F(NUM, group) F(NUM, epoch) F(NODES, nodes) F(MEMBERS, members)          \
    F(OWN, rank)
#define FIELDS_join_failed(F)                                                                      \
    F(NUM, req) F(CAUSE, cause) F(RANKREF, rank) F(OPTNAME, node) F(TEXT, text)
#define FIELDS_refused(F)      F(CAUSE, cause) F(TEXT, text)
#define FIELDS_tables(F)                                                                           \
    F(FLAG, healthy) F(TABLES, tables) F(TEXT, text) F(NUM, ask) F(NUM, life)
#define FIELDS_absent(F) \
    F(NUM, req) F(NUM, count) F(RANKREF, rank) F(OPTNAME, node) F(TEXT, text)
#define FIELDS_peer_hello(F)                                                                       \
    F(NUM, version) F(NUM, incarnation) F(NAME, cluster) F(NAME, node) F(FLAG, strays)
#define FIELDS_peer_keys(F)    F(NAME, key) F(OPTNAME, other)
#define FIELDS_heartbeat(F)    F(NUM, seq) F(FLAG, draining) F(FLAG, free)
#define FIELDS_engine_state(F) F(NUM, engine) F(TOKEN, token) F(ADDR, addr) F(FLAG, exports) \
    F(NUM, intro) F(NUM, commits)
#define FIELDS_engine_ready(F) F(NUM, engine) F(NUM, mine) F(NUM, end) F(TEXT, text) \
    F(NUM, intro)
#define FIELDS_join(F)         \
    F(NUM, join) F(NUM, uid) F(NUM, pid) F(SEAT, rank) F(FLAG, gpu) F(NAME, name)                  \
    F(NUM, follows) F(NUM, least) F(NUM, was_rank) F(NUM, was_size) F(NUM, was_epoch)
#define FIELDS_join_news(F)    F(NUM, join) F(FLAG, enough) F(RANKS, gone)
#define FIELDS_join_cancel(F)  F(NUM, join)
#define FIELDS_join_refused(F)                                                                     \
    F(NUM, join) F(CAUSE, cause) F(RANKREF, rank) F(OPTNAME, node) F(TEXT, text)
#define FIELDS_commit(F)                                                                           \
    F(NUM, group)                                                                                  \
    F(NUM, epoch)                                                                                  \
    F(NUM, uid)                                                                                    \
    F(NAME, name)                                                                                  \
    F(NAME, home)                                                                                  \
    F(NODES, nodes) F(NUM, latency_us) F(NUM, mbytes_s) F(FLAG, gpu) F(NUM, follows)               \
    F(SORTED, nodes) F(MEMBERS, members)
#define FIELDS_gone(F)                                                                             \
    F(NUM, group) F(NUM, ops) F(NUM, pid) F(RANK, rank) F(CAUSE, cause) F(TEXT, text) F(NUM, next)
#define FIELDS_broken(F)                                                                           \
    F(NUM, group) F(NUM, pid) F(CAUSE, cause) F(RANKREF, rank) F(OPTNAME, node) F(TEXT, text)      \
    F(NUM, next) F(FLAG, stray) F(NUM, uid)
#define FIELDS_sync(F)         F(NUM, group) F(NUM, again) F(NUM, told) F(FLAG, all)
#define FIELDS_held(F) \
    F(NUM, group) F(NUM, key) F(NUM, ops) F(NUM, sent) F(NUM, came) F(FLAG, answer)
#define FIELDS_pause(F) \
    F(NUM, group) F(NUM, attempt) F(NUM, step) F(NUM, ops) F(NUM, sent) F(NUM, came) F(NODE, asker)
#define FIELDS_ask_absent(F)          F(NUM, group) F(NUM, ask) F(NUM, seq)
#define FIELDS_absent_here(F) \
    F(NUM, group) F(NUM, ask) F(NUM, count) F(RANKREF, rank) F(TEXT, text)
#define FIELDS_ask_ranks(F) \
    F(NUM, ask) F(NUM, uid) F(FLAG, all) F(NUM, watch_ms) F(OPTNAME, group) F(FLAG, records) \
    F(FLAG, links) F(FLAG, end)
#define FIELDS_engine_hello(F) \
    F(NUM, version) F(NUM, pid) F(ADDR, addr) F(TEXT, text) F(FLAG, resumed) F(OPTNAME, build) \
    F(NUM, settings) F(FLAG, takes_keys)
#define FIELDS_engine_peer_key(F) F(NUM, engine) F(NODE, peer) F(TOKEN, secret)
#define FIELDS_engine_peer_add(F)                                                                  \
    F(NUM, engine) F(NODE, peer) F(TOKEN, token) F(TOKEN, expect) F(ADDR, addr) F(NAME, node) \
    F(NUM, intro)
#define FIELDS_engine_traffic(F) \
    F(NODE, peer) F(NUM, engine) F(NUM, sent) F(NUM, received) F(NUM, segments) \
    F(NUM, retransmits) F(NUM, stalled_us) F(NUM, rtt_us) F(NUM, min_rtt_us) \
    F(NUM, rate) F(NUM, mends) F(FLAG, apart) F(NUM, encryption) F(NUM, key_ms) F(NUM, generation) \
    F(NUM, quiet_ms)
#define FIELDS_engine_sent(F) F(NUM, uid) F(NUM, ms) F(NUM, bytes)
#define FIELDS_engine_peer(F) \
    F(NUM, engine) F(NODE, peer) F(TEXT, text) F(NUM, end) F(NUM, intro) F(FLAG, planned)
#define FIELDS_board_add(F) \
    F(NUM, group) F(NUM, me) F(NUM, uid) F(NUM, weight) F(NUM, goes_on) F(INDEXES, peers)
#define FIELDS_board_held(F)                                                                       \
    F(NUM, group) F(FLAG, quiet) F(NUM, ops) F(NUM, sent) F(NUM, came) F(FLAG, missing)          \
    F(FLAG, went_on)
#define FIELDS_board(F) \
    F(NUM, group) F(FLAG, abort) F(CAUSE, cause) F(NODEREF, peer) F(TEXT, text)
#define FIELDS_doorbell(F)    F(NUM, client)
#define FIELDS_ping(F)        F(NUM, seq) F(FLAG, pong)
#define FIELDS_gpu_ask(F)     F(NUM, req)
#define FIELDS_gpu_answer(F)  F(NUM, req) F(CAUSE, cause) F(TEXT, text)
#define FIELDS_gpu_hello(F) \
    F(NUM, version) F(NUM, pid) F(GPUS, devices) F(NUM, nccl) F(TEXT, text) F(FLAG, resumed) \
    F(OPTNAME, build) F(NUM, settings)
#define FIELDS_gpu_session(F) F(NUM, client) F(NUM, uid) F(NUM, pid) F(NUM, weight) F(NUM, payer)
#define FIELDS_gpu_device(F) \
    F(GPU, device) F(NUM, clients) F(NUM, groups) F(NUM, communicators) F(NUM, memory) \
    F(NUM, mapped) F(NUM, operations) F(NUM, moved) F(TEXT, uuid) F(TEXT, name) F(TEXT, state) \
    F(TEXT, kernels)
/* clang-format on */

enum {
    CODEC_MAX_TABLES = 16,
    CODEC_MAX_COLUMNS = 64,
    CODEC_TOKEN = 32,
    /* Kinds without lists are a few KiB at most; a larger frame is refused unread. */
    CODEC_MAX_SMALL = 8192,
};

/* --- codec_check.c: the rules of every field, for both directions --- */

/* Everything that can be said about a struct once it is one. */
bool codec_check_msg(const struct msg *msg);

/* --- codec_arena.c: memory of one decode or encode, released as a whole --- */

struct arena_block;
struct codec_arena {
    char *next;
    size_t left;
    size_t total, limit;           /* bytes given out, and how many may be */
    bool oom;                      /* malloc() failed, in contrast to the limit */
    struct arena_block *blocks;    /* owned */
    _Alignas(16) char first[4096]; /* enough for any kind without lists */
};

void arena_init(struct codec_arena *arena, size_t limit);
void arena_fini(struct codec_arena *arena);
/* 16-byte aligned; NULL at the limit or out of memory. */
void *arena_alloc(struct codec_arena *arena, size_t size);

#endif

/* codec_priv.h - the field lists that check, decode and encode are made from.
 *
 * Every message kind is one row of CODEC_TYPES, every struct one row of CODEC_STRUCTS, every
 * field one entry F(KIND, field) of its struct's list. A file that does something with each
 * field defines X_NUM, X_NAME, ... once and expands the lists, so that a new field is written
 * in three places: msg.h, commd.proto and here. The kinds:
 *
 *   NUM      any value                       NAME     non-empty name
 *   FLAG     0 or 1                          OPTNAME  name or ""
 *   CAUSE    enum cause                      TEXT     one line for people
 *   RANKREF  int32, -1 or a rank             TOKEN    exactly 32 bytes
 *   NODEREF  int32, -1 or a node index       ADDR     addr with addr_len
 *   NODE     node index                      RANKSIZE rank, below size
 *   RANK     a rank
 *   MEMBERS  members with size               NODES    nodes with nnodes
 *   SORTED   (a rule only) nodes by name
 *   INDEXES  board_add's three lists        TABLES   tables with ntables
 *   GPU      index of a GPU                  GPUS     how many GPUs
 */
#ifndef COMMD_CODEC_PRIV_H
#define COMMD_CODEC_PRIV_H

#include "shm/proto/codec.h"

/* T(enum name, envelope field, struct) */
#define CODEC_TYPES(T)                                                                             \
    T(CLIENT_HELLO, client_hello, client_hello)                                                    \
    T(CLIENT_JOIN, client_join, client_join)                                                       \
    T(CLIENT_LEAVE, client_leave, client_leave)                                                    \
    T(CLIENT_ABORT, client_abort, client_abort)                                                    \
    T(ADMIN, admin, admin)                                                                         \
    T(CLIENT_ASK_ABSENT, client_ask_absent, client_ask_absent)                                     \
    T(ARENA_ADD, arena_add, arena_add)                                                             \
    T(ARENA_DEL, arena_del, arena_del)                                                             \
    T(ARENA_ASK, arena_ask, arena_ask)                                                             \
    T(WELCOME, welcome, welcome)                                                                   \
    T(JOINED, joined, joined)                                                                      \
    T(JOIN_FAILED, join_failed, join_failed)                                                       \
    T(REFUSED, refused, refused)                                                                   \
    T(TABLES, tables, tables)                                                                      \
    T(ABSENT, absent, absent)                                                                      \
    T(ARENA_ANSWER, arena_answer, arena_answer)                                                    \
    T(PEER_HELLO, peer_hello, peer_hello)                                                          \
    T(HEARTBEAT, heartbeat, heartbeat)                                                             \
    T(ENGINE_STATE, engine_state, engine_state)                                                    \
    T(ENGINE_READY, engine_ready, engine_ready)                                                    \
    T(JOIN, join, join)                                                                            \
    T(JOIN_CANCEL, join_cancel, join_cancel)                                                       \
    T(JOIN_REFUSED, join_refused, join_refused)                                                    \
    T(COMMIT, commit, commit)                                                                      \
    T(GONE, gone, gone)                                                                            \
    T(BROKEN, broken, broken)                                                                      \
    T(SYNC, sync, sync)                                                                            \
    T(ASK_ABSENT, ask_absent, ask_absent)                                                          \
    T(ABSENT_HERE, absent_here, absent_here)                                                       \
    T(ASK_RANKS, ask_ranks, ask_ranks)                                                             \
    T(RANKS_HERE, ranks_here, tables)                                                              \
    T(PEER_KEYS, peer_keys, peer_keys)                                                             \
    T(ENGINE_HELLO, engine_hello, engine_hello)                                                    \
    T(ENGINE_PEER_ADD, engine_peer_add, engine_peer_add)                                           \
    T(ENGINE_PEER_DEL, engine_peer_del, engine_peer)                                               \
    T(ENGINE_PEER_READY, engine_peer_ready, engine_peer)                                           \
    T(ENGINE_PEER_DOWN, engine_peer_down, engine_peer)                                             \
    T(BOARD_ADD, board_add, board_add)                                                             \
    T(BOARD_DEL, board_del, board)                                                                 \
    T(BOARD_ERROR, board_error, board)                                                             \
    T(DOORBELL_ADD, doorbell_add, doorbell)                                                        \
    T(DOORBELL_DEL, doorbell_del, doorbell)                                                        \
    T(PING, ping, ping)                                                                            \
    T(ENGINE_TRAFFIC, engine_traffic, engine_traffic)                                              \
    T(ENGINE_SENT, engine_sent, engine_sent)                                                       \
    T(GPU_ASK, gpu_ask, gpu_ask)                                                                   \
    T(GPU_ANSWER, gpu_answer, gpu_answer)                                                          \
    T(GPU_HELLO, gpu_hello, gpu_hello)                                                             \
    T(GPU_SESSION, gpu_session, gpu_session)                                                       \
    T(GPU_SESSION_DEL, gpu_session_del, gpu_session)                                               \
    T(GPU_DEVICE, gpu_device, gpu_device)

/* S(struct, schema type, schema constant) */
#define CODEC_STRUCTS(S)                                                                           \
    S(client_hello, ClientHello, CLIENT_HELLO)                                                     \
    S(client_join, ClientJoin, CLIENT_JOIN)                                                        \
    S(client_leave, ClientLeave, CLIENT_LEAVE)                                                     \
    S(client_abort, ClientAbort, CLIENT_ABORT)                                                     \
    S(admin, Admin, ADMIN)                                                                         \
    S(client_ask_absent, ClientAskAbsent, CLIENT_ASK_ABSENT)                                       \
    S(arena_add, ArenaAdd, ARENA_ADD)                                                              \
    S(arena_del, ArenaDel, ARENA_DEL)                                                              \
    S(arena_ask, ArenaAsk, ARENA_ASK)                                                              \
    S(welcome, Welcome, WELCOME)                                                                   \
    S(joined, Joined, JOINED)                                                                      \
    S(join_failed, JoinFailed, JOIN_FAILED)                                                        \
    S(refused, Refused, REFUSED)                                                                   \
    S(tables, Tables, TABLES)                                                                      \
    S(absent, Absent, ABSENT)                                                                      \
    S(arena_answer, ArenaAnswer, ARENA_ANSWER)                                                     \
    S(peer_hello, PeerHello, PEER_HELLO)                                                           \
    S(heartbeat, Heartbeat, HEARTBEAT)                                                             \
    S(engine_state, EngineState, ENGINE_STATE)                                                     \
    S(engine_ready, EngineReady, ENGINE_READY)                                                     \
    S(join, Join, JOIN)                                                                            \
    S(join_cancel, JoinCancel, JOIN_CANCEL)                                                        \
    S(join_refused, JoinRefused, JOIN_REFUSED)                                                     \
    S(commit, Commit, COMMIT)                                                                      \
    S(gone, Gone, GONE)                                                                            \
    S(broken, Broken, BROKEN)                                                                      \
    S(sync, Sync, SYNC)                                                                            \
    S(ask_absent, AskAbsent, ASK_ABSENT)                                                           \
    S(absent_here, AbsentHere, ABSENT_HERE)                                                        \
    S(ask_ranks, AskRanks, ASK_RANKS)                                                              \
    S(peer_keys, PeerKeys, PEER_KEYS)                                                              \
    S(engine_hello, EngineHello, ENGINE_HELLO)                                                     \
    S(engine_peer_add, EnginePeerAdd, ENGINE_PEER_ADD)                                             \
    S(engine_peer, EnginePeer, ENGINE_PEER)                                                        \
    S(board_add, BoardAdd, BOARD_ADD)                                                              \
    S(board, Board, BOARD)                                                                         \
    S(doorbell, Doorbell, DOORBELL)                                                                \
    S(ping, Ping, PING)                                                                            \
    S(engine_traffic, EngineTraffic, ENGINE_TRAFFIC)                                               \
    S(engine_sent, EngineSent, ENGINE_SENT)                                                        \
    S(gpu_ask, GpuAsk, GPU_ASK)                                                                    \
    S(gpu_answer, GpuAnswer, GPU_ANSWER)                                                           \
    S(gpu_hello, GpuHello, GPU_HELLO)                                                              \
    S(gpu_session, GpuSession, GPU_SESSION)                                                        \
    S(gpu_device, GpuDevice, GPU_DEVICE)

/* clang-format off */
#define FIELDS_client_hello(F)                                                                     \
    F(NUM, version) F(FLAG, admin) F(OPTNAME, program) F(TEXT, command) F(TEXT, job)               \
    F(TEXT, waits_for) F(NUM, waits_rank) F(NUM, waits_size)
#define FIELDS_client_join(F)  F(NUM, req) F(NUM, timeout_ms) F(RANKSIZE, rank) F(NAME, name)
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
    F(NUM, version) F(NUM, pid) F(NUM, incarnation) F(NAME, node) F(NAME, cluster)
#define FIELDS_joined(F)                                                                           \
    F(NUM, req)                                                                                    \
    F(FLAG, new_doorbell) F(NUM, group) F(NUM, epoch) F(NODES, nodes) F(MEMBERS, members)
#define FIELDS_join_failed(F)                                                                      \
    F(NUM, req) F(CAUSE, cause) F(RANKREF, rank) F(OPTNAME, node) F(TEXT, text)
#define FIELDS_refused(F)      F(CAUSE, cause) F(TEXT, text)
#define FIELDS_tables(F)       F(FLAG, healthy) F(TABLES, tables) F(TEXT, text) F(NUM, ask)
#define FIELDS_absent(F) \
    F(NUM, req) F(NUM, count) F(RANKREF, rank) F(OPTNAME, node) F(TEXT, text)
#define FIELDS_peer_hello(F)   F(NUM, version) F(NUM, incarnation) F(NAME, cluster) F(NAME, node)
#define FIELDS_peer_keys(F)    F(NAME, key) F(OPTNAME, other)
#define FIELDS_heartbeat(F)    F(NUM, seq) F(FLAG, draining)
#define FIELDS_engine_state(F) F(NUM, engine) F(TOKEN, token) F(ADDR, addr)
#define FIELDS_engine_ready(F) F(NUM, engine) F(NUM, mine)
#define FIELDS_join(F)         \
    F(NUM, join) F(NUM, uid) F(NUM, pid) F(RANKSIZE, rank) F(FLAG, gpu) F(NAME, name)
#define FIELDS_join_cancel(F)  F(NUM, join)
#define FIELDS_join_refused(F)                                                                     \
    F(NUM, join) F(CAUSE, cause) F(RANKREF, rank) F(OPTNAME, node) F(TEXT, text)
#define FIELDS_commit(F)                                                                           \
    F(NUM, group)                                                                                  \
    F(NUM, epoch)                                                                                  \
    F(NUM, uid)                                                                                    \
    F(NAME, name)                                                                                  \
    F(NAME, home)                                                                                  \
    F(NODES, nodes) F(NUM, latency_us) F(NUM, mbytes_s) F(FLAG, gpu)                               \
    F(SORTED, nodes) F(MEMBERS, members)
#define FIELDS_gone(F)                                                                             \
    F(NUM, group) F(NUM, ops) F(NUM, pid) F(RANK, rank) F(CAUSE, cause) F(TEXT, text)
#define FIELDS_broken(F)                                                                           \
    F(NUM, group) F(NUM, pid) F(CAUSE, cause) F(RANKREF, rank) F(OPTNAME, node) F(TEXT, text)
#define FIELDS_sync(F)         F(NUM, group)
#define FIELDS_ask_absent(F)          F(NUM, group) F(NUM, ask) F(NUM, seq)
#define FIELDS_absent_here(F) \
    F(NUM, group) F(NUM, ask) F(NUM, count) F(RANKREF, rank) F(TEXT, text)
#define FIELDS_ask_ranks(F) \
    F(NUM, ask) F(NUM, uid) F(FLAG, all) F(NUM, watch_ms) F(OPTNAME, group) F(FLAG, records) \
    F(FLAG, links) F(FLAG, end)
#define FIELDS_engine_hello(F) F(NUM, version) F(NUM, pid) F(ADDR, addr) F(TEXT, text)
#define FIELDS_engine_peer_add(F)                                                                  \
    F(NUM, engine) F(NODE, peer) F(TOKEN, token) F(TOKEN, expect) F(ADDR, addr) F(NAME, node)
#define FIELDS_engine_traffic(F) \
    F(NODE, peer) F(NUM, engine) F(NUM, sent) F(NUM, received) F(NUM, segments) \
    F(NUM, retransmits) F(NUM, stalled_us) F(NUM, rtt_us) F(NUM, min_rtt_us) \
    F(NUM, rate) F(NUM, mends) F(FLAG, apart)
#define FIELDS_engine_sent(F) F(NUM, uid) F(NUM, ms) F(NUM, bytes)
#define FIELDS_engine_peer(F) F(NUM, engine) F(NODE, peer) F(TEXT, text)
#define FIELDS_board_add(F)   F(NUM, group) F(NUM, me) F(NUM, uid) F(NUM, weight) F(INDEXES, peers)
#define FIELDS_board(F) \
    F(NUM, group) F(FLAG, abort) F(CAUSE, cause) F(NODEREF, peer) F(TEXT, text)
#define FIELDS_doorbell(F)    F(NUM, client)
#define FIELDS_ping(F)        F(NUM, seq) F(FLAG, pong)
#define FIELDS_gpu_ask(F)     F(NUM, req)
#define FIELDS_gpu_answer(F)  F(NUM, req) F(CAUSE, cause) F(TEXT, text)
#define FIELDS_gpu_hello(F) \
    F(NUM, version) F(NUM, pid) F(GPUS, devices) F(NUM, nccl) F(TEXT, text)
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

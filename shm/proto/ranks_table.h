/* ranks_table.h - the table "ranks": what the ranks of a node are doing. A row makes the column,
 * which commd fills by name (daemon/admin/rank_table.c), and the field of struct seat, which
 * commctl reads by name (client/ctl/seats.c): key, kind, title for people.
 *
 *   TEXT     a string
 *   NUMBER   an empty cell reads as 0
 *   COUNT    counts operations, and wraps
 *   INDEX    of a rank, or a tag: an empty cell reads as -1, which is none, or any
 *   FLAG     true or false */
#ifndef COMMD_RANKS_TABLE_H
#define COMMD_RANKS_TABLE_H

/* clang-format off */
#define RANKS_COLUMNS(C)                                                                           \
    C(group, TEXT, "GROUP")                                                                        \
    C(name, TEXT, "NAME")                                                                          \
    C(uid, NUMBER, "UID")                                                                          \
    C(size, NUMBER, "SIZE")                                                                        \
    C(nodes, NUMBER, "NODES")                                                                      \
    C(state, TEXT, "STATE")                                                                        \
    C(cause, TEXT, "CAUSE")                                                                        \
    C(cause_rank, INDEX, "CAUSE RANK")                                                             \
    C(cause_text, TEXT, "CAUSE TEXT")                                                              \
    C(missing, TEXT, "MISSING")                                                                    \
    C(epoch, NUMBER, "EPOCH")                                                                      \
    C(next_epoch, NUMBER, "NEXT EPOCH")                                                            \
    C(recovery, TEXT, "RECOVERY")                                                                  \
    C(free_seats, TEXT, "FREE SEATS")                                                              \
    C(ended_s, NUMBER, "ENDED [s]")                                                                \
    C(gone, TEXT, "GONE")                                                                          \
    C(gone_rank, INDEX, "GONE RANK")                                                               \
    C(gone_node, TEXT, "GONE FROM")                                                                \
    C(gone_pid, NUMBER, "GONE PID")                                                                \
    C(gone_ops, COUNT, "GONE AFTER")                                                               \
    C(rank, INDEX, "RANK")                                                                         \
    C(node, TEXT, "NODE")                                                                          \
    C(pid, NUMBER, "PID")                                                                          \
    C(process, TEXT, "PROCESS")                                                                    \
    C(kernel, TEXT, "IN KERNEL")                                                                   \
    C(ops, COUNT, "OPS")                                                                           \
    C(started, COUNT, "STARTED")                                                                   \
    C(operation, TEXT, "OPERATION")                                                                \
    C(asleep_ms, NUMBER, "ASLEEP [ms]")                                                            \
    C(last, TEXT, "LAST OPERATION")                                                                \
    C(message, TEXT, "MESSAGE")                                                                    \
    C(message_peer, INDEX, "PEER")                                                                 \
    C(message_tag, INDEX, "TAG")                                                                   \
    C(message_ms, NUMBER, "FOR [ms]")                                                              \
    C(unasked_from, INDEX, "UNASKED FROM")                                                         \
    C(unasked_tag, NUMBER, "UNASKED TAG")                                                          \
    C(messages_done, NUMBER, "MESSAGES DONE")                                                      \
    C(done, NUMBER, "DONE")                                                                        \
    C(moved, NUMBER, "MOVED")                                                                      \
    C(busy_pct, NUMBER, "IN OPERATIONS [%]")                                                       \
    C(watched_ms, NUMBER, "WATCHED [ms]")                                                          \
    C(starved_pct, NUMBER, "STARVED [%]")                                                          \
    C(joining_ms, NUMBER, "JOINS FOR [ms]")                                                        \
    C(lately, NUMBER, "LATELY")                                                                    \
    C(lately_ms, NUMBER, "LATELY [ms]")                                                            \
    C(lately_in_ms, NUMBER, "LATELY IN [ms]")                                                      \
    C(usual_ms, NUMBER, "USUAL [ms]")                                                              \
    C(unready_ms, NUMBER, "UNREADY [ms]")                                                          \
    C(gpu_begun, COUNT, "GPU BEGUN")                                                               \
    C(gpu_ended, COUNT, "GPU ENDED")                                                               \
    C(gpu_done, NUMBER, "GPU DONE")                                                                \
    C(gpu_operation, TEXT, "ON GPU")                                                               \
    C(gpu_ready, FLAG, "GPU READY")                                                                \
    C(gpu_ms, NUMBER, "GPU FOR [ms]")                                                              \
    C(gpu_last, TEXT, "LAST ON GPU")                                                               \
    C(gpu_error, TEXT, "GPU ERROR")                                                                \
    C(gpu_silent_ms, NUMBER, "GPU SILENT [ms]")                                                    \
    C(gave, NUMBER, "GAVE [bytes]")                                                                \
    C(command, TEXT, "COMMAND")                                                                    \
    C(exit, TEXT, "EXIT")                                                                          \
    C(throttled_pct, NUMBER, "THROTTLED [%]")                                                      \
    C(job, TEXT, "JOB")                                                                            \
    C(engine, TEXT, "ENGINE")                                                                      \
    C(engine_throttled_pct, NUMBER, "ENGINE THROTTLED [%]")
/* clang-format on */

#define RANKS_COLUMN(key_, kind_, title_) RANKS_##key_,
enum ranks_column { RANKS_COLUMNS(RANKS_COLUMN) RANKS_NCOLUMNS };
#undef RANKS_COLUMN

#endif

/* events.h - the kinds of events: commd remembers them, commctl events shows them by these words.
 * Those of the core are its notes (enum core_note). */
#ifndef COMMD_EVENTS_H
#define COMMD_EVENTS_H

/* clang-format off */
#define CORE_EVENTS(E)                                                                             \
    E(NODE_UP, "node_up")                                                                          \
    E(NODE_LOST, "node_lost")                                                                      \
    E(NODE_AWAY, "node_restarting")                                                                \
    E(NODE_DRAINS, "drain")               /* this one or another; or it takes new groups again */  \
    E(ENGINE_UP, "engine_up")                                                                      \
    E(ENGINE_LOST, "engine_lost")                                                                  \
    E(ENGINE_REPLACED, "engine_replaced") /* on purpose */                                         \
    E(DATA_MENDED, "data_mended")                                                                  \
    E(GPU_UP, "gpu_up")                                                                            \
    E(GPU_LOST, "gpu_lost")                                                                        \
    E(GROUP_OPEN, "group_open")                                                                    \
    E(GROUP_RECOVERED, "group_recovered") /* the next epoch of one that was there before */        \
    E(GROUP_FAILED, "group_failed")                                                                \
    E(GROUP_REVOKED, "group_revoked")     /* after the loss of a rank, so that others may go on */ \
    E(GROUP_KEPT, "group_kept")           /* though an engine of its nodes was lost */             \
    E(GROUP_ENDED, "group_ended")                                                                  \
    E(RANK_LOST, "rank_lost")                                                                      \
    E(CLIENT_COME, "client_come")                                                                  \
    E(CLIENT_GONE, "client_gone")                                                                  \
    E(CLIENT_BACK, "client_back")                                                                  \
    E(CLIENT_REFUSED, "client_refused")
/* clang-format on */

#define EVENT_START         "start"
#define EVENT_CONFIG        "config"
#define EVENT_LOG_LEVEL     "log_level"
#define EVENT_NAME(_, name) "," name
#define EVENT_NAMES         EVENT_START "," EVENT_CONFIG "," EVENT_LOG_LEVEL CORE_EVENTS(EVENT_NAME)

#endif

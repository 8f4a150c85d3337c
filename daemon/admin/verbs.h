/* verbs.h - what commd answers when it is asked for tables (MSG_ADMIN): a row makes the verb's name
 * and names the function in answers.c that fills its table. commctl.c says which words of people
 * ask for which verb; test_commctl.c compares the two. */
#ifndef COMMD_VERBS_H
#define COMMD_VERBS_H

#define ADMIN_VERBS(V)                                                                             \
    V(status)                                                                                      \
    V(nodes)                                                                                       \
    V(groups) V(clients) V(gpus) V(config) V(tuning) V(keys) V(events) V(tenants) V(log_level)
/* What changes something: the core decides (core_change.c). drain, undrain: this node; kick:
 * @group, because of @text; kick_pid: clients of @pid; kick_rank: the client that is @rank of
 * @group; set_log_level: to @text; reload: the configuration is read again. */
#define CHANGE_VERBS(V)                                                                            \
    V(drain) V(undrain) V(kick) V(kick_pid) V(kick_rank) V(set_log_level) V(reload)
/* What all nodes answer together: gather.c. */
#define GATHER_VERB "ranks"

#endif

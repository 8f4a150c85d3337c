/* verbs.h - the verbs of MSG_ADMIN. A row makes the name of a verb, and of the function fill_NAME()
 * in answers.c that fills its table. commctl.c says which word on the command line asks for which
 * verb; test_commctl.c compares the two. */
#ifndef COMMD_VERBS_H
#define COMMD_VERBS_H

#define ADMIN_VERBS(V)                                                                             \
    V(status)                                                                                      \
    V(nodes)                                                                                       \
    V(groups) V(clients) V(gpus) V(config) V(tuning) V(keys) V(events) V(tenants) V(log_level)
/* Verbs that change something: the core decides (core_change.c).
 *   drain, undrain  this node
 *   kick            ends @group, because of @text
 *   kick_pid        ends the clients of process @pid
 *   kick_rank       ends the client that is @rank of @group
 *   set_log_level   to @text
 *   reload          reads the configuration again */
#define CHANGE_VERBS(V)                                                                            \
    V(drain) V(undrain) V(kick) V(kick_pid) V(kick_rank) V(set_log_level) V(reload)
/* The verb that all nodes answer together: gather.c. */
#define GATHER_VERB "ranks"

#endif

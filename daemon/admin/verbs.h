/* verbs.h - what commd answers when it is asked for tables (MSG_ADMIN): a row makes the verb's name
 * and names the function in answers.c that fills its table. commctl.c says which words of people
 * ask for which verb; test_commctl.c compares the two. */
#ifndef COMMD_VERBS_H
#define COMMD_VERBS_H

#define ADMIN_VERBS(V) V(status) V(nodes) V(groups) V(clients) V(config) V(tuning)
/* What all nodes answer together: gather.c. */
#define GATHER_VERB "ranks"

#endif

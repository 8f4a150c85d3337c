/* p2p_api.h - messages, as the layers above see them: p2p_api.c. */
#ifndef COMMD_CLIENT_P2P_API_H
#define COMMD_CLIENT_P2P_API_H

#include "client/lib/coll/work.h"

struct mail_box;
enum p2p_waited { P2P_ENDED, P2P_LATE, P2P_INTERRUPTED };
int p2p_check(const struct membership *g, const struct commd_op *op);
int p2p_run(struct membership *g, const struct commd_op *op, struct commd_status *ret_status);
/* Begins @w->op and counts it in the group. COMMD_E_NOMEM: nothing was begun. */
int p2p_start(struct membership *g, struct commd_work *w);
/* Counts @w in the group without beginning it. p2p_begin_held() begins it, once the progress thread
 * watches the group. False: the group is being left. */
int p2p_hold(struct membership *g, struct commd_work *w);
bool p2p_begin_held(struct commd_work *w);
/* Called by the thread that waits. P2P_ENDED: the work is done or about to be. */
enum p2p_waited p2p_wait_work(struct commd_work *w, int64_t until_ms);
/* For people: a thread sleeps for @batch, or has stopped to sleep while @batch is pending. */
void p2p_batch_waited(struct commd_work *batch, bool sleeps);
/* Called by the progress thread. True: something moved. */
bool p2p_progress(struct membership *g, bool slow);
/* Messages are pending and no thread waits for any: the progress thread has to move them. */
bool p2p_unattended(struct membership *g);
struct mail_box *p2p_box(struct membership *g); /* its bell wakes threads that wait for messages */
/* Ends what is pending, and waits until no thread waits for a message of @g. */
void p2p_drop(struct membership *g);
void p2p_free(struct membership *g);

#endif

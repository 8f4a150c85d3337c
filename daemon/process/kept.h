/* kept.h - the manager's side of store.h: what a keeper has of its commd. */
#ifndef COMMD_KEPT_H
#define COMMD_KEPT_H

#include "daemon/process/store.h"

enum { KEPT_FDS_MAX = 8 }; /* of one message; one is right */

struct kept_fd {
    char name[STORE_NAME_MAX];
    int fd; /* owned */
};

struct kept {
    struct kept_fd *fds; /* owned */
    unsigned n, max;
    size_t name_bytes;
};

/* Takes all descriptors that this process may open; so also a next commd can have them. */
int kept_init(struct kept *kept);
void kept_fini(struct kept *kept);
/* @fd becomes the table's, also if it is closed because there is no room. Each name is there once:
 * the last one counts. */
void kept_put(struct kept *kept, const char *name, int fd);
/* A message of commd, and the descriptors that came with it, which become the table's. True: it is
 * about descriptors, and done. */
bool kept_message(struct kept *kept, const char *text, const int *fds, unsigned nfds);
/* In the process that is about to become commd: everything has the number there that it will have,
 * and the environment says so. @message: where commd sends to. */
int kept_hand_over(const struct kept *kept, int message);

#endif

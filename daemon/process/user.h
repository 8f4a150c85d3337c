/* user.h - commd --user: a commd that serves the user who has started it, on this node alone. */
#ifndef COMMD_USER_H
#define COMMD_USER_H

#include "shm/util/socket_path.h"

struct conf;

enum { USER_IDLE_MS = 60000 };

struct user_daemon {
    char dir[PLACE_MAX];
    int lock;  /* owned: held until the process ends */
    int log;   /* owned; -1 in the foreground */
    int ready; /* owned: pipe to the process that waits for us; -1: none waits */
};
#define USER_NONE ((struct user_daemon){.lock = -1, .log = -1, .ready = -1})

/* For a keeper of such a commd. Makes the user's directory, goes into the background if asked to,
 * and takes the lock. In the background only the new process returns; the old one waits for
 * user_kept_serves(), prints the pid of commd and ends. 0, or an exit code after having printed
 * why. */
int user_keep(struct user_daemon *user, bool background);
/* The commd @pid serves from now on: releases the terminal and the process that waits. */
void user_kept_serves(void *user, pid_t pid);

/* For commd itself: makes the user's directory and takes the lock, or what its keeper has of both.
 * 0, or an exit code after having printed why. */
int user_begin(struct user_daemon *user);
/* The configuration: as conf_load(). */
int user_conf(const struct user_daemon *user, struct conf **ret_conf, char **ret_error);
/* commd serves from now on: releases the terminal. 0 or an exit code. */
int user_ready(struct user_daemon *user);
void user_fini(struct user_daemon *user);

#endif

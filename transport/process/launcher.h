/* launcher.h - commd-engine --launcher: engines under a user of their own. See launcher.c. */
#ifndef COMMD_LAUNCHER_H
#define COMMD_LAUNCHER_H

/* Serves the connections of @listen_fd until it is closed or a signal ends the process; an exit
 * code. */
int launcher_run(int listen_fd);

#endif

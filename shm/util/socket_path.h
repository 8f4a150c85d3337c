/* socket_path.h - where a commd is found when its socket was not named: the system's, else the
 * user's own. Clients, commctl and a commd that serves one user must all find the same path. */
#ifndef COMMD_SOCKET_PATH_H
#define COMMD_SOCKET_PATH_H

#include "shm/util/base.h"

#define PLACE_SYSTEM_SOCKET "/run/commd/commd.sock"
#define PLACE_SOCKET        "commd.sock" /* in the user's own directory */
#define PLACE_LOG           "commd.log"
#define PLACE_LOCK          "commd.lock" /* held by the daemon as long as it lives */
#define PLACE_START         "start.lock" /* held by the client that starts one */

enum { PLACE_MAX = 96, PLACE_SOCKET_MAX = 108 /* of sockaddr_un.sun_path */ };

/* The user's own directory: $XDG_RUNTIME_DIR/commd where that variable names a directory that
 * is the user's alone, else /run/user/UID/commd where there is such a directory of the user, else
 * /tmp/commd-UID, or /tmp/commd-UID.1 ... where others have taken that. */
void place_own_dir(char ret_dir[PLACE_MAX]);
/* The directory, and the socket in it. */
void place_own_socket(char ret_dir[PLACE_MAX], char ret_path[PLACE_SOCKET_MAX]);

/* Opens @dir, which must be the user's alone: nobody else may have made it, or enter it. @make:
 * creates it first. Negative errno; *ret_why: what is wrong and what to do, static, NULL when
 * errno says it all (-ENOENT: there is none). */
int place_open_dir(const char *dir, bool make, int *ret_fd, const char **ret_why);

/* Connects to the daemon at @path, blocking, with @timeout_ms for a full backlog (0: none).
 * Negative errno; -ETIMEDOUT, -ENAMETOOLONG. */
int place_connect(const char *path, int64_t timeout_ms, int *ret_sock);
/* The same at the user's own socket, where nobody but the user may answer: -EPERM. */
int place_connect_own(const char *path, int64_t timeout_ms, int *ret_sock);

/* -errno of a place_connect(): nobody is there, so that another place may be tried. */
static inline bool place_is_empty(int error)
{
    return error == -ENOENT || error == -ECONNREFUSED || error == -ENOTDIR;
}

#endif

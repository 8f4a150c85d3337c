/* reset.h - ends a TCP connection of somebody who is given up. */
#ifndef COMMD_RESET_H
#define COMMD_RESET_H

#include <sys/socket.h>

/* close() of @fd drops what is unsent, and the kernel keeps nothing of the connection. After an
 * orderly close it keeps it for a minute, so that a crowd would leave tens of thousands of them,
 * each with a timer. */
static inline void reset_on_close(int fd)
{
    struct linger at_once = {.l_onoff = 1};

    setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
}

#endif

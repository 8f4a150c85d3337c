/* notify.h - the sd_notify protocol, spoken directly (no libsystemd). All calls do nothing
 * when NOTIFY_SOCKET is unset. */
#ifndef COMMD_NOTIFY_H
#define COMMD_NOTIFY_H

#include "shm/util/base.h"

/* Sends e.g. "READY=1\nSTATUS=2 of 3 nodes linked"; 0 or negative errno. */
int notify_send(const char *fmt, ...) _printf_(1, 2);
/* The same with a duplicate of @fd. */
int notify_send_fd(const char *text, int fd);
/* What NOTIFY_SOCKET begins with if the number of a socket follows, and no address. */
#define NOTIFY_FD_PREFIX "fd:"
/* A whole number that the manager has put into the environment. False: there is none. */
bool notify_variable(const char *name, uint64_t *ret_value);
/* The watchdog interval that systemd has set for this pid, in ms; half of it is a good period. 0:
 * no watchdog is set. */
uint64_t notify_watchdog_ms(void);

#endif

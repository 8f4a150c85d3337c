/* notify.h - the sd_notify protocol, spoken directly (no libsystemd). All calls do nothing
 * when NOTIFY_SOCKET is unset. */
#ifndef COMMD_NOTIFY_H
#define COMMD_NOTIFY_H

#include "shm/util/base.h"

/* Sends e.g. "READY=1\nSTATUS=2 of 3 nodes linked"; 0 or negative errno. */
int notify_send(const char *fmt, ...) _printf_(1, 2);
/* Has the service manager keep a duplicate of @fd, for the commd after us. It keeps one for each
 * name. */
int notify_store(const char *name, int fd);
/* How many descriptors the service manager has given to us. The first one is NOTIFY_FIRST_FD. */
enum { NOTIFY_FIRST_FD = 3 };
unsigned notify_inherited(void);
/* The watchdog interval that systemd has set for this pid, in ms; half of it is a good period. 0:
 * no watchdog is set. */
uint64_t notify_watchdog_ms(void);

#endif

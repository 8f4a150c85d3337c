/* notify.h - the sd_notify protocol, spoken directly (no libsystemd). All calls do nothing
 * when NOTIFY_SOCKET is unset. */
#ifndef COMMD_NOTIFY_H
#define COMMD_NOTIFY_H

#include "shm/util/base.h"

/* Sends e.g. "READY=1\nSTATUS=2 of 3 nodes linked"; 0 or negative errno. */
int notify_send(const char *fmt, ...) _printf_(1, 2);
/* The service manager keeps a duplicate of @fd while we restart, and gives it to the next
 * of us. One is kept of a name. */
int notify_store(const char *name, int fd);
/* How many descriptors it has given to us: those from NOTIFY_FIRST_FD on. */
enum { NOTIFY_FIRST_FD = 3 };
unsigned notify_inherited(void);
/* Watchdog interval that systemd expects for this pid, in ms (half of it is a good period);
 * 0 when no watchdog is set. */
uint64_t notify_watchdog_ms(void);

#endif

/* error.h - error codes, and the calling thread's last error. */
#ifndef COMMD_CLIENT_ERROR_H
#define COMMD_CLIENT_ERROR_H

#include <commd/commd.h>

#include "shm/util/base.h"

#define PUBLIC __attribute__((visibility("default")))

enum { LIMIT_TEXT = 24 };

struct commd_error *error_mine(void); /* this thread's */
/* Fills *e and returns @code. */
int error_set(struct commd_error *e, int code, const char *op, const char *fmt, ...) _printf_(4, 5);
/* A limit as the caller gave it, more or less: "20 s", "1500 ms". Returns @buf. */
const char *limit_text(int64_t ms, char buf[LIMIT_TEXT]);
/* The error for a daemon that cannot be reached at @path: @err is an errno. */
int error_no_daemon(const char *path, int err);

#endif

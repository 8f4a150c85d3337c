/* error.c - error codes and the calling thread's last error. */
#include <stdarg.h>
#include <stdio.h>

#include "client/lib/context/error.h"
#include "shm/util/socket_path.h"

static _Thread_local struct commd_error mine;

struct commd_error *error_mine(void)
{
    return &mine;
}

int error_set(struct commd_error *e, int code, const char *op, const char *fmt, ...)
{
    va_list ap;

    memset(e, 0, sizeof *e);
    e->code = code;
    e->rank = -1;
    snprintf(e->op, sizeof e->op, "%s", op);
    va_start(ap, fmt);
    vsnprintf(e->message, sizeof e->message, fmt, ap);
    va_end(ap);
    return code;
}

int error_no_daemon(const char *path, int err)
{
    const char *hint = "is commd running? systemctl status commd, or set COMMD_SOCKET";

    if (err == EACCES || err == EPERM)
        hint = "this user may not connect; see listen.socket_mode in commd.yaml";
    if (err == ENAMETOOLONG)
        return error_set(error_mine(), COMMD_E_INVALID, "connect",
                         "%s: longer than a socket path may be (%u bytes)", path,
                         PLACE_SOCKET_MAX - 1);
    return error_set(error_mine(), COMMD_E_NO_DAEMON, "connect", "%s: %s; %s", path, strerror(err),
                     hint);
}

PUBLIC const struct commd_error *commd_last_error(void)
{
    return &mine;
}

PUBLIC bool commd_error_breaks_group(int code)
{
    switch ((enum commd_result)code) {
    case COMMD_OK:
    case COMMD_E_INVALID:
    case COMMD_E_MISMATCH:
    case COMMD_E_QUOTA:
    case COMMD_E_NO_DAEMON:
    case COMMD_E_DENIED:
    case COMMD_E_NOMEM:
    case COMMD_E_FORKED:
    case COMMD_E_GPU_LOST:
        return false;
    case COMMD_E_TIMEOUT:
    case COMMD_E_RANK_LOST:
    case COMMD_E_NODE_LOST:
    case COMMD_E_ENGINE_LOST:
    case COMMD_E_ABORTED:
    case COMMD_E_PROTOCOL:
    case COMMD_E_INTERNAL:
    case COMMD_E_INTERRUPTED:
        return true;
    }
    return true; /* another rank says it, in words that we do not know */
}

PUBLIC const char *commd_strerror(int code)
{
    switch (code) {
    case COMMD_OK:
        return "success";
    case COMMD_E_INVALID:
        return "invalid argument";
    case COMMD_E_MISMATCH:
        return "ranks called different operations";
    case COMMD_E_QUOTA:
        return "limit reached";
    case COMMD_E_TIMEOUT:
        return "timed out";
    case COMMD_E_RANK_LOST:
        return "rank lost";
    case COMMD_E_NODE_LOST:
        return "node lost";
    case COMMD_E_ENGINE_LOST:
        return "engine lost";
    case COMMD_E_ABORTED:
        return "aborted";
    case COMMD_E_NO_DAEMON:
        return "no daemon";
    case COMMD_E_PROTOCOL:
        return "protocol error";
    case COMMD_E_DENIED:
        return "not allowed";
    case COMMD_E_NOMEM:
        return "out of memory";
    case COMMD_E_FORKED:
        return "used in a forked process";
    case COMMD_E_INTERNAL:
        return "internal error";
    case COMMD_E_INTERRUPTED:
        return "interrupted";
    case COMMD_E_GPU_LOST:
        return "GPU lost";
    default:
        return "unknown error";
    }
}

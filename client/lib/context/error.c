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

const char *limit_text(int64_t ms, char buf[LIMIT_TEXT])
{
    bool whole = ms % 1000 == 0;

    snprintf(buf, LIMIT_TEXT, "%lld %s", (long long)(whole ? ms / 1000 : ms), whole ? "s" : "ms");
    return buf;
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

static const struct {
    const char *text;
    bool breaks_group;
} codes[] = {
    [-COMMD_OK] = {"success", false},
    [-COMMD_E_INVALID] = {"invalid argument", false},
    [-COMMD_E_MISMATCH] = {"ranks called different operations", false},
    [-COMMD_E_QUOTA] = {"limit reached", false},
    [-COMMD_E_TIMEOUT] = {"timed out", true},
    [-COMMD_E_RANK_LOST] = {"rank lost", true},
    [-COMMD_E_NODE_LOST] = {"node lost", true},
    [-COMMD_E_ENGINE_LOST] = {"engine lost", true},
    [-COMMD_E_ABORTED] = {"aborted", true},
    [-COMMD_E_NO_DAEMON] = {"no daemon", false},
    [-COMMD_E_PROTOCOL] = {"protocol error", true},
    [-COMMD_E_DENIED] = {"not allowed", false},
    [-COMMD_E_NOMEM] = {"out of memory", false},
    [-COMMD_E_FORKED] = {"used in a forked process", false},
    [-COMMD_E_INTERNAL] = {"internal error", true},
    [-COMMD_E_INTERRUPTED] = {"interrupted", true},
    [-COMMD_E_GPU_LOST] = {"GPU lost", false},
};

static bool is_known(int code)
{
    return code <= 0 && (size_t) - (int64_t)code < ARRAY_LEN(codes) && codes[-code].text;
}

PUBLIC bool commd_error_breaks_group(int code)
{
    return !is_known(code) ||
           codes[-code].breaks_group; /* what another rank says may be anything */
}

PUBLIC const char *commd_strerror(int code)
{
    return is_known(code) ? codes[-code].text : "unknown error";
}

/* join_warn.c - a rank that waits for long in a join says so once on stderr, as a rank does that
 * waits for long in an operation: perhaps nobody looks at commctl. One rank of a node speaks for
 * all ranks that wait there. It holds the name of an abstract socket, which the kernel frees
 * however the rank ends.
 *
 * The group's home, which may be another node, knows which ranks are missing. The rank that speaks
 * asks the commd of its node, as commctl why does, and that commd asks the other nodes. The
 * question has a connection of its own, because on the context's connection only the join waits for
 * answers. A user may have few connections, so a user has one such connection at a time on a node.
 * If there is no answer in time the rank asks a few times more. Then it warns without the list. */
#include "client/lib/context/group.h"

#include <stddef.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>

#include "shm/util/socket_path.h"
#include "shm/util/hash.h"

enum { ASK_MS = 1500 }; /* commd gives the others half of it */

static bool question_answered(int sock, const struct msg *question, enum msg_type expected,
                              int64_t deadline, struct msg *ret_answer)
{
    const char *why = "";
    unsigned nfds;

    if (msg_send_fd(sock, question, NULL, 0, deadline) ||
        msg_recv_fd(sock, ret_answer, NULL, 0, &nfds, deadline, &why))
        return false;
    if (ret_answer->type == expected)
        return true;
    msg_fini(ret_answer);
    return false;
}

/* False: another process of this user at this commd holds @name and @size. A name that cannot be
 * had for another reason keeps nobody from speaking. */
static bool hold_name(const struct commd_context *ctx, const char *name, unsigned size, int *ret_fd)
{
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    /* of what may be longer than a name can be */
    uint64_t hash = hash_bytes(HASH_BEGIN, ctx->socket_path, strlen(ctx->socket_path) + 1);
    int len;

    hash = hash_bytes(hash, name, strlen(name) + 1);
    len = snprintf(un.sun_path + 1, sizeof un.sun_path - 1, "commd-waits-%u-%u-%016llx",
                   (unsigned)geteuid(), size, (unsigned long long)hash);
    *ret_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    return *ret_fd < 0 ||
           bind(*ret_fd, (struct sockaddr *)&un,
                (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)len)) == 0 ||
           errno != EADDRINUSE;
}

/* "" if there is no such cell. */
static const char *join_cell(const struct msg_table *t, uint32_t row, const char *column)
{
    for (uint32_t c = 0; c < t->ncolumns; c++)
        if (!strcmp(t->columns[c].key, column))
            return t->cells[row * t->ncolumns + c];
    return "";
}

/* "1,3-5", as the home says; "": it has not. */
static void missing_of(const struct msg_tables *tables, const char *name, unsigned size, char *text,
                       size_t len)
{
    for (uint32_t i = 0; i < tables->ntables; i++) {
        const struct msg_table *t = &tables->tables[i];

        for (uint32_t row = 0; row < t->nrows && !*text; row++)
            if (!strcmp(join_cell(t, row, "name"), name) &&
                !strcmp(join_cell(t, row, "state"), "joining") &&
                strtoul(join_cell(t, row, "uid"), NULL, 10) == geteuid() &&
                strtoul(join_cell(t, row, "size"), NULL, 10) == size)
                snprintf(text, len, "%s", join_cell(t, row, "missing"));
    }
}

/* False: no answer, or somebody else asks just now. */
static bool ask_missing(const struct commd_context *ctx, const struct msg_client_join *join,
                        char *text, size_t len)
{
    struct msg m = {.type = MSG_CLIENT_HELLO}, answer = {0};
    int64_t deadline = deadline_in(ASK_MS);
    _cleanup_(close_fdp) int turn = -1, sock = -1;

    text[0] = 0;
    if (!hold_name(ctx, "", 0, &turn) || place_connect(ctx->socket_path, ASK_MS, &sock))
        return false;
    m.client_hello =
        (struct msg_client_hello){.version = MSG_VERSION, .admin = 1, .program = "libcommd"};
    if (!question_answered(sock, &m, MSG_WELCOME, deadline, &answer))
        return false;
    msg_fini(&answer);
    m.type = MSG_ADMIN;
    m.admin = (struct msg_admin){.verb = "ranks"};
    snprintf(m.admin.group, sizeof m.admin.group, "%s", join->name);
    if (!question_answered(sock, &m, MSG_TABLES, deadline, &answer))
        return false;
    missing_of(&answer.tables, join->name, join->size, text, len);
    msg_fini(&answer);
    return true;
}

/* Which ranks live and which seats are free only the home knows. */
static void warn_recovery(const struct commd_context *ctx, const struct msg_client_join *join,
                          int64_t waited_ms)
{
    bool comes = join->recovery == MSG_RECOVERY_REJOIN;

    fprintf(
        stderr,
        "commd: pid %d on node %s has waited for %.1f s to %s group \"%s\": commctl why says for "
        "whom; usual causes: %s, they use another name or policy, or are of another job "
        "(COMMD_JOB, or what their launcher says)\n",
        (int)getpid(), ctx->node, (double)waited_ms / 1000, comes ? "rejoin" : "recover",
        join->name,
        comes ? "its ranks do not recover it and wait for new processes"
              : "ranks that live do not recover it, or are blocked elsewhere");
}

bool join_warn(const struct commd_context *ctx, const struct msg_client_join *join,
               int64_t waited_ms, bool last, int *speaker)
{
    time_t since = time(NULL) - waited_ms / 1000;
    char missing[200], at[16] = "";
    struct tm tm;

    if (*speaker < 0 && !hold_name(ctx, join->name, join->size, speaker)) {
        close_fdp(speaker);
        return true;
    }
    if (join->recovery) {
        warn_recovery(ctx, join, waited_ms);
        return true;
    }
    if (!ask_missing(ctx, join, missing, sizeof missing) && !last)
        return false;
    if (localtime_r(&since, &tm))
        strftime(at, sizeof at, "%H:%M:%S", &tm);
    fprintf(
        stderr,
        "commd: rank %u has waited for %.1f s, since %s, to join group \"%s\" of %u ranks on "
        "node %s: %s%s; usual causes: they have not begun, they use another name or size, or are "
        "of another job (COMMD_JOB, or what their launcher says), they run as another user than "
        "%u, their node is not in this cluster (commctl nodes) or "
        "they have another commd than %s\n",
        join->rank, (double)waited_ms / 1000, at, join->name, join->size, ctx->node,
        missing[0] ? "ranks that are not here: " : "some ranks are not here",
        missing[0] ? missing : " (commctl why says which)", (unsigned)geteuid(), ctx->socket_path);
    return true;
}

/* join_warn.c - a rank that waits for long in a join says so, once, on stderr, as one does in an
 * operation: nobody may be looking at commctl.
 *
 * Who is missing knows the group's home, which may be another node. The commd of this node is asked
 * as commctl asks it, over a connection of its own, since nobody but the join waits for answers on
 * ours. What it does not say, or not in time, is left out. */
#include "client/lib/context/group.h"

#include <stdio.h>
#include <time.h>

#include "shm/util/socket_path.h"

enum { ASK_MS = 1000 };

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

/* "" if there is no such cell. */
static const char *join_cell(const struct msg_table *t, uint32_t row, const char *column)
{
    for (uint32_t c = 0; c < t->ncolumns; c++)
        if (!strcmp(t->columns[c].key, column))
            return t->cells[row * t->ncolumns + c];
    return "";
}

/* "1,3-5", or "": not known here. */
static void missing_of(const struct msg_tables *tables, const char *name, unsigned size, char *text,
                       size_t len)
{
    for (uint32_t i = 0; i < tables->ntables; i++) {
        const struct msg_table *t = &tables->tables[i];

        for (uint32_t row = 0; row < t->nrows; row++)
            if (!strcmp(join_cell(t, row, "name"), name) &&
                !strcmp(join_cell(t, row, "state"), "joining") &&
                strtoul(join_cell(t, row, "uid"), NULL, 10) == geteuid() &&
                strtoul(join_cell(t, row, "size"), NULL, 10) == size)
                snprintf(text, len, "%s", join_cell(t, row, "missing"));
    }
}

static void ask_missing(const char *socket, const struct msg_client_join *join, char *text,
                        size_t len)
{
    struct msg m = {.type = MSG_CLIENT_HELLO}, answer = {0};
    int64_t deadline = deadline_in(ASK_MS);
    _cleanup_(close_fdp) int sock = -1;

    text[0] = 0;
    if (place_connect(socket, ASK_MS, &sock))
        return;
    m.client_hello =
        (struct msg_client_hello){.version = MSG_VERSION, .admin = 1, .program = "libcommd"};
    if (!question_answered(sock, &m, MSG_WELCOME, deadline, &answer))
        return;
    msg_fini(&answer);
    m.type = MSG_ADMIN;
    m.admin = (struct msg_admin){.verb = "groups"};
    if (!question_answered(sock, &m, MSG_TABLES, deadline, &answer))
        return;
    missing_of(&answer.tables, join->name, join->size, text, len);
    msg_fini(&answer);
}

void join_warn(const struct commd_context *ctx, const struct msg_client_join *join,
               int64_t waited_ms)
{
    time_t since = time(NULL) - waited_ms / 1000;
    char missing[200], at[16] = "";
    struct tm tm;

    ask_missing(ctx->socket_path, join, missing, sizeof missing);
    if (localtime_r(&since, &tm))
        strftime(at, sizeof at, "%H:%M:%S", &tm);
    fprintf(stderr,
            "commd: rank %u has waited for %.1f s, since %s, to join group \"%s\" of %u ranks on "
            "node %s: %s%s; usual causes: they have not begun, they use another name or size, they "
            "run as another user than %u, their node is not in this cluster (commctl nodes) or "
            "they have another commd than %s\n",
            join->rank, (double)waited_ms / 1000, at, join->name, join->size, ctx->node,
            missing[0] ? "ranks that are not here: " : "some ranks are not here",
            missing[0] ? missing : " (commctl groups on the other nodes says which)",
            (unsigned)geteuid(), ctx->socket_path);
}

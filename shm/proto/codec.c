/* codec.c - what needs no schema: the frame's header, the end of a message, names.
 *
 * codec_priv.h   the field lists all of this is made from
 * codec_check.c  what each field may hold
 * codec_decode.c frame -> struct msg      codec_encode.c struct msg -> frame
 * codec_arena.c  their memory             msg_io.c       frames over a UNIX socket */
#include "shm/proto/codec_priv.h"

const char *codec_strerror(int r)
{
    switch ((enum codec_result)r) {
    case CODEC_OK:
        return "no error";
    case CODEC_E_MORE:
        return "truncated frame";
    case CODEC_E_MAGIC:
        return "not a commd frame";
    case CODEC_E_VERSION:
        return "another version of commd's protocol";
    case CODEC_E_TOO_LARGE:
        return "frame too large";
    case CODEC_E_CONTENT:
        return "malformed message";
    case CODEC_E_NOMEM:
        return "out of memory";
    }
    return "unknown error";
}

/* Judges as soon as there is something to judge: a stranger is turned away at its first byte,
 * not after it has sent a header's worth. */
int codec_frame_check(const void *buf, size_t len, size_t max, size_t *ret_need)
{
    const uint8_t *p = buf;
    uint32_t payload;

    if ((len > 0 && p[0] != 'c') || (len > 1 && p[1] != 'd'))
        return CODEC_E_MAGIC;
    if (len > 2 && p[2] != CODEC_FORMAT)
        return CODEC_E_VERSION;
    if (len > 3 && p[3] != 0)
        return CODEC_E_MAGIC;
    if (len < CODEC_HEADER) {
        *ret_need = CODEC_HEADER;
        return CODEC_E_MORE;
    }
    payload = p[4] | (uint32_t)p[5] << 8 | (uint32_t)p[6] << 16 | (uint32_t)p[7] << 24;
    if (payload > max)
        return CODEC_E_TOO_LARGE;
    *ret_need = CODEC_HEADER + (size_t)payload;
    return len < *ret_need ? CODEC_E_MORE : CODEC_OK;
}

static void table_fini(struct msg_table *table)
{
    size_t cells = table->cells ? (size_t)table->nrows * table->ncolumns : 0;

    for (size_t i = 0; i < cells; i++)
        free(table->cells[i]);
    free(table->cells);
    free(table->columns);
}

void msg_fini(struct msg *msg)
{
    if (msg->type == MSG_JOINED) {
        free(msg->joined.members);
        free(msg->joined.nodes);
    } else if (msg->type == MSG_COMMIT) {
        free(msg->commit.members);
        free(msg->commit.nodes);
    } else if (msg->type == MSG_JOIN_NEWS) {
        free(msg->join_news.gone);
    } else if (msg->type == MSG_CLIENT_JOIN) {
        free(msg->client_join.gone);
    } else if (msg->type == MSG_CLIENT_HELLO) {
        free(msg->client_hello.kept);
        free(msg->client_hello.asks);
    } else if (msg->type == MSG_WELCOME) {
        free(msg->welcome.kept);
    } else if (msg->type == MSG_BOARD_ADD) {
        free(msg->board_add.peers);
        free(msg->board_add.rank_node);
        free(msg->board_add.clients);
    } else if ((msg->type == MSG_TABLES || msg->type == MSG_RANKS_HERE) && msg->tables.tables) {
        for (uint32_t i = 0; i < msg->tables.ntables; i++)
            table_fini(&msg->tables.tables[i]);
        free(msg->tables.tables);
    }
    explicit_bzero(msg, sizeof(*msg)); /* tokens and keys */
}

const char *msg_type_name(enum msg_type type)
{
    switch (type) {
    case MSG_NONE:
        return "NONE";
#define TYPE_NAME(name, field, s)                                                                  \
    case MSG_##name:                                                                               \
        return #name;
        CODEC_TYPES(TYPE_NAME)
    }
    return "?";
}

const char *cause_name(unsigned cause)
{
    static const char *const names[CAUSE_COUNT] = {
        [CAUSE_NONE] = "none",
        [CAUSE_INVALID] = "invalid argument",
        [CAUSE_MISMATCH] = "mismatch",
        [CAUSE_QUOTA] = "quota exceeded",
        [CAUSE_TIMEOUT] = "timeout",
        [CAUSE_RANK_LOST] = "rank lost",
        [CAUSE_NODE_LOST] = "node lost",
        [CAUSE_ENGINE_LOST] = "engine lost",
        [CAUSE_ABORTED] = "aborted",
        [CAUSE_NO_DAEMON] = "no daemon",
        [CAUSE_PROTOCOL] = "protocol error",
        [CAUSE_DENIED] = "denied",
        [CAUSE_NOMEM] = "out of memory",
        [CAUSE_INTERNAL] = "internal error",
        [CAUSE_LEFT] = "left",
    };

    return cause < CAUSE_COUNT && names[cause] ? names[cause] : "?";
}

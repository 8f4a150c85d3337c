/* codec_encode.c - a struct msg becomes a frame.
 *
 * Pure. The rules of codec_check.c come first: what the other side would refuse is -EINVAL
 * here, a bug of ours that is found at home. The one exception is text for people (`text`,
 * cells of tables): it quotes strerror(), library messages and what other processes sent, and
 * snprintf() may have cut it within a character. To fail a message about an error for that
 * would hide the error, so unclean bytes become '?' instead; the receiver, and the log and the
 * terminal behind it, never see them.
 *
 * The generated structs point into @msg; only lists that need another shape are copied, into
 * an arena without a limit. */
#include "shm/proto/codec_priv.h"
#include "shm/proto/commd.pb-c.h"

static int put_chars(const char *from, ProtobufCBinaryData *to)
{
    to->data = (uint8_t *)from; /* protobuf-c only reads it */
    to->len = strlen(from);
    return 0;
}

static int put_text(struct codec_arena *arena, const char *from, ProtobufCBinaryData *to)
{
    size_t bad, at, len = strlen(from);
    char *copy;

    if (codec_text_clean(from, len, &bad))
        return put_chars(from, to);
    copy = arena_alloc(arena, len + 1);
    if (!copy)
        return -ENOMEM;
    memcpy(copy, from, len + 1);
    for (at = 0; !codec_text_clean(copy + at, len - at, &bad);) {
        at += bad;
        copy[at++] = '?';
    }
    return put_chars(copy, to);
}

static int put_bytes(const uint8_t *from, size_t len, ProtobufCBinaryData *to)
{
    to->data = (uint8_t *)from;
    to->len = len;
    return 0;
}

static int put_nodes(struct codec_arena *arena, char (*nodes)[MSG_NAME_MAX], uint32_t n,
                     ProtobufCBinaryData **ret_list, size_t *ret_n)
{
    ProtobufCBinaryData *list = arena_alloc(arena, n * sizeof(*list));

    if (!list)
        return -ENOMEM;
    for (uint32_t i = 0; i < n; i++)
        put_chars(nodes[i], &list[i]);
    *ret_list = list;
    *ret_n = n;
    return 0;
}

/* The wire's three parallel lists: one row of each per rank. */
struct member_lists {
    uint32_t *node, *pid, *was;
    uint64_t *join;
    size_t njoin, nwas;
};

static int put_members(struct codec_arena *arena, const struct msg_member *members, uint32_t n,
                       struct member_lists *ret_lists)
{
    struct member_lists l = {
        .node = arena_alloc(arena, n * sizeof(*l.node)),
        .pid = arena_alloc(arena, n * sizeof(*l.pid)),
        .join = arena_alloc(arena, n * sizeof(*l.join)),
        .was = arena_alloc(arena, n * sizeof(*l.was)),
    };

    if (!l.node || !l.pid || !l.join || !l.was)
        return -ENOMEM;
    for (uint32_t i = 0; i < n; i++) {
        l.node[i] = members[i].node;
        l.pid[i] = members[i].pid;
        l.join[i] = members[i].join;
        l.was[i] = members[i].was;
        if (l.join[i])
            l.njoin = n;
        if (l.was[i])
            l.nwas = n;
    }
    *ret_lists = l;
    return 0;
}

static int put_columns(struct codec_arena *arena, const struct msg_table *table, Commd__Table *w)
{
    Commd__Column *columns = arena_alloc(arena, table->ncolumns * sizeof(*columns));

    w->columns = arena_alloc(arena, table->ncolumns * sizeof(*w->columns));
    if (!columns || !w->columns)
        return -ENOMEM;
    w->n_columns = table->ncolumns;
    for (uint32_t i = 0; i < table->ncolumns; i++) {
        columns[i] = (Commd__Column)COMMD__COLUMN__INIT;
        put_chars(table->columns[i].key, &columns[i].key);
        put_chars(table->columns[i].title, &columns[i].title);
        columns[i].type = table->columns[i].type;
        w->columns[i] = &columns[i];
    }
    return 0;
}

static int put_table(struct codec_arena *arena, const struct msg_table *table, Commd__Table *w)
{
    size_t n = (size_t)table->nrows * table->ncolumns;
    int r;

    *w = (Commd__Table)COMMD__TABLE__INIT;
    put_chars(table->name, &w->name);
    w->nrows = table->nrows;
    r = put_columns(arena, table, w);
    if (r)
        return r;
    w->cells = arena_alloc(arena, n * sizeof(*w->cells));
    if (!w->cells)
        return -ENOMEM;
    w->n_cells = n;
    for (size_t i = 0; i < n; i++) {
        r = put_text(arena, table->cells[i] ? table->cells[i] : "", &w->cells[i]);
        if (r)
            return r;
    }
    return 0;
}

static int put_tables(struct codec_arena *arena, const struct msg_tables *m, Commd__Tables *w)
{
    Commd__Table *tables = arena_alloc(arena, m->ntables * sizeof(*tables));
    int r;

    w->tables = arena_alloc(arena, m->ntables * sizeof(*w->tables));
    if (!tables || !w->tables)
        return -ENOMEM;
    w->n_tables = m->ntables;
    for (uint32_t i = 0; i < m->ntables; i++) {
        r = put_table(arena, &m->tables[i], &tables[i]);
        if (r)
            return r;
        w->tables[i] = &tables[i];
    }
    return 0;
}

/* board_add: the lists point into the message. */
static int put_indexes(const struct msg_board_add *m, Commd__BoardAdd *w)
{
    w->peers = m->peers;
    w->n_peers = m->nnodes;
    w->rank_node = m->rank_node;
    w->n_rank_node = m->world;
    w->clients = m->clients;
    w->n_clients = m->nclients;
    return 0;
}

#define X_NUM(f)    (w->f = m->f, 0)
#define X_FLAG      X_NUM
#define X_CAUSE     X_NUM
#define X_RANK      X_NUM
#define X_RANKREF   X_NUM
#define X_NODE      X_NUM
#define X_NODEREF   X_NUM
#define X_GPU       X_NUM
#define X_GPUS      X_NUM
#define X_SEAT(f)   (w->f = m->f, w->size = m->size, w->recovery = m->recovery, 0)
#define X_OWN       X_NUM
#define X_NAME(f)   put_chars(m->f, &w->f)
#define X_OPTNAME   X_NAME
#define X_TEXT(f)   put_text(arena, m->f, &w->f)
#define X_TOKEN(f)  put_bytes(m->f, sizeof(m->f), &w->f)
#define X_KEY(f)    put_bytes(m->f, sizeof(m->f), &w->f)
#define X_KEPT(f)   (w->f = m->f, w->n_##f = m->n##f, 0)
#define X_ASKS      X_KEPT
#define X_RANKS     X_KEPT
#define X_ADDR(f)   put_bytes(m->f, m->f##_len, &w->f)
#define X_NODES(f)  put_nodes(arena, m->f, m->nnodes, &w->f, &w->n_##f)
#define X_SORTED(f) 0
#define X_MEMBERS(f)                                                                               \
    ({                                                                                             \
        struct member_lists l = {NULL};                                                            \
        int q = put_members(arena, m->f, m->size, &l);                                             \
        w->member_node = l.node;                                                                   \
        w->member_pid = l.pid;                                                                     \
        w->member_join = l.join;                                                                   \
        w->n_member_node = w->n_member_pid = q ? 0 : m->size;                                      \
        w->n_member_join = l.njoin;                                                                \
        w->member_was = l.was;                                                                     \
        w->n_member_was = l.nwas;                                                                  \
        q;                                                                                         \
    })
#define X_INDEXES(f) put_indexes(m, w)
#define X_TABLES(f)  put_tables(arena, m, w)
#define PUT(kind, f)                                                                               \
    if (r == 0)                                                                                    \
        r = X_##kind(f);

#define PUT_STRUCT(s, schema, constant)                                                            \
    static int put_##s##_msg(struct codec_arena *arena, const struct msg_##s *m,                   \
                             Commd__##schema *w)                                                   \
    {                                                                                              \
        int r = 0;                                                                                 \
                                                                                                   \
        *w = (Commd__##schema)COMMD__##constant##__INIT;                                           \
        FIELDS_##s(PUT) return r;                                                                  \
    }
CODEC_STRUCTS(PUT_STRUCT)

static int put_msg(struct codec_arena *arena, const struct msg *msg, Commd__Envelope *env)
{
    env->body_case = (Commd__Envelope__BodyCase)msg->type;
    switch (msg->type) {
    case MSG_NONE:
        return -EINVAL;
#define PUT_TYPE(name, field, s)                                                                   \
    case MSG_##name:                                                                               \
        env->field = arena_alloc(arena, sizeof(*env->field));                                      \
        return env->field ? put_##s##_msg(arena, &msg->s, env->field) : -ENOMEM;
        CODEC_TYPES(PUT_TYPE)
    }
    return -EINVAL;
}

int codec_encode(const struct msg *msg, void **ret_frame, size_t *ret_len)
{
    _cleanup_(arena_fini) struct codec_arena arena;
    Commd__Envelope env = COMMD__ENVELOPE__INIT;
    uint8_t *frame;
    size_t len;
    int r;

    arena_init(&arena, SIZE_MAX);
    if (!codec_check_msg(msg))
        return -EINVAL;
    r = put_msg(&arena, msg, &env);
    if (r)
        return r;
    len = protobuf_c_message_get_packed_size(&env.base);
    if (len > CODEC_MAX_FRAME)
        return -EINVAL;
    frame = malloc(CODEC_HEADER + len);
    if (!frame)
        return -ENOMEM;
    frame[0] = 'c';
    frame[1] = 'd';
    frame[2] = CODEC_FORMAT;
    frame[3] = 0;
    for (int i = 0; i < 4; i++)
        frame[4 + i] = (uint8_t)(len >> (8 * i));
    protobuf_c_message_pack(&env.base, frame + CODEC_HEADER);
    *ret_frame = frame;
    *ret_len = CODEC_HEADER + len;
    return 0;
}

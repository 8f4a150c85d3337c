/* codec_decode.c - a frame from a stranger becomes a struct msg, or an error and nothing else.
 *
 * Pure: no clock, no I/O. Four gates, cheapest first:
 *   1. the header (codec_frame_check);
 *   2. the envelope's first tag: the kind must be known and, unless it has lists, small. So a
 *      hostile frame costs nothing before its kind could justify its size;
 *   3. protobuf-c, in an arena whose limit is proportional to the frame (codec_arena.c);
 *   4. copying into the struct, where strings and lists must fit (refused, never cut), and
 *      the rules of codec_check.c on the result.
 * Lists are allocated only after their length was checked. Whatever fails, the output is
 * untouched and nothing is left allocated. */
#include "shm/proto/codec_priv.h"
#include "shm/proto/commd.pb-c.h"

enum {
    /* What protobuf-c may allocate per byte of payload. A list of empty strings is the worst
     * honest case: 2 bytes on the wire; in memory 16 for the entry and, while it parses,
     * 40 (ScannedMember) in arrays that grow by doubling. */
    ARENA_PER_BYTE = 96,
    ARENA_BASE = 32 << 10,
    ARENA_MAX = 96 << 20,
};

#define SAME_NUMBER(name, field, s)                                                                \
    _Static_assert((int)COMMD__ENVELOPE__BODY_##name == (int)MSG_##name, #name);
CODEC_TYPES(SAME_NUMBER)

static int get_chars(const ProtobufCBinaryData *from, char *to, size_t size)
{
    if (from->len >= size || (from->len && memchr(from->data, 0, from->len)))
        return CODEC_E_CONTENT;
    if (from->len)
        memcpy(to, from->data, from->len);
    to[from->len] = 0;
    return CODEC_OK;
}

static int get_text(const ProtobufCBinaryData *from, char *to, size_t size)
{
    size_t bad;
    int r = get_chars(from, to, size);

    if (!r && !codec_text_clean(to, from->len, &bad))
        r = CODEC_E_CONTENT;
    return r;
}

static int get_bytes(const ProtobufCBinaryData *from, void *to, size_t size)
{
    if (from->len > size)
        return CODEC_E_CONTENT;
    if (from->len)
        memcpy(to, from->data, from->len);
    return CODEC_OK;
}

static int get_nodes(const ProtobufCBinaryData *from, size_t n, char (**ret_nodes)[MSG_NAME_MAX],
                     uint32_t *ret_nnodes)
{
    _cleanup_(freep) char(*nodes)[MSG_NAME_MAX] = NULL;
    int r;

    if (n < 1 || n > MSG_MAX_NODES)
        return CODEC_E_CONTENT;
    nodes = calloc(n, sizeof(*nodes));
    if (!nodes)
        return CODEC_E_NOMEM;
    for (size_t i = 0; i < n; i++) {
        r = get_chars(&from[i], nodes[i], sizeof(nodes[i]));
        if (r)
            return r;
    }
    *ret_nodes = steal_ptr(nodes);
    *ret_nnodes = (uint32_t)n;
    return CODEC_OK;
}

/* Four parallel lists; the last two may be left out. */
static int get_members(const uint32_t *node, size_t n, const uint32_t *pid, size_t npid,
                       const uint64_t *join, size_t njoin, const uint32_t *was, size_t nwas,
                       struct msg_member **ret_members, uint32_t *ret_size)
{
    struct msg_member *members;

    if (n < 1 || n > MSG_MAX_RANKS || npid != n || (njoin && njoin != n) || (nwas && nwas != n))
        return CODEC_E_CONTENT;
    members = calloc(n, sizeof(*members));
    if (!members)
        return CODEC_E_NOMEM;
    for (size_t i = 0; i < n; i++) {
        members[i].node = node[i];
        members[i].pid = pid[i];
        members[i].join = njoin ? join[i] : 0;
        members[i].was = nwas ? was[i] : 0;
    }
    *ret_members = members;
    *ret_size = (uint32_t)n;
    return CODEC_OK;
}

static int get_indexes(const uint32_t *from, size_t n, size_t max, uint32_t **ret_list,
                       uint32_t *ret_n)
{
    uint32_t *list;

    if (n < 1 || n > max)
        return CODEC_E_CONTENT;
    list = malloc(n * sizeof(*list));
    if (!list)
        return CODEC_E_NOMEM;
    memcpy(list, from, n * sizeof(*list));
    *ret_list = list;
    *ret_n = (uint32_t)n;
    return CODEC_OK;
}

static int get_kept(const uint64_t *from, size_t n, uint64_t **ret_list, uint32_t *ret_n)
{
    uint64_t *list;

    if (n > MSG_MAX_KEPT)
        return CODEC_E_CONTENT;
    if (!n)
        return CODEC_OK;
    list = malloc(n * sizeof(*list));
    if (!list)
        return CODEC_E_NOMEM;
    memcpy(list, from, n * sizeof(*list));
    *ret_list = list;
    *ret_n = (uint32_t)n;
    return CODEC_OK;
}

static int get_columns(const Commd__Table *w, struct msg_table *table)
{
    int r;

    if (w->n_columns < 1 || w->n_columns > CODEC_MAX_COLUMNS)
        return CODEC_E_CONTENT;
    table->columns = calloc(w->n_columns, sizeof(*table->columns));
    if (!table->columns)
        return CODEC_E_NOMEM;
    table->ncolumns = (uint32_t)w->n_columns;
    for (uint32_t i = 0; i < table->ncolumns; i++) {
        struct msg_column *column = &table->columns[i];

        column->type = w->columns[i]->type;
        r = get_chars(&w->columns[i]->key, column->key, sizeof(column->key));
        if (!r)
            r = get_chars(&w->columns[i]->title, column->title, sizeof(column->title));
        if (r)
            return r;
    }
    return CODEC_OK;
}

static int get_cell(const ProtobufCBinaryData *from, char **ret_cell)
{
    char *cell = malloc(from->len + 1);
    int r;

    if (!cell)
        return CODEC_E_NOMEM;
    r = get_text(from, cell, from->len + 1);
    if (r) {
        free(cell);
        return r;
    }
    *ret_cell = cell;
    return CODEC_OK;
}

/* Half-filled tables are the caller's to free: msg_fini() takes them as they are. */
static int get_table(const Commd__Table *w, struct msg_table *table)
{
    size_t cells;
    int r;

    r = get_chars(&w->name, table->name, sizeof(table->name));
    if (!r)
        r = get_columns(w, table);
    if (r)
        return r;
    if (mul_overflows(table->ncolumns, w->nrows, &cells) || cells != w->n_cells ||
        cells > MSG_MAX_CELLS)
        return CODEC_E_CONTENT;
    table->cells = calloc(MAX(cells, (size_t)1), sizeof(*table->cells));
    if (!table->cells)
        return CODEC_E_NOMEM;
    table->nrows = w->nrows;
    for (size_t i = 0; i < cells; i++) {
        r = get_cell(&w->cells[i], &table->cells[i]);
        if (r)
            return r;
    }
    return CODEC_OK;
}

static int get_tables(const Commd__Tables *w, struct msg_tables *m)
{
    int r;

    if (w->n_tables > CODEC_MAX_TABLES)
        return CODEC_E_CONTENT;
    if (w->n_tables == 0)
        return CODEC_OK;
    m->tables = calloc(w->n_tables, sizeof(*m->tables));
    if (!m->tables)
        return CODEC_E_NOMEM;
    m->ntables = (uint32_t)w->n_tables;
    for (uint32_t i = 0; i < m->ntables; i++) {
        r = get_table(w->tables[i], &m->tables[i]);
        if (r)
            return r;
    }
    return CODEC_OK;
}

static int get_board_lists(const Commd__BoardAdd *w, struct msg_board_add *m)
{
    int r = get_indexes(w->peers, w->n_peers, MSG_MAX_NODES, &m->peers, &m->nnodes);

    if (!r)
        r = get_indexes(w->rank_node, w->n_rank_node, MSG_MAX_RANKS, &m->rank_node, &m->world);
    if (!r && w->n_clients)
        r = get_indexes(w->clients, w->n_clients, MSG_MAX_RANKS, &m->clients, &m->nclients);
    return r;
}

#define X_NUM(f)  (m->f = w->f, CODEC_OK)
#define X_FLAG(f) (m->f = !!w->f, CODEC_OK)
#define X_CAUSE   X_NUM
#define X_RANK    X_NUM
#define X_RANKREF X_NUM
#define X_NODE    X_NUM
#define X_NODEREF X_NUM
#define X_GPU     X_NUM
#define X_GPUS    X_NUM
#define X_SEAT(f) (m->f = w->f, m->size = w->size, m->recovery = w->recovery, CODEC_OK)
#define X_OWN     X_NUM
#define X_NAME(f) get_chars(&w->f, m->f, sizeof(m->f))
#define X_OPTNAME X_NAME
#define X_TEXT(f) get_text(&w->f, m->f, sizeof(m->f))
#define X_TOKEN(f)                                                                                 \
    (w->f.len == sizeof(m->f) ? get_bytes(&w->f, m->f, sizeof(m->f)) : CODEC_E_CONTENT)
#define X_KEY(f)                                                                                   \
    (!w->f.len || w->f.len == sizeof(m->f) ? get_bytes(&w->f, m->f, sizeof(m->f)) : CODEC_E_CONTENT)
#define X_KEPT(f) get_kept(w->f, w->n_##f, &m->f, &m->n##f)
#define X_ASKS(f) (w->n_##f ? get_indexes(w->f, w->n_##f, MSG_MAX_ASKS, &m->f, &m->n##f) : 0)
#define X_RANKS(f)                                                                                 \
    (w->n_##f ? get_indexes(w->f, w->n_##f, MSG_MAX_RANKS, &m->f, &m->n##f) : CODEC_OK)
#define X_ADDR(f)   (m->f##_len = (uint32_t)w->f.len, get_bytes(&w->f, m->f, sizeof(m->f)))
#define X_NODES(f)  get_nodes(w->f, w->n_##f, &m->f, &m->nnodes)
#define X_SORTED(f) CODEC_OK
#define X_MEMBERS(f)                                                                               \
    get_members(w->member_node, w->n_member_node, w->member_pid, w->n_member_pid, w->member_join,  \
                w->n_member_join, w->member_was, w->n_member_was, &m->f, &m->size)
#define X_INDEXES(f) get_board_lists(w, m)
#define X_TABLES(f)  get_tables(w, m)
#define GET(kind, f)                                                                               \
    if (r == CODEC_OK)                                                                             \
        r = X_##kind(f);

#define GET_STRUCT(s, schema, constant)                                                            \
    static int get_##s##_msg(const Commd__##schema *w, struct msg_##s *m)                          \
    {                                                                                              \
        int r = CODEC_OK;                                                                          \
                                                                                                   \
        FIELDS_##s(GET) return r;                                                                  \
    }
CODEC_STRUCTS(GET_STRUCT)

/* @msg is zeroed and has its type; on failure it may be half filled. */
static int get_msg(const Commd__Envelope *env, struct msg *msg)
{
    switch (msg->type) {
    case MSG_NONE:
        return CODEC_E_CONTENT;
#define GET_TYPE(name, field, s)                                                                   \
    case MSG_##name:                                                                               \
        return get_##s##_msg(env->field, &msg->s);
        CODEC_TYPES(GET_TYPE)
    }
    return CODEC_E_CONTENT;
}

static bool type_known(uint64_t type)
{
    switch (type) {
#define KNOWN_TYPE(name, field, s) case MSG_##name:
        CODEC_TYPES(KNOWN_TYPE)
        return true;
    }
    return false;
}

static bool type_has_lists(enum msg_type type)
{
    return type == MSG_CLIENT_HELLO || type == MSG_CLIENT_JOIN || type == MSG_WELCOME ||
           type == MSG_JOINED || type == MSG_COMMIT || type == MSG_JOIN_NEWS ||
           type == MSG_TABLES || type == MSG_RANKS_HERE || type == MSG_BOARD_ADD;
}

/* The tag of the envelope's first field: a base-128 varint, number << 3 | wire type. Two bytes
 * hold every number we use. */
static enum msg_type peek_type(const uint8_t *payload, size_t len)
{
    uint64_t tag;

    if (len < 1 || (payload[0] >= 0x80 && len < 2))
        return MSG_NONE;
    tag = payload[0];
    if (tag >= 0x80)
        tag = (tag & 0x7f) | (uint64_t)payload[1] << 7;
    if ((tag & 7) != PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED || !type_known(tag >> 3))
        return MSG_NONE;
    return (enum msg_type)(tag >> 3);
}

static void *unpack_alloc(void *arena, size_t size)
{
    return arena_alloc(arena, size);
}

static void unpack_free(void *arena, void *p)
{
    /* The arena goes as a whole. */
}

int codec_decode(const void *frame, size_t len, struct msg *ret_msg)
{
    _cleanup_(arena_fini) struct codec_arena arena;
    _cleanup_(msg_fini) struct msg msg;
    ProtobufCAllocator allocator = {unpack_alloc, unpack_free, &arena};
    const uint8_t *payload = (const uint8_t *)frame + CODEC_HEADER;
    const Commd__Envelope *env;
    enum msg_type type;
    size_t need;
    int r;

    memset(&msg, 0, sizeof(msg)); /* not = {}: that need not reach the union's larger members */
    arena_init(&arena, 0);
    r = codec_frame_check(frame, len, CODEC_MAX_FRAME, &need);
    if (r)
        return r;
    if (need != len)
        return CODEC_E_CONTENT;
    len -= CODEC_HEADER;
    type = peek_type(payload, len);
    if (type == MSG_NONE || (len > CODEC_MAX_SMALL && !type_has_lists(type)))
        return CODEC_E_CONTENT;
    arena.limit = MIN(len * ARENA_PER_BYTE + ARENA_BASE, (size_t)ARENA_MAX);
    env = (const Commd__Envelope *)protobuf_c_message_unpack(&commd__envelope__descriptor,
                                                             &allocator, len, payload);
    if (!env)
        return arena.oom ? CODEC_E_NOMEM : CODEC_E_CONTENT;
    if ((int)env->body_case != (int)type)
        return CODEC_E_CONTENT; /* a second body of another kind */
    msg.type = type;
    r = get_msg(env, &msg);
    if (!r && !codec_check_msg(&msg))
        r = CODEC_E_CONTENT;
    if (r)
        return r;
    *ret_msg = msg;
    msg.type = MSG_NONE; /* handed over */
    return CODEC_OK;
}

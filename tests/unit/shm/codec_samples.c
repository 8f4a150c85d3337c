/* codec_samples.c - samples made and compared by expanding the codec's own field lists. A field
 * missing in a list would be missing here too, which is what sample_unlisted_field() is for. */
#include <stdio.h>

#include "shm/proto/codec_priv.h"
#include "tests/unit/shm/codec_samples.h"

#define TYPE_VALUE(name, field, s) MSG_##name,
const enum msg_type sample_types[SAMPLE_TYPES] = {CODEC_TYPES(TYPE_VALUE)};
#define TYPE_ONE(name, field, s) +1
_Static_assert(0 CODEC_TYPES(TYPE_ONE) == SAMPLE_TYPES, "SAMPLE_TYPES");

/* ---- make -------------------------------------------------------------------------------- */

static void fill_chars(char *s, size_t size, bool large, bool may_be_empty)
{
    memset(s, 0, size);
    if (large)
        memset(s, 'x', size - 1);
    else if (!may_be_empty)
        s[0] = 'a';
}

static void fill_bytes(void *p, size_t size)
{
    for (size_t i = 0; i < size; i++)
        ((uint8_t *)p)[i] = (uint8_t)(0xff - i);
}

/* Names of full length, in ascending order. */
static void fill_nodes(char (**ret_nodes)[MSG_NAME_MAX], uint32_t *ret_n, uint32_t n)
{
    *ret_nodes = calloc(n, sizeof(**ret_nodes));
    *ret_n = n;
    for (uint32_t i = 0; i < n; i++)
        snprintf((*ret_nodes)[i], MSG_NAME_MAX, "%0*u", n > 1 ? MSG_NAME_MAX - 1 : 1, i);
}

static void fill_members(struct msg_member **ret_members, uint32_t *ret_n, uint32_t n,
                         uint32_t nnodes)
{
    *ret_members = calloc(n, sizeof(**ret_members));
    *ret_n = n;
    for (uint32_t i = 0; i < n; i++) {
        (*ret_members)[i].node = nnodes - 1 - i % nnodes;
        (*ret_members)[i].pid = n > 1 ? UINT32_MAX - i : 0;
        (*ret_members)[i].join = n > 1 ? UINT64_MAX - i : 0;
        (*ret_members)[i].was = n > 1 && i ? MSG_MAX_RANKS - i : 0;
    }
}

static void fill_indexes(struct msg_board_add *m, enum sample sample)
{
    static const uint32_t nodes[] = {1, 3, MSG_MAX_NODES}, ranks[] = {1, 7, MSG_MAX_RANKS},
                          clients[] = {0, 2, MSG_MAX_RANKS};

    m->nnodes = nodes[sample];
    m->world = ranks[sample];
    m->me = m->nnodes - 1;
    m->peers = calloc(m->nnodes, sizeof(*m->peers));
    m->rank_node = calloc(m->world, sizeof(*m->rank_node));
    for (uint32_t i = 0; i < m->nnodes; i++)
        m->peers[i] = m->nnodes - 1 - i;
    for (uint32_t i = 0; i < m->world; i++)
        m->rank_node[i] = i % m->nnodes;
    m->nclients = clients[sample];
    m->clients = calloc(m->nclients, sizeof(*m->clients));
    for (uint32_t i = 0; i < m->nclients; i++)
        m->clients[i] = UINT32_MAX - i;
}

static void fill_kept(uint64_t **ret_kept, uint32_t *ret_n, enum sample sample)
{
    static const uint32_t kept[] = {0, 3, MSG_MAX_KEPT};

    *ret_n = kept[sample];
    *ret_kept = *ret_n ? calloc(*ret_n, sizeof(**ret_kept)) : NULL;
    for (uint32_t i = 0; i < *ret_n; i++)
        (*ret_kept)[i] = UINT64_MAX - i;
}

static void fill_asks(uint32_t **ret_asks, uint32_t *ret_n, enum sample sample)
{
    static const uint32_t asks[] = {0, 3, MSG_MAX_ASKS};

    *ret_n = asks[sample];
    *ret_asks = *ret_n ? calloc(*ret_n, sizeof(**ret_asks)) : NULL;
    for (uint32_t i = 0; i < *ret_n; i++)
        (*ret_asks)[i] = UINT32_MAX - i;
}

static void fill_ranks(uint32_t **ret_ranks, uint32_t *ret_n, enum sample sample)
{
    static const uint32_t ranks[] = {0, 3, MSG_MAX_RANKS};

    *ret_n = ranks[sample];
    *ret_ranks = *ret_n ? calloc(*ret_n, sizeof(**ret_ranks)) : NULL;
    for (uint32_t i = 0; i < *ret_n; i++)
        (*ret_ranks)[i] = MSG_MAX_RANKS - *ret_n + i;
}

static void fill_table(struct msg_table *table, uint32_t ncolumns, uint32_t nrows)
{
    static const char *const values[][2] = {
        [MSG_CELL_STRING] = {"", "grün, \"quoted\" and \\"},
        [MSG_CELL_NUMBER] = {"", "-12.5e+3"},
        [MSG_CELL_BOOL] = {"", "true"},
    };

    fill_chars(table->name, sizeof(table->name), nrows > 0, false);
    table->ncolumns = ncolumns;
    table->nrows = nrows;
    table->columns = calloc(ncolumns, sizeof(*table->columns));
    table->cells = calloc(MAX((size_t)ncolumns * nrows, (size_t)1), sizeof(*table->cells));
    for (uint32_t i = 0; i < ncolumns; i++) {
        fill_chars(table->columns[i].key, MSG_NAME_MAX, nrows > 0, false);
        fill_chars(table->columns[i].title, MSG_NAME_MAX, nrows > 0, false);
        table->columns[i].type = i % 3;
    }
    for (size_t i = 0; i < (size_t)ncolumns * nrows; i++)
        table->cells[i] = strdup(values[i % ncolumns % 3][nrows < 1000 && i % 2]);
}

static void fill_tables(struct msg_tables *m, enum sample sample)
{
    if (sample == SAMPLE_SMALL)
        return;
    m->ntables = sample == SAMPLE_LARGE ? 2 : CODEC_MAX_TABLES;
    m->tables = calloc(m->ntables, sizeof(*m->tables));
    if (sample == SAMPLE_LARGE) {
        fill_table(&m->tables[0], 5, 3);
        fill_table(&m->tables[1], 1, 0);
        return;
    }
    for (uint32_t i = 0; i < m->ntables; i++)
        fill_table(&m->tables[i], CODEC_MAX_COLUMNS,
                   MSG_MAX_CELLS / CODEC_MAX_COLUMNS / CODEC_MAX_TABLES);
}

static const uint32_t some_nodes[] = {1, 3, MSG_MAX_NODES};
static const uint32_t some_ranks[] = {1, 7, MSG_MAX_RANKS};

#define X_NUM(f)     (m->f = large ? (__typeof__(m->f))-1 : 0)
#define X_FLAG(f)    (m->f = large)
#define X_NAME(f)    fill_chars(m->f, sizeof(m->f), large, false)
#define X_OPTNAME(f) fill_chars(m->f, sizeof(m->f), large, true)
#define X_TEXT       X_OPTNAME
#define X_CAUSE(f)   (m->f = large ? CAUSE_COUNT - 1 : 0)
#define X_RANK(f)    (m->f = large ? MSG_MAX_RANKS - 1 : 0)
#define X_RANKREF(f) (m->f = large ? MSG_MAX_RANKS - 1 : -1)
#define X_SEAT(f)                                                                                  \
    (m->size = large ? MSG_MAX_RANKS : 1, m->f = m->size - 1,                                      \
     m->recovery = large ? MSG_RECOVERY_REJOIN : MSG_RECOVERY_NONE)
#define X_OWN(f)      (m->f = m->size - 1)
#define X_RANKS(f)    fill_ranks(&m->f, &m->n##f, sample)
#define X_NODE(f)     (m->f = large ? MSG_MAX_NODES - 1 : 0)
#define X_NODEREF(f)  (m->f = large ? MSG_MAX_NODES - 1 : -1)
#define X_GPU(f)      (m->f = large ? MSG_MAX_GPUS - 1 : 0)
#define X_GPUS(f)     (m->f = large ? MSG_MAX_GPUS : 0)
#define X_TOKEN(f)    fill_bytes(m->f, sizeof(m->f))
#define X_KEY(f)      fill_bytes(m->f, large ? sizeof(m->f) : 0)
#define X_KEPT(f)     fill_kept(&m->f, &m->n##f, sample)
#define X_ASKS(f)     fill_asks(&m->f, &m->n##f, sample)
#define X_ADDR(f)     (m->f##_len = large ? sizeof(m->f) : 0, fill_bytes(m->f, m->f##_len))
#define X_NODES(f)    fill_nodes(&m->f, &m->nnodes, some_nodes[sample])
#define X_SORTED(f)   (void)0
#define X_MEMBERS(f)  fill_members(&m->f, &m->size, some_ranks[sample], m->nnodes)
#define X_INDEXES(f)  fill_indexes(m, sample)
#define X_TABLES(f)   fill_tables(m, sample)
#define FILL(kind, f) X_##kind(f);

#define FILL_STRUCT(s, schema, constant)                                                           \
    static void fill_##s##_msg(struct msg_##s *m, enum sample sample _unused_)                     \
    {                                                                                              \
        bool large _unused_ = sample != SAMPLE_SMALL;                                              \
                                                                                                   \
        FIELDS_##s(FILL)                                                                           \
    }
CODEC_STRUCTS(FILL_STRUCT)

void sample_make(enum msg_type type, enum sample sample, struct msg *ret_msg)
{
    memset(ret_msg, 0, sizeof(*ret_msg));
    ret_msg->type = type;
    switch (type) {
    case MSG_NONE:
        break;
#define FILL_TYPE(name, field, s)                                                                  \
    case MSG_##name:                                                                               \
        fill_##s##_msg(&ret_msg->s, sample);                                                       \
        break;
        CODEC_TYPES(FILL_TYPE)
    }
}

/* ---- compare ----------------------------------------------------------------------------- */

static bool same_table(const struct msg_table *a, const struct msg_table *b)
{
    if (strcmp(a->name, b->name) || a->ncolumns != b->ncolumns || a->nrows != b->nrows)
        return false;
    for (uint32_t i = 0; i < a->ncolumns; i++)
        if (strcmp(a->columns[i].key, b->columns[i].key) ||
            strcmp(a->columns[i].title, b->columns[i].title) ||
            a->columns[i].type != b->columns[i].type)
            return false;
    for (size_t i = 0; i < (size_t)a->ncolumns * a->nrows; i++)
        if (strcmp(a->cells[i], b->cells[i]))
            return false;
    return true;
}

static bool same_tables(const struct msg_tables *a, const struct msg_tables *b)
{
    if (a->ntables != b->ntables)
        return false;
    for (uint32_t i = 0; i < a->ntables; i++)
        if (!same_table(&a->tables[i], &b->tables[i]))
            return false;
    return true;
}

static bool same_indexes(const struct msg_board_add *a, const struct msg_board_add *b)
{
    return a->nnodes == b->nnodes && a->world == b->world && a->nclients == b->nclients &&
           (!a->nclients || !memcmp(a->clients, b->clients, a->nclients * sizeof(*a->clients))) &&
           !memcmp(a->peers, b->peers, a->nnodes * sizeof(*a->peers)) &&
           !memcmp(a->rank_node, b->rank_node, a->world * sizeof(*a->rank_node));
}

#define SAME_NUM(f)   (a->f == b->f)
#define SAME_FLAG     SAME_NUM
#define SAME_CAUSE    SAME_NUM
#define SAME_RANK     SAME_NUM
#define SAME_RANKREF  SAME_NUM
#define SAME_NODE     SAME_NUM
#define SAME_NODEREF  SAME_NUM
#define SAME_GPU      SAME_NUM
#define SAME_GPUS     SAME_NUM
#define SAME_OWN      SAME_NUM
#define SAME_SEAT(f)  (a->f == b->f && a->size == b->size && a->recovery == b->recovery)
#define SAME_NAME(f)  !strcmp(a->f, b->f)
#define SAME_OPTNAME  SAME_NAME
#define SAME_TEXT     SAME_NAME
#define SAME_TOKEN(f) !memcmp(a->f, b->f, sizeof(a->f))
#define SAME_KEY      SAME_TOKEN
#define SAME_KEPT(f)                                                                               \
    (a->n##f == b->n##f && (!a->n##f || !memcmp(a->f, b->f, a->n##f * sizeof(*a->f))))
#define SAME_ASKS       SAME_KEPT
#define SAME_RANKS      SAME_KEPT
#define SAME_ADDR(f)    (a->f##_len == b->f##_len && !memcmp(a->f, b->f, a->f##_len))
#define SAME_NODES(f)   (a->nnodes == b->nnodes && !memcmp(a->f, b->f, a->nnodes * sizeof(*a->f)))
#define SAME_SORTED(f)  true
#define SAME_MEMBERS(f) (a->size == b->size && !memcmp(a->f, b->f, a->size * sizeof(*a->f)))
#define SAME_INDEXES(f) same_indexes(a, b)
#define SAME_TABLES(f)  same_tables(a, b)
#define SAME(kind, f)   &&SAME_##kind(f)

#define SAME_STRUCT(s, schema, constant)                                                           \
    static bool same_##s##_msg(const struct msg_##s *a, const struct msg_##s *b)                   \
    {                                                                                              \
        return true FIELDS_##s(SAME);                                                              \
    }
CODEC_STRUCTS(SAME_STRUCT)

bool sample_equal(const struct msg *a, const struct msg *b)
{
    if (a->type != b->type)
        return false;
    switch (a->type) {
    case MSG_NONE:
        return true;
#define SAME_TYPE(name, field, s)                                                                  \
    case MSG_##name:                                                                               \
        return same_##s##_msg(&a->s, &b->s);
        CODEC_TYPES(SAME_TYPE)
    }
    return false;
}

/* ---- completeness ------------------------------------------------------------------------ */

#define CLEAR(p)         memset(&(p), 0, sizeof(p))
#define CLEAR_NUM(f)     CLEAR(m->f)
#define CLEAR_FLAG       CLEAR_NUM
#define CLEAR_NAME       CLEAR_NUM
#define CLEAR_OPTNAME    CLEAR_NUM
#define CLEAR_TEXT       CLEAR_NUM
#define CLEAR_CAUSE      CLEAR_NUM
#define CLEAR_RANK       CLEAR_NUM
#define CLEAR_RANKREF    CLEAR_NUM
#define CLEAR_NODE       CLEAR_NUM
#define CLEAR_NODEREF    CLEAR_NUM
#define CLEAR_GPU        CLEAR_NUM
#define CLEAR_GPUS       CLEAR_NUM
#define CLEAR_TOKEN      CLEAR_NUM
#define CLEAR_KEY        CLEAR_NUM
#define CLEAR_SORTED     CLEAR_NUM
#define CLEAR_ASKS       CLEAR_KEPT
#define CLEAR_KEPT(f)    (CLEAR(m->f), CLEAR(m->n##f))
#define CLEAR_RANKS      CLEAR_KEPT
#define CLEAR_OWN        CLEAR_NUM
#define CLEAR_SEAT(f)    (CLEAR(m->f), CLEAR(m->size), CLEAR(m->recovery))
#define CLEAR_ADDR(f)    (CLEAR(m->f), CLEAR(m->f##_len))
#define CLEAR_NODES(f)   (CLEAR(m->f), CLEAR(m->nnodes))
#define CLEAR_MEMBERS(f) (CLEAR(m->f), CLEAR(m->size))
#define CLEAR_INDEXES(f)                                                                           \
    (CLEAR(m->peers), CLEAR(m->nnodes), CLEAR(m->rank_node), CLEAR(m->world), CLEAR(m->clients),   \
     CLEAR(m->nclients))
#define CLEAR_TABLES(f)      (CLEAR(m->f), CLEAR(m->ntables))
#define CLEAR_FIELD(kind, f) CLEAR_##kind(f);

#if defined(__has_builtin) && __has_builtin(__builtin_clear_padding)
/* All ones; without the padding and without the listed fields nothing may be left. */
#define UNLISTED_IN(s, schema, constant)                                                           \
    {                                                                                              \
        struct msg_##s all, *m = &all;                                                             \
                                                                                                   \
        memset(m, 0xff, sizeof(*m));                                                               \
        __builtin_clear_padding(m);                                                                \
        FIELDS_##s(CLEAR_FIELD);                                                                   \
        for (size_t i = 0; i < sizeof(*m); i++)                                                    \
            if (((uint8_t *)m)[i])                                                                 \
                return #s;                                                                         \
    }
#else /* only gcc can tell padding from fields */
#define UNLISTED_IN(s, schema, constant)
#endif

const char *sample_unlisted_field(void)
{
    CODEC_STRUCTS(UNLISTED_IN)
    return NULL;
}

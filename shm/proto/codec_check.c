/* codec_check.c - what every field of every message may hold. The one place for bounds.
 *
 * Decode runs these rules on what a stranger sent, encode runs them on what we are about to
 * send, so that both sides of a connection agree and a bug of ours stops at home. The rules
 * see only struct msg, never the wire: what they let through, the core may rely on:
 *   - strings are terminated; names are UTF-8 without control characters;
 *   - counts are within MSG_MAX_*, lists are as long as their counts say;
 *   - indices point into the message's own lists, ranks are below the size;
 *   - enums are in range.
 * Text is the exception: decode insists on clean text, but here it only has to be terminated,
 * because encode cleans it (codec_encode.c says why). */
#include "shm/proto/codec_priv.h"

/* Length of one well-formed UTF-8 sequence that is no control character, else 0. Overlong
 * forms, surrogates and values beyond U+10FFFF are ill-formed (RFC 3629). */
static size_t utf8_char(const unsigned char *s, size_t len)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    uint32_t c = s[0];
    size_t n;

    if (c < 0x80)
        return c >= 0x20 && c != 0x7f;
    n = c >= 0xf0 && c < 0xf8 ? 4 : c >= 0xe0 && c < 0xf0 ? 3 : c >= 0xc0 && c < 0xe0 ? 2 : 0;
    if (n == 0 || n > len)
        return 0;
    c &= 0x7fu >> n;
    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80)
            return 0;
        c = c << 6 | (s[i] & 0x3f);
    }
    if (c < least[n] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000) || c < 0xa0)
        return 0; /* below U+00A0: the C1 controls, which terminals obey */
    return n;
}

bool codec_text_clean(const char *s, size_t len, size_t *ret_bad)
{
    for (size_t i = 0, n; i < len; i += n) {
        n = utf8_char((const unsigned char *)s + i, len - i);
        if (n == 0) {
            *ret_bad = i;
            return false;
        }
    }
    return true;
}

static bool terminated(const char *s, size_t size)
{
    return memchr(s, 0, size);
}

static bool optname_ok(const char *s, size_t size)
{
    size_t bad;

    return terminated(s, size) && codec_text_clean(s, strlen(s), &bad);
}

static bool name_ok(const char *s, size_t size)
{
    return s[0] && optname_ok(s, size);
}

/* Names of tables and columns are JSON keys. */
static bool key_ok(const char *s, size_t size)
{
    return s[0] && terminated(s, size) &&
           s[strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789_")] == 0;
}

static size_t digits(const char *s)
{
    return strspn(s, "0123456789");
}

/* A JSON number (RFC 8259, 6), or nothing. */
static bool number_ok(const char *s)
{
    size_t n;

    if (!*s)
        return true;
    s += *s == '-';
    n = digits(s);
    if (n == 0 || (n > 1 && *s == '0'))
        return false;
    s += n;
    if (*s == '.') {
        n = digits(++s);
        s += n;
        if (n == 0)
            return false;
    }
    if (*s == 'e' || *s == 'E') {
        s++;
        s += *s == '-' || *s == '+';
        n = digits(s);
        s += n;
        if (n == 0)
            return false;
    }
    return *s == 0;
}

static bool bool_ok(const char *s)
{
    static const char *const words[] = {"", "true", "false", "1", "0", "yes", "no"};

    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        if (!strcmp(s, words[i]))
            return true;
    return false;
}

static bool cell_ok(const char *s, uint32_t type)
{
    if (!s)
        return true; /* encoded as "" */
    if (type == MSG_CELL_NUMBER)
        return number_ok(s);
    return type == MSG_CELL_STRING || bool_ok(s);
}

/* @room: how many cells the message may still have. */
static bool table_ok(const struct msg_table *table, size_t *room)
{
    size_t cells;

    if (!key_ok(table->name, sizeof(table->name)))
        return false;
    if (table->ncolumns < 1 || table->ncolumns > CODEC_MAX_COLUMNS || !table->columns)
        return false;
    for (uint32_t i = 0; i < table->ncolumns; i++) {
        const struct msg_column *column = &table->columns[i];

        if (!key_ok(column->key, sizeof(column->key)) ||
            !name_ok(column->title, sizeof(column->title)) || column->type > MSG_CELL_BOOL)
            return false;
    }
    if (mul_overflows(table->ncolumns, table->nrows, &cells) || cells > *room)
        return false;
    if (cells && !table->cells)
        return false;
    for (size_t i = 0; i < cells; i++)
        if (!cell_ok(table->cells[i], table->columns[i % table->ncolumns].type))
            return false;
    *room -= cells;
    return true;
}

static bool tables_ok(const struct msg_tables *m)
{
    size_t room = MSG_MAX_CELLS;

    if (m->ntables > CODEC_MAX_TABLES || (m->ntables && !m->tables))
        return false;
    for (uint32_t i = 0; i < m->ntables; i++)
        if (!table_ok(&m->tables[i], &room))
            return false;
    return true;
}

static bool nodes_ok(char (*nodes)[MSG_NAME_MAX], uint32_t nnodes)
{
    if (nnodes < 1 || nnodes > MSG_MAX_NODES || !nodes)
        return false;
    for (uint32_t i = 0; i < nnodes; i++)
        if (!name_ok(nodes[i], sizeof(nodes[i])))
            return false;
    return true;
}

/* Every rank sits on a listed node. A listed node without a rank would be waited for and never
 * come: refused too. */
static bool members_ok(const struct msg_member *members, uint32_t size, uint32_t nnodes)
{
    bool used[MSG_MAX_NODES] = {false};
    uint64_t before[MSG_MAX_RANKS / 64] = {0};
    uint32_t nused = 0;

    if (size < 1 || size > MSG_MAX_RANKS || !members)
        return false;
    for (uint32_t i = 0; i < size; i++) {
        uint32_t was = members[i].was;

        if (members[i].node >= nnodes || was > MSG_MAX_RANKS)
            return false;
        if (was && before[(was - 1) / 64] >> (was - 1) % 64 & 1)
            return false; /* one rank goes on as two */
        if (was)
            before[(was - 1) / 64] |= UINT64_C(1) << (was - 1) % 64;
        nused += !used[members[i].node];
        used[members[i].node] = true;
    }
    return nused == nnodes;
}

/* What each kind of join says of its place. */
static bool seat_ok(uint32_t recovery, uint32_t rank, uint32_t size)
{
    if (size > MSG_MAX_RANKS || recovery >= MSG_RECOVERY_COUNT)
        return false;
    switch ((enum msg_recovery)recovery) {
    case MSG_RECOVERY_NONE:
        return rank < size;
    case MSG_RECOVERY_SHRINK:
        return rank == 0 && size == 1;
    case MSG_RECOVERY_WAIT:
        return rank == 0;
    case MSG_RECOVERY_REJOIN:
        return rank == MSG_ANY_SEAT || rank < (size ? size : (uint32_t)MSG_MAX_RANKS);
    case MSG_RECOVERY_COUNT:
        break;
    }
    return false;
}

static bool ranks_ok(const uint32_t *ranks, uint32_t n)
{
    if (n > MSG_MAX_RANKS || (n && !ranks))
        return false;
    for (uint32_t i = 0; i < n; i++)
        if (ranks[i] >= MSG_MAX_RANKS || (i && ranks[i] <= ranks[i - 1]))
            return false;
    return true;
}

/* Participants are distinct nodes, and each rank's is one of them. */
static bool indexes_ok(const struct msg_board_add *m)
{
    bool seen[MSG_MAX_NODES] = {false};

    if (m->nnodes < 1 || m->nnodes > MSG_MAX_NODES || m->me >= m->nnodes || !m->peers)
        return false;
    if (m->world < 1 || m->world > MSG_MAX_RANKS || !m->rank_node)
        return false;
    if (m->nclients > m->world || (m->nclients && !m->clients))
        return false;
    for (uint32_t i = 0; i < m->nnodes; i++) {
        if (m->peers[i] >= MSG_MAX_NODES || seen[m->peers[i]])
            return false;
        seen[m->peers[i]] = true;
    }
    for (uint32_t i = 0; i < m->world; i++)
        if (m->rank_node[i] >= m->nnodes)
            return false;
    return true;
}

/* "Participants, sorted by name" also means: no name twice. */
static bool sorted(char (*nodes)[MSG_NAME_MAX], uint32_t nnodes)
{
    for (uint32_t i = 1; i < nnodes; i++)
        if (strcmp(nodes[i - 1], nodes[i]) >= 0)
            return false;
    return true;
}

#define X_NUM(f)       true
#define X_FLAG(f)      (m->f <= 1)
#define X_NAME(f)      name_ok(m->f, sizeof(m->f))
#define X_OPTNAME(f)   optname_ok(m->f, sizeof(m->f))
#define X_TEXT(f)      terminated(m->f, sizeof(m->f))
#define X_CAUSE(f)     (m->f < CAUSE_COUNT)
#define X_RANK(f)      (m->f < MSG_MAX_RANKS)
#define X_RANKREF(f)   (m->f >= -1 && m->f < MSG_MAX_RANKS)
#define X_SEAT(f)      seat_ok(m->recovery, m->f, m->size)
#define X_OWN(f)       (m->f < m->size)
#define X_RANKS(f)     ranks_ok(m->f, m->n##f)
#define X_NODE(f)      (m->f < MSG_MAX_NODES)
#define X_NODEREF(f)   (m->f >= -1 && m->f < MSG_MAX_NODES)
#define X_GPU(f)       (m->f < MSG_MAX_GPUS)
#define X_GPUS(f)      (m->f <= MSG_MAX_GPUS)
#define X_TOKEN(f)     (sizeof(m->f) == CODEC_TOKEN)
#define X_KEY(f)       (sizeof(m->f) == MSG_KEY)
#define X_KEPT(f)      (m->n##f <= MSG_MAX_KEPT && (!m->n##f || m->f))
#define X_ASKS(f)      (m->n##f <= MSG_MAX_ASKS && (!m->n##f || m->f))
#define X_ADDR(f)      (m->f##_len <= sizeof(m->f))
#define X_NODES(f)     nodes_ok(m->f, m->nnodes)
#define X_SORTED(f)    sorted(m->f, m->nnodes)
#define X_MEMBERS(f)   members_ok(m->f, m->size, m->nnodes)
#define X_INDEXES(f)   indexes_ok(m)
#define X_TABLES(f)    tables_ok(m)
#define CHECK(kind, f) &&X_##kind(f)

#define CHECK_STRUCT(s, schema, constant)                                                          \
    static bool check_##s(const struct msg_##s *m)                                                 \
    {                                                                                              \
        return true FIELDS_##s(CHECK);                                                             \
    }
CODEC_STRUCTS(CHECK_STRUCT)

bool codec_check_msg(const struct msg *msg)
{
    switch (msg->type) {
    case MSG_NONE:
        return false;
#define CHECK_TYPE(name, field, s)                                                                 \
    case MSG_##name:                                                                               \
        return check_##s(&msg->s);
        CODEC_TYPES(CHECK_TYPE)
    }
    return false;
}

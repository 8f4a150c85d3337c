/* oracle.c - see oracle.h. Results are compared bit for bit: reductions are those of
 * shm/reduce/reduce.h, in the order of ranks. */
#include "oracle.h"

#include <stdio.h>

#include "shm/board/board.h"
#include "shm/gpu/able.h"
#include "shm/reduce/reduce.h"

enum { GUARD = 64, GUARD_BYTE = 0x5a };

/* ---- data ------------------------------------------------------------------------------------ */

static uint16_t bf16(float f)
{
    uint32_t u;

    memcpy(&u, &f, 4);
    return (uint16_t)(u >> 16);
}

/* Floats are such that sums are exact in each type, and products too: so that it does not matter in
 * which order several GPUs make them. */
static void fill(unsigned dtype, bool powers, void *to, uint64_t n, uint64_t seed)
{
    uint8_t *p = to;

    for (uint64_t i = 0; i < n; i++) {
        uint64_t x = draw(&seed);
        int small = (int)(x >> 20 & 63) - 31;
        double d = powers ? (x >> 20 & 1 ? -2 : 0.5) : (double)small / 4;
        float f = (float)d;
        _Float16 h = (_Float16)f;
        uint16_t b = bf16(f);

        if (dtype == DTYPE_F32)
            memcpy(p, &f, 4);
        else if (dtype == DTYPE_F64)
            memcpy(p, &d, 8);
        else if (dtype == DTYPE_F16)
            memcpy(p, &h, 2);
        else if (dtype == DTYPE_BF16)
            memcpy(p, &b, 2);
        else if (dtype == DTYPE_BOOL)
            *p = x & 1;
        else
            memcpy(p, &x, dtype_size(dtype));
        p += dtype_size(dtype);
    }
}

/* ---- what is drawn --------------------------------------------------------------------------- */

static uint64_t draw_count(uint64_t *seed, uint64_t most)
{
    uint64_t x = draw(seed);

    switch (x % 8) {
    case 0:
        return 0;
    case 1:
    case 2:
        return 1 + (x >> 8) % 4;
    case 3:
        return most - (x >> 8) % (most / 8 + 1);
    default:
        return (x >> 8) % MIN(most, (uint64_t)1000);
    }
}

void sample_draw(struct sample *s, uint64_t *seed, unsigned world, unsigned units, uint64_t seq)
{
    struct op_desc d = {0};

    memset(s, 0, sizeof *s);
    s->world = world;
    s->seq = seq;
    s->seed = draw(seed);
    do {
        s->coll = draw(seed) % COLL_COUNT;
        s->dtype = draw(seed) % DTYPE_COUNT;
        s->redop = draw(seed) % REDOP_COUNT;
        d.coll = (uint8_t)s->coll;
        d.dtype = (uint8_t)s->dtype;
        d.redop = (uint8_t)s->redop;
    } while (!gpu_able(&d, units) || (units > 1 && s->redop == REDOP_PREMUL_SUM &&
                                      coll_table[s->coll].reduces && dtype_size(s->dtype) < 4));
    if (!coll_table[s->coll].reduces)
        s->redop = 0;
    if (coll_table[s->coll].rooted)
        s->root = draw(seed) % world;
    s->count = coll_table[s->coll].counted || s->coll == COLL_BARRIER
                   ? 0
                   : draw_count(seed, ORACLE_ELEMENTS / world);
    for (unsigned i = 0; i < world; i++)
        for (unsigned j = 0; j < world; j++)
            s->counts[i][j] = draw_count(seed, ORACLE_ELEMENTS / world / 2);
    for (unsigned i = 0; i < world; i++)
        s->scale[i] = s->redop == REDOP_PREMUL_SUM ? (double)(draw(seed) % 8) / 4 : 0;
    s->in_place = draw(seed) % 3 == 0;
    s->send_blocks = !s->in_place && draw(seed) % 3 == 0;
    s->recv_blocks = !s->in_place && draw(seed) % 3 == 0;
}

/* Elements that go from @i to @j. */
static uint64_t part(const struct sample *s, unsigned i, unsigned j)
{
    switch (s->coll) {
    case COLL_ALL_GATHER_V:
        return s->counts[i][0];
    case COLL_REDUCE_SCATTER_V:
        return s->counts[j][0];
    case COLL_GATHER_V:
    case COLL_SCATTER_V:
    case COLL_ALL_TO_ALL_V:
        return s->counts[i][j];
    default:
        return s->count;
    }
}

/* Elements that @rank sends to all before @j; of one block or vector: it has but one. */
static uint64_t sent_before(const struct sample *s, unsigned rank, unsigned j)
{
    uint64_t sum = 0;

    for (unsigned k = 0; k < j; k++)
        sum += part(s, rank, k);
    return sum;
}

static uint64_t got_before(const struct sample *s, unsigned rank, unsigned j)
{
    uint64_t sum = 0;

    for (unsigned k = 0; k < j; k++)
        sum += part(s, k, rank);
    return sum;
}

static uint64_t sends(const struct sample *s, unsigned rank)
{
    unsigned extent = coll_table[s->coll].send;

    if (s->coll == COLL_BROADCAST)
        return rank == s->root ? s->count : 0;
    if (!coll_at(extent, rank == s->root))
        return 0;
    return coll_blocks(extent) ? sent_before(s, rank, s->world) : part(s, rank, s->root);
}

static uint64_t gets(const struct sample *s, unsigned rank)
{
    unsigned extent = coll_table[s->coll].recv;

    if (!coll_at(extent, rank == s->root))
        return 0;
    return coll_blocks(extent) ? got_before(s, rank, s->world) : part(s, s->root, rank);
}

/* What @rank sends, made anew. */
static void sent(const struct sample *s, unsigned rank, void *to)
{
    fill(s->dtype, s->redop == REDOP_PROD, to, sends(s, rank),
         s->seed ^ (rank + 1) * 0x9e3779b97f4a7c15u);
}

/* ---- what must come of it -------------------------------------------------------------------- */

static void expect_reduced(const struct sample *s, unsigned rank, uint8_t *to)
{
    static uint8_t in[ORACLE_WORLD][ORACLE_BYTES];
    const void *src[ORACLE_WORLD];
    uint64_t first = 0, n = gets(s, rank);
    size_t es = dtype_size(s->dtype);

    if (coll_blocks(coll_table[s->coll].send))
        first = sent_before(s, rank, rank);
    for (unsigned r = 0; r < s->world; r++) {
        sent(s, r, in[r]);
        if (s->redop == REDOP_PREMUL_SUM)
            reduce_scale(s->dtype, in[r], in[r], s->scale[r], sends(s, r));
        src[r] = in[r] + first * es;
    }
    reduce_n(s->dtype, s->redop, to, src, s->world, n);
    reduce_finish(s->dtype, s->redop, to, n, s->world);
}

static void expect_moved(const struct sample *s, unsigned rank, uint8_t *to)
{
    static uint8_t in[ORACLE_BYTES];
    size_t es = dtype_size(s->dtype);
    bool blocks = coll_blocks(coll_table[s->coll].send);

    if (s->coll == COLL_BROADCAST || coll_table[s->coll].recv == EXTENT_ONE) {
        sent(s, s->root, in);
        memcpy(to, in + (blocks ? sent_before(s, s->root, rank) : 0) * es, gets(s, rank) * es);
        return;
    }
    for (unsigned r = 0; r < s->world; r++) {
        sent(s, r, in);
        memcpy(to + got_before(s, rank, r) * es, in + (blocks ? sent_before(s, r, rank) : 0) * es,
               part(s, r, rank) * es);
    }
}

/* ---- a rank's part --------------------------------------------------------------------------- */

static unsigned aux_words(struct task *t, uint32_t *ret_bits)
{
    const struct sample *s = &t->s;
    unsigned n = 0, world = s->world;
    bool root = t->rank == s->root;

    *ret_bits = 0;
    if (s->coll == COLL_REDUCE_SCATTER_V || s->coll == COLL_GATHER_V ||
        s->coll == COLL_ALL_TO_ALL_V || (s->coll == COLL_SCATTER_V && root)) {
        *ret_bits |= SESSION_SEND_COUNTS;
        for (unsigned k = 0; k < world; k++)
            t->aux[n++] = s->coll == COLL_GATHER_V ? (k ? 0 : part(s, t->rank, s->root))
                                                   : part(s, t->rank, k);
    }
    if (s->coll == COLL_ALL_GATHER_V || s->coll == COLL_SCATTER_V || s->coll == COLL_ALL_TO_ALL_V ||
        (s->coll == COLL_GATHER_V && root)) {
        *ret_bits |= SESSION_RECV_COUNTS;
        for (unsigned k = 0; k < world; k++)
            t->aux[n++] = s->coll == COLL_SCATTER_V ? (k ? 0 : part(s, s->root, t->rank))
                                                    : part(s, k, t->rank);
    }
    return n;
}

/* Blocks in reverse order, with gaps; puts what is sent where it belongs. */
static unsigned put_blocks(struct task *t, struct client *c, const struct buffer *b, uint64_t at,
                           const uint8_t *data, bool send, unsigned n)
{
    const struct sample *s = &t->s;
    size_t es = dtype_size(s->dtype);
    uint64_t place = 0;

    for (unsigned k = s->world; k-- > 0;) {
        uint64_t count = send ? part(s, t->rank, k) : part(s, k, t->rank);

        t->aux[n + 2 * k] = b->id;
        t->aux[n + 2 * k + 1] = at + place;
        if (send)
            client_put(c, b->at + at + place, data + sent_before(s, t->rank, k) * es, count * es);
        else
            t->place[k] = place;
        place += (count + 3) * es;
    }
    if (!send)
        t->guard = place;
    return n + 2 * s->world;
}

static void task_describe(const struct task *t, struct request *q, uint32_t group)
{
    const struct sample *s = &t->s;

    q->group = group;
    q->desc.seq = s->seq;
    q->desc.count = s->count;
    q->desc.root = s->root;
    q->desc.coll = (uint8_t)s->coll;
    q->desc.dtype = (uint8_t)s->dtype;
    q->desc.redop = (uint8_t)s->redop;
    q->scale = s->scale[t->rank];
    if (s->coll == COLL_ALL_GATHER_V || s->coll == COLL_REDUCE_SCATTER_V) {
        uint64_t counts[ORACLE_WORLD];

        for (unsigned k = 0; k < s->world; k++)
            counts[k] = s->counts[k][0];
        q->desc.digest = op_digest(counts, s->world);
    }
}

/* Where it sends from, if that is in what it receives; or the other way round. False: neither. */
static bool place_both(struct task *t, uint64_t send_at, uint64_t *ret_send, uint64_t *ret_recv)
{
    const struct sample *s = &t->s;
    const struct coll_info *info = &coll_table[s->coll];
    size_t es = dtype_size(s->dtype);
    bool root = t->rank == s->root, from, into;

    from = coll_at(info->send, root) && coll_blocks(info->send);
    into = coll_at(info->recv, root) && coll_blocks(info->recv);
    *ret_send = send_at;
    *ret_recv = t->at;
    if (!s->in_place || !coll_at(info->recv, root) || s->coll == COLL_ALL_TO_ALL_V)
        return false;
    *ret_send = t->at + (into && !from ? got_before(s, t->rank, t->rank) * es : 0);
    if (from && !into)
        *ret_recv = t->at + sent_before(s, t->rank, t->rank) * es;
    return true;
}

void task_announce(struct task *t, struct client *c, const struct sample *s, uint32_t group,
                   unsigned rank, const struct buffer *in, uint64_t send_at,
                   const struct buffer *out, uint64_t recv_at)
{
    static uint8_t data[ORACLE_BYTES], guard[ORACLE_BYTES + GUARD];
    const struct coll_info *info = &coll_table[s->coll];
    bool root = rank == s->root, mine = s->coll == COLL_BROADCAST && root;
    struct request q = {.aux = t->aux};
    size_t es = dtype_size(s->dtype);
    uint64_t from, into;

    *t = (struct task){.s = *s, .rank = rank, .to = *out, .at = recv_at};
    task_describe(t, &q, group);
    q.aux_words = aux_words(t, &q.aux_bits);
    t->guard = gets(s, rank) * es;
    if (place_both(t, send_at, &from, &into))
        in = out;
    memset(guard, GUARD_BYTE, sizeof guard);
    client_put(c, out->at + recv_at, guard, sizeof guard);
    sent(s, rank, data);
    q.send = (struct session_place){.memory = in->id, .offset = from};
    q.recv = (struct session_place){.memory = out->id, .offset = into};
    if (s->send_blocks && coll_at(info->send, root) && coll_blocks(info->send)) {
        q.aux_bits |= SESSION_SEND_BLOCKS;
        q.aux_words = put_blocks(t, c, in, from, data, true, q.aux_words);
    } else {
        client_put(c, (mine ? out->at + into : in->at + from), data, sends(s, rank) * es);
    }
    if (s->recv_blocks && coll_at(info->recv, root) && coll_blocks(info->recv)) {
        q.aux_bits |= SESSION_RECV_BLOCKS;
        q.aux_words = put_blocks(t, c, out, into, NULL, false, q.aux_words);
    } else {
        uint64_t at = into - recv_at;

        for (unsigned k = 0; k < s->world && coll_blocks(info->recv); k++)
            t->place[k] = at + got_before(s, rank, k) * es;
        if (!coll_blocks(info->recv))
            t->place[0] = at;
        t->guard = MAX(at + gets(s, rank) * es, in == out ? sends(s, rank) * es : 0);
    }
    t->n = client_announce(c, &q);
}

void task_check(struct task *t, struct client *c)
{
    static uint8_t want[ORACLE_BYTES], got[ORACLE_BYTES + GUARD];
    const struct sample *s = &t->s;
    size_t es = dtype_size(s->dtype);
    bool blocks = coll_blocks(coll_table[s->coll].recv);
    uint64_t n = gets(s, t->rank);

    if (coll_table[s->coll].reduces && n)
        expect_reduced(s, t->rank, want);
    else if (n)
        expect_moved(s, t->rank, want);
    client_get(c, got, t->to.at + t->at, t->guard + GUARD);
    for (unsigned k = 0; n && k < (blocks ? s->world : 1); k++) {
        uint64_t count = blocks ? part(s, k, t->rank) : n;

        if (memcmp(got + t->place[k], want + (blocks ? got_before(s, t->rank, k) : 0) * es,
                   count * es)) {
            fprintf(stderr, "rank %u of %u: operation %llu: %s %s %s, count %llu, block %u%s\n",
                    t->rank, s->world, (unsigned long long)s->seq, coll_name(s->coll),
                    dtype_name(s->dtype), redop_name(s->redop), (unsigned long long)s->count, k,
                    s->in_place      ? ", in place"
                    : s->recv_blocks ? ", blocks"
                                     : "");
            MUST(!"the result is right");
        }
    }
    for (unsigned i = 0; i < GUARD; i++)
        MUST(got[t->guard + i] == GUARD_BYTE);
}

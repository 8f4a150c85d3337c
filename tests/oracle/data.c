/* data.c - what the ranks send, and the serial reference.
 *
 * What a rank sends is one vector, element i of it being element i % PERIOD of the rank's
 * pattern; its blocks are parts of that vector, wherever each of them lies in memory. Therefore
 * everything that a rank may receive is some part of a sender's vector, or of the one vector of
 * reductions. These are computed over one period, by tests/unit/shm/reduce_reference.c.
 *
 * Exactness. Integers, bool and moves have random bits, and wrap. Floats are reduced in an
 * order that depends on the nodes and the schedule; within one node it is by rank, so there any
 * bits will do, NaNs and infinities included. Over several nodes the values make every order
 * exact: small integers for sums, powers of two for products, no zeros (which have two signs)
 * for min and max.
 *
 * Each buffer lies in memory of its own, registered or not, at any alignment, its blocks apart or
 * side by side; whatever is not the receiver's to write must be what it was. */
#include "tests/oracle/oracle.h"

#include <stdio.h>

#include "tests/unit/shm/reduce_reference.h"

enum { CANVAS = 0xa5, MARGIN = 64 };

static const struct {
    uint8_t send, recv;              /* at the root, or everywhere */
    bool send_at_root, recv_at_root; /* and nothing elsewhere */
    bool rooted, reduces, counted;
} colls[COLL_COUNT + 1] = {
    [COMMD_BARRIER] = {NOTHING, NOTHING},
    [COMMD_ALL_REDUCE] = {ONE, ONE, .reduces = true},
    [COMMD_BROADCAST] = {NOTHING, ONE, .rooted = true},
    [COMMD_ALL_GATHER] = {ONE, MANY},
    [COMMD_REDUCE_SCATTER] = {MANY, ONE, .reduces = true},
    [COMMD_REDUCE] = {ONE, ONE, .recv_at_root = true, .rooted = true, .reduces = true},
    [COMMD_GATHER] = {ONE, MANY, .recv_at_root = true, .rooted = true},
    [COMMD_SCATTER] = {MANY, ONE, .send_at_root = true, .rooted = true},
    [COMMD_ALL_TO_ALL] = {MANY, MANY},
    [COMMD_ALL_GATHER_V] = {ONE, MANY, .counted = true},
    [COMMD_REDUCE_SCATTER_V] = {MANY, ONE, .reduces = true, .counted = true},
    [COMMD_GATHER_V] = {ONE, MANY, .recv_at_root = true, .rooted = true, .counted = true},
    [COMMD_SCATTER_V] = {MANY, ONE, .send_at_root = true, .rooted = true, .counted = true},
    [COMMD_ALL_TO_ALL_V] = {MANY, MANY, .counted = true},
    [COLL_COUNT] = {ONE, ONE}, /* a message */
};

bool is_message(int coll)
{
    return coll == COMMD_SEND || coll == COMMD_RECV;
}

static int row_of(int coll)
{
    return is_message(coll) ? COLL_COUNT : coll;
}

const char *name_of(int coll)
{
    return is_message(coll) ? "message" : coll_name((unsigned)coll);
}

enum coll_shape shape_of(const struct op_spec *op, bool send, unsigned rank)
{
    int row = row_of(op->coll);
    bool at_root = send ? colls[row].send_at_root : colls[row].recv_at_root;

    if (is_message(op->coll) && rank != (send ? (unsigned)op->root : op->to))
        return NOTHING;
    if (at_root && rank != (unsigned)op->root)
        return NOTHING;
    return send ? colls[row].send : colls[row].recv;
}

bool is_counted(int coll)
{
    return colls[row_of(coll)].counted;
}

bool is_rooted(int coll)
{
    return colls[row_of(coll)].rooted;
}

bool is_reducing(int coll)
{
    return colls[row_of(coll)].reduces;
}

size_t block_elements(const struct op_spec *op, bool send, unsigned rank, unsigned b)
{
    if (is_message(op->coll) && !send)
        return op->count + op->spare;
    if (!is_counted(op->coll))
        return op->count;
    if (shape_of(op, send, rank) == ONE)
        b = 0;
    return send ? op->counts[rank][b] : op->counts[b][rank];
}

/* Elements before block @b. */
static size_t elements_before(const struct op_spec *op, bool send, unsigned rank, unsigned b)
{
    size_t n = 0;

    for (unsigned j = 0; j < b; j++)
        n += block_elements(op, send, rank, j);
    return n;
}

static unsigned blocks_of(const struct op_spec *op, unsigned world, bool send, unsigned rank)
{
    enum coll_shape shape = shape_of(op, send, rank);

    return shape == MANY ? world : shape == ONE ? 1 : 0;
}

size_t all_elements(const struct op_spec *op, unsigned world, bool send, unsigned rank)
{
    return elements_before(op, send, rank, blocks_of(op, world, send, rank));
}

/* ---- patterns -------------------------------------------------------------------------------- */

static bool is_zero(const uint8_t *x, size_t esize) /* of either sign */
{
    for (size_t i = 0; i + 1 < esize; i++)
        if (x[i])
            return false;
    return !(x[esize - 1] & 0x7f);
}

static void put_exact(const struct op_spec *op, uint8_t *x, uint64_t *rng)
{
    static const double powers[] = {1, -1, 2, -2};
    union value v;

    if (op->redop == REDOP_PROD)
        v.f = powers[draw(rng, ARRAY_LEN(powers))];
    else if (op->redop == REDOP_PREMUL_SUM) /* a quarter is an integer too */
        v.f = 4 * ((int)draw(rng, 9) - 4);
    else
        v.f = (int)draw(rng, 33) - 16; /* eight of them: exact in bf16 */
    reference_encode((unsigned)op->dtype, v, x);
}

static void put_value(const struct op_spec *op, uint8_t *x, uint64_t *rng)
{
    size_t esize = dtype_size((unsigned)op->dtype);
    uint64_t bits = draw_bits(rng) >> (64 - 8 * esize);
    uint32_t special = draw(rng, 1024);
    bool is_float = reference_is_float((unsigned)op->dtype) && is_reducing(op->coll);
    bool ordered = op->redop == REDOP_MIN || op->redop == REDOP_MAX;

    if (is_float && !op->any_bits && !ordered) {
        put_exact(op, x, rng);
        return;
    }
    if (op->dtype == COMMD_BOOL && special % 16) /* mostly what a bool may be */
        bits &= 1;
    else if (special < 64) /* 1, the smallest integers, ... */
        bits = (uint64_t)1 << special % (8 * esize);
    else if (special < 128) /* -1, infinities, NaNs, ... */
        bits = ~(uint64_t)0 << special % (8 * esize);
    memcpy(x, &bits, esize);
    if (is_float && !op->any_bits && is_zero(x, esize))
        x[0] = 1;
}

static void reduce_patterns(struct op_spec *op, unsigned world)
{
    unsigned dtype = (unsigned)op->dtype, redop = (unsigned)op->redop;
    size_t esize = dtype_size(dtype);
    uint8_t *scaled[MAX_WORLD] = {NULL};
    const void *src[MAX_WORLD];

    for (unsigned k = 0; k < world; k++) {
        src[k] = op->pattern[k];
        if (redop != REDOP_PREMUL_SUM)
            continue;
        src[k] = scaled[k] = malloc(op->plen * esize);
        for (size_t i = 0; i < op->plen; i++)
            reference_scale(dtype, op->pattern[k] + i * esize, op->scale[k], scaled[k] + i * esize);
    }
    op->reduced = malloc(op->plen * esize);
    reference_reduce(dtype, redop, src, world, op->plen, op->reduced);
    for (size_t i = 0; i < op->plen && redop == REDOP_AVG && world > 1; i++)
        reference_divide(dtype, op->reduced + i * esize, world, op->reduced + i * esize);
    for (unsigned k = 0; k < world; k++)
        free(scaled[k]);
}

void patterns_new(struct op_spec *op, unsigned world)
{
    size_t esize = dtype_size((unsigned)op->dtype);
    uint64_t rng = op->seed;

    op->plen = 1;
    for (unsigned k = 0; k < world; k++) {
        op->plen = MAX(op->plen, all_elements(op, world, true, k));
        op->plen = MAX(op->plen, all_elements(op, world, false, k));
    }
    op->plen = MIN(op->plen, (size_t)PERIOD);
    for (unsigned k = 0; k < world; k++) {
        op->pattern[k] = malloc(op->plen * esize);
        for (size_t i = 0; i < op->plen; i++)
            put_value(op, op->pattern[k] + i * esize, &rng);
    }
    if (is_reducing(op->coll))
        reduce_patterns(op, world);
}

/* Elements @at and the following @n of the vector that repeats @pattern. */
static void lay_out(const struct op_spec *op, const uint8_t *pattern, size_t at, uint8_t *to,
                    size_t n)
{
    size_t esize = dtype_size((unsigned)op->dtype);
    size_t period = op->plen * esize, from = at % op->plen * esize, len = n * esize;
    size_t done = MIN(len, period - from);

    memcpy(to, pattern + from, done);
    if (len > done) {
        size_t rest = MIN(len - done, from);

        memcpy(to + done, pattern, rest);
        done += rest;
    }
    for (size_t more; done < len; done += more) { /* done is a multiple of the period */
        more = MIN(done, len - done);
        memcpy(to + done, to, more);
    }
}

/* ---- memory ---------------------------------------------------------------------------------- */

bool may_be_registered(int coll)
{
    return coll == COMMD_ALL_REDUCE || coll == COMMD_BROADCAST || coll == COMMD_ALL_GATHER ||
           coll == COMMD_REDUCE_SCATTER;
}

/* Where it makes a difference, and sometimes elsewhere: on all ranks, on some, or on none. Taken
 * from the seed's bits, so that programs are the same with and without. */
bool is_registered(const struct op_spec *op, unsigned rank)
{
    unsigned kind = op->seed >> 40 & 3;

    if (!may_be_registered(op->coll) && op->seed >> 60 & 15)
        return false;
    return kind < 2 || (kind == 2 && op->seed >> (44 + rank) & 1);
}

static uint8_t *registered(struct commd_context *ctx, size_t bytes)
{
    void *p;

    if (commd_alloc(ctx, bytes, &p)) {
        fprintf(stderr, "%s\n", commd_last_error()->message);
        abort();
    }
    return p;
}

static void memory_free(struct memory *m)
{
    if (m->image)
        gpu_memory_free(m);
    else if (!m->registered)
        free(m->mem);
    else if (commd_free(m->mem))
        abort();
    free(m->want);
}

/* Makes memory for the blocks and says where each of them is. */
static void memory_new(struct memory *m, const struct part *p, bool send, bool apart, uint64_t *rng,
                       void **ret_at)
{
    const struct op_spec *op = p->own ? p->own : p->spec;
    unsigned n = blocks_of(op, p->world, send, p->rank), first = draw(rng, n);
    unsigned step = n == 5 ? 3 : 5; /* neither up nor down, and meets each of up to 8 */
    size_t esize = dtype_size((unsigned)op->dtype), at[MAX_WORLD] = {0};
    size_t end = MARGIN + (draw(rng, 2) ? draw(rng, MARGIN) : draw(rng, 8) * esize);

    for (unsigned i = 0; i < n; i++) {
        unsigned b = apart ? (first + i * step) % n : i;

        at[b] = end;
        end += block_elements(op, send, p->rank, b) * esize + (apart ? draw(rng, 24) : 0);
    }
    m->bytes = end + MARGIN;
    m->registered = !is_on_gpu(p->spec, p->rank) && is_registered(p->spec, p->rank);
    if (is_on_gpu(p->spec, p->rank))
        gpu_memory_new(m);
    else
        m->mem = m->registered ? registered(p->ctx, m->bytes) : malloc(m->bytes);
    memset(m->mem, CANVAS, m->bytes);
    for (unsigned b = 0; b < n; b++)
        ret_at[b] = m->mem + at[b];
}

static void fill(struct part *p)
{
    const struct op_spec *op = p->own ? p->own : p->spec;

    if (op->coll == COMMD_BROADCAST && p->rank == (unsigned)op->root)
        lay_out(op, op->pattern[p->rank], 0, p->recv_at[0], op->count);
    for (unsigned b = 0; b < blocks_of(op, p->world, true, p->rank); b++)
        lay_out(op, op->pattern[p->rank], elements_before(op, true, p->rank, b), p->send_at[b],
                block_elements(op, true, p->rank, b));
}

static void remember(struct memory *m)
{
    if (!m->mem)
        return;
    m->want = malloc(m->bytes);
    memcpy(m->want, m->mem, m->bytes);
}

/* Writes what @p must receive into the memory that says what is wanted. */
static void expect(struct part *p)
{
    const struct op_spec *op = p->spec;
    struct memory *m = p->recv.mem ? &p->recv : &p->send;

    for (unsigned b = 0; b < blocks_of(op, p->world, false, p->rank); b++) {
        uint8_t *to = m->want + ((uint8_t *)p->recv_at[b] - m->mem);
        unsigned from = shape_of(op, false, p->rank) == MANY ? b : (unsigned)op->root;
        size_t n = is_message(op->coll) ? op->count : block_elements(op, false, p->rank, b);
        size_t at = 0;

        if (shape_of(op, true, from) == MANY)
            at = elements_before(op, true, from, p->rank);
        lay_out(op, is_reducing(op->coll) ? op->reduced : op->pattern[from], at, to, n);
    }
}

/* ---- parts ----------------------------------------------------------------------------------- */

/* What one rank has for itself it knows to fit, so the odd count is about somebody else. */
static void odd_count(struct op_spec *op, unsigned rank, unsigned world)
{
    unsigned other = (rank + 1 + (unsigned)(op->seed >> 8) % (world - 1)) % world;
    bool root = rank == (unsigned)op->root;

    if (is_message(op->coll))
        op->count--;
    else
        op->count++;
    for (unsigned k = 0; k < world; k++) {
        switch (op->coll) {
        case COMMD_ALL_GATHER_V:
            op->counts[other][k]++;
            break;
        case COMMD_GATHER_V:
            op->counts[root ? other : rank][k]++;
            break;
        case COMMD_REDUCE_SCATTER_V:
            op->counts[k][other]++;
            break;
        case COMMD_SCATTER_V:
            op->counts[k][root ? other : rank]++;
            break;
        case COMMD_ALL_TO_ALL_V:
            op->counts[rank][other] += k == 0;
            break;
        }
    }
}

static struct op_spec *odd_spec(const struct op_spec *spec, unsigned rank, unsigned world)
{
    struct op_spec *op = malloc(sizeof *op);

    *op = *spec;
    switch (spec->odd) {
    case ODD_NONE:
        break;
    case ODD_COUNT:
        odd_count(op, rank, world);
        break;
    case ODD_REDOP:
        do {
            op->redop = (op->redop + 1) % REDOP_COUNT;
        } while (!redop_defined((unsigned)op->dtype, (unsigned)op->redop));
        break;
    case ODD_DTYPE: /* of the same size, for the sake of the patterns */
        do {
            op->dtype = (op->dtype + 1) % DTYPE_COUNT;
        } while (dtype_size((unsigned)op->dtype) != dtype_size((unsigned)spec->dtype));
        if (is_reducing(op->coll) && !redop_defined((unsigned)op->dtype, (unsigned)op->redop))
            op->redop = REDOP_MAX;
        break;
    case ODD_ROOT:
        op->root = (op->root + 1) % (int)world;
        break;
    case ODD_COLL:
        op->coll = spec->coll == COMMD_BARRIER ? COMMD_ALL_GATHER : COMMD_BARRIER;
        break;
    }
    return op;
}

static void set_counts(struct part *p, const struct op_spec *op)
{
    bool send = shape_of(op, true, p->rank) == MANY, recv = shape_of(op, false, p->rank) == MANY;

    for (unsigned k = 0; k < p->world; k++) {
        p->send_counts[k] = send || k == 0 ? block_elements(op, true, p->rank, k) : 0;
        p->recv_counts[k] = recv || k == 0 ? block_elements(op, false, p->rank, k) : 0;
    }
    p->op.count = 4711; /* not used */
    if (op->coll != COMMD_ALL_GATHER_V && shape_of(op, true, p->rank) != NOTHING)
        p->op.send_counts = p->send_counts;
    if (op->coll != COMMD_REDUCE_SCATTER_V && shape_of(op, false, p->rank) != NOTHING)
        p->op.recv_counts = p->recv_counts;
}

static void set_addresses(struct part *p, const struct op_spec *op, uint64_t *rng)
{
    bool null = draw(rng, 2);

    for (unsigned k = 0; k < p->world && null; k++) { /* what is empty needs no address */
        if (op->lists && shape_of(op, true, p->rank) == MANY &&
            !block_elements(op, true, p->rank, k))
            p->send_at[k] = NULL;
        if (op->lists && shape_of(op, false, p->rank) == MANY &&
            !block_elements(op, false, p->rank, k))
            p->recv_at[k] = NULL;
    }
    if (op->lists && shape_of(op, true, p->rank) == MANY)
        p->op.send_blocks = (const void *const *)p->send_at;
    else if (!null || all_elements(op, p->world, true, p->rank))
        p->op.send = p->send_at[0];
    if (op->lists && shape_of(op, false, p->rank) == MANY)
        p->op.recv_blocks = p->recv_at;
    else if (!null || all_elements(op, p->world, false, p->rank))
        p->op.recv = p->recv_at[0];
}

static void place(struct part *p, const struct op_spec *op, uint64_t *rng)
{
    enum coll_shape send = shape_of(op, true, p->rank), recv = shape_of(op, false, p->rank);
    bool in_place = op->in_place && !op->lists && send && recv &&
                    !(is_counted(op->coll) && send == MANY && recv == MANY);

    if (in_place && send == MANY && recv == ONE) {
        memory_new(&p->send, p, true, false, rng, p->send_at);
        p->recv_at[0] = p->send_at[p->rank];
    } else if (in_place) {
        memory_new(&p->recv, p, false, false, rng, p->recv_at);
        p->send_at[0] = p->recv_at[send == recv ? 0 : p->rank];
        for (unsigned b = 1; b < p->world && send == recv; b++)
            p->send_at[b] = p->recv_at[b];
    } else {
        if (send)
            memory_new(&p->send, p, true, op->lists && send == MANY, rng, p->send_at);
        if (recv)
            memory_new(&p->recv, p, false, op->lists && recv == MANY, rng, p->recv_at);
    }
}

static void set_message(struct part *p, const struct op_spec *op, const struct group_spec *g)
{
    bool send = p->rank == (unsigned)op->root;

    p->op.coll = send ? COMMD_SEND : COMMD_RECV;
    p->op.count = block_elements(op, send, p->rank, 0);
    p->op.peer = send ? (int)op->to : op->root;
    p->op.tag = op->tag;
    if (!send && g->only_source[p->rank] >= 0)
        p->op.peer = COMMD_ANY_SOURCE;
    if (!send && g->any_tag[p->rank])
        p->op.tag = COMMD_ANY_TAG;
}

void part_new(struct part *p, const struct op_spec *spec, const struct group_spec *g, unsigned rank,
              struct commd_context *ctx)
{
    const struct op_spec *op = spec;
    uint64_t rng = spec->seed + 77 * (rank + 1);

    *p = (struct part){.spec = spec, .rank = rank, .world = g->world, .ctx = ctx};
    if (spec->odd && spec->odd_rank == rank)
        op = p->own = odd_spec(spec, rank, g->world);
    p->op = (struct commd_op){.size = sizeof p->op,
                              .coll = op->coll,
                              .dtype = op->dtype,
                              .redop = op->redop,
                              .root = op->root,
                              .count = op->count,
                              .scale = op->scale[rank]};
    place(p, op, &rng);
    fill(p);
    remember(&p->send);
    remember(&p->recv);
    if (!spec->odd)
        expect(p);
    if (is_counted(op->coll))
        set_counts(p, op);
    if (is_message(op->coll))
        set_message(p, op, g);
    set_addresses(p, op, &rng);
}

void part_free(struct part *p)
{
    free(p->own);
    memory_free(&p->send);
    memory_free(&p->recv);
}

static bool memory_check(const struct part *p, const struct memory *m, const char *name, char *why,
                         size_t len)
{
    size_t i = 0;

    if (!m->mem || !memcmp(m->mem, m->want, m->bytes))
        return true;
    while (m->mem[i] == m->want[i])
        i++;
    snprintf(why, len, "byte %zu of %zu of its %s memory is %#x, expected %#x; blocks at", i,
             m->bytes, name, m->mem[i], m->want[i]);
    for (unsigned b = 0; b < p->world; b++) {
        const uint8_t *at = p->recv_at[b];

        if (at >= m->mem && at < m->mem + m->bytes)
            snprintf(why + strlen(why), len - strlen(why), " %zu", (size_t)(at - m->mem));
    }
    return false;
}

int part_result(const struct part *p)
{
    bool concerned = !is_message(p->spec->coll) || p->rank == p->spec->to;

    return p->spec->odd && concerned ? COMMD_E_MISMATCH : COMMD_OK;
}

bool part_status(const struct part *p, const struct commd_status *st)
{
    return st->source == p->spec->root && st->tag == p->spec->tag &&
           st->bytes == p->spec->count * dtype_size((unsigned)p->spec->dtype);
}

bool part_check(const struct part *p, int code, const char *message, char *why, size_t len)
{
    int want = part_result(p);

    if (code != want) {
        snprintf(why, len, "result %d (%s), expected %d", code, code ? message : "no error", want);
        return false;
    }
    /* a refused operation has written nothing that was not its to write: inputs are intact */
    if (p->spec->odd)
        return p->recv.mem && p->send.mem ? memory_check(p, &p->send, "send", why, len) : true;
    return memory_check(p, &p->send, "send", why, len) &&
           memory_check(p, &p->recv, "receive", why, len);
}

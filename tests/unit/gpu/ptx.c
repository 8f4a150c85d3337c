/* ptx.c - an interpreter of PTX.
 *
 * Model. A module is parsed into kernels (ptx_parse.c), a kernel into a list of instructions whose
 * operands are numbers of slots: registers, constants, and what a thread can ask about itself. What
 * an instruction makes of values is in ptx_math.c. The threads of a grid run one after the other,
 * each to its end: our kernels have no barrier and no shared memory. That their order does not
 * matter is not taken for granted: who touches a byte that another thread has written, or writes
 * one that another has read, is an error.
 *
 * So is: an instruction that is not in the table; an operand whose register has another width than
 * the instruction's type; a register that is read before it is written; an access to memory that
 * the launch was not given, or not for that, or at an address that is no multiple of its size (of
 * all 16 bytes for a vector: hardware faults then); a byte that is written twice, or read when it
 * has been written; a parameter of another size than the kernel's; more threads than the kernel was
 * compiled for; a division by zero; a thread that does not come to an end. */
#include "tests/unit/gpu/ptx_priv.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS_MAX = 20 << 20 }; /* of a thread */
#define MANY 0x80000000u       /* of read_by: more than one thread */

struct runner {
    struct ptx_kernel *k;
    const struct ptx_launch *launch;
    struct ptx_memory *memory;
    const struct ptx_insn *insn; /* which is run */
    uint32_t first, me;          /* numbers of the launch's first thread, and of this one */
    uint64_t *value;             /* owned; of each slot */
    bool *set;                   /* owned */
    char *error;
};

static bool fault(struct runner *r, const char *format, ...)
{
    const uint64_t *v = r->value;
    va_list args;
    int n;

    n = snprintf(r->error, PTX_ERROR_MAX,
                 "%s, line %u: %.*s: thread %u of block %u, %u: ", r->k->name, r->insn->line,
                 (int)strcspn(r->insn->text, ";\n"), r->insn->text, (unsigned)v[TID_X],
                 (unsigned)v[CTAID_X], (unsigned)v[CTAID_Y]);
    va_start(args, format);
    vsnprintf(r->error + n, (size_t)MAX(PTX_ERROR_MAX - n, 0), format, args);
    va_end(args);
    return false;
}

static bool fetch(struct runner *r, const uint16_t *slot, unsigned n, uint64_t *ret_values)
{
    for (unsigned i = 0; i < n; i++) {
        if (!r->set[slot[i]])
            return fault(r, "its operand %u was never written", i + 1);
        ret_values[i] = r->value[slot[i]];
    }
    return true;
}

static void give(struct runner *r, uint16_t slot, uint64_t value)
{
    r->set[slot] = true;
    r->value[slot] = value;
}

/* In this launch. */
static bool by_another(const struct runner *r, uint32_t thread)
{
    return (thread & ~MANY) > r->first && thread != r->me;
}

static bool touch(struct runner *r, uint64_t at, unsigned size, unsigned how)
{
    struct ptx_memory *m = r->memory;
    uint64_t first = at - (uint64_t)(uintptr_t)m->at;

    if (first >= m->size || size > m->size - first)
        return fault(r, "%#llx is not of the launch's memory", (unsigned long long)at);
    if (at % size)
        return fault(r, "%#llx is no multiple of %u", (unsigned long long)at, size);
    for (uint64_t i = first; i < first + size; i++) {
        if (!(m->may[i] & how))
            return fault(r, "byte %llu is not its to %s", (unsigned long long)i,
                         how == PTX_READ ? "read" : "write");
        if (m->put_by[i] > r->first)
            return fault(r, "byte %llu was written before", (unsigned long long)i);
        if (how == PTX_WRITE && by_another(r, m->read_by[i]))
            return fault(r, "byte %llu was read by another thread", (unsigned long long)i);
        if (how == PTX_WRITE)
            m->put_by[i] = r->me;
        else if (by_another(r, m->read_by[i]))
            m->read_by[i] = MANY | r->me;
        else
            m->read_by[i] = r->me;
    }
    return true;
}

/* Where the bytes are, if they may be touched. */
static bool place(struct runner *r, unsigned size, void **ret_at)
{
    const struct ptx_insn *i = r->insn;
    const struct ptx_launch *l = r->launch;
    uint64_t at = 0;

    if (!fetch(r, i->src, 1, &at))
        return false;
    at += (uint64_t)i->offset;
    if (i->op != OP_LD_PARAM) {
        *ret_at = (void *)(uintptr_t)at;
        return touch(r, at, size, i->op == OP_ST ? PTX_WRITE : PTX_READ);
    }
    at -= PTX_PARAM_SPACE;
    if (at >= l->params_size || size > l->params_size - at)
        return fault(r, "byte %lld of %zu of parameters", (long long)at, l->params_size);
    if (at % size)
        return fault(r, "byte %lld is no multiple of %u", (long long)at, size);
    *ret_at = (char *)(uintptr_t)l->params + at;
    return true;
}

static bool load(struct runner *r)
{
    const struct ptx_insn *i = r->insn;
    unsigned bits = ptx_types[i->type].bits, bytes = bits / 8;
    void *at;

    if (!place(r, bytes * i->ndst, &at))
        return false;
    for (unsigned j = 0; j < i->ndst; j++) {
        uint64_t v = 0;

        memcpy(&v, (char *)at + j * bytes, bytes);
        if (ptx_types[i->type].is_signed)
            v = ptx_low((uint64_t)ptx_signed(v, bits), r->k->bits[i->dst[j]]);
        give(r, i->dst[j], v);
    }
    return true;
}

static bool store(struct runner *r)
{
    const struct ptx_insn *i = r->insn;
    unsigned bytes = ptx_types[i->type].bits / 8;
    uint64_t v[4];
    void *at;

    if (!fetch(r, i->dst, i->ndst, v) || !place(r, bytes * i->ndst, &at))
        return false;
    for (unsigned j = 0; j < i->ndst; j++)
        memcpy((char *)at + j * bytes, &v[j], bytes);
    return true;
}

/* All but branches. */
static bool step(struct runner *r)
{
    const struct ptx_insn *i = r->insn;
    unsigned half = ptx_types[i->type].bits / 2;
    uint64_t v[4] = {0};

    if (i->op == OP_LD || i->op == OP_LD_PARAM)
        return load(r);
    if (i->op == OP_ST)
        return store(r);
    if (!fetch(r, i->src, i->nsrc, v))
        return false;
    if (i->op == OP_DIV && ptx_types[i->type].kind == 'i' && !v[1])
        return fault(r, "divides by zero");
    if (i->op == OP_UNPACK) {
        give(r, i->dst[0], ptx_low(v[0], half));
        give(r, i->dst[1], v[0] >> half);
    } else {
        give(r, i->dst[0], ptx_compute(i, v, r->k->bits[i->dst[0]]));
    }
    return true;
}

static bool run_thread(struct runner *r)
{
    struct ptx_kernel *k = r->k;
    unsigned at = 0;

    for (unsigned steps = 0; steps < STEPS_MAX; steps++) {
        struct ptx_insn *i = &k->insns[at];
        uint64_t go = 1;

        if (at++ == k->ninsns)
            return fault(r, "behind it is no ret");
        r->insn = i;
        i->ran = true;
        if (i->guard != ALWAYS && !fetch(r, &i->guard, 1, &go))
            return false;
        if (!go != i->unless)
            continue;
        if (i->op == OP_RET)
            return true;
        if (i->op == OP_BRA)
            at = i->target;
        else if (!step(r))
            return false;
    }
    return fault(r, "no end");
}

static bool run_grid(struct runner *r)
{
    const struct ptx_launch *l = r->launch;
    struct ptx_kernel *k = r->k;
    unsigned long all = (unsigned long)l->gx * l->gy * l->threads;

    k->value[NTID_X] = l->threads;
    k->value[NCTAID_X] = l->gx;
    k->value[NCTAID_Y] = l->gy;
    for (unsigned long t = 0; t < all; t++) {
        k->value[TID_X] = t % l->threads;
        k->value[CTAID_X] = t / l->threads % l->gx;
        k->value[CTAID_Y] = t / l->threads / l->gx;
        memcpy(r->value, k->value, k->nslots * sizeof *r->value);
        memcpy(r->set, k->set, k->nslots * sizeof *r->set);
        r->me = ++r->memory->threads;
        if (!run_thread(r))
            return false;
    }
    return true;
}

int ptx_run(struct ptx *x, const struct ptx_launch *l, struct ptx_memory *m, char *ret_error)
{
    struct runner r = {.launch = l, .memory = m, .first = m->threads, .error = ret_error};
    bool done;

    for (unsigned i = 0; i < x->nkernels && !r.k; i++)
        if (!strcmp(x->kernels[i].name, l->kernel))
            r.k = &x->kernels[i];
    if (!r.k || l->params_size != r.k->param_size || !l->threads || !l->gx || !l->gy ||
        (r.k->maxntid && l->threads > r.k->maxntid)) {
        snprintf(ret_error, PTX_ERROR_MAX,
                 "%s: %u * %u blocks of %u threads, parameter of %zu bytes: %s", l->kernel, l->gx,
                 l->gy, l->threads, l->params_size, r.k ? "not its" : "there is no such kernel");
        return -1;
    }
    r.value = calloc(r.k->nslots, sizeof *r.value);
    r.set = calloc(r.k->nslots, sizeof *r.set);
    done = run_grid(&r);
    free(r.value);
    free(r.set);
    return done ? 0 : -1;
}

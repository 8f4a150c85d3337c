/* gpu_launch.c - an operation becomes work on streams.
 *
 * A phase of the plan (gpu_plan.c) becomes as few launches as move.c can make of it. An operation
 * ends on a stream with one call, which writes the done words of all members on that GPU, and our
 * own number behind them. The results are written before: a done word that was seen says
 * that the operation has succeeded, for a device that fails writes none. */
#include "transport/gpu/gpu_op.h"

#include "shm/util/wait.h"

/* ---- plans ----------------------------------------------------------------------------------- */

const char *launch_plan(struct gop *op)
{
    const struct ggroup *gr = op->group;
    unsigned at = 0;

    for (unsigned u = 0; u < gr->nhere; u++) {
        const struct gunit *unit = &gr->here[u];
        struct gpu_plan *p = &op->plan[u];

        *p = (struct gpu_plan){
            .desc = op->of[0]->desc,
            .world = gr->world,
            .nunits = gr->nunits,
            .unit_of_rank = gr->unit_of_rank,
            .unit = unit->number,
            .nranks = unit->nranks,
            .ranks = &op->ranks[at],
        };
        for (unsigned i = 0; i < unit->nranks; i++)
            op->ranks[at++] = op->of[unit->at[i]]->rank;
        if (!gpu_plan_make(p))
            return "its buffers and counts cannot be worked on";
    }
    return NULL;
}

uint32_t launch_wish(const struct gop *op)
{
    return MIN(op->group->g->part, gpu_plan_part(op->plan, user_beside(op)));
}

uint64_t launch_cell(const struct gop *op)
{
    uint64_t most = 0;

    for (unsigned u = 0; u < op->group->nhere; u++)
        most = MAX(most, gpu_plan_cell(&op->plan[u]));
    return most;
}

void launch_cut(struct gop *op, uint32_t part, uint64_t cell)
{
    for (unsigned u = 0; u < op->group->nhere; u++)
        gpu_plan_slice(&op->plan[u], part, cell);
}

uint64_t launch_scratch(const struct gop *op, unsigned unit)
{
    return op->plan[unit].scratch;
}

/* ---- moves ----------------------------------------------------------------------------------- */

/* A phase on its way onto a stream. */
struct launching {
    struct gstream *s;
    struct gpu_launch launch;
};

static void launch(struct launching *l)
{
    struct gdevice *d = l->s->dev;
    void *params[] = {&l->launch.batch};

    if (gpu_launch_close(&l->launch, (unsigned)d->multiprocessors))
        device_check(d,
                     d->g->cu.launch(d->kernel[l->launch.kernel], l->launch.gx, l->launch.gy, 1,
                                     l->launch.threads, 1, 1, 0, l->s->s, params, NULL),
                     gpu_kernel_name(l->launch.kernel));
}

static void launch_move(void *arg, const struct gpu_move *m)
{
    struct launching *l = arg;

    if (gpu_launch_add(&l->launch, m))
        return;
    launch(l);
    gpu_launch_init(&l->launch);
    gpu_launch_add(&l->launch, m);
}

void launch_phase(struct gop *op, unsigned unit, struct gstream *s, uint32_t round,
                  enum gpu_phase phase)
{
    struct launching l = {.s = s}; /* zeroed: the kernel's parameter is sent as a whole */
    struct gpu_sink sink = {.arg = &l, .move = launch_move};

    gpu_launch_init(&l.launch);
    gpu_plan_phase(&op->plan[unit], round, phase, &sink);
    launch(&l);
}

/* ---- the end --------------------------------------------------------------------------------- */

static void write_word(union cu_batch_op *op, cu_ptr at, uint32_t value)
{
    memset(op, 0, sizeof *op);
    op->value.operation = CU_BATCH_WRITE32;
    op->value.address = at;
    op->value.value = value;
    op->value.flags = CU_WRITE_DEFAULT;
}

struct gflight *launch_flight(const struct gop *op, unsigned unit)
{
    return &op->flight[op->round % GPU_PARTS * op->group->nhere + unit];
}

/* What was put on the stream is the operation, or a part of it. @words: @n, and room for one more.
 */
static void launch_ticket(struct gop *op, unsigned unit, struct gstream *s,
                          union cu_batch_op *words, unsigned n)
{
    struct gflight *f = launch_flight(op, unit);

    assert_loop(s->dev->g);
    assert(!f->up && s->nflying < GPU_STREAM_DEPTH); /* a full stream would block us */
    assert(op->state >= OP_PARTS && s->dev == op->group->here[unit].dev);
    write_word(&words[n], s->passed_dev, ++s->issued);
    atomic_thread_fence(memory_order_release); /* results before anything that the device writes */
    device_check(s->dev, s->dev->g->cu.stream_batch(s->s, n + 1, words, 0), "cuStreamBatchMemOp");
    *f = (struct gflight){.op = op, .ticket = s->issued, .up = true};
    STAILQ_INSERT_TAIL(&s->flying, f, next);
    if (!s->nflying++)
        s->since_ms = now_ms();
    s->dev->g->nflying++;
    op->streams++;
}

void launch_part(struct gop *op, unsigned unit, struct gstream *s)
{
    union cu_batch_op word;

    launch_ticket(op, unit, s, &word, 0);
}

void launch_end(struct gop *op, unsigned unit, struct gstream *s)
{
    const struct gunit *u = &op->group->here[unit];
    union cu_batch_op words[SESSION_MAX_RANKS + 1];

    for (unsigned i = 0; i < u->nranks; i++) {
        struct gannounce *a = op->of[u->at[i]];
        size_t done =
            offsetof(struct session_flags, done) + a->n % SESSION_SLOTS * sizeof(_Atomic uint32_t);

        write_word(&words[i], a->session->flags + done, session_mark(a->n));
        u->dev->moved += a->reads;
        if (!op->failed)
            slot_succeed(a->session, a->n);
    }
    u->dev->operations++;
    launch_ticket(op, unit, s, words, u->nranks);
}

struct gstream *launch_stream(const struct gop *op)
{
    const struct ggroup *gr = op->group;

    return &gr->here[0].dev->stream[STREAM_MOVES + gr->user->line];
}

void launch_local(struct gop *op)
{
    struct gunit *u = &op->group->here[0];
    struct gstream *s = launch_stream(op);
    struct gpu_plan *p = &op->plan[0];

    device_check(u->dev, device_use(u->dev), "cuCtxSetCurrent");
    p->at = s->scratch;
    for (uint32_t round = 0; round < p->rounds; round++)
        for (unsigned phase = 0; phase < GPU_PHASES; phase++)
            if (phase != GPU_CALLS)
                launch_phase(op, 0, s, round, phase);
    assert(op->state == OP_INPUTS && op->group->nunits == 1);
    op->state = OP_FLYING;
    op->group->flying++;
    launch_end(op, 0, s);
}

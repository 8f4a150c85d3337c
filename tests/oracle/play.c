/* play.c - all ranks of a program in one thread, over the library's own queue of works.
 *
 * Nobody waits: each turn goes to a rank or an engine that the seed chooses, so all
 * interleavings of the ranks' steps can occur, and the one that fails occurs again. A blocking
 * call is one that is started and waited for before anything else. When nothing has moved for
 * very many turns, something is stuck. */
#include "tests/oracle/oracle.h"

#include <stdio.h>
#include <sys/socket.h>

#include "client/lib/device/device.h"
#include "shm/reduce/reduce.h"

enum { MAX_IDLE_TURNS = 50000 };

/* ---- the stage ------------------------------------------------------------------------------- */

static struct commd_context *context_new(void)
{
    struct commd_context *ctx = calloc(1, sizeof *ctx);

    ctx->pid = getpid();
    ctx->doorbell = ctx->back.sock = -1;
    ctx->finished_tail = &ctx->finished;
    pthread_mutex_init(&ctx->lock, NULL);
    pthread_mutex_init(&ctx->plock, NULL);
    pthread_cond_init(&ctx->cond, NULL);
    pthread_cond_init(&ctx->pcond, NULL);
    return ctx;
}

void stage_new(struct stage *s, const struct program *p, int doorbell)
{
    reduce_force(p->kernels);
    *s = (struct stage){.program = p};
    cluster_plans(p->plans);
    s->cluster = cluster_new(p->world, p->nnodes, p->rank_node, p->seed);
    for (unsigned k = 0; k < p->world; k++)
        s->ctx[k] = context_new();
    s->commd = arena_commd_new(s->ctx, p->world);
    for (unsigned g = 0; g < p->ngroups; g++)
        s->group[g] = cluster_group_new(s->cluster, 0x100 + g, p->group[g].rank, p->group[g].world,
                                        s->ctx, doorbell);
    for (unsigned g = 0; g < p->ngroups; g++)
        for (unsigned k = 0; k < p->group[g].world; k++)
            commd_group_set_timeout(s->group[g]->member[k], TIMEOUT_MS);
}

void stage_free(struct stage *s)
{
    for (unsigned g = 0; g < s->program->ngroups; g++)
        cluster_group_free(s->cluster, s->group[g]);
    for (unsigned k = 0; k < s->program->world; k++)
        device_free(s->ctx[k]);
    arena_commd_free(s->commd);
    for (unsigned k = 0; k < s->program->world; k++) {
        back_fini(s->ctx[k]);
        pthread_mutex_destroy(&s->ctx[k]->lock);
        pthread_mutex_destroy(&s->ctx[k]->plock);
        pthread_cond_destroy(&s->ctx[k]->cond);
        pthread_cond_destroy(&s->ctx[k]->pcond);
        close(s->ctx[k]->sock);
        free(s->ctx[k]);
    }
    cluster_free(s->cluster);
    reduce_force(NULL);
}

/* ---- ranks ----------------------------------------------------------------------------------- */

const struct op_spec *player_spec(const struct player *pl, unsigned i)
{
    const struct program *p = pl->stage->program;

    return &p->op[p->call[pl->rank][i]];
}

static unsigned rank_in_group(const struct player *pl, unsigned i)
{
    unsigned group = player_spec(pl, i)->group;

    return (unsigned)group_rank_of(&pl->stage->program->group[group], pl->rank);
}

struct commd_group *player_group(const struct player *pl, unsigned i)
{
    return pl->stage->group[player_spec(pl, i)->group]->member[rank_in_group(pl, i)];
}

void *player_stream(const struct player *pl, unsigned i)
{
    return pl->gpu.stream[player_spec(pl, i)->seed % GPU_STREAMS];
}

bool player_blocks(const struct player *pl, unsigned i)
{
    return player_spec(pl, i)->sync >> rank_in_group(pl, i) & 1;
}

int player_wrong(const struct player *pl, unsigned i, const char *why)
{
    fprintf(stderr, "op %u (%s) on rank %u: %s\n", pl->stage->program->call[pl->rank][i],
            name_of(player_spec(pl, i)->coll), pl->rank, why);
    return -1;
}

void player_part(struct player *pl, unsigned i)
{
    const struct op_spec *op = player_spec(pl, i);

    part_new(&pl->call[i].part, op, &pl->stage->program->group[op->group], rank_in_group(pl, i),
             pl->stage->ctx[pl->rank]);
}

static void on_done(void *arg, const struct commd_error *error)
{
    struct call *c = arg;

    atomic_fetch_add(&c->told, 1);
}

/* How many of the next calls go into one submission: some of those that may. */
static unsigned batch_of(const struct player *pl)
{
    const struct op_spec *first = player_spec(pl, pl->next);
    unsigned ncalls = pl->stage->program->ncalls[pl->rank], n = 1;

    if (player_blocks(pl, pl->next) || (first->seed >> 20 & 3) == 0)
        return 1;
    for (; pl->next + n < ncalls && n < 4; n++) {
        const struct op_spec *op = player_spec(pl, pl->next + n);

        if (op->group != first->group || op->phase != first->phase ||
            player_blocks(pl, pl->next + n))
            break;
    }
    return n;
}

int player_start(struct player *pl)
{
    struct commd_group *g = player_group(pl, pl->next);
    struct call *c = &pl->call[pl->next];
    struct commd_op ops[MAX_OPS];
    int r;

    c->batch = batch_of(pl);
    for (unsigned i = 0; i < c->batch; i++) {
        player_part(pl, pl->next + i);
        if (is_on_gpu(player_spec(pl, pl->next + i), rank_in_group(pl, pl->next + i)))
            gpu_part_fill(&pl->call[pl->next + i].part, player_stream(pl, pl->next + i));
        ops[i] = pl->call[pl->next + i].part.op;
    }
    if (c->batch == 1)
        r = commd_start(g, ops, on_done, c, &c->work);
    else
        r = commd_start_batch(g, ops, c->batch, on_done, c, &c->work);
    if (r)
        return player_wrong(pl, pl->next, commd_last_error()->message);
    pl->open++;
    pl->next += c->batch;
    return 0;
}

int player_check(struct player *pl, unsigned i, int code)
{
    struct call *c = &pl->call[i];
    char why[512];

    if (!part_check(&c->part, code, commd_last_error()->message, why, sizeof why))
        return player_wrong(pl, i, why);
    part_free(&c->part);
    return 0;
}

/* Sometimes a stream waits instead of the host, and takes the results. */
static int wait_on_stream(struct player *pl, unsigned i)
{
    struct call *c = &pl->call[i];
    void *stream = pl->gpu.stream[player_spec(pl, i)->seed / 8 % GPU_STREAMS];
    bool gpu = false;
    int r;

    for (unsigned k = 0; k < c->batch; k++)
        gpu |= is_on_gpu(player_spec(pl, i + k), rank_in_group(pl, i + k));
    if (!gpu || player_spec(pl, i)->seed >> 33 & 1)
        return 0;
    r = commd_work_wait_stream(c->work, stream);
    for (unsigned k = 0; k < c->batch && !r; k++)
        if (is_on_gpu(player_spec(pl, i + k), rank_in_group(pl, i + k)))
            gpu_part_take(&pl->call[i + k].part, stream);
    return r;
}

int player_finish(struct player *pl, unsigned i)
{
    struct call *c = &pl->call[i];
    int on_stream = wait_on_stream(pl, i), code = commd_work_wait(c->work, -1), want = 0;
    struct commd_status st;

    if (on_stream && on_stream != code)
        return player_wrong(pl, i, "the stream could not wait for it");

    if (c->batch == 1 && c->part.op.coll == COMMD_RECV && code == 0) {
        commd_work_status(c->work, &st);
        if (!part_status(&c->part, &st))
            return player_wrong(pl, i, "its status is wrong");
    }
    for (unsigned k = 0; k < c->batch && !want; k++)
        want = part_result(&pl->call[i + k].part);
    /* that of the whole must be right, then each operation has its own */
    for (unsigned k = 0; k < c->batch; k++)
        if (player_check(pl, i + k, code == want ? part_result(&pl->call[i + k].part) : code))
            return -1;
    if (code != want)
        return player_wrong(pl, i, "its batch has another result than its operations");
    commd_work_free(steal_ptr(c->work));
    pl->open--;
    return 0;
}

/* ---- all in one thread ----------------------------------------------------------------------- */

/* Looks at what has ended. 1: something has. */
static int collect(struct player *pl)
{
    int moved = 0, code;

    for (unsigned i = 0; i < pl->next && pl->open; i++) {
        if (!pl->call[i].work || !commd_work_test(pl->call[i].work, &code))
            continue;
        if (player_finish(pl, i))
            return -1;
        if (pl->call[i].told != 1)
            return player_wrong(pl, i, "on_done was not called once");
        moved = 1;
    }
    return moved;
}

static bool may_start(const struct player *pl)
{
    if (pl->next == pl->stage->program->ncalls[pl->rank])
        return false;
    return !pl->open || (!player_blocks(pl, pl->next - 1) &&
                         player_spec(pl, pl->next)->phase == player_spec(pl, pl->next - 1)->phase);
}

/* 1: something moved, 0: nothing, -1: wrong. */
static int player_turn(struct player *pl)
{
    int moved = async_poll(pl->stage->ctx[pl->rank]), r = collect(pl);

    if (r < 0)
        return -1;
    moved |= r;
    if (!may_start(pl))
        return moved;
    return player_start(pl) ? -1 : 1;
}

static int stuck(const struct stage *s, const struct player *players)
{
    for (unsigned k = 0; k < s->program->world; k++)
        for (unsigned i = 0; i < players[k].next; i++)
            if (players[k].call[i].work)
                player_wrong(&players[k], i, "still under way, and nothing moves");
    if (s->cluster->last_error[0])
        fprintf(stderr, "an engine reported: %s\n", s->cluster->last_error);
    return -1;
}

/* A question about an arena is answered by another thread, whenever that runs. */
static bool asks(const struct stage *s)
{
    for (unsigned g = 0; g < s->program->ngroups; g++)
        for (unsigned k = 0; k < s->program->group[g].world; k++) {
            const struct commd_group *member = s->group[g]->member[k];

            if (member->now->running && run_asks(&member->now->running->run))
                return true;
        }
    return false;
}

static bool over(const struct stage *s, const struct player *players)
{
    for (unsigned k = 0; k < s->program->world; k++)
        if (players[k].open || players[k].next < s->program->ncalls[k])
            return false;
    return true;
}

static int play(struct stage *s, struct player *players, uint64_t *rng)
{
    unsigned idle = 0;

    while (!over(s, players)) {
        bool moved = s->program->nnodes > 1 && cluster_turn(s->cluster);
        int r = player_turn(&players[draw(rng, s->program->world)]);

        if (r < 0)
            return -1;
        idle = moved || r ? 0 : idle + 1;
        if (idle == MAX_IDLE_TURNS && asks(s))
            idle = 0;
        if (idle == MAX_IDLE_TURNS)
            return stuck(s, players);
    }
    return s->cluster->board_errors || s->cluster->peers_down ? stuck(s, players) : 0;
}

int play_polled(const struct program *p)
{
    struct player *players = calloc(p->world, sizeof *players);
    uint64_t rng = p->seed * 0x9e3779b97f4a7c15ull + 5;
    struct stage s;
    int r;

    stage_new(&s, p, -1);
    for (unsigned k = 0; k < p->world; k++) {
        s.ctx[k]->thread_up = true; /* we are it */
        players[k].stage = &s;
        players[k].rank = k;
    }
    r = play(&s, players, &rng);
    if (r == 0) /* else the process ends, and works under way would only be in the way */
        stage_free(&s);
    free(players);
    return r;
}

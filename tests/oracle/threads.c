/* threads.c - a program with a thread for each rank, as processes would run it: blocking calls
 * on the caller's thread, asynchronous ones on the library's, sleepers woken by futexes, and
 * all engines on one thread that dozes until a member rings.
 *
 * What the threads do when is the kernel's choice, so a failure may not come again; the program
 * is the same. Members and engine of a node share one mapping of the board: a thread sanitizer
 * does not know that two addresses can be the same memory. */
#include "tests/oracle/oracle.h"

#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <sys/eventfd.h>

enum { IDLE_TURNS = 100, DOZE_MS = 50, RING_MS = 5000 };

/* ---- the engines ----------------------------------------------------------------------------- */

struct engines {
    struct cluster *cluster;
    int bell; /* what all members ring */
    _Atomic bool stop;
    pthread_t thread;
};

static bool engines_turn(struct engines *e)
{
    bool moved = false;

    for (unsigned n = 0; n < e->cluster->nnodes; n++) {
        struct cluster_node *node = &e->cluster->node[n];

        moved |= node->fabric->ops->progress(node->fabric);
        moved |= engine_poll(node->engine);
    }
    return moved;
}

/* The net under lost doorbells must not catch anything but what is about to ring: a member that was
 * stopped before it did, or between announcing and reducing, which alone is worth a ring. It rings
 * only for an engine that sleeps, so the engines go on doing so. */
static void caught(struct engines *e, struct pollfd *bell)
{
    bool moved = false;

    for (unsigned n = 0; n < e->cluster->nnodes; n++) {
        moved |= engine_poll_all(e->cluster->node[n].engine);
        engine_arm(e->cluster->node[n].engine);
    }
    if (moved && poll(bell, 1, RING_MS) == 0) {
        fprintf(stderr, "oracle: a member went on and did not ring for its engine\n");
        abort();
    }
}

/* As engine_main.c does; who rang the bell does not say. */
static void engines_doze(struct engines *e)
{
    struct pollfd p = {.fd = e->bell, .events = POLLIN};
    uint64_t rings;
    bool moved = false;

    for (unsigned n = 0; n < e->cluster->nnodes; n++)
        moved |= engine_arm(e->cluster->node[n].engine);
    if (!moved && poll(&p, 1, DOZE_MS) == 0)
        caught(e, &p);
    if (read(e->bell, &rings, sizeof rings) == sizeof rings)
        for (unsigned n = 0; n < e->cluster->nnodes; n++)
            for (unsigned k = 0; k < e->cluster->world; k++)
                engine_wake_client(e->cluster->node[n].engine, k);
}

static void *engines_main(void *arg)
{
    struct engines *e = arg;
    unsigned idle = 0;

    while (!atomic_load(&e->stop)) {
        idle = engines_turn(e) ? 0 : idle + 1;
        if (idle > IDLE_TURNS)
            engines_doze(e);
        else if (idle)
            sched_yield();
    }
    return NULL;
}

/* ---- ranks ----------------------------------------------------------------------------------- */

static int receive(struct commd_group *g, const struct part *p)
{
    struct commd_status st;
    int r = commd_recv(g, p->op.recv, p->op.count, p->op.dtype, p->op.peer, p->op.tag, &st);

    return r || part_status(p, &st) ? r : COMMD_E_INTERNAL;
}

/* A blocking call, by the function of its own if there is one for it. */
static int call_blocking(struct commd_group *g, const struct part *p)
{
    const struct commd_op *o = &p->op;

    if (o->stream || o->memory == COMMD_MEMORY_CUDA || o->send_blocks || o->recv_blocks ||
        (is_reducing(o->coll) && o->redop == COMMD_PREMUL_SUM))
        return commd_run(g, o);
    switch (o->coll) {
    case COMMD_BARRIER:
        return commd_barrier(g);
    case COMMD_ALL_REDUCE:
        return commd_all_reduce(g, o->send, o->recv, o->count, o->dtype, o->redop);
    case COMMD_BROADCAST:
        return commd_broadcast(g, o->recv, o->count, o->dtype, o->root);
    case COMMD_ALL_GATHER:
        return commd_all_gather(g, o->send, o->recv, o->count, o->dtype);
    case COMMD_REDUCE_SCATTER:
        return commd_reduce_scatter(g, o->send, o->recv, o->count, o->dtype, o->redop);
    case COMMD_REDUCE:
        return commd_reduce(g, o->send, o->recv, o->count, o->dtype, o->redop, o->root);
    case COMMD_GATHER:
        return commd_gather(g, o->send, o->recv, o->count, o->dtype, o->root);
    case COMMD_SCATTER:
        return commd_scatter(g, o->send, o->recv, o->count, o->dtype, o->root);
    case COMMD_ALL_TO_ALL:
        return commd_all_to_all(g, o->send, o->recv, o->count, o->dtype);
    case COMMD_ALL_GATHER_V:
        return commd_all_gather_v(g, o->send, o->recv, o->recv_counts, o->dtype);
    case COMMD_REDUCE_SCATTER_V:
        return commd_reduce_scatter_v(g, o->send, o->recv, o->send_counts, o->dtype, o->redop);
    case COMMD_GATHER_V:
        return commd_gather_v(g, o->send, o->send_counts[0], o->recv, o->recv_counts, o->dtype,
                              o->root);
    case COMMD_SCATTER_V:
        return commd_scatter_v(g, o->send, o->send_counts, o->recv, o->recv_counts[0], o->dtype,
                               o->root);
    case COMMD_SEND:
        return commd_send(g, o->send, o->count, o->dtype, o->peer, o->tag);
    case COMMD_ALL_TO_ALL_V:
        return commd_all_to_all_v(g, o->send, o->send_counts, o->recv, o->recv_counts, o->dtype);
    case COMMD_RECV:
        return receive(g, p);
    }
    return commd_run(g, o);
}

static void finish_all(struct player *pl)
{
    for (unsigned i = 0; i < pl->next; i++)
        if (pl->call[i].work && player_finish(pl, i))
            failed(pl->stage->program);
}

static int run_blocking(struct player *pl, unsigned i)
{
    struct part *part = &pl->call[i].part;
    bool gpu = is_on_gpu(part->spec, part->rank);
    int r;

    if (gpu)
        gpu_part_fill(part, player_stream(pl, i));
    r = call_blocking(player_group(pl, i), part);
    if (gpu && !r)
        gpu_part_take(part, player_stream(pl, i));
    return player_check(pl, i, r);
}

static void *rank_main(void *arg)
{
    struct player *pl = arg;
    unsigned ncalls = pl->stage->program->ncalls[pl->rank], phase = 0;

    if (pl->stage->program->gpu)
        gpu_rank_begin(&pl->gpu, pl->rank);
    while (pl->next < ncalls) {
        unsigned i = pl->next;

        if (player_spec(pl, i)->phase != phase)
            finish_all(pl);
        phase = player_spec(pl, i)->phase;
        if (player_blocks(pl, i)) {
            pl->next++;
            player_part(pl, i);
            if (run_blocking(pl, i))
                failed(pl->stage->program);
        } else if (player_start(pl)) {
            failed(pl->stage->program);
        }
    }
    finish_all(pl);
    if (pl->stage->program->gpu)
        gpu_rank_end(&pl->gpu);
    return NULL;
}

/* ---- all ------------------------------------------------------------------------------------- */

static int told_once(const struct player *pl)
{
    for (unsigned i = 0; i < pl->next; i++)
        if (pl->call[i].told != (pl->call[i].batch > 0))
            return player_wrong(pl, i, "on_done was not called once");
    return 0;
}

static void start(pthread_t *thread, void *(*fn)(void *), void *arg)
{
    if (pthread_create(thread, NULL, fn, arg))
        abort();
}

int play_threads(const struct program *p)
{
    struct player *players = calloc(p->world, sizeof *players);
    struct engines engines = {0};
    struct stage s;
    int bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), r = 0;

    if (bell < 0)
        abort();
    stage_new(&s, p, bell);
    for (unsigned g = 0; g < p->ngroups; g++)
        cluster_group_one_mapping(s.cluster, s.group[g]);
    engines.cluster = s.cluster;
    engines.bell = bell;
    if (p->nnodes > 1)
        start(&engines.thread, engines_main, &engines);
    for (unsigned k = 0; k < p->world; k++) {
        players[k].stage = &s;
        players[k].rank = k;
        start(&players[k].thread, rank_main, &players[k]);
    }
    for (unsigned k = 0; k < p->world; k++)
        pthread_join(players[k].thread, NULL);
    for (unsigned k = 0; k < p->world; k++) {
        async_stop(s.ctx[k]);
        r |= told_once(&players[k]);
    }
    atomic_store(&engines.stop, true);
    if (p->nnodes > 1)
        pthread_join(engines.thread, NULL);
    r |= s.cluster->board_errors || s.cluster->peers_down ? -1 : 0;
    stage_free(&s);
    close(bell);
    free(players);
    return r;
}

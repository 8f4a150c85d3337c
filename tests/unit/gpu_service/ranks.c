/* ranks.c - see ranks.h. */
#include "ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>
#include <unistd.h>

#include "client/lib/device/session.h"
#include "tests/lib/env.h"
#include "tests/lib/arena_commd.h"

struct pair pair;
struct commd_error pair_error[PAIR];
static const struct context_hooks hooks = {.watch = device_watch};

void pair_environment(const char *devices)
{
    setenv("FAKECUDA_DELAY_US", "200", 0);
    env_set("FAKECUDA_DEVICES", devices);
}

/* A client that asks again loses what it had, as with commd. */
static void give_session(void *arg, unsigned client, int fd)
{
    service_session_del(&pair.service, client + 1);
    service_give(&pair.service, 1000, (uint32_t)getpid(), client + 1, fd);
}

void pair_start_service(const char *const *settings)
{
    if (pair.service.pid)
        service_stop(&pair.service);
    service_start(&pair.service, settings);
}

int pair_setup(void **state)
{
    pair_start_service(NULL);
    pair.in = pair.ranks = gpu_ranks_new(PAIR);
    pair.commd = arena_commd_new(pair.ranks->ctx, PAIR);
    arena_commd_service(pair.commd, give_session, NULL);
    for (unsigned k = 0; k < PAIR; k++) {
        atomic_store(&pair.ranks->ctx[k]->lost, false);
        pair.ranks->group[k]->now->board.gpu = true;
        pair.ranks->ctx[k]->hooks = &hooks;
        pair.stream[k] = gpu_stream();
    }
    return 0;
}

int pair_teardown(void **state)
{
    if (pair.other)
        pair.other = gpu_ranks_free(pair.other);
    pair.ranks = gpu_ranks_free(pair.ranks);
    pair.commd = arena_commd_free(pair.commd);
    if (!service_until(&pair.service, 0, 0, 0))
        return -1;
    service_stop(&pair.service);
    pair.service.pid = 0;
    for (unsigned k = 0; k < PAIR; k++)
        gpu_ok(cu.stream_free(pair.stream[k]));
    return 0;
}

struct call {
    struct commd_op op;
    unsigned rank;
    int gpu;
    struct commd_work **work;
    pthread_t thread;
};

static void *call_main(void *arg)
{
    struct call *c = arg;
    struct commd_group *g = pair.in->group[c->rank];
    cu_context ctx;
    int code;

    gpu_ok(cu.primary_retain(&ctx, c->gpu));
    gpu_ok(cu.ctx_set(ctx));
    code = c->work ? commd_start(g, &c->op, NULL, NULL, c->work) : commd_run(g, &c->op);
    pair_error[c->rank] = *commd_last_error();
    pair_error[c->rank].code = code;
    return NULL;
}

void pair_call(const struct commd_op op[PAIR], const int gpu[PAIR], struct commd_work **work)
{
    struct call c[PAIR];

    for (unsigned k = 0; k < PAIR; k++) {
        c[k] = (struct call){.op = op[k], .rank = k, .gpu = gpu[k], .work = work ? &work[k] : NULL};
        assert_int_equal(pthread_create(&c[k].thread, NULL, call_main, &c[k]), 0);
    }
    for (unsigned k = 0; k < PAIR; k++)
        pthread_join(c[k].thread, NULL);
}

void pair_run(const struct commd_op op[PAIR], const int *gpu)
{
    pair_call(op, gpu ? gpu : (int[PAIR]){0}, NULL);
    for (unsigned k = 0; k < PAIR; k++) {
        if (pair_error[k].code)
            fail_msg("rank %u: %s", k, pair_error[k].message);
        assert_true(gpu_passes(op[k].stream));
    }
}

struct commd_op pair_op(int coll, unsigned rank, void *buf, size_t n)
{
    return (struct commd_op){.size = sizeof(struct commd_op),
                             .coll = coll,
                             .dtype = COMMD_I32,
                             .send = buf,
                             .recv = buf,
                             .count = n,
                             .stream = pair.stream[rank]};
}

bool pair_lost(unsigned rank)
{
    struct session *s = atomic_load(&pair.ranks->ctx[rank]->device->session);

    while (s && atomic_load(&s->lost))
        s = s->next;
    return !s;
}

void assert_error(unsigned rank, int code, const char *part)
{
    assert_int_equal(pair_error[rank].code, code);
    if (!strstr(pair_error[rank].message, part))
        fail_msg("\"%s\" lacks \"%s\"", pair_error[rank].message, part);
}

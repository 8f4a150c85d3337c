/* test_stand_in.c - who waits for a work does what the progress thread does (async/progress.c):
 * nobody else is needed; several who wait, with limits and without; the order of callbacks;
 * leaving while they wait. */
#include <signal.h>

#include "tests/unit/client/members.h"

enum { WAITERS = 3, ROUNDS = 400, AHEAD = 4 };

static struct commd_op sum_of(int32_t *x, size_t count)
{
    return (struct commd_op){.size = sizeof(struct commd_op),
                             .coll = COMMD_ALL_REDUCE,
                             .dtype = COMMD_I32,
                             .redop = COMMD_SUM,
                             .send = x,
                             .recv = x,
                             .count = count};
}

/* ---- nobody else ----------------------------------------------------------------------------- */

struct lone {
    pthread_t thread, told; /* told: the thread that called on_done */
    struct member *m;
    int32_t x;
    int errors;
};

static void told(void *arg, const struct commd_error *error)
{
    struct lone *l = arg;

    l->told = pthread_self();
    l->errors += error != NULL;
}

static void *lone_main(void *arg)
{
    struct lone *l = arg;
    struct commd_op op = sum_of(&l->x, 1);
    struct commd_work *work = NULL;

    l->m->ctx->thread_up = true; /* there is none */
    for (unsigned i = 0; i < ROUNDS; i++) {
        l->x = 1;
        l->told = l->m->ctx->thread;
        l->errors += commd_start(l->m->group, &op, told, l, &work) != 0;
        l->errors += commd_work_wait(work, 300000) != 0;
        l->errors += l->x != MEMBERS || !pthread_equal(l->told, pthread_self());
        commd_work_free(work);
        if (l->errors)
            break;
    }
    l->m->ctx->thread_up = false;
    return NULL;
}

static void who_waits_needs_no_other_thread(void **state)
{
    struct member m[MEMBERS];
    struct board_ctl *ctl = members_new(m);
    struct lone lone[MEMBERS] = {0};

    for (unsigned k = 0; k < MEMBERS; k++) {
        lone[k].m = &m[k];
        assert_int_equal(pthread_create(&lone[k].thread, NULL, lone_main, &lone[k]), 0);
    }
    for (unsigned k = 0; k < MEMBERS; k++)
        pthread_join(lone[k].thread, NULL);
    members_free(m, ctl);
    for (unsigned k = 0; k < MEMBERS; k++)
        assert_int_equal(lone[k].errors, 0);
}

/* ---- several --------------------------------------------------------------------------------- */

/* One thread of a member starts operations, some ahead; several wait for each of them. */
struct crew {
    pthread_t starter, waiters[WAITERS];
    struct member *m;
    _Atomic(struct commd_work *) works[AHEAD]; /* of the round modulo AHEAD */
    _Atomic unsigned started, waited[AHEAD];
    int32_t x[AHEAD][5000];
    _Atomic int errors;
};

static void *starter_main(void *arg)
{
    struct crew *c = arg;

    for (unsigned round = 0; round < ROUNDS; round++) {
        unsigned at = round % AHEAD, count = round % 3 ? 3 : 5000;
        struct commd_op op = sum_of(c->x[at], count);
        struct commd_work *work, *old;

        while (round >= AHEAD && atomic_load(&c->waited[at]) < WAITERS)
            sched_yield();
        old = atomic_load(&c->works[at]);
        if (old)
            commd_work_free(old);
        atomic_store(&c->waited[at], 0);
        for (unsigned i = 0; i < count; i++)
            c->x[at][i] = (int32_t)(round + i);
        if (commd_start(c->m->group, &op, NULL, NULL, &work)) {
            c->errors++;
            abort();
        }
        atomic_store(&c->works[at], work);
        atomic_store(&c->started, round + 1);
        if (round % 16 == 5) { /* behind what was started */
            int32_t one = 1;

            c->errors += commd_all_reduce(c->m->group, &one, &one, 1, COMMD_I32, COMMD_SUM) != 0;
            c->errors += one != MEMBERS;
        }
    }
    return NULL;
}

static void *crew_waiter_main(void *arg)
{
    struct crew *c = arg;

    for (unsigned round = 0; round < ROUNDS; round++) {
        unsigned at = round % AHEAD, count = round % 3 ? 3 : 5000;
        struct commd_work *work;
        int r;

        while (atomic_load(&c->started) <= round)
            sched_yield();
        work = atomic_load(&c->works[at]);
        do /* with a limit that passes now and then */
            r = commd_work_wait(work, round % 2 ? -1 : 1);
        while (r == COMMD_E_TIMEOUT);
        c->errors += r != 0 || c->x[at][0] != (int32_t)(MEMBERS * round);
        c->errors += c->x[at][count - 1] != (int32_t)(MEMBERS * (round + count - 1));
        atomic_fetch_add(&c->waited[at], 1);
    }
    return NULL;
}

static void several_wait(void **state)
{
    static struct crew crews[MEMBERS];
    struct member m[MEMBERS];
    struct board_ctl *ctl = members_new(m);

    memset(crews, 0, sizeof crews);
    for (unsigned k = 0; k < MEMBERS; k++) {
        crews[k].m = &m[k];
        assert_int_equal(pthread_create(&crews[k].starter, NULL, starter_main, &crews[k]), 0);
        for (unsigned i = 0; i < WAITERS; i++)
            assert_int_equal(
                pthread_create(&crews[k].waiters[i], NULL, crew_waiter_main, &crews[k]), 0);
    }
    for (unsigned k = 0; k < MEMBERS; k++) {
        pthread_join(crews[k].starter, NULL);
        for (unsigned i = 0; i < WAITERS; i++)
            pthread_join(crews[k].waiters[i], NULL);
    }
    for (unsigned k = 0; k < MEMBERS; k++)
        for (unsigned at = 0; at < AHEAD; at++)
            commd_work_free(atomic_load(&crews[k].works[at]));
    members_free(m, ctl);
    for (unsigned k = 0; k < MEMBERS; k++)
        assert_int_equal(atomic_load(&crews[k].errors), 0);
}

/* ---- in order -------------------------------------------------------------------------------- */

struct ends {
    _Atomic bool begun, over, early;
};

static void first_told(void *arg, const struct commd_error *error)
{
    struct ends *e = arg;

    atomic_store(&e->begun, true);
    usleep(100000); /* the thread has lost its core */
    atomic_store(&e->over, true);
}

static void second_told(void *arg, const struct commd_error *error)
{
    struct ends *e = arg;

    if (!atomic_load(&e->over))
        atomic_store(&e->early, true);
}

static void start_all(struct member *m, int32_t *x, commd_done_fn on_done, void *arg,
                      struct commd_work **work)
{
    for (unsigned k = 0; k < MEMBERS; k++) {
        struct commd_op op = sum_of(&x[k], 1);

        x[k] = 1;
        assert_int_equal(commd_start(m[k].group, &op, k ? NULL : on_done, k ? NULL : arg, &work[k]),
                         0);
    }
}

/* While the thread is in a callback, somebody begins to wait for the next work. */
static void callbacks_keep_their_order(void **state)
{
    struct member m[MEMBERS];
    struct board_ctl *ctl = members_new(m);
    struct commd_work *first[MEMBERS], *second[MEMBERS];
    int32_t x[MEMBERS], y[MEMBERS];
    struct ends e = {false};

    start_all(m, x, first_told, &e, first);
    while (!atomic_load(&e.begun))
        usleep(100);
    start_all(m, y, second_told, &e, second);
    for (unsigned k = 0; k < MEMBERS; k++) {
        assert_int_equal(commd_work_wait(second[k], 300000), 0);
        assert_int_equal(commd_work_wait(first[k], 300000), 0);
        commd_work_free(second[k]);
        commd_work_free(first[k]);
    }
    members_free(m, ctl);
    assert_true(atomic_load(&e.over));
    assert_false(atomic_load(&e.early));
}

/* ---- one goes, and what is left -------------------------------------------------------------- */

static void *waiter_main(void *arg)
{
    return (void *)(intptr_t)commd_work_wait(arg, -1);
}

static void *limited_main(void *arg)
{
    return (void *)(intptr_t)commd_work_wait(arg, 300000);
}

static void leaving_ends_a_wait(void **state)
{
    for (unsigned i = 0; i < 20; i++) {
        struct member m[MEMBERS];
        struct board_ctl *ctl = members_new(m);
        int32_t x = 1;
        struct commd_op op = sum_of(&x, 1);
        struct commd_work *work;
        pthread_t waiter;
        void *result;

        assert_int_equal(commd_start(m[0].group, &op, NULL, NULL, &work), 0);
        assert_int_equal(pthread_create(&waiter, NULL, waiter_main, work), 0);
        if (i % 2)
            usleep(1000 * (i % 4)); /* asleep by then */
        async_drop_group(m[0].group->now);
        pthread_join(waiter, &result);
        assert_int_equal((intptr_t)result, COMMD_E_ABORTED);
        commd_work_free(work);
        members_free(m, ctl);
    }
}

/* What is pending when who stood in goes is the thread's again. */
static void thread_goes_on(void **state)
{
    struct member m[MEMBERS];
    struct board_ctl *ctl = members_new(m);
    struct commd_work *work[MEMBERS];
    int32_t x[MEMBERS];

    for (unsigned i = 0; i < 50; i++) {
        for (unsigned k = 0; k < MEMBERS; k++) {
            struct commd_op op = sum_of(&x[k], 1);

            x[k] = 1;
            assert_int_equal(commd_start(m[k].group, &op, NULL, NULL, &work[k]), 0);
            if (k == 0) /* the others have not come */
                assert_int_equal(commd_work_wait(work[0], 1 + i % 3), COMMD_E_TIMEOUT);
        }
        for (unsigned ms = 0, k = 0; k < MEMBERS; ms++) {
            assert_true(ms < 20000);
            if (commd_work_test(work[k], NULL))
                commd_work_free(work[k++]);
            else
                usleep(1000);
        }
        for (unsigned k = 0; k < MEMBERS; k++)
            assert_int_equal(x[k], MEMBERS);
    }
    members_free(m, ctl);
}

/* ---- a limit --------------------------------------------------------------------------------- */

enum { BUSY = 1000 };

static void takes_a_while(void *arg, const struct commd_error *error)
{
    atomic_fetch_add((_Atomic unsigned *)arg, 1);
    usleep(200);
}

/* Another group of the context always has something to do, and nobody else does it. */
static void limit_holds_beside_others(void **state)
{
    struct member m[MEMBERS];
    struct board_ctl *ctl = members_new(m), *ctl_alone;
    struct commd_group *alone;
    struct commd_work *work;
    _Atomic unsigned told = 0;
    unsigned told_then;
    int32_t x = 1, y = 1;
    struct commd_op op = sum_of(&x, 1), other = sum_of(&y, 1);

    ctl_alone = members_group(&m[0].ctx, 1, 2, false, &alone);
    m[0].ctx->thread_up = true; /* there is none */
    assert_int_equal(commd_start(m[0].group, &op, NULL, NULL, &work), 0);
    for (unsigned i = 0; i < BUSY; i++)
        assert_int_equal(commd_start(alone, &other, takes_a_while, &told, NULL), 0);
    assert_int_equal(commd_work_wait(work, 10), COMMD_E_TIMEOUT);
    told_then = atomic_load(&told);
    m[0].ctx->thread_up = false;
    async_drop_group(alone->now);
    handle_free(alone);
    board_ctl_free(ctl_alone);
    members_free(m, ctl);
    commd_work_free(work);
    assert_in_range(told_then, 1, BUSY - 1);
    assert_int_equal(atomic_load(&told), BUSY);
}

/* Who only asks hands nothing over. */
static void no_limit_is_left(void **state)
{
    struct member m[MEMBERS];
    struct board_ctl *ctl = members_new(m);
    struct commd_work *work;
    int32_t x = 1;
    struct commd_op op = sum_of(&x, 1);
    uint32_t kicked;

    assert_int_equal(commd_start(m[0].group, &op, NULL, NULL, &work), 0);
    kicked = atomic_load(&m[0].ctx->kick);
    for (unsigned i = 0; i < 100; i++)
        assert_int_equal(commd_work_wait(work, 0), COMMD_E_TIMEOUT);
    assert_int_equal(atomic_load(&m[0].ctx->kick), kicked);
    members_free(m, ctl);
    commd_work_free(work);
}

/* ---- the application's wish to stop ---------------------------------------------------------- */

struct asked {
    struct commd_work *work;
    _Atomic bool now;
    bool seen_done;
};

/* As one that waits for a lock which is free once the operation is over. */
static int slow_hook(void *arg)
{
    struct asked *a = arg;

    atomic_store(&a->now, true);
    for (unsigned ms = 0; ms < 10000 && !a->seen_done; ms++) {
        usleep(1000);
        a->seen_done = commd_work_test(a->work, NULL);
    }
    return 0;
}

static void hook_holds_up_nobody(void **state)
{
    struct member m[MEMBERS];
    struct board_ctl *ctl = members_new(m);
    struct commd_work *work[MEMBERS];
    struct asked asked = {0};
    int32_t x[MEMBERS] = {1, 1, 1};
    pthread_t waiter;
    void *result;

    for (unsigned k = 0; k < MEMBERS; k++) {
        struct commd_op op = sum_of(&x[k], 1);

        if (k == 1) { /* the first one is in its hook by then */
            asked.work = work[0];
            commd_set_interrupt(m[0].ctx, slow_hook, &asked);
            assert_int_equal(pthread_create(&waiter, NULL, waiter_main, work[0]), 0);
            while (!atomic_load(&asked.now))
                usleep(1000);
        }
        assert_int_equal(commd_start(m[k].group, &op, NULL, NULL, &work[k]), 0);
    }
    pthread_join(waiter, &result);
    assert_int_equal((intptr_t)result, 0);
    assert_true(asked.seen_done);
    for (unsigned k = 0; k < MEMBERS; k++) {
        assert_int_equal(commd_work_wait(work[k], -1), 0);
        assert_int_equal(x[k], MEMBERS);
        commd_work_free(work[k]);
    }
    members_free(m, ctl);
}

/* ---- one who stands in, and does nothing any more ------------------------------------------- */

#if !defined(__SANITIZE_THREAD__) /* which calls handlers later, and with the lock held */
static _Atomic bool held, let_go;

static void hold(int signal)
{
    atomic_store(&held, true);
    while (!atomic_load(&let_go))
        usleep(1000);
}

/* Begins to wait for @work, alone, and is suspended in that. */
static pthread_t suspended_waiter(struct commd_context *ctx, struct commd_work *work)
{
    bool asleep = false, between = false;
    pthread_t waiter;

    do { /* until it is where it nearly always is: asleep, without the lock */
        atomic_store(&let_go, true);
        if (between)
            pthread_join(waiter, NULL);
        atomic_store(&held, false);
        atomic_store(&let_go, false);
        assert_int_equal(pthread_create(&waiter, NULL, limited_main, work), 0);
        while (!asleep) {
            usleep(1000);
            pthread_mutex_lock(&ctx->plock);
            asleep = ctx->asleep[1].now;
            pthread_mutex_unlock(&ctx->plock);
        }
        pthread_kill(waiter, SIGUSR1);
        while (!atomic_load(&held))
            usleep(1000);
        usleep(1000);
        between = pthread_mutex_trylock(&ctx->plock) != 0;
    } while (between);
    pthread_mutex_unlock(&ctx->plock);
    return waiter;
}

/* Neither other ranks nor others of its own process. */
static void suspended_holds_up_nobody(void **state)
{
    struct sigaction action = {.sa_handler = hold};
    struct member m[MEMBERS];
    struct board_ctl *ctl = members_new(m);
    struct commd_work *first[MEMBERS], *second[MEMBERS];
    int32_t x[MEMBERS] = {1, 1, 1}, y[MEMBERS];
    int result[2] = {0};
    pthread_t waiter = pthread_self();
    void *ended;

    sigaction(SIGUSR1, &action, NULL);
    for (unsigned k = 0; k < MEMBERS; k++) {
        struct commd_op op = sum_of(&x[k], 1);

        if (k == 1)
            waiter = suspended_waiter(m[0].ctx, first[0]);
        assert_int_equal(commd_start(m[k].group, &op, NULL, NULL, &first[k]), 0);
    }
    start_all(m, y, NULL, NULL, second);
    for (unsigned k = 0; k < MEMBERS && !result[0] && !result[1]; k++) {
        result[0] = commd_work_wait(first[k], 300000);
        result[1] = commd_work_wait(second[k], 300000);
    }
    atomic_store(&let_go, true);
    pthread_join(waiter, &ended);
    for (unsigned k = 0; k < MEMBERS; k++) {
        commd_work_free(first[k]);
        commd_work_free(second[k]);
    }
    members_free(m, ctl);
    assert_int_equal(result[0], 0);
    assert_int_equal(result[1], 0);
    assert_int_equal((intptr_t)ended, 0);
}
#endif

/* ---- one who is cancelled -------------------------------------------------------------------- */

static void told_at_length(void *arg, const struct commd_error *error)
{
    struct ends *e = arg;

    atomic_store(&e->begun, true);
    usleep(50000); /* a cancellation point */
    atomic_store(&e->over, true);
}

/* While it calls others back. */
static void cancelled_holds_up_nobody(void **state)
{
    for (unsigned i = 0; i < 3; i++) {
        struct member m[MEMBERS];
        struct board_ctl *ctl = members_new(m);
        struct commd_work *first[MEMBERS], *second[MEMBERS];
        int32_t x[MEMBERS] = {1, 1, 1}, y[MEMBERS];
        struct ends e = {false};
        pthread_t waiter;
        int result = 0;

        for (unsigned k = 0; k < MEMBERS; k++) {
            struct commd_op op = sum_of(&x[k], 1);

            if (k == 1) {
                assert_int_equal(pthread_create(&waiter, NULL, limited_main, first[0]), 0);
                while (!atomic_load(&m[0].ctx->stood_in))
                    usleep(1000);
            }
            assert_int_equal(
                commd_start(m[k].group, &op, k ? NULL : told_at_length, k ? NULL : &e, &first[k]),
                0);
        }
        while (!atomic_load(&e.begun))
            usleep(1000);
        pthread_cancel(waiter);
        pthread_join(waiter, NULL);
        start_all(m, y, NULL, NULL, second);
        for (unsigned k = 0; k < MEMBERS; k++) {
            result |= commd_work_wait(second[k], 300000);
            commd_work_free(first[k]);
            commd_work_free(second[k]);
        }
        assert_int_equal(result, 0); /* to leave would be to wait for who tells */
        assert_true(atomic_load(&e.over));
        members_free(m, ctl);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_waits_needs_no_other_thread),
        cmocka_unit_test(several_wait),
        cmocka_unit_test(callbacks_keep_their_order),
        cmocka_unit_test(leaving_ends_a_wait),
        cmocka_unit_test(thread_goes_on),
        cmocka_unit_test(limit_holds_beside_others),
        cmocka_unit_test(no_limit_is_left),
        cmocka_unit_test(hook_holds_up_nobody),
#if !defined(__SANITIZE_THREAD__)
        cmocka_unit_test(suspended_holds_up_nobody),
#endif
        cmocka_unit_test(cancelled_holds_up_nobody),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

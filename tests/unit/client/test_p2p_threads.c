/* test_p2p_threads.c - messages between members that are threads over ONE mapping of the board (so
 * that a thread sanitizer sees both sides of every access), each with several threads of its own in
 * one group: blocking and asynchronous, with callbacks and in batches, beside collectives; leaving
 * while others wait; and a hook that waits. */
#include "tests/unit/client/members.h"

#include "client/lib/p2p/p2p.h"

enum { THREADS = 2, ROUNDS = 60, MAX_BYTES = 300000 };

struct worker {
    pthread_t thread;
    struct member *m;
    unsigned number; /* of the thread in its member: its tags */
    _Atomic int errors;
    _Atomic unsigned called;
};

/* ---- everything at once ---------------------------------------------------------------------- */

static size_t bytes_of(unsigned round)
{
    static const size_t sizes[] = {8, 80, 0, 5000, 60000, 100000, MAX_BYTES};

    return sizes[round % ARRAY_LEN(sizes)];
}

static void fill(uint8_t *buf, size_t n, unsigned key)
{
    for (size_t i = 0; i < n; i++)
        buf[i] = (uint8_t)(key * 7 + i + (i >> 8));
}

static int wrong(const uint8_t *buf, size_t n, unsigned key)
{
    for (size_t i = 0; i < n; i++)
        if (buf[i] != (uint8_t)(key * 7 + i + (i >> 8)))
            return 1;
    return 0;
}

static struct commd_op op_of(int coll, uint8_t *buf, size_t n, unsigned peer, unsigned tag)
{
    return (struct commd_op){.size = sizeof(struct commd_op),
                             .coll = coll,
                             .dtype = COMMD_U8,
                             .send = buf,
                             .recv = buf,
                             .count = n,
                             .peer = (int)peer,
                             .tag = (int)tag};
}

static void called(void *arg, const struct commd_error *error)
{
    struct worker *w = arg;

    w->errors += error != NULL;
    atomic_fetch_add(&w->called, 1);
}

static int wait_free(struct commd_work *work)
{
    int r = commd_work_wait(work, -1);

    commd_work_free(work);
    return r != 0;
}

/* Every thread sends to its like in the next member and receives from the one before. */
static void exchange(struct worker *w, unsigned round, uint8_t *out, uint8_t *in)
{
    struct member *m = w->m;
    unsigned next = (m->me + 1) % MEMBERS, last = (m->me + MEMBERS - 1) % MEMBERS;
    unsigned tag = w->number, key = round + 10 * tag;
    size_t n = bytes_of(round + tag);
    struct commd_op op[2] = {op_of(COMMD_RECV, in, MAX_BYTES, last, tag),
                             op_of(COMMD_SEND, out, n, next, tag)};
    struct commd_work *recv, *send;
    struct commd_status st = {.bytes = n};

    fill(out, n, key + m->me);
    memset(in, 0, n);
    switch (round % 5) {
    case 0:
        w->errors += commd_start(m->group, &op[0], NULL, NULL, &recv) != 0;
        w->errors += commd_run(m->group, &op[1]) != 0;
        w->errors += wait_free(recv);
        break;
    case 1:
        w->errors += commd_start(m->group, &op[1], called, w, &send) != 0;
        w->errors += commd_recv(m->group, in, MAX_BYTES, COMMD_U8, (int)last, (int)tag, &st) != 0;
        w->errors += wait_free(send);
        break;
    case 2:
        w->errors += commd_start_batch(m->group, op, 2, NULL, NULL, &recv) != 0;
        w->errors += wait_free(recv);
        break;
    case 3:
        w->errors += commd_start(m->group, &op[0], called, w, &recv) != 0;
        w->errors += commd_start(m->group, &op[1], NULL, NULL, NULL) != 0;
        commd_work_wait(recv, -1);
        commd_work_status(recv, &st);
        commd_work_free(recv);
        break;
    default:
        w->errors += commd_start_batch(m->group, op, 2, called, w, &recv) != 0;
        w->errors += wait_free(recv);
        break;
    }
    w->errors += st.bytes != n || wrong(in, n, key + last);
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    uint8_t *out = malloc(MAX_BYTES), *in = malloc(MAX_BYTES);

    for (unsigned round = 0; round < ROUNDS; round++) {
        exchange(w, round, out, in);
        if (w->number == 0 && round % 7 == 0) { /* collectives are none of their business */
            int32_t one = 1;

            w->errors += commd_all_reduce(w->m->group, &one, &one, 1, COMMD_I32, COMMD_SUM) != 0;
            w->errors += one != MEMBERS;
        }
        /* a send of round 3 may still read `out` */
        w->errors +=
            commd_send(w->m->group, "go", 2, COMMD_U8, (int)((w->m->me + MEMBERS - 1) % MEMBERS),
                       (int)(100 + w->number)) != 0;
        w->errors += commd_recv(w->m->group, in, 2, COMMD_U8, (int)((w->m->me + 1) % MEMBERS),
                                (int)(100 + w->number), NULL) != 0;
    }
    free(out);
    free(in);
    return NULL;
}

static void threads_exchange_messages(void **state)
{
    struct member m[MEMBERS];
    struct board_ctl *ctl = members_new(m);
    struct worker w[MEMBERS * THREADS] = {0};

    for (unsigned i = 0; i < ARRAY_LEN(w); i++) {
        w[i].m = &m[i / THREADS];
        w[i].number = i % THREADS;
        assert_int_equal(pthread_create(&w[i].thread, NULL, worker_main, &w[i]), 0);
    }
    for (unsigned i = 0; i < ARRAY_LEN(w); i++)
        pthread_join(w[i].thread, NULL);
    members_free(m, ctl);
    for (unsigned i = 0; i < ARRAY_LEN(w); i++) {
        assert_int_equal(atomic_load(&w[i].errors), 0);
        assert_int_equal(atomic_load(&w[i].called), ROUNDS / 5 * 3);
    }
}

/* ---- leaving --------------------------------------------------------------------------------- */

static void *waiter_main(void *arg)
{
    struct commd_work *work = arg;

    return (void *)(intptr_t)commd_work_wait(work, -1);
}

/* What is pending ends, with a thread waiting for it, with a callback, and in a batch; also a half
 * sent long message. */
static void leaving_ends_what_is_pending(void **state)
{
    static uint8_t big[MAX_BYTES], b[16];

    for (unsigned i = 0; i < 20; i++) {
        struct member m[MEMBERS];
        struct board_ctl *ctl = members_new(m);
        struct commd_op recv = op_of(COMMD_RECV, b, sizeof b, 1, 1);
        struct commd_op send = op_of(COMMD_SEND, big, sizeof big, 1, 1), two[2] = {recv, send};
        struct commd_work *work[3];
        struct worker w = {0};
        pthread_t waiter;
        void *result;
        int code;

        assert_int_equal(commd_start(m[0].group, &recv, NULL, NULL, &work[0]), 0);
        assert_int_equal(commd_start(m[0].group, &send, called, &w, &work[1]), 0);
        assert_int_equal(commd_start_batch(m[0].group, two, 2, NULL, NULL, &work[2]), 0);
        assert_int_equal(pthread_create(&waiter, NULL, waiter_main, work[0]), 0);
        for (unsigned k = 0; k < i % 3; k++)
            sched_yield();
        async_drop_group(m[0].group->now);
        pthread_join(waiter, &result);
        members_free(m, ctl);
        assert_int_equal((intptr_t)result, COMMD_E_ABORTED);
        for (unsigned k = 0; k < 3; k++) {
            assert_true(commd_work_test(work[k], &code));
            assert_int_equal(code, COMMD_E_ABORTED);
            commd_work_free(work[k]);
        }
        assert_int_equal(atomic_load(&w.called), 1);
        assert_int_equal(atomic_load(&w.errors), 1);
    }
}

/* ---- the application's wish to stop ---------------------------------------------------------- */

struct asked {
    struct member *m;
    pthread_mutex_t lock; /* as Python's: who has it calls us, and the hook waits for it */
    _Atomic bool taken, now, started, ended, give_back;
    uint8_t first[16], second[16], third[16];
    _Atomic int errors;
};

static int hook(void *arg)
{
    struct asked *a = arg;

    atomic_store(&a->now, true);
    pthread_mutex_lock(&a->lock);
    pthread_mutex_unlock(&a->lock);
    return 1;
}

static void *receiver_main(void *arg)
{
    struct asked *a = arg;

    a->errors +=
        commd_recv(a->m->group, a->first, sizeof a->first, COMMD_U8, 1, 1, NULL) != COMMD_OK;
    return NULL;
}

/* With the lock: starts receives, and sees one end. */
static void *holder_main(void *arg)
{
    struct asked *a = arg;
    struct commd_op op[2] = {op_of(COMMD_RECV, a->second, sizeof a->second, 1, 2),
                             op_of(COMMD_RECV, a->third, sizeof a->third, 1, 3)};
    struct commd_work *work[2];

    pthread_mutex_lock(&a->lock);
    atomic_store(&a->taken, true);
    while (!atomic_load(&a->now))
        usleep(1000);
    for (unsigned i = 0; i < 2; i++)
        a->errors += commd_start(a->m->group, &op[i], NULL, NULL, &work[i]) != 0;
    atomic_store(&a->started, true);
    for (unsigned ms = 0; ms < 10000 && !commd_work_test(work[0], NULL); ms++)
        usleep(1000);
    atomic_store(&a->ended, true);
    a->errors += !commd_work_test(work[0], NULL);
    while (!atomic_load(&a->give_back))
        usleep(1000);
    pthread_mutex_unlock(&a->lock);
    for (unsigned i = 0; i < 2; i++) {
        while (commd_work_wait(work[i], -1) == COMMD_E_INTERRUPTED)
            continue;
        commd_work_free(work[i]);
    }
    return NULL;
}

static unsigned pending_messages(struct commd_group *g)
{
    struct p2p *p = atomic_load(&g->now->p2p);
    struct p2p_op *op;
    unsigned n = 0;

    pthread_mutex_lock(&p->lock);
    TAILQ_FOREACH(op, &p->ops, all)
        n++;
    pthread_mutex_unlock(&p->lock);
    return n;
}

static void wait_until(_Atomic bool *what)
{
    for (unsigned ms = 0; ms < 10000 && !atomic_load(what); ms++)
        usleep(1000);
    assert_true(atomic_load(what));
}

/* Who holds what the hook waits for can start messages, which go on; and the wish to stop comes too
 * late for a message that has come meanwhile. */
static void hook_holds_no_lock(void **state)
{
    static struct asked a = {.lock = PTHREAD_MUTEX_INITIALIZER}; /* is left in use if it fails */
    struct member m[MEMBERS];
    struct board_ctl *ctl = members_new(m);
    pthread_t holder, receiver;

    a.m = &m[0];
    commd_set_interrupt(m[0].ctx, hook, &a);
    assert_int_equal(pthread_create(&holder, NULL, holder_main, &a), 0);
    wait_until(&a.taken);
    assert_int_equal(pthread_create(&receiver, NULL, receiver_main, &a), 0);
    wait_until(&a.started);
    assert_int_equal(commd_send(m[1].group, "second", 6, COMMD_U8, 0, 2), 0);
    wait_until(&a.ended);
    assert_int_equal(commd_send(m[1].group, "first", 5, COMMD_U8, 0, 1), 0);
    for (unsigned ms = 0; ms < 10000 && pending_messages(m[0].group) > 1; ms++)
        usleep(1000);
    atomic_store(&a.give_back, true);
    pthread_join(receiver, NULL);
    assert_int_equal(commd_send(m[1].group, "third", 5, COMMD_U8, 0, 3), 0);
    pthread_join(holder, NULL);
    assert_int_equal(atomic_load(&a.errors), 0);
    assert_string_equal((const char *)a.first, "first");
    assert_string_equal((const char *)a.second, "second");
    members_free(m, ctl);
}

/* ---- what people are told of a wait ---------------------------------------------------------- */

struct seen { /* by a hook, in the last wait in which it was asked */
    struct board_ctl *ctl;
    unsigned times;
    uint32_t since; /* as the board has it */
    bool again;     /* a wait began longer after the one before than a wait in slices may */
    uint64_t left_ms;
    struct board_seat seat;
    struct board_member *me;
};

static int look(void *arg)
{
    struct seen *seen = arg;

    seen->times++;
    seen->since = atomic_load(&seen->me->message_ms);
    board_seat(seen->ctl, 0, now_ms(), &seen->seat);
    return 0;
}

/* Waits for @w until the hook was asked, and that is not the end of it. */
static void wait_slice(struct commd_work *w, struct seen *seen)
{
    seen->times = 0;
    while (!seen->times) {
        seen->again |= now_ms() - seen->left_ms > 500;
        assert_int_equal(commd_work_wait(w, 200), COMMD_E_TIMEOUT);
        seen->left_ms = now_ms();
    }
    assert_true(seen->seat.message);
}

/* Who waits in slices waits since the first: also when it is asked between them. */
static void a_wait_in_slices_is_one_wait(void **state)
{
    struct member m[MEMBERS];
    struct seen seen = {.ctl = members_new(m)};
    struct commd_op ops[2];
    struct commd_work *w;
    uint8_t buf[2][8];
    uint32_t since;

    (void)state;
    seen.me = &m[0].group->now->board.members[0];
    commd_set_interrupt(m[0].ctx, look, &seen);
    ops[0] = op_of(COMMD_RECV, buf[0], 8, 1, 8);
    assert_int_equal(commd_start(m[0].group, &ops[0], NULL, NULL, &w), 0);
    wait_slice(w, &seen);
    since = seen.since;
    seen.again = false;
    assert_int_equal(seen.seat.message_peer, 1);
    assert_int_equal(seen.seat.message_tag, 8);
    assert_int_equal(seen.seat.unasked_from, -1);
    assert_int_equal(commd_send(m[1].group, "another", 8, COMMD_U8, 0, 7), 0);
    wait_slice(w, &seen);
    assert_true(seen.since == since || seen.again);
    while (seen.seat.unasked_from < 0)
        wait_slice(w, &seen);
    assert_int_equal(seen.seat.unasked_from, 1);
    assert_int_equal(seen.seat.unasked_tag, 7);
    board_seat(seen.ctl, 0, now_ms(), &seen.seat);
    assert_false(seen.seat.message); /* nobody waits now */
    assert_int_equal(commd_send(m[1].group, "this one", 8, COMMD_U8, 0, 8), 0);
    assert_int_equal(commd_work_wait(w, -1), 0);
    commd_work_free(w);
    assert_int_equal(commd_recv(m[0].group, buf[0], 8, COMMD_U8, 1, 7, NULL), 0);

    /* of a batch, the messages that are not there */
    ops[1] = op_of(COMMD_RECV, buf[1], 8, 2, 9);
    assert_int_equal(commd_start_batch(m[0].group, ops, 2, NULL, NULL, &w), 0);
    wait_slice(w, &seen);
    since = seen.since;
    seen.again = false;
    assert_int_equal(commd_send(m[1].group, "this one", 8, COMMD_U8, 0, 8), 0);
    do
        wait_slice(w, &seen);
    while (seen.seat.message_peer != 2);
    assert_true(seen.since == since || seen.again);
    board_seat(seen.ctl, 0, now_ms(), &seen.seat);
    assert_false(seen.seat.message);
    assert_int_equal(commd_send(m[2].group, "this one", 8, COMMD_U8, 0, 9), 0);
    assert_int_equal(commd_work_wait(w, -1), 0);
    board_seat(seen.ctl, 0, now_ms(), &seen.seat);
    assert_false(seen.seat.message);
    commd_work_free(w);
    members_free(m, seen.ctl);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_exchange_messages),
        cmocka_unit_test(leaving_ends_what_is_pending),
        cmocka_unit_test(hook_holds_no_lock),
        cmocka_unit_test(a_wait_in_slices_is_one_wait),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

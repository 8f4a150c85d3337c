/* test_seal_threads.c - threads that work for one owner: each task once, what the owner does where
 * none of them has time, sleeping and waking, the end. */
#include <stdarg.h>
#include <setjmp.h>
#include <stdio.h>
#include <cmocka.h>

#include <poll.h>
#include <pthread.h>

#include "transport/fabric/tcp/seal_threads.h"

struct one {
    struct seal_task task;
    _Atomic bool begun;
    _Atomic unsigned ran;
    unsigned plain; /* not atomic: seen by whoever has seen that the task is done */
    pthread_t by;
    _Atomic bool *gate; /* it waits for that */
};

static void run(struct seal_task *task)
{
    struct one *one = container_of(task, struct one, task);

    one->begun = true;
    while (one->gate && !*one->gate)
        poll(NULL, 0, 1);
    one->by = pthread_self();
    one->plain = 7;
    one->ran++;
}

static void one_of(struct one *one, _Atomic bool *gate)
{
    memset(one, 0, sizeof(*one));
    one->task.run = run;
    one->gate = gate;
}

static void each_task_once(void **state)
{
    enum { ROUNDS = 2000 };
    struct seal_threads *s = seal_threads_new(2);
    struct one one[SEAL_TASKS];

    for (unsigned round = 0; round < ROUNDS; round++) {
        unsigned n = 1 + round % SEAL_TASKS;

        for (unsigned i = 0; i < n; i++) {
            one_of(&one[i], NULL);
            seal_threads_give(s, &one[i].task);
        }
        if (round % 3 == 0)
            seal_threads_help(s);
        for (unsigned i = n; i-- > 0;) {
            seal_threads_wait(s, &one[i].task);
            assert_true(seal_task_done(&one[i].task));
            assert_int_equal(one[i].ran, 1);
            assert_int_equal(one[i].plain, 7);
        }
        assert_false(seal_threads_help(s));
        if (round % 100 == 0)
            poll(NULL, 0, 2); /* they fall asleep */
    }
    assert_null(seal_threads_free(s));
}

/* All threads are busy: the owner does what waits, and nothing of theirs. */
static void the_owner_helps(void **state)
{
    struct seal_threads *s = seal_threads_new(2);
    _Atomic bool gate = false;
    struct one slow[2], fast[5];

    for (unsigned i = 0; i < 2; i++) {
        one_of(&slow[i], &gate);
        seal_threads_give(s, &slow[i].task);
    }
    while (!slow[0].begun || !slow[1].begun)
        poll(NULL, 0, 1);
    for (unsigned i = 0; i < 5; i++) {
        one_of(&fast[i], NULL);
        seal_threads_give(s, &fast[i].task);
    }
    seal_threads_wait(s, &fast[4].task);
    for (unsigned i = 0; i < 5; i++)
        assert_true(seal_task_done(&fast[i].task) && pthread_equal(fast[i].by, pthread_self()));
    assert_false(seal_task_done(&slow[0].task) || seal_task_done(&slow[1].task));
    gate = true;
    for (unsigned i = 0; i < 2; i++) {
        seal_threads_wait(s, &slow[i].task);
        assert_false(pthread_equal(slow[i].by, pthread_self()));
    }
    seal_threads_free(s);
}

/* Who sleeps is woken by the end of a task, and by nothing else. */
static void the_owner_sleeps(void **state)
{
    struct seal_threads *s = seal_threads_new(1);
    struct pollfd p = {.fd = seal_threads_fd(s), .events = POLLIN};
    uint64_t wakes;
    struct one one;

    for (unsigned i = 0; i < 200; i++) {
        _Atomic bool gate = false;

        one_of(&one, &gate);
        seal_threads_give(s, &one.task);
        while (!one.begun)
            poll(NULL, 0, 1); /* now and then the thread sleeps meanwhile */
        if (i % 2) {
            seal_threads_arm(s);
            assert_false(seal_task_done(&one.task));
            gate = true;
            assert_int_equal(poll(&p, 1, 60000), 1);
            assert_int_equal(read(p.fd, &wakes, sizeof(wakes)), sizeof(wakes));
            assert_int_equal(wakes, 1);
        }
        gate = true;
        seal_threads_wait(s, &one.task);
        seal_threads_disarm(s);
        assert_int_equal(poll(&p, 1, 0), 0);
    }
    seal_threads_free(s);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_task_once),
        cmocka_unit_test(the_owner_helps),
        cmocka_unit_test(the_owner_sleeps),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

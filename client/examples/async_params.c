/* async_params.c - parameter exchange that waits for nobody.
 *
 * Each rank improves parameters of its own. When it is ready it pushes them to all others, and
 * between two steps it takes what has come meanwhile, from whomever, and goes half of the way
 * towards it. There is no step that all ranks make together: a slow rank, or a far node, delays
 * nobody. (In a real program the parameters are the weights of a model.)
 *
 *   push   commd_start(COMMD_SEND): the message and its buffer live until the work is done
 *   take   one commd_start(COMMD_RECV, COMMD_ANY_SOURCE) is always posted; commd_work_test() says
 *          whether it got something, without waiting
 *
 * Ends: a rank's last push says so. A rank that has pushed all waits until it has the last push of
 * each other rank, and until its own have been taken; then all agree on the average. */
#include "example.h"

enum { PARAMS = 1000, PUSHES = 20, TAG = 7 };

struct message {
    int number, last;
    double params[PARAMS];
};

/* A push on its way. */
struct push {
    struct commd_work *work;
    struct push *next;
    struct message message;
};

static double params[PARAMS];
static struct message incoming;
static struct commd_work *receive;
static struct push *pushes;
static int taken, ended;

/* Every rank has an optimum of its own, r. */
static void improve(const struct example *me)
{
    for (int i = 0; i < PARAMS; i++)
        params[i] += 0.1 * (me->rank - params[i]);
}

static void post(struct example *me)
{
    struct commd_op op = {.size = sizeof op,
                          .coll = COMMD_RECV,
                          .dtype = COMMD_U8,
                          .recv = &incoming,
                          .count = sizeof incoming,
                          .peer = COMMD_ANY_SOURCE,
                          .tag = TAG};

    TRY(commd_start(me->group, &op, NULL, NULL, &receive));
}

/* Takes what the receive got, once it is done, and posts the next unless all have said goodbye. Who
 * has finished does not go towards others any more. */
static void take(struct example *me, bool finished)
{
    struct commd_status status;

    TRY(commd_work_wait(receive, -1));
    commd_work_status(receive, &status);
    commd_work_free(receive);
    receive = NULL;
    CHECK(status.bytes == sizeof incoming && status.source != me->rank);
    for (int i = 0; i < PARAMS && !finished; i++)
        params[i] = (params[i] + incoming.params[i]) / 2;
    taken++;
    ended += incoming.last;
    if (ended < me->size - 1)
        post(me);
}

static void push_to(struct example *me, int dest, int number)
{
    struct push *push = malloc(sizeof *push);
    struct commd_op op = {.size = sizeof op,
                          .coll = COMMD_SEND,
                          .dtype = COMMD_U8,
                          .count = sizeof push->message,
                          .peer = dest,
                          .tag = TAG};

    CHECK(push);
    push->message.number = number;
    push->message.last = number == PUSHES;
    memcpy(push->message.params, params, sizeof params);
    op.send = &push->message;
    TRY(commd_start(me->group, &op, NULL, NULL, &push->work));
    push->next = pushes;
    pushes = push;
}

/* Frees the pushes that have been taken; with @all waits for them. */
static void reap(bool all)
{
    for (struct push **at = &pushes, *push; (push = *at);) {
        if (!all && !commd_work_test(push->work, NULL)) {
            at = &push->next;
            continue;
        }
        TRY(commd_work_wait(push->work, -1));
        commd_work_free(push->work);
        *at = push->next;
        free(push);
    }
}

int main(int argc, char **argv)
{
    struct example me;

    example_start(argc, argv, "async_params", &me);
    if (me.size > 1)
        post(&me);
    for (int number = 1; number <= PUSHES; number++) {
        for (int i = 0; i <= 10 * me.rank; i++) /* some ranks are slower than others */
            improve(&me);
        while (receive && commd_work_test(receive, NULL))
            take(&me, false);
        for (int dest = 0; dest < me.size; dest++)
            if (dest != me.rank)
                push_to(&me, dest, number);
        reap(false);
    }
    while (receive)
        take(&me, true);
    reap(true);
    CHECK(taken == PUSHES * (me.size - 1));
    TRY(commd_all_reduce(me.group, params, params, PARAMS, COMMD_F64, COMMD_AVG));
    for (int i = 0; i < PARAMS; i++) /* all optima lie between these */
        CHECK(params[i] >= 0 && params[i] <= me.size - 1);
    printf("rank %d: pushed %d times, took %d, all end at %.2f\n", me.rank, PUSHES, taken,
           params[0]);
    example_end(&me);
    return 0;
}

/* test_interleavings.c - started operations, those who wait for them, and what comes in between, in
 * an order that a seed and the kernel choose.
 *
 * An episode has members (threads over one board, as processes would be) with two contexts each,
 * some groups, and for each member
 *   a caller per group, which makes the group's calls in order: blocking, started, in batches, with
 *     callbacks, messages to the next member; one group's operations are started by callbacks;
 *   waiters, which take what was started, in whatever group: they wait without a limit, with one
 *     that passes, test, or two of them wait for the same.
 * Meanwhile one thing happens that the episode was drawn for (enum event), and threads that wait
 * get signals whose handler takes its time.
 *
 * What must hold: who is not concerned notices nothing; results are right; each callback comes
 * once, in order; who is concerned gets an error of the right kind, and nobody hangs: a guard looks
 * for progress, says where everybody is, and aborts. */
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "tests/hostile/dice.h"
#include "tests/unit/client/members.h"

#if defined(__SANITIZE_THREAD__)
#define ONE_MAPPING true /* so that both sides of every access are seen */
#define UNWATCHED   __attribute__((no_sanitize("thread")))
#else
#define UNWATCHED
#define ONE_MAPPING false /* so that what is used after it was unmapped faults */
#endif

enum {
    CONTEXTS = 2,
    GROUPS = 4,
    CHAIN = GROUPS - 1, /* the group whose operations are started by callbacks */
    WAITERS = 3,
    OPS = 48,
    AHEAD = 10,
    MAX_COUNT = 30000,
    SHORT_LIMIT_MS = 150,
    SECONDS = 6,
    GUARD_S = 300,
};

enum event { NOTHING, LIMIT, BROKEN, GONE, LEFT, FORKS, HOOKS, EVENTS };
static const char *const event_name[] = {"nothing", "limit", "broken", "gone",
                                         "left",    "forks", "hooks"};

enum kind { SUM, BROADCAST, GATHER, BARRIER, MESSAGE, KINDS };

struct spec { /* of one operation, the same for all members */
    enum kind kind;
    size_t count;
    unsigned root;
};

struct item { /* what a member called: one operation, or some in one submission */
    struct caller *caller;
    unsigned first, n;
    struct commd_work *work;
    _Atomic int holders; /* of the handle */
    bool has_handle, calls_back;
    _Atomic unsigned told;
    int32_t *buf[4], *in[4];
};

struct caller {
    pthread_t thread;
    struct episode *ep;
    unsigned member, group;
    struct commd_group *handle;
    struct item item[2 * OPS];
    unsigned nitems;
    _Atomic unsigned op;
    _Atomic unsigned waiting; /* started items that are not waited for, or called back, yet */
    _Atomic unsigned told;    /* the last operation whose callback came, and 1 */
    _Atomic int doing;
    _Atomic bool over;
    bool left;
};

struct waiter {
    pthread_t thread;
    struct episode *ep;
    unsigned member, number;
    struct item *_Atomic item;
    _Atomic int way;
};

struct queue { /* of items to be waited for */
    pthread_mutex_t lock;
    pthread_cond_t cond;
    struct item *item[GROUPS * 4 * OPS];
    unsigned head, tail;
    bool shut;
};

struct episode {
    uint64_t seed;
    enum event event;
    unsigned world, at_group, at_member, at_op;
    bool signals;
    struct spec spec[GROUPS][OPS];
    struct commd_context *ctx[MEMBERS][CONTEXTS];
    struct board_ctl *ctl[GROUPS];
    struct board board[GROUPS];
    struct caller caller[MEMBERS][GROUPS];
    struct waiter waiter[MEMBERS][WAITERS];
    struct queue queue[MEMBERS];
    _Atomic bool over;
};

static _Atomic uint64_t beats; /* calls and waits that came back */
static _Atomic uint64_t late_ms;
static struct episode *_Atomic current;

/* ---- failing --------------------------------------------------------------------------------- */

UNWATCHED static void describe(const struct episode *ep)
{
    fprintf(stderr, "episode %llu: %s of group %u, member %u, operation %u; %u members\n",
            (unsigned long long)ep->seed, event_name[ep->event], ep->at_group, ep->at_member,
            ep->at_op, ep->world);
    for (unsigned m = 0; m < ep->world; m++) {
        for (unsigned c = 0; c < CONTEXTS; c++) {
            const struct commd_context *x = ep->ctx[m][c];

            fprintf(stderr,
                    "  member %u context %u: stood in %d, asleep %d %d, telling %d, finished %d, "
                    "active %d\n",
                    m, c, atomic_load(&x->stood_in), x->asleep[0].now, x->asleep[1].now, x->telling,
                    x->finished != NULL, x->active != NULL);
        }
        for (unsigned g = 0; g < GROUPS; g++) {
            const struct caller *c = &ep->caller[m][g];

            fprintf(stderr, "  member %u group %u: operation %u, doing %d, over %d, waiting %u, ",
                    m, g, c->op, c->doing, c->over, c->waiting);
            if (c->left)
                fprintf(stderr, "left\n");
            else
                fprintf(stderr, "busy %d, pending %u, messages %u, running %d, failed %d\n",
                        c->handle->now->busy, c->handle->now->pending, c->handle->now->p2p_pending,
                        c->handle->now->running != NULL, c->handle->now->failed);
        }
        for (unsigned i = 0; i < WAITERS; i++) {
            const struct waiter *w = &ep->waiter[m][i];
            const struct item *it = w->item;

            fprintf(stderr, "  member %u waiter %u: way %d", m, i, w->way);
            if (it)
                fprintf(stderr, ", group %u operation %u, done %u", it->caller->group, it->first,
                        it->work->done);
            fprintf(stderr, "\n");
        }
    }
}

static void wrong(const struct episode *ep, const char *what, unsigned member, unsigned group,
                  unsigned op, int code)
{
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;

    pthread_mutex_lock(&once); /* never given back: the first is the one that speaks */
    fprintf(stderr, "%s: member %u group %u operation %u, code %d (%s)\n", what, member, group, op,
            code, commd_last_error()->message);
    describe(ep);
    fprintf(stderr, "again: tests/unit/client/test_interleavings %llu\n",
            (unsigned long long)ep->seed);
    abort();
}

static void *guard_main(void *arg)
{
    uint64_t last = 0, since = now_ms();

    for (;;) {
        struct episode *ep = atomic_load(&current);

        usleep(100000);
        if (atomic_load(&beats) != last || !ep) {
            last = atomic_load(&beats);
            since = now_ms();
        } else if (now_ms() - since > GUARD_S * 1000) {
            wrong(ep, "nothing moves any more", 0, 0, 0, 0);
        }
    }
    return NULL;
}

/* ---- what is called, and what has to come of it ---------------------------------------------- */

static int32_t value(const struct item *it, unsigned member, unsigned op, size_t i)
{
    return (int32_t)(it->caller->group * 1000 + op * 17 + member * 3 + i % 1024);
}

static unsigned world_of(const struct item *it)
{
    return it->caller->ep->world;
}

static const struct spec *spec_of(const struct item *it, unsigned k)
{
    return &it->caller->ep->spec[it->caller->group][it->first + k];
}

static struct commd_op op_of(const struct spec *s)
{
    static const int coll[] = {COMMD_ALL_REDUCE, COMMD_BROADCAST, COMMD_ALL_GATHER, COMMD_BARRIER,
                               COMMD_SEND};

    return (struct commd_op){.size = sizeof(struct commd_op),
                             .coll = coll[s->kind],
                             .dtype = COMMD_I32,
                             .redop = COMMD_SUM,
                             .root = (int)s->root,
                             .count = s->count};
}

/* Fills the buffers of the item's @k-th operation; a message becomes two. Returns how many. */
static unsigned ops_of(struct item *it, unsigned k, struct commd_op *ops)
{
    const struct spec *s = spec_of(it, k);
    unsigned me = it->caller->member, op = it->first + k, world = world_of(it);
    int32_t *buf = it->buf[k] = malloc((s->count + 1) * sizeof *buf);

    for (size_t i = 0; i < s->count; i++)
        buf[i] = value(it, me, op, i);
    ops[0] = op_of(s);
    ops[0].send = ops[0].recv = buf;
    if (s->kind != MESSAGE && s->kind != GATHER)
        return 1;
    it->in[k] = malloc((s->count * world + 1) * sizeof *buf);
    if (s->kind == GATHER) {
        ops[0].recv = it->in[k];
        return 1;
    }
    ops[0].tag = ops[1].tag = (int)op;
    ops[1] = ops[0];
    ops[0].coll = COMMD_RECV;
    ops[0].recv = it->in[k];
    ops[0].peer = (int)((me + world - 1) % world);
    ops[1].peer = (int)((me + 1) % world);
    return 2;
}

static bool right(const struct item *it, unsigned k)
{
    const struct spec *s = spec_of(it, k);
    unsigned world = world_of(it), op = it->first + k;
    unsigned before = (it->caller->member + world - 1) % world;

    for (size_t i = 0; i < s->count; i++) {
        int32_t sum = 0;

        switch (s->kind) {
        case SUM:
            for (unsigned m = 0; m < world; m++)
                sum += value(it, m, op, i);
            if (it->buf[k][i] != sum)
                return false;
            break;
        case BROADCAST:
            if (it->buf[k][i] != value(it, s->root, op, i))
                return false;
            break;
        case GATHER:
            for (unsigned m = 0; m < world; m++)
                if (it->in[k][m * s->count + i] != value(it, m, op, i))
                    return false;
            break;
        case MESSAGE:
            if (it->in[k][i] != value(it, before, op, i))
                return false;
            break;
        case BARRIER:
        case KINDS:
            break;
        }
    }
    return true;
}

static bool may_fail(const struct caller *c, int code)
{
    const struct episode *ep = c->ep;

    if (ep->event == HOOKS)
        return code == COMMD_E_INTERRUPTED || code == COMMD_E_TIMEOUT;
    if (c->group != ep->at_group)
        return false;
    switch (ep->event) {
    case LIMIT:
        return code == COMMD_E_TIMEOUT;
    case BROKEN:
        return code == COMMD_E_ABORTED;
    case GONE: /* who is gone waits for those who have given up */
        return code == COMMD_E_RANK_LOST || code == COMMD_E_TIMEOUT;
    case LEFT:
        return code == (c->member == ep->at_member ? COMMD_E_ABORTED : COMMD_E_RANK_LOST);
    case NOTHING:
    case FORKS:
    case HOOKS:
    case EVENTS:
        break;
    }
    return false;
}

static void judge(const struct item *it, int code)
{
    const struct caller *c = it->caller;

    atomic_fetch_add(&beats, 1);
    if (code && !may_fail(c, code))
        wrong(c->ep, "an error that cannot be", c->member, c->group, it->first, code);
    for (unsigned k = 0; !code && k < it->n; k++)
        if (!right(it, k))
            wrong(c->ep, "a wrong result", c->member, c->group, it->first + k, code);
}

/* ---- callers --------------------------------------------------------------------------------- */

static void queue_put(struct queue *q, struct item *it)
{
    pthread_mutex_lock(&q->lock);
    q->item[q->tail++ % ARRAY_LEN(q->item)] = it;
    pthread_cond_signal(&q->cond);
    pthread_mutex_unlock(&q->lock);
}

static bool has_messages(const struct item *it)
{
    for (unsigned k = 0; k < it->n; k++)
        if (spec_of(it, k)->kind == MESSAGE)
            return true;
    return false;
}

static void told(void *arg, const struct commd_error *error)
{
    struct item *it = arg;
    struct caller *c = it->caller;
    int code = error ? error->code : 0;

    if (atomic_fetch_add(&it->told, 1))
        wrong(c->ep, "a second callback", c->member, c->group, it->first, code);
    if (!has_messages(it) && /* which end when they do */
        atomic_exchange(&c->told, it->first + 1) > it->first)
        wrong(c->ep, "a callback out of order", c->member, c->group, it->first, code);
    if (!it->has_handle) {
        judge(it, code);
        atomic_fetch_sub(&c->waiting, 1);
    }
}

static struct item *item_new(struct caller *c, unsigned n)
{
    struct item *it = &c->item[c->nitems++];

    it->caller = c;
    it->first = c->op;
    it->n = n;
    atomic_store(&c->op, c->op + n);
    return it;
}

static void call_blocking(struct caller *c, struct item *it)
{
    struct commd_op ops[2];
    unsigned n = ops_of(it, 0, ops);
    struct commd_work *recv = NULL;
    int r = 0;

    if (n == 2)
        r = commd_start(c->handle, &ops[0], NULL, NULL, &recv);
    if (!r)
        r = commd_run(c->handle, &ops[n - 1]);
    if (recv) {
        int got = commd_work_wait(recv, -1);

        while (got == COMMD_E_INTERRUPTED && !commd_work_test(recv, NULL))
            got = commd_work_wait(recv, -1);
        r = r ? r : got;
        commd_work_free(recv);
    }
    judge(it, r);
}

static void start(struct caller *c, struct item *it, struct dice *d)
{
    struct queue *q = &c->ep->queue[c->member];
    bool handle = it->has_handle = !dice_one_in(d, 4), twice = handle && dice_one_in(d, 3);
    struct commd_op ops[8];
    unsigned n = 0;
    int r;

    for (unsigned k = 0; k < it->n; k++)
        n += ops_of(it, k, &ops[n]);
    it->calls_back = !handle || dice_one_in(d, 2);
    atomic_store(&it->holders, twice ? 2 : 1);
    atomic_fetch_add(&c->waiting, 1);
    r = n == 1 ? commd_start(c->handle, ops, it->calls_back ? told : NULL, it,
                             handle ? &it->work : NULL)
               : commd_start_batch(c->handle, ops, n, it->calls_back ? told : NULL, it,
                                   handle ? &it->work : NULL);
    if (r)
        wrong(c->ep, "a start failed", c->member, c->group, it->first, r);
    for (unsigned i = 0; handle && i <= twice; i++)
        queue_put(q, it);
}

static void chain_told(void *arg, const struct commd_error *error);

static void chain_next(struct caller *c)
{
    struct item *it = item_new(c, 1);
    struct commd_op ops[2];
    unsigned n = ops_of(it, 0, ops);
    int r;

    it->calls_back = true;
    r = n == 1 ? commd_start(c->handle, ops, chain_told, it, NULL)
               : commd_start_batch(c->handle, ops, n, chain_told, it, NULL);
    if (r)
        wrong(c->ep, "a start failed", c->member, c->group, it->first, r);
}

static void chain_told(void *arg, const struct commd_error *error)
{
    struct item *it = arg;
    struct caller *c = it->caller;

    if (atomic_fetch_add(&it->told, 1))
        wrong(c->ep, "a second callback", c->member, c->group, it->first, 0);
    judge(it, error ? error->code : 0);
    if (c->op < OPS)
        chain_next(c);
    else
        atomic_store(&c->over, true);
}

/* True: the caller makes no more calls. */
static bool comes_to_event(struct caller *c)
{
    const struct episode *ep = c->ep;

    if (c->group != ep->at_group || c->op < ep->at_op)
        return false;
    if (c->member != ep->at_member)
        return false;
    if (ep->event == LEFT) {
        c->left = true;
        if (ONE_MAPPING) {
            member_leave(c->handle);
        } else {
            async_drop_group(c->handle->now);
            handle_free(c->handle);
        }
        return true;
    }
    if (ep->event == GONE)
        board_mark_gone(ep->ctl[c->group], c->member, 0, CAUSE_RANK_LOST, 1);
    if (ep->event == BROKEN)
        board_mark_broken(ep->ctl[c->group], CAUSE_ABORTED, (int32_t)c->member, 1, "node", "test");
    return ep->event == GONE || ep->event == LIMIT;
}

static void *caller_main(void *arg)
{
    struct caller *c = arg;
    struct dice d = {c->ep->seed * 1000 + c->member * 10 + c->group};

    while (c->group != CHAIN && c->op < OPS && !comes_to_event(c)) {
        unsigned left = OPS - c->op;

        atomic_store(&c->doing, 1);
        while (atomic_load(&c->waiting) >= AHEAD)
            usleep(20);
        if (dice_one_in(&d, 150))
            usleep(dice_below(&d, 120000)); /* others wait until they sleep, or longer */
        else if (dice_one_in(&d, 8))
            usleep(dice_below(&d, 300));
        atomic_store(&c->doing, 2);
        if (dice_one_in(&d, 4))
            call_blocking(c, item_new(c, 1));
        else
            start(c, item_new(c, dice_one_in(&d, 3) ? MIN(1 + dice_below(&d, 4), left) : 1), &d);
    }
    if (c->group == CHAIN)
        chain_next(c);
    else
        atomic_store(&c->over, true);
    atomic_store(&c->doing, 3);
    while (atomic_load(&c->waiting) || !atomic_load(&c->over))
        usleep(50);
    atomic_store(&c->doing, 4);
    return NULL;
}

/* ---- waiters --------------------------------------------------------------------------------- */

static struct item *queue_take(struct queue *q)
{
    struct item *it = NULL;

    pthread_mutex_lock(&q->lock);
    while (q->head == q->tail && !q->shut)
        pthread_cond_wait(&q->cond, &q->lock);
    if (q->head != q->tail)
        it = q->item[q->head++ % ARRAY_LEN(q->item)];
    pthread_mutex_unlock(&q->lock);
    return it;
}

static int wait_for_it(struct commd_work *work, int64_t timeout_ms)
{
    uint64_t begin = now_ms(), took;
    int r = commd_work_wait(work, timeout_ms);

    took = now_ms() - begin;
    if (timeout_ms >= 0 && took > (uint64_t)timeout_ms &&
        took - (uint64_t)timeout_ms > atomic_load(&late_ms))
        atomic_store(&late_ms, took - (uint64_t)timeout_ms);
    return r;
}

/* @way: how it waits. */
static int wait_in_some_way(struct commd_work *work, unsigned way, struct dice *d)
{
    int code = 1;

    while (!commd_work_test(work, &code)) {
        int64_t limit = way == 0 ? -1 : way == 1 ? (int64_t)dice_below(d, 4) : 0;
        int r;

        if (way == 2) {
            usleep(dice_below(d, 60));
            continue;
        }
        r = wait_for_it(work, limit);
        if (way == 3 && dice_one_in(d, 20))
            way = 0;
        if (r == COMMD_E_TIMEOUT || r == COMMD_E_INTERRUPTED)
            continue;
        if (!commd_work_test(work, &code) || code != r)
            return 1; /* it says that it has ended */
    }
    return code;
}

static void *waiter_main(void *arg)
{
    struct waiter *w = arg;
    struct dice d = {w->ep->seed * 1000 + 500 + w->member * 10 + w->number};
    struct item *it;

    while ((it = queue_take(&w->ep->queue[w->member]))) {
        struct caller *c = it->caller;

        atomic_store(&w->way, (int)dice_below(&d, 4));
        atomic_store(&w->item, it);
        judge(it, wait_in_some_way(it->work, (unsigned)w->way, &d));
        atomic_store(&w->item, NULL);
        if (atomic_fetch_sub(&it->holders, 1) == 1) {
            commd_work_free(it->work);
            atomic_fetch_sub(&c->waiting, 1);
        }
    }
    return NULL;
}

/* ---- what comes in between ------------------------------------------------------------------- */

static void slow_handler(int signal)
{
    int before = errno;

    usleep(200);
    errno = before;
}

static int hook(void *arg)
{
    struct dice d = {atomic_fetch_add((_Atomic uint64_t *)arg, 1)};
    uint32_t what = dice_below(&d, 12);

    if (what < 3)
        usleep(1000 * what);
    return what == 5;
}

/* What was started here is not the child's; nothing there may wait. */
static void fork_once(struct episode *ep, unsigned member)
{
    struct queue *q = &ep->queue[member];
    struct item *it;
    int status;
    pid_t pid;

    pthread_mutex_lock(&q->lock);
    it = q->head != q->tail ? q->item[q->head % ARRAY_LEN(q->item)] : NULL;
    pid = fork();
    if (pid == 0) {
        int r = COMMD_E_FORKED, code = 0;

        if (it) {
            bool done = commd_work_test(it->work, &code);

            r = commd_work_wait(it->work, 1000);
            if (done ? r != code : r != COMMD_E_FORKED)
                _exit(1);
            commd_work_free(it->work);
        }
        r = commd_barrier(ep->caller[member][0].handle);
        _exit(r == COMMD_E_FORKED ? 0 : 2);
    }
    pthread_mutex_unlock(&q->lock);
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status)
        wrong(ep, "a forked child was not refused", member, 0, 0, status);
}

static void *chance_main(void *arg)
{
    struct episode *ep = arg;
    struct dice d = {ep->seed * 1000 + 999};

    while (!atomic_load(&ep->over)) {
        unsigned m = dice_below(&d, ep->world);

        if (ep->signals)
            pthread_kill(ep->waiter[m][dice_below(&d, WAITERS)].thread, SIGUSR1);
        if (ep->event == FORKS && dice_one_in(&d, 4))
            fork_once(ep, m);
        usleep(dice_below(&d, 1500));
    }
    return NULL;
}

/* ---- episodes -------------------------------------------------------------------------------- */

static void draw(struct episode *ep, uint64_t seed)
{
    static const size_t counts[] = {0, 1, 3, 50, 700, 6000, MAX_COUNT};
    struct dice d = {seed};

    memset(ep, 0, sizeof *ep);
    ep->seed = seed;
    ep->event = dice_below(&d, EVENTS);
    ep->world = 2 + dice_below(&d, MEMBERS - 1);
    ep->at_group = dice_below(&d, CHAIN);
    ep->at_member = dice_below(&d, ep->world);
    ep->at_op = dice_below(&d, OPS);
    ep->signals = dice_one_in(&d, 3);
    for (unsigned g = 0; g < GROUPS; g++)
        for (unsigned i = 0; i < OPS; i++)
            ep->spec[g][i] = (struct spec){.kind = dice_below(&d, KINDS),
                                           .count = counts[dice_below(&d, ARRAY_LEN(counts))],
                                           .root = dice_below(&d, ep->world)};
}

static void begin(struct episode *ep)
{
    static _Atomic uint64_t asked;
    struct commd_group *group[MEMBERS];

    for (unsigned m = 0; m < ep->world; m++) {
        for (unsigned c = 0; c < CONTEXTS; c++) {
            ep->ctx[m][c] = member_context_new();
            if (ep->event == HOOKS)
                commd_set_interrupt(ep->ctx[m][c], hook, &asked);
        }
        pthread_mutex_init(&ep->queue[m].lock, NULL);
        pthread_cond_init(&ep->queue[m].cond, NULL);
    }
    for (unsigned g = 0; g < GROUPS; g++) {
        struct commd_context *ctx[MEMBERS];
        bool brief =
            ep->event == HOOKS || ((ep->event == LIMIT || ep->event == GONE) && g == ep->at_group);

        for (unsigned m = 0; m < ep->world; m++)
            ctx[m] = ep->ctx[m][g % CONTEXTS];
        ep->ctl[g] = members_group(ctx, ep->world, g + 1, ONE_MAPPING, group);
        ep->board[g] = group[0]->now->board;
        for (unsigned m = 0; m < ep->world; m++) {
            if (brief)
                commd_group_set_timeout(group[m], SHORT_LIMIT_MS);
            ep->caller[m][g].ep = ep;
            ep->caller[m][g].member = m;
            ep->caller[m][g].group = g;
            ep->caller[m][g].handle = group[m];
        }
    }
}

static void end_caller(struct episode *ep, struct caller *c)
{
    if (!c->left && ONE_MAPPING) {
        member_leave(c->handle);
    } else if (!c->left) {
        async_drop_group(c->handle->now);
        handle_free(c->handle);
    }
    for (unsigned i = 0; i < c->nitems; i++) {
        struct item *it = &c->item[i];

        if (it->told != it->calls_back)
            wrong(ep, "a callback did not come", c->member, c->group, it->first, 0);
        for (unsigned k = 0; k < it->n; k++) {
            free(it->buf[k]);
            free(it->in[k]);
        }
    }
}

static void end(struct episode *ep)
{
    for (unsigned m = 0; m < ep->world; m++) {
        for (unsigned g = 0; g < GROUPS; g++)
            end_caller(ep, &ep->caller[m][g]);
        for (unsigned c = 0; c < CONTEXTS; c++) {
            async_stop(ep->ctx[m][c]);
            free(ep->ctx[m][c]);
        }
    }
    for (unsigned g = 0; g < GROUPS; g++) {
        if (ONE_MAPPING)
            board_unmap(&ep->board[g]);
        board_ctl_free(ep->ctl[g]);
    }
}

static void run(pthread_t *thread, void *(*fn)(void *), void *arg)
{
    if (pthread_create(thread, NULL, fn, arg))
        abort();
}

static void play(uint64_t seed)
{
    static struct episode ep;
    pthread_t chance;

    draw(&ep, seed);
    begin(&ep);
    atomic_store(&current, &ep);
    for (unsigned m = 0; m < ep.world; m++)
        for (unsigned i = 0; i < WAITERS; i++) {
            ep.waiter[m][i].ep = &ep;
            ep.waiter[m][i].member = m;
            ep.waiter[m][i].number = i;
            run(&ep.waiter[m][i].thread, waiter_main, &ep.waiter[m][i]);
        }
    run(&chance, chance_main, &ep);
    for (unsigned m = 0; m < ep.world; m++)
        for (unsigned g = 0; g < GROUPS; g++)
            run(&ep.caller[m][g].thread, caller_main, &ep.caller[m][g]);
    for (unsigned m = 0; m < ep.world; m++)
        for (unsigned g = 0; g < GROUPS; g++)
            pthread_join(ep.caller[m][g].thread, NULL);
    atomic_store(&ep.over, true);
    pthread_join(chance, NULL);
    for (unsigned m = 0; m < ep.world; m++) {
        pthread_mutex_lock(&ep.queue[m].lock);
        ep.queue[m].shut = true;
        pthread_cond_broadcast(&ep.queue[m].cond);
        pthread_mutex_unlock(&ep.queue[m].lock);
        for (unsigned i = 0; i < WAITERS; i++)
            pthread_join(ep.waiter[m][i].thread, NULL);
    }
    end(&ep);
    atomic_store(&current, NULL);
}

/* @argv: the first seed, and for how many seconds; with a seed alone, that one. */
int main(int argc, char **argv)
{
    struct sigaction slow = {.sa_handler = slow_handler};
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 1, first = seed;
    uint64_t until = now_ms();
    struct commd_context *none;
    pthread_t guard;

    if (argc != 2)
        until += 1000 * (argc > 2 ? strtoull(argv[2], NULL, 0) : SECONDS);
    sigaction(SIGUSR1, &slow, NULL);
    setenv("COMMD_SOCKET", "/nonexistent/commd.sock", 1);
    if (commd_connect(NULL, &none) != COMMD_E_NO_DAEMON) /* from now on forks are counted */
        return 1;
    run(&guard, guard_main, NULL);
    do
        play(seed++);
    while (now_ms() < until);
    printf("%llu episodes from seed %llu, a wait was late by %llu ms at most, %llu sleeps were "
           "rescued: all as they should be\n",
           (unsigned long long)(seed - first), (unsigned long long)first,
           (unsigned long long)late_ms, (unsigned long long)atomic_load(&wakeups_rescued));
    return 0;
}

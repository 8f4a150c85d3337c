/* test_trouble.c - what goes wrong around the groups of a client: commd is restarted, callers
 * are interrupted, one group keeps the progress thread busy while another breaks, processes
 * fork, engines end with messages unread. Each test is a case that once went wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include <poll.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "tests/lib/cluster.h"
#include "transport/engine/engine_internal.h"

/* ---- a commd that welcomes everybody ---------------------------------------------------- */

struct fake {
    char dir[32], path[64];
    int listener, client;
    pthread_t thread;
};

/* A welcome per connection. What else comes stays in the socket for the test to read. */
static void *fake_main(void *arg)
{
    struct fake *f = arg;
    int fd;

    while ((fd = accept(f->listener, NULL, NULL)) >= 0) {
        struct msg m = {0};
        const char *why;
        unsigned nfds;

        msg_recv_fd(fd, &m, NULL, 0, &nfds, deadline_in(5000), &why);
        msg_fini(&m);
        m = (struct msg){.type = MSG_WELCOME};
        m.welcome.version = MSG_VERSION;
        m.welcome.incarnation = 1;
        snprintf(m.welcome.node, sizeof m.welcome.node, "here");
        snprintf(m.welcome.cluster, sizeof m.welcome.cluster, "test");
        msg_send_fd(fd, &m, NULL, 0, deadline_in(5000));
        close_fdp(&f->client);
        f->client = fd;
    }
    return NULL;
}

static void fake_start(struct fake *f)
{
    struct sockaddr_un un = {.sun_family = AF_UNIX};

    strcpy(f->dir, "/tmp/commd-test-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    snprintf(f->path, sizeof f->path, "%s/sock", f->dir);
    strcpy(un.sun_path, f->path);
    f->client = -1;
    f->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(f->listener, (struct sockaddr *)&un, sizeof un), 0);
    assert_int_equal(listen(f->listener, 4), 0);
    assert_int_equal(pthread_create(&f->thread, NULL, fake_main, f), 0);
}

static void fake_end(struct fake *f)
{
    shutdown(f->listener, SHUT_RDWR);
    pthread_join(f->thread, NULL);
}

static void fake_close(struct fake *f)
{
    close_fdp(&f->listener);
    close_fdp(&f->client);
    unlink(f->path);
    rmdir(f->dir);
}

static struct cluster *two_ranks(void)
{
    static const uint16_t here[] = {0, 0};
    struct cluster *c = cluster_new(2, 1, here, 1);

    c->ctx.finished_tail = &c->ctx.finished;
    return c;
}

static void stop(struct cluster *c)
{
    for (unsigned k = 0; k < c->world; k++)
        async_drop_group(c->group[k]->now);
    async_stop(&c->ctx);
    control_close(&c->ctx);
    cluster_free(c);
}

static void connect_again(struct commd_context *ctx)
{
    pthread_mutex_lock(&ctx->lock);
    assert_int_equal(control_open(ctx, deadline_in(5000)), 0);
    pthread_mutex_unlock(&ctx->lock);
}

/* ---- commd is restarted ------------------------------------------------------------------- */

/* The groups of the old commd live on without one; a rank that dies is still noticed, although
 * the context is connected again. */
static void dead_rank_is_noticed_after_reconnecting(void **state)
{
    struct cluster *c = two_ranks();
    struct commd_op op = {.size = sizeof op, .coll = COMMD_BARRIER, .timeout_ms = 20000};
    struct fake f;
    pid_t pid = fork();

    if (pid == 0)
        _exit(0);
    waitpid(pid, NULL, 0);
    c->group[0]->now->members[1].pid = (uint32_t)pid;
    c->group[0]->now->alive.pids = true;
    fake_start(&f);
    snprintf(c->ctx.socket_path, sizeof c->ctx.socket_path, "%s", f.path);
    connect_again(&c->ctx);
    assert_int_equal(commd_run(c->group[0], &op), COMMD_E_RANK_LOST);
    assert_int_equal(commd_last_error()->rank, 1);
    stop(c);
    fake_end(&f);
    fake_close(&f);
}

/* What a pid says, and what the lock on the board says, when no commd is there to tell. */
static void lives(const struct cluster *c, bool lives, bool left)
{
    bool has_left;

    assert_int_equal(alive_ended(c->group[0]->now, 1, &has_left), !lives);
    assert_int_equal(has_left, left);
}

static void who_lives_is_told_by_its_lock(void **state)
{
    struct cluster *c = two_ranks();
    struct commd_context *none;
    struct commd_options nowhere = {.size = sizeof nowhere, .socket = "/nowhere"};
    struct alive *of = &c->group[1]->now->alive;
    int ready[2], go[2];
    pid_t dead = fork(), child;

    if (dead == 0)
        _exit(0);
    waitpid(dead, NULL, 0);
    assert_false(c->group[0]->now->alive.pids); /* nobody said that it has the pid that it has */
    lives(c, true, false);
    c->group[0]->now->members[1].pid = (uint32_t)dead;
    lives(c, true, false); /* of another namespace */
    c->group[0]->now->alive.pids = true;
    lives(c, false, false);
    c->group[0]->now->members[1].pid = (uint32_t)getpid(); /* as if used again */
    lives(c, true, false);

    /* a child does not hold the lock for its parent */
    assert_int_not_equal(commd_connect(&nowhere, &none), 0); /* forks are watched from now on */
    assert_int_equal(pipe(ready) | pipe(go), 0);
    child = fork();
    if (child == 0) {
        close(go[1]);
        (void)!write(ready[1], "r", 1);
        (void)!read(go[0], &(char){0}, 1);
        _exit(0);
    }
    assert_int_equal(read(ready[0], &(char){0}, 1), 1);
    lives(c, true, false);
    close_fdp(&of->fd); /* as the kernel does when it dies */
    lives(c, false, false);
    close(go[1]);
    waitpid(child, NULL, 0);
    close(go[0]), close(ready[0]), close(ready[1]);

    atomic_store(&c->group[0]->now->board.members[1].alive, MEMBER_UNKNOWN); /* without a lock */
    lives(c, true, false);
    atomic_store(&c->group[0]->now->board.members[1].alive, MEMBER_LEFT);
    lives(c, false, true);
    cluster_free(c);
}

/* Who has few descriptors left keeps them. */
static void the_lock_leaves_half_of_the_descriptors(void **state)
{
    struct rlimit old, few;
    struct cluster *c;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    few = old;
    few.rlim_cur = 8;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    c = two_ranks();
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    assert_int_equal(c->group[1]->now->alive.fd, -1);
    lives(c, true, false);
    cluster_free(c);
}

/* commd takes a message about a group that it does not know for a breach of protocol. */
static void new_commd_hears_nothing_of_old_groups(void **state)
{
    struct cluster *c = two_ranks();
    struct commd_op op = {.size = sizeof op, .coll = COMMD_BARRIER, .timeout_ms = 1};
    struct pollfd p = {.events = POLLIN};
    struct fake f;

    fake_start(&f);
    snprintf(c->ctx.socket_path, sizeof c->ctx.socket_path, "%s", f.path);
    connect_again(&c->ctx);
    assert_int_equal(commd_run(c->group[0], &op), COMMD_E_TIMEOUT);
    assert_int_equal(commd_group_abort(c->group[0], "enough"), COMMD_E_NODE_LOST);
    commd_group_leave(c->group[0]);
    c->group[0] = NULL;
    async_drop_group(c->group[1]->now);
    shutdown(c->ctx.sock, SHUT_WR);
    fake_end(&f);
    p.fd = f.client;
    assert_int_equal(poll(&p, 1, 300000), 1);
    assert_int_equal(recv(f.client, &(char){0}, 1, 0), 0); /* the end, and nothing before it */
    fake_close(&f);
    control_close(&c->ctx);
    cluster_free(c);
}

static void *answer_join(void *arg)
{
    struct fake *f = arg;
    struct msg_member *member = calloc(1, sizeof *member);
    char(*node)[MSG_NAME_MAX] = calloc(1, sizeof *node);
    struct msg m = {0};
    const char *why;
    unsigned nfds;
    uint32_t req;

    if (msg_recv_fd(f->client, &m, NULL, 0, &nfds, deadline_in(5000), &why) == 0) {
        req = m.client_join.req;
        msg_fini(&m);
        /* answers to other questions, which the number alone does not tell from this one's */
        m = (struct msg){.type = MSG_ARENA_ANSWER};
        m.arena_answer.req = req;
        memset(m.arena_answer.text, 'A', 64);
        msg_send_fd(f->client, &m, NULL, 0, deadline_in(5000));
        m.type = MSG_GPU_ANSWER;
        msg_send_fd(f->client, &m, NULL, 0, deadline_in(5000));
        m = (struct msg){.type = MSG_JOINED};
        m.joined.req = req;
        m.joined.size = m.joined.nnodes = 1;
        m.joined.group = 0x55;
        m.joined.epoch = 1;
        m.joined.members = member;
        m.joined.nodes = node;
        member->pid = 1;
        strcpy(node[0], "here");
        msg_send_fd(f->client, &m, NULL, 0, deadline_in(5000));
        msg_fini(&m);
    }
    return NULL;
}

/* A rank that cannot use its board leaves: commd and the other ranks count on that. What commd
 * answers to a question of another kind is not taken for the answer to the join. */
static void group_without_a_board_is_left(void **state)
{
    struct cluster *c = two_ranks();
    struct commd_group *g;
    struct fake f;
    struct msg m = {0};
    const char *why;
    unsigned nfds;
    pthread_t t;

    fake_start(&f);
    snprintf(c->ctx.socket_path, sizeof c->ctx.socket_path, "%s", f.path);
    connect_again(&c->ctx);
    fake_end(&f);
    assert_int_equal(pthread_create(&t, NULL, answer_join, &f), 0);
    assert_int_equal(commd_group_join(&c->ctx, "x", 0, 1, 5000, &g), COMMD_E_PROTOCOL);
    pthread_join(t, NULL);
    assert_int_equal(msg_recv_fd(f.client, &m, NULL, 0, &nfds, deadline_in(5000), &why), 0);
    assert_int_equal(m.type, MSG_CLIENT_LEAVE);
    assert_int_equal(m.client_leave.group, 0x55);
    msg_fini(&m);
    fake_close(&f);
    stop(c);
}

/* ---- interrupts ----------------------------------------------------------------------------- */

static int yes(void *arg)
{
    return 1;
}

/* Hears a join, and then that it is withdrawn. */
static void *answer_withdrawn(void *arg)
{
    struct fake *f = arg;
    struct msg m = {0};
    const char *why;
    unsigned nfds;
    uint32_t req;

    assert_int_equal(msg_recv_fd(f->client, &m, NULL, 0, &nfds, deadline_in(5000), &why), 0);
    assert_int_equal(m.type, MSG_CLIENT_JOIN);
    req = m.client_join.req;
    msg_fini(&m);
    assert_int_equal(msg_recv_fd(f->client, &m, NULL, 0, &nfds, deadline_in(5000), &why), 0);
    assert_int_equal(m.type, MSG_CLIENT_WITHDRAW);
    assert_int_equal(m.client_withdraw.req, req);
    m = (struct msg){.type = MSG_JOIN_FAILED};
    m.join_failed.req = req;
    m.join_failed.cause = CAUSE_ABORTED;
    m.join_failed.rank = -1;
    msg_send_fd(f->client, &m, NULL, 0, deadline_in(5000));
    return NULL;
}

/* Else commd would count this rank in when the others come. */
static void interrupted_join_is_withdrawn(void **state)
{
    struct cluster *c = two_ranks();
    struct commd_group *g;
    struct fake f;
    pthread_t t;

    fake_start(&f);
    snprintf(c->ctx.socket_path, sizeof c->ctx.socket_path, "%s", f.path);
    connect_again(&c->ctx);
    fake_end(&f);
    assert_int_equal(pthread_create(&t, NULL, answer_withdrawn, &f), 0);
    commd_set_interrupt(&c->ctx, yes, NULL);
    assert_int_equal(commd_group_join(&c->ctx, "x", 0, 2, -1, &g), COMMD_E_INTERRUPTED);
    pthread_join(t, NULL);
    fake_close(&f);
    stop(c);
}

/* A blocking call that had to queue behind another operation gives its buffers back when it
 * returns, also when it returns because of Ctrl-C. */
static void interrupted_call_lets_go_of_its_buffers(void **state)
{
    struct cluster *c = two_ranks();
    struct commd_group *g = c->group[0];
    float x = 1;

    assert_true(turn_take(g->now)); /* as if another operation were under way */
    commd_set_interrupt(&c->ctx, yes, NULL);
    assert_int_equal(commd_all_reduce(g, &x, &x, 1, COMMD_F32, COMMD_SUM), COMMD_E_INTERRUPTED);
    assert_int_equal(atomic_load(&g->now->pending), 0);
    assert_null(g->now->head);
    commd_set_interrupt(&c->ctx, NULL, NULL);
    atomic_store(&g->now->busy, 0);
    /* the group is broken behind it */
    assert_int_equal(commd_barrier(g), COMMD_E_INTERRUPTED);
    stop(c);
}

/* The same when the progress thread has begun it. */
static void interrupted_call_ends_also_when_it_runs(void **state)
{
    struct cluster *c = two_ranks();
    struct commd_group *g = c->group[0];
    struct commd_op op = {.size = sizeof op, .coll = COMMD_BARRIER};

    commd_set_interrupt(&c->ctx, yes, NULL);
    atomic_fetch_add(&g->now->pending, 1); /* as if something was queued when the call came */
    assert_int_equal(commd_run(g, &op), COMMD_E_INTERRUPTED);
    assert_int_equal(atomic_fetch_sub(&g->now->pending, 1), 1);
    for (unsigned i = 0; i < 10000 && atomic_load(&g->now->busy); i++)
        usleep(1000); /* the progress thread may look at the group just now */
    assert_null(g->now->running);
    assert_int_equal(atomic_load(&g->now->busy), 0);
    stop(c);
}

static int count_questions(void *arg)
{
    atomic_fetch_add((_Atomic unsigned *)arg, 1);
    return 0;
}

static void *come_late(void *arg)
{
    struct commd_group *g = arg;

    usleep(5000);
    assert_int_equal(commd_barrier(g), 0);
    usleep(5000);
    assert_int_equal(commd_send(g, NULL, 0, COMMD_U8, 0, 1), 0);
    return NULL;
}

/* Python takes its lock to answer, which another thread may hold for 5 ms: who sleeps for less than
 * a moment does not ask. */
static void short_sleeps_do_not_ask(void **state)
{
    struct cluster *c = two_ranks();
    uint64_t begun = now_ms();
    _Atomic unsigned asked = 0;
    pthread_t late;

    commd_set_interrupt(&c->ctx, count_questions, &asked);
    assert_int_equal(pthread_create(&late, NULL, come_late, c->group[1]), 0);
    assert_int_equal(commd_barrier(c->group[0]), 0);
    assert_int_equal(commd_recv(c->group[0], NULL, 0, COMMD_U8, 1, 1, NULL), 0);
    assert_true(atomic_load(&asked) <= (now_ms() - begun) / WAIT_SLICE_MS);
    pthread_join(late, NULL);
    commd_set_interrupt(&c->ctx, NULL, NULL);
    stop(c);
}

/* ---- the progress thread -------------------------------------------------------------------- */

static _Atomic bool enough, over;

static void again(void *arg, const struct commd_error *e)
{
    struct commd_op op = {.size = sizeof op, .coll = COMMD_BARRIER};

    if (atomic_load(&enough))
        atomic_store(&over, true);
    else
        commd_start(arg, &op, again, arg, NULL);
}

/* A group that always has something to do does not hide that another one is broken. */
static void busy_group_does_not_hide_a_broken_one(void **state)
{
    static const uint16_t alone[] = {0};
    struct cluster *c = two_ranks(), *busy = cluster_new(1, 1, alone, 1);
    struct commd_op op = {.size = sizeof op, .coll = COMMD_BARRIER};
    struct board_member *m = &c->group[0]->now->board.members[0];
    struct commd_work *w;

    busy->group[0]->now->ctx = &c->ctx;
    atomic_store(&enough, false);
    atomic_store(&over, false);
    assert_int_equal(commd_start(c->group[0], &op, NULL, NULL, &w), 0);
    while (atomic_load(&m->started) == 0)
        sched_yield();
    again(busy->group[0], NULL);
    board_mark_broken(c->node[0].ctl, CAUSE_ABORTED, 1, 5, "node0", "rank 1 aborted the group");
    assert_int_equal(commd_work_wait(w, 300000), COMMD_E_ABORTED);
    atomic_store(&enough, true);
    while (!atomic_load(&over)) /* what starts an operation must not meet the end of its group */
        sched_yield();
    commd_work_free(w);
    async_drop_group(busy->group[0]->now);
    stop(c);
    cluster_free(busy);
}

static void forked_child_does_not_wait_for_works(void **state)
{
    struct cluster *c = two_ranks();
    struct commd_op op = {.size = sizeof op, .coll = COMMD_BARRIER};
    struct commd_options none = {.size = sizeof none, .socket = "/nonexistent"};
    struct commd_context *ctx;
    struct commd_work *w;
    int st = 0;
    pid_t pid;

    assert_int_equal(commd_connect(&none, &ctx), COMMD_E_NO_DAEMON); /* watches forks now */
    assert_int_equal(commd_start(c->group[0], &op, NULL, NULL, &w), 0);
    pid = fork();
    if (pid == 0)
        _exit(commd_work_wait(w, 0) == COMMD_E_FORKED ? 0 : 1);
    assert_int_equal(waitpid(pid, &st, 0), pid);
    assert_int_equal(st, 0);
    assert_int_equal(commd_work_wait(w, 0), COMMD_E_TIMEOUT);
    commd_work_free(w);
    stop(c);
}

/* ---- boards and engines ---------------------------------------------------------------------- */

static bool run_all(struct cluster *c, const struct commd_op *op, enum run_state *st,
                    struct commd_error *err)
{
    struct commd_op ops[CLUSTER_MAX_RANKS];

    for (unsigned k = 0; k < c->world; k++)
        ops[k] = *op;
    return cluster_run(c, ops, st, err);
}

/* Operation 2^32 is one like all others. */
static void operation_numbers_wrap(void **state)
{
    static const uint16_t placement[] = {0, 0, 1};
    struct cluster *c = cluster_new(3, 2, placement, 3);
    struct commd_op op = {.size = sizeof op, .coll = COMMD_BARRIER};
    enum run_state st[3];
    struct commd_error err[3];

    for (unsigned k = 0; k < 3; k++)
        atomic_store(&c->group[k]->now->seq, UINT32_MAX - 2ull);
    for (unsigned i = 0; i < 6; i++) {
        assert_true(run_all(c, &op, st, err));
        for (unsigned k = 0; k < 3; k++)
            assert_int_equal(st[k], RUN_DONE);
    }
    cluster_free(c);
}

/* The engine may be killed in the middle of writing why. */
static void board_breaks_also_after_a_half_written_cause(void **state)
{
    struct cluster *c = two_ranks();
    struct commd_op op = {.size = sizeof op, .coll = COMMD_BARRIER, .timeout_ms = 1};

    memset(c->group[0]->now->board.hdr->engine_cause.text, 'x', BOARD_TEXT); /* not told */
    board_mark_broken(c->node[0].ctl, CAUSE_ENGINE_LOST, -1, 0, "node0", "the engine is gone");
    assert_int_equal(commd_run(c->group[0], &op), COMMD_E_ENGINE_LOST);
    assert_int_equal(commd_last_error()->rank, -1);
    assert_non_null(strstr(commd_last_error()->message, "the engine is gone"));
    cluster_free(c);
}

static void timeout_names_all_missing_ranks(void **state)
{
    uint16_t here[CLUSTER_MAX_RANKS] = {0};
    struct cluster *c = cluster_new(CLUSTER_MAX_RANKS, 1, here, 1);
    struct commd_op op = {.size = sizeof op, .coll = COMMD_BARRIER, .timeout_ms = 1};

    atomic_store(&c->group[0]->now->board.members[2].started, 1);
    assert_int_equal(commd_run(c->group[0], &op), COMMD_E_TIMEOUT);
    assert_non_null(strstr(commd_last_error()->message, "ranks 1,3-63 of"));
    assert_int_equal(commd_last_error()->seq, 1);
    cluster_free(c);
}

/* A message that nobody had asked for yet when the engine ended. */
static void engine_ends_with_unread_messages(void **state)
{
    static const uint16_t placement[] = {0, 1};
    static uint8_t body[PLAN_CHUNK];
    struct cluster *c = cluster_new(2, 2, placement, 3);
    struct fabric *f = c->node[0].fabric;
    struct wire_hdr h = {.group = 0x99, .len = sizeof body};

    assert_int_equal(f->ops->send(f, 1, &h, sizeof h, body, sizeof body, NULL, NULL), 0);
    while (c->node[1].fabric->ops->progress(c->node[1].fabric))
        ;
    cluster_free(c);
}

/* Is anything left of a rank that is gone? Its engine closed the group very long ago. */
static void forgotten_group_is_answered_for(void **state)
{
    static const uint16_t placement[] = {0, 1};
    struct cluster *c = cluster_new(2, 2, placement, 3);
    struct fabric *f = c->node[0].fabric;
    struct engine *asks = c->node[0].engine, *answers = c->node[1].engine;
    struct mail_rec rec = {.kind = MAIL_PROBE, .src = 0, .dst = 1};
    struct wire_mail w = {.h = {.group = 0x99, .step = WIRE_MAIL}};

    memcpy(w.rec, &rec, sizeof rec);
    assert_true(f->ops->send(f, 1, &w, sizeof w, NULL, 0, NULL, NULL) >= 0);
    for (unsigned i = 0; i < 100; i++)
        cluster_turn(c);
    assert_int_equal(answers->pending.n, 1);
    pending_expire(answers, (int64_t)now_ms() - 1000);
    assert_int_equal(answers->pending.n, 1); /* commd may still tell of it */
    pending_expire(answers, -1000);          /* a machine that has just booted */
    assert_int_equal(answers->pending.n, 1);
    pending_expire(answers, (int64_t)now_ms() + 1000);
    assert_int_equal(answers->pending.n, 0);
    for (unsigned i = 0; i < 100; i++)
        cluster_turn(c);
    assert_int_equal(asks->pending.n, 1);
    memcpy(&rec, pending_oldest(asks)->m.rec, sizeof rec);
    assert_int_equal(rec.kind, MAIL_PONG);
    assert_int_equal(rec.src, 1);
    assert_int_equal(rec.dst, 0);
    pending_expire(asks, (int64_t)now_ms() + 1000); /* answers are not answered */
    for (unsigned i = 0; i < 100; i++)
        cluster_turn(c);
    assert_int_equal(answers->pending.n, 0);
    cluster_free(c);
}

static int no_memory(struct fabric *f, void *claim, void *buf, size_t len, fabric_done_fn done,
                     void *arg)
{
    f->ops->drop(f, claim);
    return -ENOMEM;
}

/* An engine that cannot receive says so; the group does not just stop. */
static void failed_receive_ends_the_group(void **state)
{
    static const uint16_t placement[] = {0, 1};
    static float buf[300000];
    struct cluster *c = cluster_new(2, 2, placement, 3);
    struct commd_op op = {.size = sizeof op,
                          .coll = COMMD_BROADCAST,
                          .dtype = COMMD_F32,
                          .recv = buf,
                          .count = 300000};
    struct fabric *f = c->node[1].fabric;
    const struct fabric_ops *real = f->ops;
    struct fabric_ops ops = *real;
    enum run_state st[2];
    struct commd_error err[2];

    ops.recv = no_memory;
    f->ops = &ops;
    run_all(c, &op, st, err);
    f->ops = real;
    assert_int_equal(st[1], RUN_FAILED);
    assert_int_equal(err[1].code, COMMD_E_NOMEM);
    assert_int_equal(c->board_errors, 1);
    cluster_free(c);
}

/* ---- mismatches ------------------------------------------------------------------------------ */

/* Not one in which senders wait for nobody: test_posts.c. */
static struct commd_op random_op(struct cluster *c, size_t blocks[7])
{
    static const size_t counts[] = {0, 1, 12, 13, 2048, 2049, 65536, 65537, 700000};
    size_t n = counts[cluster_rand(c, ARRAY_LEN(counts))] / (cluster_rand(c, 2) ? c->world : 1);

    int coll = (int)cluster_rand(c, COLL_COUNT);

    if (coll == COMMD_BROADCAST || coll == (c->nnodes > 1 ? COMMD_REDUCE : COMMD_SCATTER))
        coll = COMMD_GATHER;
    for (unsigned k = 0; k < 7; k++)
        blocks[k] = n;
    return (struct commd_op){
        .size = sizeof(struct commd_op),
        .coll = coll,
        .dtype = COMMD_F32,
        .root = (int)cluster_rand(c, c->world),
        .count = n,
        .send_counts = blocks,
        .recv_counts = blocks,
    };
}

enum { RANDOM_RANKS = 7 };

static struct cluster *random_cluster(uint64_t seed)
{
    struct cluster tmp = {.rng = seed * 0x9e3779b97f4a7c15ull};
    unsigned world = 2 + cluster_rand(&tmp, RANDOM_RANKS - 1);
    unsigned nodes = 1 + cluster_rand(&tmp, MIN(world, 5u));
    uint16_t placement[RANDOM_RANKS];

    for (unsigned k = 0; k < world; k++)
        placement[k] = (uint16_t)(k % nodes);
    return cluster_new(world, nodes, placement, seed);
}

typedef void (*random_round_fn)(struct cluster *c, uint64_t seed, unsigned i, uint8_t *const *raw);

/* Eight rounds in each of 40 random clusters. @raw: two buffers for each rank, for anything that
 * random_op() makes, and a byte more. */
static void in_random_clusters(random_round_fn one_round)
{
    enum { MAX = 700000 };
    uint8_t *raw[2 * RANDOM_RANKS];

    cluster_plans(0); /* else senders would not wait, either */
    for (unsigned i = 0; i < ARRAY_LEN(raw); i++)
        raw[i] = calloc(MAX * RANDOM_RANKS + 1, sizeof(float));
    for (uint64_t seed = 1; seed <= 40; seed++) {
        struct cluster *c = random_cluster(seed);

        for (unsigned i = 0; i < 8; i++)
            one_round(c, seed, i, raw);
        assert_int_equal(c->board_errors, 0);
        cluster_free(c);
    }
    cluster_plans(PLAN_KNOWN);
    for (unsigned i = 0; i < ARRAY_LEN(raw); i++)
        free(raw[i]);
}

static void different_operations(struct cluster *c, uint64_t seed, unsigned i, uint8_t *const *raw)
{
    size_t blocks[2][RANDOM_RANKS];
    struct commd_op one = random_op(c, blocks[0]), other = random_op(c, blocks[1]);
    struct commd_op ops[RANDOM_RANKS];
    enum run_state st[RANDOM_RANKS];
    struct commd_error err[RANDOM_RANKS];
    unsigned world = c->world;
    bool same = i % 2;

    for (unsigned k = 0; k < world; k++) {
        /* the first is always one, the last always the other */
        ops[k] = same || k == 0 || (k + 1 < world && cluster_rand(c, 2)) ? one : other;
        ops[k].send = raw[2 * k] + 1; /* no alignment is promised */
        ops[k].recv = raw[2 * k + 1] + 1;
    }
    if (!same && one.coll == other.coll) {
        ops[world - 1].coll = COMMD_ALL_REDUCE;
        ops[world - 1].redop = COMMD_MAX; /* random_op() leaves it at the sum */
    }
    if (!cluster_run(c, ops, st, err))
        fail_msg("seed %llu op %u hangs: %s of %zu, %s of %zu (%s)", (unsigned long long)seed, i,
                 coll_name((unsigned)one.coll), one.count, coll_name((unsigned)other.coll),
                 other.count, c->last_error);
    for (unsigned k = 0; k < world; k++) {
        if (same ? st[k] != RUN_DONE : err[k].code != COMMD_E_MISMATCH)
            fail_msg("seed %llu op %u rank %u: %s", (unsigned long long)seed, i, k, err[k].message);
        if (same)
            continue;
        assert_int_equal(err[k].seq, commd_group_seq(c->group[k]));
        assert_int_equal(err[k].epoch, 1);
        assert_string_equal(err[k].node, group_node_of(c->group[k]->now, (unsigned)err[k].rank));
    }
}

/* Whatever different operations meet, everybody is told and the next one works. */
static void any_mismatch_leaves_the_group_usable(void **state)
{
    in_random_clusters(different_operations);
}

static void some_cannot(struct cluster *c, uint64_t seed, unsigned i, uint8_t *const *raw)
{
    struct commd_op ops[RANDOM_RANKS], barrier = {.size = sizeof *ops, .coll = COMMD_BARRIER};
    int declined[RANDOM_RANKS] = {0};
    size_t blocks[RANDOM_RANKS];
    struct commd_op one = random_op(c, blocks);
    unsigned world = c->world, chosen = cluster_rand(c, world);
    enum run_state st[RANDOM_RANKS];
    struct commd_error err[RANDOM_RANKS];
    bool all = cluster_rand(c, 4) == 0;

    for (unsigned k = 0; k < world; k++) {
        if (i % 2 == 0 && (all || k == chosen || cluster_rand(c, 4) == 0))
            declined[k] = COMMD_E_NOMEM;
        ops[k] = declined[k] ? barrier : one;
        ops[k].send = raw[2 * k];
        ops[k].recv = raw[2 * k + 1];
    }
    c->declined = declined;
    if (!cluster_run(c, ops, st, err))
        fail_msg("seed %llu op %u hangs: %s of %zu (%s)", (unsigned long long)seed, i,
                 coll_name((unsigned)one.coll), one.count, c->last_error);
    c->declined = NULL;
    for (unsigned k = 0; k < world; k++) {
        if (i % 2 ? st[k] != RUN_DONE : st[k] != RUN_FAILED || err[k].code != COMMD_E_NOMEM)
            fail_msg("seed %llu op %u rank %u: %d, %s", (unsigned long long)seed, i, k, st[k],
                     err[k].message);
        if (i % 2)
            continue;
        assert_true(err[k].rank >= 0 && declined[err[k].rank]);
        assert_string_equal(err[k].node, group_node_of(c->group[k]->now, (unsigned)err[k].rank));
        assert_non_null(strstr(err[k].message, "no more host memory that its GPU can"));
    }
}

/* Whatever the operation, and however many ranks say so, also all: it fails on all ranks by the
 * name of one of them, and the next one works. */
static void who_cannot_take_part_is_named(void **state)
{
    in_random_clusters(some_cannot);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dead_rank_is_noticed_after_reconnecting),
        cmocka_unit_test(who_lives_is_told_by_its_lock),
        cmocka_unit_test(the_lock_leaves_half_of_the_descriptors),
        cmocka_unit_test(new_commd_hears_nothing_of_old_groups),
        cmocka_unit_test(group_without_a_board_is_left),
        cmocka_unit_test(interrupted_join_is_withdrawn),
        cmocka_unit_test(interrupted_call_lets_go_of_its_buffers),
        cmocka_unit_test(interrupted_call_ends_also_when_it_runs),
        cmocka_unit_test(short_sleeps_do_not_ask),
        cmocka_unit_test(busy_group_does_not_hide_a_broken_one),
        cmocka_unit_test(forked_child_does_not_wait_for_works),
        cmocka_unit_test(operation_numbers_wrap),
        cmocka_unit_test(board_breaks_also_after_a_half_written_cause),
        cmocka_unit_test(timeout_names_all_missing_ranks),
        cmocka_unit_test(failed_receive_ends_the_group),
        cmocka_unit_test(any_mismatch_leaves_the_group_usable),
        cmocka_unit_test(who_cannot_take_part_is_named),
        cmocka_unit_test(engine_ends_with_unread_messages),
        cmocka_unit_test(forgotten_group_is_answered_for),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* recover.c - groups that lose ranks and go on, at random: recover [--seed S] [--seeds N] [--trace]
 *
 * Each seed has a small cluster and a few jobs. A job forms its group, ranks of it end in some way,
 * and those that are left ask for the next epoch: they shrink, or wait for new processes, which
 * come before, after or between them; then again, epoch after epoch. A quiet seed has faults only
 * before anybody asks, all ask for the same, and then the answer is known: who can go on does. In
 * the others anything happens in the middle of it: who asks dies, its node, the node that decides,
 * or a link; commd is killed and another one takes over; ranks ask for different things, twice, or
 * not at all; old messages come again. What must hold whatever happens is in sim_check.c and
 * sim_recover.c.
 *
 * At the end all is healed, and everybody who is in a group asks once more: whoever is left gets an
 * answer before its time is over, and of each group some go on. Each seed runs twice and must do
 * the same both times. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/sim/seeds.h"

enum {
    JOBS = 2,
    ROUNDS = 8,
    PROCESSES = 40, /* of a job, over a run */
    RANKS_MOST = 8,
    QUIET_MS = 9000, /* a node that is lost is known to be so long before */
};

enum fault {
    FAULT_DIE = 1,
    FAULT_LEAVE = 2,
    FAULT_RESET = 4,
    FAULT_CUT = 8,
    FAULT_ENGINE = 16,
    FAULT_CRASH = 32,
    FAULT_REPLAY = 64,
    FAULT_SLOW = 128,
    FAULT_WRONG = 256,   /* ranks that contradict each other */
    FAULT_KILL = 512,    /* commd alone, and another one takes over */
    FAULT_ABSENT = 1024, /* some do not ask, or take it back */
    FAULT_BOTH = 2048,   /* commd and its engine at once */
    FAULT_FORGET = 4096, /* likewise, and the next commd is started anew */
    FAULT_ALL = 8191
};

struct job {
    const char *name;
    unsigned clients[PROCESSES], n;
    unsigned size;
};

struct run {
    struct sim *sim;
    uint64_t random;
    unsigned nodes, faults;
    bool quiet, here; /* here: all on one node */
    struct job jobs[JOBS];
};

static uint64_t draw(struct run *run, uint64_t below)
{
    return core_mix(run->random++) % below;
}

static bool has(const struct run *run, enum fault fault)
{
    return run->faults & fault;
}

static _Noreturn void violation(struct run *run, const char *what)
{
    fprintf(stderr, "%sVIOLATION at %llu ms: %s\n", sim_trace(run->sim),
            (unsigned long long)sim_now(run->sim), what);
    abort();
}

/* ---- processes of a job ---------------------------------------------------------------------- */

static unsigned some_node(struct run *run)
{
    unsigned node = run->here ? 0 : (unsigned)draw(run, run->nodes);

    for (unsigned i = 0; i < run->nodes; i++, node = (node + 1) % run->nodes)
        if (sim_alive(run->sim, node))
            return node;
    return UINT32_MAX;
}

/* A new process; UINT32_MAX: there is no place for one. */
static unsigned newcomer(struct run *run, struct job *job)
{
    unsigned node = some_node(run);

    if (node == UINT32_MAX || job->n == PROCESSES)
        return UINT32_MAX;
    job->clients[job->n] = sim_client(run->sim, node);
    return job->clients[job->n++];
}

struct crew {
    unsigned clients[PROCESSES], n;
};

static uint64_t group_of(const struct run *run, const struct job *job, unsigned client)
{
    unsigned rank, size;

    return sim_client_in(run->sim, client, job->name, &rank, &size);
}

/* Those of the job that are in a group; @group: in this one. */
static struct crew members(const struct run *run, const struct job *job, uint64_t group)
{
    struct crew crew = {.n = 0};

    for (unsigned i = 0; i < job->n; i++) {
        uint64_t in = group_of(run, job, job->clients[i]);

        if (in && (!group || in == group))
            crew.clients[crew.n++] = job->clients[i];
    }
    return crew;
}

static bool all_answered(const struct run *run, const struct job *job)
{
    for (unsigned i = 0; i < job->n; i++)
        if (sim_client_alive(run->sim, job->clients[i]) &&
            sim_client_pending(run->sim, job->clients[i]))
            return false;
    return true;
}

/* Until all of the job have their answers, or so long. */
static void wait_for(struct run *run, const struct job *job, uint64_t ms)
{
    uint64_t until = sim_now(run->sim) + ms;

    while (!all_answered(run, job) && sim_now(run->sim) < until)
        sim_run(run->sim, MIN(until - sim_now(run->sim), (uint64_t)10));
}

static void end_all(struct run *run, struct job *job)
{
    for (unsigned i = 0; i < job->n; i++)
        sim_die(run->sim, job->clients[i], "its job is over");
    job->n = 0;
}

/* Who was refused, and is in no group, ends. */
static void end_idle(struct run *run, struct job *job)
{
    for (unsigned i = 0; i < job->n; i++)
        if (!group_of(run, job, job->clients[i]) && !sim_client_pending(run->sim, job->clients[i]))
            sim_die(run->sim, job->clients[i], "there is nothing to do");
}

static void form(struct run *run, struct job *job)
{
    uint64_t limit = run->quiet ? 5000 : 2000;
    unsigned size = 2 + (unsigned)draw(run, RANKS_MOST - 2);

    end_all(run, job);
    for (unsigned i = 0; i < size; i++) {
        unsigned client = newcomer(run, job);

        if (client != UINT32_MAX)
            sim_join(run->sim, client, job->name, i, size, limit);
    }
    job->size = size;
    wait_for(run, job, limit + 3000);
    if (run->quiet && members(run, job, 0).n != size)
        violation(run, "a group does not form, and nothing is wrong");
}

/* ---- faults ---------------------------------------------------------------------------------- */

static unsigned one_of(struct run *run, const struct crew *crew)
{
    return crew->n ? crew->clients[draw(run, crew->n)] : UINT32_MAX;
}

static void crash_or_start(struct run *run, unsigned node)
{
    static const enum msg_type types[] = {MSG_COMMIT,       MSG_SYNC,      MSG_GONE,  MSG_JOIN,
                                          MSG_JOIN_REFUSED, MSG_JOIN_NEWS, MSG_BROKEN};

    if (!sim_alive(run->sim, node))
        sim_start(run->sim, node);
    else if (draw(run, 2))
        sim_crash_after(run->sim, node, types[draw(run, ARRAY_LEN(types))],
                        1 + (unsigned)draw(run, 3));
    else
        sim_crash(run->sim, node);
}

/* Two halves, neither of which hears the other. */
static void cut_in_two(struct run *run)
{
    unsigned from = 1 + (unsigned)draw(run, run->nodes - 1);

    for (unsigned a = 0; a < from; a++)
        for (unsigned b = from; b < run->nodes; b++)
            sim_cut(run->sim, a, b);
}

static void hurt(struct run *run, struct job *job)
{
    unsigned a = (unsigned)draw(run, run->nodes),
             b = (a + 1 + (unsigned)draw(run, run->nodes - 1)) % run->nodes;
    unsigned client = job->n ? job->clients[draw(run, job->n)] : 0;
    enum fault fault = (enum fault)(1u << draw(run, 13));

    if (!has(run, fault) || !job->n)
        return;
    switch ((int)fault) {
    case FAULT_DIE:
        sim_die(run->sim, client, "killed by signal 9");
        break;
    case FAULT_LEAVE:
        if (draw(run, 2))
            sim_leave(run->sim, client, job->name);
        else
            sim_abort(run->sim, client, job->name, "the caller gave up");
        break;
    case FAULT_RESET:
        sim_reset(run->sim, a, b);
        break;
    case FAULT_CUT:
        if (draw(run, 2))
            sim_heal(run->sim);
        else if (draw(run, 2))
            sim_cut(run->sim, a, b);
        else
            cut_in_two(run);
        break;
    case FAULT_ENGINE:
        if (draw(run, 2))
            sim_crash_engine(run->sim, a);
        else
            sim_engine_lost(run->sim, a, b);
        break;
    case FAULT_CRASH:
        crash_or_start(run, a);
        break;
    case FAULT_REPLAY:
        for (unsigned i = 0; i < 4; i++)
            sim_replay(run->sim, draw(run, 64));
        break;
    case FAULT_SLOW:
        sim_slow(run->sim, a, b, draw(run, 2) ? draw(run, 300) : 0);
        break;
    case FAULT_ABSENT:
        sim_withdraw(run->sim, client);
        break;
    case FAULT_KILL:
        sim_kill_after(run->sim, a, 1 + (unsigned)draw(run, draw(run, 2) ? 4 : 60));
        break;
    case FAULT_FORGET:
        sim_forget(run->sim, a, 1 + draw(run, draw(run, 2) ? 200 : 2000));
        break;
    case FAULT_BOTH:
        sim_kill_both(run->sim, a, 1 + draw(run, draw(run, 2) ? 200 : 2000));
        break;
    default:
        break;
    }
}

/* Before anybody asks: something that a group can lose. Quiet seeds leave a rank and a node.
 * @return is what they ask heard at once? */
static bool lose(struct run *run, struct job *job)
{
    struct crew crew = members(run, job, 0);
    unsigned what = (unsigned)draw(run, 9), lost = (unsigned)draw(run, crew.n);
    unsigned node = crew.n ? sim_client_node(run->sim, one_of(run, &crew)) : 0;

    if (what < 4) {
        for (unsigned i = 0; i < lost; i++)
            sim_die(run->sim, crew.clients[(i + what) % crew.n], "killed by signal 9");
    } else if (what == 4) {
        sim_abort(run->sim, one_of(run, &crew), job->name, "revoked");
    } else if (what == 5 && !run->here) {
        sim_crash_engine(run->sim, node);
    } else if (what == 6 && !run->here) {
        for (unsigned i = 0; i < crew.n; i++)
            if (sim_client_node(run->sim, crew.clients[i]) != node) {
                sim_crash(run->sim, node);
                break;
            }
    } else if (what == 7) {
        sim_kill_both(run->sim, node, 1 + draw(run, 200));
    } /* else: it grows, or is as before */
    sim_run(run->sim, draw(run, 3) ? draw(run, 200) : 0);
    return what < 5 || what > 7;
}

/* ---- a recovery ------------------------------------------------------------------------------ */

/* What all that are left ask for. */
struct intent {
    struct sim_recovery how;
    unsigned seats, fresh; /* @fresh: new processes */
    bool heard;            /* at once: what waits for others does not go on without them */
};

static struct intent intend(struct run *run, const struct job *job, unsigned live)
{
    struct intent plan = {.how = {.policy = draw(run, 2) ? SIM_SHRINK : SIM_WAIT,
                                  .rank = SIM_ANY,
                                  .limit_ms = run->quiet ? QUIET_MS : 300 + draw(run, 3000)}};

    plan.how.least = draw(run, 3) ? 0 : 1 + (unsigned)draw(run, RANKS_MOST);
    if (plan.how.policy == SIM_SHRINK) {
        plan.fresh = draw(run, 4) ? 0 : 1;
        return plan;
    }
    plan.seats = MAX(job->size, live);
    if (draw(run, 3) == 0)
        plan.seats = MIN(plan.seats + (unsigned)draw(run, 3), (unsigned)RANKS_MOST + 2);
    plan.how.size = plan.seats != job->size || draw(run, 2) ? plan.seats : 0;
    plan.how.wait_ms = draw(run, 2) ? 50 + draw(run, 800) : 0;
    plan.fresh = plan.seats - live;
    if (plan.fresh && draw(run, 3) == 0)
        plan.fresh -= 1 + (unsigned)draw(run, plan.fresh);
    else if (draw(run, 6) == 0)
        plan.fresh++;
    return plan;
}

static void ask(struct run *run, struct job *job, unsigned client, const struct intent *plan)
{
    struct sim_recovery how = plan->how;

    if (has(run, FAULT_ABSENT) && draw(run, 10) == 0)
        return;
    if (has(run, FAULT_WRONG) && draw(run, 10) == 0) {
        how.policy = draw(run, 2) ? SIM_SHRINK : SIM_WAIT;
        how.size = how.policy == SIM_WAIT ? (unsigned)draw(run, 6) : 0;
        how.least = (unsigned)draw(run, 4);
    }
    sim_recover(run->sim, client, job->name, NULL, &how);
    if (has(run, FAULT_WRONG) && draw(run, 10) == 0)
        sim_recover(run->sim, client, job->name, draw(run, 2) ? "elsewhere" : NULL, &how);
}

static void come(struct run *run, struct job *job, const struct intent *plan)
{
    struct sim_recovery how = {
        .policy = SIM_REJOIN, .rank = SIM_ANY, .limit_ms = plan->how.limit_ms};
    unsigned client = newcomer(run, job);

    if (client == UINT32_MAX)
        return;
    if (has(run, FAULT_WRONG) && plan->seats && draw(run, 2) == 0)
        how.rank = (unsigned)draw(run, plan->seats);
    if (has(run, FAULT_WRONG) && plan->seats && draw(run, 2) == 0)
        how.size = plan->seats;
    sim_recover(run->sim, client, job->name, NULL, &how);
}

/* Who was in the group asks, and new processes come, in any order. */
static void everybody_asks(struct run *run, struct job *job, const struct crew *crew,
                           const struct intent *plan)
{
    struct crew todo = *crew;
    unsigned fresh = plan->fresh;

    while (todo.n || fresh) {
        unsigned i = (unsigned)draw(run, todo.n + fresh);

        if (i < todo.n) {
            ask(run, job, todo.clients[i], plan);
            todo.clients[i] = todo.clients[--todo.n];
        } else {
            come(run, job, plan);
            fresh--;
        }
        if (!run->quiet && draw(run, 3) == 0)
            hurt(run, job);
        if (draw(run, 3) == 0)
            sim_run(run->sim, draw(run, 60));
    }
}

/* ---- quiet: what has to come of it is known ---------------------------------------------------
 */

static unsigned granted(const struct run *run, const struct crew *crew)
{
    enum cause cause;
    unsigned n = 0;

    for (unsigned i = 0; i < crew->n; i++)
        n += sim_client_answer(run->sim, crew->clients[i], &cause) == SIM_GRANTED;
    return n;
}

/* Do all that are there come before the others go on without them? */
static bool must_wait(const struct intent *plan, const struct crew *crew)
{
    return !plan->how.wait_ms ||
           (plan->heard && plan->how.wait_ms > 60 * (uint64_t)(crew->n + plan->fresh));
}

static void judge(struct run *run, struct job *job, const struct crew *crew,
                  const struct intent *plan)
{
    unsigned rank, size, fresh = MIN(plan->fresh, plan->seats - MIN(plan->seats, crew->n));
    unsigned then = plan->how.policy == SIM_SHRINK ? crew->n : crew->n + fresh;
    bool goes_on = then >= plan->how.least;

    if (plan->how.policy == SIM_WAIT && then < plan->seats)
        goes_on &= plan->how.wait_ms != 0;
    if (granted(run, crew) != (goes_on ? crew->n : 0))
        violation(run, goes_on ? "nothing is wrong, and a group does not go on"
                               : "a group goes on, and it cannot");
    if (!goes_on)
        return;
    sim_client_in(run->sim, crew->clients[0], job->name, &rank, &size);
    if (size > then || size < crew->n || (size < then && must_wait(plan, crew)))
        violation(run, "a group goes on with another number of ranks than there are");
    job->size = size;
}

static void round_of(struct run *run, struct job *job)
{
    struct crew crew;
    struct intent intent;
    bool heard;

    end_idle(run, job);
    for (unsigned i = 0; i < run->nodes && run->quiet; i++)
        sim_start(run->sim, i);
    if (run->quiet)
        sim_settle(run->sim);
    crew = members(run, job, 0);
    if (crew.n < 2 || job->n + RANKS_MOST + 3 > PROCESSES || (run->quiet && crew.n != job->size)) {
        form(run, job);
        crew = members(run, job, 0);
    }
    if (!crew.n)
        return;
    heard = lose(run, job);
    crew = members(run, job, 0);
    if (!crew.n)
        return;
    intent = intend(run, job, crew.n);
    intent.heard = heard;
    everybody_asks(run, job, &crew, &intent);
    wait_for(run, job, intent.how.limit_ms + 4000);
    if (run->quiet)
        judge(run, job, &crew, &intent);
    else
        sim_client_in(run->sim, crew.clients[0], job->name, &(unsigned){0}, &job->size);
    sim_run(run->sim, draw(run, 100));
}

/* ---- the end --------------------------------------------------------------------------------- */

static void heal(struct run *run)
{
    struct sim *sim = run->sim;

    sim_crash_after(sim, 0, MSG_NONE, 0);
    for (unsigned i = 0; i < run->nodes; i++)
        sim_kill_after(sim, i, 0);
    for (unsigned a = 0; a < run->nodes; a++)
        for (unsigned b = 0; b < run->nodes; b++)
            sim_slow(sim, a, b, 0);
    sim_heal(sim);
    sim_run(sim, 15000);
    for (unsigned i = 0; i < run->nodes; i++)
        sim_start(sim, i);
    sim_settle(sim);
    sim_run(sim, 2000);
    sim_check_marks(sim);
}

/* Who is in a group asks, but for those that have gone on by this already. Who is told that the
 * others have gone on without it ends. @return how many others are not granted it. */
static unsigned ask_at_rest(struct run *run, struct job *job, uint64_t *went_on, bool *ret_any)
{
    const struct sim_recovery how = {.policy = SIM_SHRINK, .limit_ms = 3000};
    struct crew all = members(run, job, 0);
    enum cause cause;
    unsigned left = 0;

    for (unsigned i = 0; i < all.n; i++)
        if (group_of(run, job, all.clients[i]) != went_on[all.clients[i]])
            sim_recover(run->sim, all.clients[i], job->name, NULL, &how);
    sim_run(run->sim, 4500);
    for (unsigned i = 0; i < all.n; i++) {
        enum sim_answer answer = sim_client_answer(run->sim, all.clients[i], &cause);

        if (answer == SIM_GRANTED)
            went_on[all.clients[i]] = group_of(run, job, all.clients[i]);
        else if (answer == SIM_REFUSED && cause == CAUSE_RANK_LOST)
            sim_die(run->sim, all.clients[i], "the others have gone on");
        else if (answer == SIM_REFUSED && sim_client_stray(run->sim, all.clients[i], job->name))
            sim_die(run->sim, all.clients[i], "nobody knows who is left: it rejoins");
        else
            left++;
        *ret_any |= answer == SIM_GRANTED;
    }
    return left;
}

/* The second time may be needed where the first one told who is gone, and the third after that. */
static void last_recovery(struct run *run, struct job *job)
{
    uint64_t went_on[SIM_HANDLES] = {0};
    struct crew all = members(run, job, 0);
    uint64_t first = all.n ? group_of(run, job, all.clients[0]) : 0;
    bool any = all.n && sim_client_stray(run->sim, all.clients[0], job->name);
    unsigned left = all.n;

    for (unsigned i = 0; left && i < 3; i++)
        left = ask_at_rest(run, job, went_on, &any);
    if (left)
        violation(run, "the cluster is at rest, and a rank cannot recover");
    if (all.n && !any && !sim_went_on(run->sim, first))
        violation(run, "the cluster is at rest, and nobody of a group goes on");
}

static void come_to_rest(struct run *run)
{
    heal(run);
    for (unsigned i = 0; i < JOBS; i++) {
        if (!all_answered(run, &run->jobs[i]))
            violation(run, "a client still waits");
        last_recovery(run, &run->jobs[i]);
    }
    for (unsigned i = 0; i < JOBS; i++)
        end_all(run, &run->jobs[i]);
    sim_run(run->sim, 5000);
    sim_check_idle(run->sim);
}

/* ---- seeds ----------------------------------------------------------------------------------- */

static struct sim_result run_seed(uint64_t seed, bool trace)
{
    struct run run = {.random = core_mix(seed ^ 0xec0e4),
                      .jobs = {{.name = "train"}, {.name = "other"}}};
    struct sim_options options = {.seed = seed, .delay_min = 1, .trace = trace};
    struct sim_result result;

    run.nodes = options.nodes = 2 + (unsigned)draw(&run, SIM_NODES - 1);
    if (seeds_nodes)
        run.nodes = options.nodes = seeds_nodes;
    run.quiet = draw(&run, 4) == 0;
    run.faults = run.quiet ? 0 : (unsigned)draw(&run, FAULT_ALL + 1);
    run.here = draw(&run, 6) == 0;
    options.delay_max = has(&run, FAULT_SLOW) ? 60 : 1 + draw(&run, 8);
    options.engine_delay = draw(&run, 3) ? 20 : 300;
    options.part = seed % 3 ? 0 : 1;
    run.sim = sim_new(&options);
    sim_settle(run.sim);
    for (unsigned i = 0; i < ROUNDS; i++)
        round_of(&run, &run.jobs[draw(&run, JOBS)]);
    come_to_rest(&run);
    result = sim_result(run.sim);
    sim_free(run.sim);
    return result;
}

int main(int argc, char **argv)
{
    struct sim_result sum;
    uint64_t seed, seeds;

    if (!seeds_run(argc, argv, "recover", run_seed, &seed, &seeds, &sum))
        return 64;
    printf("%llu seeds from %llu: %llu actions, %llu requests granted, %llu of them to recover, "
           "%llu failed, %llu times another commd took over, no violation\n",
           (unsigned long long)seeds, (unsigned long long)seed, (unsigned long long)sum.actions,
           (unsigned long long)sum.ok, (unsigned long long)sum.recovered,
           (unsigned long long)sum.failed, (unsigned long long)sum.taken_over);
    return 0;
}

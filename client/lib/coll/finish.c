/* finish.c - waiting for an operation on the thread that called it: looks, spins, yields, and
 * sleeps on the board's bell, with the group's wait policy (shm/util/wait.c).
 *
 * Who wakes me: the bell. It is rung by every member that announces, reduces or consumes, by the
 * engine when it publishes, and by commd when a rank is gone. The reasons to give up are checked
 * after every HOPE_CHECK_EVERY looks, and before each sleep. */
#include "client/lib/coll/run.h"

enum run_state run_last_look(struct run *r)
{
    struct commd_error why = r->err;
    enum run_state st = run_poll(r);

    if (st == RUN_WAIT) {
        r->err = why;
        return RUN_FAILED;
    }
    return st;
}

/* Have all ranks of this node done their part of the step whose result is next? */
static bool only_engine_is_missing(struct run *r)
{
    uint32_t next = r->base + r->got;

    assert(!one_node(r));
    if (r->plan.path == PATH_OPEN || r->got == r->put)
        return false;
    return r->plan.reduces ? run_step_reduced(r, next + 1) : run_step_arrived(r, next);
}

enum wait_for run_waits_for(struct run *r)
{
    const struct board *b = &r->group->board;

    if (one_node(r))
        return board_shares_core(b, r->group->local) ? WAIT_FOR_HERE : WAIT_FOR_OTHERS;
    /* a GPU rings no bell */
    if ((unlikely(r->gate) && !gate_full(r->gate)) || !board_engine_here(b))
        return WAIT_FOR_HERE;
    if (b->nlocal == 1)
        return WAIT_FOR_ENGINE;
    if (!only_engine_is_missing(r))
        return WAIT_FOR_BOTH;
    return r->plan.path == PATH_SMALL ? WAIT_FOR_ANSWER : WAIT_FOR_ENGINE;
}

enum { WAIT_LOOKS = 20 };

static enum run_state run_nap(struct run *r)
{
    struct board_hdr *h = r->group->board.hdr;
    uint32_t ticket = bell_prepare(&h->bell, &h->sleepers);
    enum run_state st;

    r->before_sleep = true;
    st = run_poll(r);
    assert(!r->untold);
    run_clock(r);
    run_note_sleep(r);
    if (st == RUN_WAIT && (run_hopeless_slow(r) || run_interrupted(r)))
        st = run_last_look(r);
    if (st == RUN_WAIT &&
        bell_wait(&h->bell, ticket, run_asks(r) ? 1 : sleep_limit_ms(r->deadline_ms)) &&
        !run_asks(r) && atomic_load(&h->bell) == ticket) {
        st = run_poll(r); /* which would have been due to a ring: we are still announced */
        if (st != RUN_WAIT)
            atomic_fetch_add_explicit(&wakeups_rescued, 1, memory_order_relaxed);
    }
    bell_cancel(&h->sleepers);
    return st;
}

/* A few looks at nothing but the announcement that is missing. Most of them come within this time,
 * and then the fence of a bell that nobody sleeps by has cost nothing: it would have waited until
 * the other core has given up the line that we wrote, and only then looked at what it wrote. */
static bool comes_soon(struct run *r)
{
    invariant(paths[r->plan.path].comes);
    for (unsigned i = 0; i < WAIT_LOOKS; i++) {
        if (paths[r->plan.path].comes(r))
            return true;
        cpu_relax();
    }
    return false;
}

enum run_state run_finish(struct run *r)
{
    struct crowd *crowd = &r->group->crowd;
    unsigned idle = 0;
    enum wait_for who;
    enum run_state st;

    invariant(r->deadline_ms == RUN_UNTIMED || r->deadline_ms >= -1);
    for (;;) {
        st = run_advance(r);
        if (st >= RUN_DONE)
            return st;
        idle = st == RUN_MOVED ? 0 : idle + 1;
        who = run_waits_for(r);
        if (r->untold) {
            if (st == RUN_MOVED && who == WAIT_FOR_OTHERS && comes_soon(r))
                continue;
            run_tell(r);
        }
        if (idle % HOPE_CHECK_EVERY == HOPE_CHECK_EVERY - 1 && run_hopeless(r)) {
            st = run_last_look(r);
            if (st >= RUN_DONE)
                return st;
        }
        switch (wait_way(crowd, who, idle, WAIT_SPINS)) {
        case WAIT_SPIN:
            cpu_relax();
            break;
        case WAIT_YIELD:
            yield_core(r->group->crowded_ns, crowd);
            group_part(r->group, &r->group->apart);
            break;
        case WAIT_SLEEP:
            if (who == WAIT_FOR_ANSWER)
                crowd_unanswered(crowd);
            if (who == WAIT_FOR_HERE)
                group_part(r->group, &r->group->apart);
            st = run_nap(r);
            if (st >= RUN_DONE)
                return st;
            if (st == RUN_MOVED)
                idle = 0;
            break;
        }
    }
}

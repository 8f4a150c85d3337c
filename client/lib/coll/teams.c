/* teams.c - small operations among many ranks of one node, in two levels (after Karonis et al.
 * 2000: ranks that are near each other have a leader; here they share cache lines and send no
 * messages).
 *
 * If every rank looks at every other rank, each reads as many lines as there are ranks, most of
 * them from other caches and sockets, and all ranks want each line. In two levels every line is
 * written by one rank and read by few:
 *
 *   OWN      each rank announces its contribution; its leader reads it
 *   PARTIAL  each leader reduces what its team announced, in rank order, and announces the partial
 *            result; all leaders read it
 *   TOTAL    each leader reduces the partial results, in the order of teams, and announces what all
 *            have together; its team reads it
 *
 * So the order of summation differs from that without teams, but is the same for all ranks: it is
 * part of the plan, which all ranks compute from the same numbers.
 *
 * Do all mean the same operation? Leaders compare the fingerprints of their teams, and then those
 * of each other. A leader that finds a different one says BOARD_TEAM_BAD in what it announces from
 * then on. A rank that sees BOARD_TEAM_BAD waits for the first announcements of all ranks, and
 * compares them like all others do: all come to the same pair of ranks. So does a rank that sees a
 * leader with another operation, because that leader may never announce what the rank waits for.
 *
 * Who wakes me: the bell, after each announcement. What if a peer dies now: commd marks it;
 * run_hopeless() sees the mark. A leader announces the total before it ends the operation for
 * itself. */
#include "client/lib/coll/teams.h"

#include "client/lib/coll/coll_steps.h"

enum { OWN, PARTIAL, TOTAL };
_Static_assert(TOTAL + 1 == PLAN_TEAM_STEPS, "one step for each");

static unsigned my_leader(const struct run *r)
{
    assert(r->plan.path == PATH_TEAM && r->plan.team > 0);
    return r->group->local - r->group->local % r->plan.team;
}

static bool is_leader(const struct run *r)
{
    return r->group->local == my_leader(r);
}

static bool agreed(const struct run *r)
{
    return r->agreed == AGREED_HERE;
}

static size_t team_len(const struct run *r)
{
    return r->plan.count * r->plan.esize;
}

static uint8_t *team_payload(const struct run *r, unsigned m, uint32_t c)
{
    assert(c < PLAN_TEAM_STEPS);
    return (uint8_t *)board_payload(board_of(r), m, r->base + c, team_len(r));
}

static enum run_agreed said_by(const struct run *r, unsigned m, uint32_t c)
{
    const struct board *b = board_of(r);
    const struct board_slot *s = board_slot(b, m, r->base + c);

    assert(m < b->nlocal && c < PLAN_TEAM_STEPS);
    if (board_arrived(b, m, r->base + c))
        return s->fingerprint == r->fingerprint && (c == OWN || s->kind == BOARD_TEAM) ? AGREED_HERE
                                                                                       : AGREED_NOT;
    /* it means something else? Then it may never say this */
    return c != OWN && board_arrived(b, m, r->base) &&
                   board_slot(b, m, r->base)->fingerprint != r->fingerprint
               ? AGREED_NOT
               : AGREED_UNKNOWN;
}

/* Have all of members @first, @first + @stride, ... before @end said in step @c what they mean?
 * r->agreed becomes AGREED_NOT if one means something else; then nobody else is waited for. */
static bool all_said(struct run *r, uint32_t c, unsigned first, unsigned stride, unsigned end)
{
    assert(stride > 0 && end <= board_of(r)->nlocal);
    for (; first + r->seen * stride < end; r->seen++) {
        enum run_agreed f = said_by(r, first + r->seen * stride, c);

        if (f == AGREED_UNKNOWN)
            return false;
        if (f == AGREED_NOT) {
            r->agreed = f;
            break;
        }
    }
    return true;
}

static void say(struct run *r, unsigned kind)
{
    assert(kind == BOARD_PAYLOAD || kind == BOARD_TEAM || kind == BOARD_TEAM_BAD);
    run_announce(r, kind);
    r->seen = 0;
}

static bool put_own(struct run *r)
{
    assert(r->put == OWN);
    if (!run_can_put(r, OWN, team_len(r)))
        return false;
    if (team_len(r))
        contribute(r, team_payload(r, r->group->local, OWN), r->send, team_len(r));
    r->agreed = AGREED_HERE;
    say(r, BOARD_PAYLOAD);
    return true;
}

/* Reduces what members @first, @first + @stride, ... before @end have in step @c - 1 into what this
 * one has in step @c. */
static void reduce_level(const struct run *r, uint32_t c, unsigned first, unsigned stride,
                         unsigned end)
{
    const void *src[BOARD_MAX_LOCAL];
    unsigned n = 0;

    assert(c > OWN && c <= TOTAL && end <= BOARD_MAX_LOCAL);
    if (!team_len(r))
        return;
    for (unsigned m = first; m < end; m += stride)
        src[n++] = team_payload(r, m, c - 1);
    reduce_n(r->plan.dtype, r->plan.redop, team_payload(r, r->group->local, c), src, n,
             r->plan.count);
}

static bool put_partial(struct run *r)
{
    unsigned me = r->group->local, end = MIN(me + r->plan.team, board_of(r)->nlocal);

    assert(is_leader(r) && r->put == PARTIAL);
    if ((agreed(r) && !all_said(r, OWN, me, 1, end)) || !run_can_put(r, PARTIAL, team_len(r)))
        return false;
    if (agreed(r))
        reduce_level(r, PARTIAL, me, 1, end);
    say(r, agreed(r) ? BOARD_TEAM : BOARD_TEAM_BAD);
    return true;
}

static void teams_finish(struct run *r, unsigned leader)
{
    assert(agreed(r) && leader < board_of(r)->nlocal);
    if (team_len(r))
        memcpy(r->recv, team_payload(r, leader, TOTAL), team_len(r));
    r->got = r->plan.steps;
    atomic_store_explicit(&run_member(r)->consumed, r->base + r->plan.steps, memory_order_release);
    r->untold = true;
}

static bool put_total(struct run *r)
{
    unsigned end = board_of(r)->nlocal;

    assert(is_leader(r) && r->put == TOTAL);
    if ((agreed(r) && !all_said(r, PARTIAL, 0, r->plan.team, end)) ||
        !run_can_put(r, TOTAL, team_len(r)))
        return false;
    if (agreed(r)) {
        reduce_level(r, TOTAL, 0, r->plan.team, end);
        if (team_len(r))
            reduce_finish(r->plan.dtype, r->plan.redop, team_payload(r, r->group->local, TOTAL),
                          r->plan.count, board_of(r)->world);
    }
    say(r, agreed(r) ? BOARD_TEAM : BOARD_TEAM_BAD);
    if (agreed(r))
        teams_finish(r, r->group->local);
    return true;
}

static bool take_total(struct run *r)
{
    enum run_agreed said = said_by(r, my_leader(r), TOTAL);

    assert(agreed(r) && r->put > OWN);
    if (said == AGREED_UNKNOWN)
        return false;
    if (said == AGREED_HERE)
        teams_finish(r, my_leader(r));
    else
        r->agreed = said;
    return true;
}

/* Somebody means something else: who, all find out alike. */
static bool find_difference(struct run *r)
{
    assert(!agreed(r) && r->put > OWN);
    if (!run_step_arrived(r, r->base))
        return false;
    if (run_compare(r))
        run_error(r, COMMD_E_INTERNAL, -1, 0, "",
                  ": a rank said that others mean something else, and they do not");
    return true;
}

bool teams_move(struct run *r)
{
    assert(r->put <= r->plan.steps && r->got <= r->plan.steps);
    if (r->got == r->plan.steps || r->err.code)
        return false;
    if (r->put == OWN)
        return put_own(r);
    if (is_leader(r) && r->put == PARTIAL)
        return put_partial(r);
    if (is_leader(r) && r->put == TOTAL)
        return put_total(r);
    return agreed(r) ? take_total(r) : find_difference(r);
}

enum run_state teams_advance(struct run *r)
{
    enum run_state st = RUN_WAIT;

    while (teams_move(r))
        st = RUN_MOVED;
    if (r->err.code)
        return RUN_FAILED;
    return r->got < r->plan.steps ? st : RUN_DONE;
}

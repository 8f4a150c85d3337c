/* gone.c - which rank was gone first: a rank that died, or that left the group before the others
 * were done. The others get an error then, and may end because of it.
 *
 * Each node names the rank that was gone first as that node saw it. Nodes may name different ranks:
 * the news reach them in different order, and of the ranks that left a node counts only those that
 * its own ranks still needed. But a node knows the cause for which its own rank ended before that
 * rank ends. So the search goes from the node that names a rank to the node of that rank, which may
 * name another rank, and so on. It ends at a node that names a rank of its own. If it goes in a
 * circle, one of the named ranks left, and its own node needed it no more: that rank was first, and
 * the others are gone because of it. */
#include "client/ctl/finding.h"

enum {
    GONE_STEPS = 8,  /* nodes in a row; a circle has two, as a rule */
    GONE_TRIES = 64, /* nodes of a group that the search begins at */
};

static bool has_begun_like(const struct seat *s, const struct seat *than)
{
    return s->started == than->started;
}

static uint32_t most_started(const struct seats *seats, const struct seat *of)
{
    uint32_t most = of->gone_ops;

    group_each(s, seats, of)
        if ((int32_t)(s->started - most) > 0)
            most = s->started;
    return most;
}

static bool has_died(const struct seat *s, const struct seat *than)
{
    (void)than;
    return is_dead(s);
}

static bool left_already(const struct seat *s, const struct seat *than)
{
    (void)than;
    return seat_left(s);
}

enum one_more { ONE_MORE_NO, ONE_MORE_MAYBE, ONE_MORE_YES };

/* Did @in, the only rank that goes on, call one operation more than the others? Yes if all others
 * have left, which are most of the group, and none with an error. Maybe if it is not known how some
 * of them ended. */
static enum one_more one_goes_on(const struct seats *seats, const struct seat *of,
                                 const struct seat *in, unsigned begun)
{
    enum one_more found = ONE_MORE_YES;
    unsigned left = 0;

    if (begun != 1 || is_dead(in) || left_already(in, in))
        return ONE_MORE_NO;
    group_each(s, seats, of) {
        if (is_dead(s) || (s->end != END_UNKNOWN && s->end != END_CLEAN))
            return ONE_MORE_NO;
        if (!left_already(s, s))
            continue;
        left++;
        if (s->end == END_UNKNOWN)
            found = ONE_MORE_MAYBE;
    }
    return left > 1 && 2 * (uint64_t)left > of->size ? found : ONE_MORE_NO;
}

static const struct seat *who_began(const struct seats *seats, const struct seat *of, uint32_t op)
{
    group_each(s, seats, of)
        if (s->started == op && s->rank >= 0)
            return s;
    return of;
}

static void find_one_more(struct finding *f, const struct seats *seats, const struct seat *in)
{
    char name[SEAT_NAME], list[RANKS_NAME];

    f->verdict = VERDICT_MISMATCH;
    blame(f, in);
    (void)name_ranks(seats, in, left_already, list);
    tell(f->evidence, "ranks %s have left the group, and none of them with an error", list);
    tell(f->evidence, "only %s began operation %u (%s): did it call one more?", seat_name(in, name),
         in->started, or_unknown(in->operation));
    tell(f->remedy, "let all ranks call the same operations: do all have as many batches? Is it an "
                    "operation for one rank alone, as in \"if rank == 0\"?");
}

/* @s left the group before the others were done. */
static void find_left(struct finding *f, const struct seats *seats, const struct seat *of,
                      const struct seat *s)
{
    uint32_t most = most_started(seats, of);
    const struct seat *in = who_began(seats, of, most);
    char name[SEAT_NAME], list[RANKS_NAME];
    unsigned n = name_ranks(seats, in, has_begun_like, list);
    enum one_more more = one_goes_on(seats, of, in, n);

    if (more == ONE_MORE_YES)
        return find_one_more(f, seats, in);
    f->verdict = VERDICT_RANK_LEFT;
    blame(f, s);
    tell(f->evidence, "%s left the group after operation %u%s%s", seat_name(s, name), s->ops,
         *s->exit ? "; its program then ended with " : "", s->exit);
    if (n)
        tell(f->evidence, "rank%s %s began operation %u%s%s%s, which it did not", n > 1 ? "s" : "",
             list, most, *in->operation ? " (" : "", in->operation, *in->operation ? ")" : "");
    n = name_ranks(seats, of, has_died, list);
    if (n)
        tell(f->evidence, "rank%s %s %s died", n > 1 ? "s" : "", list, n > 1 ? "have" : "has");
    tell(f->remedy, "look at the end of that rank's own output: did an exception end its program?");
    tell(f->remedy, "if not, let all ranks call the same operations before they leave: do all have "
                    "as many batches? (torch: drop_last, or Join)");
    if (more == ONE_MORE_MAYBE)
        tell(f->remedy, "or does only %s go on: did it call one more?", seat_name(in, name));
}

/* A row of @node's, which says who was gone first as that node saw it; NULL: it says nothing. */
static const struct seat *told_by(const struct seats *seats, const struct seat *of,
                                  const char *node)
{
    group_each(s, seats, of)
        if (*s->gone && is(s->node, node))
            return s;
    return NULL;
}

/* How well it is known who was gone first. */
enum gone_sure { GONE_TOLD, GONE_AGREED, GONE_SEEN };

/* From what one node says to who was gone first. */
static const struct seat *first_from(const struct seats *seats, const struct seat *told,
                                     enum gone_sure *ret_sure)
{
    const struct seat *left = NULL;

    for (unsigned steps = 0; steps < GONE_STEPS; steps++) {
        const struct seat *next = told_by(seats, told, told->gone_node);

        *ret_sure = next ? GONE_SEEN : GONE_TOLD;
        if (!next || next->gone_rank == told->gone_rank)
            return told;
        if (told->gone_left)
            left = told;
        told = next;
    }
    *ret_sure = GONE_AGREED;
    return left ? left : told;
}

/* Prefers a rank that its own node names, then a rank that left: others die because of it. */
const struct seat *first_gone(const struct seats *seats, const struct seat *of)
{
    enum gone_sure best_sure = GONE_TOLD, sure;
    const struct seat *best = NULL, *last = NULL;
    unsigned tries = 0;

    group_each(s, seats, of) {
        if (!*s->gone || (last && s->gone_rank == last->gone_rank) || tries++ >= GONE_TRIES)
            continue;
        last = s;
        s = first_from(seats, s, &sure);
        if (!best || sure > best_sure || (sure == best_sure && s->gone_left && !best->gone_left)) {
            best = s;
            best_sure = sure;
        }
    }
    return best;
}

const struct seat *row_of_first(const struct seats *seats, const struct seat *of)
{
    const struct seat *first = first_gone(seats, of), *row = NULL;

    group_each(s, seats, of)
        if (first && s->rank == first->gone_rank)
            row = s;
    return row;
}

bool find_gone(struct finding *f, const struct seats *seats, const struct seat *of)
{
    const struct seat *first = first_gone(seats, of), *row = row_of_first(seats, of);
    struct seat gone;

    if (!first)
        return false;
    gone = *first;
    gone.rank = first->gone_rank;
    gone.pid = first->gone_pid;
    gone.node = first->gone_node;
    gone.ops = first->gone_ops;
    gone.gpu_begun = gone.gpu_ended = 0;
    gone.last = gone.command = gone.exit = "";
    if (first->gone_left)
        find_left(f, seats, first, row ? row : &gone);
    else
        find_dead(f, row ? row : &gone);
    return true;
}

/* gone.c - who was gone first, of those whom the others miss: a rank that died, or that left before
 * they were done. Those have an error then, and may end because of it. */
#include "client/ctl/finding.h"

static bool has_begun_like(const struct seat *s, const struct seat *than)
{
    return s->started == than->started;
}

static uint32_t most_started(const struct seats *seats, const struct seat *of)
{
    uint32_t most = of->gone_ops;

    for (unsigned i = 0; i < seats->n; i++)
        if (same_group(&seats->at[i], of) && (int32_t)(seats->at[i].started - most) > 0)
            most = seats->at[i].started;
    return most;
}

/* It left before the others were done. */
static void find_left(struct finding *f, const struct seats *seats, const struct seat *of,
                      const struct seat *s)
{
    uint32_t most = most_started(seats, of);
    char name[128], list[200];
    const struct seat *in = of;
    unsigned n;

    f->verdict = VERDICT_NOT_ARRIVED;
    blame(f, s);
    tell(f->evidence, "%s left the group after operation %u", seat_name(s, name), s->ops);
    for (unsigned i = 0; i < seats->n; i++)
        if (same_group(&seats->at[i], of) && seats->at[i].started == most && seats->at[i].rank >= 0)
            in = &seats->at[i];
    n = list_ranks(seats, in, has_begun_like, list, sizeof(list));
    if (n)
        tell(f->evidence, "rank%s %s began operation %u%s%s%s, which it did not", n > 1 ? "s" : "",
             list, most, *in->operation ? " (" : "", in->operation, *in->operation ? ")" : "");
    tell(f->remedy, "let all ranks call the same operations before they leave: do all have as many "
                    "batches? (torch: drop_last, or Join)");
}

const struct seat *first_gone(const struct seats *seats, const struct seat *of)
{
    for (unsigned i = 0; i < seats->n; i++)
        if (same_group(&seats->at[i], of) && *seats->at[i].gone)
            return &seats->at[i];
    return NULL;
}

bool find_gone(struct finding *f, const struct seats *seats, const struct seat *of)
{
    const struct seat *first = first_gone(seats, of), *row = NULL;
    struct seat gone;

    if (!first)
        return false;
    gone = *first;
    gone.rank = first->gone_rank;
    gone.pid = first->gone_pid;
    gone.node = first->gone_node;
    gone.ops = first->gone_ops;
    gone.gpu_begun = gone.gpu_ended = 0;
    gone.last = gone.command = "";
    for (unsigned i = 0; i < seats->n; i++)
        if (same_group(&seats->at[i], of) && seats->at[i].rank == first->gone_rank)
            row = &seats->at[i];
    if (is(first->gone, "left"))
        find_left(f, seats, first, row ? row : &gone);
    else
        find_dead(f, row ? row : &gone);
    return true;
}

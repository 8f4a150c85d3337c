/* unlike.c - ranks that called different operations where all ranks of the group must call the
 * same. If most ranks called one operation, a rank that called another is to blame; if not, nobody
 * is. */
#include "client/ctl/finding.h"

/* The last that a rank called, and is through with: by its host, or by commd-gpu. */
static const char *called(const struct seat *s, bool gpu)
{
    return gpu ? s->gpu_last : s->last;
}

static uint32_t called_as(const struct seat *s, bool gpu)
{
    return gpu ? s->gpu_ended : s->ops;
}

/* commd-gpu says of which operations the ranks did not agree; of the others the table does. */
static bool may_differ(const struct seat *s, bool gpu)
{
    if (gpu)
        return s->rank >= 0 && !on_gpu(s) && s->gpu_end == GPU_END_MISMATCH;
    return s->rank >= 0 && *s->last;
}

static bool last_like(const struct seat *s, const struct seat *than)
{
    return may_differ(s, false) && s->ops == than->ops && is(s->last, than->last);
}

static bool gpu_last_like(const struct seat *s, const struct seat *than)
{
    return may_differ(s, true) && s->gpu_ended == than->gpu_ended &&
           is(s->gpu_last, than->gpu_last);
}

/* What ranks called as one number. */
struct calls {
    unsigned n;                 /* ranks */
    const struct seat *norm;    /* of most of them, if @most says so; else of one of them */
    const struct seat *another; /* the first that called something else; NULL: none */
    bool most;
};

/* The vote of Boyer and Moore: what more than half called is left at the end. */
static struct calls count_calls(const struct seats *seats, const struct seat *of, uint32_t number,
                                bool gpu)
{
    struct calls c = {0};
    unsigned lead = 0, same = 0;

    group_each(s, seats, of) {
        if (!may_differ(s, gpu) || called_as(s, gpu) != number)
            continue;
        c.n++;
        if (!lead)
            c.norm = s;
        lead = !lead || is(called(s, gpu), called(c.norm, gpu)) ? lead + 1 : lead - 1;
    }
    group_each(s, seats, of) {
        if (!may_differ(s, gpu) || called_as(s, gpu) != number)
            continue;
        if (is(called(s, gpu), called(c.norm, gpu)))
            same++;
        else if (!c.another)
            c.another = s;
    }
    c.most = 2 * same > c.n;
    return c;
}

bool find_unlike(struct finding *f, const struct seats *seats, const struct seat *of, bool gpu)
{
    seat_match_fn *like = gpu ? gpu_last_like : last_like;
    const char *where = gpu ? " on GPUs" : "";
    char list[RANKS_NAME], name[SEAT_NAME];

    group_each(s, seats, of) {
        struct calls c;
        unsigned n;

        if (!may_differ(s, gpu))
            continue;
        c = count_calls(seats, of, called_as(s, gpu), gpu);
        if (!c.another && c.n > 1)
            return false;
        if (!c.another)
            continue; /* nobody else is where that one is */
        f->verdict = VERDICT_MISMATCH;
        n = name_ranks(seats, c.norm, like, list);
        tell(f->evidence, "operation %u%s: rank%s %s called %s", called_as(s, gpu), where,
             n == 1 ? "" : "s", list, called(c.norm, gpu));
        n = name_ranks(seats, c.another, like, list);
        tell(f->evidence, "but rank%s %s called %s", n == 1 ? "" : "s", list,
             called(c.another, gpu));
        if (c.most) {
            blame(f, c.another);
            tell(f->evidence, "%s is not with most of them", seat_name(c.another, name));
        }
        tell(f->remedy, "each of them got an error that says so: let all ranks call the same");
        return true;
    }
    return false;
}

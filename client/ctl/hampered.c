/* hampered.c - ranks and engines that do not get the cores that they want: because the quota of a
 * control group is used up, or because others run. */
#include "client/ctl/finding.h"

enum {
    THROTTLED_PCT = 50, /* of the periods of its quota, used up before their end */
    STARVED_PCT = 50,   /* of the time that it wants a core and has none */
    TOLD_PCT = 30,      /* the same, as a reason besides others */
};

static const char quota_remedy[] =
    "give it more, or start fewer threads: cpu.max of its control group (systemctl show -p "
    "CPUQuotaPerSecUSec; docker update --cpus; limits.cpu of a pod)";

void tell_starved(struct finding *f, const struct seat *s)
{
    char name[SEAT_NAME], pid[PID_NAME];

    if (s->throttled_pct >= TOLD_PCT) {
        tell(f->evidence,
             "the CPU quota of the control group of %s was used up in %llu %% of its "
             "periods",
             seat_name(s, name), (unsigned long long)s->throttled_pct);
        return tell(f->remedy, "%s", quota_remedy);
    }
    if (s->starved_pct < TOLD_PCT)
        return;
    tell(f->evidence, "%s wanted a core, and had none, for %llu %% of the time", seat_name(s, name),
         (unsigned long long)s->starved_pct);
    tell(f->remedy,
         "what else runs on its cores, and its nice value: ps -o pid,ni,psr,cgroup %s; taskset -p "
         "%s on node %s",
         pid_name(s, pid), pid, s->node);
}

bool is_throttled(const struct seat *s)
{
    return s->throttled_pct >= THROTTLED_PCT;
}

/* Of the ranks that may hold up others, who has used up most of its quota. */
static const struct seat *most_throttled(const struct seats *seats, const struct seat *of)
{
    const struct seat *most = NULL;

    group_each(s, seats, of) {
        if (is_throttled(s) && !stuck_ms(s) && (!most || s->throttled_pct > most->throttled_pct))
            most = s;
    }
    return most;
}

bool find_engine_throttled(struct finding *f, const struct seats *seats, const struct seat *of)
{
    const struct seat *rank = most_throttled(seats, of), *engine = of;

    group_each(s, seats, of)
        if (s->engine_throttled_pct > engine->engine_throttled_pct)
            engine = s;
    if (of->nodes < 2 || engine->engine_throttled_pct < THROTTLED_PCT ||
        (rank && engine->engine_throttled_pct < rank->throttled_pct))
        return false;
    f->verdict = VERDICT_THROTTLED;
    f->node = engine->node;
    tell(f->evidence,
         "the CPU quota of the control group of the engine on node %s was used up in %llu %% of "
         "its periods: it stood still meanwhile",
         engine->node, (unsigned long long)engine->engine_throttled_pct);
    tell(f->remedy, "%s", quota_remedy);
    return true;
}

bool find_throttled(struct finding *f, const struct seats *seats, const struct seat *of)
{
    const struct seat *rank = most_throttled(seats, of);

    if (!rank)
        return false;
    f->verdict = VERDICT_THROTTLED;
    blame(f, rank);
    tell_starved(f, rank);
    return true;
}

/* One of them gets no core, also for what it has to do in operations: then all are in these. */
bool find_starved(struct finding *f, const struct seats *seats, const struct seat *of)
{
    const struct seat *most = NULL;
    uint64_t next = 0;

    group_each(s, seats, of) {
        if (!s->watched)
            continue;
        if (!most || s->starved_pct > most->starved_pct) {
            next = most ? most->starved_pct : 0;
            most = s;
        } else {
            next = MAX(next, s->starved_pct);
        }
    }
    if (!most || most->size < 2 || most->starved_pct < STARVED_PCT || 2 * next > most->starved_pct)
        return false;
    f->verdict = VERDICT_SLOW_RANK;
    blame(f, most);
    tell_starved(f, most);
    return true;
}

void find_hampered(struct finding *f, const struct seats *seats, const struct seat *of)
{
    struct finding found = *f;

    found.evidence[0] = found.remedy[0] = 0; /* which excused who is to blame now */
    if (find_engine_throttled(&found, seats, of) || find_throttled(&found, seats, of) ||
        find_starved(&found, seats, of))
        *f = found;
}

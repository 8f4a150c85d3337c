/* finding.c - what is said of a rank, and of one that is dead or stopped: then there is no more to
 * ask. */
#include "client/ctl/finding.h"

#include <stdarg.h>
#include <stdio.h>

void tell(char *text, const char *fmt, ...)
{
    size_t used = strlen(text);
    va_list ap;

    if (used + 2 >= FINDING_TEXT)
        return;
    if (used)
        text[used++] = '\n';
    va_start(ap, fmt);
    vsnprintf(text + used, FINDING_TEXT - used, fmt, ap);
    va_end(ap);
}

/* "rank 3 (pid 12 on node b)" */
const char *seat_name(const struct seat *s, char buf[128])
{
    snprintf(buf, 128, "rank %lld (pid %llu on node %s)", (long long)s->rank,
             (unsigned long long)s->pid, s->node);
    return buf;
}

const char *or_unknown(const char *operation)
{
    return *operation ? operation : "an operation";
}

void blame(struct finding *f, const struct seat *s)
{
    f->rank = s->rank;
    f->pid = (int64_t)s->pid;
    f->node = s->node;
    f->command = s->command;
}

void tell_starved(struct finding *f, const struct seat *s)
{
    char name[128];

    if (s->starved_pct < 30)
        return;
    tell(f->evidence, "%s wanted a core, and had none, for %llu %% of the time", seat_name(s, name),
         (unsigned long long)s->starved_pct);
    tell(f->remedy,
         "what else runs on its cores, its nice value, the CPU quota of its control group: ps -o "
         "pid,ni,psr,cgroup %llu; taskset -p %llu on node %s",
         (unsigned long long)s->pid, (unsigned long long)s->pid, s->node);
}

void find_stopped(struct finding *f, const struct seat *s)
{
    char name[128];

    f->verdict = VERDICT_RANK_STOPPED;
    blame(f, s);
    if (is(s->process, "traced")) {
        tell(f->evidence, "%s is stopped by a debugger or tracer", seat_name(s, name));
        tell(f->remedy,
             "let the debugger go on, or end it: grep TracerPid /proc/%llu/status on node %s",
             (unsigned long long)s->pid, s->node);
    } else if (is(s->process, "frozen")) {
        tell(f->evidence,
             "%s is frozen, with all of its control group (docker pause, systemctl "
             "freeze, a scheduler)",
             seat_name(s, name));
        tell(f->remedy,
             "thaw it: docker unpause, systemctl thaw; its control group: cat /proc/%llu/cgroup on "
             "node %s",
             (unsigned long long)s->pid, s->node);
    } else {
        tell(f->evidence, "%s is stopped (SIGSTOP, SIGTSTP or job control)", seat_name(s, name));
        tell(f->remedy, "on node %s: kill -CONT %llu; or end it, and the others get an error",
             s->node, (unsigned long long)s->pid);
    }
}

void find_dead(struct finding *f, const struct seat *s)
{
    char name[128];

    f->verdict = VERDICT_RANK_DEAD;
    blame(f, s);
    tell(f->evidence, "%s has died; it had completed %u operations%s%s", seat_name(s, name), s->ops,
         *s->last ? ", the last one " : "", s->last);
    if (on_gpu(s))
        tell(f->evidence, "on GPUs it was in operation %u (%s)", s->gpu_ended + 1,
             or_unknown(s->gpu_operation));
    else if (s->gpu_begun)
        tell(f->evidence, "on GPUs it had completed %u, the last one %s", s->gpu_ended,
             or_unknown(s->gpu_last));
    tell(f->remedy, "look at its own output, and on node %s for the OOM killer: journalctl -k",
         s->node);
}

/* finding.c - what is said of a rank, and of one that is dead or stopped: then there is no more to
 * ask. */
#include "client/ctl/finding.h"

#include <stdarg.h>
#include <stdio.h>

/* A line that does not fit is left out whole, and that is shown. */
void tell(char *text, const char *fmt, ...)
{
    static const char more[] = "\n...";
    size_t used = strlen(text), begin = used, room = FINDING_TEXT - sizeof(more);
    va_list ap;
    int n;

    assert(used < FINDING_TEXT);
    if (used >= room)
        return;
    if (used)
        text[used++] = '\n';
    va_start(ap, fmt);
    n = vsnprintf(text + used, room - used, fmt, ap);
    va_end(ap);
    if (n < 0 || (size_t)n >= room - used)
        snprintf(text + begin, sizeof(more), "%s", begin ? more : "...");
}

/* A long one is told by its ends. */
const char *group_name(const struct seat *s, char buf[GROUP_NAME])
{
    size_t len = strlen(s->name);

    if (len < GROUP_NAME)
        snprintf(buf, GROUP_NAME, "%s", s->name);
    else
        snprintf(buf, GROUP_NAME, "%.*s...%s", GROUP_NAME - 16, s->name, s->name + len - 12);
    return buf;
}

const char *pid_name(const struct seat *s, char buf[PID_NAME])
{
    if (s->pid)
        snprintf(buf, PID_NAME, "%llu", (unsigned long long)s->pid);
    else
        snprintf(buf, PID_NAME, "PID");
    return buf;
}

/* "rank 3 (pid 12 on node b)"; of a group that is part of its job
 * "rank 7 (3 of group "g", pid 12 on node b)"; where commd does not see the process, without pid */
const char *seat_name(const struct seat *s, char buf[SEAT_NAME])
{
    char group[GROUP_NAME], pid[PID_NAME + 8] = "", number[PID_NAME];

    if (s->pid)
        snprintf(pid, sizeof(pid), "pid %s ", pid_name(s, number));
    if (s->world)
        snprintf(buf, SEAT_NAME, "rank %lld (%lld of group \"%s\", %son node %s)",
                 (long long)s->world->rank, (long long)s->rank, group_name(s, group), pid, s->node);
    else
        snprintf(buf, SEAT_NAME, "rank %lld (%son node %s)", (long long)s->rank, pid, s->node);
    return buf;
}

const char *rank_name(const struct seats *seats, const struct seat *of, int64_t rank,
                      char buf[RANK_NAME])
{
    char group[GROUP_NAME];

    group_each(s, seats, of)
        if (s->rank == rank && s->world) {
            snprintf(buf, RANK_NAME, "rank %lld (%lld of group \"%s\")", (long long)s->world->rank,
                     (long long)rank, group_name(of, group));
            return buf;
        }
    snprintf(buf, RANK_NAME, "rank %lld", (long long)rank);
    return buf;
}

unsigned name_ranks(const struct seats *seats, const struct seat *of, seat_match_fn *match,
                    char buf[RANKS_NAME])
{
    char world[RANKS_NAME / 2 - 16], own[RANKS_NAME / 2 - 16];
    unsigned n = list_ranks(seats, of, match, own, sizeof(own));

    if (list_world(seats, of, match, world, sizeof(world)))
        snprintf(buf, RANKS_NAME, "%s (%s of the group)", world, own);
    else
        snprintf(buf, RANKS_NAME, "%s", own);
    return n;
}

/* What a process that sleeps waits for, by where in the kernel that is; NULL: nothing is known of
 * that place. */
static const char *sleeps_for(const char *kernel)
{
    static const struct {
        const char *begins, *words;
    } places[] = {
        {"futex do_futex", "it waits for a lock, or for another thread"},
        {"hrtimer_nanosleep do_nanosleep", "it sleeps for a time"},
        {"poll_schedule_timeout do_poll do_sys_poll do_select",
         "it waits for files, sockets or a time (poll, select)"},
        {"ep_poll do_epoll_wait", "it waits for files or sockets (epoll)"},
        {"pipe_read anon_pipe_read", "it reads a pipe that is empty"},
        {"pipe_write anon_pipe_write", "it writes to a pipe that is full"},
        {"unix_stream sk_wait_data tcp_", "it waits at a socket"},
        {"wait_woken", "it waits at a socket, or a terminal"},
        {"inet_csk_accept", "it waits for a connection"},
        {"do_wait kernel_wait4", "it waits for a process that it has started"},
        {"do_sigtimedwait sigsuspend", "it waits for a signal"},
        {"do_signal_stop", "it is stopped"},
        {"n_tty_read", "it reads a terminal"},
        {"locks_lock flock_lock", "it waits for the lock of a file"},
        {"rpc_ nfs", "it waits for a file server (NFS)"},
        {"request_wait_answer", "it waits for a file system (FUSE)"},
        {"folio_wait wait_on_page io_schedule jbd2_", "it waits for a disk, or a file system"},
        {"blk_ submit_bio", "it waits for a disk"},
    };

    for (unsigned i = 0; i < ARRAY_LEN(places); i++)
        for (const char *at = places[i].begins; *at; at += strspn(at, " ")) {
            size_t len = strcspn(at, " ");

            if (!strncmp(kernel, at, len))
                return places[i].words;
            at += len;
        }
    return NULL;
}

/* "its process is sleeping: it waits for a lock, or for another thread" */
const char *process_name(const struct seat *s, char buf[SEAT_NAME])
{
    const char *words = sleeps_for(s->kernel);

    if (!*s->process)
        snprintf(buf, SEAT_NAME, "the system does not tell what its process does");
    else if (is_running(s) || (!words && !*s->kernel))
        snprintf(buf, SEAT_NAME, "its process is %s", s->process);
    else if (words)
        snprintf(buf, SEAT_NAME, "its process is %s: %s", s->process, words);
    else
        snprintf(buf, SEAT_NAME, "its process is %s (in the kernel: %.*s)", s->process,
                 (int)strcspn(s->kernel, "."), s->kernel);
    return buf;
}

const char *or_unknown(const char *operation)
{
    return *operation ? operation : "an operation";
}

void blame(struct finding *f, const struct seat *s)
{
    f->rank = s->rank;
    f->world_rank = s->world ? s->world->rank : s->rank;
    f->rank_group = s->name;
    f->pid = seat_pid(s);
    f->node = s->node;
    f->command = s->command;
}

static const char *plural(unsigned n)
{
    return n == 1 ? "" : "s";
}

static bool gpu_waits_like(const struct seat *s, const struct seat *than)
{
    return on_gpu(s) && s->gpu_ready && s->gpu_ended == than->gpu_ended;
}

void say_waiting(struct finding *f, const struct seats *seats, const struct seat *waiter,
                 bool named)
{
    char list[RANKS_NAME], name[SEAT_NAME], peer[RANK_NAME] = "any rank", tag[32] = "any tag";
    char group[GROUP_NAME], of[GROUP_NAME + 16] = "";
    const char *had = f->killed ? "had waited" : NULL;
    unsigned n;

    assert(waits_in_operation(waiter) || waits_on_gpu(waiter) || *waiter->message);
    if (named)
        snprintf(of, sizeof(of), " of group \"%s\"", group_name(waiter, group));
    if (waits_in_operation(waiter)) {
        n = name_ranks(seats, waiter, waits_like, list);
        tell(f->evidence, "rank%s %s%s %s in operation %u (%s) for %.1f s", plural(n), list, of,
             had      ? had
             : n == 1 ? "waits"
                      : "wait",
             waiter->started, or_unknown(waiter->operation), (double)waiter->asleep_ms / 1000);
        return;
    }
    if (waits_on_gpu(waiter)) {
        n = name_ranks(seats, waiter, gpu_waits_like, list);
        tell(f->evidence, "GPUs of rank%s %s%s %s in operation %u on GPUs (%s) for %.1f s",
             plural(n), list, of, had ? had : "wait", waiter->gpu_ended + 1,
             or_unknown(waiter->gpu_operation), (double)waiter->gpu_ms / 1000);
        return;
    }
    if (waiter->message_peer >= 0)
        rank_name(seats, waiter, waiter->message_peer, peer);
    if (waiter->message_tag >= 0)
        snprintf(tag, sizeof(tag), "tag %lld", (long long)waiter->message_tag);
    tell(f->evidence, "%s%s %s in %s %s %s, %s, for %.1f s", seat_name(waiter, name),
         waiter->world ? "" : of, had ? had : "waits", waiter->message,
         waiter->sends ? "to" : "from", peer, tag, (double)waiter->message_ms / 1000);
}

void tell_unseen(struct finding *f)
{
    if (f->rank < 0 || f->pid > 0 || f->ended || f->killed)
        return;
    tell(f->evidence,
         "commd on node %s does not see its process, which is in another pid namespace: the PID is "
         "what pgrep -af finds there, by its command%s%s, or among others by RANK=%lld in "
         "/proc/PID/environ",
         f->node, *f->command ? ": " : "", f->command, (long long)f->world_rank);
}

void find_stopped(struct finding *f, const struct seat *s)
{
    char name[SEAT_NAME], pid[PID_NAME];

    assert(is_stopped(s));
    f->verdict = VERDICT_RANK_STOPPED;
    blame(f, s);
    if (s->process_state == PROCESS_TRACED) {
        tell(f->evidence, "%s is stopped by a debugger or tracer", seat_name(s, name));
        tell(f->remedy,
             "let the debugger go on, or end it: grep TracerPid /proc/%s/status on node %s",
             pid_name(s, pid), s->node);
    } else if (s->process_state == PROCESS_FROZEN) {
        tell(f->evidence,
             "%s is frozen, with all of its control group (docker pause, systemctl "
             "freeze, a scheduler)",
             seat_name(s, name));
        tell(f->remedy,
             "thaw it: docker unpause, systemctl thaw; its control group: cat /proc/%s/cgroup on "
             "node %s",
             pid_name(s, pid), s->node);
    } else {
        tell(f->evidence, "%s is stopped (SIGSTOP, SIGTSTP or job control)", seat_name(s, name));
        tell(f->remedy, "on node %s: kill -CONT %s; or end it, and the others get an error",
             s->node, pid_name(s, pid));
    }
}

/* How it ended, and where to look then. */
static void tell_end(struct finding *f, const struct seat *s)
{
    char pid[PID_NAME];

    switch (s->end) {
    case END_CLEAN:
        return tell(f->remedy, "its program ended without leaving the group: look at the end of "
                               "its own output, and of its program");
    case END_ERROR:
        return tell(f->remedy,
                    "look at the end of its own output: its program ended with an error");
    case END_KILLED:
        return tell(
            f->remedy,
            "somebody killed it, or the kernel for want of memory: on node %s journalctl -k (\"Out "
            "of memory\"), and the memory limit of its control group",
            s->node);
    case END_TOLD:
        return tell(f->remedy,
                    "somebody ended it: a person, the launcher, a time limit of the scheduler");
    case END_CRASHED:
        return tell(f->remedy,
                    "it crashed: look at the end of its own output, and on node %s for its core "
                    "file: coredumpctl info %s",
                    s->node, pid_name(s, pid));
    case END_UNKNOWN:
        return tell(f->remedy,
                    "look at its own output, and on node %s for the OOM killer: journalctl -k",
                    s->node);
    }
}

void find_dead(struct finding *f, const struct seat *s)
{
    char name[SEAT_NAME];

    f->verdict = VERDICT_RANK_DEAD;
    blame(f, s);
    tell(f->evidence, "%s has died%s%s%s; it had completed %u operation%s%s%s", seat_name(s, name),
         *s->exit ? " (" : "", s->exit, *s->exit ? ")" : "", s->ops, s->ops == 1 ? "" : "s",
         *s->last ? ", the last one " : "", s->last);
    if (on_gpu(s))
        tell(f->evidence, "on GPUs it was in operation %u (%s)", s->gpu_ended + 1,
             or_unknown(s->gpu_operation));
    else if (s->gpu_begun)
        tell(f->evidence, "on GPUs it had completed %u, the last one %s", s->gpu_ended,
             or_unknown(s->gpu_last));
    tell_end(f, s);
}

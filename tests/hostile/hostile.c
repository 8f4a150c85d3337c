/* hostile.c - a tenant that does everything a client can do, from a seed. Run beside a good one
 * by tests/integration/test_hostile.py, which judges what the good one noticed.
 *
 *   hostile --socket PATH [--socket PATH] --seconds N [--seed N] [--processes N] [--uid N]
 *           [--only NAME,...] [--except NAME,...] [--trace] | --list | --spin
 *
 * Some processes, each with a seed of its own that follows from --seed, choose from a table of
 * actions by weight (act_*.c), and do one after the other until the time is over. Each holds
 * sessions, strays (descriptors that only stay open) and groups whose boards it has mapped; an
 * action takes what it needs from there, or makes it. A process that dies by an action is
 * replaced, one that stops itself is continued after a while. Choices are replayed by the same
 * seed; what commd answers, and when, is not, so two runs are alike but not equal. To find the
 * action behind a finding: --only with half of the names of --list, and so on; --trace writes
 * each action's time and name.
 *
 * The machine stays usable: limits on address space, processes, files and time bound what all
 * this takes; and when the first process ends, nothing of it is left. With --spin the processes
 * only compute: the same load without the attack. On the way out a line of JSON says how often
 * each action was done. */
#include <getopt.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "tests/hostile/hostile.h"

enum {
    PROCESSES_MAX = 16,
    ACTIONS_MAX = 128,
    STOP_MS = 300,
    FILES = 4096,
    MEMORY_GB = 6,
    TASKS = 200
};

static const struct action *actions[ACTIONS_MAX];
static unsigned nactions, weights;
static _Atomic uint32_t *counts; /* of each action; shared by all processes */
static bool trace, spin;

struct worker {
    pid_t pid;
    uint64_t stopped_ms; /* 0: runs */
};

/* ---- one process ---------------------------------------------------------------------- */

static void reap(struct hostile *h)
{
    int status;
    pid_t pid;

    while ((pid = waitpid(-1, &status, WNOHANG | WUNTRACED)) > 0) {
        if (!WIFSTOPPED(status))
            h->nchildren--;
        else
            kill(pid, SIGCONT);
    }
}

static const struct action *choose(struct dice *d, unsigned *ret_index)
{
    uint32_t at = dice_below(d, weights);

    for (unsigned i = 0;; i++) {
        if (at < actions[i]->weight) {
            *ret_index = i;
            return actions[i];
        }
        at -= actions[i]->weight;
    }
}

static void limit(int resource, uint64_t value)
{
    struct rlimit to = {value, value};

    if (setrlimit(resource, &to))
        perror("hostile: setrlimit");
}

/* Never returns. */
static void work(struct hostile *h, uint64_t seed)
{
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    h->dice.state = seed;
    snprintf(h->prefix, sizeof(h->prefix), "hostile.%x", (unsigned)dice_roll(&h->dice));
    for (unsigned i = 0; i < CONNS; i++)
        h->conns[i].fd = h->conns[i].doorbell = -1;
    for (unsigned i = 0; i < STRAYS; i++)
        h->strays[i] = -1;
    for (unsigned i = 0; i < FAR_ENDS; i++)
        h->far_ends[i] = -1;
    for (unsigned i = 0; i < GROUPS; i++)
        team_forget(&h->groups[i]);
    for (;;) {
        unsigned index;
        const struct action *action = choose(&h->dice, &index);

        if (trace)
            fprintf(stderr, "%llu %d %s\n", (unsigned long long)now_ms(), (int)getpid(),
                    action->name);
        atomic_fetch_add(&counts[index], 1);
        action->act(h);
        reap(h);
    }
}

static pid_t begin(struct hostile *h, uint64_t seed)
{
    pid_t pid = fork();

    if (pid)
        return pid;
    if (!spin)
        work(h, seed);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (volatile uint64_t n = 0;; n++)
        ;
}

/* ---- all of them ---------------------------------------------------------------------- */

/* Processes that died are replaced, stopped ones continued. */
static void tend(struct hostile *h, struct worker *workers, unsigned n, struct dice *seeds)
{
    for (unsigned i = 0; i < n; i++) {
        struct worker *w = &workers[i];
        int status;

        if (w->pid > 0 && waitpid(w->pid, &status, WNOHANG | WUNTRACED) == w->pid) {
            if (WIFSTOPPED(status))
                w->stopped_ms = now_ms();
            else
                w->pid = 0;
        }
        if (w->pid > 0 && w->stopped_ms && now_ms() - w->stopped_ms >= STOP_MS) {
            w->stopped_ms = 0;
            kill(w->pid, SIGCONT);
        }
        if (w->pid <= 0)
            *w = (struct worker){.pid = begin(h, dice_roll(seeds))};
    }
}

/* Also children of children: this process is the parent of all whose parent is gone. */
static void end(struct worker *workers, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        if (workers[i].pid > 0) {
            kill(-workers[i].pid, SIGKILL);
            kill(workers[i].pid, SIGKILL);
        }
    for (;;) {
        int status;
        pid_t pid = waitpid(-1, &status, WNOHANG | WUNTRACED);

        if (pid < 0)
            return;
        if (pid > 0 && WIFSTOPPED(status))
            kill(pid, SIGKILL); /* an orphan that nobody else would continue */
        if (pid == 0)
            usleep(5000); /* the orphans of former processes end by themselves, in seconds */
    }
}

static void say_counts(uint64_t seed, unsigned processes)
{
    printf("{\"seed\": %llu, \"processes\": %u, \"actions\": {", (unsigned long long)seed,
           processes);
    for (unsigned i = 0; i < nactions; i++)
        printf("%s\"%s\": %u", i ? ", " : "", actions[i]->name, (unsigned)counts[i]);
    printf("}}\n");
}

static bool listed(const char *list, const char *name)
{
    size_t len = strlen(name);

    for (const char *p = list; *p; p += strcspn(p, ",") + (p[strcspn(p, ",")] == ','))
        if (strcspn(p, ",") == len && strncmp(p, name, len) == 0)
            return true;
    return false;
}

static void collect(const struct action *table, const char *only, const char *but)
{
    for (; table->name; table++)
        if ((!only || listed(only, table->name)) && !listed(but, table->name) &&
            nactions < ACTIONS_MAX) {
            actions[nactions++] = table;
            weights += table->weight;
        }
}

static int become(unsigned uid)
{
    return setgroups(0, NULL) || setresgid(uid, uid, uid) || setresuid(uid, uid, uid) ? -1 : 0;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"socket", 1, NULL, 's'},    {"seconds", 1, NULL, 't'}, {"seed", 1, NULL, 'S'},
        {"processes", 1, NULL, 'p'}, {"uid", 1, NULL, 'u'},     {"only", 1, NULL, 'o'},
        {"except", 1, NULL, 'x'},    {"list", 0, NULL, 'l'},    {"trace", 0, NULL, 'T'},
        {"spin", 0, NULL, 'c'},      {NULL, 0, NULL, 0}};
    static struct hostile h;
    static struct worker workers[PROCESSES_MAX];
    uint64_t seed = now_ms();
    unsigned processes = 6, uid = 0;
    const char *only = NULL, *but = "";
    double seconds = 10;
    struct dice seeds;
    bool list = false;
    uint64_t limit_ms;
    int c;

    while ((c = getopt_long(argc, argv, "", options, NULL)) >= 0)
        switch (c) {
        case 's':
            if (h.nsockets < NODES_MAX)
                h.sockets[h.nsockets++] = optarg;
            break;
        case 't':
            seconds = atof(optarg);
            break;
        case 'S':
            seed = strtoull(optarg, NULL, 10);
            break;
        case 'p':
            processes = MIN((unsigned)atoi(optarg), (unsigned)PROCESSES_MAX);
            break;
        case 'u':
            uid = (unsigned)atoi(optarg);
            break;
        case 'o':
            only = optarg;
            break;
        case 'x':
            but = optarg;
            break;
        case 'l':
            list = true;
            break;
        case 'T':
            trace = true;
            break;
        case 'c':
            spin = true;
            break;
        default:
            return 64;
        }
    collect(socket_actions, only, but);
    collect(fd_actions, only, but);
    collect(board_actions, only, but);
    collect(client_actions, only, but);
    for (unsigned i = 0; list && i < nactions; i++)
        puts(actions[i]->name);
    if (list)
        return 0;
    if (!nactions || (!h.nsockets && !spin)) {
        fprintf(stderr, "hostile: no such action, or no --socket\n");
        return 64;
    }
    if (uid && become(uid)) {
        perror("hostile: --uid");
        return 1;
    }
    counts = mmap(NULL, ACTIONS_MAX * sizeof(*counts), PROT_READ | PROT_WRITE,
                  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (counts == MAP_FAILED)
        return 1;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* which reserve terabytes */
    limit(RLIMIT_AS, (uint64_t)MEMORY_GB << 30);
#endif
    limit(RLIMIT_NOFILE, FILES);
    limit(RLIMIT_CORE, 0);
    if (uid)
        limit(RLIMIT_NPROC, TASKS);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    fprintf(stderr, "hostile: --seed %llu --processes %u\n", (unsigned long long)seed, processes);
    seeds.state = seed;
    limit_ms = now_ms() + (uint64_t)(1000 * seconds);
    while (now_ms() < limit_ms) {
        tend(&h, workers, processes, &seeds);
        usleep(20000);
    }
    end(workers, processes);
    say_counts(seed, processes);
    return 0;
}

/* gpu_main.c - the commd-gpu process: works for all processes of this node that have tensors on
 * GPUs. Started and watched by commd. doc/gpu.md has the model, gpu.h says what is in which file.
 *
 * The turn: sessions announce, groups look whether their inputs are there, streams whether
 * something has ended. Users share a turn as in the engine (transport/engine/engine.c): where
 * several have something, each gets a slice of time, and the next turn begins with the user behind.
 * What is on the GPUs is not taken back: gpu_share.c says who may have how much there, and up to
 * four users have streams of their own for moves. After SPIN_NS without anything the loop sleeps:
 * in naps while it waits for an input or a stream, for which nobody rings; else until a doorbell or
 * a socket is heard.
 *
 * The end: there will be no commd any more (transport/process/control.c): exit at once. A GPU that
 * fails: gpu_fatal(). Clients see the end of their sockets and end what they wait for themselves.
 * What commd-gpu knows dies with it; a SIGKILL at any moment harms nobody else. */
#include "config.h"

#include "transport/gpu/gpu_op.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/random.h>

#include "shm/util/wait.h"
#include "shm/launch/engine_exec.h"
#include "shm/launch/launch.h"
#include "transport/process/confine.h"
#include "transport/process/launcher.h"

enum {
    SPIN_NS = 200000,
    WORK_NS = 60000,  /* a yield that takes longer has met work: sleep rather than yield again */
    CLOCK_EVERY = 16, /* idle turns between looks at the clock */
    LOOK_EVERY = 64,  /* turns between looks at sockets and doorbells */
    NAP_LEAST_NS = 20000,
    NAP_MOST_NS = 100000,
    REST_MS = 1000, /* the net under lost doorbells */
    UNHEARD_MS = 200,
    TICK_MS = 20,     /* while a group waits for the news of another node */
    SLICE_NS = 20000, /* of a turn for each user, where there are several */
    SLACK_NS = 5000,
};

static const char *const levels[] = {"error", "warn", "info", "debug"};

void gpu_log(const struct gpu *g, unsigned level, const char *format, ...)
{
    char text[1024];
    va_list args;

    if (level > g->log_level)
        return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(stderr, "commd-gpu %s: %s\n", levels[level], text);
}

void gpu_log_user(struct gpu *g, uint32_t uid, unsigned level, const char *format, ...)
{
    char text[1024];
    uint64_t left_out;
    va_list args;

    if (level > g->log_level || !gpu_lines_pass(&g->lines, uid, now_ms(), &left_out))
        return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (left_out)
        gpu_log(g, level, "%llu lines that users caused were left out",
                (unsigned long long)left_out);
    gpu_log(g, level, "%s", text);
}

void gpu_fatal(struct gpu *g, const char *format, ...)
{
    struct gsession *s;
    char text[512];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    gpu_log(g, LOG_ERROR, "%s", text);
    LIST_FOREACH(s, &g->sessions, link)
        if (s->state == SESSION_OPEN)
            slots_fail_all(s, COMMD_E_GPU_LOST, text);
    if (g->ndevices)
        control_devices(g);
    _exit(1);
}

/* ---- turns ----------------------------------------------------------------------------------- */

static bool sessions_turn(struct guser *u, uint64_t end)
{
    struct gsession *s;
    bool moved = false;

    for (unsigned left = u->nactive; left && (s = TAILQ_FIRST(&u->active)); left--) {
        if (u->nactive > 1) {
            TAILQ_REMOVE(&u->active, s, active_link);
            TAILQ_INSERT_TAIL(&u->active, s, active_link);
        }
        moved |= slot_turn(s);
        if (end && left > 1 && now_ns() >= end)
            return true; /* not all have been looked at: do not sleep */
    }
    return moved;
}

static bool groups_turn(struct guser *u, uint64_t end)
{
    struct ggroup *gr;
    bool moved = false;

    for (unsigned left = u->nactive_groups; left && (gr = TAILQ_FIRST(&u->active_groups)); left--) {
        if (u->nactive_groups > 1) {
            TAILQ_REMOVE(&u->active_groups, gr, active_link);
            TAILQ_INSERT_TAIL(&u->active_groups, gr, active_link);
        }
        moved |= group_turn(gr);
        if (end && left > 1 && now_ns() >= end)
            return true;
    }
    return moved;
}

static bool gpu_turn(struct gpu *g)
{
    struct guser *u = TAILQ_FIRST(&g->busy), *next;
    bool moved = devices_turn(g), alone = u && !TAILQ_NEXT(u, busy_link);

    for (; u; u = next) {
        uint64_t begin = alone ? 0 : now_ns();

        next = TAILQ_NEXT(u, busy_link);
        /* the two share the slice, so that neither is starved by the other */
        moved |= sessions_turn(u, alone ? 0 : begin + SLICE_NS / 2);
        if (u->nactive_groups)
            moved |= groups_turn(u, alone ? 0 : begin + SLICE_NS);
    }
    users_turn(g);
    moved |= comm_turn(g);
    wires_sweep(g);
    sessions_sweep(g);
    groups_sweep(g);
    return moved;
}

/* Sets the asleep flags, and looks once more: true if something has come meanwhile. */
static bool arm(struct gpu *g)
{
    struct guser *u, *next_user;
    struct gsession *s, *next;
    bool waits = false;

    TAILQ_FOREACH(u, &g->busy, busy_link)
        TAILQ_FOREACH(s, &u->active, active_link)
            atomic_store_explicit(&s->region->asleep, 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst); /* as in shm/board/board.c, "Memory order" */
    for (u = TAILQ_FIRST(&g->busy); u; u = next_user) {
        next_user = TAILQ_NEXT(u, busy_link);
        for (s = TAILQ_FIRST(&u->active); s; s = next) {
            next = TAILQ_NEXT(s, active_link);
            if (slot_waits(s))
                waits = true;
            else if (s->low + SESSION_SLOTS > s->next) /* else it waits for us, not for a bell */
                session_deactivate(s);
        }
    }
    return waits;
}

/* ---- sleep ----------------------------------------------------------------------------------- */

int gpu_watch(struct gpu *g, int fd, uint32_t events, struct gwatch *w)
{
    struct epoll_event ev = {.events = events, .data.ptr = w};

    return epoll_ctl(g->epoll, EPOLL_CTL_ADD, fd, &ev) ? -errno : 0;
}

/* What an event is about stays until the sweep in the next turn, whatever events before it did. */
static void take_event(struct gpu *g, const struct epoll_event *ev)
{
    struct gwatch *w = ev->data.ptr;

    switch (w->kind) {
    case WATCH_CONTROL:
        control_read(g);
        break;
    case WATCH_JOBS:
        jobs_turn(g->jobs);
        break;
    case WATCH_SESSION:
        if (ev->events & EPOLLIN)
            session_read(w->of);
        else
            session_close(w->of, "it has closed its socket");
        break;
    case WATCH_WIRE:
        wire_turn(g);
        break;
    case WATCH_BELL:
        session_wake(w->of);
        break;
    }
}

/* Sockets and doorbells; sleeps for @ns at most, -1: without a limit. True: something was heard, so
 * that the next turn may have to do what no doorbell rings for. */
static bool look_around(struct gpu *g, int64_t ns)
{
    struct epoll_event ev[64];
    int n;

    if (ns) {
        struct pollfd p = {.fd = g->epoll, .events = POLLIN};
        struct timespec ts = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};

        if (ppoll(&p, 1, ns < 0 ? NULL : &ts, NULL) <= 0)
            return false;
    }
    n = epoll_wait(g->epoll, ev, ARRAY_LEN(ev), 0);
    for (int i = 0; i < n && g->running; i++)
        take_event(g, &ev[i]);
    return n > 0;
}

/* A session whose doorbell was not heard. One that has just announced may have been preempted
 * before it rings, and has UNHEARD_MS. There must be no other: tests demand it. */
static void rescue(struct gpu *g)
{
    uint64_t now = now_ms();
    struct gsession *s;

    LIST_FOREACH(s, &g->sessions, link) {
        if (s->state != SESSION_OPEN || s->active || !slot_waits(s)) {
            s->unheard_ms = 0;
        } else if (!s->unheard_ms) {
            s->unheard_ms = now;
        } else if (now - s->unheard_ms >= UNHEARD_MS) {
            gpu_log_user(g, s->user->uid, LOG_WARN, "pid %u announced and did not ring", s->pid);
            session_wake(s);
        }
    }
}

static void rest_until(struct gpu *g, int64_t *nap)
{
    if (arm(g))
        return;
    if (!TAILQ_EMPTY(&g->busy) || g->nflying || g->now) { /* ready words and streams ring no bell */
        look_around(g, *nap);
        *nap = MIN(*nap + *nap / 4, (int64_t)NAP_MOST_NS);
    } else if (wires_wait(g) || g->nending) {
        look_around(g, TICK_MS * 1000000ll);
    } else {
        look_around(g, LIST_EMPTY(&g->sessions) ? -1 : REST_MS * 1000000ll);
        rescue(g);
    }
}

static void serve(struct gpu *g)
{
    struct crowd crowd = {0};
    unsigned turns = 0, idle = 0;
    uint64_t last = now_ns();
    int64_t nap = NAP_LEAST_NS;

    while (g->running) {
        bool moved = gpu_turn(g), quiet;

        if (++turns % LOOK_EVERY == 0 || wires_told(g))
            moved |= look_around(g, 0);
        if (moved) {
            idle = 0;
            nap = NAP_LEAST_NS;
            continue;
        }
        if (idle++ == 0) {
            last = now_ns();
            crowd_next(&crowd);
        }
        quiet = TAILQ_EMPTY(&g->busy) && !g->nflying && !g->now;
        /* a nap follows a nap until something moves */
        if (quiet || nap > NAP_LEAST_NS || crowd_here(&crowd) ||
            (idle % CLOCK_EVERY == 0 && now_ns() - last > SPIN_NS))
            rest_until(g, &nap);
        else
            yield_core(WORK_NS, &crowd);
    }
}

/* ---- start ----------------------------------------------------------------------------------- */

static const char usage[] =
    "Usage: commd-gpu --fd N --node NAME [--socket PATH] [--cuda LIB] [--nccl LIB]\n"
    "                 [--nccl-env SETTINGS] [--host-id ID] [--part BYTES] [--timeout MS]\n"
    "                 [--landlock yes|no] [--log error|warn|info|debug]\n"
    "       commd-gpu --launcher FD\n"
    "Works on tensors that processes have on the GPUs of this node. Started by commd, not by "
    "hand.\n"
    "  --fd N        commd's socket\n"
    "  --node NAME   name of this node\n"
    "  --socket PATH commd's socket for clients: for groups over several nodes\n"
    "  --cuda LIB    the CUDA driver; libcuda.so.1\n"
    "  --nccl LIB    NCCL; libnccl.so.2\n"
    "  --nccl-env SETTINGS  NCCL_NAME=VALUE, with spaces between them: its environment\n"
    "  --host-id ID  what NCCL takes this node for, where nodes share GPUs\n"
    "  --part BYTES  what is launched at once of an operation between GPUs; 1073741824\n"
    "  --timeout MS  how long an operation of NCCL may stand still; 30000\n"
    "  --landlock no can open what its user can; yes: what a driver needs, where the kernel can\n"
    "  --log LEVEL   what is said on stderr; info\n"
    "  --launcher FD starts commd-gpu for a commd of another user, on a socket that listens\n"
    "  --version, --help\n";

struct gpu_options {
    const char *node, *socket, *cuda, *nccl, *nccl_env, *host_id;
    int fd, launcher, part, timeout_ms;
    bool landlock;
    unsigned log_level;
};

/* What stands behind --NAME. */
static const struct gpu_word {
    const char *name;
    enum { TEXT, NUMBER, YES_NO, LEVEL } kind;
    size_t at; /* of struct gpu_options */
} gpu_words[] = {
    {"fd", NUMBER, offsetof(struct gpu_options, fd)},
    {"node", TEXT, offsetof(struct gpu_options, node)},
    {"socket", TEXT, offsetof(struct gpu_options, socket)},
    {"cuda", TEXT, offsetof(struct gpu_options, cuda)},
    {"nccl", TEXT, offsetof(struct gpu_options, nccl)},
    {"nccl-env", TEXT, offsetof(struct gpu_options, nccl_env)},
    {"host-id", TEXT, offsetof(struct gpu_options, host_id)},
    {"part", NUMBER, offsetof(struct gpu_options, part)},
    {"timeout", NUMBER, offsetof(struct gpu_options, timeout_ms)},
    {"landlock", YES_NO, offsetof(struct gpu_options, landlock)},
    {"log", LEVEL, offsetof(struct gpu_options, log_level)},
    {"launcher", NUMBER, offsetof(struct gpu_options, launcher)},
};

static bool take_word(struct gpu_options *o, const struct gpu_word *w, const char *value)
{
    void *to = (char *)o + w->at;
    unsigned level = 0;

    switch (w->kind) {
    case TEXT:
        *(const char **)to = value;
        return true;
    case NUMBER:
        *(int *)to = atoi(value);
        return true;
    case YES_NO:
        *(bool *)to = !strcmp(value, "yes");
        return !strcmp(value, "yes") || !strcmp(value, "no");
    case LEVEL:
        while (level < ARRAY_LEN(levels) && strcmp(value, levels[level]))
            level++;
        *(unsigned *)to = level;
        return level < ARRAY_LEN(levels);
    }
    return false;
}

static int parse_gpu_words(int argc, char **argv, struct gpu_options *o)
{
    enum { WORDS = ARRAY_LEN(gpu_words), HELP = WORDS, WHICH };
    struct option longs[WORDS + 3] = {
        [HELP] = {"help", 0, NULL, HELP}, [WHICH] = {"version", 0, NULL, WHICH}};
    bool bad = false;
    int c;

    for (int i = 0; i < WORDS; i++)
        longs[i] = (struct option){gpu_words[i].name, 1, NULL, i};
    while (!bad && (c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        if (c == HELP || c == WHICH) {
            fputs(c == HELP ? usage : "commd-gpu " COMMD_BUILD_VERSION "\n", stdout);
            exit(0);
        }
        bad = c >= WORDS || !take_word(o, &gpu_words[c], optarg);
    }
    bad |= (o->launcher < 0 && (o->fd < 0 || !o->node)) || optind < argc || o->timeout_ms <= 0 ||
           o->part < GPU_PART_LEAST || o->part > GPU_PART;
    if (bad)
        fputs(usage, stderr);
    return bad ? -EINVAL : 0;
}

/* NCCL takes two ranks on one GPU for a mistake, if their hosts are the same: so a node that shares
 * its GPUs with another one has a name of its own for its host. commd has checked the settings.
 *
 * Between GPUs of one process NCCL before 2.24 goes to the buffers themselves. Those of our clients
 * are imported for one GPU, and a kernel on another one would fault there. */
static void set_nccl_env(const struct gpu_options *o)
{
    char *words = strdup(o->nccl_env ? o->nccl_env : ""), *word, *at = NULL;

    setenv("NCCL_P2P_DIRECT_DISABLE", "1", 1);
    for (word = words ? strtok_r(words, " ", &at) : NULL; word; word = strtok_r(NULL, " ", &at)) {
        char *value = strchr(word, '=');

        if (!value || strncmp(word, "NCCL_", 5))
            continue;
        *value++ = 0;
        setenv(word, value, 1);
    }
    free(words);
    if (o->host_id && o->host_id[0])
        setenv("NCCL_HOSTID", o->host_id, 0);
}

/* A process that cannot be confined serves all the same. The driver that tests have takes memory
 * out of other processes, which a confined process may not. */
static void give_up_files(const struct gpu *g, const struct gpu_options *o)
{
    int r;

    if (!o->landlock) {
        gpu_log(g, LOG_INFO, "not confined by Landlock: gpu.landlock is false");
    } else if (dlsym(g->cu.library, "fakecuda_calls")) {
        gpu_log(g, LOG_INFO, "not confined by Landlock: the driver is that of tests");
    } else {
        r = confine(CONFINE_DRIVER);
        gpu_log(g, LOG_INFO, r ? "not confined by Landlock: %s" : "confined by Landlock%s",
                r ? strerror(-r) : "");
    }
}

/* Libraries come first, for they lie anywhere. Then the process gives up the file system but for
 * what a driver needs. The driver begins last: its threads are confined, too. */
static void load(struct gpu *g, const struct gpu_options *o)
{
    char why[256];

    if (cuda_load(o->cuda, 0, &g->cu, why, sizeof why)) {
        snprintf(g->why, sizeof g->why, "%s", why);
        return;
    }
    if (nccl_load(o->nccl, &g->nccl, why, sizeof why))
        gpu_log(g, LOG_INFO, "without NCCL: %s", why);
    give_up_files(g, o);
    devices_find(g);
}

static int begin(struct gpu *g)
{
    if (getrandom(&g->key, sizeof g->key, 0) != (ssize_t)sizeof g->key)
        return -EIO;
    g->key |= 1;
    g->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (g->epoll < 0)
        return -errno;
    g->loop = pthread_self();
    g->control_watch.kind = WATCH_CONTROL;
    g->jobs_watch.kind = WATCH_JOBS;
    if (jobs_new(g->nccl.version < NCCL_ABORTS_AT_ONCE, &g->jobs) ||
        gpu_watch(g, jobs_fd(g->jobs), EPOLLIN, &g->jobs_watch) ||
        gpu_watch(g, control_fd(&g->control), EPOLLIN, &g->control_watch))
        return -errno;
    closer_new(&g->closer); /* without it we close on the loop */
    closer_reserve();
    prctl(PR_SET_TIMERSLACK, SLACK_NS);
    return 0;
}

int main(int argc, char **argv)
{
    static struct gpu g = {.epoll = -1, .running = true};
    struct gpu_options o = {.fd = -1,
                            .launcher = -1,
                            .part = GPU_PART,
                            .timeout_ms = 30000,
                            .landlock = true,
                            .log_level = LOG_INFO};

    if (parse_gpu_words(argc, argv, &o))
        return 64;
    if (o.launcher >= 0)
        return launcher_run(o.launcher, gpu_env);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGINT, SIG_IGN); /* Ctrl-C at a terminal is commd's to handle */
    if (control_begin(&g.control, o.fd))
        return 1;
    g.node = o.node;
    g.settings = launch_settings_of(argc, argv);
    g.socket = o.socket;
    if (o.socket) /* for libcommd; a group that waits for another node's ranks is no news */
        setenv("COMMD_SOCKET", o.socket, 1);
    setenv("COMMD_WARN_AFTER", "0", 1);
    /* Jobs set one queue for themselves, and a commd that they start inherits that. With one queue
     * every user would wait for the user whose NCCL waits for a network. */
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
    set_nccl_env(&o);
    g.timeout_ms = o.timeout_ms;
    g.log_level = o.log_level;
    g.part = (uint32_t)o.part;
    TAILQ_INIT(&g.busy);
    load(&g, &o);
    if (begin(&g)) {
        gpu_log(&g, LOG_ERROR, "cannot start: %s", strerror(errno));
        return 1;
    }
    control_hello(&g, false);
    control_devices(&g);
    serve(&g);
    _exit(0); /* threads of the driver may be in the middle of something */
}

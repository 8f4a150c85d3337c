/* loop.c - the turn.
 *
 * One thread, one libevent base. A turn has these parts:
 *  1. Ready events (other nodes, the engine, timers) call the edges, which call the core. This is
 *     repeated while nodes have more for us, for as long as clients get.
 *  2. Messages of clients are taken, for a few ms: listener_turn().
 *  3. Answers for commctl and for HTTP are made, for a moment: admin_turn(), http_turn().
 *  4. Closed clients and links are freed, so that no callback meets a dead pointer; the timer for
 * the core's next deadline is set; the service manager is told what has changed.
 *
 * daemon_dispatch() is the only way into the core. It does not nest: effects (apply.c) never
 * lead back into it. The edges report them in a later turn.
 *
 * The end: CORE_SHUTDOWN decides what clients and nodes are told. The listener and the links send
 * that and close. After STOP_MS commd ends in any case, and at once after a second signal.
 *
 * A commd that serves one user leaves when it is idle: see watch_idleness().
 *
 * The watchdog is fed by a timer of this very loop: a loop that hangs does not feed it. */
#include <assert.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "daemon/process/clock.h"
#include "daemon/daemon.h"
#include "daemon/http/http.h"
#include "daemon/process/log.h"
#include "daemon/process/notify.h"

enum { STOP_MS = 1000, STATUS_MS = 500 };
enum { BOARDS_SOON_MS = 20, BOARDS_MS = 1000 };
enum { BOARDS_PER_TURN = 256 }; /* a look at one takes about a microsecond */
enum { CROWD = 64 };            /* groups at a time that leave more than a page or two of holes */

/* ---- events into the core, actions out ------------------------------------------------------- */

static void dispatch_one(struct daemon *d, struct core_event *event)
{
    struct core_action action;

    event->now_ms = clock_ms();
    core_input(d->core, event);
    while (core_next(d->core, &action))
        apply_action(d, &action);
}

void daemon_dispatch(struct daemon *d, struct core_event *event)
{
    char text[MSG_TEXT_MAX];
    struct core_event news;

    assert(!d->dispatching);
    d->dispatching = true;
    dispatch_one(d, event);
    while (apply_next_news(d, &news, text))
        dispatch_one(d, &news);
    d->dispatching = false;
}

static void on_deadline(evutil_socket_t fd, short what, void *arg)
{
    struct daemon *d = arg;
    struct core_event tick = {.type = CORE_TICK};

    d->deadline_ms = UINT64_MAX;
    d->parent = getppid();
    daemon_dispatch(d, &tick);
}

static void arm_deadline(struct daemon *d)
{
    uint64_t due = core_deadline(d->core), now;
    struct timeval tv;

    if (due == d->deadline_ms)
        return;
    d->deadline_ms = due;
    if (due == UINT64_MAX) {
        event_del(d->deadline);
        return;
    }
    now = clock_ms();
    tv = clock_timeval(due > now ? due - now : 0);
    event_add(d->deadline, &tv);
}

/* ---- the service manager --------------------------------------------------------------------- */

/* Tells the service manager what has changed, at most once in STATUS_MS. */
static void tell_status(struct daemon *d)
{
    uint64_t now = clock_ms();
    char status[sizeof(d->status)];

    if (!getenv("NOTIFY_SOCKET") || d->stopping)
        return;
    admin_status_line(d, status, sizeof(status));
    if (strcmp(status, d->status) == 0)
        return;
    if (now - d->status_ms < STATUS_MS) {
        struct timeval tv = clock_timeval(STATUS_MS - (now - d->status_ms));

        if (!evtimer_pending(d->status_timer, NULL))
            event_add(d->status_timer, &tv);
        return;
    }
    d->status_ms = now;
    memcpy(d->status, status, sizeof(status));
    notify_send("STATUS=%s", status);
}

static void on_watchdog(evutil_socket_t fd, short what, void *arg)
{
    notify_send("WATCHDOG=1");
}

static void on_nothing(evutil_socket_t fd, short what, void *arg)
{
    /* the end of this turn does the work */
}

/* ---- boards that were left, but are still held ----------------------------------------------- */

static void arm_boards(struct daemon *d, unsigned ms)
{
    struct timeval tv = clock_timeval(ms);

    d->boards_ms = ms;
    event_add(d->boards_timer, &tv);
}

/* Memory of thousands of groups lies all over the heap. One small piece at the heap's end would
 * keep all of it, so that commd had another size after each such job. */
static void give_back_memory(struct daemon *d)
{
    struct core_status status;

    d->crowded |= d->boards.count >= CROWD;
    if (!d->crowded || d->boards.count)
        return;
    core_status(d->core, &status);
    if (status.groups)
        return;
    d->crowded = false;
    malloc_trim(0);
}

/* Most clients let go right after they left: the first look comes soon. */
void loop_watch_boards(struct daemon *d)
{
    if (TAILQ_EMPTY(&d->boards.left))
        return;
    if (d->boards_ms > BOARDS_SOON_MS || !evtimer_pending(d->boards_timer, NULL))
        arm_boards(d, BOARDS_SOON_MS);
}

static void on_boards(evutil_socket_t fd, short what, void *arg)
{
    struct daemon *d = arg;

    if (boards_look(&d->boards, BOARDS_PER_TURN))
        arm_boards(d, MIN(2 * d->boards_ms, (unsigned)BOARDS_MS));
}

/* ---- the end --------------------------------------------------------------------------------- */

static void on_stop_timeout(evutil_socket_t fd, short what, void *arg)
{
    struct daemon *d = arg;

    d->quit = true;
}

void loop_stop(struct daemon *d)
{
    if (d->stopping)
        d->quit = true;
    d->stop = true;
    event_active(d->status_timer, EV_TIMEOUT, 0);
}

/* The kernel ends who has lost its keeper. NULL: somebody asked for it. */
static const char *why_ended(const struct daemon *d)
{
    int signo = 0;

    if (prctl(PR_GET_PDEATHSIG, &signo) || !signo || getppid() == d->parent)
        return NULL;
    return "its keeper has ended";
}

static void begin_stop(struct daemon *d)
{
    struct core_event event = {.type = CORE_SHUTDOWN, .text = why_ended(d)};
    struct timeval tv = clock_timeval(STOP_MS);

    d->stopping = true;
    notify_send("STOPPING=1\nSTATUS=stopping");
    daemon_dispatch(d, &event);
    listener_drain(d->listener);
    if (d->peers)
        peer_links_drain(d->peers);
    event_add(d->stop_timer, &tv);
}

/* ---- leaving when idle ----------------------------------------------------------------------- */

static void on_idle(evutil_socket_t fd, short what, void *arg)
{
    struct daemon *d = arg;

    d->idle_due = true;
}

/* Called twice in a turn. Before clients are served: to find commd idle and to stop listening are
 * one step. So a client that has connected in this turn keeps commd; a client that is still in the
 * queue gets no answer, and asks anew. After clients are served: the last client may have gone, and
 * nothing else would wake the loop again. */
static void watch_idleness(struct daemon *d)
{
    struct timeval tv = clock_timeval(d->idle_ms);
    struct core_status status;

    if (!d->idle_ms || d->stop)
        return;
    core_status(d->core, &status);
    if (!listener_unused(d->listener) || status.groups) {
        d->idle_due = false;
        event_del(d->idle_timer);
    } else if (d->idle_due) {
        log_info("no client for %.3g s -> leaving", (double)d->idle_ms / 1000);
        d->stop = true;
    } else if (!evtimer_pending(d->idle_timer, NULL)) {
        event_add(d->idle_timer, &tv);
    }
}

static void on_signal(evutil_socket_t signo, short what, void *arg)
{
    struct daemon *d = arg;
    char text[MSG_TEXT_MAX];

    if (signo == SIGHUP) {
        daemon_reload(d, text, sizeof(text));
        return;
    }
    log_info("%s%s%s -> stopping", signo == SIGTERM ? "SIGTERM" : "SIGINT",
             why_ended(d) ? ": " : "", why_ended(d) ? why_ended(d) : "");
    loop_stop(d);
}

/* ---- the loop -------------------------------------------------------------------------------- */

static void on_payers(evutil_socket_t fd, short what, void *arg)
{
    payers_look(arg);
}

int loop_init(struct daemon *d)
{
    static const int signals[ARRAY_LEN(d->signals)] = {SIGTERM, SIGINT, SIGHUP};
    struct event_config *config = event_config_new();
    uint64_t watchdog_ms = notify_watchdog_ms();
    struct timeval tv = clock_timeval(watchdog_ms / 2);

    if (!config)
        return -ENOMEM;
    /* the coarse clock is late by up to a timer tick, 4 ms */
    event_config_set_flag(config, EVENT_BASE_FLAG_PRECISE_TIMER);
    d->base = event_base_new_with_config(config);
    event_config_free(config);
    if (!d->base)
        return -ENOMEM;
    d->deadline_ms = UINT64_MAX;
    d->parent = getppid();
    d->deadline = evtimer_new(d->base, on_deadline, d);
    d->watchdog = event_new(d->base, -1, EV_PERSIST, on_watchdog, d);
    d->status_timer = evtimer_new(d->base, on_nothing, d);
    d->stop_timer = evtimer_new(d->base, on_stop_timeout, d);
    d->idle_timer = evtimer_new(d->base, on_idle, d);
    d->boards_timer = evtimer_new(d->base, on_boards, d);
    d->payers_timer = evtimer_new(d->base, on_payers, d);
    if (!d->boards_timer || !d->payers_timer)
        return -ENOMEM;
    if (!d->deadline || !d->watchdog || !d->status_timer || !d->stop_timer || !d->idle_timer)
        return -ENOMEM;
    for (unsigned i = 0; i < ARRAY_LEN(d->signals); i++) {
        d->signals[i] = evsignal_new(d->base, signals[i], on_signal, d);
        if (!d->signals[i] || event_add(d->signals[i], NULL))
            return -ENOMEM;
    }
    if (watchdog_ms && event_add(d->watchdog, &tv))
        return -ENOMEM;
    return 0;
}

void loop_fini(struct daemon *d)
{
    struct event *const events[] = {d->deadline,     d->watchdog,    d->status_timer, d->stop_timer,
                                    d->signals[0],   d->signals[1],  d->signals[2],   d->idle_timer,
                                    d->boards_timer, d->payers_timer};

    for (unsigned i = 0; i < ARRAY_LEN(events); i++)
        if (events[i])
            event_free(events[i]);
    if (d->base)
        event_base_free(d->base);
    d->base = NULL;
}

/* Passes over the events, as long as nodes have more for us: see peer_link.c. False: it failed. */
static bool take_events(struct daemon *d)
{
    int r = event_base_loop(d->base, EVLOOP_ONCE);

    while (r >= 0 && d->peers && peer_links_more(d->peers))
        r = event_base_loop(d->base, EVLOOP_ONCE | EVLOOP_NONBLOCK);
    return r >= 0;
}

/* CPU time: most of the real time goes by while the loop waits for events. */
static uint64_t cpu_us(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (uint64_t)ts.tv_sec * 1000000 + (uint64_t)ts.tv_nsec / 1000;
}

void loop_run(struct daemon *d)
{
    uint64_t begin, took;

    watch_idleness(d);
    while (!d->quit) {
        arm_deadline(d);
        begin = cpu_us();
        if (!take_events(d)) {
            log_error("the event loop failed: %m -> stopping");
            d->exit_code = EXIT_INTERNAL;
            return;
        }
        watch_idleness(d);
        if (d->stop && !d->stopping)
            begin_stop(d);
        listener_turn(d->listener);
        watch_idleness(d);
        if (d->peers)
            peer_links_turn(d->peers);
        admin_turn(d);
        gather_turn(d);
        http_turn(d->http);
        takeover_counts(d);
        give_back_memory(d);
        tell_status(d);
        took = cpu_us() - begin;
        d->turns++;
        d->turns_us += took;
        d->longest_turn_us = MAX(d->longest_turn_us, took);
        if (d->stopping && listener_idle(d->listener) && (!d->peers || peer_links_idle(d->peers)))
            d->quit = true;
    }
}

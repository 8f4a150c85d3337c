/* collect.c - reads the core's views and the edges into a struct metrics. There may be thousands of
 * groups, and the loop has other work, so a turn reads a part only. Later numbers are a little
 * newer than earlier ones; each is right for its moment. */
#include "config.h"

#include "daemon/http/collect.h"

#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "daemon/admin/answers.h"
#include "daemon/admin/links.h"
#include "daemon/admin/process_view.h"
#include "daemon/daemon.h"
#include "daemon/http/http.h"
#include "daemon/process/clock.h"
#include "daemon/process/log.h"
#include "daemon/process/log_limit.h"
#include "shm/proto/codec.h"

/* ---- one process ----------------------------------------------------------------------------- */

/* Another process may be hidden from us (hidepid, ProtectProc=), or have ended. */
static void read_process(unsigned pid, struct metrics_process *process)
{
    unsigned long long user, system, resident;
    uint64_t tick_us = 1000000 / (uint64_t)sysconf(_SC_CLK_TCK);
    char text[1024], path[64], *at;
    struct stat st;

    /* proc(5): after the name, which may hold anything, the state is the third field */
    if (process_file(pid, "stat", text, sizeof(text)) <= 0 || !(at = strrchr(text, ')')) ||
        sscanf(at + 1,
               " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu %*d %*d %*d %*d %*d %*d "
               "%*u %*u %llu",
               &user, &system, &resident) != 3)
        return;
    process->known = true;
    process->cpu_us = (user + system) * tick_us;
    process->resident_bytes = resident * (uint64_t)sysconf(_SC_PAGESIZE);
    snprintf(path, sizeof(path), "/proc/%u/fd", pid);
    if (stat(path, &st) == 0 && st.st_size > 0 && access(path, R_OK) == 0) {
        process->fds_known = true; /* since Linux 6.2 */
        process->fds = (uint64_t)st.st_size;
    }
}

/* ---- what takes one look --------------------------------------------------------------------- */

static void collect_node(struct collect *c, unsigned i, const struct core_peer_view *peer)
{
    struct metrics_node *node = &c->m.nodes[i];
    uint64_t now = clock_ms(), since = peer->since_ms ? peer->since_ms : c->d->started_ms;

    snprintf(node->name, sizeof(node->name), "%s", peer->name);
    node->self = peer->state == CORE_PEER_SELF;
    node->linked = peer->state == CORE_PEER_LINKING || peer->state == CORE_PEER_READY;
    node->up = peer->state == CORE_PEER_READY;
    node->state = answer_peer_word(peer);
    node->age_ms = now > since ? now - since : 0;
    node->links = peer->links;
    node->traffic = *peer->traffic;
    node->clear = link_is_open(peer->traffic->encryption);
    node->key_ms = link_is_encrypted(peer->traffic->encryption) ? links_key_ms(peer->traffic) : 0;
    memcpy(node->losses, peer->losses, sizeof(node->losses));
    snprintf(node->error, sizeof(node->error), "%s", answer_node_error(c->d, i, peer));
    log_clean(node->error); /* another node may have written it */
}

static void collect_status(struct collect *c)
{
    struct answer answer = {.d = c->d};
    struct metrics *m = &c->m;
    struct core_gpu_view gpu;
    struct core_status status;

    core_status(c->d->core, &status);
    answer_check_well(&answer);
    snprintf(m->unready, sizeof(m->unready), "%s", answer.unwell);
    log_clean(m->unready);
    snprintf(m->node, sizeof(m->node), "%s", c->d->conf->node);
    snprintf(m->cluster, sizeof(m->cluster), "%s", c->d->conf->cluster);
    snprintf(m->fabric, sizeof(m->fabric), "%s", c->d->engine ? status.engine_text : "");
    log_clean(m->fabric);
    m->version = COMMD_BUILD_VERSION;
    m->engine_state = answer_engine_word(c->d, &status);
    m->state = answer_state_word(&status, m->unready[0]);
    m->ready = !m->unready[0];
    m->nodes_up = status.nodes_up;
    m->engine_up = c->d->engine && status.engine == CORE_ENGINE_UP;
    m->clients = status.clients;
    core_gpu(c->d->core, &gpu);
    m->gpu_up = gpu.state == CORE_ENGINE_UP;
    m->gpu_clients = gpu.sessions;
    m->ngpus = gpu.ndevices;
    for (unsigned i = 0; i < gpu.ndevices; i++) {
        m->gpus[i].operations = gpu.devices[i].operations;
        m->gpus[i].moved = gpu.devices[i].moved;
    }
    read_process((unsigned)getpid(), &m->commd);
    if (status.engine_pid)
        read_process(status.engine_pid, &m->engine);
}

static void collect_limits(struct collect *c)
{
    const struct conf *conf = c->d->conf;
    struct rlimit files = {0};
    struct metrics *m = &c->m;

    getrlimit(RLIMIT_NOFILE, &files);
    m->max_fds = files.rlim_cur;
    m->max_clients = conf->max_clients;
    m->max_clients_user = conf->max_clients_per_user;
    m->max_groups = conf->max_groups;
    m->max_groups_user = conf->max_groups_per_user;
    m->max_board_bytes = conf->max_board_bytes;
    m->max_board_bytes_user = conf_board_bytes_per_user(conf);
    m->max_arenas = c->d->arenas.max;
    m->uptime_ms = clock_ms() - c->d->started_ms;
}

static void collect_counts(struct collect *c)
{
    const struct daemon *d = c->d;
    struct metrics *m = &c->m;
    struct log_counts log;

    m->counts = *core_counts(d->core);
    for (unsigned i = 0; i < CAUSE_COUNT; i++)
        m->clients_refused[i] = m->counts.clients_refused[i] + listener_refused(d->listener)[i];
    if (d->peers) {
        m->links = *peer_links_counts(d->peers);
        m->certified_until = (uint64_t)peer_links_certified_until(d->peers);
    }
    log_counts(&log);
    memcpy(m->log_written, log.written, sizeof(m->log_written));
    m->log_lost = log.lost;
    m->log_left_out = log_limit_left_out();
    m->turns = d->turns;
    m->turns_us = d->turns_us;
    m->longest_turn_us = d->longest_turn_us;
    m->boards = d->boards.count;
    m->board_bytes = d->boards.bytes;
    m->most_board_bytes = boards_most(&d->boards);
    m->arenas = d->arenas.count;
    http_counts(d->http, m);
}

static const char *one_of(const char *word, const char *const *words, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        if (!strcmp(word, words[i]))
            return words[i];
    return NULL;
}

/* Not everybody may know which user drained a node or had a group. So most events are shown without
 * their text, and events of users only if something ended badly. */
static void collect_events(struct collect *c)
{
    static const char *const whole[] = {"node_up",     "node_lost",   "engine_up",
                                        "engine_lost", "data_mended", "gpu_up",
                                        "gpu_lost",    "start",       "engine_replaced"};
    static const char *const words[] = {"drain", "config", "log_level", "group_failed",
                                        "rank_lost"};
    const struct diary_entry *entry;
    struct metrics *m = &c->m;

    if (!m->events)
        return;
    TAILQ_FOREACH_REVERSE(entry, &c->d->diary->kept, diary_list, entry)
    {
        const char *told = one_of(entry->what, whole, ARRAY_LEN(whole));
        const char *what = told ? told : one_of(entry->what, words, ARRAY_LEN(words));
        struct metrics_event *event = &m->events[m->nevents];

        if (m->nevents == METRICS_EVENTS_SHOWN)
            return;
        if (!what)
            continue;
        event->wall_ms = entry->wall_ms;
        event->what = what;
        snprintf(event->text, sizeof(event->text), "%.*s", METRICS_ERROR - 1,
                 told ? entry->text : "");
        m->nevents++;
    }
}

static bool collect_numbers(struct collect *c)
{
    struct core_peer_view peer;

    collect_status(c);
    collect_events(c);
    collect_limits(c);
    collect_counts(c);
    for (unsigned i = 0; i < c->m.nnodes && core_peer_at(c->d->core, i, &peer); i++)
        collect_node(c, i, &peer);
    return false;
}

/* ---- groups ---------------------------------------------------------------------------------- */

/* The least and the most of counters that wrap. */
struct spread {
    uint32_t first;
    int32_t least, most; /* relative to the first counter */
    unsigned n;
};

static void spread_add(struct spread *spread, uint32_t count)
{
    int32_t from_first;

    if (!spread->n++)
        spread->first = count;
    from_first = (int32_t)(count - spread->first);
    spread->least = MIN(spread->least, from_first);
    spread->most = MAX(spread->most, from_first);
}

/* How far the ranks of this node are. The counters are the ranks' to write: whatever they hold, it
 * is shown and nothing else. */
static void collect_progress(struct collect *c, const struct core_group_view *view,
                             struct metrics_group *group)
{
    const struct board_entry *entry = view->id ? boards_find(&c->d->boards, view->id) : NULL;
    struct spread done = {0}, begun = {0};

    for (unsigned i = 0; i < view->size && entry && view->members; i++) {
        if (view->members[i].node != view->me)
            continue;
        spread_add(&begun, board_rank_started(entry->ctl, begun.n));
        spread_add(&done, board_rank_ended(entry->ctl, done.n));
    }
    group->has_ops = done.n > 0;
    group->ops = done.first + (uint32_t)done.least;
    group->behind = (uint32_t)begun.most - (uint32_t)begun.least;
}

static void collect_group(struct collect *c, const struct core_group_view *view)
{
    struct metrics *m = &c->m;

    switch (view->state) {
    case CORE_GROUP_JOINING:
    case CORE_GROUP_COMMITTED:
        m->groups_joining++;
        m->groups_to_recover +=
            view->recovery == MSG_RECOVERY_SHRINK || view->recovery == MSG_RECOVERY_WAIT;
        m->free_seats += view->nseats;
        if (view->recovery == MSG_RECOVERY_REJOIN)
            m->new_processes += view->comers;
        break;
    case CORE_GROUP_OPEN:
        m->groups_open++;
        break;
    case CORE_GROUP_BROKEN:
        m->groups_broken++;
        break;
    case CORE_GROUP_LEFT:
        break; /* in no list */
    }
    if (!m->groups || m->ngroups == METRICS_GROUPS_SHOWN)
        return;
    m->groups[m->ngroups] = (struct metrics_group){
        .number = view->id ? c->scan.at : 0,
        .state = core_group_word(view->state),
        .cause = view->state == CORE_GROUP_BROKEN ? cause_name(view->cause) : "",
        .epoch = view->epoch,
        .size = view->size,
        .nodes = view->nnodes,
        .local = view->nlocal,
        .missing = view->nmissing,
    };
    collect_progress(c, view, &m->groups[m->ngroups++]);
}

static bool groups_step(struct collect *c)
{
    struct core_group_view view;
    int r = core_group_scan(c->d->core, &c->scan, NULL, &view);

    if (r == CORE_SCAN_FOUND)
        collect_group(c, &view);
    return r != CORE_SCAN_END;
}

/* ---- in steps -------------------------------------------------------------------------------- */

static bool operations_step(struct collect *c)
{
    bool more = boards_count(&c->d->boards, &c->bucket);

    c->m.collectives = c->d->boards.ops;
    c->m.operations = c->d->boards.totals;
    return more;
}

static bool users_step(struct collect *c)
{
    bool more = core_user_most(c->d->core, &c->user, &c->most);

    c->m.users = c->most.users;
    c->m.most_clients = c->most.clients;
    c->m.most_groups = c->most.groups;
    return more;
}

/* Counts our descriptors, where the kernel does not tell their number (before Linux 6.2). */
static bool fds_step(struct collect *c)
{
    enum { AT_ONCE = 64 };
    struct metrics_process *commd = &c->m.commd;

    if (commd->fds_known)
        return false;
    if (!c->fds && !(c->fds = opendir("/proc/self/fd")))
        return false;
    for (unsigned i = 0; i < AT_ONCE; i++) {
        const struct dirent *entry = readdir(c->fds);

        if (!entry) {
            commd->fds_known = true;
            commd->fds--; /* the descriptor by which we count */
            return false;
        }
        commd->fds += entry->d_name[0] != '.';
    }
    return true;
}

/* Each returns true while it has more work. */
static bool (*const phases[])(struct collect *c) = {collect_numbers, groups_step, operations_step,
                                                    users_step, fds_step};

bool collect_step(struct collect *c, uint64_t until_us)
{
    while (c->phase < ARRAY_LEN(phases) && clock_us() < until_us)
        if (!phases[c->phase](c))
            c->phase++;
    return c->phase == ARRAY_LEN(phases);
}

void collect_begin(struct collect *c, struct daemon *d, bool groups)
{
    *c = (struct collect){.d = d};
    c->m.nodes = calloc(d->conf->nnodes, sizeof(*c->m.nodes));
    c->m.nnodes = c->m.nodes ? d->conf->nnodes : 0;
    c->m.groups = groups ? calloc(METRICS_GROUPS_SHOWN, sizeof(*c->m.groups)) : NULL;
    c->m.events = groups ? calloc(METRICS_EVENTS_SHOWN, sizeof(*c->m.events)) : NULL;
    c->m.error = !c->m.nodes || (groups && (!c->m.groups || !c->m.events));
}

void collect_end(struct collect *c)
{
    if (c->fds)
        closedir(c->fds);
    c->fds = NULL;
    metrics_fini(&c->m);
}

/* takeover.c - what this commd writes down for the commd that follows it, and what it takes over
 * from the commd before it.
 *
 * Four kinds of things are kept, by the service manager or the keeper (daemon/process/store.h):
 *   state               records of clients, groups, what became of ranks, and of the diary:
 *                       daemon/state/
 *   pid.SLOT            the pidfd of a client
 *   board.GROUP.PAYER   the board of a group; who pays for it stands in its name, because a board
 *                       that processes hold is charged longer than its group is known
 *
 *   engine., gpu.       commd-engine and commd-gpu, which go on: takeover_engine.c
 *
 * Each is written before anybody is told of what it says. A client without a pidfd (of a pid
 * namespace that we do not see), or one for which there is no room, is not kept: then nor are the
 * groups that it is in. A successor does not know these; they go on without a commd.
 *
 * Taking over. The diary comes first: its numbers go on, and so does its life, by which whoever
 * follows it (commctl events --follow) sees that. Then clients, each with its pidfd: it is away
 * (listener_away.c). Then groups, each with its board. Then the core decides what cannot go on
 * (CORE_TAKEN_OVER). What does not fit is left out. Two commds that ended while they took over make
 * the third one start clean.
 *
 * A client that ends while it is away may have left its groups before, and could tell nobody but
 * the board: takeover_farewell() lets the core know. So does a look at the boards, now and then, of
 * who has left groups and lives on: a process may compute for days before it comes back. The same
 * is true of one that has sent its hello, and reads the answer when it needs commd the next time.
 *
 * At an orderly end nothing but the diary is written any more: what is kept is what a restart takes
 * over. */
#include <stdio.h>
#include <sys/random.h>

#include "daemon/daemon.h"
#include "daemon/process/clock.h"
#include "daemon/process/log.h"
#include "daemon/process/store.h"
#include "daemon/state/state.h"
#include "daemon/takeover.h"
#include "shm/util/memfd.h"

enum { AWAY_LOOK_MS = 1000 };

static void pid_name(unsigned slot, char ret_name[STORE_NAME_MAX])
{
    snprintf(ret_name, STORE_NAME_MAX, "pid.%u", slot);
}

static void bell_name(unsigned slot, char ret_name[STORE_NAME_MAX])
{
    snprintf(ret_name, STORE_NAME_MAX, "bell.%u", slot);
}

static void board_name(uint64_t group, uint32_t payer, char ret_name[STORE_NAME_MAX])
{
    snprintf(ret_name, STORE_NAME_MAX, "board.%016llx.%u", (unsigned long long)group, payer);
}

static void drop_board(uint64_t group, uint32_t payer)
{
    char name[STORE_NAME_MAX];

    board_name(group, payer, name);
    store_drop(name);
}

/* ---- the beginning --------------------------------------------------------------------------- */

static void drop_all(const char *prefix)
{
    const char *found;
    unsigned at = 0;

    while ((found = store_next(&at)))
        if (starts_with(found, prefix))
            store_drop(found);
}

static void state_begin(struct daemon *d)
{
    size_t size = state_size(d->conf->max_clients, d->conf->max_groups, BOARD_MAX_LOCAL * 64, 0);
    _cleanup_(close_fdp) int fd = store_take("state");
    bool unfit = fd >= 0;
    int r;

    if (fd >= 0 && state_open(fd, &d->state) == 0) {
        d->restoring = true;
        return;
    }
    close_fdp(&fd);
    if (unfit) {
        log_warn("what the commd before this one left is of another version, or damaged -> "
                 "starting clean");
    }
    r = state_new(size, &d->state, &fd);
    if (r == 0)
        r = store_put("state", fd);
    if (r) {
        log_info("nothing can be kept for the next commd: %s", memfd_strerror(r));
        d->state = state_free(d->state);
    }
    if (unfit)
        daemon_note(d, EVENT_START, "nothing was taken over: it is of another version, or damaged");
}

int takeover_begin(struct daemon *d)
{
    d->kept = calloc(d->nslots, sizeof(*d->kept));
    if (!d->kept)
        return -ENOMEM;
    d->boards.forgotten = drop_board;
    if (store_is_kept())
        state_begin(d);
    return 0;
}

void takeover_fini(struct daemon *d)
{
    for (unsigned i = 0; d->kept && i < d->nslots; i++)
        free(d->kept[i].known);
    free(d->kept);
    if (d->state && d->restoring)
        state_taken_over(d->state); /* it failed for another reason, and did not die over it */
    if (d->away_timer)
        event_free(d->away_timer);
    d->away_timer = NULL;
    d->kept = NULL;
    d->state = state_free(d->state);
}

/* ---- taking over ----------------------------------------------------------------------------- */

static bool take_client(void *arg, const struct state_client *client)
{
    const struct core_kept_client *is = &client->is;
    _cleanup_(close_fdp) int pidfd = -1;
    char name[STORE_NAME_MAX];
    struct daemon *d = arg;
    struct client_command *command;

    pid_name(is->slot, name);
    pidfd = store_take(name);
    if (pidfd < 0 || is->slot >= d->nslots || !core_restore_client(d->core, is)) {
        store_drop(name);
        d->left_out |= is->uid != CORE_GPU_UID; /* commd-gpu ended, and its ranks with it */
        return false;
    }
    command = &d->commands[is->slot];
    *command =
        (struct client_command){.uid = is->uid, .payer = is->payer, .pid = is->pid, .here = true};
    snprintf(command->text, sizeof(command->text), "%s", client->command);
    snprintf(command->job, sizeof(command->job), "%s", client->job);
    if (d->engine && engine_link_life(d->engine))
        d->doorbells[is->slot] = DOORBELL_BEFORE;
    bell_name(is->slot, name);
    d->bells[is->slot] = store_take(name);
    d->kept[is->slot].kept = d->kept[is->slot].unheard = true;
    memcpy(d->kept[is->slot].key, client->token, MSG_KEY);
    /* without memory for that the client stays away for good, as far as we can tell */
    listener_away(d->listener, is->slot, is->uid, is->payer, is->pid, &pidfd, client->token);
    return true;
}

static bool take_board(struct daemon *d, const struct core_kept_group *group,
                       struct board_entry **ret_entry)
{
    _cleanup_(freep) uint16_t *rank_node = calloc(group->size, sizeof(*rank_node));
    struct board_geom geom = {.group = group->id,
                              .epoch = group->epoch,
                              .net = group->net,
                              .gpu = group->gpu,
                              .world = group->size,
                              .nnodes = group->nnodes,
                              .rank_node = rank_node};
    _cleanup_(close_fdp) int fd = -1;
    char name[STORE_NAME_MAX];
    int r;

    if (!rank_node)
        return false;
    while (geom.me < geom.nnodes && strcmp(group->nodes[geom.me], d->conf->node))
        geom.me++;
    for (uint32_t i = 0; i < group->size; i++) {
        rank_node[i] = (uint16_t)group->members[i].node;
        geom.nlocal += rank_node[i] == geom.me;
    }
    board_name(group->id, group->payer, name);
    fd = store_take(name);
    r = fd < 0 ? -ENOENT : boards_adopt(&d->boards, &geom, group->payer, &fd, ret_entry);
    if (r) {
        log_warn("the board of group %llu was not taken over: %s -> the group is not known",
                 (unsigned long long)group->id, r > 0 ? "it does not fit" : strerror(-r));
        store_drop(name);
        return false;
    }
    boards_stored(*ret_entry);
    return true;
}

static bool take_group(void *arg, const struct core_kept_group *group)
{
    struct board_entry *entry;
    struct daemon *d = arg;
    struct core_group_view view;
    bool known;

    if (group->state == CORE_GROUP_COMMITTED)
        drop_board(group->id, group->payer); /* nobody was told of it */
    if (group->state != CORE_GROUP_OPEN)
        return core_restore_group(d->core, group);
    /* a rank without a client is lost, unless its client was merely left out */
    for (uint32_t i = 0; d->left_out && i < group->nranks; i++)
        if (group->ranks[i].slot == CORE_NOBODY)
            return false;
    if (!take_board(d, group, &entry))
        return false;
    if (!core_restore_group(d->core, group)) {
        boards_del(&d->boards, group->id);
        return false;
    }
    known = core_group(d->core, group->id, &view);
    assert(known);
    for (uint32_t i = 0; known && i < group->nranks; i++)
        if (group->ranks[i].slot != CORE_NOBODY) /* no memory: it is not shown among the ranks */
            boards_hand_out(&d->boards, entry, apply_local_index(&view, group->ranks[i].rank),
                            group->ranks[i].slot);
    return true;
}

static bool take_rank_gone(void *arg, const struct core_rank_gone *gone)
{
    struct core_group_view view;
    struct daemon *d = arg;
    struct board_entry *entry;

    if (!core_restore_rank_gone(d->core, gone))
        return false;
    entry = boards_find(&d->boards, gone->group);
    if (entry && core_group(d->core, gone->group, &view) && view.state == CORE_GROUP_BROKEN)
        board_mark_missed(entry->ctl, gone->rank, gone->cause); /* it ended after that */
    else if (entry) /* its ranks know it; whoever asks this commd does not yet */
        board_mark_gone(entry->ctl, gone->rank, gone->ops, gone->cause, gone->pid);
    return true;
}

static bool take_broken(void *arg, const struct core_group_broken *broken)
{
    return core_restore_broken(((struct daemon *)arg)->core, broken);
}

static void take_counts(void *arg, const struct core_counts *counts)
{
    core_restore_counts(((struct daemon *)arg)->core, counts);
}

/* Boards whose groups have ended, or are not known: they are charged until nobody holds them. */
static void take_left_boards(struct daemon *d)
{
    const char *found;
    unsigned at = 0;

    while ((found = store_next(&at))) {
        unsigned long long group;
        char name[STORE_NAME_MAX];
        unsigned payer;
        int rest = 0, fd;

        snprintf(name, sizeof(name), "%s", found);
        if (strncmp(name, "board.", 6))
            continue;
        fd = store_take(name);
        if (sscanf(name, "board.%16llx.%u%n", &group, &payer, &rest) != 2 || name[rest] ||
            boards_adopt_left(&d->boards, group, payer, &fd))
            store_drop(name);
        close_fdp(&fd);
    }
    loop_watch_boards(d);
}

/* Not earlier: what else may fail at a start says nothing about the state. */
static bool try_to_restore(struct daemon *d)
{
    if (state_try(d->state) < STATE_TRIES)
        return true;
    log_error("%d commds ended while they took over what was kept -> starting clean", STATE_TRIES);
    daemon_note(d, EVENT_START, "nothing was taken over: %d commds ended over it", STATE_TRIES);
    d->restoring = false;
    state_clear(d->state);
    state_taken_over(d->state);
    drop_all("pid.");
    drop_all("bell.");
    drop_all("board.");
    return false;
}

_Static_assert((int)STATE_EVENTS == DIARY_MAX && (int)STATE_WHAT == DIARY_WHAT &&
                   (int)STATE_TEXT == DIARY_TEXT,
               "what a diary has fits into a state");

static bool take_entry(void *arg, const struct state_entry *event)
{
    struct daemon *d = arg;
    struct diary_entry entry = {.number = event->number,
                                .wall_ms = event->wall_ms,
                                .total = event->total,
                                .whose = event->whose,
                                .payer = event->payer};
    uint64_t pushed;

    snprintf(entry.what, sizeof(entry.what), "%s", event->what);
    snprintf(entry.text, sizeof(entry.text), "%s", event->text);
    if (!event->life || !diary_restore(d->diary, &entry, &pushed))
        return false;
    d->diary->life = event->life;
    if (pushed)
        state_entry_gone(d->state, pushed);
    return true;
}

void takeover_diary(struct daemon *d)
{
    const char *why;

    if (!d->restoring || !try_to_restore(d))
        return;
    state_read_events(d->state, take_entry, d);
    if (state_dropped(d->state, &why))
        d->diary->life = d->incarnation; /* perhaps newer numbers are lost: who follows asks anew */
}

void takeover_restore(struct daemon *d)
{
    static const struct state_ops ops = {
        .counts = take_counts,
        .client = take_client,
        .group = take_group,
        .rank_gone = take_rank_gone,
        .broken = take_broken,
    };
    const char *why = "";
    unsigned dropped;

    if (!d->restoring)
        return takeover_programs(d); /* which ends what there is */
    core_restore_begin(d->core, clock_ms());
    takeover_programs(d);
    state_read(d->state, &ops, d);
    dropped = state_dropped(d->state, &why);
    if (dropped)
        log_warn("%u records of the commd before this one do not fit (%s) -> left out", dropped,
                 why);
    drop_all("pid.");
    drop_all("bell.");
    take_left_boards(d);
}

void takeover_end(struct daemon *d)
{
    const struct timeval period = clock_timeval(AWAY_LOOK_MS);
    struct core_event event = {.type = CORE_TAKEN_OVER};

    if (!d->restoring)
        return;
    daemon_dispatch(d, &event);
    state_taken_over(d->state);
    d->restoring = false;
    d->took_over_ms = clock_ms();
    d->away_timer = event_new(d->base, -1, EV_PERSIST, takeover_look_away, d);
    if (d->away_timer)
        event_add(d->away_timer, &period);
}

bool takeover_leaves(struct daemon *d)
{
    if (!d->state || !(d->restoring || d->turns))
        return false; /* it has never served, nor did one before it */
    if (d->restoring)
        state_taken_over(d->state); /* it has ended in order */
    return true;
}

/* ---- clients --------------------------------------------------------------------------------- */

static bool keeps(const struct daemon *d)
{
    return d->state && !d->stopping;
}

static bool member_of(const struct daemon *d, uint64_t group, unsigned slot)
{
    unsigned rank, client;
    uint32_t req;

    for (unsigned i = 0; core_group_local(d->core, group, i, &rank, &client, &req); i++)
        if (client == slot)
            return true;
    return false;
}

void takeover_back(struct daemon *d, unsigned slot, const struct msg_client_hello *hello)
{
    struct kept_client *kept = &d->kept[slot];

    assert(kept->kept && kept->unheard);
    free(kept->known);
    kept->nknown = 0;
    kept->known = malloc(MAX(hello->nkept, 1u) * sizeof(*kept->known));
    for (uint32_t i = 0; kept->known && i < hello->nkept; i++)
        if (member_of(d, hello->kept[i], slot))
            kept->known[kept->nknown++] = hello->kept[i];
}

/* Keeps the client that is welcome now. False: it cannot be kept. */
static bool keep_client(struct daemon *d, unsigned slot)
{
    const struct client_command *command = &d->commands[slot];
    struct state_client client = {.command = command->text, .job = command->job};
    _cleanup_(close_fdp) int pidfd = -1;
    struct core_client_view view;
    char name[STORE_NAME_MAX];
    unsigned at = slot;

    if (!keeps(d) || !core_client_scan(d->core, &at, &view) || view.client != slot || view.admin ||
        !view.pid)
        return false;
    pidfd = listener_pidfd(d->listener, slot);
    if (pidfd < 0 || getrandom(client.token, MSG_KEY, 0) != MSG_KEY)
        return false;
    pid_name(slot, name);
    if (store_put(name, pidfd))
        return false;
    client.is = (struct core_kept_client){.slot = slot,
                                          .uid = view.uid,
                                          .payer = command->payer,
                                          .pid = view.pid,
                                          .since_ms = view.since_ms,
                                          .program = view.program};
    memcpy(d->kept[slot].key, client.token, MSG_KEY);
    state_client(d->state, &client);
    return true;
}

void takeover_welcome(struct daemon *d, unsigned slot, struct msg_welcome *welcome)
{
    struct kept_client *kept = &d->kept[slot];

    if (d->took_over_ms)
        welcome->took_over_ms = clock_ms() - d->took_over_ms + 1;
    welcome->resumed = kept->kept;
    if (!kept->kept)
        kept->kept = keep_client(d, slot);
    if (!kept->kept)
        return;
    memcpy(welcome->key, kept->key, MSG_KEY);
    welcome->kept = kept->known; /* borrowed */
    welcome->nkept = kept->nknown;
}

void takeover_welcomed(struct daemon *d, unsigned slot)
{
    struct kept_client *kept = &d->kept[slot];

    free(kept->known);
    kept->known = NULL;
    kept->nknown = 0;
}

void takeover_client_gone(struct daemon *d, unsigned slot)
{
    struct kept_client *kept = &d->kept[slot];
    char name[STORE_NAME_MAX];

    takeover_welcomed(d, slot);
    kept->unheard = false;
    if (!kept->kept || !keeps(d))
        return;
    state_client_gone(d->state, slot);
    pid_name(slot, name);
    store_drop(name);
    bell_name(slot, name);
    store_drop(name);
    *kept = (struct kept_client){0};
}

void takeover_bell(struct daemon *d, unsigned slot)
{
    char name[STORE_NAME_MAX];

    if (!d->kept[slot].kept || !keeps(d) || d->bells[slot] < 0)
        return;
    bell_name(slot, name);
    store_put(name, d->bells[slot]); /* without it an engine after the next commd polls */
}

/* ---- groups ---------------------------------------------------------------------------------- */

/* Writes it down, if all its ranks can be kept. */
static void keep_group(struct daemon *d, uint64_t group, bool committed)
{
    unsigned rank, slot;
    uint32_t req;

    for (unsigned i = 0; core_group_local(d->core, group, i, &rank, &slot, &req); i++)
        if (!d->kept[slot].kept)
            return;
    state_group(d->state, d->core, group, committed);
    if (!state_is_whole(d->state) && !d->state_full) {
        d->state_full = true;
        log_warn("there is no room to write down all groups -> the next commd will know none");
    }
}

void takeover_committed(struct daemon *d, uint64_t group)
{
    if (keeps(d))
        keep_group(d, group, true);
}

void takeover_rank_asked(struct daemon *d, uint64_t group, uint32_t rank, uint32_t req)
{
    if (keeps(d))
        state_rank_asked(d->state, group, rank, req);
}

void takeover_group(struct daemon *d, const struct core_group_view *view, struct board_entry *entry)
{
    char name[STORE_NAME_MAX];

    if (!keeps(d))
        return;
    board_name(view->id, view->payer, name);
    if (store_put(name, boards_own_fd(entry))) {
        state_group_gone(d->state, view->id);
        return;
    }
    boards_stored(entry);
    if (view->nnodes == 1)
        keep_group(d, view->id, false);
    else
        state_group_step(d->state, view->id, STATE_OPEN);
}

void takeover_rank_gone(struct daemon *d, const struct core_rank_gone *gone)
{
    if (keeps(d))
        state_rank_gone(d->state, gone);
}

void takeover_broken(struct daemon *d, const struct core_group_broken *broken)
{
    if (keeps(d))
        state_broken(d->state, broken);
}

void takeover_closing(struct daemon *d, const struct core_group_close *close)
{
    if (close->left && keeps(d))
        state_group_step(d->state, close->group, STATE_LEFT);
    else
        takeover_forget(d, close->group);
}

void takeover_forget(struct daemon *d, uint64_t group)
{
    if (keeps(d))
        state_group_gone(d->state, group);
}

void takeover_counts(struct daemon *d)
{
    struct core_counts counts;

    if (!keeps(d))
        return;
    counts = *core_counts(d->core);
    for (unsigned i = 0; i < CAUSE_COUNT; i++)
        counts.clients_refused[i] += listener_refused(d->listener)[i]; /* of this commd's */
    if (!memcmp(&d->counted, &counts, sizeof(counts)))
        return;
    d->counted = counts;
    state_counts(d->state, &counts);
}

void takeover_event(struct daemon *d, uint64_t pushed)
{
    const struct diary_entry *entry = TAILQ_LAST(&d->diary->kept, diary_list);

    if (!d->state)
        return;
    if (pushed)
        state_entry_gone(d->state, pushed);
    state_entry(d->state, &(struct state_entry){.life = d->diary->life,
                                                .number = entry->number,
                                                .wall_ms = entry->wall_ms,
                                                .total = entry->total,
                                                .whose = entry->whose,
                                                .payer = entry->payer,
                                                .what = entry->what,
                                                .text = entry->text});
}

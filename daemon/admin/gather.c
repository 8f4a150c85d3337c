/* gather.c - questions about ranks and links.
 *
 * A question has three parts: find the groups; look at their boards for as long as the asker wants
 * (every RECORDS_LOOK_MS); write the tables. A client's question goes to all nodes at the same
 * moment. Their tables are added to this node's.
 *
 * Who wakes a question? Its timer.
 * What if a node does not answer? When this node's part is done, the question waits GRACE_MS more.
 * Then the answer names the node. If this machine stood still, GRACE_MS begins later, too.
 * What if the asker is gone? The other nodes are told to end their work. The question counts until
 * they have said that they did, or for END_MS.
 *
 * asking.h says how many questions may be under way; a user with more is told to ask again. In a
 * turn all questions of users have STEP_US together, and all of root have as much. An answer for a
 * node waits until the link has room. */
#include <stdio.h>

#include "daemon/admin/answers.h"
#include "daemon/admin/asking.h"
#include "daemon/admin/gather.h"
#include "daemon/admin/heard.h"
#include "daemon/admin/links.h"
#include "daemon/daemon.h"
#include "daemon/process/clock.h"
#include "daemon/process/log.h"

enum {
    STEP_US = 500,
    WATCH_MAX_MS = 10000,
    GRACE_MS = 700,
    END_MS = WATCH_MAX_MS + 5000,
    ROOM_MS = 10,         /* until the next look at a link without room */
    UNSENT_MAX = 1 << 20, /* a link with more unsent bytes has no room for an answer */
};

/* NOBODY: the asker is gone or has its answer, and other nodes have not ended their work yet. */
enum gather_asker { ASKED_BY_CLIENT, ASKED_BY_NODE, ASKED_BY_PAGE, ASKED_BY_NOBODY };
/* What a node has told. HEARD_NOTHING: the node was asked and works on it. HEARD_AWAY: its commd is
 * being restarted. */
enum gather_heard { HEARD_ALL, HEARD_NOTHING, HEARD_PART, HEARD_DOWN, HEARD_AWAY };
enum gather_stage {
    GATHER_FIND,
    GATHER_WATCH,
    GATHER_FILL,
    GATHER_RECORDS,
    GATHER_WAIT,
    GATHER_END /* other nodes have not ended their work, this node has */
};

struct gather_question {
    TAILQ_ENTRY(gather_question) entry;
    struct daemon *d;
    enum gather_asker asker;
    unsigned slot;         /* of the client that asks */
    unsigned node;         /* the node that asks */
    gather_links_fn *take; /* the page's callback, for the answer */
    void *arg;
    uint64_t ask; /* number of the question: the asking node's, or ours for the nodes we ask */
    enum gather_stage stage;
    struct ranks ranks;
    struct table tables[3]; /* ranks; links; records, if wished */
    struct event *timer;    /* owned */
    uint64_t watch_until_ms, wait_until_ms;
    unsigned links_left;       /* bad links of this node that are not in the table */
    unsigned nwaits;           /* nodes that were asked and have not answered: HEARD_NOTHING */
    char text[MSG_TEXT_MAX];   /* what is missing */
    enum gather_heard heard[]; /* by node */
};

/* Frees what the work on the question has needed. */
static void end_work(struct gather_question *q)
{
    const struct ranks_wish wish = q->ranks.wish;

    records_end(&q->ranks, q->d);
    ranks_fini(&q->ranks);
    ranks_init(&q->ranks, &wish);
    for (unsigned i = 0; i < ARRAY_LEN(q->tables); i++)
        table_fini(&q->tables[i]);
}

static void gather_free(struct gather_question *q)
{
    TAILQ_REMOVE(&q->d->gather->questions, q, entry);
    end_work(q);
    if (q->timer)
        event_free(q->timer);
    free(q);
}

static void again_in(struct gather_question *q, uint64_t ms)
{
    struct timeval tv = clock_timeval(ms);

    event_add(q->timer, &tv);
}

/* The asker needs nothing more. Asks the other nodes to end their work, and waits for END_MS at
 * most until they have. */
static void gather_end(struct gather_question *q)
{
    struct msg msg = {.type = MSG_ASK_RANKS, .ask_ranks = {.ask = q->ask, .end = 1}};

    assert(q->stage != GATHER_END);
    if (q->asker == ASKED_BY_NODE || !q->nwaits)
        return gather_free(q);
    for (unsigned i = 0; i < q->d->conf->nnodes; i++)
        if (q->heard[i] == HEARD_NOTHING)
            peer_links_send(q->d->peers, i, &msg);
    end_work(q);
    q->asker = ASKED_BY_NOBODY;
    q->stage = GATHER_END;
    again_in(q, END_MS);
}

static void mention(struct gather_question *q, const char *text)
{
    size_t used = strlen(q->text), room = sizeof(q->text) - used;

    if ((size_t)snprintf(q->text + used, room, "%s%s", used ? "; " : "", text) >= room)
        memcpy(q->text + sizeof(q->text) - sizeof("..."), "...", sizeof("..."));
}

static void missing(struct gather_question *q, const char *what, const char *name)
{
    char text[MSG_TEXT_MAX];

    snprintf(text, sizeof(text), "node %s %s", name, what);
    mention(q, text);
}

static unsigned tables_of(const struct gather_question *q)
{
    return q->ranks.wish.records ? 3 : 2;
}

/* Tables that do not fit into a frame must not go out: a link that fails to send is closed, and all
 * groups that span the two nodes break. */
static int answer_error(const struct gather_question *q)
{
    return tables_error(q->tables, ARRAY_LEN(q->tables));
}

/* Adds to the question's text what the answer lacks. */
static void look_complete(struct gather_question *q, int error)
{
    struct daemon *d = q->d;
    char others[MSG_TEXT_MAX], again[MSG_TEXT_MAX], left[80];

    if (q->links_left) { /* before nodes that are down, which may be many */
        memcpy(others, q->text, sizeof(others));
        q->text[0] = 0;
        snprintf(left, sizeof(left), "has %u more links that are not well: only the worst are told",
                 q->links_left);
        missing(q, left, d->conf->node);
        if (others[0])
            mention(q, others);
    }
    for (unsigned i = 0; i < d->conf->nnodes && q->nwaits; i++)
        if (q->heard[i] == HEARD_NOTHING)
            missing(q, "did not answer", d->conf->nodes[i].name);
    if (!q->ranks.wish.links && answer_dies_again(d, again, sizeof(again)))
        mention(q, again);
    if (q->ranks.cut || error == -E2BIG)
        missing(q, "has more ranks than fit into an answer: name a group", d->conf->node);
    else if (q->ranks.error || error)
        missing(q, "has no memory for the answer", d->conf->node);
    log_clean(q->text); /* another node may have written a part, and a terminal shows it */
}

/* Adds a row for each node that has not told all: commctl why names it for ranks without a row. */
static void tell_unheard(struct gather_question *q)
{
    static const char *const states[] = {
        [HEARD_NOTHING] = "silent",
        [HEARD_PART] = "partial",
        [HEARD_DOWN] = "down",
        [HEARD_AWAY] = "restarting",
    };
    const struct conf *conf = q->d->conf;

    if (q->asker == ASKED_BY_NODE || q->ranks.wish.links)
        return;
    if (q->ranks.cut || q->ranks.error)
        q->heard[conf->self] = HEARD_PART;
    for (unsigned i = 0; i < conf->nnodes; i++)
        if (q->heard[i] != HEARD_ALL)
            links_unheard(q->d, conf->nodes[i].name, states[q->heard[i]], &q->tables[1]);
}

/* Leaves out ranks that two nodes tell of: see heard.h. */
static void settle_disputes(struct gather_question *q)
{
    struct daemon *d = q->d;
    char first[MSG_TEXT_MAX / 2], text[MSG_TEXT_MAX];
    int n;

    if (q->asker != ASKED_BY_CLIENT || d->conf->nnodes == 1)
        return;
    n = heard_disputes(d->core, d->conf->node, &q->tables[0], first, sizeof(first));
    if (n > 0)
        snprintf(text, sizeof(text), "%s%s: left out", first, n > 1 ? ", and of others" : "");
    else if (n < 0)
        snprintf(text, sizeof(text), "too many ranks to look whether two nodes tell of one");
    if (n)
        mention(q, text);
}

static void send_answer(struct gather_question *q)
{
    struct msg_table tables[] = {q->tables[0].t, q->tables[1].t, q->tables[2].t};
    struct daemon *d = q->d;
    int error = answer_error(q);
    struct msg msg = {.type = q->asker == ASKED_BY_NODE ? MSG_RANKS_HERE : MSG_TABLES};

    look_complete(q, error);
    msg.tables.healthy = !q->text[0];
    msg.tables.ntables = error ? 0 : tables_of(q);
    msg.tables.tables = tables;
    msg.tables.ask = q->asker == ASKED_BY_NODE ? q->ask : 0;
    snprintf(msg.tables.text, sizeof(msg.tables.text), "%s", q->text);
    switch (q->asker) {
    case ASKED_BY_NODE:
        peer_links_send(d->peers, q->node, &msg);
        break;
    case ASKED_BY_CLIENT:
        listener_send(d->listener, q->slot, &msg, NULL, 0);
        listener_resume(d->listener, q->slot);
        break;
    case ASKED_BY_PAGE:
        q->take(q->arg, error ? NULL : &q->tables[1]);
        break;
    case ASKED_BY_NOBODY:
        break;
    }
    gather_end(q);
}

static void gather_step(struct gather_question *q, uint64_t until_us)
{
    struct daemon *d = q->d;
    uint64_t now, next;

    switch (q->stage) {
    case GATHER_FIND:
        if (!ranks_find(&q->ranks, d, until_us))
            return again_in(q, 0);
        if (q->ranks.wish.records && records_begin(&q->ranks, d, d->conf->nnodes))
            q->ranks.error = -ENOMEM;
        q->stage = GATHER_WATCH; /* fall through */
    case GATHER_WATCH:
        now = clock_ms();
        ranks_look(&q->ranks, d);
        next = records_look(&q->ranks, d, now < q->watch_until_ms ? q->watch_until_ms - now : 0);
        if (now < q->watch_until_ms)
            return again_in(q, MIN(q->watch_until_ms - now, next));
        past_add(&d->gather->past, &q->ranks);
        q->stage = GATHER_FILL; /* fall through */
    case GATHER_FILL:
        if (!ranks_fill(&q->ranks, d, &q->tables[0], until_us))
            return again_in(q, 0);
        q->ranks.group_at = q->ranks.row_at = 0;
        q->links_left = links_fill(d, q->ranks.wish.links, &q->tables[1]);
        q->stage = GATHER_RECORDS; /* fall through */
    case GATHER_RECORDS:
        if (q->ranks.wish.records && !records_fill(&q->ranks, d, &q->tables[2], until_us))
            return again_in(q, 0);
        q->stage = GATHER_WAIT;
        q->wait_until_ms = clock_ms() + GRACE_MS; /* fall through */
    case GATHER_WAIT:
        now = clock_ms();
        if (q->nwaits && now < q->wait_until_ms)
            return again_in(q, q->wait_until_ms - now);
        if (q->asker == ASKED_BY_NODE && peer_links_unsent(d->peers, q->node) > UNSENT_MAX)
            return again_in(q, ROOM_MS);
        tell_unheard(q);
        settle_disputes(q);
        return send_answer(q);
    case GATHER_END:
        return gather_free(q);
    }
}

/* Counts as root's: it asks for the groups of all users, or root asks. */
static bool of_root(const struct ranks_wish *wish)
{
    return wish->all || wish->uid == 0;
}

static void on_question(evutil_socket_t fd, short what, void *arg)
{
    struct gather_question *q = arg;
    struct gather *gather = q->d->gather;
    uint64_t begin = clock_us(), *spent_us = &gather->spent_us[of_root(&q->ranks.wish)];

    if (*spent_us >= STEP_US)
        return again_in(q, 0);
    gather_step(q, begin + STEP_US - *spent_us);
    *spent_us += clock_us() - begin;
}

void gather_turn(struct daemon *d)
{
    memset(d->gather->spent_us, 0, sizeof(d->gather->spent_us));
}

static struct gather_question *gather_new(struct daemon *d, const struct ranks_wish *wish,
                                          uint32_t watch_ms)
{
    struct gather_question *q = calloc(1, sizeof(*q) + d->conf->nnodes * sizeof(q->heard[0]));

    if (!q)
        return NULL;
    q->d = d;
    q->asker = ASKED_BY_NODE;
    ranks_init(&q->ranks, wish);
    ranks_table(&q->tables[0]);
    links_table(&q->tables[1]);
    if (wish->records)
        records_table(&q->tables[2]);
    q->watch_until_ms = clock_ms() + MIN(watch_ms, (uint32_t)WATCH_MAX_MS);
    TAILQ_INSERT_TAIL(&d->gather->questions, q, entry);
    q->timer = evtimer_new(d->base, on_question, q);
    if (!q->timer || answer_error(q)) {
        gather_free(q);
        return NULL;
    }
    again_in(q, 0);
    return q;
}

/* A node without a link. */
static enum gather_heard node_away(struct gather_question *q, unsigned node)
{
    struct core_peer_view peer;
    bool away = core_peer_at(q->d->core, node, &peer) && peer.state == CORE_PEER_AWAY;

    missing(q, away ? "is restarting" : "is down", q->d->conf->nodes[node].name);
    return away ? HEARD_AWAY : HEARD_DOWN;
}

/* Sends the question to all nodes with a link. Notes the others as missing. */
static void ask_nodes(struct gather_question *q, uint32_t watch_ms)
{
    struct daemon *d = q->d;
    struct msg msg = {.type = MSG_ASK_RANKS};
    struct core_peer_view peer;

    q->ask = d->incarnation + ++d->gather->last;
    msg.ask_ranks = (struct msg_ask_ranks){.ask = q->ask,
                                           .uid = q->ranks.wish.uid,
                                           .all = q->ranks.wish.all,
                                           .watch_ms = watch_ms,
                                           .records = q->ranks.wish.records,
                                           .links = q->ranks.wish.links};
    snprintf(msg.ask_ranks.group, sizeof(msg.ask_ranks.group), "%s", q->ranks.wish.group);
    for (unsigned i = 0; core_peer_at(d->core, i, &peer); i++) {
        if (peer.state == CORE_PEER_SELF)
            continue;
        if (peer.state == CORE_PEER_UNLINKED || peer.state == CORE_PEER_AWAY) {
            q->heard[i] = node_away(q, i);
            continue;
        }
        q->heard[i] = HEARD_NOTHING;
        q->nwaits++;
        peer_links_send(d->peers, i, &msg);
    }
}

static void refuse(struct daemon *d, unsigned slot, const char *text)
{
    answer_send(d, slot, false, NULL, text, 0);
    listener_resume(d->listener, slot);
}

/* Counts the questions that are under way: those of our clients, or with @node those of other
 * nodes.
 */
static struct asking count_asking(const struct gather *gather, uint32_t payer, const unsigned *node)
{
    struct asking asking = {0};
    const struct gather_question *q;

    TAILQ_FOREACH(q, &gather->questions, entry) {
        bool there = node && q->node == *node, own = q->ranks.wish.payer == payer;

        if ((q->asker == ASKED_BY_NODE) != (node != NULL))
            continue;
        if (of_root(&q->ranks.wish)) {
            asking.root += there;
            continue;
        }
        asking.own += own;
        asking.own_there += own && there;
        asking.users += there || !node;
    }
    return asking;
}

static bool too_many(const struct gather *gather, const struct ranks_wish *wish)
{
    struct asking asking = count_asking(gather, wish->payer, NULL);

    return !wish->all && !asking_here(&asking);
}

void gather_ask(struct daemon *d, unsigned slot, const struct listener_client *client,
                const struct msg_admin *question)
{
    struct ranks_wish wish = {.uid = client->uid,
                              .payer = client->payer,
                              .all = client->uid == 0 || client->uid == geteuid(),
                              .records = question->records,
                              .links = question->links};
    struct gather_question *q = NULL;

    snprintf(wish.group, sizeof(wish.group), "%s", question->group);
    listener_pause(d->listener, slot);
    if (too_many(d->gather, &wish))
        return refuse(d, slot, "too many questions at the same time: ask again in a second");
    q = gather_new(d, &wish, question->watch_ms);
    if (!q)
        return refuse(d, slot, "the answer cannot be made: no memory");
    q->asker = ASKED_BY_CLIENT;
    q->slot = slot;
    ask_nodes(q, question->watch_ms);
}

bool gather_links(struct daemon *d, gather_links_fn *take, void *arg)
{
    const struct ranks_wish wish = {.links = true};
    struct gather_question *q = gather_new(d, &wish, 0);

    if (!q)
        return false;
    q->asker = ASKED_BY_PAGE;
    q->take = take;
    q->arg = arg;
    ask_nodes(q, 0);
    return true;
}

void gather_drop(struct daemon *d, unsigned slot)
{
    struct gather_question *q;

    TAILQ_FOREACH(q, &d->gather->questions, entry)
        if (q->asker == ASKED_BY_CLIENT && q->slot == slot)
            return gather_end(q);
}

/* An answer without tables. @text says why; "": the asker has ended the question. */
static void answer_nothing(struct daemon *d, unsigned node, uint64_t ask, const char *text)
{
    struct msg msg = {.type = MSG_RANKS_HERE};

    msg.tables.ask = ask;
    snprintf(msg.tables.text, sizeof(msg.tables.text), "%s", text);
    peer_links_send(d->peers, node, &msg);
}

static void end_of_question(struct daemon *d, unsigned node, uint64_t ask)
{
    struct gather_question *q;

    TAILQ_FOREACH(q, &d->gather->questions, entry)
        if (q->asker == ASKED_BY_NODE && q->node == node && q->ask == ask)
            break;
    if (!q)
        return; /* its answer is on the way */
    gather_free(q);
    answer_nothing(d, node, ask, "");
}

/* Another node asks. If it asks very much for root, the last questions get one look only. */
static void ranks_asked(struct daemon *d, unsigned node, const struct msg_ask_ranks *ask)
{
    struct ranks_wish wish = {.uid = ask->uid,
                              .payer = payer_of(d->payers, ask->uid),
                              .all = ask->all,
                              .records = ask->records,
                              .links = ask->links};
    struct asking asking = count_asking(d->gather, wish.payer, &node);
    struct gather_question *q = NULL;
    char text[MSG_TEXT_MAX];

    if (ask->end)
        return end_of_question(d, node, ask->ask);
    snprintf(wish.group, sizeof(wish.group), "%s", ask->group);
    if (asking_from(&asking, of_root(&wish)))
        q = gather_new(d, &wish, asking.root < ASKING_MAX ? ask->watch_ms : 0);
    if (!q) {
        snprintf(text, sizeof(text), "node %s is asked too much: ask again in a second",
                 d->conf->node);
        return answer_nothing(d, node, ask->ask, text);
    }
    q->node = node;
    q->ask = ask->ask;
}

static bool same_tables(const struct msg_tables *tables, const struct gather_question *q)
{
    if (tables->ntables != tables_of(q))
        return false;
    for (unsigned k = 0; k < tables->ntables; k++)
        if (!heard_columns(&tables->tables[k], &q->tables[k].t))
            return false;
    return true;
}

/* @node does not work on the question any more. @q may be gone afterwards. */
static void node_heard(struct gather_question *q, unsigned node, enum gather_heard heard)
{
    assert(q->heard[node] == HEARD_NOTHING && heard != HEARD_NOTHING && q->nwaits);
    q->heard[node] = heard;
    if (--q->nwaits)
        return;
    if (q->stage == GATHER_END)
        gather_free(q);
    else if (q->stage == GATHER_WAIT)
        again_in(q, 0);
}

void gather_node_lost(struct daemon *d, unsigned node)
{
    struct gather_question *q, *next;

    for (q = TAILQ_FIRST(&d->gather->questions); q; q = next) {
        next = TAILQ_NEXT(q, entry);
        if (q->asker == ASKED_BY_NODE && q->node == node) {
            gather_free(q);
        } else if (q->asker != ASKED_BY_NODE && q->heard[node] == HEARD_NOTHING) {
            node_heard(q, node, q->stage != GATHER_END ? node_away(q, node) : HEARD_DOWN);
        }
    }
}

static void ranks_here(struct daemon *d, unsigned node, const struct msg_tables *tables)
{
    const char *name = d->conf->nodes[node].name;
    struct gather_question *q;
    unsigned untrue = 0;

    assert(node < d->conf->nnodes && node != d->conf->self);
    TAILQ_FOREACH(q, &d->gather->questions, entry)
        if (q->asker != ASKED_BY_NODE && q->ask == tables->ask && q->heard[node] == HEARD_NOTHING)
            break;
    if (!q)
        return; /* too late, or never asked */
    if (q->stage == GATHER_END)
        return node_heard(q, node, HEARD_DOWN);
    if (tables->text[0])
        mention(q, tables->text); /* the text names the node */
    if (!same_tables(tables, q)) {
        if (!tables->text[0])
            missing(q, "answers in another version", name);
    } else {
        for (unsigned k = 0; k < tables->ntables; k++)
            untrue += heard_rows(d->core, node, name, &tables->tables[k], &q->tables[k]);
        if (untrue)
            missing(q, "told of what is not its own, which is left out", name);
    }
    node_heard(q, node, tables->text[0] || !same_tables(tables, q) ? HEARD_PART : HEARD_ALL);
}

void gather_msg(struct daemon *d, unsigned node, const struct msg *msg)
{
    if (msg->type == MSG_ASK_RANKS)
        ranks_asked(d, node, &msg->ask_ranks);
    else
        ranks_here(d, node, &msg->tables);
}

int gather_init(struct daemon *d)
{
    d->gather = calloc(1, sizeof(*d->gather));
    if (!d->gather)
        return -ENOMEM;
    TAILQ_INIT(&d->gather->questions);
    past_init(&d->gather->past);
    return 0;
}

void gather_fini(struct daemon *d)
{
    if (!d->gather)
        return;
    while (!TAILQ_EMPTY(&d->gather->questions))
        gather_free(TAILQ_FIRST(&d->gather->questions));
    past_fini(&d->gather->past);
    free(d->gather);
    d->gather = NULL;
}

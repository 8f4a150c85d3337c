/* engine_pause.c - a group comes to rest for a moment, so that the engine of one of its nodes can
 * be replaced while its job runs. daemon/core/core_pause.c asks for it.
 *
 *   RUNS --ASK--> PAUSES --UNTIL--> PAUSES, final --all engines are quiet, and the asker's ends-->
 *     ^             |                  |                                      HELD (engine_hold.c)
 *     '--END, time--+------------------'
 *
 * ASK: an operation that this node has begun, or that all its members have announced, is gone on
 * with; a later one is not begun. The answer is the number of those (POSTED). UNTIL has the most
 * that any node has begun: those are done on all nodes, then no message of the members is taken any
 * more. When nothing is on the wire here, QUIET says how many messages between ranks were sent and
 * have come. What comes afterwards is taken, and told as a further QUIET, with what we have
 * answered (to a PROBE: engine_p2p.c). If all nodes are quiet, and as many have come as were sent,
 * nothing of the group is anywhere but in its boards.
 *
 * Who wakes a board that pauses: commd; PAUSE_MS without a word of the asker, then it goes on by
 * itself. The asker gives up much earlier (core_pause.c), so no engine is replaced after that. What
 * if another peer dies now: as always, and a board that is quiet is held (engine_hold.c). What if
 * commd dies now: nothing changes; the asker sees it, or ends its engine. The next commd ends the
 * pause when it knows that the asker's engine lives (pause_is_over() in core_pause.c). */
#include "shm/util/wait.h"
#include "transport/engine/engine_op.h"

enum { PAUSE_MS = 5000, IN_VAIN_MS = 10000 };

bool pause_bars(const struct eboard *eb)
{
    return eb->hold == EB_PAUSES && eb->op >= eb->pause.ops;
}

bool pause_bars_mail(const struct eboard *eb)
{
    return pause_bars(eb) && eb->pause.final;
}

/* So boards pause in vain for a twentieth of the time at most, whoever asks. */
static void release(struct eboard *eb)
{
    uint64_t now = now_ms();

    eb->pauses_from_ms = now + MIN(20 * (now - eb->pause.since_ms), (uint64_t)IN_VAIN_MS);
    set_hold(eb, EB_RUNS);
    eboard_activate(eb);
}

void pause_look(struct eboard *eb)
{
    struct epause *p = &eb->pause;
    struct msg_pause m;

    assert(eb->hold == EB_PAUSES);
    if (eb->dead)
        return;
    if (now_ms() >= p->until_ms) {
        release(eb);
        return;
    }
    if (!p->final || eb->op != p->ops || !hold_quiet(eb) ||
        (p->told && p->came == eb->mail_came && p->sent == eb->mail_sent))
        return;
    m = (struct msg_pause){.group = eb->b.group,
                           .attempt = p->attempt,
                           .step = PAUSE_QUIET,
                           .ops = eb->op,
                           .sent = eb->mail_sent - p->sent,
                           .came = eb->mail_came - p->came,
                           .asker = p->asker};
    p->told = true;
    p->sent = eb->mail_sent;
    p->came = eb->mail_came;
    if (eb->e->ev.on_paused)
        eb->e->ev.on_paused(eb->e->ev.arg, &m);
}

void pause_stir(struct eboard *eb)
{
    if (eb->hold == EB_PAUSES && !eb->dead)
        eboard_activate(eb);
}

/* Groups that end here still owe other nodes their last messages. Those that have ended are looked
 * at by the nodes where they have not: core_pause.c. */
static bool ends_some(const struct engine *e)
{
    return !TAILQ_EMPTY(&e->closing);
}

static bool first_step(struct eboard *eb, const struct msg_pause *m, struct msg_pause *ret)
{
    bool more;

    if (!eb || eb->dead || eb->closing || eb->hold != EB_RUNS || ends_some(eb->e) ||
        now_ms() < eb->pauses_from_ms) {
        ret->step = PAUSE_BUSY;
        return true;
    }
    more = eb->state != EB_IDLE || members_announced(eb, eb->base);
    eb->pause = (struct epause){.asker = m->asker,
                                .attempt = m->attempt,
                                .ops = eb->op + more,
                                .since_ms = now_ms(),
                                .until_ms = now_ms() + PAUSE_MS};
    set_hold(eb, EB_PAUSES);
    ret->step = PAUSE_POSTED;
    ret->ops = eb->pause.ops;
    return true;
}

bool engine_board_pause(struct engine *e, const struct msg_pause *m, struct msg_pause *ret)
{
    struct eboard *eb = eboard_find(e, m->group);

    *ret = (struct msg_pause){.group = m->group, .attempt = m->attempt, .asker = m->asker};
    if (m->step == PAUSE_ASK)
        return first_step(eb, m, ret);
    if (!eb || eb->dead || eb->hold != EB_PAUSES || eb->pause.asker != m->asker ||
        (m->attempt && eb->pause.attempt != m->attempt))
        return false;
    if (m->step == PAUSE_END) {
        release(eb);
    } else if (m->step == PAUSE_UNTIL && !eb->pause.final && m->ops >= eb->pause.ops) {
        eb->pause.ops = m->ops;
        eb->pause.final = true;
        eboard_activate(eb);
    }
    return false;
}

bool engine_rests_for(const struct engine *e, unsigned peer)
{
    const struct eboard *eb;

    for (unsigned i = 0; i < ENGINE_HASH; i++)
        LIST_FOREACH(eb, &e->hash[i], hash_link)
            if (eb->hold != EB_RUNS && !eb->dead && eb->pause.final && eb->pause.asker == peer &&
                now_ms() < eb->pause.until_ms)
                return true;
    return false;
}

/* engine_msg.c - what comes from other engines: checked, then taken by the move that waits for it,
 * kept in the board's inbox, kept for a group that commd has not told us of yet (engine_pending.c),
 * or dropped.
 *
 * A message that exceeds a bound fails its group and no other: members can bring that about, and
 * the link belongs to all users. A malformed header, which no member can bring about, is the fault
 * of the peer's engine. */
#include "transport/engine/engine_internal.h"

static bool header_ok(const struct fabric_msg *fm, struct inmsg *m)
{
    if (fm->hdr_len < sizeof m->h || fm->hdr_len > MAX(sizeof m->b, sizeof m->m))
        return false;
    memcpy(&m->h, fm->hdr, fm->hdr_len);
    if (m->h.len != fm->body_len || m->h.len > PLAN_CHUNK_NET)
        return false;
    if (m->h.step == WIRE_TAKEN || m->h.step == WIRE_PASSED)
        return fm->hdr_len == sizeof m->h && !m->h.len;
    if (m->h.step == WIRE_MAIL)
        return fm->hdr_len == sizeof m->m;
    return m->h.step == WIRE_CHECK ? fm->hdr_len == sizeof m->b : fm->hdr_len == sizeof m->h;
}

/* Each user has a memory of its own, so a user with many short groups makes us forget no other's.
 */
static bool recently_closed(const struct engine *e, const struct wire_hdr *h)
{
    const struct euser *u;

    TAILQ_FOREACH(u, &e->users, link)
        if (u->uid == h->uid)
            break;
    for (unsigned i = 0; u && i < ENGINE_CLOSED; i++)
        if (u->closed[i] == h->group)
            return true;
    return false;
}

/* Is @m of a group that is closed or broken, or of an operation that was refused? Then it is
 * dropped. */
static bool unwanted(struct engine *e, const struct eboard *eb, struct inmsg *m)
{
    if (eb ? !eb->dead && (int32_t)(m->h.op - eb->op) >= 0 : !recently_closed(e, &m->h))
        return false;
    if (m->h.step == WIRE_MAIL)
        mail_answer_closed(e, m);
    inmsg_drop_claim(e, m);
    return true;
}

static void keep_for_board(struct eboard *eb, struct inmsg *m, const struct fabric_msg *fm)
{
    struct engine *e = eb->e;
    struct inmsg *kept = inmsg_keep(e, m, fm);

    if (!kept) {
        inmsg_drop_claim(e, m);
        eboard_fail(eb, CAUSE_NOMEM, -1, "the engine has no memory for a message that has to wait");
    } else if (!inbox_keep(eb, kept)) {
        inmsg_free(e, kept);
        eboard_fail(eb, CAUSE_PROTOCOL, (int)m->peer,
                    "another node's engine sent more than was asked for");
    }
}

static void keep_pending(struct engine *e, struct inmsg *m, const struct fabric_msg *fm)
{
    struct inmsg *kept = NULL;

    pending_sweep(e);
    if (!pending_flooded(e, m->h.group, m->peer)) {
        kept = inmsg_keep(e, m, fm);
        if (!kept)
            pending_mark_flooded(e, m->h.group, m->peer);
    }
    if (kept)
        pending_keep(e, kept);
    else
        inmsg_drop_claim(e, m);
}

void engine_on_msg(void *arg, const struct fabric_msg *fm)
{
    struct engine *e = arg;
    struct inmsg m = {.peer = fm->peer, .body = fm->body, .claim = fm->claim, .on_stack = true};
    struct eboard *eb;

    assert(fm->peer < FABRIC_MAX_PEERS);
    assert((uintptr_t)fm->hdr % 16 == 0);
    if (!header_ok(fm, &m)) {
        inmsg_drop_claim(e, &m);
        e->ev.on_peer_down(e->ev.arg, fm->peer, LINK_END_ENGINE,
                           "its engine sent a malformed message");
        return;
    }
    if (m.h.step == WIRE_TAKEN) {
        sends_were_taken(e, m.peer, m.h.op);
        return;
    }
    if (m.h.flags & WIRE_COUNTED)
        sends_count_taken(e, m.peer, m.h.len);
    eb = eboard_find(e, m.h.group);
    if (eb && !eboard_among(eb, m.peer)) { /* that node has no part in the group */
        inmsg_drop_claim(e, &m);
        return;
    }
    if (eb && m.h.step == WIRE_MAIL) {
        if (!hold_keep(eb, &m, fm))
            mail_arrived(eb, &m);
        pause_stir(eb);
        return;
    }
    if (m.h.step == WIRE_PASSED) {
        if (eb)
            steps_were_passed(eb, &m);
        return;
    }
    if (unwanted(e, eb, &m))
        return;
    if (!eb) {
        keep_pending(e, &m, fm);
        return;
    }
    eboard_activate(eb);
    eb->fresh = &m;
    eboard_poll(eb);
    if (!eb->fresh)
        return;
    eb->fresh = NULL;
    if (!unwanted(e, eb, &m)) /* the look may have ended group or operation */
        keep_for_board(eb, &m, fm);
}

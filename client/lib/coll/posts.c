/* posts.c - rooted operations on one node, in which who only sends waits for nobody.
 *
 * In a broadcast or scatter the root posts what it has, under the number of the operation, and is
 * done. The others take it when they come. In a reduce or gather all but the root post, and the
 * root takes from all. A member has BOARD_SLOTS posts: it may post again in the place of one when
 * all members have completed that operation. Posts take no steps of the board, so what members do
 * in one that they call differently does not move the steps of any of them.
 *
 * What does not fit into a post lies in the window of who sends, in pieces (window.c). The post
 * tells how many there are, and who takes them tells in its own post how many it has, which who
 * sends waits for if its window is too small. Who takes pieces says so before the first, for those
 * that wait for a post of it: so nobody waits for who waits for it.
 *
 * Do all mean the same operation? Nobody meets, so that is found later:
 *
 *   - Whoever takes a post compares its fingerprint. Each fingerprint, also of operations in which
 *     ranks meet, has the operations of this file that this member has called before (`chain`). So
 *     what no receiver could see (two ranks that both take themselves for the root) is found by the
 *     first who takes a post of one of them, or where ranks meet.
 *   - Whoever waits for a post looks whether its sender waits as well or has completed the
 * operation, and whether anybody meets others in one.
 *
 * A member that finds a difference alone fails in this operation, and the group goes on. It says on
 * the board which descriptions differ (`disputed`). Its chain now differs from that of the others.
 * The root that posts in a later operation and finds this posts a refusal: the operation fails on
 * that member and on all who take it, with both descriptions. What is posted for the root alone can
 * tell nobody else: who finds it there meets the others instead, and all who wait for it do, too.
 * Where ranks meet they differ by their chains, and all fail alike. In both cases all chains begin
 * anew, and the matter is settled. Who has missed the refusal by another mistake differs on, and
 * says so anew after 32 operations.
 *
 * Where ranks meet some may be some operations ahead. The operations up to the last of them fail on
 * all (`refused_until`), so that all go on with the same number.
 *
 * Who wakes me: the bell, which is rung after each post, and at the end of each operation. What if
 * a peer dies now: a post that it has made is taken all the same; run_hopeless() sees the rest. */
#include "client/lib/coll/called.h"
#include "client/lib/coll/coll_steps.h"
#include "client/lib/coll/window.h"

enum { TROUBLE_LOOKS = 64 };

/* Is this member one that posts? */
static bool posts_here(const struct run *r)
{
    return is_root(r) != r->plan.to_root;
}

static uint64_t chained(uint64_t chain, uint64_t fingerprint)
{
    return (chain ^ fingerprint) * 0xff51afd7ed558ccdull + 1;
}

static struct board_slot *post_of(const struct run *r, unsigned m)
{
    return board_post(board_of(r), m, r->desc.seq);
}

static bool has_posted(const struct run *r, unsigned m)
{
    return atomic_load_explicit(&post_of(r, m)->seq, memory_order_acquire) ==
           board_post_mark(r->desc.seq);
}

/* May this member write into its post? */
static bool post_has_room(struct run *r)
{
    return have_completed(r, (uint32_t)r->desc.seq - BOARD_SLOTS);
}

/* ---- differences ----------------------------------------------------------------------------- */

static void posts_settle(struct run *r)
{
    r->group->chain = 0;
    r->group->settled = r->desc.seq;
    r->agreed = AGREED_REFUSED;
}

/* Does this operation fail on all who take what its root has posted? */
static bool is_refused(const struct run *r)
{
    for (unsigned m = 0; m < board_of(r)->nlocal; m++)
        if (has_posted(r, m) && post_of(r, m)->kind == BOARD_REFUSES)
            return true;
    return false;
}

/* Does another member tell already of what is not settled? If that was long ago, then the others
 * have settled it, and this member has missed that. */
static bool is_told(const struct run *r, uint64_t disputed)
{
    return disputed > r->group->settled && disputed + 2 * BOARD_SLOTS >= r->desc.seq;
}

static void tell_dispute(struct run *r, const struct board_mismatch *m)
{
    struct board_hdr *h = r->group->board.hdr;
    uint64_t last = atomic_load_explicit(&h->disputing, memory_order_relaxed);

    if (is_told(r, last) || !atomic_compare_exchange_strong(&h->disputing, &last, r->desc.seq))
        return;
    h->mismatch = *m;
    atomic_store_explicit(&h->disputed, r->desc.seq, memory_order_release);
}

/* This member alone has found that @m->rank_a and @m->rank_b differ. */
static void dispute(struct run *r, const struct board_mismatch *m)
{
    run_mismatch(r, m);
    if (is_refused(r)) {
        posts_settle(r);
        return;
    }
    r->group->chain = chained(r->group->chain, ~r->fingerprint);
    tell_dispute(r, m);
}

/* Rank @from, from which this member takes, means another operation than this member, or did
 * before. */
static enum run_state differs_from(struct run *r, unsigned from)
{
    unsigned me = r->group->rank;
    struct board_mismatch m = {.rank_a = from, .rank_b = me, .a.coll = COLL_COUNT, .b = r->desc};

    m.a.seq = r->desc.seq;
    if (call_read(r, from, r->desc.seq, &m.a) && !memcmp(&m.a, &m.b, sizeof m.a))
        calls_mismatch(r, from, me, &m);
    dispute(r, &m);
    return RUN_FAILED;
}

/* ---- who posts ------------------------------------------------------------------------------- */

static void announce_post(struct run *r, unsigned kind)
{
    if (r->plan.pieces)
        atomic_store_explicit(&post_of(r, r->group->local)->pieces.n, r->got + posts_here(r),
                              memory_order_relaxed);
    call_note(r, kind);
    r->untold = true;
}

/* Is whoever disputes out of the operation in which it did? Else it would not take a refusal. */
static bool dispute_is_over(const struct run *r)
{
    return atomic_load_explicit(&board_of(r)->hdr->disputed, memory_order_relaxed) < r->desc.seq;
}

/* The operation fails on all who take it, because ranks differ as @m says. */
static enum run_state root_refuses(struct run *r, const struct board_mismatch *m)
{
    memcpy(board_posted(board_of(r), r->group->local, r->desc.seq, sizeof *m), m, sizeof *m);
    announce_post(r, BOARD_REFUSES);
    run_mismatch(r, m);
    posts_settle(r);
    return RUN_FAILED;
}

/* Does a member wait for all to meet, where this one has not been? */
static bool one_meets(const struct run *r)
{
    const struct board *b = board_of(r);

    for (unsigned m = 0; m < b->nlocal; m++)
        if (board_arrived(b, m, r->base))
            return true;
    return false;
}

/* This member meets the others, to fail with them. */
static enum run_state posts_meet(struct run *r)
{
    if (!r->put && !run_all_consumed(r, r->base - BOARD_SLOTS + 1))
        return RUN_WAIT;
    if (!r->put) {
        run_announce(r, BOARD_PAYLOAD);
        r->seen = 0;
    }
    if (!run_step_arrived(r, r->base))
        return RUN_WAIT;
    if (run_compare(r))
        run_error(r, COMMD_E_INTERNAL, -1, 0, "", ": ranks meet in an operation without steps");
    return RUN_FAILED;
}

/* There is no room for this member's post. Who meets may have come there by the room that there is
 * now. */
static enum run_state wait_for_room(struct run *r)
{
    return one_meets(r) && !post_has_room(r) ? posts_meet(r) : RUN_WAIT;
}

/* This member cannot take part, and says so. */
static enum run_state post_decline(struct run *r)
{
    struct board_mismatch m = {
        .rank_a = r->group->rank, .rank_b = r->group->rank, .a = r->desc, .b = r->desc};

    if (posts_here(r) && !post_has_room(r))
        return wait_for_room(r);
    if (posts_here(r) && !r->plan.to_root)
        return root_refuses(r, &m);
    if (posts_here(r))
        announce_post(r, BOARD_WAITS); /* with a description that says so */
    dispute(r, &m);
    return RUN_FAILED;
}

/* Members that always post and never take anything differ, too. Looked at as seldom as at how far
 * the others are. */
static bool another_posted(const struct run *r, struct board_mismatch *m)
{
    r->group->looked = false;
    if (r->desc.seq <= BOARD_SLOTS)
        return false;
    for (unsigned k = 0; k < board_of(r)->nlocal; k++)
        if (calls_differ(r, k, r->group->rank, r->desc.seq - BOARD_SLOTS, m))
            return true;
    return false;
}

/* Others differ, as @m says; all that this member can tell. */
static enum run_state post_refuses(struct run *r, const struct board_mismatch *m)
{
    if (!r->plan.to_root && !one_meets(r))
        return root_refuses(r, m);
    tell_dispute(r, m);
    return posts_meet(r);
}

/* Has member @m taken piece @c of this post, or will it take none? In another operation of this
 * number it tells of other pieces: then whoever has got least far there still goes on. */
static bool has_taken(const struct run *r, unsigned m, uint32_t c)
{
    return is_past(r, m, r->desc.seq) ||
           (has_posted(r, m) &&
            atomic_load_explicit(&post_of(r, m)->pieces.n, memory_order_acquire) > c);
}

static bool all_have_taken(const struct run *r, uint32_t c)
{
    if (r->plan.to_root)
        return has_taken(r, r->plan.root, c);
    for (unsigned m = 0; m < board_of(r)->nlocal; m++)
        if (m != r->group->local && !has_taken(r, m, c))
            return false;
    return true;
}

/* May the next piece be put into the window? Steps that came long before are behind all members. */
static bool piece_has_room(struct run *r)
{
    struct membership *g = r->group;
    uint32_t depth = g->board.depth;
    uint64_t op = g->piece_op[g->piece % depth];

    if (r->base - g->windowed < BOARD_SLOTS && !run_all_consumed(r, g->windowed))
        return false;
    return op == r->desc.seq ? all_have_taken(r, r->got - depth) : all_are_past(r, op);
}

static void post_piece(struct run *r)
{
    const struct coll_steps *coll = &coll_steps[r->desc.coll];
    struct membership *g = r->group;
    struct board_pieces *mine = &post_of(r, g->local)->pieces;

    if (!r->got)
        mine->first = g->piece;
    coll->put(r, r->got);
    if (!r->got)
        announce_post(r, BOARD_PAYLOAD);
    else
        atomic_store_explicit(&mine->n, r->got + 1, memory_order_release);
    coll->own(r, r->got);
    g->piece_op[g->piece++ % g->board.depth] = g->posted = r->desc.seq;
    r->got++;
}

static enum run_state post_pieces(struct run *r)
{
    enum run_state st = RUN_WAIT;

    while (run_filled(r, r->got) && piece_has_room(r)) {
        post_piece(r);
        r->untold = true;
        if (r->got == r->plan.steps) {
            r->group->chain = chained(r->group->chain, r->fingerprint);
            return RUN_DONE;
        }
        run_tell(r);
        st = RUN_MOVED;
    }
    return st;
}

static enum run_state post_own(struct run *r)
{
    const struct coll_steps *coll = &coll_steps[r->desc.coll];
    struct board_mismatch m;

    if (unlikely(!post_has_room(r)))
        return wait_for_room(r);
    if (unlikely(calls_disputed(r)) && dispute_is_over(r)) {
        m = board_of(r)->hdr->mismatch;
        return post_refuses(r, &m);
    }
    if (unlikely(r->group->looked) && another_posted(r, &m))
        return post_refuses(r, &m);
    if (r->plan.pieces)
        return post_pieces(r);
    __builtin_prefetch(board_post(board_of(r), r->group->local, r->desc.seq + 4), 1);
    coll->put(r, 0);
    announce_post(r, BOARD_PAYLOAD);
    coll->own(r, 0);
    r->group->chain = chained(r->group->chain, r->fingerprint);
    r->got = 1;
    return RUN_DONE;
}

/* ---- who takes ------------------------------------------------------------------------------- */

/* Does rank @from, which has posted nothing, show that it will not? Of those that take from one
 * root nobody gets past this operation before it has posted. */
static bool meets_instead(const struct run *r, unsigned from)
{
    return (r->plan.to_root ? board_arrived(board_of(r), from, r->base) : one_meets(r)) &&
           !has_posted(r, from);
}

/* Nothing has come from @from. Can anything come? */
static enum run_state wait_for_post(struct run *r, unsigned from)
{
    const struct board *b = board_of(r);

    if (!r->before_sleep && r->seen < TROUBLE_LOOKS) {
        r->seen++;
        return RUN_WAIT;
    }
    if (!has_posted(r, r->group->local) && post_has_room(r)) {
        announce_post(r, BOARD_WAITS);
        return RUN_MOVED;
    }
    if (seq_reached(atomic_load_explicit(&b->members[from].ops, memory_order_acquire),
                    (uint32_t)r->desc.seq) &&
        !has_posted(r, from))
        return differs_from(r, from);
    return meets_instead(r, from) ? posts_meet(r) : RUN_WAIT;
}

/* RUN_DONE: what @from has posted can be taken. */
static enum run_state look_at_post(struct run *r, unsigned from)
{
    const struct board_slot *s = post_of(r, from);

    if (!has_posted(r, from))
        return wait_for_post(r, from);
    if (unlikely(s->kind == BOARD_REFUSES)) {
        struct board_mismatch m; /* copied: a member may write there */

        memcpy(&m, board_posted(board_of(r), from, r->desc.seq, sizeof m), sizeof m);
        run_mismatch(r, &m);
        posts_settle(r);
        return RUN_FAILED;
    }
    if (unlikely(s->fingerprint != r->fingerprint || s->kind != BOARD_PAYLOAD))
        return differs_from(r, from);
    __builtin_prefetch(board_post(board_of(r), from, r->desc.seq + 2));
    return RUN_DONE;
}

/* From the root, or by the root from all others, of which r->red have been looked at. One call of
 * look_at_post(), which then is part of this: a call less in each broadcast. */
static enum run_state take_posts(struct run *r)
{
    bool more = r->plan.to_root;

    do {
        unsigned from = r->plan.to_root ? r->red : r->plan.root;
        enum run_state st = RUN_DONE;

        if (from != r->group->local)
            st = look_at_post(r, from);
        if (st != RUN_DONE)
            return st;
        if (more)
            more = ++r->red < board_of(r)->nlocal;
    } while (more);
    if (r->plan.to_root)
        coll_steps[r->desc.coll].own(r, 0);
    coll_steps[r->desc.coll].get(r, 0);
    if (likely(post_has_room(r)))
        call_note(r, BOARD_WAITS);
    r->group->chain = chained(r->group->chain, r->fingerprint);
    r->agreed = AGREED_ALL;
    r->got = 1;
    r->untold = true;
    return RUN_DONE;
}

/* Is the next piece of @from there? */
static bool has_piece(const struct run *r, unsigned from)
{
    return has_posted(r, from) &&
           atomic_load_explicit(&post_of(r, from)->pieces.n, memory_order_acquire) > r->got;
}

/* RUN_DONE: the next piece of all from which this member takes is there. Of those r->red have been
 * looked at. */
static enum run_state look_at_pieces(struct run *r)
{
    bool more = r->plan.to_root;

    do {
        unsigned from = r->plan.to_root ? r->red : r->plan.root;
        enum run_state st = RUN_DONE;

        if (from != r->group->local && !r->got)
            st = look_at_post(r, from);
        if (st == RUN_DONE && from != r->group->local && !has_piece(r, from))
            st = RUN_WAIT;
        if (st != RUN_DONE)
            return st;
        if (more)
            more = ++r->red < board_of(r)->nlocal;
    } while (more);
    r->red = 0;
    return RUN_DONE;
}

static void took_piece(struct run *r)
{
    r->got++;
    if (r->plan.steps <= board_of(r)->depth || r->got == r->plan.steps)
        return; /* nobody waits for that in this operation */
    atomic_store_explicit(&post_of(r, r->group->local)->pieces.n, r->got, memory_order_release);
    run_tell(r);
}

static enum run_state take_pieces(struct run *r)
{
    const struct coll_steps *coll = &coll_steps[r->desc.coll];
    enum run_state moved = RUN_WAIT;

    while (r->got < r->plan.steps) {
        enum run_state st = run_filled(r, r->got) ? look_at_pieces(r) : RUN_WAIT;

        if (st != RUN_DONE)
            return MAX(st, moved);
        if (!r->got && !has_posted(r, r->group->local) && likely(post_has_room(r)))
            announce_post(r, BOARD_WAITS);
        if (r->plan.to_root)
            coll->own(r, r->got);
        coll->get(r, r->got);
        took_piece(r);
        moved = RUN_MOVED;
    }
    r->group->chain = chained(r->group->chain, r->fingerprint);
    r->agreed = AGREED_ALL;
    r->untold = true;
    return RUN_DONE;
}

enum run_state posts_advance(struct run *r)
{
    invariant(r->plan.path == PATH_POST && one_node(r) && (!r->got || r->plan.pieces));
    if (unlikely(r->put))
        return posts_meet(r);
    if (unlikely(r->desc.declined))
        return post_decline(r);
    if (posts_here(r))
        return r->got ? post_pieces(r) : post_own(r);
    return r->plan.pieces ? take_pieces(r) : take_posts(r);
}

bool posts_come(struct run *r)
{
    unsigned from = r->plan.to_root ? r->red : r->plan.root;

    if (r->put)
        return run_step_arrived(r, r->base);
    return r->plan.pieces ? has_piece(r, from) : has_posted(r, from);
}

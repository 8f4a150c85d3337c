/* schedule_rd.c - recursive doubling: log2(N) rounds for small payloads; and vector halving by the
 * same rounds for large ones.
 *
 * Model. Let P be the largest power of two not above N, and R = N - P. In the fold, each of the
 * nodes 0, 2, .., 2R-2 hands what it has to its right neighbour, its stand-in, and then waits; the
 * P remaining nodes are the participants, numbered 0..P-1 in node order:
 *
 *     node          0 1   2 3   4   5   6          N = 7, P = 4, R = 3
 *     participant    0     1     2*  ..            (* node 5 for the pair 4, 5; node 6 is 3)
 *
 * In round k participant v exchanges with v ^ 2^k. At last the folded nodes get the result
 * back from their neighbour. Because a folded pair is adjacent and participants keep node
 * order, what a node holds before round k is always one contiguous run of nodes (rd_held),
 * and the partner's run is directly to the left or right of it. Two things follow:
 *   - a run of segments describes every all-gather message;
 *   - all-reduce can put the lower run on the left, so the association is the same binary
 *     tree on every node, and results have identical bits everywhere.
 *
 * A reduction to a root follows the same rounds, but only the messages of the binomial tree towards
 * the root's participant carry data: in round k a participant hands over what it holds if its
 * number differs from the root's in bit k and agrees with it in the lower bits.
 *
 * A halving all-reduce (Rabenseifner 2004) divides the data among the participants: in round k the
 * two hold the same run of segments, and each hands over the half that the other one keeps.
 * Afterwards each holds its share of the result, and the rounds are gone through backwards to pass
 * the shares on. So a node sends 2(P-1)/P of the data, as in a ring, but in 2 log2(P) messages, and
 * the largest of them to its neighbours. A folded pair hands over everything, twice.
 *
 * A halving reduce-scatter is the all-gather backwards: the rounds come in falling order, in each
 * the two hand over what the other one would hold before that round, and a stand-in gives back its
 * neighbour's segment. In all of these the association stays the same.
 *
 * Every message is sent even when it carries nothing (as in a broadcast those of nodes that have
 * nothing yet): so after the last round each node has heard from all others, and doubling can be
 * the consistency check at the start of an operation. */
#include "transport/schedule/schedule_priv.h"

struct rd {
    unsigned nodes, me, root;
    unsigned participants; /* P */
    unsigned folded;       /* R */
    unsigned rounds;       /* log2(P) */
};

struct rd_run {
    unsigned lo, n;
};

static struct rd rd_of(unsigned nodes, unsigned me, unsigned root)
{
    struct rd rd = {.nodes = nodes, .me = me, .root = root, .participants = 1};

    while (rd.participants * 2 <= nodes) {
        rd.participants *= 2;
        rd.rounds++;
    }
    rd.folded = nodes - rd.participants;
    assert(rd.folded < rd.participants);
    return rd;
}

/* Does @node only hand in what it has, and get the result back? */
static bool rd_waits(const struct rd *rd, unsigned node)
{
    return node < 2 * rd->folded && node % 2 == 0;
}

/* Does @node stand in for its left neighbour? */
static bool rd_stands_in(const struct rd *rd, unsigned node)
{
    return node < 2 * rd->folded && node % 2 == 1;
}

static unsigned rd_participant(const struct rd *rd, unsigned node)
{
    assert(node < rd->nodes);
    return node < 2 * rd->folded ? node / 2 : node - rd->folded;
}

static unsigned rd_node(const struct rd *rd, unsigned participant)
{
    assert(participant < rd->participants);
    return participant < rd->folded ? 2 * participant + 1 : participant + rd->folded;
}

/* First node of the run that starts with participant @v; for v == P it is N. */
static unsigned rd_first_node(const struct rd *rd, unsigned v)
{
    assert(v <= rd->participants);
    return v < rd->folded ? 2 * v : v + rd->folded;
}

/* The nodes whose contributions participant @v holds before round @k. */
static struct rd_run rd_held(const struct rd *rd, unsigned v, unsigned k)
{
    unsigned first = v >> k << k;
    unsigned lo = rd_first_node(rd, first);

    assert(k <= rd->rounds);
    return (struct rd_run){lo, rd_first_node(rd, first + (1u << k)) - lo};
}

/* The segments that participant @v keeps after @k rounds of halving. */
static struct rd_run rd_share(const struct rd *rd, unsigned v, unsigned k)
{
    unsigned first = 0, parts = rd->participants >> k, lo;

    assert(v < rd->participants);
    assert(k <= rd->rounds);
    for (unsigned i = 0; i < k; i++)
        first += (v >> i & 1) * (rd->participants >> (i + 1));
    lo = first * rd->nodes / rd->participants;
    return (struct rd_run){lo, (first + parts) * rd->nodes / rd->participants - lo};
}

static bool rd_reduces(enum sched_kind kind)
{
    return kind == SCHED_RD_ALL_REDUCE || kind == SCHED_RD_REDUCE ||
           kind == SCHED_HALVING_ALL_REDUCE || kind == SCHED_HALVING_REDUCE_SCATTER;
}

/* Which segments stand for the contributions of @held in a message of @kind. */
static struct rd_run rd_segments(enum sched_kind kind, const struct rd *rd, struct rd_run held)
{
    if (kind == SCHED_RD_ALL_GATHER)
        return held;
    if (kind == SCHED_HALVING_ALL_REDUCE || kind == SCHED_HALVING_REDUCE_SCATTER)
        return (struct rd_run){0, rd->nodes};
    if (rd_reduces(kind))
        return (struct rd_run){0, 1};
    return (struct rd_run){0, rd->root >= held.lo && rd->root < held.lo + held.n};
}

static void set_send(struct sched_move *mv, unsigned to, struct rd_run segs)
{
    sched_sends(mv, to, segs.lo, segs.n);
}

static void set_recv(struct sched_move *mv, unsigned from, struct rd_run segs, unsigned tag)
{
    sched_receives(mv, from, segs.lo, segs.n, tag);
}

/* What a folded node gets back: all it lacks. An all-gather sends everything, as the run
 * would otherwise have a hole where the node's own segment is. */
static struct rd_run rd_returned(enum sched_kind kind, const struct rd *rd, unsigned waiter)
{
    if (kind == SCHED_RD_ALL_GATHER || kind == SCHED_HALVING_ALL_REDUCE)
        return (struct rd_run){0, rd->nodes};
    if (kind == SCHED_HALVING_REDUCE_SCATTER)
        return (struct rd_run){waiter, 1};
    if (kind == SCHED_RD_ALL_REDUCE)
        return (struct rd_run){0, 1};
    if (kind == SCHED_RD_REDUCE)
        return (struct rd_run){0, rd->root == waiter};
    return (struct rd_run){0, rd->root != waiter};
}

/* Of the participants: a halving all-reduce goes through the rounds once more. */
static unsigned rd_passes(enum sched_kind kind, const struct rd *rd)
{
    return kind == SCHED_HALVING_ALL_REDUCE ? 2 * rd->rounds : rd->rounds;
}

/* A folded node has two moves: hand in, get back. */
static struct sched_move rd_waiter_move(enum sched_kind kind, const struct rd *rd, unsigned i)
{
    struct sched_move mv = sched_no_move();

    assert(rd_waits(rd, rd->me));
    assert(i < 2);
    if (i == 0)
        set_send(&mv, rd->me + 1, rd_segments(kind, rd, (struct rd_run){rd->me, 1}));
    else /* its stand-in: one fold move, the rounds, then this */
        set_recv(&mv, rd->me + 1, rd_returned(kind, rd, rd->me), 1 + rd_passes(kind, rd));
    return mv;
}

/* In the binomial tree to the root's participant, does @v hand over what it holds in round @k? */
static bool rd_hands_over(const struct rd *rd, unsigned v, unsigned k)
{
    unsigned root = rd_participant(rd, rd->root);

    return ((v ^ root) & ((2u << k) - 1)) == 1u << k;
}

/* The bit in which the two partners of pass @i differ. */
static unsigned rd_bit(enum sched_kind kind, const struct rd *rd, unsigned i)
{
    assert(i < rd_passes(kind, rd));
    if (kind == SCHED_HALVING_REDUCE_SCATTER)
        return rd->rounds - 1 - i;
    return i < rd->rounds ? i : 2 * rd->rounds - 1 - i;
}

/* What participant @v hands to @partner in pass @i. */
static struct rd_run rd_handed(enum sched_kind kind, const struct rd *rd, unsigned v,
                               unsigned partner, unsigned i)
{
    unsigned k = rd_bit(kind, rd, i);

    if (kind == SCHED_HALVING_ALL_REDUCE) /* forwards what the other one keeps, backwards its own */
        return rd_share(rd, i < rd->rounds ? partner : v, k + 1);
    if (kind == SCHED_HALVING_REDUCE_SCATTER)
        return rd_held(rd, partner, k);
    if (kind == SCHED_RD_REDUCE)
        return (struct rd_run){0, rd_hands_over(rd, v, k)};
    return rd_segments(kind, rd, rd_held(rd, v, k));
}

static struct sched_move rd_pass(enum sched_kind kind, const struct rd *rd, unsigned i)
{
    struct sched_move mv = sched_no_move();
    unsigned v = rd_participant(rd, rd->me);
    unsigned partner = v ^ (1u << rd_bit(kind, rd, i));
    unsigned node = rd_node(rd, partner);

    assert(!rd_waits(rd, rd->me));
    assert(!rd_waits(rd, node));
    set_send(&mv, node, rd_handed(kind, rd, v, partner, i));
    set_recv(&mv, node, rd_handed(kind, rd, partner, v, i), i + (rd_stands_in(rd, node) ? 1 : 0));
    if (mv.recv_n && rd_reduces(kind) && i < rd->rounds) {
        mv.act = SCHED_REDUCE;
        mv.recv_first = partner < v;
        mv.last_reduce = i + 1 == rd->rounds;
    }
    return mv;
}

unsigned sched_rd_len(enum sched_kind kind, unsigned nodes, unsigned me)
{
    struct rd rd = rd_of(nodes, me, 0);

    if (rd_waits(&rd, me))
        return 2;
    return rd_passes(kind, &rd) + (rd_stands_in(&rd, me) ? 2 : 0);
}

struct sched_move sched_rd_move(enum sched_kind kind, unsigned nodes, unsigned me, unsigned root,
                                unsigned i)
{
    struct rd rd = rd_of(nodes, me, root);
    struct sched_move mv = sched_no_move();

    if (rd_waits(&rd, me))
        return rd_waiter_move(kind, &rd, i);
    if (!rd_stands_in(&rd, me))
        return rd_pass(kind, &rd, i);
    if (i == 0) {
        set_recv(&mv, me - 1, rd_segments(kind, &rd, (struct rd_run){me - 1, 1}), 0);
        mv.act = rd_reduces(kind) ? SCHED_REDUCE : SCHED_STORE;
        mv.recv_first = mv.act == SCHED_REDUCE;
        return mv;
    }
    if (i <= rd_passes(kind, &rd))
        return rd_pass(kind, &rd, i - 1);
    set_send(&mv, me - 1, rd_returned(kind, &rd, me - 1));
    return mv;
}

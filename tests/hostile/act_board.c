/* act_board.c - the boards of groups of ours: anything anywhere, at any time; most of it near
 * what the engine and commd look at. The layout is shm/board/board.h's and shm/board/mail.h's,
 * through their own functions. */
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>

#include "shm/model/coll.h"
#include "shm/model/dtype.h"
#include "tests/hostile/hostile.h"

static void ring(struct rank *rank)
{
    bell_put(rank->doorbell, 1);
}

static void words(struct hostile *h)
{
    struct team *g;
    struct rank *rank = rank_any(h, &g);

    for (int i = 0; rank && i < 64; i++) {
        /* most lie in the first pages: header, ranks, members, slots */
        size_t within =
            dice_one_in(&h->dice, 3) ? rank->board.size : MIN(rank->board.size, (size_t)16384);
        uint64_t *word = (uint64_t *)rank->board.hdr + dice_roll(&h->dice) % (within / 8);

        *(volatile uint64_t *)word = dice_odd(&h->dice);
    }
    if (rank)
        ring(rank);
}

static void header(struct hostile *h)
{
    struct team *g;
    struct rank *rank = rank_any(h, &g);
    uint8_t *hdr = rank ? (uint8_t *)rank->board.hdr : NULL;

    for (int i = 0; hdr && i < 4; i++) {
        uint64_t value = dice_odd(&h->dice);
        size_t at = dice_below(&h->dice, sizeof(struct board_hdr) - 8);

        memcpy(hdr + at, &value, dice_one_in(&h->dice, 2) ? 8 : 1);
    }
}

/* As soon as there is one, before others map it. */
static void header_early(struct hostile *h)
{
    struct team *g = team_make(h, 2, true);

    for (unsigned r = 0; g && r < g->size; r++)
        if (g->ranks[r].board.hdr) {
            struct board_hdr *hdr = g->ranks[r].board.hdr;

            hdr->world = (uint32_t)dice_odd(&h->dice);
            hdr->nlocal = (uint32_t)dice_odd(&h->dice);
            hdr->group = id_any(h);
            hdr->off.mail = dice_odd(&h->dice);
        }
}

static uint32_t near(struct hostile *h, uint32_t step)
{
    return dice_one_in(&h->dice, 3) ? (uint32_t)dice_odd(&h->dice)
                                    : step + dice_below(&h->dice, 40) - 20;
}

static void counters(struct hostile *h)
{
    struct team *g;
    struct rank *rank = rank_any(h, &g);
    struct board_member *m;

    if (!rank)
        return;
    m = &rank->board.members[dice_below(&h->dice, rank->board.nlocal)];
    atomic_store(&m->reduced, near(h, g->step));
    atomic_store(&m->consumed, near(h, g->step));
    atomic_store(&m->ops, (uint32_t)dice_odd(&h->dice));
    atomic_store(&m->started, (uint32_t)dice_odd(&h->dice));
    atomic_store(&m->entered, dice_odd(&h->dice));
    atomic_store(&m->finished, dice_odd(&h->dice));
    atomic_store(&m->stopped, dice_odd(&h->dice));
    ring(rank);
}

static void marks(struct hostile *h)
{
    struct team *g;
    struct rank *rank = rank_any(h, &g);
    struct board_hdr *hdr = rank ? rank->board.hdr : NULL;
    uint32_t value = (uint32_t)dice_odd(&h->dice);

    if (!rank)
        return;
    switch (dice_below(&h->dice, 8)) {
    case 0:
        atomic_store(&hdr->broken, value);
        break;
    case 1: /* its neighbours: whatever who breaks it next takes for a sign */
        atomic_store(&hdr->broken + 1 + dice_below(&h->dice, 3), value);
        break;
    case 2:
        atomic_store(&hdr->ngone, value);
        atomic_store(&rank->board.ranks[dice_below(&h->dice, rank->board.world)].gone, value);
        break;
    case 3:
        atomic_store(&hdr->published, near(h, g->step));
        break;
    case 4:
        atomic_store(&hdr->sent, near(h, g->step));
        break;
    case 5:
        atomic_store(&hdr->engine_asleep, value);
        break;
    case 6:
        atomic_store(&hdr->sleepers, value);
        break;
    default:
        memset(&hdr->cause, 'Z', sizeof(hdr->cause));
        memset(&hdr->mismatch, 'Z', sizeof(hdr->mismatch));
    }
    ring(rank);
}

/* As if somebody were about to break it: commd must not wait for whoever should finish that when a
 * rank aborts, or goes. */
static void breaking(struct hostile *h)
{
    struct team *g = team_any(h);
    struct msg msg = {.type = MSG_CLIENT_ABORT};
    struct conn *conn;

    if (!g)
        return;
    for (unsigned r = 0; r < g->size; r++)
        if (g->ranks[r].board.hdr)
            atomic_store(&g->ranks[r].board.hdr->broken + 1, 1);
    conn = &h->conns[g->ranks[0].conn];
    msg.client_abort.group = g->id;
    if (conn->fd >= 0 && dice_one_in(&h->dice, 2))
        wire_msg(conn->fd, &msg, NULL, 0);
    else
        conn_close(conn);
}

/* ---- operations ----------------------------------------------------------------------- */

static void describe(struct hostile *h, const struct team *g, struct op_desc *ret)
{
    struct dice *d = &h->dice;

    *ret =
        (struct op_desc){.seq = g->seq,
                         .count = dice_one_in(d, 3) ? dice_odd(d) : dice_below(d, 1 << 16),
                         .root = dice_one_in(d, 5) ? (uint32_t)dice_odd(d) : dice_below(d, g->size),
                         .coll = (uint8_t)dice_below(d, COLL_COUNT + dice_one_in(d, 10)),
                         .dtype = (uint8_t)dice_below(d, 13 + dice_one_in(d, 10)),
                         .redop = (uint8_t)dice_below(d, 9 + dice_one_in(d, 10))};
    if (dice_one_in(d, 8))
        ret->seq = dice_odd(d);
    if (dice_one_in(d, 4))
        ret->digest = dice_roll(d);
}

static void announce_on(struct hostile *h, const struct team *g, struct rank *rank,
                        const struct op_desc *desc)
{
    struct board *b = &rank->board;

    for (unsigned m = 0; m < b->nlocal; m++) {
        struct board_slot *slot = board_slot(b, m, g->step);
        bool lies = dice_one_in(&h->dice, 6);

        slot->kind = lies ? (uint32_t)dice_odd(&h->dice) : BOARD_PAYLOAD;
        slot->desc = *desc;
        if (dice_one_in(&h->dice, 6))
            slot->desc.count++;
        slot->fingerprint = lies ? dice_roll(&h->dice) : op_fingerprint(&slot->desc);
        slot->most = dice_one_in(&h->dice, 2) ? desc->count : dice_odd(&h->dice);
        slot->balance = (struct op_balance){0};
        if (dice_one_in(&h->dice, 6))
            dice_bytes(&h->dice, &slot->balance, sizeof(slot->balance));
        if (b->nnodes > 1 && dice_one_in(&h->dice, 2))
            for (unsigned i = 0; i < 2 * b->world; i++)
                board_counts(b, m, g->step, 0)[i] = dice_odd(&h->dice);
        atomic_store(&b->members[m].started, (uint32_t)g->seq);
        atomic_store(&slot->seq, board_mark(g->step));
        if (!dice_one_in(&h->dice, 5))
            atomic_store(&b->members[m].reduced, g->step + 1);
        if (!dice_one_in(&h->dice, 5))
            atomic_store(&b->members[m].consumed, g->step + 1);
    }
    ring(rank);
}

/* The next operation of the group, on the boards of both nodes or of one, so that engines begin
 * it. */
static void announce(struct hostile *h)
{
    struct team *g = team_any(h);
    unsigned steps = 1 + dice_below(&h->dice, 12);
    struct op_desc desc;

    if (!g)
        return;
    describe(h, g, &desc);
    for (; steps; steps--) {
        for (unsigned r = 0; r < g->size; r++)
            if (g->ranks[r].board.hdr && !dice_one_in(&h->dice, 8))
                announce_on(h, g, &g->ranks[r], &desc);
        g->step++;
    }
    g->seq++;
}

/* Small and right ones, as fast as it goes: an engine that does nothing but our work. */
static void announce_stream(struct hostile *h)
{
    struct team *g = team_any(h);
    struct op_desc desc = {.count = 16, .coll = COLL_ALL_REDUCE, .dtype = 10};

    for (unsigned i = 0; g && i < 64; i++) {
        desc.seq = g->seq++;
        for (unsigned r = 0; r < g->size; r++) {
            struct board *b = &g->ranks[r].board;

            if (!b->hdr)
                continue;
            for (unsigned m = 0; m < b->nlocal; m++) {
                struct board_slot *slot = board_slot(b, m, g->step);

                slot->desc = desc;
                slot->fingerprint = op_fingerprint(&desc);
                atomic_store(&b->members[m].reduced, g->step + 1);
                atomic_store(&b->members[m].consumed, g->step + 1);
                atomic_store(&slot->seq, board_mark(g->step));
            }
            ring(&g->ranks[r]);
        }
        g->step++;
    }
}

/* ---- mail ----------------------------------------------------------------------------- */

static void record(struct hostile *h, const struct rank *rank, struct mail_rec *ret)
{
    struct dice *d = &h->dice;
    struct mail_rec rec = {.kind = (uint8_t)dice_below(d, MAIL_KINDS + 1),
                           .slot = (uint8_t)dice_below(d, MAIL_OUT_SLOTS + 1),
                           .rx = (uint8_t)dice_below(d, MAIL_RX_SLOTS + 1),
                           .src = (uint16_t)dice_below(d, rank->board.world),
                           .dst = (uint16_t)dice_below(d, rank->board.world),
                           .id = dice_below(d, 100),
                           .peer_id = dice_below(d, 100),
                           .tag = (int32_t)dice_roll(d),
                           .ack = dice_below(d, 40),
                           .declined = (uint8_t)dice_below(d, 20)};

    if (dice_one_in(d, 6))
        rec.src = (uint16_t)dice_odd(d), rec.dst = (uint16_t)dice_odd(d),
        rec.ack = (uint32_t)dice_odd(d);
    rec.len = dice_one_in(d, 2) ? dice_below(d, MAIL_CHUNK_NET + 1) : dice_odd(d);
    rec.off = dice_one_in(d, 2) ? 0 : dice_odd(d);
    *ret = rec;
}

static void mail_send(struct rank *rank, const struct mail_rec *rec)
{
    mail_put(&rank->mail, rec);
    mail_flag(rank->mail.word, rank->mail.bit);
}

static void mail_records(struct hostile *h)
{
    struct team *g;
    struct rank *rank = rank_any(h, &g);
    struct mail_rec rec;

    if (!rank || !rank->mail.cells)
        return;
    for (unsigned i = dice_below(&h->dice, 2 * MAIL_ENGINE_RING); i; i--) {
        record(h, rank, &rec);
        mail_send(rank, &rec);
    }
    ring(rank);
}

/* The longest that may be, to the other node, where the group has been left. */
static void mail_orphans(struct hostile *h)
{
    struct team *g = team_make(h, 2, true);
    struct conn *there;

    if (!g || !g->ranks[0].mail.cells || !g->ranks[1].mail.cells)
        return;
    there = &h->conns[g->ranks[1].conn];
    if (there->fd >= 0) {
        struct msg msg = {.type = MSG_CLIENT_LEAVE, .client_leave.group = g->id};

        wire_msg(there->fd, &msg, NULL, 0);
    }
    for (unsigned i = 0; i < MAIL_ENGINE_RING; i++) {
        struct mail_rec rec = {.kind = MAIL_DATA,
                               .slot = MAIL_EAGER_NET,
                               .src = 0,
                               .dst = 1,
                               .id = i,
                               .len = MAIL_CHUNK_NET};

        mail_send(&g->ranks[0], &rec);
    }
    ring(&g->ranks[0]);
}

/* The same through many groups that are gone on one side at once. */
static void mail_orphan_storm(struct hostile *h)
{
    for (int i = 0; i < 20; i++)
        mail_orphans(h);
}

/* Rings between members, heads and bitmaps, which the engine writes and reads too. */
static void mail_words(struct hostile *h)
{
    struct team *g;
    struct rank *rank = rank_any(h, &g);
    const struct mail *mail = rank ? &rank->board.mail : NULL;

    for (int i = 0; rank && i < 32; i++) {
        size_t at = dice_roll(&h->dice) % (mail->off_out / 4);

        *(volatile uint32_t *)(mail->base + 4 * at) = (uint32_t)dice_odd(&h->dice);
    }
    if (rank) {
        atomic_store(mail_engine_bits(mail), dice_roll(&h->dice));
        ring(rank);
    }
}

/* ---- pages ---------------------------------------------------------------------------- */

static void punch(struct hostile *h)
{
    struct team *g;
    struct rank *rank = rank_any(h, &g);

    if (rank)
        fallocate(rank->board_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                  4096 * (off_t)dice_below(&h->dice, 64),
                  4096 * (1 + (off_t)dice_below(&h->dice, 4096)));
}

static void paint(struct hostile *h)
{
    struct team *g;
    struct rank *rank = rank_any(h, &g);
    size_t at, len;

    if (!rank)
        return;
    at = dice_one_in(&h->dice, 2) ? 0 : dice_roll(&h->dice) % rank->board.size;
    len = MIN((size_t)dice_below(&h->dice, 1 << 20), rank->board.size - at);
    memset((uint8_t *)rank->board.hdr + at, dice_below(&h->dice, 2) ? 0xff : 0, len);
    ring(rank);
}

/* ---- coming and going ----------------------------------------------------------------- */

static void join(struct hostile *h)
{
    team_make(h, 1 + dice_below(&h->dice, RANKS), !dice_one_in(&h->dice, 3));
}

static void leave_on(struct hostile *h, struct team *g, unsigned r)
{
    struct conn *conn = &h->conns[g->ranks[r].conn];
    struct msg msg = {.type = MSG_CLIENT_LEAVE,
                      .client_leave = {g->id, (uint32_t)dice_odd(&h->dice)}};

    if (conn->fd >= 0)
        wire_msg(conn->fd, &msg, NULL, 0);
}

/* One rank; the board stays mapped and goes on being written. */
static void leave_one(struct hostile *h)
{
    struct team *g = team_any(h);

    if (g)
        leave_on(h, g, dice_below(&h->dice, g->size));
}

static void leave_all(struct hostile *h)
{
    struct team *g = team_any(h);

    for (unsigned r = 0; g && r < g->size; r++)
        leave_on(h, g, r);
    if (g && dice_one_in(&h->dice, 2))
        team_forget(g);
}

static void vanish(struct hostile *h)
{
    struct team *g = team_any(h);

    if (!g)
        return;
    conn_close(&h->conns[g->ranks[dice_below(&h->dice, g->size)].conn]);
    if (dice_one_in(&h->dice, 2))
        team_forget(g);
}

static void join_leave_storm(struct hostile *h)
{
    for (int i = 0; i < 20; i++) {
        struct team *g = team_make(h, 1 + (unsigned)i % 2, true);

        for (unsigned r = 0; g && r < g->size; r++)
            leave_on(h, g, r);
    }
}

const struct action board_actions[] = {
    {"words", 8, words},
    {"header", 4, header},
    {"header_early", 4, header_early},
    {"counters", 8, counters},
    {"marks", 8, marks},
    {"breaking", 2, breaking},
    {"announce", 16, announce},
    {"announce_stream", 8, announce_stream},
    {"mail_records", 12, mail_records},
    {"mail_words", 8, mail_words},
    {"mail_orphans", 4, mail_orphans},
    {"mail_orphan_storm", 1, mail_orphan_storm},
    {"punch", 3, punch},
    {"paint", 2, paint},
    {"join", 8, join},
    {"leave_one", 4, leave_one},
    {"leave_all", 3, leave_all},
    {"vanish", 3, vanish},
    {"join_leave_storm", 2, join_leave_storm},
    {NULL, 0, NULL},
};

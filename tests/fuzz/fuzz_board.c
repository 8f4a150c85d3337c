/* fuzz_board.c - a member that writes what it likes into its board: descriptions, counters,
 * marks, header. The engine of its node, and the other node, must stay whole; a member that
 * behaves (rank 1 on the same node) may fail, not crash.
 *
 * Input: records of 4 bytes {where, index, value, value}; after each the engines and the good
 * member have a turn. A `where` of NEW and above is of the second kind (16 of them): mail, counts
 * and large values; what is below has the meaning that it had before there was mail, modulo 8. */
#include "tests/lib/cluster.h"
#include "transport/engine/engine_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

enum { MAX_RECORDS = 200, NEW = 0xc0 };

static void poke_desc(struct board_slot *s, unsigned index, uint16_t value)
{
    switch (index % 6) {
    case 0:
        s->desc.coll = (uint8_t)value;
        return;
    case 1:
        s->desc.dtype = (uint8_t)value;
        return;
    case 2:
        s->desc.redop = (uint8_t)value;
        return;
    case 3:
        s->desc.root = value;
        return;
    case 4:
        s->desc.count = value;
        return;
    default:
        s->desc.count = (uint64_t)value << 48;
        return;
    }
}

static void poke(struct board *b, const uint8_t *r)
{
    uint16_t value = (uint16_t)(r[2] | r[3] << 8);
    uint32_t step = BOARD_FIRST_STEP + r[1];
    struct board_slot *s = board_slot(b, 0, step);

    switch (r[0] % 8) {
    case 0: /* announce */
        atomic_store(&s->seq, board_mark(step));
        return;
    case 1:
        atomic_store(&s->seq, value);
        return;
    case 2:
    case 3:
        poke_desc(s, r[1] >> 4, value);
        return;
    case 4:
        atomic_store(&b->members[0].reduced, step + 1);
        atomic_store(&b->members[0].consumed, step + 1);
        return;
    case 5:
        atomic_store(&b->members[r[1] % 2].reduced, value);
        return;
    case 6:
        memset((uint8_t *)b->hdr + 64 + (value % 900), r[1], 4);
        return;
    default:
        s->fingerprint = value;
        s->inl[r[1] % BOARD_INLINE] = r[2];
        return;
    }
}

/* Near what overflows, and what does not. */
static uint64_t large(unsigned index, uint16_t value)
{
    switch (index % 5) {
    case 0:
        return -(uint64_t)value;
    case 1:
        return (uint64_t)value << 47;
    case 2:
        return UINT64_MAX / (value + 1u);
    case 3:
        return (uint64_t)value << 16;
    default:
        return value;
    }
}

static void poke_balance(struct board_slot *s, unsigned index, uint64_t value)
{
    uint64_t *at[] = {&s->desc.seq,     &s->desc.digest,  &s->desc.count,       &s->most,
                      &s->balance.hash, &s->balance.diff, &s->balance.checksum, &s->fingerprint};

    *at[index % ARRAY_LEN(at)] = value;
}

/* The record that the villain writes next, its position in the ring to the engine, its bits. */
struct villain {
    struct mail_rec rec;
    struct mail_tx tx;
};

static void poke_record(struct villain *v, unsigned index, uint16_t value)
{
    switch (index % 10) {
    case 0:
        v->rec.kind = (uint8_t)(value % (MAIL_KINDS + 1));
        return;
    case 1:
        v->rec.slot = (uint8_t)value;
        return;
    case 2:
        v->rec.rx = (uint8_t)value;
        return;
    case 3:
        v->rec.src = value % 4;
        return;
    case 4:
        v->rec.dst = value % 4;
        return;
    case 5:
        v->rec.id = value;
        return;
    case 6:
        v->rec.ack = (uint32_t)large(value, value);
        return;
    case 7:
        v->rec.len = large(value >> 8, value);
        return;
    case 8:
        v->rec.off = large(value >> 8, value);
        return;
    default:
        v->rec.src = value == 0xffff ? value : v->rec.src;
        v->rec.dst = value == 0xfffe ? value : v->rec.dst;
        v->rec.peer_id = value;
        return;
    }
}

static void poke_new(struct board *b, struct villain *v, const uint8_t *r)
{
    uint16_t value = (uint16_t)(r[2] | r[3] << 8);
    uint32_t step = BOARD_FIRST_STEP + r[1] % 32;
    struct board_slot *s = board_slot(b, 0, step);
    _Atomic uint64_t *bits = mail_engine_bits(&b->mail);

    switch (r[0] % 16) {
    case 0:
    case 1: /* a count of another rank, by step */
        board_counts(b, 0, step, r[0] % 2)[value % b->world] = large(r[3], (uint16_t)(value >> 4));
        return;
    case 2: /* of this member alone, with what else it says */
        poke_balance(s, value >> 13, large(r[1] >> 5, value & 0x1fff));
        return;
    case 3:
        poke_balance(s, r[1] >> 5, value);
        return;
    case 4: /* counted, as far as one record can say it */
        s->desc.coll = (uint8_t)(COLL_ALL_GATHER_V + value % (COLL_COUNT - COLL_ALL_GATHER_V));
        s->desc.dtype = (uint8_t)((value >> 4) % DTYPE_COUNT);
        return;
    case 5:
        board_slot(b, r[1] % 2, step)->most = large(r[1] >> 5, value);
        return;
    case 6:
    case 7:
    case 8:
        poke_record(v, r[1], value);
        return;
    case 9:
    case 10: /* send it; more often than there is room for */
        for (unsigned i = 0; i <= value % 80; i++) {
            v->rec.id++;
            mail_put(&v->tx, &v->rec);
        }
        mail_flag(v->tx.word, v->tx.bit);
        return;
    case 11:
        atomic_store(bits, (uint64_t)value << r[1] % 64);
        return;
    case 12: /* the head of a ring that the engine writes */
        atomic_store((_Atomic uint32_t *)(b->mail.base + b->mail.off_heads) + r[1] % 16, value);
        return;
    case 13: /* any word of mail before the payload */
        memcpy(b->mail.base + (value * 8u) % b->mail.off_out, r, 4);
        return;
    case 14:
        atomic_store(&mail_box(&b->mail, r[1] % b->nlocal)->out[value % MAIL_OUT_SLOTS], r[2]);
        return;
    default:
        atomic_store(&b->members[0].consumed, (uint32_t)large(r[1], value));
        return;
    }
}

static void turn(struct cluster *c, struct run *good, enum run_state *st)
{
    for (unsigned n = 0; n < c->nnodes; n++) {
        c->node[n].fabric->ops->progress(c->node[n].fabric);
        engine_poll(c->node[n].engine);
    }
    if (*st < RUN_DONE)
        *st = run_poll(good);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    static const uint16_t placement[] = {0, 0, 1};
    static float buf[3][100000], out[3][100000];
    static const size_t counts[] = {30000, 30000, 30000};
    struct cluster *c = cluster_new(3, 2, placement, 1);
    struct commd_op op = {.size = sizeof op,
                          .coll = COMMD_ALL_REDUCE,
                          .dtype = COMMD_F32,
                          .send = buf[1],
                          .recv = buf[1],
                          .count = len % 2 ? 100 : 100000};
    enum run_state st[2] = {RUN_WAIT, RUN_WAIT};
    struct run good[2] = {0};
    struct villain v = {.rec = {.kind = MAIL_INLINE, .src = 0, .dst = 2, .len = 8}};

    if (len % 4 >= 2) { /* the length chooses what the good ones do */
        op.coll = len % 4 == 2 ? COMMD_ALL_TO_ALL_V : COMMD_ALL_GATHER_V;
        op.send_counts = op.recv_counts = counts;
        op.count = counts[0];
    }
    for (unsigned k = 0; k < 2; k++) { /* rank 1 beside the villain, rank 2 on the other node */
        op.send = buf[k + 1];
        op.recv = len % 4 >= 2 ? out[k + 1] : buf[k + 1];
        if (lists_make(c->group[k + 1]->now, &op, &good[k].lists) ||
            run_begin(&good[k], c->group[k + 1]->now, &op))
            abort();
    }
    mail_engine_tx_init(&c->group[0]->now->board.mail, 0, &v.tx);
    for (size_t i = 0; i + 4 <= len && i < MAX_RECORDS * 4; i += 4) {
        if (data[i] >= NEW)
            poke_new(&c->group[0]->now->board, &v, data + i);
        else
            poke(&c->group[0]->now->board, data + i);
        turn(c, &good[0], &st[0]);
        turn(c, &good[1], &st[1]);
    }
    for (unsigned k = 0; k < 2; k++)
        free(good[k].lists);
    cluster_free(c);
    return 0;
}

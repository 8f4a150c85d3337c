/* fuzz_board.c - a member that writes what it likes into its board: descriptions, counters,
 * marks, header. The engine of its node, and the other node, must stay whole; a member that
 * behaves (rank 1 on the same node) may fail, not crash.
 *
 * Input: records of 4 bytes {where, index, value, value}; after each the engines and the good
 * member have a turn. */
#include "tests/lib/cluster.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

enum { MAX_RECORDS = 200 };

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
        s->print = value;
        s->inl[r[1] % BOARD_INLINE] = r[2];
        return;
    }
}

static void turn(struct cluster *c, struct run *good, enum run_state *st)
{
    for (unsigned n = 0; n < c->nnodes; n++) {
        c->node[n].fabric->ops->progress(c->node[n].fabric);
        engine_poll(c->node[n].engine);
    }
    if (*st == RUN_WAIT)
        *st = run_poll(good);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    static const uint16_t placement[] = {0, 0, 1};
    static float buf[3][100000];
    struct cluster *c = cluster_new(3, 2, placement, 1);
    struct commd_op op = {.size = sizeof op, .coll = COMMD_ALL_REDUCE, .dtype = COMMD_F32,
                          .send = buf[1], .recv = buf[1], .count = len % 2 ? 100 : 100000};
    enum run_state st[2] = {RUN_WAIT, RUN_WAIT};
    struct run good[2] = {0};

    for (unsigned k = 0; k < 2; k++) { /* rank 1 beside the villain, rank 2 on the other node */
        op.send = op.recv = buf[k + 1];
        if (run_begin(&good[k], c->group[k + 1], &op))
            abort();
    }
    for (size_t i = 0; i + 4 <= len && i < MAX_RECORDS * 4; i += 4) {
        poke(&c->group[0]->board, data + i);
        turn(c, &good[0], &st[0]);
        turn(c, &good[1], &st[1]);
    }
    cluster_free(c);
    return 0;
}

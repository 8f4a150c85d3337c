/* mail.c - mail between ranks. The model:
 *
 * For every (rank of the group, member of this node) there is a ring of records with one writer
 * and one reader. The reader is the member. The writer is the sending member when it is on this
 * node, and the node's engine when it is not: the engine mirrors what the sender put into its own
 * ring to *its* engine. So a record travels
 *
 *     member -> member                                  on one node
 *     member -> engine ~~~network~~~ engine -> member   between nodes
 *
 * and it is the same record all the way. With one writer per ring a member that dies or is
 * stopped in the middle of writing harms nobody but its own readers, and needs no lock.
 *
 * Payload never has to be queued, because its place is known before it is sent:
 *
 *   up to 88 bytes    in the record
 *   up to 64 KiB      local: in an out slot of the sender, where it stays until it is matched;
 *                     remote: in an rx slot, of which every pair has a few of its own
 *   longer, or when   the message is only announced (RTS). The receiver asks for it when it is
 *   there is no slot  matched: locally it opens the stream (CTS), and parts come through out
 *                     slots of the sender; remotely it asks for every part (GET) and names the
 *                     in slot of its own that it shall be put into.
 *
 * Slots. The sender knows which of its slots are free, and looks at what readers have said
 * (box.out) only when it comes to one that it believes is in use. Not all can be taken by unmatched
 * messages, so those never stop a stream. On one node slots are used in turn, which are more
 * together than the cache of a core holds: writing to lines that are still in the reader's takes
 * twice as long (copy.c). Between nodes, where the engine reads and others copy anyway, there are
 * few, of two sizes.
 *
 * Room in rings. On one node the writer sees the reader's head. Between nodes every record says
 * how many the writer has taken of the other side (ack), and a rank has at most mail_credit()
 * records under way to another: so the ring at the far end always has room, and the engine never
 * has to keep one. Some records need no credit: ACK, which is sent when a quarter of the ring has
 * been taken without anything else going back (two can be under way) or two rx slots were freed
 * (two more), PROBE and PONG (one each). Half the ring is for them. Credit is only counted for
 * the others, on both sides.
 *
 * A payload of several pieces (MAIL_PIECE) on one node is announced with the first of them, and
 * read while the rest is written; box.fill says how far it is.
 *
 * Knowing where to look. Each member has a bitmap with a bit per rank, the engine one with a bit
 * per member. A writer sets the reader's bit after the record, if it is not set; a reader clears
 * bits before it looks. Fences on both sides make this safe ("Memory order" in board.c): either the
 * writer sees the bit cleared and sets it, or the reader sees the record. A reader that waits for
 * a certain rank looks at that ring only, leaves the bit alone, and so a small message costs
 * one cache line that changes hands.
 *
 * Nothing here is trusted: a member may write anything anywhere in the board at any time. Records
 * are copied before they are looked at, every number in them is compared with private bounds, and
 * addresses are computed from private numbers only. */
#include "shm/board/mail.h"

static size_t lines(size_t n)
{
    return ALIGN_UP(n, (size_t)CACHELINE);
}

static size_t pages(size_t n)
{
    return ALIGN_UP(n, (size_t)4096);
}

/* The same on all nodes of a group: senders must know how long an rx slot elsewhere is. */
static size_t rx_slot_bytes(uint32_t world, uint32_t nnodes)
{
    size_t share = MAIL_RX_BUDGET / MAIL_RX_SLOTS / MAX(world, 1u), size = MAIL_EAGER_MAX;

    if (nnodes < 2)
        return 0;
    while (size > share)
        size /= 2;
    return size < 1024 ? 0 : size;
}

static size_t out_size(const struct mail *m)
{
    return MAIL_EAGER_NET * (size_t)MAIL_EAGER_MAX + (m->slots - MAIL_EAGER_NET) * m->chunk;
}

void mail_layout(uint32_t world, uint32_t nnodes, uint32_t nlocal, struct mail *ret_mail)
{
    struct mail m = {.world = world, .nnodes = nnodes, .nlocal = nlocal};
    size_t engine = nnodes > 1 ? nlocal : 0;

    m.ring = world > 64 ? MAIL_RING_MANY : MAIL_RING;
    m.chunk = nnodes > 1 ? MAIL_CHUNK_NET : MAIL_CHUNK_ONE;
    m.rx_bytes = rx_slot_bytes(world, nnodes);
    m.slots = nnodes > 1 ? MAIL_EAGER_NET + MAIL_DATA_NET : MAIL_OUT_SLOTS;
    m.eager_end = nnodes > 1 ? MAIL_EAGER_NET : MAIL_OUT_SLOTS;
    m.data_begin = nnodes > 1 ? MAIL_EAGER_NET : 0;
    m.eager_most = nnodes > 1 ? MAIL_EAGER_NET : MAIL_EAGER_ONE;
    /* whole cache lines: each bitmap and each row of heads has one owner */
    m.words = (uint32_t)(lines((world + 63) / 64 * sizeof(uint64_t)) / sizeof(uint64_t));
    m.off_engine_bits = 0;
    m.off_boxes = lines((nlocal + 63) / 64 * sizeof(uint64_t));
    m.off_bits = m.off_boxes + nlocal * sizeof(struct mail_box);
    m.off_engine_heads = m.off_bits + (size_t)nlocal * m.words * sizeof(uint64_t);
    m.off_heads = m.off_engine_heads + engine * CACHELINE;
    m.off_engine_rings = pages(m.off_heads + nlocal * lines(world * sizeof(uint32_t)));
    m.off_rings = pages(m.off_engine_rings + engine * MAIL_ENGINE_RING * sizeof(struct mail_rec));
    m.off_out = pages(m.off_rings + (size_t)nlocal * world * m.ring * sizeof(struct mail_rec));
    m.off_in = m.off_out + nlocal * out_size(&m);
    m.off_rx = m.off_in + engine * MAIL_IN_SLOTS * m.chunk;
    m.size = pages(m.off_rx + engine * world * MAIL_RX_SLOTS * m.rx_bytes);
    *ret_mail = m;
}

uint8_t *mail_out(const struct mail *m, unsigned local, unsigned slot)
{
    uint8_t *mine = m->base + m->off_out + local * out_size(m);

    assert(local < m->nlocal && slot < m->slots);
    /* on one node all are of one size */
    if (slot < MAIL_EAGER_NET)
        return mine + (size_t)slot * MAIL_EAGER_MAX;
    return mine + MAIL_EAGER_NET * (size_t)MAIL_EAGER_MAX + (slot - MAIL_EAGER_NET) * m->chunk;
}

uint8_t *mail_in(const struct mail *m, unsigned local, unsigned slot)
{
    assert(local < m->nlocal && slot < MAIL_IN_SLOTS);
    return m->base + m->off_in + ((size_t)local * MAIL_IN_SLOTS + slot) * m->chunk;
}

uint8_t *mail_rx_slot(const struct mail *m, unsigned local, unsigned src, unsigned rx)
{
    assert(local < m->nlocal && src < m->world && rx < MAIL_RX_SLOTS);
    return m->base + m->off_rx +
           (((size_t)local * m->world + src) * MAIL_RX_SLOTS + rx) * m->rx_bytes;
}

static _Atomic uint32_t *head_of(const struct mail *m, unsigned local, unsigned src)
{
    assert(local < m->nlocal && src < m->world);
    return (_Atomic uint32_t *)(m->base + m->off_heads +
                                local * lines(m->world * sizeof(uint32_t))) +
           src;
}

static struct mail_rec *cells_of(const struct mail *m, unsigned local, unsigned src)
{
    return (struct mail_rec *)(m->base + m->off_rings) + ((size_t)local * m->world + src) * m->ring;
}

static struct mail_rec *engine_cells_of(const struct mail *m, unsigned local)
{
    assert(local < m->nlocal && m->nnodes > 1);
    return (struct mail_rec *)(m->base + m->off_engine_rings) + (size_t)local * MAIL_ENGINE_RING;
}

static _Atomic uint32_t *engine_head_of(const struct mail *m, unsigned local)
{
    return (_Atomic uint32_t *)(m->base + m->off_engine_heads + (size_t)local * CACHELINE);
}

void mail_tx_init(const struct mail *m, unsigned local, unsigned src, struct mail_tx *ret_tx)
{
    *ret_tx = (struct mail_tx){.cells = cells_of(m, local, src),
                               .head = head_of(m, local, src),
                               .word = mail_bits(m, local) + src / 64,
                               .bit = 1ull << src % 64,
                               .len = m->ring};
}

void mail_rx_init(const struct mail *m, unsigned local, unsigned src, struct mail_rx *ret_rx)
{
    *ret_rx = (struct mail_rx){
        .cells = cells_of(m, local, src), .head = head_of(m, local, src), .len = m->ring};
}

void mail_engine_tx_init(const struct mail *m, unsigned local, struct mail_tx *ret_tx)
{
    *ret_tx = (struct mail_tx){.cells = engine_cells_of(m, local),
                               .head = engine_head_of(m, local),
                               .word = mail_engine_bits(m) + local / 64,
                               .bit = 1ull << local % 64,
                               .len = MAIL_ENGINE_RING};
}

void mail_engine_rx_init(const struct mail *m, unsigned local, struct mail_rx *ret_rx)
{
    *ret_rx = (struct mail_rx){.cells = engine_cells_of(m, local),
                               .head = engine_head_of(m, local),
                               .len = MAIL_ENGINE_RING};
}

/* ---- rings ----------------------------------------------------------------------------------- */

/* Bytes behind seq that matter: small records leave their second line alone. */
static size_t used_bytes(const struct mail_rec *rec)
{
    size_t inl = offsetof(struct mail_rec, inl), from = offsetof(struct mail_rec, kind);

    if (rec->kind == MAIL_INLINE && rec->len > MAIL_FIRST_LINE)
        return inl - from + (size_t)MIN(rec->len, (uint64_t)MAIL_INLINE_MAX);
    return CACHELINE - from;
}

uint32_t mail_reserve(struct mail_tx *tx)
{
    return tx->put++;
}

void mail_fill(struct mail_rec *cells, uint32_t len, uint32_t n, const struct mail_rec *rec)
{
    struct mail_rec *cell = &cells[n % len];

    memcpy(&cell->kind, &rec->kind, used_bytes(rec));
    /* release: pairs with acquire in mail_ready() */
    atomic_store_explicit(&cell->seq, mail_mark(n), memory_order_release);
}

void mail_put(struct mail_tx *tx, const struct mail_rec *rec)
{
    mail_fill(tx->cells, tx->len, mail_reserve(tx), rec);
}

uint32_t mail_written(const struct mail *m, unsigned local, unsigned src)
{
    struct mail_rx rx;

    mail_rx_init(m, local, src, &rx);
    rx.got = atomic_load_explicit(rx.head, memory_order_acquire);
    for (uint32_t n = 0; n < rx.len && mail_ready(&rx); n++)
        rx.got++;
    return rx.got;
}

void mail_flag(_Atomic uint64_t *word, uint64_t bit)
{
    atomic_thread_fence(memory_order_seq_cst); /* record before bit, and before `sleepers` */
    if (!(atomic_load_explicit(word, memory_order_relaxed) & bit))
        atomic_fetch_or(word, bit);
}

bool mail_take(struct mail_rx *rx, struct mail_rec *ret_rec)
{
    const struct mail_rec *cell = &rx->cells[rx->got % rx->len];
    size_t from = offsetof(struct mail_rec, kind);

    if (!mail_ready(rx))
        return false;
    memcpy(&ret_rec->kind, &cell->kind, CACHELINE - from);
    if (ret_rec->kind == MAIL_INLINE && ret_rec->len > MAIL_FIRST_LINE)
        memcpy(ret_rec->inl + MAIL_FIRST_LINE, cell->inl + MAIL_FIRST_LINE,
               MAIL_INLINE_MAX - MAIL_FIRST_LINE);
    rx->got++;
    /* release: the cell may be written again */
    atomic_store_explicit(rx->head, rx->got, memory_order_release);
    return true;
}

/* A writer that found the ring full sleeps with all of it before the reader, who therefore comes
 * past here before it is empty. */
bool mail_relieved(struct mail_rx *rx)
{
    if (++rx->rung < rx->len / 2)
        return false;
    rx->rung = 0;
    return true;
}

uint64_t mail_collect(_Atomic uint64_t *word, uint64_t keep)
{
    if (!(atomic_load_explicit(word, memory_order_relaxed) & ~keep))
        return 0;
    return atomic_fetch_and(word, keep) & ~keep; /* seq_cst: before the look into the rings */
}

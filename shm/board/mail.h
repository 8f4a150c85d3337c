/* mail.h - the point-to-point part of a board: who writes what where, and the rings that carry
 * records between the members of a node and its engine. See mail.c for the model. */
#ifndef COMMD_MAIL_H
#define COMMD_MAIL_H

#include <stdatomic.h>

#include "shm/util/base.h"
#include "shm/util/wait.h"

enum {
    MAIL_INLINE_MAX = 88,      /* payload bytes that travel in the record */
    MAIL_FIRST_LINE = 24,      /* of them in the record's first cache line */
    MAIL_EAGER_MAX = 64 << 10, /* longer messages wait for their receiver */
    /* Outgoing slots of a member (see mail.c), and in how many of them messages may lie unmatched:
     * on one node, and between nodes. There MAIL_DATA_NET others are for the streams of long
     * messages. */
    MAIL_OUT_SLOTS = 32,
    MAIL_EAGER_ONE = 24,
    MAIL_EAGER_NET = 8,
    MAIL_DATA_NET = 4,
    MAIL_STAY = 4 << 10,  /* payload that always lies at the beginning of its slot */
    MAIL_PIECE = 8 << 10, /* of a payload on one node: is read while the next piece is written */
    MAIL_IN_SLOTS = 4,    /* where the engine puts the parts of long messages */
    MAIL_RX_SLOTS = 4,    /* where it puts eager messages: for each receiver and remote sender */
    /* Part of a long message: on one node what stays in cache; between nodes what is worth a
     * zero-copy transfer. */
    MAIL_CHUNK_ONE = 64 << 10,
    MAIL_CHUNK_NET = 256 << 10,
    MAIL_RX_BUDGET = 2 << 20, /* bytes of rx slots for each member */
    MAIL_RING = 32,           /* records from one rank to one member */
    MAIL_RING_MANY = 16,      /* the same in worlds beyond 64 ranks */
    MAIL_ENGINE_RING = 64,    /* records from a member to the engine */
};

enum mail_kind {
    MAIL_NONE = 0,
    MAIL_INLINE,   /* a message, payload in the record */
    MAIL_EAGER,    /* a message, payload in out slot @slot (local) or rx slot @rx (remote) */
    MAIL_RTS,      /* a message that waits until it is asked for: @id, @len */
    MAIL_CTS,      /* receiver -> local sender: stream @peer_id, mark the parts with @id */
    MAIL_GET,      /* receiver -> remote sender: of @peer_id [off, off + len) into in slot @rx */
    MAIL_DATA,     /* part [off, off + len) of the message that receive @peer_id takes */
    MAIL_SKIP,     /* receiver -> sender: @peer_id is not wanted (too long, or @declined) */
    MAIL_ACK,      /* only what every record carries: ack, freed */
    MAIL_PROBE,    /* to the engine of a rank that is gone: is anything of it left? */
    MAIL_PONG,     /* that engine: no, all has been sent before this */
    MAIL_DECLINED, /* a message that its sender cannot send: @declined, @len */
    MAIL_KINDS
};

/* One record: two cache lines, of which small ones use one. */
struct mail_rec {
    _Atomic uint32_t seq; /* mail_mark(position); release: pairs with acquire in mail_take() */
    uint8_t kind;         /* enum mail_kind */
    uint8_t slot;         /* out slot of the sender: EAGER, DATA */
    uint8_t rx;           /* remote: rx slot (EAGER) or in slot (GET, DATA) of the receiver */
    uint8_t declined;     /* -COMMD_E_*: why the writer cannot do its part; 0 */
    uint16_t src, dst;    /* ranks */
    uint32_t id, peer_id; /* of the writer's operation (with a slot: of its use); of the other
                             side's */
    int32_t tag;
    uint32_t ack;                 /* remote: records of dst that src has taken, modulo 2^32 */
    uint8_t freed[MAIL_RX_SLOTS]; /* remote: how often src has freed dst's rx slots */
    uint64_t len;                 /* of the message; CTS: 0; GET and DATA: of the part */
    union {
        uint64_t off;
        uint8_t inl[MAIL_INLINE_MAX];
    };
} __attribute__((aligned(CACHELINE)));
_Static_assert(sizeof(struct mail_rec) == 128, "two cache lines");
_Static_assert(offsetof(struct mail_rec, inl) + MAIL_FIRST_LINE == CACHELINE, "first line");

/* How much of a payload is in its slot: id of the record << 32 | bytes. Written by the sender. */
struct mail_fill {
    _Atomic uint64_t word;
    uint8_t pad[56];
} __attribute__((aligned(CACHELINE)));

/* Words about a member that others write; `content` and `fill` it writes itself. */
struct mail_box {
    _Atomic uint32_t bell; /* this member's own: see bell_ring() */
    _Atomic uint32_t sleepers;
    _Atomic uint32_t content; /* of a sleeper: it needs no free slot; 0: perhaps it does */
    uint8_t pad0[52];
    _Atomic uint32_t out[MAIL_OUT_SLOTS]; /* id of the last record whose payload in this slot has
                                             been read; written by readers only */
    struct mail_fill fill[MAIL_OUT_SLOTS];
} __attribute__((aligned(CACHELINE)));
_Static_assert(offsetof(struct mail_box, fill) == 192, "three cache lines, and one for each slot");

/* The payload of record @id in an out slot of the member with @box has been read. The member is
 * rung where it may wait for a slot: it has cleared `content` before it looked at `out` for the
 * last time, with the fence of bell_prepare() in between. True: it may have been asleep for that.
 */
static inline bool mail_slot_read(struct mail_box *box, unsigned slot, uint32_t id)
{
    invariant(slot < MAIL_OUT_SLOTS);
    /* release: pairs with acquire in look_at_slots() */
    atomic_store_explicit(&box->out[slot], id, memory_order_release);
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(&box->content, memory_order_relaxed))
        return false;
    bell_ring_fenced(&box->bell, &box->sleepers);
    return true;
}

/* Layout, from numbers that were checked; nothing here is read from shared memory. */
struct mail {
    uint32_t world, nnodes, nlocal;
    uint32_t ring;       /* records in a ring */
    uint32_t slots;      /* outgoing ones of a member */
    uint32_t eager_end;  /* slots for short messages lie before */
    uint32_t data_begin; /* slots for parts of long messages begin here */
    uint32_t eager_most; /* in use at a time */
    size_t chunk;        /* bytes of a data or in slot */
    size_t rx_bytes;     /* bytes of an rx slot; 0: there are none */
    uint32_t words;      /* of a member's bitmap */
    size_t off_boxes, off_bits, off_heads, off_engine_bits, off_engine_heads, off_rings,
        off_engine_rings, off_out, off_in, off_rx, size;
    uint8_t *base;
};

void mail_layout(uint32_t world, uint32_t nnodes, uint32_t nlocal, struct mail *ret_mail);

/* ---- addressing ------------------------------------------------------------------------------ */
static inline struct mail_box *mail_box(const struct mail *m, unsigned local)
{
    invariant(local < m->nlocal);
    return (struct mail_box *)(m->base + m->off_boxes) + local;
}

/* Eager slots are MAIL_EAGER_MAX long, data slots and in slots `chunk`. */
uint8_t *mail_out(const struct mail *m, unsigned local, unsigned slot);
uint8_t *mail_in(const struct mail *m, unsigned local, unsigned slot);
uint8_t *mail_rx_slot(const struct mail *m, unsigned local, unsigned src, unsigned rx);

/* Where in an eager slot a payload of @len bytes lies that uses it for the @n-th time: short ones
 * take turns over all of the slot too. */
static inline uint32_t mail_offset(uint32_t n, size_t len)
{
    uint32_t offset = (uint32_t)ALIGN_UP(len, (size_t)4096);

    return len <= MAIL_STAY ? 0 : n % (MAIL_EAGER_MAX / offset) * offset;
}

/* Bytes of the payload of record @id that are in the slot, as its sender says. */
static inline uint32_t mail_filled(const struct mail_box *sender, unsigned slot, uint32_t id)
{
    invariant(slot < MAIL_OUT_SLOTS);
    /* acquire: pairs with the release in mail_fill_to() */
    uint64_t word = atomic_load_explicit(&sender->fill[slot].word, memory_order_acquire);

    return word >> 32 == id ? (uint32_t)word : 0;
}

static inline void mail_fill_to(struct mail_box *me, unsigned slot, uint32_t id, uint32_t bytes)
{
    invariant(slot < MAIL_OUT_SLOTS);
    atomic_store_explicit(&me->fill[slot].word, (uint64_t)id << 32 | bytes, memory_order_release);
}

static inline bool mail_eager_slot(const struct mail *m, unsigned slot)
{
    return slot < m->eager_end;
}

static inline bool mail_data_slot(const struct mail *m, unsigned slot)
{
    return slot >= m->data_begin && slot < m->slots;
}

/* Longest message from @src on another node that may be sent without being asked for. */
static inline size_t mail_eager_remote(const struct mail *m)
{
    return MIN((size_t)MAIL_EAGER_MAX, m->rx_bytes);
}

/* Records that a rank may have under way to a rank on another node; the rest of the ring is
 * for those that need no permission: see mail.c. */
static inline uint32_t mail_credit(const struct mail *m)
{
    return m->ring / 2;
}

/* ---- rings: one writer, one reader ----------------------------------------------------------- */
struct mail_tx { /* the writer's private view */
    struct mail_rec *cells;
    _Atomic uint32_t *head; /* taken by the reader */
    _Atomic uint64_t *word; /* of the reader's bitmap */
    uint64_t bit;
    uint32_t len, put, head_seen;
};

struct mail_rx { /* the reader's */
    struct mail_rec *cells;
    _Atomic uint32_t *head;
    uint32_t len, got;
    uint32_t rung; /* taken since the writer was last told that there is room */
};

void mail_tx_init(const struct mail *m, unsigned local, unsigned src, struct mail_tx *ret_tx);
void mail_rx_init(const struct mail *m, unsigned local, unsigned src, struct mail_rx *ret_rx);
void mail_engine_tx_init(const struct mail *m, unsigned local, struct mail_tx *ret_tx);
void mail_engine_rx_init(const struct mail *m, unsigned local, struct mail_rx *ret_rx);

/* What cell.seq says when record number @n is in it; the zero of a fresh page says nothing. */
static inline uint32_t mail_mark(uint32_t n)
{
    return n + 1;
}

static inline bool mail_room(struct mail_tx *tx)
{
    if (likely(tx->put - tx->head_seen < tx->len))
        return true;
    /* acquire: pairs with the release in mail_take(): the reader is done with the cell */
    tx->head_seen = atomic_load_explicit(tx->head, memory_order_acquire);
    return tx->put - tx->head_seen < tx->len;
}

/* Is there a record? Cheap: one line that stays in the reader's cache until it is written. */
static inline bool mail_ready(const struct mail_rx *rx)
{
    return atomic_load_explicit(&rx->cells[rx->got % rx->len].seq, memory_order_acquire) ==
           mail_mark(rx->got);
}

/* Writes @rec behind the others; the caller has seen room. The reader still has to be told:
 * mail_flag(), then its bell. */
void mail_put(struct mail_tx *tx, const struct mail_rec *rec);
/* Records that were ever written into the ring that @src has at member @local, by what is in it. */
uint32_t mail_written(const struct mail *m, unsigned local, unsigned src);
/* The same in two parts, for a record whose payload is still on its way. */
uint32_t mail_reserve(struct mail_tx *tx);
void mail_fill(struct mail_rec *cells, uint32_t len, uint32_t n, const struct mail_rec *rec);
/* Sets the reader's bit. Contains the fence that a following look at `sleepers` needs. */
void mail_flag(_Atomic uint64_t *word, uint64_t bit);
/* Copies the next record; what is in it was written by another process and is not checked. */
bool mail_take(struct mail_rx *rx, struct mail_rec *ret_rec);
/* Called after mail_take(): may the writer wait for room, and has to be woken? */
bool mail_relieved(struct mail_rx *rx);

/* The bits of @word but those of @keep, cleared. Afterwards look into the rings they stand for. */
uint64_t mail_collect(_Atomic uint64_t *word, uint64_t keep);

static inline _Atomic uint64_t *mail_bits(const struct mail *m, unsigned local)
{
    return (_Atomic uint64_t *)(m->base + m->off_bits) + (size_t)local * m->words;
}

static inline _Atomic uint64_t *mail_engine_bits(const struct mail *m)
{
    return (_Atomic uint64_t *)(m->base + m->off_engine_bits);
}

/* Does the payload of such a record lie outside it? */
static inline bool mail_has_body(unsigned kind)
{
    return kind == MAIL_EAGER || kind == MAIL_DATA;
}

#endif

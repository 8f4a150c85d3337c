/* called.c - what members called in operations that took no steps of the board, as far as their
 * posts tell (posts.c): who finds a mismatch late says by this what it was. A member may overwrite
 * a post while another one reads here what it called: then it was not found. */
#include "client/lib/coll/called.h"

const struct board_mismatch calls_unknown = {.a.coll = COLL_COUNT, .b.coll = COLL_COUNT};

/* A description of a post may be read while it is overwritten. */
typedef uint64_t __attribute__((may_alias)) desc_word;
enum { DESC_WORDS = sizeof(struct op_desc) / sizeof(desc_word) };

static void write_desc(struct op_desc *to, const struct op_desc *from)
{
    for (unsigned i = 0; i < DESC_WORDS; i++)
        __atomic_store_n((desc_word *)to + i, ((const desc_word *)from)[i], __ATOMIC_RELAXED);
}

bool call_read(const struct run *r, unsigned m, uint64_t seq, struct op_desc *ret_desc)
{
    const struct board_slot *s = board_post(&r->group->board, m, seq);

    if (atomic_load_explicit(&s->seq, memory_order_acquire) != board_post_mark(seq))
        return false;
    for (unsigned i = 0; i < DESC_WORDS; i++)
        ((desc_word *)ret_desc)[i] =
            __atomic_load_n((const desc_word *)&s->desc + i, __ATOMIC_RELAXED);
    atomic_thread_fence(memory_order_acquire);
    return atomic_load_explicit(&s->seq, memory_order_relaxed) == board_post_mark(seq);
}

bool calls_differ(const struct run *r, unsigned a, unsigned b, uint64_t seq,
                  struct board_mismatch *m)
{
    *m = (struct board_mismatch){.rank_a = a, .rank_b = b};
    return seq > r->group->settled && call_read(r, a, seq, &m->a) && call_read(r, b, seq, &m->b) &&
           memcmp(&m->a, &m->b, sizeof m->a) != 0;
}

/* The same of one of the operations before this one. */
static bool calls_differed(const struct run *r, unsigned a, unsigned b, struct board_mismatch *m)
{
    for (uint64_t back = BOARD_SLOTS - 1; back > 0; back--)
        if (r->desc.seq > back && calls_differ(r, a, b, r->desc.seq - back, m))
            return true;
    return false;
}

void call_note(const struct run *r, unsigned kind)
{
    struct board_slot *s = board_post(&r->group->board, r->group->local, r->desc.seq);

    atomic_store_explicit(&s->seq, 0, memory_order_relaxed);
    atomic_thread_fence(memory_order_release); /* pairs with the fence in call_read() */
    write_desc(&s->desc, &r->desc);
    s->fingerprint = r->fingerprint;
    s->kind = kind;
    atomic_store_explicit(&s->seq, board_post_mark(r->desc.seq), memory_order_release);
}

bool calls_disputed(const struct run *r)
{
    return atomic_load_explicit(&r->group->board.hdr->disputed, memory_order_acquire) >
           r->group->settled;
}

void calls_mismatch(const struct run *r, unsigned a, unsigned b, struct board_mismatch *ret_m)
{
    if (calls_disputed(r)) { /* copied: a member may write there */
        *ret_m = r->group->board.hdr->mismatch;
        if (MAX(ret_m->a.seq, ret_m->b.seq) <= r->desc.seq)
            return; /* else it is of an operation that has not come here */
    }
    if (!calls_differed(r, a, b, ret_m))
        *ret_m = calls_unknown;
}

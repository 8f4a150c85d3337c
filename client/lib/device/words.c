/* words.c - what is enqueued on streams for an operation: copies, words that are written, waits for
 * words, and waits for earlier operations of the group that write its input. */
#include "client/lib/device/session.h"

/* ---- through host memory --------------------------------------------------------------------- */

int staged_copy(struct staged *st, cu_ptr to, cu_ptr from, size_t bytes, cu_stream s)
{
    cu_result r;

    assert(st->slot && (to || !bytes));
    st->touched = true;
    r = bytes ? driver(NULL)->copy(to, from, bytes, s) : 0;

    return driver_error(st->name, "cuMemcpyAsync", r);
}

static cu_ptr word_at(const struct staged *st, enum staged_word word)
{
    static const size_t at[] = {
        [WORD_READY] = offsetof(struct flag_words, ready),
        [WORD_DONE] = offsetof(struct flag_words, done),
        [WORD_LANDED] = offsetof(struct flag_words, landed),
    };

    assert(word < ARRAY_LEN(at));
    return st->slot->at + at[word];
}

int staged_write(struct staged *st, enum staged_word word, uint32_t pieces, cu_stream s)
{
    cu_result r;

    assert(pieces > 0 && pieces <= st->gate.pieces);
    st->touched = true;
    r = driver(NULL)->stream_write32(s, word_at(st, word), st->gate.base + pieces,
                                     CU_WRITE_DEFAULT);

    return driver_error(st->name, "cuStreamWriteValue32", r);
}

int staged_await(struct staged *st, enum staged_word word, uint32_t pieces, cu_stream s)
{
    assert(pieces > 0 && pieces <= st->gate.pieces);
    cu_result r =
        driver(NULL)->stream_wait32(s, word_at(st, word), st->gate.base + pieces, CU_WAIT_GEQ);

    return driver_error(st->name, "cuStreamWaitValue32", r);
}

/* ---- through commd-gpu ----------------------------------------------------------------------- */

static cu_ptr flag_at(const struct announced *a, size_t array)
{
    assert(array < sizeof(struct session_flags));
    return a->session->flags + array + a->n % SESSION_SLOTS * sizeof(uint32_t);
}

int announced_ready(const struct announced *a, cu_stream s)
{
    cu_ptr at = flag_at(a, offsetof(struct session_flags, ready));
    cu_result r = driver(NULL)->stream_write32(s, at, session_mark(a->n), CU_WRITE_DEFAULT);

    return driver_error(coll_name((unsigned)a->coll), "cuStreamWriteValue32", r);
}

static int await_word(const struct announced *a, cu_ptr at, cu_stream s)
{
    cu_result r = driver(NULL)->stream_wait32(s, at, session_mark(a->n), CU_WAIT_GEQ);

    return driver_error(coll_name((unsigned)a->coll), "cuStreamWaitValue32", r);
}

int announced_await_done(const struct announced *a, cu_stream s)
{
    return await_word(a, flag_at(a, offsetof(struct session_flags, done)), s);
}

static cu_ptr landed_at(const struct announced *a)
{
    assert(a->session->landed);
    return a->session->landed_at + a->n % SESSION_SLOTS * sizeof(uint32_t);
}

int announced_await(const struct announced *a, cu_stream s)
{
    return announced_lands(a) ? await_word(a, landed_at(a), s) : announced_await_done(a, s);
}

int announced_land(const struct announced *a, cu_stream s)
{
    cu_result r =
        driver(NULL)->stream_write32(s, landed_at(a), session_mark(a->n), CU_WRITE_DEFAULT);

    return driver_error(coll_name((unsigned)a->coll), "cuStreamWriteValue32", r);
}

/* ---- what comes before ----------------------------------------------------------------------- */

/* Slots change under both locks: one is enough here. */
static int follow_locked(const struct session *s, const struct device_group *dg, uint64_t before,
                         bool landing, const struct side_place *in, cu_stream stream)
{
    uintptr_t lo, hi;
    int r = 0;

    assert_held(&s->calls);
    side_span(in, &lo, &hi);
    for (unsigned i = 0; i < SESSION_SLOTS && !r; i++) {
        struct announced *a = s->slots[i];

        if (a && a->group == dg && a->n < before && (!landing || announced_lands(a)) &&
            a->lo < hi && lo < a->hi && !gate_landed(&a->gate))
            r = announced_await(a, stream);
    }
    return r;
}

int announced_follow(struct device_group *dg, const struct side_place *in, cu_stream stream)
{
    struct session *s = dg->session;
    int r;

    if (!s)
        return 0;
    pthread_mutex_lock(&s->calls);
    r = follow_locked(s, dg, UINT64_MAX, false, in, stream);
    pthread_mutex_unlock(&s->calls);
    return r;
}

int announced_follow_before(const struct announced *before, const struct side_place *in,
                            cu_stream stream)
{
    const struct session *s = before->session;

    if (!s->landed) /* most never have any that land */
        return 0;
    return follow_locked(s, before->group, before->n, !announced_lands(before), in, stream);
}

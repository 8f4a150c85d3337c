/* test_mail.c - the layout of the mail area, its rings across the wrap of their counters, and
 * writers and a reader as threads, also asleep. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <pthread.h>

#include "shm/board/mail.h"
#include "shm/util/wait.h"

enum { WRITERS = 3, RECORDS = 20000 };

static struct mail mail_new(uint32_t world, uint32_t nnodes, uint32_t nlocal)
{
    struct mail m;

    mail_layout(world, nnodes, nlocal, &m);
    m.base = aligned_alloc(4096, m.size);
    assert_non_null(m.base);
    memset(m.base, 0, m.off_out);
    return m;
}

/* What has its own owner must not overlap, and all of it lies inside. */
static void areas_lie_apart(void **state)
{
    static const uint32_t geoms[][3] = {{1, 1, 1}, {2, 1, 2}, {2, 2, 1}, {65, 3, 40}, {512, 64, 8}};

    for (unsigned i = 0; i < ARRAY_LEN(geoms); i++) {
        uint32_t world = geoms[i][0], nnodes = geoms[i][1], nlocal = geoms[i][2];
        struct mail_tx tx;
        struct mail m;

        mail_layout(world, nnodes, nlocal, &m);
        assert_true(m.off_boxes >= (nlocal + 63) / 64 * 8);
        assert_true(m.off_bits >= m.off_boxes + nlocal * sizeof(struct mail_box));
        assert_true(m.words * 64 >= world);
        m.base = (uint8_t *)4096;
        mail_tx_init(&m, nlocal - 1, world - 1, &tx);
        assert_true((uint8_t *)(tx.head + 1) <= m.base + m.off_engine_rings);
        assert_ptr_equal(tx.cells + tx.len, (struct mail_rec *)(m.base + m.off_rings) +
                                                (size_t)nlocal * world * m.ring);
        assert_true((uint8_t *)(tx.cells + tx.len) <= mail_out(&m, 0, 0));
        assert_ptr_equal(mail_out(&m, nlocal - 1, m.slots - 1) + m.chunk, m.base + m.off_in);
        if (nnodes == 1) {
            assert_int_equal(m.off_in, m.off_rx);
            assert_int_equal(m.rx_bytes, 0);
            continue;
        }
        mail_engine_tx_init(&m, nlocal - 1, &tx);
        assert_true((uint8_t *)(tx.cells + tx.len) <= m.base + m.off_rings);
        assert_true((uint8_t *)(tx.head + 1) <= m.base + m.off_heads);
        assert_ptr_equal(mail_in(&m, nlocal - 1, MAIL_IN_SLOTS - 1) + m.chunk, m.base + m.off_rx);
        assert_true(mail_rx_slot(&m, nlocal - 1, world - 1, MAIL_RX_SLOTS - 1) + m.rx_bytes <=
                    m.base + m.size);
        assert_true(m.rx_bytes * MAIL_RX_SLOTS * world <= MAIL_RX_BUDGET);
    }
}

/* What may be under way without credit must fit beside what has credit. */
static void rings_have_room_for_what_needs_no_credit(void **state)
{
    struct mail m;
    uint32_t acks;

    for (uint32_t world = 2; world <= 16384; world *= 2) {
        mail_layout(world, 2, 1, &m);
        acks = mail_credit(&m) / (m.ring / 4);
        assert_true(mail_credit(&m) + acks + MAIL_RX_SLOTS / 2 + 2 <= m.ring);
    }
}

static void fill(struct mail_rec *rec, uint32_t n, size_t len)
{
    memset(rec, 0, sizeof *rec);
    rec->kind = MAIL_INLINE;
    rec->tag = (int32_t)n;
    rec->len = len;
    for (size_t i = 0; i < len; i++)
        rec->inl[i] = (uint8_t)(n + i);
}

static bool right(const struct mail_rec *rec, uint32_t n, size_t len)
{
    if (rec->kind != MAIL_INLINE || rec->tag != (int32_t)n || rec->len != len)
        return false;
    for (size_t i = 0; i < len; i++)
        if (rec->inl[i] != (uint8_t)(n + i))
            return false;
    return true;
}

static void ring_crosses_the_wrap(void **state)
{
    struct mail m = mail_new(2, 1, 2);
    uint32_t first = UINT32_MAX - 3, put, got;
    struct mail_rec rec;
    struct mail_tx tx;
    struct mail_rx rx;

    mail_tx_init(&m, 1, 0, &tx);
    mail_rx_init(&m, 1, 0, &rx);
    tx.put = tx.head_seen = rx.got = put = got = first;
    atomic_store(tx.head, first);
    assert_false(mail_take(&rx, &rec));
    for (unsigned round = 0; round < 10; round++) {
        for (; mail_room(&tx); put++) {
            fill(&rec, put, put % (MAIL_INLINE_MAX + 1));
            mail_put(&tx, &rec);
        }
        assert_int_equal(put - got, m.ring);
        for (unsigned i = 0; i < 5 + round; i++, got++) {
            assert_true(mail_take(&rx, &rec));
            assert_true(right(&rec, got, got % (MAIL_INLINE_MAX + 1)));
        }
    }
    while (mail_take(&rx, &rec))
        assert_true(right(&rec, got, got % (MAIL_INLINE_MAX + 1))), got++;
    assert_int_equal(got, put);
    free(m.base);
}

/* A record whose payload is late holds up those behind it: order is kept. */
static void reserved_records_keep_their_place(void **state)
{
    struct mail m = mail_new(2, 1, 2);
    struct mail_rec late, next, got;
    struct mail_tx tx;
    struct mail_rx rx;
    uint32_t place;

    mail_tx_init(&m, 0, 1, &tx);
    mail_rx_init(&m, 0, 1, &rx);
    fill(&late, 1, 80);
    fill(&next, 2, 8);
    place = mail_reserve(&tx);
    mail_put(&tx, &next);
    assert_false(mail_ready(&rx));
    mail_fill(tx.cells, tx.len, place, &late);
    assert_true(mail_take(&rx, &got) && right(&got, 1, 80));
    assert_true(mail_take(&rx, &got) && right(&got, 2, 8));
    assert_false(mail_take(&rx, &got));
    free(m.base);
}

static void bits_say_where_to_look(void **state)
{
    struct mail m = mail_new(130, 1, 130);
    struct mail_tx tx;

    mail_tx_init(&m, 7, 129, &tx);
    assert_int_equal(mail_collect(mail_bits(&m, 7) + 2, 0), 0);
    mail_flag(tx.word, tx.bit);
    mail_flag(tx.word, tx.bit);
    assert_int_equal(mail_collect(mail_bits(&m, 7), 0), 0);
    assert_int_equal(mail_collect(mail_bits(&m, 7) + 2, 2), 0); /* to be kept, and it is */
    assert_int_equal(mail_collect(mail_bits(&m, 7) + 2, 1), 2);
    assert_int_equal(mail_collect(mail_bits(&m, 7) + 2, 0), 0);
    free(m.base);
}

/* ---- threads --------------------------------------------------------------------------------- */

struct writer {
    pthread_t thread;
    struct mail *m;
    unsigned rank;
};

/* Waits on its own bell for room: every lost wake-up would show as a test that hangs. */
static void *writer_main(void *arg)
{
    struct writer *w = arg;
    struct mail_box *me = mail_box(w->m, w->rank), *reader = mail_box(w->m, WRITERS);
    struct mail_tx tx;

    mail_tx_init(w->m, WRITERS, w->rank, &tx);
    for (uint32_t n = 0; n < RECORDS; n++) {
        struct mail_rec rec;

        fill(&rec, n, n % (MAIL_INLINE_MAX + 1));
        while (!mail_room(&tx)) {
            uint32_t ticket = bell_prepare(&me->bell, &me->sleepers);

            if (mail_room(&tx))
                bell_cancel(&me->sleepers);
            else
                bell_sleep(&me->bell, &me->sleepers, ticket, 60000);
        }
        mail_put(&tx, &rec);
        mail_flag(tx.word, tx.bit);
        bell_ring(&reader->bell, &reader->sleepers);
    }
    return NULL;
}

static bool take_some(struct mail *m, struct mail_rx *rx, uint32_t *next)
{
    uint64_t bits = mail_collect(mail_bits(m, WRITERS), 0);
    bool moved = false;

    for (unsigned k = 0; k < WRITERS; k++) {
        struct mail_rec rec;

        while (bits >> k & 1 && mail_take(&rx[k], &rec)) {
            assert_true(right(&rec, next[k], next[k] % (MAIL_INLINE_MAX + 1)));
            next[k]++;
            moved = true;
            if (mail_relieved(&rx[k]))
                bell_ring(&mail_box(m, k)->bell, &mail_box(m, k)->sleepers);
        }
    }
    return moved;
}

static void threads_lose_nothing(void **state)
{
    struct mail m = mail_new(WRITERS + 1, 1, WRITERS + 1);
    struct mail_box *me = mail_box(&m, WRITERS);
    struct writer w[WRITERS];
    struct mail_rx rx[WRITERS];
    uint32_t next[WRITERS] = {0};

    for (unsigned k = 0; k < WRITERS; k++) {
        mail_rx_init(&m, WRITERS, k, &rx[k]);
        w[k] = (struct writer){.m = &m, .rank = k};
        assert_int_equal(pthread_create(&w[k].thread, NULL, writer_main, &w[k]), 0);
    }
    while (next[0] + next[1] + next[2] < WRITERS * RECORDS) {
        uint32_t ticket;

        if (take_some(&m, rx, next))
            continue;
        ticket = bell_prepare(&me->bell, &me->sleepers);
        if (take_some(&m, rx, next))
            bell_cancel(&me->sleepers);
        else
            bell_sleep(&me->bell, &me->sleepers, ticket, 60000);
    }
    for (unsigned k = 0; k < WRITERS; k++)
        pthread_join(w[k].thread, NULL);
    free(m.base);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(areas_lie_apart),
        cmocka_unit_test(rings_have_room_for_what_needs_no_credit),
        cmocka_unit_test(ring_crosses_the_wrap),
        cmocka_unit_test(reserved_records_keep_their_place),
        cmocka_unit_test(bits_say_where_to_look),
        cmocka_unit_test(threads_lose_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

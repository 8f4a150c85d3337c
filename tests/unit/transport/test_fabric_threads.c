/* test_fabric_threads.c - records of large bodies that other threads make and open, and which are
 * held up there while something else happens to what they work on. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif
#include "tests/unit/transport/fabric_raw.h"

#include <poll.h>
#include <pthread.h>

#include "transport/fabric/tcp/aead.h"

enum { LEN = 120000, MANY = 8 };

/* ---- threads that wait for us ---------------------------------------------------------------- */

static struct aead_ops slow_ops, real_ops;
static _Atomic bool gate;
static _Atomic unsigned begun, finished; /* records, of other threads than ours */
static pthread_t ours;
static unsigned slow_side;

static bool enter(void)
{
    bool other = !pthread_equal(pthread_self(), ours);

    begun += other;
    while (other && !gate)
        poll(NULL, 0, 1);
    return other;
}

static int slow_put(struct aead *a, const uint8_t nonce[AEAD_NONCE], const struct iovec *iov,
                    unsigned n, uint8_t *record)
{
    bool other = enter();
    int r = real_ops.put(a, nonce, iov, n, record);

    finished += other;
    return r;
}

static bool slow_get(struct aead *a, const uint8_t nonce[AEAD_NONCE], const uint8_t *record,
                     uint8_t *out)
{
    bool other = enter(), good = real_ops.get(a, nonce, record, out);

    finished += other;
    return good;
}

static struct aead *slow_new(enum seal_cipher cipher, bool seals)
{
    struct aead *a = real_ops.new(cipher, seals);

    assert_non_null(a);
    a->ops = &slow_ops;
    return a;
}

/* What is lent by @s from now on works only while the gate is open. */
static void slow_down(struct seal *s)
{
    struct aead *a = *(struct aead **)s; /* its first member */

    real_ops = slow_ops = *a->ops;
    slow_ops.new = slow_new;
    slow_ops.put = slow_put;
    slow_ops.get = slow_get;
    a->ops = &slow_ops;
    ours = pthread_self();
    gate = false;
    begun = finished = 0;
}

static void *open_later(void *arg)
{
    poll(NULL, 0, 50);
    gate = true;
    return NULL;
}

/* Two sides, of which @i seals, or opens, slowly. */
static struct world *slow_world(const char *kind, unsigned i, bool seals)
{
    struct world *w = linked(kind);
    struct conn *c;

    pump_until(w, w->side[0].connected && w->side[1].connected);
    c = inside(&w->side[i])->slot[!i]->conn[0];
    slow_side = i;
    slow_down(seals ? c->seals : c->opens);
    return w;
}

/* Turns of all but a side whose job another thread has yet to begin: it would help. */
static void turn_until_begun(struct world *w)
{
    double limit = now() + 300;

    while (!begun) {
        assert_true(now() < limit);
        for (unsigned i = 0; i < 2; i++)
            if (TAILQ_EMPTY(&inside(&w->side[i])->jobs) || i != slow_side)
                w->side[i].f->ops->progress(w->side[i].f);
        poll(NULL, 0, 1);
    }
}

/* ---- what waits for them --------------------------------------------------------------------- */

/* A body is the caller's when nobody reads it any more. */
static void a_body_is_lent_until_it_is_sealed(void **state)
{
    struct world *w = slow_world("tcp sealed threads", 0, true);
    struct sending out[2];

    put(&w->side[0], 1, 0, 8, LEN, &out[0]);
    turn_until_begun(w);
    put(&w->side[0], 1, 1, 8, 100, &out[1]); /* behind it, in the order of the stream */
    for (unsigned i = 0; i < 20; i++)
        turn(w);
    assert_int_equal(out[0].done, 0);
    assert_int_equal(w->side[1].msgs, 0);
    gate = true;
    pump_until(w, w->side[1].msgs == 2 && w->side[1].taken == 1 && count_done(out, 2) == 2);
    assert_int_equal(w->side[1].bad_bytes + w->side[1].bad_order, 0);
    free_sendings(out, 2);
    world_free(w);
}

/* The end of a link waits for who works for it: @seals, on what is sent; else on what comes. */
static void the_end_waits(bool seals)
{
    struct world *w = slow_world("tcp sealed threads", seals ? 0 : 1, seals);
    struct side *s = &w->side[seals ? 0 : 1];
    struct sending out;
    pthread_t opener;

    put(&w->side[0], 1, 0, 8, LEN, &out);
    turn_until_begun(w);
    s->f->ops->peer_del(s->f, seals ? 1 : 0);
    pthread_create(&opener, NULL, open_later, NULL);
    s->f->ops->progress(s->f);
    assert_true(gate && begun == finished);
    assert_true(TAILQ_EMPTY(&inside(s)->jobs));
    if (seals)
        assert_int_equal(out.done, 1);
    else
        assert_int_equal(s->body[0]->done, 1);
    pthread_join(opener, NULL);
    pump_until(w, w->side[seals ? 1 : 0].down == 1 && out.done == 1);
    free_sendings(&out, 1);
    world_free(w);
}

static void the_end_of_a_link_waits(void **state)
{
    the_end_waits(true);
    the_end_waits(false);
}

/* A claim that is taken, or dropped, while its body is being opened. */
static void a_claim_waits(void **state)
{
    for (unsigned drop = 0; drop < 2; drop++) {
        struct world *w = slow_world("tcp sealed threads", 1, false);
        struct side *s = &w->side[1];
        struct sending out[2];
        pthread_t opener;

        s->take = TAKE_LATER;
        put(&w->side[0], 1, 0, 8, LEN, &out[0]);
        turn_until_begun(w);
        pthread_create(&opener, NULL, open_later, NULL);
        if (drop) {
            s->f->ops->drop(s->f, s->body[0]->claim);
            s->body[0]->claim = NULL;
        } else {
            take_body(s->body[0]);
        }
        assert_true(gate && begun == finished);
        put(&w->side[0], 1, 1, 8, 100, &out[1]);
        pump_until(w, s->msgs == 2 && s->taken == !drop);
        assert_int_equal(s->bad_bytes + s->down, 0);
        pthread_join(opener, NULL);
        free_sendings(out, 2);
        world_free(w);
    }
}

/* What came before the other side's end of the link has come. */
static void what_came_before_a_bye_is_whole(void **state)
{
    struct world *w = slow_world("tcp sealed threads", 1, false);
    struct side *s = &w->side[1];
    struct sending out;
    pthread_t opener;

    put(&w->side[0], 1, 0, 8, LEN, &out);
    pump_until(w, out.done && TAILQ_EMPTY(&inside(&w->side[0])->slot[1]->conn[0]->out));
    turn_until_begun(w);
    w->side[0].f->ops->peer_del(w->side[0].f, 1);
    w->side[0].f->ops->progress(w->side[0].f);
    pthread_create(&opener, NULL, open_later, NULL);
    pump_until(w, s->down == 1);
    assert_int_equal(s->down_err, -ECONNRESET);
    assert_int_equal(s->body[0]->done, 1);
    assert_int_equal(s->body[0]->st, 0);
    assert_int_equal(s->bad_bytes, 0);
    pthread_join(opener, NULL);
    free_sendings(&out, 1);
    world_free(w);
}

/* The key changes while records of the one before are being made, and opened. */
static void a_key_changes_meanwhile(void **state)
{
    for (unsigned seals = 0; seals < 2; seals++) {
        struct world *w = slow_world("tcp sealed threads", seals ? 0 : 1, seals);
        struct seal *s = inside(&w->side[0])->slot[1]->conn[0]->seals;
        struct sending out[MANY];

        seal_set_records(s, 9);
        put(&w->side[0], 1, 0, 8, LEN, &out[0]);
        turn_until_begun(w);
        for (unsigned i = 1; i < MANY; i++)
            put(&w->side[0], 1, i, 8, i % 2 ? 300 : LEN, &out[i]);
        for (unsigned i = 0; i < 20; i++)
            turn(w);
        gate = true;
        pump_until(w, w->side[1].msgs == MANY && w->side[1].taken == MANY / 2 &&
                          count_done(out, MANY) == MANY);
        assert_int_equal(w->side[1].bad_bytes + w->side[1].bad_order + w->side[1].down, 0);
        assert_true(seal_generation(s) >= 3);
        assert_int_equal(seal_generation(inside(&w->side[1])->slot[0]->conn[0]->opens),
                         seal_generation(s));
        free_sendings(out, MANY);
        world_free(w);
    }
}

static struct aead_ops good_ops;

/* Headers go well: they are not of a job. */
static bool get_fails(struct aead *a, const uint8_t nonce[AEAD_NONCE], const uint8_t *record,
                      uint8_t *out)
{
    return seal_length(record) < SEAL_DATA && good_ops.get(a, nonce, record, out);
}

static int put_fails(struct aead *a, const uint8_t nonce[AEAD_NONCE], const struct iovec *iov,
                     unsigned n, uint8_t *record)
{
    return iov[0].iov_len == SEAL_DATA ? -EIO : good_ops.put(a, nonce, iov, n, record);
}

/* A tag of a large body is wrong, or a record cannot be made: the link ends, and says why. */
static void what_fails_there_ends_the_link(void **state)
{
    for (unsigned seals = 0; seals < 2; seals++) {
        struct world *w = slow_world("tcp sealed threads", seals ? 0 : 1, seals);
        struct side *s = &w->side[seals ? 0 : 1], *b = &w->side[1];
        struct sending out;

        good_ops = real_ops;
        real_ops.put = put_fails;
        real_ops.get = get_fails;
        gate = true;
        put(&w->side[0], 1, 0, 8, LEN, &out);
        pump_until(w, w->side[0].down == 1 && b->down == 1 && out.done == 1);
        assert_int_equal(s->down_err, seals ? -EIO : -EBADMSG);
        assert_non_null(strstr(s->down_why, seals ? "cannot encrypt" : "authentication failed"));
        for (unsigned i = 0; i < b->bodies; i++)
            assert_true(b->body[i]->done == 1 && b->body[i]->st < 0);
        free_sendings(&out, 1);
        world_free(w);
    }
}

int run_thread_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_body_is_lent_until_it_is_sealed),
        cmocka_unit_test(the_end_of_a_link_waits),
        cmocka_unit_test(a_claim_waits),
        cmocka_unit_test(what_came_before_a_bye_is_whole),
        cmocka_unit_test(a_key_changes_meanwhile),
        cmocka_unit_test(what_fails_there_ends_the_link),
    };

    return cmocka_run_group_tests_name("fabric tcp, threads", tests, NULL, NULL);
}

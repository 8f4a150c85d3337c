/* test_board.c - what is mapped and what is refused, plans as properties, sleeping and waking. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "shm/board/board.h"
#include "shm/util/memfd.h"
#include "shm/proto/msg.h"
#include "shm/util/wait.h"
#include "tests/lib/cores.h"

static const uint16_t nodes3[] = {0, 1, 0};
static const struct board_geom geom3 = {
    .group = 9, .epoch = 2, .world = 3, .nnodes = 2, .me = 0, .nlocal = 2, .rank_node = nodes3};

static void members_read_whether_all_nodes_have_gpus(void **state)
{
    for (unsigned gpu = 0; gpu < 2; gpu++) {
        struct board_geom g = geom3;
        struct board_ctl *ctl;
        struct board b;
        int fd;

        g.gpu = gpu;
        assert_int_equal(board_create(&g, &fd, &ctl), 0);
        assert_int_equal(board_map(fd, &b), 0);
        assert_int_equal(b.gpu, gpu);
        board_unmap(&b);
        board_ctl_free(ctl);
        close(fd);
    }
}

/* Also where the next commd has taken the board over. */
static void members_read_which_plans_all_know(void **state)
{
    for (uint32_t plans = 0; plans <= PLAN_KNOWN; plans += PLAN_KNOWN) {
        struct board_geom g = geom3;
        struct board_ctl *ctl, *next;
        struct board b;
        int fd;

        g.plans = plans;
        assert_int_equal(board_create(&g, &fd, &ctl), 0);
        board_ctl_free(ctl);
        g.plans = ~plans;
        assert_int_equal(board_adopt(&g, fd, &next), 0);
        assert_int_equal(board_map(fd, &b), 0);
        assert_int_equal(b.plans, plans);
        board_unmap(&b);
        board_ctl_free(next);
        close(fd);
    }
}

static void created_board_maps(void **state)
{
    struct board_ctl *ctl;
    struct board b;
    int fd;

    assert_int_equal(board_create(&geom3, &fd, &ctl), 0);
    assert_int_equal(board_map(fd, &b), 0);
    assert_int_equal(b.world, 3);
    assert_int_equal(b.nlocal, 2);
    assert_int_equal(b.group, 9);
    assert_int_equal(b.ranks[1].local, BOARD_NO_MEMBER);
    assert_int_equal(b.ranks[2].local, 1);
    assert_int_equal(board_ctl_bytes(ctl), b.size);
    assert_int_equal(ftruncate(fd, 4096), -1); /* sealed: nobody can make it shrink */
    assert_int_equal(errno, EPERM);
    board_unmap(&b);
    board_ctl_free(ctl);
    close(fd);
}

/* What commd is shown of a member: what it has begun, ended and sleeps in. */
static void a_seat_tells_what_its_member_does(void **state)
{
    uint32_t rank, ops;
    struct op_desc first = {.seq = 1, .count = 10, .coll = COLL_ALL_REDUCE, .dtype = DTYPE_F32},
                   second = {.seq = 2, .coll = COLL_BARRIER};
    struct board_seat seat;
    struct board_member *m;
    struct board_ctl *ctl;
    uint64_t gone_ms;
    struct board b;
    int fd;

    assert_int_equal(board_create(&geom3, &fd, &ctl), 0);
    assert_int_equal(board_map(fd, &b), 0);
    m = &b.members[1];
    board_seat(ctl, 1, 5000, &seat);
    assert_false(seat.pending || seat.asleep || seat.message);
    assert_int_equal(seat.now.seq + seat.last.seq, 0);

    board_slot(&b, 1, BOARD_FIRST_STEP)->desc = first;
    m->started = 1;
    board_seat(ctl, 1, 5000, &seat);
    assert_true(seat.pending && !seat.asleep); /* it may be spinning */
    assert_int_equal(seat.now.count, 10);
    m->asleep_ms = 3000;
    m->asleep_op = 1;
    board_seat(ctl, 1, 5000, &seat);
    assert_true(seat.asleep);
    assert_int_equal(seat.asleep_ms, 2000);
    board_seat(ctl, 1, 2999, &seat); /* it fell asleep after the clock was read */
    assert_int_equal(seat.asleep_ms, 0);
    board_seat(ctl, 1, 3000 + 40 * 86400000ull, &seat);
    assert_int_equal(seat.asleep_ms, 40 * 86400000u);
    board_seat(ctl, 0, 5000, &seat);
    assert_false(seat.pending);

    m->ops = 1;
    board_slot(&b, 1, BOARD_FIRST_STEP + 1)->desc = second;
    m->started = 2; /* in which it has not slept */
    m->message_peer = 2;
    m->message_tag = 7;
    m->message_ms = 4900;
    board_seat(ctl, 1, 5000, &seat);
    assert_true(seat.pending && !seat.asleep && seat.message && !seat.message_send);
    assert_int_equal(seat.message_ms, 100);
    board_seat(ctl, 1, 4899, &seat);
    assert_int_equal(seat.message_ms, 0);
    assert_int_equal(seat.message_peer, 2);
    assert_int_equal(seat.message_tag, 7);
    assert_int_equal(seat.now.coll, COLL_BARRIER);
    assert_int_equal(seat.last.coll, COLL_ALL_REDUCE);
    board_seat(ctl, 2, 5000, &seat); /* there are two */
    assert_false(seat.pending || seat.message);

    assert_false(board_refused(ctl, 0));
    b.hdr->refused = (1ull << 32) + 2;
    assert_true(board_refused(ctl, 2));
    assert_false(board_refused(ctl, 1));
    assert_int_equal(board_rank_gone(ctl, 1), CAUSE_NONE);
    assert_int_equal(board_gone_ms(ctl, 1), 0);
    board_mark_gone(ctl, 1, 0, CAUSE_LEFT, 1);
    b.ranks[1].cause = CAUSE_RANK_LOST; /* whatever members write */
    assert_int_equal(board_rank_gone(ctl, 1), CAUSE_LEFT);
    assert_int_equal(board_rank_gone(ctl, 3), CAUSE_NONE);
    board_mark_gone(ctl, 0, 7, CAUSE_RANK_LOST, 1);
    gone_ms = board_gone_ms(ctl, 1);
    assert_true(gone_ms && gone_ms <= now_ms());
    board_mark_gone(ctl, 1, 9, CAUSE_RANK_LOST, 1); /* it was gone before */
    assert_int_equal(board_gone_ms(ctl, 1), gone_ms);
    assert_int_equal(board_gone_at(ctl, 0, &rank, &ops), CAUSE_LEFT);
    assert_int_equal(rank, 1);
    assert_int_equal(board_gone_at(ctl, 1, &rank, &ops), CAUSE_RANK_LOST);
    assert_int_equal(rank, 0);
    assert_int_equal(ops, 7);
    assert_int_equal(board_gone_at(ctl, 2, &rank, &ops), CAUSE_NONE);
    board_unmap(&b);
    board_ctl_free(ctl);
    close(fd);
}

/* A rank that nobody has to wait for outside of the group, and who is gone for operations, too. */
static void who_is_missed_is_not_gone(void **state)
{
    static const uint16_t nodes[4] = {0, 0, 1, 1};
    struct board_geom g = {
        .group = 5, .epoch = 1, .world = 4, .nnodes = 2, .nlocal = 2, .rank_node = nodes};
    struct board_ctl *ctl, *next;
    struct board b;
    int fd;

    (void)state;
    assert_int_equal(board_create(&g, &fd, &ctl), 0);
    assert_int_equal(board_map(fd, &b), 0);
    for (unsigned k = 0; k < 4; k++)
        assert_int_equal(board_missed(&b, k), CAUSE_NONE);
    board_mark_missed(ctl, 2, CAUSE_NODE_LOST);
    board_mark_missed(ctl, 3, CAUSE_NODE_LOST);
    board_mark_missed(ctl, 1, CAUSE_LEFT);
    board_mark_missed(ctl, 4, CAUSE_RANK_LOST); /* there are 4 */
    assert_int_equal(board_missed(&b, 2), CAUSE_NODE_LOST);
    board_mark_missed(ctl, 3, CAUSE_RANK_LOST); /* its node is back, and says so */
    for (unsigned k = 0; k < 4; k++)
        board_mark_missed(ctl, k, CAUSE_NONE);
    assert_int_equal(board_missed(&b, 1), CAUSE_LEFT);
    assert_int_equal(board_missed(&b, 2), CAUSE_NONE);
    assert_int_equal(board_missed(&b, 3), CAUSE_RANK_LOST);
    board_mark_missed(ctl, 3, CAUSE_NODE_LOST); /* it has died all the same */
    assert_int_equal(board_missed(&b, 3), CAUSE_RANK_LOST);
    for (unsigned k = 0; k < 4; k++)
        assert_false(board_is_gone(&b, k));
    assert_int_equal(board_first_dead(&b), -1);
    assert_int_equal(board_rank_gone(ctl, 1), CAUSE_NONE);

    board_mark_gone(ctl, 0, 7, CAUSE_LEFT, 1);
    board_mark_missed(ctl, 0, CAUSE_NODE_LOST);
    board_mark_missed(ctl, 2, CAUSE_NODE_LOST);
    assert_int_equal(board_missed(&b, 0), CAUSE_LEFT);
    assert_int_equal(board_adopt(&g, fd, &next), 0); /* told again: who is missed */
    assert_int_equal(board_missed(&b, 0), CAUSE_LEFT);
    assert_int_equal(board_missed(&b, 2), CAUSE_NONE);
    assert_int_equal(board_missed(&b, 3), CAUSE_NONE);
    board_mark_missed(next, 3, CAUSE_RANK_LOST);
    assert_int_equal(board_missed(&b, 3), CAUSE_RANK_LOST);
    b.ranks[3].cause = 0x7fffffff; /* whatever members write */
    assert_int_equal(board_missed(&b, 3), CAUSE_RANK_LOST);
    board_unmap(&b);
    board_ctl_free(ctl);
    board_ctl_free(next);
    close(fd);
}

/* The same of operations by commd-gpu, whatever the member writes there. */
static void what_a_seat_tells_of_gpus_is_checked(void **state)
{
    static const int32_t codes[] = {0,         -CAUSE_MISMATCH, -BOARD_GPU_LOST,    1,
                                    INT32_MAX, INT32_MIN,       -BOARD_GPU_LOST - 1};
    struct op_desc desc = {.seq = 1, .count = 10, .coll = COLL_ALL_REDUCE, .dtype = DTYPE_F32};
    struct board_seat seat;
    struct board_member *m;
    struct board_ctl *ctl;
    struct board b;
    int fd;

    assert_int_equal(board_create(&geom3, &fd, &ctl), 0);
    assert_int_equal(board_map(fd, &b), 0);
    m = &b.members[1];
    m->gpu_begun = m->gpu_ended = 1;
    recorder_gpu_begin(&b.recorders[1], &desc, 40, 1000000);
    for (unsigned i = 0; i < ARRAY_LEN(codes); i++) {
        recorder_gpu_end(&b.recorders[1], 1, codes[i], 2000000);
        board_seat(ctl, 1, 5000, &seat);
        assert_int_equal(seat.gpu.last.count, 10);
        assert_int_equal(seat.gpu.code, i < 3 ? codes[i] : -CAUSE_INTERNAL);
    }
    m->gpu_begun = 0x80000000u; /* as many as there are, and the next one has no number */
    m->gpu_ended = UINT32_MAX;
    m->gpu_ready_op = 0;
    m->gpu_ready_ms = 3000;
    board_seat(ctl, 1, 5000, &seat);
    assert_false(seat.gpu.pending);
    m->gpu_begun = 5;
    board_seat(ctl, 1, 5000, &seat);
    assert_true(seat.gpu.pending && seat.gpu.ready);
    assert_int_equal(seat.gpu.ms, 2000);
    assert_int_equal(seat.gpu.now.seq, 0);
    board_unmap(&b);
    board_ctl_free(ctl);
    close(fd);
}

/* ---- who writes which line ------------------------------------------------------------------- */

/* Writers: members by index, the engine, and words that several write because they are for that:
 * bells, and what all write to one. */
enum { MOVED = 90, ENGINE = 100, BELL = 200, READERS_OF = 300, TO = 400, MOST_WORDS = 4000 };

struct word {
    uintptr_t at;
    unsigned writer;
};

struct words {
    struct word word[MOST_WORDS];
    unsigned n;
};

static void add_word(struct words *w, const volatile void *at, size_t len, unsigned writer)
{
    for (uintptr_t line = (uintptr_t)at / CACHELINE; line <= ((uintptr_t)at + len - 1) / CACHELINE;
         line++) {
        assert_true(w->n < MOST_WORDS);
        w->word[w->n++] = (struct word){line, writer};
    }
}

static void add_member(struct words *w, const struct board *b, unsigned m)
{
    struct board_member *me = &b->members[m];

    add_word(w, &me->reduced, sizeof me->reduced, m);
    add_word(w, &me->consumed, sizeof me->consumed, m);
    add_word(w, &me->ops, sizeof me->ops, m);
    add_word(w, &me->started, sizeof me->started, m);
    for (uint32_t s = 0; s < BOARD_SLOTS; s++)
        add_word(w, board_slot(b, m, s), sizeof(struct board_slot), m);
    for (uint32_t s = 0; s < b->depth; s++)
        add_word(w, board_window(b, m, s, 1), b->chunk / 64, m);
}

static void add_mail(struct words *w, const struct board *b, unsigned m, const unsigned *local_of)
{
    const struct mail *mail = &b->mail;
    struct mail_box *box = mail_box(mail, m);

    add_word(w, &box->bell, sizeof box->bell, BELL + m);
    add_word(w, &box->sleepers, sizeof box->sleepers, BELL + m);
    add_word(w, box->out, sizeof box->out, READERS_OF + m);
    add_word(w, mail_bits(mail, m), mail->words * sizeof(uint64_t), TO + m);
    for (unsigned s = 0; s < mail->slots; s++) {
        add_word(w, &box->fill[s], sizeof box->fill[s], m);
        add_word(w, mail_out(mail, m, s), CACHELINE, m);
    }
    for (unsigned src = 0; src < b->world; src++) {
        struct mail_tx tx;

        mail_tx_init(mail, m, src, &tx);
        add_word(w, tx.cells, tx.len * sizeof *tx.cells, local_of[src]);
        add_word(w, tx.head, sizeof *tx.head, m); /* the reader's */
    }
    if (b->nnodes > 1) {
        struct mail_tx tx;

        mail_engine_tx_init(mail, m, &tx);
        add_word(w, tx.cells, tx.len * sizeof *tx.cells, m);
        add_word(w, tx.head, sizeof *tx.head, ENGINE);
        add_word(w, tx.word, sizeof *tx.word, TO + ENGINE);
    }
}

static int by_line(const void *a, const void *b)
{
    const struct word *x = a, *y = b;

    return x->at < y->at ? -1 : x->at > y->at;
}

/* What one process writes while others wait for something else must not be in their line. perf c2c
 * would show it where there are counters for it; this shows it everywhere. */
static void lines_have_one_writer(void **state)
{
    static const uint16_t one_node[] = {0, 0, 0};
    static const unsigned here[] = {0, 1, 2}, apart[] = {0, ENGINE, 1};
    static struct words w;

    for (unsigned several = 0; several < 2; several++) {
        struct board_geom g = geom3;
        struct board_ctl *ctl;
        struct board b;
        int fd;

        if (!several)
            g.nnodes = 1, g.nlocal = 3, g.rank_node = one_node;
        assert_int_equal(board_create(&g, &fd, &ctl), 0);
        assert_int_equal(board_map(fd, &b), 0);
        w.n = 0;
        add_word(&w, &b.hdr->bell, sizeof b.hdr->bell, BELL + 99);
        add_word(&w, &b.hdr->sleepers, sizeof b.hdr->sleepers, BELL + 99);
        add_word(&w, &b.hdr->published, sizeof b.hdr->published, ENGINE);
        add_word(&w, &b.hdr->sent, sizeof b.hdr->sent, ENGINE);
        add_word(&w, &b.hdr->refused, sizeof b.hdr->refused, ENGINE);
        add_word(&w, &b.hdr->engine_asleep, sizeof b.hdr->engine_asleep, TO + 98);
        add_word(&w, &b.hdr->broken, sizeof b.hdr->broken, TO + 97); /* commd, once */
        add_word(&w, b.on_core, b.nlocal * sizeof *b.on_core,
                 MOVED); /* whom the kernel has moved */
        for (unsigned m = 0; m < b.nlocal; m++) {
            add_member(&w, &b, m);
            add_mail(&w, &b, m, several ? apart : here);
        }
        qsort(w.word, w.n, sizeof *w.word, by_line);
        for (unsigned i = 1; i < w.n; i++)
            if (w.word[i].at == w.word[i - 1].at && w.word[i].writer != w.word[i - 1].writer)
                fail_msg("%u nodes: byte %zu of the board: its line is written by %u and by %u",
                         g.nnodes, (size_t)(w.word[i].at * CACHELINE - (uintptr_t)b.hdr),
                         w.word[i - 1].writer, w.word[i].writer);
        board_unmap(&b);
        board_ctl_free(ctl);
        close(fd);
    }
}

static void impossible_geometry_is_refused(void **state)
{
    struct board_geom g[] = {geom3, geom3, geom3, geom3};
    struct board_ctl *ctl;
    int fd;

    g[0].nlocal = 3; /* rank_node says two */
    g[1].me = 2;
    g[2].nnodes = 4; /* more nodes than ranks */
    g[3].world = 0;
    for (unsigned i = 0; i < ARRAY_LEN(g); i++)
        assert_int_equal(board_create(&g[i], &fd, &ctl), -EINVAL);
}

static int plain_memfd(size_t size, int seals)
{
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)size), 0);
    if (seals)
        assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

static void foreign_fds_are_refused(void **state)
{
    struct board b;
    int p[2], fd;

    fd = plain_memfd(1 << 20, 0); /* could shrink under us */
    assert_int_equal(board_map(fd, &b), BOARD_E_BAD);
    close(fd);
    fd = plain_memfd(1 << 20, F_SEAL_GROW | F_SEAL_SEAL);
    assert_int_equal(board_map(fd, &b), BOARD_E_BAD);
    close(fd);
    fd = plain_memfd(1 << 20, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL); /* sealed zeros */
    assert_int_equal(board_map(fd, &b), BOARD_E_BAD);
    close(fd);
    fd = plain_memfd(100, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    assert_int_equal(board_map(fd, &b), BOARD_E_BAD);
    close(fd);
    assert_int_equal(pipe(p), 0);
    assert_int_equal(board_map(p[0], &b), BOARD_E_BAD);
    close(p[0]);
    close(p[1]);
    fd = open("/proc/self/exe", O_RDONLY);
    assert_int_equal(board_map(fd, &b), BOARD_E_BAD);
    close(fd);
}

/* Every number of the header is checked before it bounds anything. */
static void contradicting_headers_are_refused(void **state)
{
    static const size_t fields[] = {
        offsetof(struct board_hdr, magic), offsetof(struct board_hdr, version),
        offsetof(struct board_hdr, world), offsetof(struct board_hdr, nnodes),
        offsetof(struct board_hdr, me),    offsetof(struct board_hdr, nlocal),
    };
    static const uint32_t values[] = {0, 77, 100000, UINT32_MAX};

    for (unsigned f = 0; f < ARRAY_LEN(fields); f++)
        for (unsigned v = 0; v < ARRAY_LEN(values); v++) {
            struct board_ctl *ctl;
            struct board b;
            uint8_t *map;
            int fd;

            if (fields[f] == offsetof(struct board_hdr, me) && values[v] == 0)
                continue; /* a valid one */
            assert_int_equal(board_create(&geom3, &fd, &ctl), 0);
            map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
            memcpy(map + fields[f], &values[v], sizeof values[v]);
            assert_int_equal(board_map(fd, &b), BOARD_E_BAD);
            munmap(map, 4096);
            board_ctl_free(ctl);
            close(fd);
        }
}

static void who_shares_a_core_knows(void **state)
{
    struct board_ctl *ctl;
    const cpu_set_t all = stay_on_core();
    const uint32_t core = core_now();
    struct board b;
    int fd;

    assert_in_range(core, 1, CPU_SETSIZE);
    assert_int_equal(board_create(&geom3, &fd, &ctl), 0);
    assert_int_equal(board_map(fd, &b), 0);
    assert_false(board_shares_core(&b, 0)); /* the other one has not been seen anywhere */
    assert_int_equal(atomic_load(&b.on_core[0]), core);
    assert_true(board_shares_core(&b, 1));
    atomic_store(&b.on_core[0], core + 1); /* it moved */
    assert_false(board_shares_core(&b, 1));
    atomic_store(&b.on_core[1], UINT32_MAX); /* nonsense: put right by whom it is about */
    assert_false(board_shares_core(&b, 1));
    assert_int_equal(atomic_load(&b.on_core[1]), core);
    leave_core(&all);
    board_unmap(&b);
    board_ctl_free(ctl);
    close(fd);
}

static void marks_are_written_once(void **state)
{
    struct board_ctl *ctl;
    struct board b;
    int fd;

    assert_int_equal(board_create(&geom3, &fd, &ctl), 0);
    assert_int_equal(board_map(fd, &b), 0);
    assert_int_equal(atomic_load(&b.ranks[1].gone), 0);
    board_mark_gone(ctl, 1, UINT32_MAX, CAUSE_RANK_LOST, 12); /* hostile counter: not "here" */
    assert_int_equal(atomic_load(&b.ranks[1].gone), UINT32_MAX);
    board_mark_gone(ctl, 1, 3, CAUSE_LEFT, 12);
    assert_int_equal(atomic_load(&b.ranks[1].gone), UINT32_MAX);
    assert_int_equal(atomic_load(&b.hdr->ngone), 1);
    board_mark_gone(ctl, 77, 3, CAUSE_LEFT, 12); /* no such rank */
    assert_int_equal(atomic_load(&b.hdr->ngone), 1);
    board_mark_broken(ctl, CAUSE_NODE_LOST, -1, 0, "b", "node b is gone");
    board_mark_broken(ctl, CAUSE_ABORTED, 2, 4, "a", "aborted");
    assert_int_equal(atomic_load(&b.hdr->broken), CAUSE_NODE_LOST);
    assert_string_equal(b.hdr->cause.text, "node b is gone");
    assert_int_equal(board_rank_ops(ctl, 5), 0); /* no such member */
    board_unmap(&b);
    board_ctl_free(ctl);
    close(fd);
}

/* Every word of the header in turn is what a member likes before commd comes: it marks and breaks
 * all the same, and its own words say so. */
static void members_cannot_keep_commd_from_marking(void **state)
{
    static const uint32_t values[] = {0,         1, 2, BOARD_BY_ENGINE, INT32_MAX, UINT32_MAX - 1,
                                      UINT32_MAX};

    for (size_t at = 0; at < sizeof(struct board_hdr); at += sizeof(uint32_t))
        for (unsigned v = 0; v < ARRAY_LEN(values); v++) {
            struct board_cause why;
            struct board_ctl *ctl;
            struct board b;
            int fd;

            assert_int_equal(board_create(&geom3, &fd, &ctl), 0);
            assert_int_equal(board_map(fd, &b), 0);
            memcpy((uint8_t *)b.hdr + at, &values[v], sizeof values[v]);
            atomic_store(&b.ranks[1].gone, values[v]); /* as if it had been marked */
            board_mark_gone(ctl, 1, 3, CAUSE_RANK_LOST, 12);
            assert_int_equal(atomic_load(&b.ranks[1].gone), 4);
            assert_int_equal(atomic_load(&b.hdr->ngone), 1);
            board_mark_broken(ctl, CAUSE_NODE_LOST, -1, 0, "b", "node b is gone");
            assert_int_not_equal(board_broken(b.hdr, &why), 0);
            if (at != offsetof(struct board_hdr, broken) || !values[v]) {
                assert_int_equal(board_broken(b.hdr, &why), CAUSE_NODE_LOST);
                assert_string_equal(why.text, "node b is gone");
            }
            atomic_store(&b.hdr->ngone, UINT32_MAX); /* counted by commd, not there */
            board_mark_gone(ctl, 2, 3, CAUSE_RANK_LOST, 12);
            assert_int_equal(atomic_load(&b.hdr->ngone), 2);
            board_unmap(&b);
            board_ctl_free(ctl);
            close(fd);
        }
}

/* commd and the engine each write their own cause, and the first of them is told. */
static void the_first_cause_is_told(void **state)
{
    struct board_cause why;
    struct board_ctl *ctl;
    struct board b;
    int fd;

    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(board_create(&geom3, &fd, &ctl), 0);
        assert_int_equal(board_map(fd, &b), 0);
        assert_int_equal(board_broken(b.hdr, &why), 0);
        if (i)
            board_break(b.hdr, CAUSE_ENGINE_LOST, -1, 0, "a", "commd is gone");
        board_mark_broken(ctl, CAUSE_NODE_LOST, -1, 0, "b", "node b is gone");
        board_break(b.hdr, CAUSE_ABORTED, 3, 4, "c", "too late");
        board_mark_broken(ctl, CAUSE_ABORTED, 3, 4, "c", "too late");
        assert_int_equal(board_broken(b.hdr, &why), i ? CAUSE_ENGINE_LOST : CAUSE_NODE_LOST);
        assert_string_equal(why.text, i ? "commd is gone" : "node b is gone");
        assert_string_equal(why.node, i ? "a" : "b");
        /* a member writes what it likes: the texts end all the same */
        memset(&b.hdr->cause, 'x', sizeof b.hdr->cause);
        atomic_store(&b.hdr->broken, CAUSE_COUNT + 5);
        assert_int_equal(board_broken(b.hdr, &why), CAUSE_RANK_LOST);
        assert_int_equal(strlen(why.text), BOARD_TEXT - 1);
        board_unmap(&b);
        board_ctl_free(ctl);
        close(fd);
    }
}

/* ---- plans ----------------------------------------------------------------------------------- */

static void check_plan(const struct op_desc *d, const struct plan_geom *g)
{
    struct plan p;
    uint64_t sum = 0;

    assert_true(plan_make(d, g, NULL, &p));
    assert_true(p.path == PATH_SMALL ? p.steps == 1 : p.steps >= 1);
    for (uint32_t c = 0; c < MIN(p.steps, 100000u); c++) {
        uint64_t n = plan_step_count(&p, c), parts = 0;
        size_t last = 0;

        sum += n;
        assert_true(n * p.esize <= plan_chunk(g));
        for (unsigned i = 0; i < 5; i++) {
            uint64_t lo, hi;
            plan_slice(n, 5, i, p.esize, &lo, &hi);
            assert_true(lo <= hi && hi <= n);
            parts += hi - lo;
        }
        assert_int_equal(parts, n);
        for (unsigned s = 0; s < g->nnodes; s++) {
            size_t lo, hi;
            plan_segment(&p, g, c, s, 1, &lo, &hi);
            assert_true(lo <= hi && hi <= plan_chunk(g));
            if (plan_swaps(&p))
                assert_true(lo == 0 && hi == n * p.esize);
            else if (coll_table[p.coll].window == WINDOW_BLOCKS ||
                     (p.coll == COLL_ALL_REDUCE && p.path != PATH_SMALL)) {
                assert_true(s == 0 ? lo == 0 : lo == last);
                last = hi;
            }
        }
        if (c > 50)
            return;
    }
    assert_int_equal(sum, p.count);
}

static bool in_few_messages(struct plan p)
{
    return p.path == PATH_STEPS &&
           (p.schedule == SCHED_HALVING_ALL_REDUCE || p.schedule == SCHED_HALVING_REDUCE_SCATTER ||
            p.schedule == SCHED_RD_ALL_GATHER);
}

/* Of @members with so many @cores on one node. */
static struct plan plan_alone(uint32_t members, uint32_t cores, unsigned coll, unsigned dtype,
                              uint64_t count)
{
    uint32_t start[] = {0, members};
    struct plan_geom g = {
        .world = members, .nnodes = 1, .nlocal = members, .cores = cores, .node_start = start};
    struct op_desc d = {.seq = 1, .coll = (uint8_t)coll, .dtype = (uint8_t)dtype, .count = count};
    struct plan p;

    assert_true(plan_make(&d, &g, NULL, &p));
    return p;
}

/* Who has a core for each member cuts medium sizes into several steps, others into one. */
static void medium_sizes_are_cut_by_cores(void **state)
{
    static const struct {
        uint64_t bytes;
        uint32_t cores, steps;
    } rows[] = {{9000, 4, 1},      {32 << 10, 4, 2}, {256 << 10, 4, 4},
                {1 << 20, 4, 4},   {4 << 20, 4, 16}, {32 << 10, 1, 1},
                {256 << 10, 1, 1}, {4 << 20, 1, 16}, {256 << 10, UINT32_MAX, 4}};

    for (unsigned i = 0; i < ARRAY_LEN(rows); i++)
        assert_int_equal(
            plan_alone(4, rows[i].cores, COLL_ALL_REDUCE, DTYPE_F32, rows[i].bytes / 4).steps,
            rows[i].steps);
}

/* What each member reduces for itself: more where a hand-over costs everybody a turn. */
static void small_is_larger_where_cores_are_shared(void **state)
{
    static const struct {
        uint32_t members, cores;
        uint64_t small;
    } rows[] = {{2, 2, 256 << 10}, {2, 64, 256 << 10}, {3, 3, 8 << 10},  {4, 4, 8 << 10},
                {8, 8, 2 << 10},   {4, 2, 64 << 10},   {8, 2, 32 << 10}, {16, 2, 8 << 10},
                {64, 2, 2 << 10},  {2, 0, 64 << 10},   {4, 3, 64 << 10}, {1000, 1, 2 << 10}};

    for (unsigned i = 0; i < ARRAY_LEN(rows); i++) {
        uint32_t members = rows[i].members, cores = rows[i].cores;
        uint64_t small = rows[i].small, half = MIN(small, UINT64_C(64) << 10) / 2;
        struct plan p;

        p = plan_alone(members, cores, COLL_ALL_REDUCE, DTYPE_U8, small);
        assert_true(!p.reduces && p.steps == 1);
        assert_true(plan_alone(members, cores, COLL_ALL_REDUCE, DTYPE_U8, small + 1).reduces);
        p = plan_alone(members, cores, COLL_ALL_REDUCE, DTYPE_BF16, half);
        assert_true(!p.reduces && p.steps == 1);
        assert_true(plan_alone(members, cores, COLL_ALL_REDUCE, DTYPE_BF16, half + 1).reduces);
    }
}

/* Few members: only the root reads what all have given, in steps so that it need not wait. */
static void root_reduces_alone(void **state)
{
    static const struct {
        uint32_t members, cores;
        bool alone;
    } rows[] = {{2, 2, true}, {2, 1, true},  {3, 2, true},
                {4, 2, true}, {3, 3, false}, {5, 2, false}};

    for (unsigned i = 0; i < ARRAY_LEN(rows); i++) {
        uint32_t members = rows[i].members, cores = rows[i].cores;
        struct plan p = plan_alone(members, cores, COLL_REDUCE, DTYPE_U8, 16 << 20);

        assert_int_equal(p.reduces, !rows[i].alone);
        assert_true(p.path == PATH_STEPS && p.steps > 1);
        assert_true(plan_alone(members, cores, COLL_ALL_REDUCE, DTYPE_U8, 16 << 20).reduces);
    }
}

static void plans_cover_every_element_once(void **state)
{
    static const uint64_t counts[] = {0,     1,     2,     63,    1000,  8192,   16385,     17000,
                                      20000, 24000, 24576, 65536, 65537, 262144, 3ull << 30};

    for (unsigned nnodes = 1; nnodes <= 7; nnodes++)
        for (unsigned coll = 0; coll <= COLL_ALL_TO_ALL; coll++)
            for (unsigned i = 0; i < ARRAY_LEN(counts); i++) {
                uint32_t start[9] = {0};
                struct plan_geom g = {.nnodes = nnodes, .node_start = start};
                struct op_desc d = {.seq = 1,
                                    .coll = (uint8_t)coll,
                                    .dtype = DTYPE_F64,
                                    .count = coll == COLL_BARRIER ? 0 : counts[i]};

                for (unsigned n = 0; n < nnodes; n++)
                    start[n + 1] = start[n] + 1 + n % 3;
                g.world = start[nnodes];
                g.nlocal = 1;
                check_plan(&d, &g);
            }
}

/* One element of each cell of 2 x 181 ranks just fits into a window across nodes. */
static void many_ranks_exchange(void **state)
{
    uint32_t start[] = {0, 181, 362};
    struct plan_geom g = {.world = 362, .nnodes = 2, .nlocal = 181, .node_start = start};
    static const unsigned colls[] = {COLL_ALL_TO_ALL, COLL_ALL_TO_ALL_V};
    struct plan p;

    for (unsigned i = 0; i < ARRAY_LEN(colls); i++)
        for (uint64_t count = 1; count <= 1 << 20; count *= 1024) {
            struct op_desc d = {.seq = 1,
                                .coll = (uint8_t)colls[i],
                                .dtype = DTYPE_F64,
                                .count = coll_table[colls[i]].counted ? 0 : count};

            assert_true(plan_make(&d, &g, NULL, &p));
            assert_true(p.path != PATH_OPEN || plan_close(&p, count));
            assert_true(p.unit >= 1 && p.unit * 8 * 362 * 181 <= PLAN_CHUNK_NET);
        }
}

/* Seconds by the formulas over plan_small_net(), in double. */
struct seconds {
    double doubling, halving, ring;
};

static struct seconds model(const struct plan_net *net, double n, double i, double s)
{
    double a = net->latency_us * 1e-6, b = net->mbytes_s * 1048576., e = PLAN_ENGINE_MBS * 1048576.;
    double r = 0, p = 1, o = PLAN_MESSAGE_NS * 1e-9, f;

    for (; 2 * p <= n; p *= 2)
        r++;
    f = p != n;
    return (struct seconds){
        .doubling = (r + 2 * f) * (s / b + s / e),
        .halving = (i * r + 2 * f) * (a + o * s / PLAN_CHUNK_HALVING) +
                   i * ((p - 1) / p + f) * s / b + (2 * n - 1) / n * s / e,
        .ring = i * (n - 1) * (a + o * s / PLAN_CHUNK_NET) + i * (n - 1) / n * s / b +
                (n - 1) / n * s / e,
    };
}

static const struct plan_net nets[] = {{30, 1024}, {5, 1024}, {2, 10000}, {100, 100}, {1, 50}};

static void small_between_nodes_follows_the_model(void **state)
{
    static const struct plan_net none = {0, 0}, slow = {1000000, 1}, quick = {1, 1 << 20};

    for (unsigned i = 0; i < ARRAY_LEN(nets); i++) {
        for (unsigned n = 3; n <= 1024; n += n < 20 ? 1 : 97) {
            uint64_t got = plan_small_net(&nets[i], n);
            struct seconds below = model(&nets[i], n, 2, (double)got * 0.99);
            struct seconds above = model(&nets[i], n, 2, (double)got * 1.01 + 4096);

            assert_int_equal(got % 4096, 0);
            assert_in_range(got, PLAN_SMALL, PLAN_SMALL_MOST);
            if (got > PLAN_SMALL)
                assert_true(below.doubling <= MIN(below.halving, below.ring));
            if (got < PLAN_SMALL_MOST)
                assert_true(above.doubling >= MIN(above.halving, above.ring));
        }
    }
    assert_int_equal(plan_small_net(&none, 3), plan_small_net(&nets[0], 3));
    for (unsigned n = 2; n <= 1024; n++) {
        assert_true(plan_small_net(&slow, n) <= PLAN_SMALL_MOST);
        assert_true(plan_small_net(&quick, n) >= PLAN_SMALL);
    }
    assert_int_equal(plan_small_net(&slow, 2), PLAN_SMALL_NET);
}

static void check_halving(const struct plan_net *net, unsigned coll, unsigned n)
{
    uint64_t got = plan_halving_net(net, n, coll);
    double edge = got == UINT64_MAX ? 1e15 : (double)got, halves = coll == COLL_ALL_REDUCE ? 2 : 1;
    struct seconds below = model(net, n, halves, edge * 0.99),
                   above = model(net, n, halves, edge * 1.01 + 1);

    if (got)
        assert_true(below.halving <= below.ring);
    if (got < UINT64_MAX)
        assert_true(above.halving >= above.ring);
}

static void halving_follows_the_model(void **state)
{
    static const unsigned colls[] = {COLL_ALL_REDUCE, COLL_ALL_GATHER, COLL_REDUCE_SCATTER_V};

    for (unsigned i = 0; i < ARRAY_LEN(nets); i++)
        for (unsigned c = 0; c < ARRAY_LEN(colls); c++) {
            for (unsigned n = 3; n <= 1024; n++)
                check_halving(&nets[i], colls[c], n);
            assert_int_equal(plan_halving_net(&nets[i], 2, colls[c]), 0);
            assert_int_equal(plan_halving_net(&nets[i], 3, colls[c]), 0);
            assert_int_equal(plan_halving_net(&nets[i], 1024, colls[c]), UINT64_MAX);
        }
}

static void an_all_reduce_is_cut_as_the_model_says(void **state)
{
    static const uint32_t start[] = {0, 1, 2, 3, 4}, positions[] = {0, 1, 2, 3};
    struct plan_geom g = {
        .world = 4, .nnodes = 4, .nlocal = 1, .node_start = start, .rank_at = positions};
    struct op_desc d = {.seq = 1, .coll = COLL_ALL_REDUCE, .dtype = DTYPE_U8, .redop = REDOP_SUM};
    struct plan p;

    for (unsigned i = 0; i < 2; i++) {
        g.net = i ? (struct plan_net){3, 1024} : (struct plan_net){0, 0};
        d.count = plan_small_net(&g.net, 4);
        assert_true(plan_make(&d, &g, NULL, &p));
        assert_int_equal(p.path, PATH_SMALL);
        d.count++;
        assert_true(plan_make(&d, &g, NULL, &p));
        assert_int_equal(p.path, PATH_STEPS);
        assert_int_equal(in_few_messages(p),
                         d.count <= plan_halving_net(&g.net, 4, COLL_ALL_REDUCE));
        d.count = plan_halving_net(&g.net, 4, COLL_ALL_REDUCE);
        assert_true(plan_make(&d, &g, NULL, &p));
        assert_true(p.path == PATH_SMALL || in_few_messages(p));
        d.count++;
        assert_true(plan_make(&d, &g, NULL, &p));
        assert_false(in_few_messages(p));
    }
}

/* One rank on each of @n nodes, @bytes in all, u8. */
static struct plan plan_over(unsigned n, unsigned coll, uint64_t bytes)
{
    uint32_t start[17], positions[16];
    uint64_t counts[16];
    struct plan_geom g = {
        .world = n, .nnodes = n, .nlocal = 1, .node_start = start, .rank_at = positions};
    struct op_desc d = {
        .seq = 1, .coll = (uint8_t)coll, .dtype = DTYPE_U8, .redop = REDOP_SUM, .count = bytes};
    struct plan p;

    for (unsigned i = 0; i <= n; i++)
        start[i] = i;
    for (unsigned i = 0; i < n; i++) {
        positions[i] = i;
        counts[i] = bytes / n + (i < bytes % n);
    }
    if (coll_table[coll].window == WINDOW_BLOCKS)
        d.count = bytes / n;
    if (coll_table[coll].counted) {
        d.count = counts[0];
        d.digest = op_digest(counts, n);
    }
    assert_true(plan_make(&d, &g, counts, &p));
    return p;
}

/* Members and engine read both from the plan, and decide nothing again. */
static void each_operation_has_a_path_and_a_schedule(void **state)
{
    static const struct {
        unsigned nodes, coll;
        uint64_t bytes;
        unsigned path, schedule;
    } rows[] = {
        {2, COLL_BARRIER, 0, PATH_SMALL, SCHED_RD_ALL_REDUCE},
        {2, COLL_ALL_REDUCE, 8, PATH_SMALL, SCHED_RD_ALL_REDUCE},
        {2, COLL_ALL_REDUCE, 1 << 20, PATH_STEPS, SCHED_EXCHANGE},
        {8, COLL_ALL_REDUCE, 1 << 20, PATH_STEPS, SCHED_HALVING_ALL_REDUCE},
        {8, COLL_ALL_REDUCE, 64 << 20, PATH_STEPS, SCHED_RING_ALL_REDUCE},
        {8, COLL_BROADCAST, 8, PATH_SMALL, SCHED_RD_BROADCAST},
        {8, COLL_BROADCAST, 1 << 20, PATH_STEPS, SCHED_CHAIN_BROADCAST},
        {8, COLL_REDUCE, 8, PATH_SMALL, SCHED_RD_REDUCE},
        {8, COLL_REDUCE, 1 << 20, PATH_STEPS, SCHED_CHAIN_REDUCE},
        {8, COLL_ALL_GATHER, 64, PATH_SMALL, SCHED_RD_ALL_GATHER},
        {8, COLL_ALL_GATHER, 128 << 10, PATH_STEPS, SCHED_RD_ALL_GATHER},
        {2, COLL_ALL_GATHER, 64 << 20, PATH_STEPS, SCHED_RING_ALL_GATHER},
        {8, COLL_REDUCE_SCATTER, 64, PATH_STEPS, SCHED_HALVING_REDUCE_SCATTER},
        {2, COLL_REDUCE_SCATTER, 64, PATH_STEPS, SCHED_RING_REDUCE_SCATTER},
        {8, COLL_REDUCE_SCATTER_V, 0, PATH_STEPS, SCHED_RING_REDUCE_SCATTER},
        {8, COLL_GATHER, 64, PATH_STEPS, SCHED_TO_ROOT},
        {8, COLL_SCATTER, 64, PATH_STEPS, SCHED_FROM_ROOT},
        {2, COLL_ALL_TO_ALL, 64, PATH_STEPS, SCHED_EXCHANGE},
    };
    static const struct {
        unsigned coll;
        uint64_t bytes;
        unsigned path;
    } alone[] = {
        {COLL_BARRIER, 0, PATH_SMALL},
        {COLL_ALL_REDUCE, 8, PATH_SMALL},
        {COLL_ALL_REDUCE, 32 << 10, PATH_STEPS},
        {COLL_ALL_REDUCE, 1 << 20, PATH_REGISTERED},
        {COLL_ALL_TO_ALL, 1 << 20, PATH_STEPS},
        {COLL_BROADCAST, PLAN_REGISTERED_READ - 1, PATH_STEPS},
        {COLL_BROADCAST, PLAN_REGISTERED_READ, PATH_REGISTERED},
    };

    for (unsigned i = 0; i < ARRAY_LEN(rows); i++) {
        struct plan p = plan_over(rows[i].nodes, rows[i].coll, rows[i].bytes);

        if (p.path != rows[i].path || p.schedule != rows[i].schedule)
            fail_msg("row %u: path %u, schedule %u", i, p.path, p.schedule);
        assert_int_equal(plan_swaps(&p), i == 2);
    }
    for (unsigned i = 0; i < ARRAY_LEN(alone); i++)
        assert_int_equal(plan_alone(4, 4, alone[i].coll, DTYPE_U8, alone[i].bytes).path,
                         alone[i].path);
}

static void who_halves_and_in_which_steps(void **state)
{
    static const unsigned colls[] = {COLL_ALL_REDUCE, COLL_ALL_GATHER, COLL_REDUCE_SCATTER,
                                     COLL_ALL_GATHER_V, COLL_REDUCE_SCATTER_V};
    static const struct plan_net net = {0, 0};

    for (unsigned c = 0; c < ARRAY_LEN(colls); c++)
        for (unsigned n = 2; n <= 16; n++) {
            uint64_t most = plan_halving_net(&net, n, colls[c]) / n * n;

            if (most >= 192 << 10) {
                struct plan p = plan_over(n, colls[c], most);

                assert_true(in_few_messages(p));
                assert_true(p.unit * (coll_table[colls[c]].window == WINDOW_BLOCKS ? n : 1) <=
                            PLAN_CHUNK_HALVING);
            }
            assert_false(in_few_messages(plan_over(n, colls[c], most + n)));
            assert_false(in_few_messages(plan_over(n, colls[c], 64 << 20)));
            assert_false(in_few_messages(plan_over(n, colls[c], 0)));
        }
    assert_true(in_few_messages(plan_over(8, COLL_REDUCE_SCATTER, 64)));
    assert_true(in_few_messages(plan_over(16, COLL_ALL_REDUCE, 7 << 20)));
    assert_false(in_few_messages(plan_over(8, COLL_BROADCAST, 1 << 20)));
    assert_false(in_few_messages(plan_over(8, COLL_ALL_TO_ALL, 64)));
}

static void hostile_descriptions_have_no_plan(void **state)
{
    uint32_t start[] = {0, 2, 4};
    struct plan_geom g = {.world = 4, .nnodes = 2, .nlocal = 2, .node_start = start};
    struct op_desc bad[] = {
        {.coll = COLL_COUNT},
        {.coll = 255},
        {.coll = COLL_ALL_REDUCE, .dtype = DTYPE_COUNT, .count = 1},
        {.coll = COLL_ALL_REDUCE, .redop = REDOP_COUNT, .count = 1},
        {.coll = COLL_ALL_REDUCE, .dtype = DTYPE_BOOL, .redop = REDOP_AVG, .count = 1},
        {.coll = COLL_BROADCAST, .root = 4, .count = 1},
        {.coll = COLL_ALL_GATHER, .dtype = DTYPE_I64, .count = UINT64_MAX / 8},
        {.coll = COLL_ALL_REDUCE, .dtype = DTYPE_I64, .count = UINT64_MAX},
        {.coll = COLL_BARRIER, .count = 1},
    };
    struct plan p;

    for (unsigned i = 0; i < ARRAY_LEN(bad); i++)
        assert_false(plan_make(&bad[i], &g, NULL, &p));
}

/* A count near 2^64 must not wrap to an operation of no steps, which nobody would ever end. */
static void no_count_wraps(void **state)
{
    static const uint32_t start[] = {0, 2, 4}, pos[] = {0, 1, 2, 3};

    for (unsigned coll = 0; coll < COLL_COUNT; coll++)
        for (unsigned bit = 0; bit <= 64; bit++)
            for (int64_t off = -4; off <= 4; off++) {
                struct plan_geom g = {.world = 4,
                                      .nnodes = 1 + bit % 2,
                                      .nlocal = 2,
                                      .node_start = start,
                                      .rank_at = pos,
                                      .cores = 4};
                uint64_t n = (bit < 64 ? (uint64_t)1 << bit : 0) + (uint64_t)off;
                uint64_t counts[4] = {n, 0, n, 1};
                struct op_desc d = {.coll = (uint8_t)coll, .dtype = DTYPE_F64};
                struct plan p;

                if (bit % 2 == 0)
                    g.node_start = (const uint32_t[]){0, 4}, g.nlocal = 4;
                d.count =
                    coll_table[coll].counted && coll_table[coll].window == WINDOW_CELLS ? 0 : n;
                if (!plan_make(&d, &g, counts, &p) || (p.path == PATH_OPEN && !plan_close(&p, n)))
                    continue;
                assert_in_range(p.steps, 1, INT32_MAX / 2);
                assert_true(p.unit >= 1);
                if (coll_table[coll].window != WINDOW_NONE) {
                    assert_true((__uint128_t)p.steps * p.unit >= n);
                    assert_true((__uint128_t)n * 8 < SIZE_MAX);
                }
            }
}

/* ---- waiting --------------------------------------------------------------------------------- */

enum { SLEEP_MS = 60000 }; /* longer than a thread waits for a core */

struct pair {
    _Atomic uint32_t bell, sleepers, value;
};

static void *waker(void *arg)
{
    struct pair *p = arg;

    for (uint32_t i = 1; i <= 20000; i++) {
        while (atomic_load(&p->value) != 2 * i - 1)
            cpu_relax();
        atomic_store_explicit(&p->value, 2 * i, memory_order_release);
        bell_ring(&p->bell, &p->sleepers);
    }
    return NULL;
}

/* A lost wake-up would cost the full time-out of the sleep, and the test counts those. */
static void no_wake_up_is_lost(void **state)
{
    struct pair p = {0};
    pthread_t t;
    unsigned slept_out = 0;

    pthread_create(&t, NULL, waker, &p);
    for (uint32_t i = 1; i <= 20000; i++) {
        atomic_store(&p.value, 2 * i - 1);
        while (atomic_load_explicit(&p.value, memory_order_acquire) != 2 * i) {
            uint32_t ticket = bell_prepare(&p.bell, &p.sleepers);
            uint64_t before;

            if (atomic_load(&p.value) == 2 * i) {
                bell_cancel(&p.sleepers);
                continue;
            }
            before = now_ms();
            bell_sleep(&p.bell, &p.sleepers, ticket, SLEEP_MS);
            slept_out += now_ms() - before >= SLEEP_MS;
        }
    }
    pthread_join(t, NULL);
    assert_int_equal(slept_out, 0);
    assert_int_equal(atomic_load(&p.sleepers), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(created_board_maps),
        cmocka_unit_test(members_read_whether_all_nodes_have_gpus),
        cmocka_unit_test(members_read_which_plans_all_know),
        cmocka_unit_test(a_seat_tells_what_its_member_does),
        cmocka_unit_test(who_is_missed_is_not_gone),
        cmocka_unit_test(what_a_seat_tells_of_gpus_is_checked),
        cmocka_unit_test(impossible_geometry_is_refused),
        cmocka_unit_test(lines_have_one_writer),
        cmocka_unit_test(foreign_fds_are_refused),
        cmocka_unit_test(contradicting_headers_are_refused),
        cmocka_unit_test(who_shares_a_core_knows),
        cmocka_unit_test(marks_are_written_once),
        cmocka_unit_test(members_cannot_keep_commd_from_marking),
        cmocka_unit_test(the_first_cause_is_told),
        cmocka_unit_test(medium_sizes_are_cut_by_cores),
        cmocka_unit_test(small_is_larger_where_cores_are_shared),
        cmocka_unit_test(root_reduces_alone),
        cmocka_unit_test(plans_cover_every_element_once),
        cmocka_unit_test(many_ranks_exchange),
        cmocka_unit_test(hostile_descriptions_have_no_plan),
        cmocka_unit_test(no_count_wraps),
        cmocka_unit_test(small_between_nodes_follows_the_model),
        cmocka_unit_test(halving_follows_the_model),
        cmocka_unit_test(an_all_reduce_is_cut_as_the_model_says),
        cmocka_unit_test(each_operation_has_a_path_and_a_schedule),
        cmocka_unit_test(who_halves_and_in_which_steps),
        cmocka_unit_test(no_wake_up_is_lost),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

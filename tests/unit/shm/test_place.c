/* test_place.c - which pages of a board are put on their reader's node of memory, and what is done
 * where that is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <sys/mman.h>
#include <unistd.h>

#include "shm/board/place.h"

enum { WORLD = 6, NODE = 5 };

static struct {
    uint8_t *at;
    size_t len;
} placed[4];
static unsigned n_placed;

static bool note(void *at, size_t len, unsigned node)
{
    assert_int_equal(node, NODE);
    assert_true(n_placed < ARRAY_LEN(placed));
    placed[n_placed].at = at;
    placed[n_placed++].len = len;
    return true;
}

static bool refuse(void *at, size_t len, unsigned node)
{
    n_placed++;
    return false;
}

static void make_board(unsigned nnodes, unsigned memory_nodes, struct board *ret_board)
{
    static const uint16_t one[WORLD], two[WORLD] = {0, 0, 0, 1, 1, 1};
    static struct topology machine;
    const struct board_geom g = {.group = 1,
                                 .epoch = 1,
                                 .world = WORLD,
                                 .nnodes = nnodes,
                                 .nlocal = WORLD / nnodes,
                                 .rank_node = nnodes > 1 ? two : one,
                                 .machine = &machine};
    struct board_ctl *ctl;
    int fd;

    machine = (struct topology){.cpus = 2, .cores = 2, .caches = 1, .nodes = memory_nodes};
    n_placed = 0;
    assert_int_equal(board_create(&g, &fd, &ctl), 0);
    assert_int_equal(board_map(fd, ret_board), 0);
    assert_int_equal(ret_board->memory_nodes, memory_nodes);
    board_ctl_free(ctl);
    close(fd);
}

static uint8_t *ring(const struct board *b, unsigned local)
{
    struct mail_rx rx;

    mail_rx_init(&b->mail, local, 0, &rx);
    return (uint8_t *)rx.cells;
}

static size_t rings_len(const struct board *b)
{
    return (size_t)WORLD * b->mail.ring * sizeof(struct mail_rec);
}

static void rings_lie_where_their_reader_is(void **state)
{
    struct board b;

    make_board(1, 2, &b);
    place_member(&b, 1, NODE, note);
    assert_int_equal(n_placed, 1);
    assert_ptr_equal(placed[0].at, ring(&b, 1));
    assert_int_equal(placed[0].len, rings_len(&b));
    board_unmap(&b);
}

/* So does what comes from other nodes. */
static void so_does_what_the_engine_writes(void **state)
{
    struct board b;

    make_board(2, 2, &b);
    place_member(&b, 2, NODE, note);
    assert_int_equal(n_placed, 3);
    assert_ptr_equal(placed[1].at, mail_in(&b.mail, 2, 0));
    assert_int_equal(placed[1].len, MAIL_IN_SLOTS * b.mail.chunk);
    assert_ptr_equal(placed[2].at, mail_rx_slot(&b.mail, 2, 0, 0));
    assert_int_equal(placed[2].len, MAIL_RX_SLOTS * WORLD * b.mail.rx_bytes);
    assert_true(placed[2].at + placed[2].len <= b.mail.base + b.mail.size);
    board_unmap(&b);
}

static unsigned resident(uint8_t *at, size_t len)
{
    unsigned char pages[1024];
    unsigned n = 0;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);

    assert_int_equal(mincore(at, len, pages), 0);
    for (size_t i = 0; i < len / page; i++)
        n += pages[i] & 1;
    return n;
}

/* Then the reader is the first to touch its rings, and nobody else's. */
static void who_is_refused_touches_first(void **state)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    struct board b;

    make_board(2, 2, &b);
    if (rings_len(&b) < page) {
        board_unmap(&b);
        skip(); /* pages so large that several members share one */
    }
    assert_int_equal(resident(ring(&b, 0), 3 * rings_len(&b)), 0);
    place_member(&b, 1, NODE, refuse);
    assert_int_equal(n_placed, 1);
    assert_int_equal(resident(ring(&b, 1), rings_len(&b)), rings_len(&b) / page);
    assert_int_equal(resident(ring(&b, 0), 3 * rings_len(&b)), rings_len(&b) / page);
    board_unmap(&b);
}

/* Where there is one node of memory nothing is asked of the system, and no page is used. */
static void one_node_of_memory_is_as_before(void **state)
{
    struct board b;

    make_board(1, 1, &b);
    place_joined(&b, 1);
    assert_int_equal(resident(ring(&b, 0), WORLD * rings_len(&b)), 0);
    board_unmap(&b);
}

/* With the system's own call, on the node that there is: it takes it, or refuses. */
static void the_system_is_asked(void **state)
{
    struct board b;
    bool bound;

    make_board(1, 2, &b);
    bound = place_bind(ring(&b, 1), rings_len(&b), 0);
    assert_true(bound || errno == EPERM || errno == ENOSYS || errno == EINVAL);
    assert_int_equal(resident(ring(&b, 0), WORLD * rings_len(&b)), 0);
    memset(ring(&b, 1), 7, rings_len(&b));
    assert_int_equal(ring(&b, 1)[rings_len(&b) - 1], 7);
    assert_false(place_bind(ring(&b, 1), rings_len(&b), UINT32_MAX));
    place_joined(&b, 2); /* whatever this machine is */
    board_unmap(&b);
}

static void tuning_says_how(void **state)
{
    const char *way = place_way();

    assert_true(!strcmp(way, "no") || !strcmp(way, "bind") || !strcmp(way, "touch"));
    assert_int_equal(!strcmp(way, "no"), topology_here()->nodes < 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rings_lie_where_their_reader_is),
        cmocka_unit_test(so_does_what_the_engine_writes),
        cmocka_unit_test(who_is_refused_touches_first),
        cmocka_unit_test(one_node_of_memory_is_as_before),
        cmocka_unit_test(the_system_is_asked),
        cmocka_unit_test(tuning_says_how),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

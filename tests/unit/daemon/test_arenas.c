/* test_arenas.c - what commd takes for an arena, of whom, and how many. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>
#include <fcntl.h>
#include <sys/mman.h>

#include "daemon/memory/arenas.h"
#include "shm/util/memfd.h"

enum { SLOTS = 4, SIZE = 1 << 20, UID = 1000 };

static struct arenas arenas;
static char why[MSG_TEXT_MAX];

static int begin(void **state)
{
    (void)state;
    return arenas_init(&arenas, SLOTS);
}

static int end(void **state)
{
    (void)state;
    arenas_fini(&arenas);
    return 0;
}

static enum cause add(unsigned slot, uint32_t uid, uint64_t arena, uint64_t said, int fd)
{
    struct msg_arena_add msg = {.arena = arena, .size = said};
    int theirs = fcntl(fd, F_DUPFD_CLOEXEC, 0), given = theirs;
    enum cause cause;

    why[0] = 0;
    cause = arenas_add(&arenas, slot, uid, &msg, &given, why, sizeof(why));
    if (cause == CAUSE_NONE) {
        assert_int_equal(given, -1); /* taken over */
        assert_int_equal(arenas_fd(&arenas, slot, uid, arena), theirs);
    } else {
        assert_int_equal(given, theirs); /* still ours */
        close_fdp(&given);
    }
    return cause;
}

static int sealed(size_t size)
{
    int fd = -1;

    assert_int_equal(memfd_new("arena", size, &fd), 0);
    return fd;
}

static void taken_found_and_let_go(void **state)
{
    int fd = sealed(SIZE);

    (void)state;
    assert_int_equal(add(1, UID, 7, SIZE, fd), CAUSE_NONE);
    assert_int_equal(add(2, UID, 7, SIZE, fd), CAUSE_NONE); /* numbers are each client's own */
    close(fd);
    assert_true(arenas_fd(&arenas, 1, UID, 7) >= 0);
    assert_int_equal(arenas_fd(&arenas, 1, UID, 8), -1);
    assert_int_equal(arenas_fd(&arenas, 3, UID, 7), -1);
    assert_int_equal(arenas_fd(&arenas, 1, UID + 1, 7), -1);
    assert_int_equal(arenas_bytes(&arenas, 1), SIZE);
    assert_int_equal(arenas_bytes(&arenas, 0), 0);
    arenas_del(&arenas, 1, 8);
    arenas_del(&arenas, 1, 7);
    arenas_del(&arenas, 1, 7);
    assert_int_equal(arenas_fd(&arenas, 1, UID, 7), -1);
    assert_int_equal(arenas.count, 1);
    arenas_drop(&arenas, 2);
    assert_int_equal(arenas.count, 0);
}

static void only_what_cannot_shrink(void **state)
{
    int good = sealed(SIZE), open = memfd_create("open", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    FILE *disk = tmpfile();

    (void)state;
    assert_int_equal(ftruncate(open, SIZE), 0);
    assert_int_equal(ftruncate(fileno(disk), SIZE), 0);
    assert_int_equal(add(0, UID, 1, SIZE, open), CAUSE_INVALID);
    assert_non_null(strstr(why, "sealed"));
    assert_int_equal(add(0, UID, 1, SIZE, fileno(disk)), CAUSE_INVALID);
    assert_int_equal(add(0, UID, 1, SIZE, -1), CAUSE_INVALID);
    assert_int_equal(add(0, UID, 1, SIZE + 4096, good), CAUSE_INVALID);
    assert_non_null(strstr(why, "large"));
    assert_int_equal(add(0, UID, 1, SIZE, good), CAUSE_NONE);
    assert_int_equal(add(0, UID, 1, SIZE, good), CAUSE_INVALID);
    assert_non_null(strstr(why, "taken"));
    assert_int_equal(arenas.count, 1);
    close(good);
    close(open);
    fclose(disk);
}

static void quotas(void **state)
{
    int fd = sealed(SIZE);

    (void)state;
    arenas.max_bytes = 3 * SIZE + 1;
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(add(i % 2, UID, i, SIZE, fd), CAUSE_NONE);
    assert_int_equal(add(2, UID, 9, SIZE, fd), CAUSE_QUOTA);
    assert_non_null(strstr(why, "3 MiB"));
    assert_int_equal(add(2, UID + 1, 9, SIZE, fd), CAUSE_NONE); /* of each user */
    arenas_del(&arenas, 1, 1);
    assert_int_equal(add(2, UID, 10, SIZE, fd), CAUSE_NONE);

    arenas.max_bytes = UINT64_MAX;
    arenas.max_per_user = 4;
    assert_int_equal(add(2, UID, 11, SIZE, fd), CAUSE_NONE);
    assert_int_equal(add(2, UID, 12, SIZE, fd), CAUSE_QUOTA);
    assert_int_equal(add(2, UID + 1, 12, SIZE, fd), CAUSE_NONE);
    arenas.max = arenas.count;
    assert_int_equal(add(2, UID + 1, 13, SIZE, fd), CAUSE_QUOTA);
    assert_non_null(strstr(why, "LimitNOFILE"));
    for (unsigned i = 0; i < SLOTS; i++)
        arenas_drop(&arenas, i);

    /* of 16: 8 for the first user, 4 for the second, 2 for the third */
    arenas.max = 16;
    arenas.max_per_user = 12;
    for (unsigned user = 0, most = 8; user < 3; user++, most /= 2) {
        for (unsigned i = 0; i < most; i++)
            assert_int_equal(add(user, UID + user, i, SIZE, fd), CAUSE_NONE);
        assert_int_equal(add(user, UID + user, 99, SIZE, fd), CAUSE_QUOTA);
        assert_non_null(strstr(why, "LimitNOFILE"));
    }
    arenas_del(&arenas, 2, 0);
    assert_int_equal(add(2, UID + 2, 99, SIZE, fd), CAUSE_NONE);

    for (unsigned i = 0; i < SLOTS; i++)
        arenas_drop(&arenas, i);
    arenas.max = arenas.max_per_user = UINT32_MAX;
    for (unsigned i = 0; i < ARENAS_PER_CLIENT; i++)
        assert_int_equal(add(3, UID, i, SIZE, fd), CAUSE_NONE);
    assert_int_equal(add(3, UID, 1000, SIZE, fd), CAUSE_QUOTA);
    assert_int_equal(add(2, UID, 1000, SIZE, fd), CAUSE_NONE);
    close(fd);
    for (unsigned i = 0; i < SLOTS; i++)
        arenas_drop(&arenas, i);
    assert_int_equal(arenas.count, 0);
    for (unsigned i = 0; i < SLOTS; i++)
        assert_int_equal(arenas.counts[i], 0);
    for (unsigned i = 0; i < ARENA_USER_BUCKETS; i++)
        assert_null(arenas.users[i]);
}

static int gate[2];

static void wait_at_gate(void *arg)
{
    (void)!read(gate[0], &(char){0}, 1);
}

/* What its user gave back is in the way of that user until it is closed. */
static void not_closed_yet_is_not_free(void **state)
{
    int fd = sealed(SIZE);

    (void)state;
    assert_int_equal(closer_new(&arenas.closer), 0);
    assert_int_equal(pipe(gate), 0);
    arenas.max_per_user = 4;
    closer_call(arenas.closer, UID, wait_at_gate, NULL);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(add(0, UID, i, SIZE, fd), CAUSE_NONE);
    assert_int_equal(add(0, UID, 9, SIZE, fd), CAUSE_QUOTA);
    arenas_del(&arenas, 0, 0);
    arenas_drop(&arenas, 0);
    assert_int_equal(closer_pending(arenas.closer, UID), 4);
    assert_int_equal(add(0, UID, 9, SIZE, fd), CAUSE_QUOTA);
    assert_int_equal(add(0, UID + 1, 9, SIZE, fd), CAUSE_NONE);
    close(gate[1]);
    while (closer_pending(arenas.closer, UID))
        usleep(1000);
    assert_int_equal(add(0, UID, 10, SIZE, fd), CAUSE_NONE);
    close(gate[0]);
    close(fd);
    arenas_drop(&arenas, 0);
    closer_free(arenas.closer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(taken_found_and_let_go, begin, end),
        cmocka_unit_test_setup_teardown(only_what_cannot_shrink, begin, end),
        cmocka_unit_test_setup_teardown(quotas, begin, end),
        cmocka_unit_test_setup_teardown(not_closed_yet_is_not_free, begin, end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_boards.c - what users hold of boards, against what is true: whoever holds one late, and
 * however it is held. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include "daemon/memory/boards.h"
#include "daemon/core/share.h"
#include "shm/util/memfd.h"
#include "tests/lib/descriptors.h"

enum { UID = 1000, USERS = 3, MAX = 48, ROUNDS = 3000 };

static struct boards boards;
static struct board_limits limits;
static char why[512];
static const uint16_t rank_node[] = {0};
static size_t size; /* of one board */

static struct board_geom geom_of(uint64_t group)
{
    return (struct board_geom){
        .group = group, .epoch = 1, .world = 1, .nnodes = 1, .nlocal = 1, .rank_node = rank_node};
}

static int begin(void **state)
{
    struct board_geom geom = geom_of(1);

    (void)state;
    size = board_size(&geom);
    limits = (struct board_limits){UINT64_MAX / 4, UINT64_MAX / 4, 1u << 20, 1u << 20};
    return boards_init(&boards, MAX);
}

static int end(void **state)
{
    (void)state;
    boards_fini(&boards);
    return 0;
}

static int make(uint64_t group, uint32_t uid)
{
    struct board_geom geom = geom_of(group);
    struct board_entry *entry;
    int fd = -1;

    assert_int_equal(boards_add(&boards, &geom, uid, &entry, &fd), 0);
    assert_ptr_equal(boards_find(&boards, group), entry);
    return fd;
}

static void assert_held(uint32_t uid, unsigned want)
{
    unsigned count;
    size_t bytes;

    boards_held(&boards, uid, &bytes, &count);
    assert_int_equal(count, want);
    assert_int_equal(bytes, want * size);
}

/* ---- who holds on to a board ------------------------------------------------------------ */

enum how { BY_FD, BY_MAP, BY_READING_MAP, IN_FLIGHT, BY_CHILD, HOWS };

struct holding {
    enum how how;
    void *map;
    int fd, pair[2];
    pid_t child;
};

static void send_fd(int sock, int fd)
{
    union {
        char buf[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {0};
    struct iovec iov = {.iov_base = "x", .iov_len = 1};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.buf,
                         .msg_controllen = sizeof(control.buf)};
    struct cmsghdr *c = CMSG_FIRSTHDR(&msg);

    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(c), &fd, sizeof(fd));
    assert_int_equal(sendmsg(sock, &msg, 0), 1);
}

/* Takes over @fd. */
static struct holding hold(int fd, enum how how)
{
    struct holding h = {.how = how, .fd = -1};
    char byte;

    switch (how) {
    case BY_FD:
        h.fd = steal_fd(&fd);
        break;
    case BY_MAP:
    case BY_READING_MAP:
        h.map =
            mmap(NULL, size, how == BY_MAP ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
        assert_true(h.map != MAP_FAILED);
        madvise(h.map, size, MADV_DONTFORK);
        break;
    case IN_FLIGHT:
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, h.pair), 0);
        send_fd(h.pair[0], fd);
        break;
    case BY_CHILD:
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, h.pair), 0);
        h.child = fork();
        if (h.child == 0) {
            for (int i = 3; i < 1024; i++) /* those that belong to others */
                if (i != fd && i != h.pair[1])
                    close(i);
            if (write(h.pair[1], "r", 1) == 1 && read(h.pair[1], &byte, 1) == 1)
                _exit(0);
            _exit(1);
        }
        close(h.pair[1]);
        assert_int_equal(read(h.pair[0], &byte, 1), 1);
        break;
    case HOWS:
        break;
    }
    close_fdp(&fd);
    return h;
}

static void let_go(struct holding *h)
{
    int status;

    close_fdp(&h->fd);
    if (h->map)
        munmap(h->map, size);
    if (h->how == IN_FLIGHT) {
        close(h->pair[0]);
        close(h->pair[1]);
    }
    if (h->how == BY_CHILD) {
        kill(h->child, SIGKILL);
        assert_int_equal(waitpid(h->child, &status, 0), h->child);
        close(h->pair[0]);
    }
}

/* ---- tests ------------------------------------------------------------------------------ */

static void each_way_to_hold_it_counts(void **state)
{
    unsigned before = open_descriptors();

    (void)state;
    for (int how = 0; how < HOWS; how++) {
        struct holding h = hold(make(how + 1, UID), how);

        assert_held(UID, 1);
        boards_del(&boards, how + 1);
        assert_null(boards_find(&boards, how + 1));
        assert_held(UID, 1);
        assert_true(boards_look(&boards, 10));
        assert_held(UID, 1);
        let_go(&h);
        assert_false(boards_look(&boards, 10));
        assert_held(UID, 0);
        assert_int_equal(boards.bytes, 0);
        assert_int_equal(open_descriptors(), before);
    }
    assert_false(boards.no_lease);
}

/* With nobody else it is freed when its group is closed. */
static void let_go_in_time(void **state)
{
    int fd = make(1, UID);

    (void)state;
    close(fd);
    assert_held(UID, 1);
    boards_del(&boards, 1);
    assert_held(UID, 0);
    assert_true(TAILQ_EMPTY(&boards.left));
}

/* Of all groups that there were, over the wrap of a counter, and without going back. */
static void operations_are_counted(void **state)
{
    int one = make(1, UID), two = make(2, UID);
    struct board first, second;
    uint64_t before = boards.ops;
    size_t at = 0;

    (void)state;
    assert_int_equal(board_map(one, &first), 0);
    assert_int_equal(board_map(two, &second), 0);
    atomic_store(&first.members[0].ops, UINT32_MAX);
    atomic_store(&second.members[0].ops, 5);
    while (boards_count(&boards, &at))
        ;
    assert_true(boards.ops - before == (uint64_t)UINT32_MAX + 5);
    atomic_store(&first.members[0].ops, 2); /* three more */
    at = 0;
    while (boards_count(&boards, &at))
        ;
    assert_true(boards.ops - before == (uint64_t)UINT32_MAX + 8);
    atomic_store(&second.members[0].ops, 9);
    board_unmap(&first);
    board_unmap(&second);
    close(one);
    close(two);
    boards_del(&boards, 2); /* its last four are not lost with it */
    boards_del(&boards, 1);
    assert_true(boards.ops - before == (uint64_t)UINT32_MAX + 12);
}

static void most_of_one_user(void **state)
{
    (void)state;
    assert_int_equal(boards_most(&boards), 0);
    close(make(1, UID));
    close(make(2, UID + 1));
    close(make(3, UID + 1));
    assert_int_equal(boards_most(&boards), 2 * size);
    for (unsigned group = 1; group <= 3; group++)
        boards_del(&boards, group);
    assert_int_equal(boards_most(&boards), 0);
}

/* Pages are freed even from under somebody who opened the file in a way that does not count. */
static void pages_are_freed(void **state)
{
    int fd = make(1, UID), path;
    char name[32], byte = 1;
    struct stat st;

    (void)state;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)size - 1), 1);
    snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
    path = open(name, O_PATH | O_CLOEXEC);
    assert_true(path >= 0);
    close(fd);
    assert_int_equal(fstat(path, &st), 0);
    assert_true(st.st_blocks > 0);
    boards_del(&boards, 1);
    assert_held(UID, 0);
    assert_int_equal(fstat(path, &st), 0);
    assert_int_equal(st.st_blocks, 0);
    close(path);
}

/* A member that opens the file while commd has the lease must not have commd killed by SIGIO. */
static void a_broken_lease_kills_nobody(void **state)
{
    struct board_entry *entry;
    char name[32];
    int fd = make(1, UID), path;

    (void)state;
    snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
    path = open(name, O_PATH | O_CLOEXEC);
    close(fd);
    entry = boards_find(&boards, 1);
    assert_int_equal(fcntl(entry->fd, F_SETLEASE, F_WRLCK), 0);
    snprintf(name, sizeof(name), "/proc/self/fd/%d", path);
    assert_int_equal(open(name, O_RDWR | O_NONBLOCK), -1);
    assert_int_equal(errno, EWOULDBLOCK);
    assert_int_equal(fcntl(entry->fd, F_SETLEASE, F_UNLCK), 0);
    close(path);
    boards_del(&boards, 1);
    assert_held(UID, 0);
}

/* Any order of making, leaving and letting go: the counts are the truth, and nothing is left. */
static void counts_are_the_truth(void **state)
{
    struct {
        bool made, open, held;
        uint32_t uid;
        struct holding by;
    } b[MAX] = {0};
    unsigned before = open_descriptors();
    unsigned seed = 1;

    (void)state;
    for (unsigned round = 0; round < ROUNDS; round++) {
        unsigned i = (unsigned)rand_r(&seed) % MAX, dice = (unsigned)rand_r(&seed) % 4;
        unsigned truth[USERS] = {0}, all = 0;

        if (!b[i].made) {
            enum how how =
                (unsigned)rand_r(&seed) % 16 ? (unsigned)rand_r(&seed) % BY_CHILD : BY_CHILD;

            b[i].uid = UID + (unsigned)rand_r(&seed) % USERS;
            b[i].by = hold(make(i + 1, b[i].uid), how);
            b[i].made = b[i].open = b[i].held = true;
        } else if (dice < 2 && b[i].open) {
            boards_del(&boards, i + 1);
            b[i].open = false;
        } else if (b[i].held) {
            let_go(&b[i].by);
            b[i].held = false;
        }
        b[i].made = b[i].open || b[i].held;
        boards_look(&boards, MAX);
        for (unsigned k = 0; k < MAX; k++) {
            truth[b[k].uid ? b[k].uid - UID : 0] += b[k].made;
            all += b[k].made;
        }
        for (unsigned u = 0; u < USERS; u++)
            assert_held(UID + u, truth[u]);
        assert_int_equal(boards.count, all);
        assert_int_equal(boards.bytes, all * size);
    }
    for (unsigned i = 0; i < MAX; i++) {
        if (b[i].open)
            boards_del(&boards, i + 1);
        if (b[i].held)
            let_go(&b[i].by);
    }
    assert_false(boards_look(&boards, MAX));
    assert_int_equal(boards.count, 0);
    assert_int_equal(boards.bytes, 0);
    for (unsigned i = 0; i < BOARD_USER_BUCKETS; i++)
        assert_null(boards.users[i]);
    assert_int_equal(open_descriptors(), before);
}

static void without_leases_clients_count(void **state)
{
    struct board_geom geom = geom_of(1);
    struct board_entry *entry;
    unsigned slot;
    int fd;

    (void)state;
    boards.no_lease = true;
    for (int lap = 0; lap < 2; lap++) {
        assert_int_equal(boards_add(&boards, &geom, UID, &entry, &fd), 0);
        assert_int_equal(boards_hand_out(&boards, entry, 0, 3), 0);
        assert_int_equal(boards_hand_out(&boards, entry, 1, 200), 0);
        close(fd);
        assert_true(boards_member_slot(entry, 1, &slot));
        assert_int_equal(slot, 200);
        assert_false(boards_member_slot(entry, 2, &slot));
        boards_client_gone(&boards, 3);
        boards_client_gone(&boards, 4);
        boards_client_gone(&boards, 100000);
        boards_del(&boards, 1);
        assert_true(boards_look(&boards, 10));
        assert_held(UID, 1);
        boards_client_gone(&boards, 200);
        assert_false(boards_look(&boards, 10));
        assert_held(UID, 0);
    }
}

/* A user's own boards are looked at when it meets a limit, without a timer. */
static void at_the_limit(void **state)
{
    int fds[4];

    (void)state;
    limits.bytes = limits.bytes_per_user = 4 * size;
    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(boards_room(&boards, UID, size, &limits, why, sizeof(why)), 0);
        fds[i] = make(i + 1, UID);
    }
    assert_int_equal(boards_room(&boards, UID, size, &limits, why, sizeof(why)), -EDQUOT);
    assert_non_null(strstr(why, "limits.max_board_bytes_per_user"));
    assert_null(strstr(why, "left"));
    for (unsigned i = 0; i < 4; i++)
        boards_del(&boards, i + 1);
    assert_int_equal(boards_room(&boards, UID, size, &limits, why, sizeof(why)), -EDQUOT);
    assert_non_null(strstr(why, "4 of them were left"));
    close(fds[3]);
    assert_int_equal(boards_room(&boards, UID, size, &limits, why, sizeof(why)), 0);
    assert_held(UID, 3);
    assert_int_equal(boards_room(&boards, UID, 2 * size, &limits, why, sizeof(why)), -EDQUOT);
    for (unsigned i = 0; i < 3; i++)
        close(fds[i]);
    assert_int_equal(boards_room(&boards, UID, 4 * size, &limits, why, sizeof(why)), 0);
    assert_int_equal(boards_room(&boards, UID, 4 * size + 1, &limits, why, sizeof(why)), -EDQUOT);
}

/* Half of what the others leave; so many users as there may be, each finds something. */
static void shares_of_bytes(void **state)
{
    int fds[8];

    (void)state;
    limits.bytes = 8 * size;
    limits.bytes_per_user = 5 * size;
    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(boards_room(&boards, UID, size, &limits, why, sizeof(why)), 0);
        fds[i] = make(i + 1, UID);
    }
    assert_int_equal(boards_room(&boards, UID, size, &limits, why, sizeof(why)), -EDQUOT);
    assert_non_null(strstr(why, "limits.max_board_bytes:"));
    for (unsigned i = 4; i < 6; i++) {
        assert_int_equal(boards_room(&boards, UID + 1, size, &limits, why, sizeof(why)), 0);
        fds[i] = make(i + 1, UID + 1);
    }
    assert_int_equal(boards_room(&boards, UID + 1, size, &limits, why, sizeof(why)), -EDQUOT);
    assert_int_equal(boards_room(&boards, UID + 2, size, &limits, why, sizeof(why)), 0);
    for (unsigned i = 0; i < 6; i++)
        close(fds[i]);
}

/* Groups that were left but are held count as groups, too; and descriptors are for others, too. */
static void shares_of_groups(void **state)
{
    int fds[4];

    (void)state;
    limits.groups = 8;
    limits.groups_per_user = 3;
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(boards_room(&boards, UID, size, &limits, why, sizeof(why)), 0);
        fds[i] = make(i + 1, UID);
        boards_del(&boards, i + 1);
    }
    assert_int_equal(boards_room(&boards, UID, size, &limits, why, sizeof(why)), -EDQUOT);
    assert_non_null(strstr(why, "limits.max_groups_per_user"));
    assert_int_equal(boards_room(&boards, UID + 1, size, &limits, why, sizeof(why)), 0);
    close(fds[2]);
    assert_int_equal(boards_room(&boards, UID, size, &limits, why, sizeof(why)), 0);
    boards.max_files = 4;
    assert_int_equal(boards_room(&boards, UID, size, &limits, why, sizeof(why)), -EDQUOT);
    assert_non_null(strstr(why, "LimitNOFILE"));
    close(fds[0]);
    close(fds[1]);
}

/* What is large is freed by a thread, a few at a time, and does not stand in its user's way. */
static void large_ones_elsewhere(void **state)
{
    const struct timespec moment = {.tv_nsec = 1000000};
    unsigned most = 0;
    struct closer *closer;
    int fds[12];

    (void)state;
    assert_int_equal(closer_new(&closer), 0);
    boards.closer = closer;
    limits.bytes = limits.bytes_per_user = 12 * size;
    for (unsigned i = 0; i < 12; i++) {
        fds[i] = make(i + 1, UID);
        assert_int_equal(posix_fallocate(fds[i], 0, (off_t)size), 0);
        boards_del(&boards, i + 1);
    }
    assert_held(UID, 12);
    for (unsigned i = 0; i < 12; i++)
        close(fds[i]);
    for (unsigned turn = 0; boards_look(&boards, 12); turn++) {
        assert_true(turn < 20000);
        most = MAX(most, boards.freeing);
        nanosleep(&moment, NULL);
    }
    assert_in_range(most, 1, 4);
    assert_held(UID, 0);
    assert_int_equal(boards.freeing, 0);
    assert_int_equal(boards.freeing_bytes, 0);
    boards.closer = closer_free(closer);
}

static void no_descriptor_left(void **state)
{
    struct board_geom geom = geom_of(1);
    struct board_entry *entry;
    int fd, full[1024], n = 0;

    (void)state;
    for (unsigned spare = 0; spare < 3; spare++) {
        struct rlimit old, tight;

        getrlimit(RLIMIT_NOFILE, &old);
        tight = old;
        tight.rlim_cur = 64;
        setrlimit(RLIMIT_NOFILE, &tight);
        while ((full[n] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0)
            n++;
        for (unsigned i = 0; i < spare; i++)
            close(full[--n]);
        assert_int_equal(boards_add(&boards, &geom, UID, &entry, &fd), -EMFILE);
        while (n > 0)
            close(full[--n]);
        setrlimit(RLIMIT_NOFILE, &old);
        assert_null(boards_find(&boards, 1));
        assert_held(UID, 0);
    }
    assert_false(boards.no_lease);
    close(make(1, UID));
}

static void a_share(void **state)
{
    (void)state;
    assert_int_equal(share_of(100, 100, 0), 100);
    assert_int_equal(share_of(100, 200, 30), 70);
    assert_int_equal(share_of(100, 99, 0), 50);
    assert_int_equal(share_of(100, 40, 0), 40);
    assert_int_equal(share_of(100, 40, 60), 20);
    assert_int_equal(share_of(100, 40, 101), 0);
    assert_int_equal(share_of(100, 100, 101), 0);
    assert_true(share_of(UINT64_MAX, UINT64_MAX - 1, 0) == UINT64_MAX / 2 + 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_share),
        cmocka_unit_test_setup_teardown(each_way_to_hold_it_counts, begin, end),
        cmocka_unit_test_setup_teardown(let_go_in_time, begin, end),
        cmocka_unit_test_setup_teardown(operations_are_counted, begin, end),
        cmocka_unit_test_setup_teardown(most_of_one_user, begin, end),
        cmocka_unit_test_setup_teardown(pages_are_freed, begin, end),
        cmocka_unit_test_setup_teardown(a_broken_lease_kills_nobody, begin, end),
        cmocka_unit_test_setup_teardown(counts_are_the_truth, begin, end),
        cmocka_unit_test_setup_teardown(without_leases_clients_count, begin, end),
        cmocka_unit_test_setup_teardown(at_the_limit, begin, end),
        cmocka_unit_test_setup_teardown(shares_of_bytes, begin, end),
        cmocka_unit_test_setup_teardown(shares_of_groups, begin, end),
        cmocka_unit_test_setup_teardown(large_ones_elsewhere, begin, end),
        cmocka_unit_test_setup_teardown(no_descriptor_left, begin, end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

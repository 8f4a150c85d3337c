/* Descriptors beside bytes: as many as are wanted, and none is left open unseen. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>

#include "shm/util/fds.h"

static unsigned open_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    unsigned n = 0;

    assert_non_null(dir);
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

static void each_number_of_them(void **state)
{
    int pair[2], sent[FDS_MOST], got[FDS_MOST];
    char text[8];

    (void)state;
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    for (unsigned i = 0; i < FDS_MOST; i++)
        sent[i] = pair[i % 2];
    for (unsigned most = 1; most <= FDS_MOST; most = most < 10 ? most + 1 : 2 * most + 3) {
        for (unsigned n = most > 4 ? most - 4 : 0; n <= MIN(most + 4, (unsigned)FDS_MOST); n++) {
            unsigned before = open_fds(), nfds;
            bool cut;

            assert_int_equal(fds_send(pair[0], "word", 4, sent, n, 0), 4);
            assert_int_equal(fds_recv(pair[1], text, sizeof text, got, most, &nfds, 0, &cut), 4);
            assert_int_equal(nfds, MIN(n, most));
            assert_int_equal(cut, n > most);
            assert_int_equal(open_fds(), before + nfds);
            for (unsigned i = 0; i < nfds; i++) {
                assert_int_equal(fcntl(got[i], F_GETFD), FD_CLOEXEC);
                close(got[i]);
            }
        }
    }
    close(pair[0]);
    close(pair[1]);
}

static void what_does_not_fit_is_told(void **state)
{
    int pair[2], got;
    unsigned nfds;
    char text[3];
    bool cut;

    (void)state;
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    assert_int_equal(fds_recv(pair[1], text, 3, &got, 1, &nfds, MSG_DONTWAIT, &cut), -EAGAIN);
    assert_int_equal(fds_send(pair[0], "longer", 6, NULL, 0, 0), 6);
    assert_int_equal(fds_recv(pair[1], text, 3, &got, 1, &nfds, MSG_DONTWAIT, &cut), 3);
    assert_true(cut);
    close(pair[1]);
    assert_int_equal(fds_send(pair[0], "word", 4, pair, 1, 0), -EPIPE);
    close(pair[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_number_of_them),
        cmocka_unit_test(what_does_not_fit_is_told),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* fake_test.h - for the tests of the fake driver and the fake NCCL: the driver, loaded once, and
 * other processes of the same program. */
#ifndef COMMD_FAKE_TEST_H
#define COMMD_FAKE_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <cmocka.h>

#include "tests/fakecuda/fakecuda.h"

extern struct cuda cu;

#define OK(call) assert_int_equal(call, CU_SUCCESS)

void fake_test_load(void); /* into cu, and cuInit() */
void *fake_test_symbol(const char *name);
cu_context fake_test_begin(cu_device dev); /* retains, makes current */

/* Another process: this program with the arguments "child", @name and a socket's number. */
pid_t fake_test_spawn(const char *name, int *ret_socket);
void fake_test_end(pid_t pid, int expected); /* waits; the exit status, or -signal */
void fake_test_send(int socket, const void *data, size_t bytes, int fd); /* fd -1: none */
int fake_test_receive(int socket, void *data, size_t bytes);             /* the descriptor, or -1 */

/* Whether @done comes within @ms. */
int fake_test_within(unsigned ms, int (*done)(void *arg), void *arg);

#endif

# tests/unit/shm.mk: tests of this room
if HAVE_CMOCKA
check_PROGRAMS += tests/unit/test_dtype tests/unit/test_reduce
TESTS += tests/unit/test_dtype tests/unit/test_reduce

tests_unit_test_dtype_SOURCES = tests/unit/test_dtype.c
tests_unit_test_dtype_CFLAGS = $(AM_CFLAGS) $(CMOCKA_CFLAGS)
tests_unit_test_dtype_LDADD = libcommd-shm.la $(CMOCKA_LIBS)

tests_unit_test_reduce_SOURCES = tests/unit/test_reduce.c tests/unit/reduce_reference.c \
	tests/unit/reduce_reference.h
tests_unit_test_reduce_CFLAGS = $(AM_CFLAGS) $(CMOCKA_CFLAGS)
tests_unit_test_reduce_LDADD = libcommd-shm.la $(CMOCKA_LIBS)

check_PROGRAMS += tests/unit/test_ranks
TESTS += tests/unit/test_ranks
tests_unit_test_ranks_SOURCES = tests/unit/test_ranks.c
tests_unit_test_ranks_CFLAGS = $(AM_CFLAGS) $(CMOCKA_CFLAGS)
tests_unit_test_ranks_LDADD = libcommd-shm.la $(CMOCKA_LIBS)

check_PROGRAMS += tests/unit/test_board
TESTS += tests/unit/test_board
tests_unit_test_board_SOURCES = tests/unit/test_board.c
tests_unit_test_board_CFLAGS = $(AM_CFLAGS) $(CMOCKA_CFLAGS)
tests_unit_test_board_LDADD = libcommd-shm.la $(CMOCKA_LIBS)

check_PROGRAMS += tests/unit/test_copy
TESTS += tests/unit/test_copy
tests_unit_test_copy_SOURCES = tests/unit/test_copy.c
tests_unit_test_copy_CFLAGS = $(AM_CFLAGS) $(CMOCKA_CFLAGS)
tests_unit_test_copy_LDADD = libcommd-shm.la $(CMOCKA_LIBS)

check_PROGRAMS += tests/unit/test_wait
TESTS += tests/unit/test_wait
tests_unit_test_wait_SOURCES = tests/unit/test_wait.c
tests_unit_test_wait_CFLAGS = $(AM_CFLAGS) $(CMOCKA_CFLAGS)
tests_unit_test_wait_LDADD = libcommd-shm.la $(CMOCKA_LIBS)

check_PROGRAMS += tests/unit/test_place
TESTS += tests/unit/test_place
tests_unit_test_place_SOURCES = tests/unit/test_place.c
tests_unit_test_place_CFLAGS = $(AM_CFLAGS) $(CMOCKA_CFLAGS)
tests_unit_test_place_LDADD = libcommd-shm.la $(CMOCKA_LIBS)

check_PROGRAMS += tests/unit/test_mail
TESTS += tests/unit/test_mail
tests_unit_test_mail_SOURCES = tests/unit/test_mail.c
tests_unit_test_mail_CFLAGS = $(AM_CFLAGS) $(CMOCKA_CFLAGS)
tests_unit_test_mail_LDADD = libcommd-shm.la $(CMOCKA_LIBS)

check_PROGRAMS += tests/unit/test_closer
TESTS += tests/unit/test_closer
tests_unit_test_closer_SOURCES = tests/unit/test_closer.c
tests_unit_test_closer_CFLAGS = $(AM_CFLAGS) $(CMOCKA_CFLAGS)
tests_unit_test_closer_LDADD = libcommd-shm.la $(CMOCKA_LIBS)
endif

# tests/unit/transport.mk: tests of this room
if HAVE_CMOCKA
check_PROGRAMS += tests/unit/test_schedule
TESTS += tests/unit/test_schedule

tests_unit_test_schedule_SOURCES = tests/unit/test_schedule.c
tests_unit_test_schedule_CFLAGS = $(AM_CFLAGS) $(CMOCKA_CFLAGS)
tests_unit_test_schedule_LDADD = libcommd-schedule.la $(CMOCKA_LIBS)

# The same contract over every fabric.
check_PROGRAMS += tests/unit/test_fabric
TESTS += tests/unit/test_fabric
tests_unit_test_fabric_SOURCES = tests/unit/test_fabric.c tests/unit/test_fabric_net.c \
	tests/unit/test_fabric_life.c tests/unit/test_fabric_links.c \
	tests/unit/test_fabric_tcp.c tests/unit/test_fabric_ucx.c \
	tests/unit/fabric_raw.c tests/unit/fabric_raw.h tests/unit/fabric_sides.c \
	tests/unit/fabric_sides.h
tests_unit_test_fabric_CFLAGS = $(AM_CFLAGS) $(CMOCKA_CFLAGS) $(UCX_CFLAGS)
tests_unit_test_fabric_LDADD = libcommd-fabric.la libcommd-shm.la $(CMOCKA_LIBS)

# Members as threads over one mapping, for the thread sanitizer.
check_PROGRAMS += tests/unit/test_board_threads
TESTS += tests/unit/test_board_threads
tests_unit_test_board_threads_SOURCES = tests/unit/test_board_threads.c
tests_unit_test_board_threads_CFLAGS = $(AM_CFLAGS) $(CMOCKA_CFLAGS)
tests_unit_test_board_threads_LDADD = libcommd-client.la libcommd-proto.la libcommd-shm.la \
	$(PROTOBUF_C_LIBS) $(CMOCKA_LIBS)

check_PROGRAMS += tests/unit/test_p2p_threads
TESTS += tests/unit/test_p2p_threads
tests_unit_test_p2p_threads_SOURCES = tests/unit/test_p2p_threads.c
tests_unit_test_p2p_threads_CFLAGS = $(AM_CFLAGS) $(CMOCKA_CFLAGS)
tests_unit_test_p2p_threads_LDADD = $(tests_unit_test_board_threads_LDADD)

# Boards, engines and the loop fabric in one process.
check_PROGRAMS += tests/unit/test_p2p
TESTS += tests/unit/test_p2p
tests_unit_test_p2p_SOURCES = tests/unit/test_p2p.c tests/lib/cluster.c tests/lib/cluster.h
tests_unit_test_p2p_CFLAGS = $(AM_CFLAGS) $(CMOCKA_CFLAGS)
tests_unit_test_p2p_LDADD = $(tests_unit_test_collectives_LDADD)

check_PROGRAMS += tests/unit/test_collectives
TESTS += tests/unit/test_collectives
tests_unit_test_collectives_SOURCES = tests/unit/test_collectives.c tests/lib/cluster.c tests/lib/cluster.h
tests_unit_test_collectives_CFLAGS = $(AM_CFLAGS) $(CMOCKA_CFLAGS)
tests_unit_test_collectives_LDADD = libcommd-client.la libcommd-engine.la libcommd-fabric.la \
	libcommd-schedule.la libcommd-proto.la libcommd-shm.la $(PROTOBUF_C_LIBS) $(CMOCKA_LIBS)

check_PROGRAMS += tests/unit/test_direct
TESTS += tests/unit/test_direct
tests_unit_test_direct_SOURCES = tests/unit/test_direct.c tests/lib/arena_commd.c \
	tests/lib/arena_commd.h tests/lib/cluster.c tests/lib/cluster.h
tests_unit_test_direct_CFLAGS = $(AM_CFLAGS) $(CMOCKA_CFLAGS)
tests_unit_test_direct_LDADD = $(tests_unit_test_collectives_LDADD)

check_PROGRAMS += tests/unit/test_trouble tests/unit/test_engine_turn
TESTS += tests/unit/test_trouble tests/unit/test_engine_turn
tests_unit_test_trouble_SOURCES = tests/unit/test_trouble.c tests/lib/cluster.c tests/lib/cluster.h
tests_unit_test_trouble_CFLAGS = $(AM_CFLAGS) $(CMOCKA_CFLAGS)
tests_unit_test_trouble_LDADD = $(tests_unit_test_collectives_LDADD)
check_PROGRAMS += tests/unit/test_engine_inbox
TESTS += tests/unit/test_engine_inbox
tests_unit_test_engine_inbox_SOURCES = tests/unit/test_engine_inbox.c tests/lib/cluster.c \
	tests/lib/cluster.h
tests_unit_test_engine_inbox_CFLAGS = $(AM_CFLAGS) $(CMOCKA_CFLAGS)
tests_unit_test_engine_inbox_LDADD = $(tests_unit_test_collectives_LDADD)
# Includes engine_main.c.
tests_unit_test_engine_turn_SOURCES = tests/unit/test_engine_turn.c transport/launcher.c tests/lib/cluster.c \
	transport/confine.c \
	tests/lib/cluster.h
tests_unit_test_engine_turn_CFLAGS = $(AM_CFLAGS) $(CMOCKA_CFLAGS)
tests_unit_test_engine_turn_LDADD = $(tests_unit_test_collectives_LDADD)
endif

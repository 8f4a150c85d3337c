# tests/unit/daemon.mk: tests of this room

if HAVE_CMOCKA
conf_tests = test_conf test_conf_errors test_conf_key test_log test_notify
check_PROGRAMS += $(conf_tests)
TESTS += $(conf_tests)

test_conf_SOURCES = tests/unit/test_conf.c tests/unit/conf_helper.h
test_conf_CFLAGS = $(AM_CFLAGS) $(CMOCKA_CFLAGS)
test_conf_LDADD = libcommd-conf.la $(CMOCKA_LIBS)

test_conf_errors_SOURCES = tests/unit/test_conf_errors.c tests/unit/conf_helper.h
test_conf_errors_CFLAGS = $(AM_CFLAGS) $(CMOCKA_CFLAGS)
test_conf_errors_LDADD = libcommd-conf.la $(CMOCKA_LIBS)

test_conf_key_SOURCES = tests/unit/test_conf_key.c tests/unit/conf_helper.h
test_conf_key_CFLAGS = $(AM_CFLAGS) $(CMOCKA_CFLAGS)
test_conf_key_LDADD = libcommd-conf.la $(CMOCKA_LIBS)

test_log_SOURCES = tests/unit/test_log.c
test_log_CFLAGS = $(AM_CFLAGS) $(CMOCKA_CFLAGS)
test_log_LDADD = libcommd-conf.la $(CMOCKA_LIBS)

test_notify_SOURCES = tests/unit/test_notify.c
test_notify_CFLAGS = $(AM_CFLAGS) $(CMOCKA_CFLAGS)
test_notify_LDADD = libcommd-conf.la $(CMOCKA_LIBS)
endif

if HAVE_CMOCKA
# The log is captured: these have a log_write() of their own.
check_PROGRAMS += test_peer_link test_listener
TESTS += test_peer_link test_listener
check_PROGRAMS += test_confine
TESTS += test_confine
test_confine_SOURCES = tests/unit/test_confine.c transport/confine.c
test_confine_CFLAGS = $(AM_CFLAGS) $(CMOCKA_CFLAGS)
test_confine_LDADD = $(CMOCKA_LIBS)
check_PROGRAMS += test_log_limit
TESTS += test_log_limit
test_log_limit_SOURCES = tests/unit/test_log_limit.c
test_log_limit_CFLAGS = $(AM_CFLAGS) $(CMOCKA_CFLAGS) $(LIBEVENT_CFLAGS)
test_log_limit_LDADD = libcommd-net.la $(LIBEVENT_LIBS) $(CMOCKA_LIBS)
check_PROGRAMS += test_engine_link
TESTS += test_engine_link
test_engine_link_SOURCES = tests/unit/test_engine_link.c daemon/engine_link.c \
	daemon/engine_spawn.c daemon/files.c
test_engine_link_CFLAGS = $(AM_CFLAGS) $(CMOCKA_CFLAGS) $(LIBEVENT_CFLAGS) $(OPENSSL_CFLAGS)
test_engine_link_LDADD = libcommd-net.la libcommd-conf.la libcommd-proto.la \
	libcommd-fabric-env.la $(LIBEVENT_LIBS) $(OPENSSL_LIBS) $(PROTOBUF_C_LIBS) $(CMOCKA_LIBS)
test_listener_SOURCES = tests/unit/test_listener.c
test_listener_CFLAGS = $(AM_CFLAGS) $(CMOCKA_CFLAGS) $(LIBEVENT_CFLAGS)
test_listener_LDADD = libcommd-net.la libcommd-proto.la $(LIBEVENT_LIBS) $(OPENSSL_LIBS) \
	$(PROTOBUF_C_LIBS) $(CMOCKA_LIBS)
test_peer_link_SOURCES = tests/unit/test_peer_link.c
test_peer_link_CFLAGS = $(AM_CFLAGS) $(CMOCKA_CFLAGS) $(LIBEVENT_CFLAGS) $(OPENSSL_CFLAGS)
test_peer_link_LDADD = libcommd-net.la libcommd-proto.la $(LIBEVENT_LIBS) $(OPENSSL_LIBS) \
	$(PROTOBUF_C_LIBS) $(CMOCKA_LIBS)
endif

if HAVE_CMOCKA
check_PROGRAMS += tests/unit/test_stream
TESTS += tests/unit/test_stream
tests_unit_test_stream_SOURCES = tests/unit/test_stream.c daemon/stream.c daemon/stream.h
tests_unit_test_stream_CFLAGS = $(AM_CFLAGS) $(CMOCKA_CFLAGS)
tests_unit_test_stream_LDADD = libcommd-proto.la libcommd-shm.la $(PROTOBUF_C_LIBS) $(CMOCKA_LIBS)
endif

if HAVE_CMOCKA
check_PROGRAMS += tests/unit/test_arenas
TESTS += tests/unit/test_arenas
tests_unit_test_arenas_SOURCES = tests/unit/test_arenas.c daemon/arenas.c daemon/arenas.h daemon/share.h
tests_unit_test_arenas_CFLAGS = $(AM_CFLAGS) $(CMOCKA_CFLAGS)
tests_unit_test_arenas_LDADD = libcommd-shm.la $(CMOCKA_LIBS)
check_PROGRAMS += tests/unit/test_boards
TESTS += tests/unit/test_boards
tests_unit_test_boards_SOURCES = tests/unit/test_boards.c daemon/boards.c daemon/boards.h \
	daemon/share.h
tests_unit_test_boards_CFLAGS = $(AM_CFLAGS) $(CMOCKA_CFLAGS)
tests_unit_test_boards_LDADD = libcommd-shm.la libcommd-schedule.la $(CMOCKA_LIBS)
endif

# The control core, alone; tests/sim has it in clusters.
if HAVE_CMOCKA
check_PROGRAMS += tests/unit/test_core tests/unit/test_core_any tests/unit/test_core_share
TESTS += tests/unit/test_core tests/unit/test_core_any tests/unit/test_core_share
tests_unit_test_core_share_SOURCES = tests/unit/test_core_share.c tests/unit/core_bench.h
tests_unit_test_core_share_CFLAGS = $(AM_CFLAGS) $(CMOCKA_CFLAGS)
tests_unit_test_core_share_LDADD = libcommd-core.la $(CMOCKA_LIBS)
tests_unit_test_core_SOURCES = tests/unit/test_core.c tests/unit/core_bench.h
tests_unit_test_core_CFLAGS = $(AM_CFLAGS) $(CMOCKA_CFLAGS)
tests_unit_test_core_LDADD = libcommd-core.la $(CMOCKA_LIBS)
tests_unit_test_core_any_SOURCES = tests/unit/test_core_any.c tests/unit/core_bench.h
tests_unit_test_core_any_CFLAGS = $(AM_CFLAGS) $(CMOCKA_CFLAGS)
tests_unit_test_core_any_LDADD = libcommd-core.la $(CMOCKA_LIBS)
endif
dist_check_SCRIPTS += tests/unit/check_purity.sh
TESTS += tests/unit/check_purity.sh

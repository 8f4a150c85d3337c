# tests/hostile/: a tenant, and a node, that mean harm; and the test that judges what others
# notice of them.
check_PROGRAMS += tests/hostile/hostile tests/hostile/liar tests/hostile/storm

tests_hostile_hostile_SOURCES = tests/hostile/hostile.c tests/hostile/hostile.h \
	tests/hostile/dice.h tests/hostile/wire.c tests/hostile/teams.c \
	tests/hostile/act_socket.c tests/hostile/act_fds.c \
	tests/hostile/act_board.c tests/hostile/act_client.c
tests_hostile_hostile_LDADD = libcommd-client.la libcommd-proto.la libcommd-shm.la \
	$(PROTOBUF_C_LIBS)

tests_hostile_storm_SOURCES = tests/hostile/storm.c
tests_hostile_storm_LDADD = libcommd-proto.la libcommd-shm.la $(PROTOBUF_C_LIBS)

tests_hostile_liar_SOURCES = tests/hostile/liar.c tests/hostile/dice.h
tests_hostile_liar_CPPFLAGS = $(AM_CPPFLAGS) $(OPENSSL_CFLAGS)
tests_hostile_liar_LDADD = libcommd-link.la libcommd-conf.la libcommd-proto.la \
	libcommd-shm.la $(LIBEVENT_LIBS) \
	$(OPENSSL_LIBS) $(PROTOBUF_C_LIBS)

dist_check_SCRIPTS += tests/integration/test_hostile.py
TESTS += tests/integration/test_hostile.py
EXTRA_DIST += tests/integration/lib/tenant.py tests/integration/lib/strangers.py

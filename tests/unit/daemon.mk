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
test_listener_SOURCES = tests/unit/test_listener.c
test_listener_CFLAGS = $(AM_CFLAGS) $(CMOCKA_CFLAGS) $(LIBEVENT_CFLAGS)
test_listener_LDADD = libcommd-net.la libcommd-proto.la $(LIBEVENT_LIBS) $(OPENSSL_LIBS) \
	$(PROTOBUF_C_LIBS) $(CMOCKA_LIBS)
test_peer_link_SOURCES = tests/unit/test_peer_link.c
test_peer_link_CFLAGS = $(AM_CFLAGS) $(CMOCKA_CFLAGS) $(LIBEVENT_CFLAGS) $(OPENSSL_CFLAGS)
test_peer_link_LDADD = libcommd-net.la libcommd-proto.la $(LIBEVENT_LIBS) $(OPENSSL_LIBS) \
	$(PROTOBUF_C_LIBS) $(CMOCKA_LIBS)
endif

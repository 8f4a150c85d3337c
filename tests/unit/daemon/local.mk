# tests/unit/daemon/: the core alone (tests/sim has it in clusters), the configuration, the edges.
if HAVE_CMOCKA
unit_daemon = tests/unit/daemon/test_arenas tests/unit/daemon/test_boards \
	tests/unit/daemon/test_certificates \
	tests/unit/daemon/test_conf tests/unit/daemon/test_conf_errors tests/unit/daemon/test_conf_secret \
	tests/unit/daemon/test_core tests/unit/daemon/test_core_any \
	tests/unit/daemon/test_core_change tests/unit/daemon/test_core_counts \
	tests/unit/daemon/test_core_renew \
	tests/unit/daemon/test_core_gpu \
	tests/unit/daemon/test_core_recover \
	tests/unit/daemon/test_core_rendezvous tests/unit/daemon/test_core_restore \
	tests/unit/daemon/test_core_share \
	tests/unit/daemon/test_diary tests/unit/daemon/test_door tests/unit/daemon/test_engine_adopt \
	tests/unit/daemon/test_engine_link \
	tests/unit/daemon/test_heard tests/unit/daemon/test_http_request \
	tests/unit/daemon/test_keeper \
	tests/unit/daemon/test_listener tests/unit/daemon/test_log tests/unit/daemon/test_log_limit \
	tests/unit/daemon/test_metrics tests/unit/daemon/test_notify tests/unit/daemon/test_peer_link \
	tests/unit/daemon/test_ended tests/unit/daemon/test_rank_view \
	tests/unit/daemon/test_root tests/unit/daemon/test_state tests/unit/daemon/test_store \
	tests/unit/daemon/test_stream \
	tests/unit/daemon/test_subuid tests/unit/daemon/test_tuning
check_PROGRAMS += $(unit_daemon)
TESTS += $(unit_daemon)

tests_unit_daemon_test_arenas_SOURCES = tests/unit/daemon/test_arenas.c daemon/memory/arenas.c \
	daemon/memory/arenas.h daemon/core/share.h
tests_unit_daemon_test_arenas_LDADD = libcommd-shm.la $(CMOCKA_LIBS)

tests_unit_daemon_test_boards_SOURCES = tests/unit/daemon/test_boards.c daemon/memory/boards.c \
	daemon/memory/boards_adopt.c daemon/memory/boards_priv.h daemon/memory/boards.h \
	daemon/core/share.h tests/lib/descriptors.h
tests_unit_daemon_test_boards_LDADD = libcommd-shm.la $(CMOCKA_LIBS)

tests_unit_daemon_test_conf_SOURCES = tests/unit/daemon/test_conf.c \
	tests/unit/daemon/conf_helper.h
tests_unit_daemon_test_conf_LDADD = libcommd-conf.la $(CMOCKA_LIBS)

tests_unit_daemon_test_conf_errors_SOURCES = tests/unit/daemon/test_conf_errors.c \
	tests/unit/daemon/conf_helper.h
tests_unit_daemon_test_conf_errors_LDADD = libcommd-conf.la $(CMOCKA_LIBS)

tests_unit_daemon_test_conf_secret_SOURCES = tests/unit/daemon/test_conf_secret.c \
	tests/unit/daemon/conf_helper.h
tests_unit_daemon_test_conf_secret_LDADD = libcommd-conf.la $(CMOCKA_LIBS)

tests_unit_daemon_test_core_SOURCES = tests/unit/daemon/test_core.c tests/unit/daemon/core_bench.h
tests_unit_daemon_test_core_LDADD = libcommd-core.la $(CMOCKA_LIBS)

tests_unit_daemon_test_core_any_SOURCES = tests/unit/daemon/test_core_any.c \
	tests/unit/daemon/core_bench.h
tests_unit_daemon_test_core_any_LDADD = libcommd-core.la $(CMOCKA_LIBS)

tests_unit_daemon_test_core_renew_SOURCES = tests/unit/daemon/test_core_renew.c \
	tests/unit/daemon/core_bench.h
tests_unit_daemon_test_core_renew_LDADD = libcommd-core.la $(CMOCKA_LIBS)

tests_unit_daemon_test_core_change_SOURCES = tests/unit/daemon/test_core_change.c \
	tests/unit/daemon/core_bench.h
tests_unit_daemon_test_core_change_LDADD = libcommd-core.la $(CMOCKA_LIBS)

tests_unit_daemon_test_core_counts_SOURCES = tests/unit/daemon/test_core_counts.c \
	tests/unit/daemon/core_bench.h
tests_unit_daemon_test_core_counts_LDADD = libcommd-core.la $(CMOCKA_LIBS)

tests_unit_daemon_test_core_gpu_SOURCES = tests/unit/daemon/test_core_gpu.c \
	tests/unit/daemon/core_bench.h
tests_unit_daemon_test_core_gpu_LDADD = libcommd-core.la $(CMOCKA_LIBS)

tests_unit_daemon_test_core_recover_SOURCES = tests/unit/daemon/test_core_recover.c \
	tests/unit/daemon/core_bench.h
tests_unit_daemon_test_core_recover_LDADD = libcommd-core.la $(CMOCKA_LIBS)

tests_unit_daemon_test_core_rendezvous_SOURCES = tests/unit/daemon/test_core_rendezvous.c
tests_unit_daemon_test_core_rendezvous_LDADD = libcommd-core.la $(CMOCKA_LIBS)

tests_unit_daemon_test_core_restore_SOURCES = tests/unit/daemon/test_core_restore.c \
	tests/unit/daemon/core_bench.h
tests_unit_daemon_test_core_restore_LDADD = libcommd-core.la $(CMOCKA_LIBS)

tests_unit_daemon_test_core_share_SOURCES = tests/unit/daemon/test_core_share.c \
	tests/unit/daemon/core_bench.h
tests_unit_daemon_test_core_share_LDADD = libcommd-core.la $(CMOCKA_LIBS)

tests_unit_daemon_test_diary_SOURCES = tests/unit/daemon/test_diary.c daemon/admin/diary.c \
	daemon/admin/diary.h
tests_unit_daemon_test_diary_LDADD = $(CMOCKA_LIBS)

tests_unit_daemon_test_engine_adopt_SOURCES = tests/unit/daemon/test_engine_adopt.c \
	daemon/link/engine_adopt.c daemon/link/engine_link.c daemon/link/engine_spawn.c \
	daemon/process/files.c transport/process/control.c
tests_unit_daemon_test_engine_adopt_CPPFLAGS = $(AM_CPPFLAGS) $(LIBEVENT_CFLAGS) $(OPENSSL_CFLAGS)
tests_unit_daemon_test_engine_adopt_LDADD = libcommd-link.la libcommd-conf.la libcommd-proto.la \
	libcommd-launch.la $(LIBEVENT_LIBS) $(OPENSSL_LIBS) $(PROTOBUF_C_LIBS) $(CMOCKA_LIBS)

tests_unit_daemon_test_engine_link_SOURCES = tests/unit/daemon/test_engine_link.c \
	daemon/link/engine_adopt.c daemon/link/engine_link.c daemon/link/engine_spawn.c \
	daemon/process/files.c tests/lib/heap_has.h
tests_unit_daemon_test_engine_link_CPPFLAGS = $(AM_CPPFLAGS) $(LIBEVENT_CFLAGS) $(OPENSSL_CFLAGS)
tests_unit_daemon_test_engine_link_LDADD = libcommd-link.la libcommd-conf.la libcommd-proto.la \
	libcommd-launch.la $(LIBEVENT_LIBS) $(OPENSSL_LIBS) $(PROTOBUF_C_LIBS) $(CMOCKA_LIBS)

tests_unit_daemon_test_http_request_SOURCES = tests/unit/daemon/test_http_request.c \
	daemon/http/http_request.c daemon/http/http_request.h
tests_unit_daemon_test_http_request_LDADD = $(CMOCKA_LIBS)

tests_unit_daemon_test_metrics_SOURCES = tests/unit/daemon/test_metrics.c daemon/http/body.c \
	daemon/http/body.h daemon/http/metrics.c daemon/http/metrics.h daemon/http/status_json.c
tests_unit_daemon_test_metrics_LDADD = libcommd-proto.la libcommd-shm.la $(PROTOBUF_C_LIBS) \
	$(CMOCKA_LIBS)

tests_unit_daemon_test_door_SOURCES = tests/unit/daemon/test_door.c
tests_unit_daemon_test_door_CPPFLAGS = $(AM_CPPFLAGS) $(LIBEVENT_CFLAGS)
tests_unit_daemon_test_door_LDADD = libcommd-link.la libcommd-conf.la $(LIBEVENT_LIBS) \
	$(CMOCKA_LIBS)

tests_unit_daemon_test_listener_SOURCES = tests/unit/daemon/test_listener.c
tests_unit_daemon_test_listener_CPPFLAGS = $(AM_CPPFLAGS) $(LIBEVENT_CFLAGS)
tests_unit_daemon_test_listener_LDADD = libcommd-link.la libcommd-conf.la libcommd-proto.la \
	$(LIBEVENT_LIBS) \
	$(OPENSSL_LIBS) $(PROTOBUF_C_LIBS) $(CMOCKA_LIBS)

tests_unit_daemon_test_log_SOURCES = tests/unit/daemon/test_log.c
tests_unit_daemon_test_log_LDADD = libcommd-conf.la $(CMOCKA_LIBS)

tests_unit_daemon_test_log_limit_SOURCES = tests/unit/daemon/test_log_limit.c
tests_unit_daemon_test_log_limit_CPPFLAGS = $(AM_CPPFLAGS) $(LIBEVENT_CFLAGS)
tests_unit_daemon_test_log_limit_LDADD = libcommd-link.la $(LIBEVENT_LIBS) $(CMOCKA_LIBS)

tests_unit_daemon_test_notify_SOURCES = tests/unit/daemon/test_notify.c
tests_unit_daemon_test_notify_LDADD = libcommd-conf.la $(CMOCKA_LIBS)

tests_unit_daemon_test_keeper_SOURCES = tests/unit/daemon/test_keeper.c \
	daemon/process/keeper_life.c daemon/process/kept.c daemon/process/notify.c \
	daemon/process/store.c
tests_unit_daemon_test_keeper_LDADD = $(CMOCKA_LIBS)

# The log is captured: this one and test_listener have a log_write() of their own.
tests_unit_daemon_test_certificates_SOURCES = tests/unit/daemon/test_certificates.c \
	tests/unit/daemon/certificates.h
tests_unit_daemon_test_certificates_CPPFLAGS = $(AM_CPPFLAGS) $(OPENSSL_CFLAGS)
tests_unit_daemon_test_certificates_LDADD = libcommd-link.la libcommd-conf.la libcommd-proto.la \
	$(LIBEVENT_LIBS) \
	$(OPENSSL_LIBS) $(PROTOBUF_C_LIBS) $(CMOCKA_LIBS)

tests_unit_daemon_test_peer_link_SOURCES = tests/unit/daemon/test_peer_link.c \
	tests/unit/daemon/certificates.h tests/lib/heap_has.h
tests_unit_daemon_test_peer_link_CPPFLAGS = $(AM_CPPFLAGS) $(LIBEVENT_CFLAGS) $(OPENSSL_CFLAGS)
tests_unit_daemon_test_peer_link_LDADD = libcommd-link.la libcommd-conf.la libcommd-proto.la \
	$(LIBEVENT_LIBS) \
	$(OPENSSL_LIBS) $(PROTOBUF_C_LIBS) $(CMOCKA_LIBS)

tests_unit_daemon_test_heard_SOURCES = tests/unit/daemon/test_heard.c \
	tests/unit/daemon/core_bench.h daemon/admin/heard.c daemon/admin/heard.h \
	daemon/admin/table.c daemon/admin/table.h
tests_unit_daemon_test_heard_LDADD = libcommd-core.la libcommd-conf.la libcommd-proto.la \
	libcommd-shm.la $(PROTOBUF_C_LIBS) $(CMOCKA_LIBS)

tests_unit_daemon_test_rank_view_SOURCES = tests/unit/daemon/test_rank_view.c \
	daemon/admin/process_view.c daemon/admin/process_view.h \
	daemon/admin/rank_table.c daemon/admin/rank_view.c \
	daemon/admin/rank_view.h daemon/admin/records.c \
	daemon/admin/records.h daemon/admin/table.c daemon/admin/table.h daemon/memory/boards.c \
	daemon/memory/boards.h daemon/memory/boards_priv.h daemon/process/ended.c daemon/process/ended.h \
	daemon/admin/past.c daemon/admin/past.h daemon/admin/waits.c daemon/admin/waits.h
tests_unit_daemon_test_rank_view_CPPFLAGS = $(AM_CPPFLAGS) $(LIBEVENT_CFLAGS) $(OPENSSL_CFLAGS)
tests_unit_daemon_test_rank_view_LDADD = libcommd-core.la libcommd-conf.la libcommd-proto.la \
	libcommd-shm.la $(PROTOBUF_C_LIBS) $(CMOCKA_LIBS)

tests_unit_daemon_test_root_SOURCES = tests/unit/daemon/test_root.c daemon/process/root.c \
	daemon/process/root.h
tests_unit_daemon_test_root_LDADD = $(CMOCKA_LIBS)

tests_unit_daemon_test_ended_SOURCES = tests/unit/daemon/test_ended.c daemon/process/ended.c \
	daemon/process/ended.h
tests_unit_daemon_test_ended_LDADD = libcommd-shm.la $(CMOCKA_LIBS)

tests_unit_daemon_test_state_SOURCES = tests/unit/daemon/test_state.c \
	tests/unit/daemon/core_bench.h
tests_unit_daemon_test_state_LDADD = libcommd-state.la libcommd-core.la libcommd-proto.la \
	libcommd-shm.la $(PROTOBUF_C_LIBS) $(CMOCKA_LIBS)

tests_unit_daemon_test_subuid_SOURCES = tests/unit/daemon/test_subuid.c daemon/process/subuid.c \
	daemon/process/subuid.h shm/util/payers.h
tests_unit_daemon_test_subuid_LDADD = libcommd-shm.la $(CMOCKA_LIBS)

tests_unit_daemon_test_store_SOURCES = tests/unit/daemon/test_store.c
tests_unit_daemon_test_store_LDADD = libcommd-conf.la $(CMOCKA_LIBS)

tests_unit_daemon_test_stream_SOURCES = tests/unit/daemon/test_stream.c daemon/link/stream.c \
	daemon/link/stream.h
tests_unit_daemon_test_stream_LDADD = libcommd-proto.la libcommd-shm.la $(PROTOBUF_C_LIBS) \
	$(CMOCKA_LIBS)

tests_unit_daemon_test_tuning_SOURCES = tests/unit/daemon/test_tuning.c \
	tests/unit/daemon/conf_helper.h daemon/admin/table.c daemon/admin/table.h daemon/admin/tuning.c \
	daemon/admin/tuning.h
tests_unit_daemon_test_tuning_LDADD = libcommd-conf.la libcommd-shm.la $(CMOCKA_LIBS)
endif

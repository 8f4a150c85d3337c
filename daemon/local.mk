# daemon/

# The configuration, the log and the service manager: all of commd that needs libyaml.
noinst_LTLIBRARIES += libcommd-conf.la
libcommd_conf_la_SOURCES = daemon/conf/conf.c daemon/conf/conf.h daemon/conf/conf_keys.c \
	daemon/conf/conf_keys.h daemon/conf/conf_value.c daemon/conf/conf_read.c \
	daemon/conf/conf_check.c \
	daemon/conf/conf_hint.c daemon/conf/conf_error.c daemon/conf/conf_secret.c \
	daemon/process/log.c \
	daemon/process/log.h daemon/process/notify.c daemon/process/notify.h \
	daemon/process/store.c daemon/process/store.h
libcommd_conf_la_CPPFLAGS = $(AM_CPPFLAGS) $(YAML_CFLAGS)
libcommd_conf_la_LIBADD = $(YAML_LIBS)

dist_man_MANS += daemon/commd.8

# What commd decides. No I/O, no clock; no allocation but in core_alloc.c (tests/check_rooms.py).
noinst_LTLIBRARIES += libcommd-core.la
libcommd_core_la_SOURCES = \
	daemon/core/core.c daemon/core/core.h daemon/core/core_absent.c daemon/core/core_act.c \
	daemon/core/core_act.h daemon/core/core_alloc.c daemon/core/core_bond.c daemon/core/core_change.c \
	daemon/core/core_client.c daemon/core/core_commit.c daemon/core/core_engine.c \
	daemon/core/core_follow.c daemon/core/core_gpu.c daemon/core/core_group.c \
	daemon/core/core_home.c daemon/core/core_internal.h daemon/core/core_join.c \
	daemon/core/core_joins.h daemon/core/core_life.c \
	daemon/core/core_part.c daemon/core/core_peer.c \
	daemon/core/core_peer_time.c daemon/core/core_pool.c \
	daemon/core/core_pool.h daemon/core/core_rank.c daemon/core/core_ration.c \
	daemon/core/core_pause.c \
	daemon/core/core_recover.c daemon/core/core_rendezvous.c daemon/core/core_renew.c \
	daemon/core/core_restore.c \
	daemon/core/core_resync.c daemon/core/core_stray.c \
	daemon/core/core_text.c daemon/core/core_text.h daemon/core/core_unfold.c \
	daemon/core/core_user.c daemon/core/core_view.c

# What commd writes down for the commd that follows it.
noinst_LTLIBRARIES += libcommd-state.la
libcommd_state_la_SOURCES = daemon/state/state.c daemon/state/state.h daemon/state/state_priv.h \
	daemon/state/state_read.c daemon/state/state_write.c
nodist_libcommd_state_la_SOURCES = daemon/state/state.pb-c.c daemon/state/state.pb-c.h
libcommd_state_la_CPPFLAGS = $(AM_CPPFLAGS) $(PROTOBUF_C_CFLAGS)
BUILT_SOURCES += daemon/state/state.pb-c.h
CLEANFILES += daemon/state/state.pb-c.c daemon/state/state.pb-c.h
EXTRA_DIST += daemon/state/state.proto
daemon/state/state.pb-c.c: daemon/state/state.proto
	$(AM_V_GEN)$(MKDIR_P) daemon/state && $(PROTOC_C) --proto_path=$(top_srcdir) \
	    --c_out=. daemon/state/state.proto
# One run makes both; the header only waits for it.
daemon/state/state.pb-c.h: daemon/state/state.pb-c.c
	@test -f $@ || { rm -f daemon/state/state.pb-c.c && $(MAKE) daemon/state/state.pb-c.c; }

# commd: the core and its edges, one foreign thing per file. Neither UCX nor CUDA
# (tests/check_rooms.py).
sbin_PROGRAMS += daemon/commd
daemon_commd_SOURCES = daemon/main.c daemon/daemon.c daemon/daemon.h daemon/events.c \
	daemon/loop.c daemon/apply.c daemon/apply_group.c daemon/payers.c daemon/reload.c \
	daemon/takeover.c daemon/takeover.h daemon/takeover_away.c daemon/takeover_engine.c \
	daemon/memory/arena_link.c daemon/memory/arenas.c daemon/memory/arenas.h \
	daemon/memory/boards.c daemon/memory/boards_adopt.c daemon/memory/boards_priv.h \
	daemon/memory/boards.h daemon/core/share.h daemon/admin/admin.c daemon/admin/answers.c \
	daemon/admin/answers.h daemon/admin/asking.h daemon/admin/diary.c daemon/admin/diary.h \
	daemon/admin/gather.c daemon/admin/gather.h daemon/admin/heard.c daemon/admin/heard.h \
	daemon/admin/links.c daemon/admin/links.h daemon/admin/past.c \
	daemon/admin/past.h daemon/admin/process_view.c daemon/admin/process_view.h \
	daemon/admin/rank_table.c daemon/admin/rank_view.c \
	daemon/admin/rank_view.h daemon/admin/records.c daemon/admin/records.h daemon/admin/table.c \
	daemon/admin/table.h daemon/admin/tenants.c daemon/admin/tuning.c \
	daemon/admin/tuning.h daemon/admin/verbs.h daemon/admin/waits.c daemon/admin/waits.h \
	daemon/admin/well.c \
	daemon/link/engine_adopt.c daemon/link/engine_link.c daemon/link/engine_link.h \
	daemon/link/engine_link_priv.h \
	daemon/link/engine_spawn.c daemon/link/engine_spawn.h daemon/process/ended.c \
	daemon/process/ended.h daemon/process/files.c \
	daemon/process/files.h daemon/process/keeper.c daemon/process/keeper.h \
	daemon/process/keeper_life.c daemon/process/keeper_life.h daemon/process/kept.c \
	daemon/process/kept.h daemon/process/root.c daemon/process/root.h \
	daemon/process/subuid.c daemon/process/subuid.h daemon/process/user.c \
	daemon/process/user.h daemon/http/body.c \
	daemon/http/body.h daemon/http/collect.c daemon/http/collect.h daemon/http/http.c \
	daemon/http/http.h daemon/http/http_made.c daemon/http/http_made.h daemon/http/http_request.c \
	daemon/http/http_request.h \
	daemon/http/metrics.c \
	daemon/http/metrics.h daemon/http/page.h daemon/http/status_json.c
nodist_daemon_commd_SOURCES = daemon/http/page.c
daemon_commd_CPPFLAGS = $(AM_CPPFLAGS) $(LIBEVENT_CFLAGS) $(OPENSSL_CFLAGS)
daemon_commd_LDADD = libcommd-link.la libcommd-state.la libcommd-core.la libcommd-conf.la \
	libcommd-proto.la \
	libcommd-shm.la libcommd-launch.la $(LIBEVENT_LIBS) $(OPENSSL_LIBS) $(PROTOBUF_C_LIBS)

# The page of HTTP as an array of bytes; it is ASCII.
CLEANFILES += daemon/http/page.c
EXTRA_DIST += daemon/http/page.html
daemon/http/page.c: daemon/http/page.html
	$(AM_V_GEN)$(MKDIR_P) daemon/http && { echo '#include "daemon/http/page.h"' && \
	    echo 'const char page_html[] = {' && \
	    od -An -v -tx1 $(top_srcdir)/daemon/http/page.html | $(SED) 's/ *\(..\)/0x\1,/g' && \
	    echo '};' && echo 'const size_t page_html_len = sizeof(page_html);'; } >$@-new && \
	mv $@-new $@

# Its sockets: the clients' and the nodes', with all that can be tested without a daemon.
noinst_LTLIBRARIES += libcommd-link.la
libcommd_link_la_SOURCES = daemon/link/client_link.c daemon/link/client_link.h \
	daemon/process/clock.h daemon/link/door.c daemon/link/door.h \
	daemon/link/listener.c daemon/link/listener.h \
	daemon/link/listener_admit.c daemon/link/listener_away.c \
	daemon/link/listener_fds.c daemon/link/listener_priv.h \
	daemon/link/listener_socket.c daemon/link/listener_turns.c \
	daemon/link/peer_hello.c \
	daemon/link/peer_hello.h daemon/link/peer_link.c daemon/link/peer_link.h \
	daemon/link/peer_link_priv.h daemon/link/peer_links.c daemon/process/log_limit.c \
	daemon/process/notify.c daemon/process/notify.h \
	daemon/process/store.c daemon/process/store.h \
	daemon/process/log_limit.h daemon/link/sock.c daemon/link/sock.h daemon/link/stream.c \
	daemon/link/stream.h daemon/link/tls.c daemon/link/tls.h \
	daemon/link/tls_identity.c daemon/link/tls_identity.h
libcommd_link_la_CPPFLAGS = $(AM_CPPFLAGS) $(LIBEVENT_CFLAGS) $(OPENSSL_CFLAGS)
libcommd_link_la_LIBADD = libcommd-proto.la libcommd-shm.la $(LIBEVENT_LIBS) $(OPENSSL_LIBS) \
	$(PROTOBUF_C_LIBS)

# daemon/

# The configuration, the log and the service manager: all of commd that needs libyaml.
noinst_LTLIBRARIES += libcommd-conf.la
libcommd_conf_la_SOURCES = \
	daemon/conf.c daemon/conf.h daemon/conf_keys.c daemon/conf_keys.h \
	daemon/conf_value.c daemon/conf_read.c daemon/conf_check.c daemon/conf_hint.c \
	daemon/conf_error.c daemon/conf_key.c \
	daemon/log.c daemon/log.h daemon/notify.c daemon/notify.h
libcommd_conf_la_CPPFLAGS = $(AM_CPPFLAGS) $(YAML_CFLAGS)
libcommd_conf_la_LIBADD = $(YAML_LIBS)

dist_man_MANS += daemon/commd.8

# What commd decides. No I/O, no clock; no allocation but in core_alloc.c (check_purity.sh).
noinst_LTLIBRARIES += libcommd-core.la
libcommd_core_la_SOURCES = daemon/core.c daemon/core.h daemon/core_act.c daemon/core_act.h daemon/core_alloc.c \
	daemon/core_client.c daemon/core_engine.c daemon/core_group.c daemon/core_home.c \
	daemon/core_internal.h daemon/core_join.c daemon/core_peer.c daemon/core_pool.c \
	daemon/core_text.c daemon/core_unfold.c daemon/core_view.c daemon/core_who.c
libcommd_core_la_LIBADD = libcommd-schedule.la

# commd: the core and its edges, one foreign thing per file. Neither UCX nor CUDA
# (check_links.sh); libcommd-fabric-env.la is a list of strings.
sbin_PROGRAMS += daemon/commd
daemon_commd_SOURCES = daemon/main.c daemon/daemon.c daemon/daemon.h daemon/loop.c \
	daemon/apply.c daemon/arena_link.c daemon/arenas.c daemon/arenas.h daemon/boards.c daemon/boards.h daemon/share.h daemon/admin.c daemon/table.c \
	daemon/table.h daemon/engine_link.c daemon/engine_link.h daemon/engine_spawn.c \
	daemon/engine_spawn.h daemon/files.c daemon/files.h daemon/user.c daemon/user.h
daemon_commd_CPPFLAGS = $(AM_CPPFLAGS) $(LIBEVENT_CFLAGS) $(OPENSSL_CFLAGS)
daemon_commd_LDADD = libcommd-net.la libcommd-core.la libcommd-conf.la libcommd-proto.la \
	libcommd-shm.la libcommd-schedule.la libcommd-fabric-env.la $(LIBEVENT_LIBS) \
	$(OPENSSL_LIBS) $(PROTOBUF_C_LIBS)

# Its sockets: the clients' and the nodes', with all that can be tested without a daemon.
noinst_LTLIBRARIES += libcommd-net.la
libcommd_net_la_SOURCES = daemon/client_link.c daemon/client_link.h daemon/clock.h \
	daemon/listener.c daemon/listener.h daemon/peer_hello.c daemon/peer_hello.h \
	daemon/peer_link.c daemon/peer_link.h daemon/peer_link_priv.h daemon/peer_links.c \
	daemon/log_limit.c daemon/log_limit.h daemon/sock.c daemon/sock.h daemon/stream.c \
	daemon/stream.h daemon/tls.c daemon/tls.h
libcommd_net_la_CPPFLAGS = $(AM_CPPFLAGS) $(LIBEVENT_CFLAGS) $(OPENSSL_CFLAGS)
libcommd_net_la_LIBADD = libcommd-proto.la libcommd-shm.la $(LIBEVENT_LIBS) $(OPENSSL_LIBS) $(PROTOBUF_C_LIBS)

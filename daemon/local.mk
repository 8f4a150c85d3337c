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
libcommd_core_la_SOURCES = daemon/core.c daemon/core.h daemon/core_act.c daemon/core_alloc.c \
	daemon/core_client.c daemon/core_engine.c daemon/core_group.c daemon/core_home.c \
	daemon/core_internal.h daemon/core_join.c daemon/core_peer.c daemon/core_pool.c \
	daemon/core_text.c daemon/core_view.c
libcommd_core_la_LIBADD = libcommd-schedule.la

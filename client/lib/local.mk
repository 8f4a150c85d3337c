# libcommd: depends on nothing but libc; what it needs of shm/ and protobuf-c is inside.
lib_LTLIBRARIES += client/lib/libcommd.la
# (libcommd-client.la: the same objects for tests that look inside.)
noinst_LTLIBRARIES += libcommd-client.la
libcommd_client_la_SOURCES = client/include/commd/commd.h client/lib/api/check.h \
	client/lib/api/api.c client/lib/api/api_group.c client/lib/api/check.c client/lib/api/enums.c \
	client/lib/arena/arena.c client/lib/arena/arena.h client/lib/arena/peer_arena.c \
	client/lib/coll/gate.h client/lib/coll/work.c client/lib/coll/work.h client/lib/coll/step.c \
	client/lib/coll/give_up.c \
	client/lib/coll/finish.c client/lib/coll/run.h client/lib/api/api_p2p.c client/lib/p2p/p2p_api.h \
	client/lib/async/async.c client/lib/async/async.h client/lib/async/progress.c \
	client/lib/async/handles.c client/lib/context/context.c client/lib/context/context.h \
	client/lib/context/error.h client/lib/context/group.h \
	client/lib/coll/coll_blocks.c client/lib/coll/coll_steps.c \
	client/lib/coll/coll_steps.h client/lib/coll/posts.c \
	client/lib/coll/early.c client/lib/coll/early.h \
	client/lib/coll/window.c client/lib/coll/window.h \
	client/lib/coll/called.c client/lib/coll/called.h client/lib/coll/teams.c client/lib/coll/teams.h \
	client/lib/coll/registered.c client/lib/coll/registered.h \
	client/lib/coll/registered_work.c client/lib/coll/results.c \
	client/lib/coll/lists.c client/lib/coll/run.c \
	client/lib/context/alive.c client/lib/context/autostart.c client/lib/context/control.c \
	client/lib/context/control_hello.c client/lib/context/control_join.c \
	client/lib/context/back.c \
	client/lib/context/error.c client/lib/context/group.c client/lib/context/split.c \
	client/lib/context/absent.c client/lib/context/elsewhere.c client/lib/context/job.c \
	client/lib/context/join_warn.c \
	client/lib/context/parent.c client/lib/context/service.c \
	client/lib/device/device.c client/lib/device/device.h client/lib/device/driver.c \
	client/lib/device/driver.h client/lib/device/failure.c \
	client/lib/device/failure.h client/lib/device/flags.c client/lib/device/memory.h \
	client/lib/device/landing.c client/lib/device/message.c client/lib/device/staged.c \
	client/lib/device/staged.h \
	client/lib/device/staging.c client/lib/device/announce.c \
	client/lib/device/path.c client/lib/device/places.c client/lib/device/words.c \
	client/lib/device/session.c client/lib/device/session.h \
	client/lib/device/session_ends.c \
	client/lib/device/session_memory.c client/lib/device/lent.c \
	client/lib/device/note.c client/lib/device/note.h \
	client/lib/p2p/p2p.c client/lib/p2p/p2p.h client/lib/p2p/p2p_api.c \
	client/lib/p2p/p2p_match.c client/lib/p2p/p2p_out.c client/lib/p2p/p2p_tell.c \
	client/lib/p2p/p2p_wait.c
libcommd_client_la_CFLAGS = $(AM_CFLAGS) -fvisibility=hidden
client_lib_libcommd_la_SOURCES =
client_lib_libcommd_la_LIBADD = libcommd-client.la libcommd-proto.la libcommd-shm.la \
	$(PROTOBUF_C_STATIC)
client_lib_libcommd_la_LDFLAGS = $(AM_LDFLAGS) -version-info 0:0:0 -no-undefined \
	-Wl,--version-script=$(top_srcdir)/client/lib/libcommd.map
client_lib_libcommd_la_DEPENDENCIES = $(top_srcdir)/client/lib/libcommd.map libcommd-client.la \
	libcommd-proto.la libcommd-shm.la
EXTRA_DIST += client/lib/libcommd.map
commdincludedir = $(includedir)/commd
commdinclude_HEADERS = client/include/commd/commd.h
pkgconfigdir = $(libdir)/pkgconfig
pkgconfig_DATA = client/lib/commd.pc

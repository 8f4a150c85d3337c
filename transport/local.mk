# transport/
noinst_LTLIBRARIES += libcommd-schedule.la

# Pure: nothing but mem*() and abort() may be undefined in these objects.
libcommd_schedule_la_SOURCES = transport/schedule.c transport/schedule.h \
	transport/schedule_direct.c transport/schedule_priv.h transport/schedule_rd.c \
	transport/schedule_ring.c

# The network. Only this library, and what links it, knows UCX; what a process does to become an
# engine, and the environment that UCX needs then, is in libcommd-fabric-env.la, which does not.
noinst_LTLIBRARIES += libcommd-fabric.la libcommd-fabric-env.la
libcommd_fabric_env_la_SOURCES = transport/fabric_ucx_env.c transport/engine_exec.c \
	transport/engine_exec.h
libcommd_fabric_la_SOURCES = transport/fabric.c transport/fabric.h transport/fabric_fault.c \
	transport/fabric_fault.h transport/fabric_loop.c transport/fabric_net.c \
	transport/fabric_net.h transport/fabric_tcp.c transport/fabric_tcp_conn.c \
	transport/fabric_tcp_peer.c transport/fabric_tcp_priv.h transport/fabric_tcp_stream.c \
	transport/fabric_ucx.c transport/fabric_ucx.h transport/fabric_ucx_init.c \
	transport/fabric_ucx_peer.c transport/fabric_ucx_priv.h transport/fabric_ucx_socket.c
libcommd_fabric_la_CFLAGS = $(AM_CFLAGS) $(UCX_CFLAGS)
libcommd_fabric_la_LIBADD = libcommd-fabric-env.la $(UCX_LIBS)

# The data process. It decides nothing about groups; commd tells it.
pkglibexec_PROGRAMS += transport/commd-engine
transport_commd_engine_SOURCES = transport/engine_main.c transport/launcher.c transport/launcher.h \
	transport/confine.c transport/confine.h
transport_commd_engine_LDADD = libcommd-engine.la libcommd-fabric.la libcommd-schedule.la \
	libcommd-proto.la libcommd-shm.la $(PROTOBUF_C_LIBS)

noinst_LTLIBRARIES += libcommd-engine.la
libcommd_engine_la_SOURCES = transport/engine.c transport/engine.h transport/engine_inbox.c \
	transport/engine_bells.c \
	transport/engine_cells.c transport/engine_internal.h transport/engine_limbo.c \
	transport/engine_op.c \
	transport/engine_p2p.c

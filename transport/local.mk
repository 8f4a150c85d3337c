# transport/
noinst_LTLIBRARIES += libcommd-schedule.la

# Pure: nothing but mem*() and abort() may be undefined in these objects.
libcommd_schedule_la_SOURCES = transport/schedule/schedule.c transport/schedule/schedule.h \
	transport/schedule/schedule_direct.c transport/schedule/schedule_priv.h \
	transport/schedule/schedule_rd.c transport/schedule/schedule_ring.c

# The network. Only this library, and what links it, knows UCX.
noinst_LTLIBRARIES += libcommd-fabric.la
libcommd_fabric_la_SOURCES = transport/fabric/fabric.c transport/fabric/fabric.h \
	transport/fabric/fault/fabric_fault.c transport/fabric/fault/fabric_fault.h \
	transport/fabric/loop/fabric_loop.c transport/fabric/fabric_net.c \
	transport/fabric/fabric_net.h \
	transport/fabric/tcp/fabric_tcp.c transport/fabric/tcp/fabric_tcp_conn.c \
	transport/fabric/tcp/fabric_tcp_traffic.c transport/fabric/tcp/fabric_tcp_peer.c \
	transport/fabric/tcp/fabric_tcp_priv.h \
	transport/fabric/tcp/fabric_tcp_stream.c transport/fabric/ucx/fabric_ucx.c \
	transport/fabric/ucx/fabric_ucx.h transport/fabric/ucx/fabric_ucx_init.c \
	transport/fabric/ucx/fabric_ucx_peer.c transport/fabric/ucx/fabric_ucx_priv.h \
	transport/fabric/ucx/fabric_ucx_socket.c
libcommd_fabric_la_CFLAGS = $(AM_CFLAGS) $(UCX_CFLAGS)
libcommd_fabric_la_LIBADD = $(UCX_LIBS)

# The data process. It decides nothing about groups; commd tells it.
pkglibexec_PROGRAMS += transport/commd-engine
transport_commd_engine_SOURCES = transport/process/engine_main.c transport/process/launcher.c \
	transport/process/launcher.h transport/process/confine.c transport/process/confine.h
transport_commd_engine_LDADD = libcommd-engine.la libcommd-fabric.la libcommd-schedule.la \
	libcommd-launch.la libcommd-proto.la libcommd-shm.la $(PROTOBUF_C_LIBS)

noinst_LTLIBRARIES += libcommd-engine.la
libcommd_engine_la_SOURCES = transport/engine/engine.c transport/engine/engine.h \
	transport/engine/engine_board.c transport/engine/engine_pool.c \
	transport/engine/engine_msg.c transport/engine/engine_inbox.c \
	transport/engine/engine_bells.c transport/engine/engine_cells.c \
	transport/engine/engine_internal.h transport/engine/engine_pending.c \
	transport/engine/engine_op.c transport/engine/engine_op.h transport/engine/engine_check.c \
	transport/engine/engine_data.c transport/engine/engine_p2p.c

# What commd-gpu decides about an operation, and NCCL as it calls it.
noinst_LTLIBRARIES += libcommd-gpu-plan.la
libcommd_gpu_plan_la_SOURCES = transport/gpu/gpu_order.h transport/gpu/gpu_plan.h \
	transport/gpu/kernel/batch.h transport/gpu/move.h transport/gpu/nccl.c transport/gpu/nccl.h

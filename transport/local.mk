# transport/
noinst_LTLIBRARIES += libcommd-schedule.la

# Pure: nothing but mem*() and abort() may be undefined in these objects.
libcommd_schedule_la_SOURCES = transport/schedule/fair.c transport/schedule/fair.h \
	transport/schedule/flow.c transport/schedule/flow.h \
	transport/schedule/schedule.c transport/schedule/schedule.h \
	transport/schedule/schedule_direct.c transport/schedule/schedule_priv.h \
	transport/schedule/schedule_rd.c transport/schedule/schedule_ring.c

# The network. Only this library, and what links it, knows UCX.
noinst_LTLIBRARIES += libcommd-fabric.la
libcommd_fabric_la_SOURCES = transport/fabric/agree.c transport/fabric/agree.h \
	transport/fabric/fabric.c transport/fabric/fabric.h \
	transport/fabric/fabric_net.c \
	transport/fabric/fabric_net.h \
	transport/fabric/tcp/aead.c transport/fabric/tcp/aead.h \
	transport/fabric/tcp/fabric_tcp.c transport/fabric/tcp/fabric_tcp_conn.c \
	transport/fabric/tcp/fabric_tcp_greet.c \
	transport/fabric/tcp/fabric_tcp_in.c transport/fabric/tcp/fabric_tcp_jobs.c \
	transport/fabric/tcp/fabric_tcp_listen.c \
	transport/fabric/tcp/fabric_tcp_mend.c transport/fabric/tcp/fabric_tcp_old.c \
	transport/fabric/tcp/fabric_tcp_out.c \
	transport/fabric/tcp/fabric_tcp_peer.c transport/fabric/tcp/fabric_tcp_priv.h \
	transport/fabric/tcp/fabric_tcp_seal.c transport/fabric/tcp/fabric_tcp_traffic.c \
	transport/fabric/tcp/seal.c transport/fabric/tcp/seal.h \
	transport/fabric/tcp/seal_threads.c transport/fabric/tcp/seal_threads.h
if HAVE_UCX
libcommd_fabric_la_SOURCES += transport/fabric/ucx/fabric_ucx.c \
	transport/fabric/ucx/fabric_ucx.h transport/fabric/ucx/fabric_ucx_init.c \
	transport/fabric/ucx/fabric_ucx_msg.c transport/fabric/ucx/fabric_ucx_peer.c \
	transport/fabric/ucx/fabric_ucx_priv.h
else
libcommd_fabric_la_SOURCES += transport/fabric/ucx/fabric_ucx_none.c
endif
if HAVE_IPSEC_MB
libcommd_fabric_la_SOURCES += transport/fabric/tcp/aead_ipsec_mb.c
else
libcommd_fabric_la_SOURCES += transport/fabric/tcp/aead_ipsec_mb_none.c
endif
libcommd_fabric_la_CFLAGS = $(AM_CFLAGS) $(CRYPTO_CFLAGS) $(UCX_CFLAGS)
libcommd_fabric_la_LIBADD = $(CRYPTO_LIBS) $(IPSEC_MB_LIBS) $(UCX_LIBS)

# The data process. It decides nothing about groups; commd tells it.
pkglibexec_PROGRAMS += transport/commd-engine
transport_commd_engine_SOURCES = transport/process/engine_main.c transport/process/control.c \
	transport/process/control.h transport/process/launcher.c \
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
	transport/engine/engine_data.c transport/engine/engine_flow.c \
	transport/engine/engine_hold.c \
	transport/engine/engine_pause.c \
	transport/engine/engine_p2p.c transport/engine/engine_send.c

# What commd-gpu decides about an operation, and NCCL as it calls it.
noinst_LTLIBRARIES += libcommd-gpu-plan.la
libcommd_gpu_plan_la_SOURCES = transport/gpu/gpu_life.c transport/gpu/gpu_life.h \
	transport/gpu/gpu_lines.c transport/gpu/gpu_lines.h \
	transport/gpu/gpu_order.c transport/gpu/gpu_order.h \
	transport/gpu/gpu_plan.c transport/gpu/gpu_plan.h transport/gpu/gpu_plan_blocks.c \
	transport/gpu/gpu_plan_priv.h transport/gpu/gpu_share.c transport/gpu/gpu_share.h \
	transport/gpu/kernel/batch.h transport/gpu/move.c \
	transport/gpu/move.h transport/gpu/nccl.c transport/gpu/nccl.h

# The kernels as C, for tests.
check_LTLIBRARIES += libcommd-gpu-twin.la
libcommd_gpu_twin_la_SOURCES = transport/gpu/kernel/element.h transport/gpu/kernel/move_twin.c \
	transport/gpu/kernel/move_type.h
EXTRA_DIST += transport/gpu/kernel/move.cu

# The kernels for GPUs. The compiler takes some 30 seconds of a core.
noinst_LTLIBRARIES += libcommd-gpu-image.la
libcommd_gpu_image_la_SOURCES = transport/gpu/kernel/image.c transport/gpu/kernel/image.h
EXTRA_DIST += transport/gpu/kernel/image.sh
if HAVE_NVCC
nodist_libcommd_gpu_image_la_SOURCES = transport/gpu/kernel/move_image.c
gpu_kernel_sources = transport/gpu/kernel/move.cu transport/gpu/kernel/move_type.h \
	transport/gpu/kernel/element.h transport/gpu/kernel/batch.h transport/gpu/kernel/image.sh
transport/gpu/kernel/move_image.c: $(gpu_kernel_sources)
	$(AM_V_GEN)$(MKDIR_P) transport/gpu/kernel && $(SHELL) \
	    $(top_srcdir)/transport/gpu/kernel/image.sh "$(top_srcdir)" transport/gpu/kernel \
	    "$(NVCC)" "$(PTXAS12)" "-std=c++17 -O3 -fmad=false -I$(top_srcdir)"
CLEANFILES += transport/gpu/kernel/move.*.ptx transport/gpu/kernel/move.*.cubin \
	transport/gpu/kernel/move_image.c
EXTRA_DIST += transport/gpu/kernel/image_none.c
else
libcommd_gpu_image_la_SOURCES += transport/gpu/kernel/image_none.c
endif

# The process that works on GPUs. It links neither the driver nor NCCL: both are loaded at run time.
pkglibexec_PROGRAMS += transport/commd-gpu
dist_man_MANS += transport/gpu/commd-gpu.8
transport_commd_gpu_SOURCES = \
	transport/gpu/gpu.h transport/gpu/gpu_op.h transport/gpu/gpu_agree.c \
	transport/gpu/gpu_attach.c \
	transport/gpu/gpu_comm.c transport/gpu/gpu_control.c transport/gpu/gpu_device.c \
	transport/gpu/gpu_group.c transport/gpu/gpu_jobs.c transport/gpu/gpu_launch.c \
	transport/gpu/gpu_lend.c transport/gpu/gpu_main.c transport/gpu/gpu_memory.c \
	transport/gpu/gpu_nccl.c transport/gpu/gpu_session.c \
	transport/gpu/gpu_slot.c transport/gpu/gpu_user.c \
	transport/gpu/gpu_wire.c transport/gpu/gpu_wire.h \
	transport/process/confine.c transport/process/confine.h transport/process/control.c \
	transport/process/control.h transport/process/launcher.c transport/process/launcher.h
transport_commd_gpu_LDADD = libcommd-gpu-plan.la libcommd-schedule.la libcommd-gpu-image.la \
	libcommd-client.la libcommd-launch.la libcommd-proto.la libcommd-shm.la \
	$(PROTOBUF_C_LIBS) -ldl -lpthread

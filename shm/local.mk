# shm/: what two processes agree on byte for byte. Depends on nothing but libc
# (libcommd-proto: and protobuf-c).
noinst_LTLIBRARIES += libcommd-shm.la libcommd-proto.la

libcommd_shm_la_SOURCES = shm/board/board.c shm/board/board.h shm/board/operation.c \
	shm/board/recorder.c shm/board/recorder.h shm/model/plan.c shm/model/plan.h \
	shm/model/eager.h shm/board/mail.c shm/board/mail.h shm/board/place.c \
	shm/board/place.h shm/util/memfd.c shm/util/memfd.h \
	shm/util/wait.c shm/util/wait.h shm/util/weight.h shm/util/link_quality.h shm/util/base.h \
	shm/util/encryption.h \
	shm/util/held.h \
	shm/model/dtype.c shm/model/dtype.h \
	shm/model/coll.c shm/model/coll.h shm/model/team.c shm/model/team.h shm/model/tune.c \
	shm/model/tune.h shm/model/sched.h \
	shm/util/topology.c shm/util/topology.h shm/util/copy.c shm/util/copy.h shm/util/socket_path.c \
	shm/util/socket_path.h shm/util/limits.c shm/util/limits.h shm/util/ranks.c \
	shm/util/ranks.h shm/util/closer.c shm/util/closer.h shm/util/fds.h shm/util/reset.h \
	shm/util/hash.h shm/util/restarts.h shm/util/rivals.h
libcommd_shm_la_SOURCES += shm/gpu/able.c shm/gpu/able.h shm/gpu/cuda.c \
	shm/gpu/cuda.h shm/gpu/session.h
libcommd_shm_la_LIBADD =

# The reduction: the plain kernels, and the same source once more per instruction set;
# reduce.c chooses at run time.
libcommd_shm_la_SOURCES += shm/reduce/reduce.c shm/reduce/reduce.h shm/reduce/reduce_kernels.c \
	shm/reduce/reduce_kernels.h shm/reduce/reduce_vec.h shm/reduce/reduce_cpu.c \
	shm/reduce/reduce_cpu.h
if HAVE_X86_64
noinst_LTLIBRARIES += libcommd-reduce-avx2.la libcommd-reduce-avx512.la
libcommd_shm_la_LIBADD += libcommd-reduce-avx2.la libcommd-reduce-avx512.la
libcommd_reduce_avx2_la_SOURCES = shm/reduce/reduce_kernels.c
libcommd_reduce_avx2_la_CFLAGS = $(AM_CFLAGS) -DREDUCE_ISA_AVX2 -mavx2 -mf16c
libcommd_reduce_avx512_la_SOURCES = shm/reduce/reduce_kernels.c
libcommd_reduce_avx512_la_CFLAGS = $(AM_CFLAGS) -DREDUCE_ISA_AVX512 -mavx512f -mavx512bw \
	-mavx512vl -mavx512dq -mavx2 -mf16c
endif

# The schema of every control message and its codec.
nodist_libcommd_proto_la_SOURCES = shm/proto/commd.pb-c.c shm/proto/commd.pb-c.h
libcommd_proto_la_SOURCES = shm/proto/codec.c shm/proto/codec.h shm/proto/codec_arena.c \
	shm/proto/codec_check.c shm/proto/codec_decode.c shm/proto/codec_encode.c shm/proto/codec_priv.h \
	shm/proto/msg_io.c shm/proto/cause_text.h shm/proto/events.h shm/proto/msg.h \
	shm/proto/ranks_table.h
libcommd_proto_la_CPPFLAGS = $(AM_CPPFLAGS) $(PROTOBUF_C_CFLAGS)

BUILT_SOURCES += shm/proto/commd.pb-c.h
CLEANFILES += shm/proto/commd.pb-c.c shm/proto/commd.pb-c.h
EXTRA_DIST += shm/proto/commd.proto

shm/proto/commd.pb-c.c: shm/proto/commd.proto
	$(AM_V_GEN)$(MKDIR_P) shm/proto && $(PROTOC_C) --proto_path=$(top_srcdir) \
	    --c_out=. shm/proto/commd.proto
# One run makes both; the header only waits for it.
shm/proto/commd.pb-c.h: shm/proto/commd.pb-c.c
	@test -f $@ || { rm -f shm/proto/commd.pb-c.c && $(MAKE) shm/proto/commd.pb-c.c; }

# What commd and the launcher of its engines share: how a process becomes one. Links nothing.
noinst_LTLIBRARIES += libcommd-launch.la
libcommd_launch_la_SOURCES = shm/launch/engine_exec.c shm/launch/engine_exec.h shm/launch/launch.h \
	shm/launch/ucx_env.c

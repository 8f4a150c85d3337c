# tests/fuzz/local.mk: tests of this room

# Any bytes as a control frame.
check_PROGRAMS += tests/fuzz/fuzz_frame
TESTS += tests/fuzz/fuzz_frame
tests_fuzz_fuzz_frame_SOURCES = tests/fuzz/fuzz_frame.c tests/fuzz/replay.c tests/lib/frames.h
tests_fuzz_fuzz_frame_LDADD = libcommd-proto.la $(PROTOBUF_C_LIBS)
EXTRA_DIST += tests/fuzz/corpus/frame

# Each target twice: here with replay.c, a plain program over its corpus; for exploring, compile
# it with clang -fsanitize=fuzzer,address,undefined instead.
check_PROGRAMS += tests/fuzz/fuzz_conf
TESTS += tests/fuzz/fuzz_conf
tests_fuzz_fuzz_conf_SOURCES = tests/fuzz/fuzz_conf.c tests/fuzz/replay.c
tests_fuzz_fuzz_conf_LDADD = libcommd-conf.la
EXTRA_DIST += tests/fuzz/corpus/conf

# A member that writes what it likes into its board.
check_PROGRAMS += tests/fuzz/fuzz_board
TESTS += tests/fuzz/fuzz_board
tests_fuzz_fuzz_board_SOURCES = tests/fuzz/fuzz_board.c tests/fuzz/replay.c tests/lib/cluster.c \
	tests/lib/cluster.h
tests_fuzz_fuzz_board_LDADD = $(in_one_process)
EXTRA_DIST += tests/fuzz/corpus/board

# A peer that writes what it likes to its connections.
check_PROGRAMS += tests/fuzz/fuzz_stream
TESTS += tests/fuzz/fuzz_stream
tests_fuzz_fuzz_stream_SOURCES = tests/fuzz/fuzz_stream.c tests/fuzz/replay.c
tests_fuzz_fuzz_stream_LDADD = libcommd-fabric.la libcommd-shm.la
EXTRA_DIST += tests/fuzz/corpus/stream

# Whoever is on the network between two peers that encrypt. By hand, with sanitizers:
# tests/fuzz/fuzz_record --tries 1000000
check_PROGRAMS += tests/fuzz/fuzz_record
TESTS += tests/fuzz/fuzz_record
tests_fuzz_fuzz_record_SOURCES = tests/fuzz/fuzz_record.c tests/fuzz/replay.c
tests_fuzz_fuzz_record_LDADD = libcommd-fabric.la libcommd-shm.la
EXTRA_DIST += tests/fuzz/corpus/record

# Whoever reaches the port of HTTP.
check_PROGRAMS += tests/fuzz/fuzz_http
TESTS += tests/fuzz/fuzz_http
tests_fuzz_fuzz_http_SOURCES = tests/fuzz/fuzz_http.c tests/fuzz/replay.c daemon/http/body.c \
	daemon/http/body.h daemon/http/http_request.c daemon/http/http_request.h daemon/http/metrics.c \
	daemon/http/metrics.h
tests_fuzz_fuzz_http_LDADD = libcommd-proto.la libcommd-shm.la $(PROTOBUF_C_LIBS)
EXTRA_DIST += tests/fuzz/corpus/http

# A client of commd-gpu that sends and writes what it likes.
check_PROGRAMS += tests/fuzz/fuzz_gpu
TESTS += tests/fuzz/fuzz_gpu
tests_fuzz_fuzz_gpu_SOURCES = tests/fuzz/fuzz_gpu.c tests/fuzz/gpu_stub.c tests/fuzz/gpu_stub.h \
	tests/fuzz/replay.c transport/gpu/gpu.h transport/gpu/gpu_attach.c transport/gpu/gpu_comm.c \
	transport/gpu/gpu_device.c transport/gpu/gpu_group.c transport/gpu/gpu_launch.c \
	transport/gpu/gpu_lend.c transport/gpu/gpu_memory.c transport/gpu/gpu_nccl.c \
	transport/gpu/gpu_session.c transport/gpu/gpu_slot.c transport/gpu/gpu_user.c
tests_fuzz_fuzz_gpu_LDADD = libcommd-gpu-plan.la libcommd-gpu-twin.la libcommd-gpu-image.la \
	libcommd-schedule.la libcommd-shm.la -ldl -lpthread
EXTRA_DIST += tests/fuzz/corpus/gpu

# tests/fuzz/local.mk: tests of this room

# Any bytes as a control frame.
check_PROGRAMS += fuzz_frame
TESTS += fuzz_frame
fuzz_frame_SOURCES = tests/fuzz/fuzz_frame.c tests/fuzz/replay.c
fuzz_frame_LDADD = libcommd-proto.la $(PROTOBUF_C_LIBS)
EXTRA_DIST += tests/fuzz/corpus/frame

# Each target twice: here with replay.c, a plain program over its corpus; for exploring, compile
# it with clang -fsanitize=fuzzer,address,undefined instead.
check_PROGRAMS += fuzz_conf
TESTS += fuzz_conf
fuzz_conf_SOURCES = tests/fuzz/fuzz_conf.c tests/fuzz/replay.c
fuzz_conf_LDADD = libcommd-conf.la
EXTRA_DIST += tests/fuzz/corpus/conf

# A member that writes what it likes into its board.
check_PROGRAMS += fuzz_board
TESTS += fuzz_board
fuzz_board_SOURCES = tests/fuzz/fuzz_board.c tests/fuzz/replay.c tests/lib/cluster.c \
	tests/lib/cluster.h
fuzz_board_LDADD = libcommd-client.la libcommd-engine.la libcommd-fabric.la \
	libcommd-schedule.la libcommd-proto.la libcommd-shm.la $(PROTOBUF_C_LIBS)
EXTRA_DIST += tests/fuzz/corpus/board

# A peer that writes what it likes to its connections.
check_PROGRAMS += fuzz_stream
TESTS += fuzz_stream
fuzz_stream_SOURCES = tests/fuzz/fuzz_stream.c tests/fuzz/replay.c
fuzz_stream_LDADD = libcommd-fabric.la libcommd-shm.la
EXTRA_DIST += tests/fuzz/corpus/stream

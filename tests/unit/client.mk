# tests/unit/client.mk: tests of the client programs and of the control messages' codec
if HAVE_CMOCKA
check_PROGRAMS += test_codec test_msg_io
TESTS += test_codec test_msg_io
check_PROGRAMS += test_commctl
TESTS += test_commctl
check_PROGRAMS += test_perf
TESTS += test_perf

test_codec_SOURCES = tests/unit/test_codec.c tests/unit/codec_samples.c tests/unit/codec_samples.h
test_codec_CPPFLAGS = $(AM_CPPFLAGS) $(PROTOBUF_C_CFLAGS)
test_codec_CFLAGS = $(AM_CFLAGS) $(CMOCKA_CFLAGS)
test_codec_LDADD = libcommd-proto.la $(PROTOBUF_C_LIBS) $(CMOCKA_LIBS)

test_msg_io_SOURCES = tests/unit/test_msg_io.c tests/unit/codec_samples.c \
	tests/unit/codec_samples.h
test_msg_io_CFLAGS = $(AM_CFLAGS) $(CMOCKA_CFLAGS)
test_msg_io_LDADD = libcommd-proto.la $(PROTOBUF_C_LIBS) $(CMOCKA_LIBS)

# Runs client/commctl, which `make check` has built with everything else.
test_commctl_SOURCES = tests/unit/test_commctl.c
test_commctl_CFLAGS = $(AM_CFLAGS) $(CMOCKA_CFLAGS)
test_commctl_LDADD = libcommd-proto.la libcommd-shm.la $(PROTOBUF_C_LIBS) $(CMOCKA_LIBS)

# What commd-perf says of results is only worth what its data are; and its command line.
test_perf_SOURCES = tests/unit/test_perf.c client/commd_perf.h client/commd_perf_coll.c \
	client/commd_perf_data.c client/commd_perf_loop.c client/commd_perf_options.c \
	client/commd_perf_report.c client/commd_perf_stats.c
test_perf_CFLAGS = $(AM_CFLAGS) $(CMOCKA_CFLAGS)
test_perf_LDADD = $(CMOCKA_LIBS)
endif

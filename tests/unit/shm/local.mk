# tests/unit/shm/: what two processes agree on: memory, boards, arithmetic, messages.
if HAVE_CMOCKA
unit_shm = tests/unit/shm/test_board tests/unit/shm/test_board_threads tests/unit/shm/test_closer \
	tests/unit/shm/test_codec tests/unit/shm/test_copy tests/unit/shm/test_cuda \
	tests/unit/shm/test_cuda_abi tests/unit/shm/test_dtype tests/unit/shm/test_fds \
	tests/unit/shm/test_mail tests/unit/shm/test_msg_io tests/unit/shm/test_place \
	tests/unit/shm/test_ranks \
	tests/unit/shm/test_recorder tests/unit/shm/test_reduce tests/unit/shm/test_rivals \
	tests/unit/shm/test_socket_path tests/unit/shm/test_topology tests/unit/shm/test_tune \
	tests/unit/shm/test_wait
check_PROGRAMS += $(unit_shm)
TESTS += $(unit_shm)

tests_unit_shm_test_board_SOURCES = tests/unit/shm/test_board.c tests/lib/cores.h
tests_unit_shm_test_board_LDADD = libcommd-shm.la $(CMOCKA_LIBS)

# Members as threads over one mapping, for the thread sanitizer.
tests_unit_shm_test_board_threads_SOURCES = tests/unit/shm/test_board_threads.c tests/lib/handle.h
tests_unit_shm_test_board_threads_LDADD = libcommd-client.la libcommd-proto.la libcommd-shm.la \
	$(PROTOBUF_C_LIBS) $(CMOCKA_LIBS)

tests_unit_shm_test_closer_SOURCES = tests/unit/shm/test_closer.c
tests_unit_shm_test_closer_LDADD = libcommd-shm.la $(CMOCKA_LIBS)

tests_unit_shm_test_codec_SOURCES = tests/unit/shm/test_codec.c tests/unit/shm/codec_samples.c \
	tests/unit/shm/codec_samples.h tests/lib/frames.h
tests_unit_shm_test_codec_CPPFLAGS = $(AM_CPPFLAGS) $(PROTOBUF_C_CFLAGS)
tests_unit_shm_test_codec_LDADD = libcommd-proto.la $(PROTOBUF_C_LIBS) $(CMOCKA_LIBS)

tests_unit_shm_test_copy_SOURCES = tests/unit/shm/test_copy.c
tests_unit_shm_test_copy_LDADD = libcommd-shm.la $(CMOCKA_LIBS)

tests_unit_shm_test_cuda_SOURCES = tests/unit/shm/test_cuda.c
tests_unit_shm_test_cuda_LDADD = libcommd-shm.la $(CMOCKA_LIBS)
EXTRA_tests_unit_shm_test_cuda_DEPENDENCIES = tests/fakecuda/libcuda.so.1

# The Toolkit's header, where there is one; last, so that nothing else comes from there.
tests_unit_shm_test_cuda_abi_SOURCES = tests/unit/shm/test_cuda_abi.c tests/unit/shm/cuda_abi.h \
	tests/unit/shm/cuda_abi_toolkit.c
tests_unit_shm_test_cuda_abi_CPPFLAGS = $(AM_CPPFLAGS) -idirafter /usr/local/cuda/include
tests_unit_shm_test_cuda_abi_LDADD = $(CMOCKA_LIBS)

tests_unit_shm_test_dtype_SOURCES = tests/unit/shm/test_dtype.c
tests_unit_shm_test_dtype_LDADD = libcommd-shm.la $(CMOCKA_LIBS)

tests_unit_shm_test_fds_SOURCES = tests/unit/shm/test_fds.c
tests_unit_shm_test_fds_LDADD = $(CMOCKA_LIBS)

tests_unit_shm_test_mail_SOURCES = tests/unit/shm/test_mail.c
tests_unit_shm_test_mail_LDADD = libcommd-shm.la $(CMOCKA_LIBS)

tests_unit_shm_test_msg_io_SOURCES = tests/unit/shm/test_msg_io.c tests/unit/shm/codec_samples.c \
	tests/unit/shm/codec_samples.h tests/lib/frames.h tests/lib/heap_has.h
tests_unit_shm_test_msg_io_LDADD = libcommd-proto.la $(PROTOBUF_C_LIBS) $(CMOCKA_LIBS)

tests_unit_shm_test_recorder_SOURCES = tests/unit/shm/test_recorder.c
tests_unit_shm_test_recorder_LDADD = libcommd-shm.la $(CMOCKA_LIBS)

tests_unit_shm_test_rivals_SOURCES = tests/unit/shm/test_rivals.c
tests_unit_shm_test_rivals_LDADD = libcommd-shm.la $(CMOCKA_LIBS)

tests_unit_shm_test_ranks_SOURCES = tests/unit/shm/test_ranks.c
tests_unit_shm_test_ranks_LDADD = libcommd-shm.la $(CMOCKA_LIBS)

tests_unit_shm_test_reduce_SOURCES = tests/unit/shm/test_reduce.c \
	tests/unit/shm/reduce_reference.c tests/unit/shm/reduce_reference.h
tests_unit_shm_test_reduce_LDADD = libcommd-shm.la $(CMOCKA_LIBS)

tests_unit_shm_test_socket_path_SOURCES = tests/unit/shm/test_socket_path.c
tests_unit_shm_test_socket_path_LDADD = libcommd-shm.la $(CMOCKA_LIBS)

tests_unit_shm_test_topology_SOURCES = tests/unit/shm/test_topology.c
tests_unit_shm_test_place_SOURCES = tests/unit/shm/test_place.c
tests_unit_shm_test_place_LDADD = libcommd-shm.la $(CMOCKA_LIBS)
tests_unit_shm_test_tune_SOURCES = tests/unit/shm/test_tune.c
tests_unit_shm_test_tune_LDADD = libcommd-shm.la $(CMOCKA_LIBS)
tests_unit_shm_test_topology_LDADD = libcommd-shm.la $(CMOCKA_LIBS)

tests_unit_shm_test_wait_SOURCES = tests/unit/shm/test_wait.c
tests_unit_shm_test_wait_LDADD = libcommd-shm.la $(CMOCKA_LIBS)
endif

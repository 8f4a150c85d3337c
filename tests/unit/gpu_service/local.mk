# tests/unit/gpu_service/: commd-gpu as a process, with clients, over the driver without a GPU.
if HAVE_CMOCKA
unit_gpu_service = tests/unit/gpu_service/test_faults tests/unit/gpu_service/test_gpus \
	tests/unit/gpu_service/test_hostile tests/unit/gpu_service/test_lent \
	tests/unit/gpu_service/test_segments tests/unit/gpu_service/test_service \
	tests/unit/gpu_service/test_several tests/unit/gpu_service/test_shares \
	tests/unit/gpu_service/test_storm
check_PROGRAMS += $(unit_gpu_service)
TESTS += $(unit_gpu_service)
gpu_service = tests/unit/gpu_service/client.c tests/unit/gpu_service/oracle.c \
	tests/unit/gpu_service/oracle.h tests/unit/gpu_service/service.c \
	tests/unit/gpu_service/service.h
gpu_service_libs = libcommd-proto.la libcommd-shm.la $(PROTOBUF_C_LIBS) $(CMOCKA_LIBS) -ldl \
	-lpthread
gpu_service_needs = transport/commd-gpu tests/fakecuda/libcuda.so.1 tests/fakecuda/libnccl.so.2 \
	tests/fakecuda/libfakekernels.so

tests_unit_gpu_service_test_faults_SOURCES = tests/unit/gpu_service/test_faults.c $(gpu_service)
tests_unit_gpu_service_test_faults_LDADD = $(gpu_service_libs)
EXTRA_tests_unit_gpu_service_test_faults_DEPENDENCIES = $(gpu_service_needs)

tests_unit_gpu_service_test_gpus_SOURCES = tests/unit/gpu_service/test_gpus.c $(gpu_service)
tests_unit_gpu_service_test_gpus_LDADD = $(gpu_service_libs)
EXTRA_tests_unit_gpu_service_test_gpus_DEPENDENCIES = $(gpu_service_needs)

tests_unit_gpu_service_test_hostile_SOURCES = tests/unit/gpu_service/test_hostile.c $(gpu_service)
tests_unit_gpu_service_test_hostile_LDADD = $(gpu_service_libs)
EXTRA_tests_unit_gpu_service_test_hostile_DEPENDENCIES = $(gpu_service_needs)

# libcommd's ranks at a commd-gpu.
gpu_service_ranks = tests/lib/arena_commd.c tests/lib/arena_commd.h tests/lib/gpu_ranks.c \
	tests/lib/gpu_ranks.h tests/unit/gpu_service/ranks.c tests/unit/gpu_service/ranks.h \
	tests/unit/gpu_service/service.c tests/unit/gpu_service/service.h
tests_unit_gpu_service_test_segments_SOURCES = tests/unit/gpu_service/test_segments.c \
	$(gpu_service_ranks)
tests_unit_gpu_service_test_segments_LDADD = libcommd-client.la $(gpu_service_libs)
EXTRA_tests_unit_gpu_service_test_segments_DEPENDENCIES = $(gpu_service_needs)

tests_unit_gpu_service_test_several_SOURCES = tests/unit/gpu_service/test_several.c \
	$(gpu_service_ranks)
tests_unit_gpu_service_test_several_LDADD = libcommd-client.la $(gpu_service_libs)
EXTRA_tests_unit_gpu_service_test_several_DEPENDENCIES = $(gpu_service_needs)

tests_unit_gpu_service_test_lent_SOURCES = tests/unit/gpu_service/test_lent.c $(gpu_service_ranks)
tests_unit_gpu_service_test_lent_LDADD = libcommd-client.la $(gpu_service_libs)
EXTRA_tests_unit_gpu_service_test_lent_DEPENDENCIES = $(gpu_service_needs)

tests_unit_gpu_service_test_service_SOURCES = tests/unit/gpu_service/test_service.c $(gpu_service)
tests_unit_gpu_service_test_service_LDADD = $(gpu_service_libs)
EXTRA_tests_unit_gpu_service_test_service_DEPENDENCIES = $(gpu_service_needs)

tests_unit_gpu_service_test_shares_SOURCES = tests/unit/gpu_service/test_shares.c $(gpu_service)
tests_unit_gpu_service_test_shares_LDADD = $(gpu_service_libs)
EXTRA_tests_unit_gpu_service_test_shares_DEPENDENCIES = $(gpu_service_needs)

tests_unit_gpu_service_test_storm_SOURCES = tests/unit/gpu_service/test_storm.c $(gpu_service)
tests_unit_gpu_service_test_storm_LDADD = $(gpu_service_libs)
EXTRA_tests_unit_gpu_service_test_storm_DEPENDENCIES = $(gpu_service_needs)
endif

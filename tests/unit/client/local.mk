# tests/unit/client/: libcommd over boards, engines and the loop fabric in one process; the
# programs.
if HAVE_CMOCKA
unit_client = tests/unit/client/test_collectives tests/unit/client/test_commctl \
	tests/unit/client/test_registered tests/unit/client/test_p2p tests/unit/client/test_p2p_threads \
	tests/unit/client/test_diagnose tests/unit/client/test_timeline \
	tests/unit/client/test_doctor tests/unit/client/test_interleavings \
	tests/unit/client/test_job \
	tests/unit/client/test_perf tests/unit/client/test_posts \
	tests/unit/client/test_early \
	tests/unit/client/test_elsewhere tests/unit/client/test_stand_in tests/unit/client/test_teams \
	tests/unit/client/test_service tests/unit/client/test_trouble \
	tests/unit/client/test_device tests/unit/client/test_device_path
check_PROGRAMS += $(unit_client)
TESTS += $(unit_client)

tests_unit_client_test_collectives_SOURCES = tests/unit/client/test_collectives.c \
	tests/lib/cluster.c tests/lib/cluster.h tests/lib/cores.h \
	tests/lib/handle.h
tests_unit_client_test_collectives_LDADD = $(in_one_process) $(CMOCKA_LIBS)

tests_unit_client_test_diagnose_SOURCES = tests/unit/client/test_diagnose.c \
	client/ctl/chain.c client/ctl/chain.h client/ctl/chain_end.c \
	client/ctl/diagnose.c client/ctl/diagnose.h client/ctl/finding.c \
	client/ctl/finding.h client/ctl/gone.c client/ctl/gpu_chain.c client/ctl/hampered.c \
	client/ctl/joining.c client/ctl/killed.c client/ctl/lost.c client/ctl/links.c client/ctl/pace.c \
	client/ctl/pending.c client/ctl/seats.c client/ctl/seats.h client/ctl/unlike.c \
	client/ctl/unmatched.c client/ctl/words.c client/ctl/words.h
tests_unit_client_test_diagnose_LDADD = libcommd-proto.la libcommd-shm.la $(PROTOBUF_C_LIBS) \
	$(CMOCKA_LIBS)

tests_unit_client_test_timeline_SOURCES = tests/unit/client/test_timeline.c \
	client/ctl/timeline.c client/ctl/timeline.h client/ctl/words.c client/ctl/words.h
tests_unit_client_test_timeline_LDADD = libcommd-proto.la libcommd-shm.la $(PROTOBUF_C_LIBS) \
	$(CMOCKA_LIBS)

tests_unit_client_test_doctor_SOURCES = tests/unit/client/test_doctor.c client/ctl/doctor.c \
	client/ctl/doctor.h client/ctl/doctor_facts.c \
	client/ctl/stack.c client/ctl/stack.h client/ctl/words.c client/ctl/words.h
tests_unit_client_test_doctor_LDADD = libcommd-proto.la libcommd-shm.la $(PROTOBUF_C_LIBS) \
	$(CMOCKA_LIBS)

# Runs client/ctl/commctl, which make check has built with everything else.
tests_unit_client_test_commctl_SOURCES = tests/unit/client/test_commctl.c tests/lib/frames.h
tests_unit_client_test_commctl_LDADD = libcommd-proto.la libcommd-shm.la $(PROTOBUF_C_LIBS) \
	$(CMOCKA_LIBS)

tests_unit_client_test_registered_SOURCES = tests/unit/client/test_registered.c \
	tests/lib/arena_commd.c tests/lib/arena_commd.h tests/lib/cluster.c tests/lib/cluster.h \
	tests/lib/descriptors.h
tests_unit_client_test_registered_LDADD = $(in_one_process) $(CMOCKA_LIBS)

tests_unit_client_test_service_SOURCES = tests/unit/client/test_service.c
tests_unit_client_test_service_LDADD = libcommd-client.la libcommd-proto.la libcommd-shm.la \
	$(PROTOBUF_C_LIBS) $(CMOCKA_LIBS)

tests_unit_client_test_job_SOURCES = tests/unit/client/test_job.c
tests_unit_client_test_job_LDADD = libcommd-client.la libcommd-proto.la libcommd-shm.la \
	$(PROTOBUF_C_LIBS) $(CMOCKA_LIBS)

tests_unit_client_test_p2p_SOURCES = tests/unit/client/test_p2p.c tests/lib/cluster.c \
	tests/lib/cluster.h
tests_unit_client_test_p2p_LDADD = $(in_one_process) $(CMOCKA_LIBS)

tests_unit_client_test_p2p_threads_SOURCES = tests/unit/client/test_p2p_threads.c \
	tests/unit/client/members.c tests/unit/client/members.h
tests_unit_client_test_p2p_threads_LDADD = libcommd-client.la libcommd-proto.la libcommd-shm.la \
	$(PROTOBUF_C_LIBS) $(CMOCKA_LIBS)

tests_unit_client_test_elsewhere_SOURCES = tests/unit/client/test_elsewhere.c \
	tests/unit/client/members.c tests/unit/client/members.h tests/lib/handle.h
tests_unit_client_test_elsewhere_LDADD = libcommd-client.la libcommd-proto.la libcommd-shm.la \
	$(PROTOBUF_C_LIBS) $(CMOCKA_LIBS)

tests_unit_client_test_stand_in_SOURCES = tests/unit/client/test_stand_in.c \
	tests/unit/client/members.c tests/unit/client/members.h
tests_unit_client_test_stand_in_LDADD = libcommd-client.la libcommd-proto.la libcommd-shm.la \
	$(PROTOBUF_C_LIBS) $(CMOCKA_LIBS)

# With a seed, and for how many seconds: for longer.
tests_unit_client_test_interleavings_SOURCES = tests/unit/client/test_interleavings.c \
	tests/hostile/dice.h tests/unit/client/members.c tests/unit/client/members.h
tests_unit_client_test_interleavings_LDADD = libcommd-client.la libcommd-proto.la libcommd-shm.la \
	$(PROTOBUF_C_LIBS) $(CMOCKA_LIBS)

# What commd-perf says of results is only worth what its data are; and its command line.
tests_unit_client_test_perf_SOURCES = tests/unit/client/test_perf.c client/perf/commd_perf.h \
	client/perf/commd_perf_coll.c client/perf/commd_perf_data.c client/perf/commd_perf_loop.c \
	client/perf/commd_perf_options.c client/perf/commd_perf_report.c client/perf/commd_perf_stats.c
tests_unit_client_test_perf_LDADD = libcommd-shm.la $(CMOCKA_LIBS)

tests_unit_client_test_posts_SOURCES = tests/unit/client/test_posts.c tests/lib/cluster.c \
	tests/lib/cluster.h
tests_unit_client_test_posts_LDADD = $(in_one_process) $(CMOCKA_LIBS)

tests_unit_client_test_early_SOURCES = tests/unit/client/test_early.c tests/lib/cluster.c \
	tests/lib/cluster.h tests/lib/handle.h
tests_unit_client_test_early_LDADD = $(in_one_process) $(CMOCKA_LIBS)

tests_unit_client_test_teams_SOURCES = tests/unit/client/test_teams.c tests/lib/cluster.c \
	tests/lib/cluster.h
tests_unit_client_test_teams_LDADD = $(in_one_process) $(CMOCKA_LIBS)

# Loads tests/fakecuda/libcuda.so.1 after its first test.
tests_unit_client_test_device_SOURCES = tests/unit/client/test_device.c tests/lib/gpu_ranks.c \
	tests/lib/env.h tests/lib/gpu_ranks.h
tests_unit_client_test_device_LDADD = libcommd-client.la libcommd-proto.la libcommd-shm.la \
	$(PROTOBUF_C_LIBS) $(CMOCKA_LIBS) -ldl
EXTRA_tests_unit_client_test_device_DEPENDENCIES = tests/fakecuda/libcuda.so.1

tests_unit_client_test_device_path_SOURCES = tests/unit/client/test_device_path.c \
	tests/lib/arena_commd.c tests/lib/arena_commd.h tests/lib/gpu_ranks.c tests/lib/gpu_ranks.h \
	tests/lib/descriptors.h tests/lib/mini_gpu.c tests/lib/mini_gpu.h
tests_unit_client_test_device_path_LDADD = libcommd-client.la libcommd-proto.la libcommd-shm.la \
	$(PROTOBUF_C_LIBS) $(CMOCKA_LIBS) -ldl
EXTRA_tests_unit_client_test_device_path_DEPENDENCIES = tests/fakecuda/libcuda.so.1

tests_unit_client_test_trouble_SOURCES = tests/unit/client/test_trouble.c tests/lib/cluster.c \
	tests/lib/cluster.h
tests_unit_client_test_trouble_LDADD = $(in_one_process) $(CMOCKA_LIBS)
endif

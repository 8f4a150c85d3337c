# tests/integration/local.mk: tests of this room

checks_of_text += tests/integration/check_unit.sh
checks_of_text += tests/integration/check_man.py tests/integration/check_limit.py
dist_check_SCRIPTS += tests/integration/check_commctl.py
TESTS += tests/integration/check_commctl.py

# Real daemons, engines and ranks (cluster.py), each also a program of its own: needs python3 only.
integration_tests = tests/integration/test_recover.py tests/integration/test_bad_input.py \
	tests/integration/test_why.py tests/integration/test_slow_ranks.py \
	tests/integration/test_collectives.py tests/integration/test_many_groups.py \
	tests/integration/test_perf.py tests/integration/test_restart.py \
	tests/integration/test_restart_nodes.py tests/integration/test_engine_dies.py \
	tests/integration/test_mend.py tests/integration/test_gpu_service.py \
	tests/integration/test_gpu_nodes.py tests/integration/test_gpu_restart.py \
	tests/integration/test_floods.py tests/integration/test_encryption.py \
	tests/integration/test_certificates.py tests/integration/test_http.py \
	tests/integration/test_faults.py tests/integration/test_restart_engine.py \
	tests/integration/test_strangers.py tests/integration/test_prometheus.py \
	tests/integration/test_gpu_why.py tests/integration/test_gpu_recover.py \
	tests/integration/test_gpu_path.py tests/integration/test_registered.py \
	tests/integration/test_turns.py tests/integration/test_verbs.py \
	tests/integration/test_launcher.py tests/integration/test_autostart.py \
	tests/integration/test_netns.py tests/integration/test_board_memory.py \
	tests/integration/test_epochs.py tests/integration/test_keys.py \
	tests/integration/test_keeper.py tests/integration/test_described.py \
	tests/integration/test_containers.py tests/integration/test_service.py \
	tests/integration/test_numpy.py tests/integration/test_doctor.py \
	tests/integration/test_shares.py tests/integration/test_descriptors.py \
	tests/integration/test_jobs.py tests/integration/test_exports.sh \
	tests/integration/test_examples.py tests/integration/test_engine_tenants.py \
	tests/integration/test_trace.py tests/integration/test_interface.py \
	tests/integration/test_torch_choice.py
dist_check_SCRIPTS += $(integration_tests)
TESTS += $(integration_tests)
EXTRA_DIST += tests/integration/lib/cluster.py tests/integration/lib/authority.py \
	tests/integration/lib/keeping.py \
	tests/integration/lib/middle.py \
	tests/integration/lib/commd_client.py \
	tests/integration/lib/hoarder.py tests/integration/lib/inputs.py \
	tests/integration/lib/faults.py tests/integration/lib/many.py \
	tests/integration/lib/torch_rank.py tests/integration/lib/torch_staged.py \
	tests/integration/lib/gpu_arrays.py tests/integration/lib/gpu_driver.py \
	tests/integration/lib/gpu_tensors.py tests/integration/lib/limit.py \
	tests/integration/lib/described.py tests/integration/lib/crowd.py \
	tests/integration/lib/numpy_ops.py \
	tests/integration/lib/numpy_stubs.py \
	tests/integration/lib/rank.py tests/integration/lib/recovering.py \
	tests/integration/lib/registered.py tests/integration/lib/staged.py \
	tests/integration/lib/stream.py \
	tests/integration/lib/verified.py \
	tests/integration/lib/turns.py tests/integration/lib/wire.py tests/integration/lib/shells.py \
	tests/integration/torch/torch_ops.py \
	tests/integration/torch/torch_checks.py tests/integration/torch/torch_forms.py \
	tests/integration/torch/torch_groups.py tests/integration/torch/torch_p2p.py \
	tests/integration/torch/torch_ends.py tests/integration/torch/torch_trouble.py tools/nodes.sh \
	tools/demo.sh tools/demo_table.py tools/suite.sh tests/bench/idle.sh

# What test_engine_tenants.py runs as another user.
check_PROGRAMS += tests/integration/lib/hostile_mail
tests_integration_lib_hostile_mail_SOURCES = tests/integration/lib/hostile_mail.c
tests_integration_lib_hostile_mail_LDADD = libcommd-client.la libcommd-proto.la libcommd-shm.la \
	$(PROTOBUF_C_LIBS)

# What test_gpu_service.py has instead of commd-gpu, and of clients that ask for it.
check_PROGRAMS += tests/integration/lib/gpu_fake
tests_integration_lib_gpu_fake_SOURCES = tests/integration/lib/gpu_fake.c \
	transport/process/control.c transport/process/launcher.c
tests_integration_lib_gpu_fake_LDADD = libcommd-launch.la libcommd-proto.la libcommd-shm.la \
	$(PROTOBUF_C_LIBS)

# What test_restart.py and tests/faults load into commd.
check_LTLIBRARIES += tests/integration/lib/die_at.la
tests_integration_lib_die_at_la_SOURCES = tests/integration/lib/die_at.c
tests_integration_lib_die_at_la_LDFLAGS = -module -avoid-version -shared -rpath /nowhere

# The ranks of test_gpu_nodes.py.
check_PROGRAMS += tests/integration/lib/gpu_rank
tests_integration_lib_gpu_rank_SOURCES = tests/integration/lib/gpu_rank.c
tests_integration_lib_gpu_rank_LDADD = libcommd-client.la libcommd-proto.la libcommd-shm.la \
	$(PROTOBUF_C_LIBS) -ldl
EXTRA_tests_integration_lib_gpu_rank_DEPENDENCIES = transport/commd-gpu \
	tests/fakecuda/libcuda.so.1 tests/fakecuda/libnccl.so.2 tests/fakecuda/libfakekernels.so

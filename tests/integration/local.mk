# tests/integration/local.mk: tests of this room

dist_check_SCRIPTS += tests/integration/check_unit.sh
TESTS += tests/integration/check_unit.sh

dist_check_SCRIPTS += tests/integration/check_links.sh
TESTS += tests/integration/check_links.sh

dist_check_SCRIPTS += tests/integration/check_man.py
TESTS += tests/integration/check_man.py

# Real daemons, engines and ranks (cluster.py), each also a program of its own: needs python3 only.
integration_tests = tests/integration/test_collectives.py tests/integration/test_perf.py \
	tests/integration/test_faults.py tests/integration/test_many_groups.py \
	tests/integration/test_bad_input.py tests/integration/test_service.py tests/integration/test_autostart.py \
	tests/integration/test_netns.py tests/integration/test_exports.sh \
	tests/integration/test_numpy.py tests/integration/test_examples.py \
	tests/integration/test_registered.py tests/integration/test_launcher.py \
	tests/integration/test_turns.py tests/integration/test_shares.py \
	tests/integration/test_descriptors.py \
	tests/integration/test_containers.py \
	tests/integration/test_engine_tenants.py \
	tests/integration/test_floods.py \
	tests/integration/test_board_memory.py
dist_check_SCRIPTS += $(integration_tests)
TESTS += $(integration_tests)
EXTRA_DIST += tests/integration/cluster.py tests/integration/commd_client.py tests/integration/hoarder.py \
	tests/integration/faults.py tests/integration/many.py tests/integration/numpy_ops.py tests/integration/numpy_stubs.py \
	tests/integration/rank.py tests/integration/registered.py tests/integration/stream.py \
	tests/integration/turns.py tests/integration/wire.py tests/integration/torch_ops.py tests/integration/torch_checks.py \
	tests/integration/torch_forms.py tests/integration/torch_groups.py \
	tests/integration/torch_p2p.py tests/integration/torch_ends.py \
	tests/integration/torch_trouble.py tests/lib/nodes.sh \
	tests/lib/demo.sh tests/lib/demo_table.py \
	tests/lib/suite.sh tests/bench/idle.sh

# What test_engine_tenants.py runs as another user.
check_PROGRAMS += tests/integration/hostile_mail
tests_integration_hostile_mail_SOURCES = tests/integration/hostile_mail.c
tests_integration_hostile_mail_LDADD = libcommd-client.la libcommd-proto.la libcommd-shm.la \
	$(PROTOBUF_C_LIBS)

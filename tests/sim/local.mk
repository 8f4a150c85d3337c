# tests/sim/: whole clusters of real cores in one process, in virtual time.
sim_sources = tests/sim/sim.c tests/sim/sim.h tests/sim/sim_check.c tests/sim/sim_edge.c \
	tests/sim/sim_engine.c tests/sim/sim_internal.h tests/sim/sim_net.c \
	tests/sim/sim_state.c
sim_libs = libcommd-state.la libcommd-core.la libcommd-proto.la libcommd-shm.la $(PROTOBUF_C_LIBS)

# swarm alone runs one seed; make check runs 2,000 (some 15 s): tests/sim/check_swarm.sh
check_PROGRAMS += tests/sim/swarm
tests_sim_swarm_SOURCES = tests/sim/swarm.c $(sim_sources)
tests_sim_swarm_LDADD = $(sim_libs)
dist_check_SCRIPTS += tests/sim/check_swarm.sh
TESTS += tests/sim/check_swarm.sh

if HAVE_CMOCKA
check_PROGRAMS += tests/sim/test_join tests/sim/test_absent
TESTS += tests/sim/test_join tests/sim/test_absent
tests_sim_test_absent_SOURCES = tests/sim/test_absent.c $(sim_sources)
tests_sim_test_absent_LDADD = $(sim_libs) $(CMOCKA_LIBS)
tests_sim_test_join_SOURCES = tests/sim/test_join.c $(sim_sources)
tests_sim_test_join_LDADD = $(sim_libs) $(CMOCKA_LIBS)

# Builds the core with one rule broken at a time and expects the tests above to notice.
dist_check_SCRIPTS += tests/sim/mutants.py
TESTS += tests/sim/mutants.py
endif
EXTRA_DIST += tests/sim/mutants.txt

# tests/sim/: whole clusters of real cores in one process, in virtual time.
sim_sources = tests/sim/sim.c tests/sim/sim.h tests/sim/sim_check.c tests/sim/sim_edge.c \
	tests/sim/sim_engine.c tests/sim/sim_hold.c tests/sim/sim_internal.h tests/sim/sim_net.c \
	tests/sim/sim_pause.c \
	tests/sim/sim_recover.c \
	tests/sim/sim_state.c
sim_libs = libcommd-state.la libcommd-core.la libcommd-proto.la libcommd-shm.la $(PROTOBUF_C_LIBS)

# Builds the core with one rule broken at a time and expects the tests below to notice: without
# what this build compiles, so builds with a sanitizer leave it to the others.
dist_check_SCRIPTS += tests/sim/mutants.py
if HAVE_CMOCKA
if !SANITIZERS
TESTS += tests/sim/mutants.py
endif
endif

# swarm alone runs one seed; make check runs 2,000 (some 15 s): tests/sim/check_swarm.sh
check_PROGRAMS += tests/sim/swarm
seeds_sources = tests/sim/seeds.c tests/sim/seeds.h
tests_sim_swarm_SOURCES = tests/sim/swarm.c $(seeds_sources) $(sim_sources)
tests_sim_swarm_LDADD = $(sim_libs)
dist_check_SCRIPTS += tests/sim/check_swarm.sh
TESTS += tests/sim/check_swarm.sh

# Likewise, of groups that lose ranks and go on.
check_PROGRAMS += tests/sim/recover
tests_sim_recover_SOURCES = tests/sim/recover.c $(seeds_sources) $(sim_sources)
tests_sim_recover_LDADD = $(sim_libs)
dist_check_SCRIPTS += tests/sim/check_recover.sh
TESTS += tests/sim/check_recover.sh

# Messages of a change of epoch: 512 ranks on 64 nodes; 8,192 on 1,024 take 4 GB and some minutes.
check_PROGRAMS += tests/sim/epoch
tests_sim_epoch_SOURCES = tests/sim/epoch.c
tests_sim_epoch_LDADD = libcommd-core.la libcommd-proto.la libcommd-shm.la $(PROTOBUF_C_LIBS)
TESTS += tests/sim/epoch

if HAVE_CMOCKA
check_PROGRAMS += tests/sim/test_join tests/sim/test_recover tests/sim/test_absent \
	tests/sim/test_killed
TESTS += tests/sim/test_join tests/sim/test_recover tests/sim/test_absent tests/sim/test_killed
tests_sim_test_recover_SOURCES = tests/sim/test_recover.c $(sim_sources)
tests_sim_test_recover_LDADD = $(sim_libs) $(CMOCKA_LIBS)
tests_sim_test_absent_SOURCES = tests/sim/test_absent.c $(sim_sources)
tests_sim_test_absent_LDADD = $(sim_libs) $(CMOCKA_LIBS)
tests_sim_test_killed_SOURCES = tests/sim/test_killed.c $(sim_sources)
tests_sim_test_killed_LDADD = $(sim_libs) $(CMOCKA_LIBS)
tests_sim_test_join_SOURCES = tests/sim/test_join.c $(sim_sources)
tests_sim_test_join_LDADD = $(sim_libs) $(CMOCKA_LIBS)

endif
EXTRA_DIST += tests/sim/mutants.txt

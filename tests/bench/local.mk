# tests/bench/local.mk: tests of this room
if HAVE_UCX
noinst_PROGRAMS += tests/bench/bench_fabric
tests_bench_bench_fabric_SOURCES = tests/bench/bench_fabric.c client/perf/commd_perf_stats.c
tests_bench_bench_fabric_LDADD = libcommd-fabric.la libcommd-launch.la libcommd-shm.la
endif

noinst_PROGRAMS += tests/bench/bench_handover
tests_bench_bench_handover_SOURCES = tests/bench/bench_handover.c client/perf/commd_perf_stats.c
tests_bench_bench_handover_LDADD = libcommd-shm.la

# What the comparison says of the numbers; its processes are imitated. Needs python3 only.
dist_check_SCRIPTS += tests/bench/test_compare.py
TESTS += tests/bench/test_compare.py

EXTRA_DIST += tests/bench/README.md tests/bench/compare.py tests/bench/contestants.py \
	tests/bench/machine.py tests/bench/word.c \
	tests/bench/mpi_perf.c tests/bench/picture.py tests/bench/places.py tests/bench/rivals.py \
	tests/bench/table.py tests/bench/torch_perf.py tests/bench/watched.py \
	tests/integration/ucx_newer.sh

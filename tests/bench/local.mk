# tests/bench/local.mk: tests of this room
if HAVE_UCX
noinst_PROGRAMS += tests/bench/bench_fabric
tests_bench_bench_fabric_SOURCES = tests/bench/bench_fabric.c
tests_bench_bench_fabric_LDADD = libcommd-fabric.la
endif

EXTRA_DIST += tests/bench/compare.py tests/bench/compare.sh tests/bench/mpi_perf.c \
	tests/bench/torch_perf.py tests/integration/ucx_newer.sh

# tests/bench/local.mk: tests of this room
if HAVE_UCX
noinst_PROGRAMS += tests/bench/bench_fabric
tests_bench_bench_fabric_SOURCES = tests/bench/bench_fabric.c client/perf/commd_perf_stats.c
tests_bench_bench_fabric_LDADD = libcommd-fabric.la libcommd-launch.la libcommd-shm.la
endif

noinst_PROGRAMS += tests/bench/bench_handover
tests_bench_bench_handover_SOURCES = tests/bench/bench_handover.c client/perf/commd_perf_stats.c
tests_bench_bench_handover_LDADD = libcommd-shm.la

noinst_PROGRAMS += tests/bench/bench_seal
tests_bench_bench_seal_SOURCES = tests/bench/bench_seal.c tests/bench/two_ends.c \
	tests/bench/two_ends.h
tests_bench_bench_seal_LDADD = libcommd-fabric.la libcommd-launch.la libcommd-shm.la $(CRYPTO_LIBS)

noinst_PROGRAMS += tests/bench/bench_threads
tests_bench_bench_threads_SOURCES = tests/bench/bench_threads.c tests/bench/two_ends.c \
	tests/bench/two_ends.h
tests_bench_bench_threads_LDADD = libcommd-fabric.la libcommd-launch.la libcommd-shm.la \
	$(CRYPTO_LIBS)

# An engine that encrypts by OpenSSL alone: its aead_ipsec_mb() stands before that of the library.
if HAVE_IPSEC_MB
noinst_PROGRAMS += tests/bench/engine_openssl
tests_bench_engine_openssl_SOURCES = $(transport_commd_engine_SOURCES) \
	transport/fabric/tcp/aead_ipsec_mb_none.c
tests_bench_engine_openssl_LDADD = $(transport_commd_engine_LDADD)
endif

# commd-perf over NCCL itself.
noinst_PROGRAMS += tests/bench/nccl_perf
tests_bench_nccl_perf_SOURCES = tests/bench/nccl_perf.c client/perf/commd_perf.h \
	client/perf/commd_perf_coll.c client/perf/commd_perf_data.c client/perf/commd_perf_gpu.c \
	client/perf/commd_perf_launch.c client/perf/commd_perf_loop.c \
	client/perf/commd_perf_options.c client/perf/commd_perf_report.c \
	client/perf/commd_perf_stats.c client/perf/commd_perf_turns.c
tests_bench_nccl_perf_LDADD = libcommd-gpu-plan.la libcommd-shm.la -ldl

dist_check_SCRIPTS += tests/bench/test_nccl_perf.py
TESTS += tests/bench/test_nccl_perf.py

# What the comparison says of the numbers; its processes are imitated. Needs python3 only.
checks_of_text += tests/bench/test_compare.py

EXTRA_DIST += tests/bench/README.md tests/bench/beside.py tests/bench/compare.py \
	tests/bench/crowded.py \
	tests/bench/contestants.py tests/bench/encryption.py tests/bench/gloo_perf.cpp \
	tests/bench/gpu.py tests/bench/machine.py \
	tests/bench/torch_gpu.py tests/bench/torch_overlap.py tests/bench/word.c \
	tests/bench/mpi_perf.c tests/bench/picture.py tests/bench/places.py tests/bench/rivals.py \
	tests/bench/table.py tests/bench/torch_perf.py tests/bench/watched.py \
	tests/bench/why.py \
	tests/integration/ucx_newer.sh

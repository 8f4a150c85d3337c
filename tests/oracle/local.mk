# tests/oracle/: random programs of collectives against a serial reference.
check_PROGRAMS += tests/oracle/oracle
tests_oracle_oracle_SOURCES = tests/oracle/oracle.c tests/oracle/oracle.h tests/oracle/draw.c \
	tests/oracle/data.c tests/oracle/play.c tests/oracle/threads.c tests/oracle/gpu.c \
	tests/lib/arena_commd.c tests/lib/arena_commd.h tests/lib/cluster.c tests/lib/cluster.h \
	tests/unit/shm/reduce_reference.c tests/unit/shm/reduce_reference.h
tests_oracle_oracle_LDADD = $(in_one_process)
EXTRA_tests_oracle_oracle_DEPENDENCIES = tests/fakecuda/libcuda.so.1
oracle_checks = tests/oracle/check_polled.sh tests/oracle/check_threads.sh tests/oracle/check_gpu.sh
dist_check_SCRIPTS += $(oracle_checks)
TESTS += $(oracle_checks)

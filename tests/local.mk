# tests/: one include per room, so that each room's list stays short.
include tests/unit/shm.mk
include tests/unit/transport.mk
include tests/unit/daemon.mk
include tests/unit/client.mk
include tests/sim/local.mk
include tests/oracle/local.mk
include tests/fuzz/local.mk
include tests/hostile/local.mk
include tests/integration/local.mk
include tests/torch/local.mk
include tests/bench/local.mk

# Not part of make check: tests/mutants/run.py removes checks one at a time.
EXTRA_DIST += tests/mutants/run.py tests/mutants/mutants.txt

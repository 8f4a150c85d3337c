# tests/: one include per room, so that each room's list stays short. README.md says what is where.

# A fabric in one process, and one that makes any other worse.
check_LTLIBRARIES += libcommd-test-fabric.la
libcommd_test_fabric_la_SOURCES = tests/lib/fabric_fault.c tests/lib/fabric_fault.h \
	tests/lib/fabric_loop.c tests/lib/fabric_loop.h

# Members, engines and the loop fabric in one process.
in_one_process = libcommd-client.la libcommd-engine.la libcommd-test-fabric.la \
	libcommd-fabric.la libcommd-schedule.la \
	libcommd-proto.la libcommd-shm.la $(PROTOBUF_C_LIBS)

# Who may know whom: includes, symbols, libraries.
dist_check_SCRIPTS += tests/check_rooms.py
TESTS += tests/check_rooms.py

# Element types, operators, collectives, errors: complete in every list of them.
dist_check_SCRIPTS += tests/check_lists.py
TESTS += tests/check_lists.py

# Python's stubs: each operation is written once.
dist_check_SCRIPTS += tests/check_stubs.py
TESTS += tests/check_stubs.py

# A name stands for one thing.
dist_check_SCRIPTS += tests/check_names.py
TESTS += tests/check_names.py

# Layout and length of lines.
dist_check_SCRIPTS += tests/check_format.py
TESTS += tests/check_format.py

# Links between the documents; debian/rules calls it for the packaged ones.
dist_check_SCRIPTS += tests/check_links.py
TESTS += tests/check_links.py

# Which commit a package and a wheel are from.
dist_check_SCRIPTS += tests/check_version.py
TESTS += tests/check_version.py

# What ./quickstart test makes of the output of make check.
dist_check_SCRIPTS += tests/check_suite.sh
TESTS += tests/check_suite.sh

include tests/fakecuda/local.mk
include tests/unit/shm/local.mk
include tests/unit/transport/local.mk
include tests/unit/gpu/local.mk
include tests/gpu/local.mk
include tests/unit/gpu_service/local.mk
include tests/unit/daemon/local.mk
include tests/unit/client/local.mk
include tests/sim/local.mk
include tests/oracle/local.mk
include tests/fuzz/local.mk
include tests/hostile/local.mk
include tests/integration/local.mk
include tests/faults/local.mk
include tests/torch/local.mk
include tests/bench/local.mk

# tests/mutants/run.py, which removes checks one at a time, takes too long for make check;
# that all of them still fit the sources is looked at.
dist_check_SCRIPTS += tests/mutants/test_fit.py
TESTS += tests/mutants/test_fit.py
EXTRA_DIST += tests/mutants/run.py tests/mutants/mutants.txt

# Machines that boot: ./quickstart test booted.
EXTRA_DIST += tests/booted/booted.py tests/booted/machines.py tests/booted/slurm.py \
	tests/upgrade/upgrade.py
EXTRA_DIST += tools/packages.sh tools/loss_picture.py

# A machine without a compiler: ./quickstart test wheel.
EXTRA_DIST += tests/wheel/inside.py tests/wheel/wheel.py tools/wheel.py tools/wheel.sh

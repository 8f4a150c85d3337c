# tests/: one include per room, so that each room's list stays short. README.md says what is where.

# A fabric in one process, and one that makes any other worse.
check_LTLIBRARIES += libcommd-test-fabric.la
libcommd_test_fabric_la_SOURCES = tests/lib/fabric_fault.c tests/lib/fabric_fault.h \
	tests/lib/fabric_loop.c tests/lib/fabric_loop.h

# Members, engines and the loop fabric in one process.
in_one_process = libcommd-client.la libcommd-engine.la libcommd-test-fabric.la \
	libcommd-fabric.la libcommd-schedule.la \
	libcommd-proto.la libcommd-shm.la $(PROTOBUF_C_LIBS)

# What runs nothing that is compiled here: builds with a sanitizer leave it to the others.
# check_rooms.py: who may know whom: includes, symbols, libraries. check_lists.py: element types,
# operators, collectives, errors: complete in every list of them. check_stubs.py: Python's stubs:
# each operation is written once. check_names.py: a name stands for one thing. check_format.py:
# layout and length of lines. check_links.py: links between the documents; debian/rules calls it for
# the packaged ones. check_shown.py: tests that documents name. check_version.py: which commit a
# package and a wheel are from. check_suite.sh: what ./quickstart test makes of the output of make
# check.
checks_of_text = tests/check_format.py tests/check_version.py tests/check_rooms.py \
	tests/check_lists.py tests/check_stubs.py tests/check_names.py tests/check_links.py \
	tests/check_shown.py tests/check_suite.sh

# make begins tests in the order of TESTS: rooms with long ones come first, so that none of these
# runs alone at the end. Likewise within a room.
include tests/sim/local.mk
include tests/faults/local.mk
include tests/hostile/local.mk
include tests/integration/local.mk
include tests/unit/client/local.mk
include tests/unit/gpu_service/local.mk
include tests/unit/transport/local.mk
include tests/oracle/local.mk
include tests/unit/gpu/local.mk
include tests/gpu/local.mk
include tests/fakecuda/local.mk
include tests/unit/daemon/local.mk
include tests/unit/shm/local.mk
include tests/fuzz/local.mk
include tests/torch/local.mk
include tests/bench/local.mk

# tests/mutants/run.py, which removes checks one at a time, takes too long for make check;
# that all of them still fit the sources is looked at.
checks_of_text += tests/mutants/test_fit.py
EXTRA_DIST += tests/mutants/run.py tests/mutants/mutants.txt

# Machines that boot: ./quickstart test booted.
EXTRA_DIST += tests/booted/booted.py tests/booted/machines.py tests/booted/slurm.py \
	tests/upgrade/upgrade.py
EXTRA_DIST += tools/packages.sh tools/loss_picture.py

# A machine without a compiler: ./quickstart test wheel.
EXTRA_DIST += tests/wheel/inside.py tests/wheel/wheel.py tools/wheel.py tools/wheel.sh

dist_check_SCRIPTS += $(checks_of_text)
if !SANITIZERS
TESTS += $(checks_of_text)
endif

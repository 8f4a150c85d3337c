# tests/integration/local.mk: tests of this room

dist_check_SCRIPTS += tests/integration/check_unit.sh
TESTS += tests/integration/check_unit.sh

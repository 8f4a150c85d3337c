# tests/integration/local.mk: tests of this room

dist_check_SCRIPTS += tests/integration/check_unit.sh
TESTS += tests/integration/check_unit.sh

dist_check_SCRIPTS += tests/integration/check_links.sh
TESTS += tests/integration/check_links.sh

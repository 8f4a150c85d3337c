# tests/faults/local.mk: ./quickstart faults
dist_check_SCRIPTS += tests/faults/test_run.py
TESTS += tests/faults/test_run.py
EXTRA_DIST += tests/faults/run.py tests/faults/cells.py tests/faults/place.py tests/faults/rows.py \
	tests/faults/gloo_ranks.py

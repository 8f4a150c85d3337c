# tests/torch/: programs that need torch; ./quickstart test runs them
EXTRA_DIST += tests/torch/conformance.py tests/torch/suite_host.py tests/torch/suite_tests.py \
	tests/torch/expected/gloo-4.txt tests/torch/expected/gloo-8.txt \
	tests/torch/expected/commd-4.txt tests/torch/expected/commd-8.txt \
	tests/torch/expected/commd-4-spawned.txt

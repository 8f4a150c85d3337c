# tests/gpu/: what only a GPU can show. make check tests the checks, over tests/fakecuda and where
# there is no driver.
check_PROGRAMS += tests/gpu/gpu_check
tests_gpu_gpu_check_SOURCES = tests/gpu/gpu_check.c tests/gpu/gpu_check.h tests/gpu/gpu_exporter.h \
	tests/gpu/check_kernels.c tests/gpu/check_load.c tests/gpu/check_memory.c \
	tests/gpu/check_nccl.c tests/gpu/check_share.c tests/gpu/check_words.c \
	transport/process/confine.c
tests_gpu_gpu_check_LDADD = libcommd-gpu-twin.la libcommd-gpu-plan.la libcommd-gpu-image.la \
	libcommd-shm.la -ldl -lpthread
EXTRA_tests_gpu_gpu_check_DEPENDENCIES = tests/fakecuda/libcuda.so.1 tests/fakecuda/libnccl.so.2 \
	tests/fakecuda/libfakekernels.so
checks_of_text += tests/gpu/test_bounded.py
dist_check_SCRIPTS += tests/gpu/test_check.py tests/gpu/test_bundle.py
TESTS += tests/gpu/test_check.py tests/gpu/test_bundle.py
EXTRA_DIST += tests/gpu/bounded.py tests/gpu/check.py tests/gpu/gpu_machine.py tests/gpu/mps.py \
	tests/gpu/torch_ranks.py tools/gpu_bundle.py

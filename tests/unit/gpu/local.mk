# tests/unit/gpu/: what commd-gpu decides, and its kernels as C.
if HAVE_CMOCKA
unit_gpu = tests/unit/gpu/test_move
check_PROGRAMS += $(unit_gpu)
TESTS += $(unit_gpu)

tests_unit_gpu_test_move_SOURCES = tests/unit/gpu/test_move.c
tests_unit_gpu_test_move_LDADD = libcommd-gpu-twin.la libcommd-gpu-plan.la libcommd-shm.la \
	$(CMOCKA_LIBS)
endif

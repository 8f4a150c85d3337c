# tests/unit/gpu/: what commd-gpu decides, and its kernels as C, and as nvcc compiles them.
if HAVE_CMOCKA
unit_gpu = tests/unit/gpu/test_gpu_comms \
	tests/unit/gpu/test_gpu_life tests/unit/gpu/test_gpu_order tests/unit/gpu/test_gpu_plan \
	tests/unit/gpu/test_gpu_share tests/unit/gpu/test_image \
	tests/unit/gpu/test_move tests/unit/gpu/test_move_ptx \
	tests/unit/gpu/test_nccl
check_PROGRAMS += $(unit_gpu)
TESTS += $(unit_gpu)

tests_unit_gpu_test_gpu_comms_SOURCES = tests/unit/gpu/test_gpu_comms.c transport/gpu/gpu_nccl.c
tests_unit_gpu_test_gpu_comms_LDADD = libcommd-gpu-plan.la libcommd-shm.la $(CMOCKA_LIBS) -ldl

tests_unit_gpu_test_gpu_life_SOURCES = tests/unit/gpu/test_gpu_life.c
tests_unit_gpu_test_gpu_life_LDADD = libcommd-gpu-plan.la $(CMOCKA_LIBS)

tests_unit_gpu_test_gpu_order_SOURCES = tests/unit/gpu/test_gpu_order.c
tests_unit_gpu_test_gpu_order_LDADD = libcommd-gpu-plan.la $(CMOCKA_LIBS)

tests_unit_gpu_test_gpu_plan_SOURCES = tests/unit/gpu/test_gpu_plan.c tests/unit/gpu/plan_world.c \
	tests/unit/gpu/plan_world.h
tests_unit_gpu_test_gpu_plan_LDADD = libcommd-gpu-twin.la libcommd-gpu-plan.la libcommd-shm.la \
	$(CMOCKA_LIBS)

tests_unit_gpu_test_gpu_share_SOURCES = tests/unit/gpu/test_gpu_share.c
tests_unit_gpu_test_gpu_share_LDADD = libcommd-gpu-plan.la libcommd-schedule.la $(CMOCKA_LIBS)

tests_unit_gpu_test_move_SOURCES = tests/unit/gpu/test_move.c tests/unit/gpu/move_data.c \
	tests/unit/gpu/move_data.h
tests_unit_gpu_test_move_LDADD = libcommd-gpu-twin.la libcommd-gpu-plan.la libcommd-shm.la \
	$(CMOCKA_LIBS)

tests_unit_gpu_test_move_ptx_SOURCES = tests/unit/gpu/test_move_ptx.c tests/unit/gpu/move_data.c \
	tests/unit/gpu/move_data.h tests/unit/gpu/ptx.c tests/unit/gpu/ptx.h \
	tests/unit/gpu/ptx_math.c tests/unit/gpu/ptx_parse.c tests/unit/gpu/ptx_priv.h
tests_unit_gpu_test_move_ptx_LDADD = libcommd-gpu-plan.la libcommd-shm.la $(CMOCKA_LIBS) -lm
if HAVE_NVCC
# The texts that the build's machine code is made of.
tests/unit/gpu/move.ptx: transport/gpu/kernel/move_image.c
	$(AM_V_GEN)$(MKDIR_P) tests/unit/gpu && cat transport/gpu/kernel/move.*[0-9].ptx >$@
tests_unit_gpu_test_move_ptx_CPPFLAGS = $(AM_CPPFLAGS) -DMOVE_PTX='"tests/unit/gpu/move.ptx"'
EXTRA_tests_unit_gpu_test_move_ptx_DEPENDENCIES = tests/unit/gpu/move.ptx
CLEANFILES += tests/unit/gpu/move.ptx
endif

tests_unit_gpu_test_image_SOURCES = tests/unit/gpu/test_image.c
tests_unit_gpu_test_image_LDADD = libcommd-gpu-image.la libcommd-shm.la $(CMOCKA_LIBS)

tests_unit_gpu_test_nccl_SOURCES = tests/unit/gpu/test_nccl.c
tests_unit_gpu_test_nccl_LDADD = libcommd-gpu-plan.la $(CMOCKA_LIBS)
endif

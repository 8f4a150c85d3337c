# tests/fakecuda/: a CUDA driver without a GPU, for tests. README.md says what it does. make builds
# it, so that a program can be tried with it by hand.
noinst_LTLIBRARIES += tests/fakecuda/libfakecuda.la
tests_fakecuda_libfakecuda_la_SOURCES = tests/fakecuda/fake.h tests/fakecuda/fakecuda.h \
	tests/fakecuda/fake_device.c tests/fakecuda/fake_event.c tests/fakecuda/fake_exec.c \
	tests/fakecuda/fake_guard.c tests/fakecuda/fake_ipc.c tests/fakecuda/fake_kernel.c \
	tests/fakecuda/fake_knobs.c tests/fakecuda/fake_memory.c tests/fakecuda/fake_range.c \
	tests/fakecuda/fake_stream.c tests/fakecuda/fake_vmm.c
tests_fakecuda_libfakecuda_la_CFLAGS = $(AM_CFLAGS) -fvisibility=hidden

# Not by libtool: it makes no library of this name without installing it.
fake_link = $(AM_V_CCLD)$(CC) $(CFLAGS) $(SANITIZE_FLAGS) $(LDFLAGS) -shared -Wl,-z,defs
tests/fakecuda/libcuda.so.1: tests/fakecuda/libfakecuda.la
	$(fake_link) -Wl,-soname,libcuda.so.1 -o $@ -Wl,--whole-archive \
	    tests/fakecuda/.libs/libfakecuda.a -Wl,--no-whole-archive -ldl -lpthread
noinst_DATA += tests/fakecuda/libcuda.so.1
CLEANFILES += tests/fakecuda/libcuda.so.1
EXTRA_DIST += tests/fakecuda/README.md

# It finds the driver that the process has loaded, else the one beside it.
noinst_LTLIBRARIES += tests/fakecuda/libfakenccl.la
tests_fakecuda_libfakenccl_la_SOURCES = tests/fakecuda/fakecuda.h tests/fakecuda/fakenccl.h \
	tests/fakecuda/fakenccl_api.c tests/fakecuda/fakenccl_comm.c tests/fakecuda/fakenccl_ops.c \
	tests/fakecuda/fakenccl_table.c
tests_fakecuda_libfakenccl_la_CFLAGS = $(AM_CFLAGS) -fvisibility=hidden
tests_fakecuda_libfakenccl_la_LIBADD = libcommd-shm.la
tests/fakecuda/libnccl.so.2: tests/fakecuda/libfakenccl.la tests/fakecuda/libcuda.so.1 \
		tests/fakecuda/libnccl.map
	$(fake_link) -Wl,-soname,libnccl.so.2 -o $@ -Wl,--whole-archive \
	    tests/fakecuda/.libs/libfakenccl.a -Wl,--no-whole-archive tests/fakecuda/libcuda.so.1 \
	    -Wl,-rpath,'$$ORIGIN' \
	    -Wl,--version-script=$(top_srcdir)/tests/fakecuda/libnccl.map -ldl -lpthread
noinst_DATA += tests/fakecuda/libnccl.so.2
CLEANFILES += tests/fakecuda/libnccl.so.2
EXTRA_DIST += tests/fakecuda/libnccl.map

# The twins of commd's own kernels.
noinst_LTLIBRARIES += tests/fakecuda/libfakekernels.la
tests_fakecuda_libfakekernels_la_SOURCES = tests/fakecuda/fakecuda.h tests/fakecuda/fakekernels.c
tests_fakecuda_libfakekernels_la_CFLAGS = $(AM_CFLAGS) -fvisibility=hidden
tests_fakecuda_libfakekernels_la_LIBADD = libcommd-gpu-twin.la
tests/fakecuda/libfakekernels.so: tests/fakecuda/libfakekernels.la
	$(fake_link) -o $@ -Wl,--whole-archive tests/fakecuda/.libs/libfakekernels.a \
	    -Wl,--no-whole-archive -lm
noinst_DATA += tests/fakecuda/libfakekernels.so
CLEANFILES += tests/fakecuda/libfakekernels.so

if HAVE_CMOCKA
fake_tests = tests/fakecuda/test_fakecuda tests/fakecuda/test_fakecuda_faults \
	tests/fakecuda/test_fakecuda_processes tests/fakecuda/test_fakenccl
check_PROGRAMS += $(fake_tests)
TESTS += $(fake_tests)
fake_test = tests/fakecuda/fake_test.c tests/fakecuda/fake_test.h tests/fakecuda/fakecuda.h

tests_fakecuda_test_fakecuda_SOURCES = tests/fakecuda/test_fakecuda.c $(fake_test)
tests_fakecuda_test_fakecuda_LDADD = libcommd-gpu-plan.la libcommd-shm.la $(CMOCKA_LIBS) -ldl
EXTRA_tests_fakecuda_test_fakecuda_DEPENDENCIES = tests/fakecuda/libcuda.so.1 \
	tests/fakecuda/libfakekernels.so

tests_fakecuda_test_fakecuda_faults_SOURCES = tests/fakecuda/test_fakecuda_faults.c $(fake_test)
tests_fakecuda_test_fakecuda_faults_LDADD = libcommd-shm.la $(CMOCKA_LIBS) -ldl
EXTRA_tests_fakecuda_test_fakecuda_faults_DEPENDENCIES = tests/fakecuda/libcuda.so.1

tests_fakecuda_test_fakecuda_processes_SOURCES = tests/fakecuda/test_fakecuda_processes.c \
	$(fake_test)
tests_fakecuda_test_fakecuda_processes_LDADD = libcommd-shm.la $(CMOCKA_LIBS) -ldl
EXTRA_tests_fakecuda_test_fakecuda_processes_DEPENDENCIES = tests/fakecuda/libcuda.so.1

tests_fakecuda_test_fakenccl_SOURCES = tests/fakecuda/test_fakenccl.c $(fake_test)
tests_fakecuda_test_fakenccl_LDADD = libcommd-gpu-plan.la libcommd-shm.la $(CMOCKA_LIBS) -ldl
EXTRA_tests_fakecuda_test_fakenccl_DEPENDENCIES = tests/fakecuda/libnccl.so.2
endif

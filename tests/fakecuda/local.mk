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

if HAVE_CMOCKA
fake_tests = tests/fakecuda/test_fakecuda
check_PROGRAMS += $(fake_tests)
TESTS += $(fake_tests)

tests_fakecuda_test_fakecuda_SOURCES = tests/fakecuda/test_fakecuda.c \
	tests/fakecuda/fake_test.c tests/fakecuda/fake_test.h tests/fakecuda/fakecuda.h
tests_fakecuda_test_fakecuda_LDADD = libcommd-shm.la $(CMOCKA_LIBS) -ldl
EXTRA_tests_fakecuda_test_fakecuda_DEPENDENCIES = tests/fakecuda/libcuda.so.1
endif

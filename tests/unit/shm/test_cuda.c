/* test_cuda.c - the driver is found or not, and the reason is told. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shm/gpu/cuda.h"
#include "tests/lib/env.h"

#define FAKE "tests/fakecuda/libcuda.so.1"

static void no_library(void **state)
{
    struct cuda cu = {NULL};
    char why[256] = "";

    assert_int_equal(cuda_load("/nowhere/libcuda.so.1", 0, &cu, why, sizeof why), -ENOENT);
    assert_non_null(strstr(why, "/nowhere/libcuda.so.1"));
    assert_null(strchr(why, '\n'));
    assert_null(cu.library);
}

static void a_library_without_the_functions(void **state)
{
    struct cuda cu = {NULL};
    char why[256] = "";

    assert_int_equal(cuda_load("libm.so.6", 0, &cu, why, sizeof why), -ENOSYS);
    assert_non_null(strstr(why, "libm.so.6 lacks cuInit"));
    assert_null(cu.library);
}

static void only_if_it_is_loaded(void **state)
{
    struct cuda cu = {NULL}, again;
    char why[256] = "x";

    assert_int_equal(cuda_load(FAKE, 1, &cu, why, sizeof why), -ENOENT);
    assert_string_equal(why, "");
    assert_int_equal(cuda_load(FAKE, 0, &cu, why, sizeof why), 0);
    assert_int_equal(cuda_load(NULL, 1, &again, why, sizeof why), 0); /* by its SONAME */
    assert_memory_equal(&cu, &again, sizeof cu);
    assert_int_equal(cuda_load("", 1, &again, why, sizeof why), 0);
}

static void errors_have_a_text(void **state)
{
    struct cuda cu;
    char text[128];

    assert_int_equal(cuda_load(FAKE, 0, &cu, text, sizeof text), 0);
    cuda_text(&cu, CU_E_OUT_OF_MEMORY, text, sizeof text);
    assert_string_equal(text, "out of memory (CUDA_ERROR_OUT_OF_MEMORY, 2)");
    cuda_text(&cu, 12345, text, sizeof text);
    assert_string_equal(text, "CUDA error (unknown, 12345)");
    cuda_text(&cu, CU_E_OUT_OF_MEMORY, text, 8);
    assert_string_equal(text, "out of ");
}

/* On a machine without a driver a program that was linked with -lcuda loads the Toolkit's stub. */
static void a_stub_has_the_functions_and_nothing_else(void **state)
{
    static const char stub[] = "/usr/local/cuda/lib64/stubs/libcuda.so";
    struct cuda cu;
    char text[128];

    if (access(stub, R_OK))
        skip();
    assert_int_equal(cuda_load(stub, 0, &cu, text, sizeof text), 0);
    assert_int_equal(cu.init(0), CU_E_STUB_LIBRARY);
}

static void no_device(void **state)
{
    struct cuda cu;
    char text[128];
    int n;

    assert_int_equal(cuda_load(FAKE, 0, &cu, text, sizeof text), 0);
    assert_int_equal(cu.device_count(&n), CU_E_NOT_INITIALIZED);
    env_set("FAKECUDA_FAIL", "cuInit:1:34"); /* as a stub */
    assert_int_equal(cu.init(0), CU_E_STUB_LIBRARY);
    env_set("FAKECUDA_DEVICES", "0");
    assert_int_equal(cu.init(0), CU_E_NO_DEVICE);
    env_set("FAKECUDA_DEVICES", "1");
    env_set("CUDA_VISIBLE_DEVICES", "");
    assert_int_equal(cu.init(0), CU_E_NO_DEVICE);
    env_set("CUDA_VISIBLE_DEVICES", NULL);
    assert_int_equal(cu.init(1), CU_E_INVALID_VALUE);
    assert_int_equal(cu.init(0), CU_SUCCESS);
    assert_int_equal(cu.device_count(&n), CU_SUCCESS);
    assert_int_equal(n, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_library),
        cmocka_unit_test(a_library_without_the_functions),
        cmocka_unit_test(only_if_it_is_loaded),
        cmocka_unit_test(errors_have_a_text),
        cmocka_unit_test(no_device),
        cmocka_unit_test(a_stub_has_the_functions_and_nothing_else),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

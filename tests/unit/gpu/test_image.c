/* test_image.c - which of the kernels' images a GPU's driver is given, in which order, and what is
 * said of it; and that the images of this build are of a form that drivers of CUDA 12 load. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "shm/util/base.h"
#include "transport/gpu/kernel/image.h"

static const unsigned char code_75[] = "75", code_80[] = "80", code_90[] = "90", code_100[] = "100",
                           code_120[] = "120", ptx[] = "ptx";
static const struct gpu_image images[] = {
    {GPU_IMAGE_PTX, 75, "PTX 7.7", ptx},
    {GPU_IMAGE_CODE, 75, "CUDA 12.6", code_75},
    {GPU_IMAGE_CODE, 80, "CUDA 12.6", code_80},
    {GPU_IMAGE_CODE, 90, "CUDA 12.6", code_90},
    {GPU_IMAGE_CODE, 100, "CUDA 13.0", code_100},
    {GPU_IMAGE_CODE, 120, "CUDA 13.0", code_120},
    {GPU_IMAGE_CODE, 0, NULL, NULL},
};

/* ---- the order ------------------------------------------------------------------------------- */

static void check_order(unsigned arch, const char *want)
{
    const struct gpu_image *fit[8];
    unsigned n = gpu_image_order(images, arch, fit, ARRAY_LEN(fit));
    char got[64] = "";

    for (unsigned i = 0; i < n; i++) {
        strcat(got, i ? " " : "");
        strcat(got, (const char *)fit[i]->data);
    }
    assert_string_equal(got, want);
}

static void code_of_its_generation_comes_before_ptx(void **state)
{
    check_order(75, "75 ptx");
    check_order(80, "80 ptx");
    check_order(89, "80 ptx");
    check_order(90, "90 ptx");
    check_order(100, "100 ptx");
    check_order(103, "100 ptx");
    check_order(110, "ptx");
    check_order(121, "120 ptx");
    check_order(70, "");
}

/* ---- loading --------------------------------------------------------------------------------- */

static struct {
    int version, cc;
    const char *refuses; /* images of which the first byte is one of these */
    unsigned tried;
} driver;

static cu_result device_attribute(int *value, int attribute, cu_device dev)
{
    *value = attribute == CU_ATTR_CC_MAJOR ? driver.cc / 10 : driver.cc % 10;
    return CU_SUCCESS;
}

static cu_result driver_version(int *version)
{
    *version = driver.version;
    return CU_SUCCESS;
}

static cu_result module_load(cu_module *module, const void *image)
{
    driver.tried++;
    if (strchr(driver.refuses, *(const char *)image))
        return CU_E_INVALID_IMAGE;
    *module = (cu_module)(uintptr_t)image;
    return CU_SUCCESS;
}

static cu_result error_name(cu_result r, const char **name)
{
    *name = "NO";
    return CU_SUCCESS;
}

static const struct cuda cu = {.device_attribute = device_attribute,
                               .driver_version = driver_version,
                               .module_load = module_load,
                               .error_name = error_name,
                               .error_string = error_name};

static cu_result load(int version, int cc, const char *refuses, const void *want, char text[512])
{
    cu_module module = NULL;
    cu_result r;

    driver.version = version;
    driver.cc = cc;
    driver.refuses = refuses;
    driver.tried = 0;
    r = gpu_image_load(&cu, 0, images, &module, text, 512);
    assert_ptr_equal(module, want);
    return r;
}

static void the_first_that_the_driver_takes_is_named(void **state)
{
    char text[512];

    assert_int_equal(load(12020, 90, "", code_90, text), CU_SUCCESS);
    assert_string_equal(text, "sm_90 by CUDA 12.6");
    assert_int_equal(driver.tried, 1);
    assert_int_equal(load(12080, 100, "1", ptx, text), CU_SUCCESS);
    assert_string_equal(text, "PTX 7.7, compiled by the driver");
}

static void each_refusal_is_told(void **state)
{
    char text[512];

    assert_int_equal(load(12080, 100, "1p", NULL, text), CU_E_INVALID_IMAGE);
    assert_string_equal(text, "driver 12.8 loads no kernels for compute capability 10.0; sm_100 by "
                              "CUDA 13.0: NO (NO, 200); PTX 7.7, compiled by the driver: NO (NO, "
                              "200)");
    assert_int_equal(load(12080, 70, "", NULL, text), CU_E_NO_BINARY_FOR_GPU);
    assert_string_equal(text, "driver 12.8 loads no kernels for compute capability 7.0");
    assert_int_equal(driver.tried, 0);
}

/* ---- what was built -------------------------------------------------------------------------- */

/* Beyond sm_90 CUDA 12.6 knows none. Machine code of an assembler of CUDA 13 has ABI 8, and that
 * alone is what drivers of CUDA 12 refuse: there is no other one where none was at hand. */
static void what_was_built_loads_in_drivers_of_cuda_12(void **state)
{
    unsigned texts = 0;

    if (gpu_images[0].kind == GPU_IMAGE_NONE)
        skip();
    for (const struct gpu_image *image = gpu_images; image->arch; image++) {
        const char *text = (const char *)image->data;
        float version = 0;

        if (image->kind == GPU_IMAGE_PTX) {
            assert_non_null(strstr(text, "\n.version "));
            assert_int_equal(sscanf(strstr(text, "\n.version "), " .version %f", &version), 1);
            assert_true(version < 7.75);
            assert_non_null(strstr(text, "\n.target sm_75\n"));
            texts++;
            continue;
        }
        assert_memory_equal(image->data, "\177ELF", 4);
        assert_int_equal(image->data[8] < 8, !strncmp(image->by, "CUDA 12.", 8));
    }
    assert_int_equal(texts, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(code_of_its_generation_comes_before_ptx),
        cmocka_unit_test(the_first_that_the_driver_takes_is_named),
        cmocka_unit_test(each_refusal_is_told),
        cmocka_unit_test(what_was_built_loads_in_drivers_of_cuda_12),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

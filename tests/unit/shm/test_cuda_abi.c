/* test_cuda_abi.c - shm/gpu/cuda.h has the numbers, sizes and offsets of the Toolkit's <cuda.h>,
 * and names the functions by the versions that it does. Skipped where there is no Toolkit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "shm/gpu/cuda.h"
#include "tests/unit/shm/cuda_abi.h"

#define VALUE(ours, theirs)                 {#theirs, ours},
#define SIZE(ours, theirs)                  {#theirs, sizeof(ours)},
#define MEMBER(ours, member, theirs, field) {#theirs "." #field, offsetof(ours, member)},
static const struct cuda_abi own[] = {CUDA_ABI(VALUE, SIZE, MEMBER){NULL, 0}};

static const char *const symbols[] = {
#define SYMBOL(member, symbol, args) #symbol,
    CUDA_FUNCTIONS(SYMBOL)
#undef SYMBOL
};

static void numbers_sizes_and_offsets_are_the_toolkits(void **state)
{
    unsigned i;

    for (i = 0; own[i].name && cuda_abi_toolkit[i].name; i++) {
        assert_string_equal(own[i].name, cuda_abi_toolkit[i].name);
        if (own[i].value != cuda_abi_toolkit[i].value)
            fail_msg("%s is %lld, not %lld", own[i].name, cuda_abi_toolkit[i].value, own[i].value);
    }
    assert_true(!own[i].name && !cuda_abi_toolkit[i].name);
}

static void functions_are_of_the_toolkits_versions(void **state)
{
    unsigned i;

    for (i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
        assert_non_null(cuda_abi_symbols[i].name);
        assert_string_equal(cuda_abi_symbols[i].symbol, symbols[i]);
    }
    assert_null(cuda_abi_symbols[i].name);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_sizes_and_offsets_are_the_toolkits),
        cmocka_unit_test(functions_are_of_the_toolkits_versions),
    };

    if (!cuda_abi_toolkit[0].name) {
        printf("no <cuda.h>\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}

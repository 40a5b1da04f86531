/* SPDX-License-Identifier: Apache-2.0 */
/* The Hadamard rotation against rotation.txt, and what it does to non-finite elements. */
#include "golden.h"

#include <math.h>
#include <stdlib.h>

#include "cpu/portable/hadamard_portable.h"

#define DIM_MOST 256

static void test_file(void **state)
{
    (void)state;
    golden_lines g = golden_open("rotation.txt");
    while (golden_next(&g)) {
        float x[DIM_MOST], y[DIM_MOST], want[DIM_MOST];
        const size_t dim = strtoul(g.fields[0], NULL, 10);
        assert_in_range(dim, 1, DIM_MOST);
        golden_floats(g.fields[1], x, dim);
        golden_floats(g.fields[1], y, dim);
        golden_floats(g.fields[2], want, dim);
        mxa_hadamard(x, (int64_t)dim);
        golden_same_floats("rotation.txt", want, x, dim);
        mxa_hadamard_portable(y, (int64_t)dim);
        golden_same_floats("rotation.txt, vectors", want, y, dim);
    }
}

/* Every row length, so every group size and number of groups; bits, signs of zeros included, are the same. */
static void test_all_lengths(void **state)
{
    (void)state;
    uint32_t seed = 1;
    for (int64_t dim = 1; dim <= DIM_MOST; dim++) {
        float x[DIM_MOST], y[DIM_MOST];
        for (int64_t i = 0; i < dim; i++) {
            seed = seed * 1664525u + 1013904223u;
            x[i] = y[i] = seed >> 28 == 0 ? -0.0f : (float)(int32_t)seed * 0x1p-31f;
        }
        mxa_hadamard(x, dim);
        mxa_hadamard_portable(y, dim);
        golden_same_floats("vectors", x, y, (size_t)dim);
    }
}

static void test_groups(void **state)
{
    (void)state;
    assert_int_equal(mxa_hadamard_group(64), 64);
    assert_int_equal(mxa_hadamard_group(96), 32);
    assert_int_equal(mxa_hadamard_group(80), 16);
    assert_int_equal(mxa_hadamard_group(192), 64);
    float x[3] = { 1, 2, 3 };
    mxa_hadamard(x, 3);
    assert_true(x[0] == 1 && x[1] == 2 && x[2] == 3);
}

/* A NaN spreads over its group of 32 and no further; so does an overflow of finite numbers. */
static void test_non_finite(void **state)
{
    (void)state;
    float x[96] = { 0 };
    x[40] = NAN;
    mxa_hadamard(x, 96);
    for (int i = 0; i < 96; i++)
        assert_int_equal(!mxa_f32_is_finite(x[i]), i >= 32 && i < 64);

    float huge[2] = { 3e38f, 3e38f };
    mxa_hadamard(huge, 2);
    assert_true(isinf(huge[0]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_file),
        cmocka_unit_test(test_all_lengths),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_non_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

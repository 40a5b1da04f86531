/* SPDX-License-Identifier: Apache-2.0 */
/* What a view must keep to, and that no size overflows unseen. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <string.h>

#include "core/tensor.h"

static float data[4096];

static mxa_tensor view(void)
{
    return mxa_tensor_contiguous(data, MXA_DTYPE_F32, 2, 3, 4, 5);
}

static void refused(mxa_status want, mxa_status got, const char *part)
{
    assert_int_equal(got, want);
    assert_non_null(strstr(mxa_error_text(), part));
}

static void test_views(void **state)
{
    (void)state;
    mxa_tensor x = view();
    assert_int_equal(mxa_check_output("x", &x), MXA_OK);
    x.stride[1] = 0; /* heads that share their rows: fine for an input */
    assert_int_equal(mxa_check_tensor("x", &x), MXA_OK);
    refused(MXA_ERR_ARG, mxa_check_output("x", &x), "x: strides 60, 0, 5");
    x = view();
    x.stride[1] = 5; /* [batch][seq][heads][dim] */
    x.stride[2] = 15;
    assert_int_equal(mxa_check_output("x", &x), MXA_OK);
    x = view();
    x.data = data + 100;
    x.stride[2] = -5;
    assert_int_equal(mxa_check_output("x", &x), MXA_OK);
    x.stride[2] = -4;
    refused(MXA_ERR_ARG, mxa_check_output("x", &x), "overlap");
    x = mxa_tensor_contiguous(data, MXA_DTYPE_F32, 1, 1, 1, 1);
    x.stride[0] = x.stride[3] = INT64_MIN; /* not used by axes of one element */
    assert_int_equal(mxa_check_output("x", &x), MXA_OK);
    x = mxa_tensor_contiguous(NULL, MXA_DTYPE_F32, 1, 0, 1, 1);
    assert_int_equal(mxa_check_output("x", &x), MXA_OK);
}

static void test_refusals(void **state)
{
    (void)state;
    mxa_tensor x = view();
    refused(MXA_ERR_ARG, mxa_check_tensor("k", NULL), "k: is NULL");
    x.dtype = (mxa_dtype)7;
    refused(MXA_ERR_ARG, mxa_check_tensor("k", &x), "k: dtype 7");
    x = view();
    x.data = NULL;
    refused(MXA_ERR_ARG, mxa_check_tensor("k", &x), "k: data is NULL");
    x = view();
    x.data = (char *)data + 2;
    refused(MXA_ERR_ALIGN, mxa_check_tensor("k", &x), "4-byte");
    x = view();
    x.stride[3] = 2;
    refused(MXA_ERR_ALIGN, mxa_check_tensor("k", &x), "stride[3] is 2");
    x = view();
    x.shape[2] = -4;
    refused(MXA_ERR_SHAPE, mxa_check_tensor("k", &x), "size -4 of axis 2");
    x = view();
    x.stride[0] = INT64_MAX / 2;
    refused(MXA_ERR_SHAPE, mxa_check_tensor("k", &x), "stride[0]");
    x.stride[0] = INT64_MIN;
    refused(MXA_ERR_SHAPE, mxa_check_tensor("k", &x), "stride[0]");
}

static void test_shapes(void **state)
{
    (void)state;
    const int64_t fits[4] = { INT64_C(1) << 20, INT64_C(1) << 20, 1, (INT64_C(1) << 21) - 1 };
    const int64_t large[4] = { INT64_C(1) << 20, INT64_C(1) << 20, 1, INT64_C(1) << 21 };
    const int64_t hidden[4] = { 0, INT64_MAX, 1, 1 }; /* empty, but an offset along heads would overflow */
    assert_int_equal(mxa_check_shape("x", fits), MXA_OK);
    refused(MXA_ERR_SHAPE, mxa_check_shape("x", large), "does not fit");
    refused(MXA_ERR_SHAPE, mxa_check_shape("x", hidden), "does not fit");
}

static void test_rows(void **state)
{
    (void)state;
    for (int i = 0; i < 120; i++)
        data[i] = (float)i;
    mxa_tensor x = view();
    x.stride[2] = -5;
    x.data = data + 15; /* row 3 of the first head, walked backwards */
    float row[5];
    mxa_row_load(&x, 1, 2, 3, row);
    for (int d = 0; d < 5; d++)
        assert_true(row[d] == (float)(60 + 40 + d));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_views),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Elements further apart than 32 bits can count. Memory is reserved, and only what is touched is used. */
#define _GNU_SOURCE
#include "api_support.h"

#include <string.h>
#include <sys/mman.h>

enum { HEADS = 2, LEN = 150, DIM = 64 };

/* In elements: rows are 160 MiB apart, heads 28 GiB. */
static const int64_t row_stride = INT64_C(40) << 20, head_stride = INT64_C(7) << 30;

/* A copy of t; skips the test where so many addresses are not to be had. */
static mxa_tensor far_copy(const mxa_tensor *t, size_t *bytes)
{
    *bytes = (size_t)(HEADS * head_stride) * sizeof(float);
    void *const memory =
        mmap(NULL, *bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        skip();
    mxa_tensor view = { memory, t->dtype, { 0 }, { HEADS * head_stride, head_stride, row_stride, 1 } };
    memcpy(view.shape, t->shape, sizeof view.shape);
    api_copy(&view, t);
    return view;
}

static void test_attention(void **state)
{
    for (int r = 0; api_recipes[r] != NULL; r++) {
        api_call call = api_call_new(1, HEADS, HEADS, LEN, LEN, DIM);
        call.recipe = api_recipes[r];
        call.problem.causal = true;
        api_random_inputs(&call, 5);
        api_attend(&call);
        api_call far = call;
        size_t bytes;
        far.q = far_copy(&call.q, &bytes);
        far.k = far_copy(&call.k, &bytes);
        far.v = far_copy(&call.v, &bytes);
        far.out = far_copy(&call.q, &bytes);
        api_attend(&far);
        api_same_bits(&call.out, &far.out);
        const mxa_tensor *const views[] = { &far.q, &far.k, &far.v, &far.out };
        for (int i = 0; i < 4; i++)
            munmap(views[i]->data, bytes);
        api_teardown(state);
    }
}

static void test_formats(void **state)
{
    (void)state;
    const mxa_tensor x = api_tensor(MXA_DTYPE_F32, 1, HEADS, LEN, DIM);
    api_set_normal(&x, 6);
    size_t bytes;
    const mxa_tensor far = far_copy(&x, &bytes);
    for (int f = 0; f < API_FORMATS; f++) {
        const api_packed want = api_quantize(&x, api_formats[f], NULL);
        const api_packed got = api_quantize(&far, api_formats[f], NULL);
        api_packed_same(&want, &got);
        const mxa_tensor back = api_dequantize(&want, api_formats[f], NULL, MXA_DTYPE_F32, x.shape);
        api_ok(mxa_dequantize(&want.data, api_formats[f], NULL, &far));
        api_same_bits(&back, &far);
        api_copy(&far, &x);
    }
    munmap(far.data, bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = { API_TEST(test_attention), API_TEST(test_formats) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

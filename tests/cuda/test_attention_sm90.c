/* SPDX-License-Identifier: Apache-2.0 */
/* The entry sm90 without a GPU: which plans it takes, how it wants operands, which tensors it turns down. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "cuda/ref/attention_ref_cuda.h"
#include "cuda/sm90/attention_sm90.h"

enum { HEADS = 4, HEADS_KV = 2, TOKENS = 200, DIM = 128 };

/* Not called: no kernel is launched here. */
mxa_status mxa_attention_ref_rows_cuda(const mxa_cuda_job *job, const mxa_cuda_row *rows, const int *count,
                                       int64_t capacity, bool keep_finite, cudaStream_t stream)
{
    (void)job, (void)rows, (void)count, (void)capacity, (void)keep_finite, (void)stream;
    fail();
    return MXA_OK;
}

static mxa_problem problem_of(int64_t dim, mxa_dtype type)
{
    mxa_problem p;
    mxa_problem_default(&p, 1, HEADS, HEADS_KV, TOKENS, TOKENS, dim);
    p.q_dtype = p.k_dtype = p.v_dtype = p.out_dtype = type;
    p.causal = true;
    return p;
}

static mxa_plan *plan_of(const mxa_problem *p, const char *recipe)
{
    mxa_recipe r;
    mxa_plan *plan = NULL;
    assert_int_equal(mxa_recipe_parse(recipe, &r), MXA_OK);
    assert_int_equal(mxa_plan_build(p, &r, &plan), MXA_OK);
    return plan;
}

static mxa_cuda_forms forms_of(int64_t dim, mxa_dtype type, const char *recipe)
{
    const mxa_problem p = problem_of(dim, type);
    mxa_plan *const plan = plan_of(&p, recipe);
    assert_null(mxa_attention_sm90_refuses(plan));
    const mxa_cuda_forms f = mxa_attention_sm90_forms(plan);
    mxa_plan_free(plan);
    return f;
}

static void refuses(const mxa_problem *p, const char *recipe, const char *reason)
{
    mxa_plan *const plan = plan_of(p, recipe);
    const char *const found = mxa_attention_sm90_refuses(plan);
    assert_non_null(found);
    assert_string_equal(found, reason);
    mxa_plan_free(plan);
}

static void test_int8(void **state)
{
    (void)state;
    const mxa_cuda_forms f = forms_of(DIM, MXA_DTYPE_BF16, "dma8");
    assert_int_equal(f.q[MXA_LOW], MXA_CUDA_CODES);
    assert_int_equal(f.k[MXA_LOW], MXA_CUDA_CODES);
    assert_int_equal(f.q[MXA_HIGH], MXA_CUDA_TENSOR);
    assert_int_equal(f.k[MXA_HIGH], MXA_CUDA_TENSOR);
    assert_int_equal(f.v, MXA_CUDA_TENSOR);
    assert_int_equal(f.q_factors[MXA_LOW], MXA_LEVEL_TOKEN);
    assert_int_equal(f.k_factors[MXA_LOW], MXA_LEVEL_TOKEN);
    assert_true(f.nonfinite_tiles);
}

/* One factor a key tile where an instance takes it; coarser levels are written for each. */
static void test_levels(void **state)
{
    (void)state;
    const char *const block = "dma8,level_k=token_block", *const head = "dma8,level_k=head";
    assert_int_equal(forms_of(128, MXA_DTYPE_BF16, block).k_factors[MXA_LOW], MXA_LEVEL_TOKEN_BLOCK);
    assert_int_equal(forms_of(96, MXA_DTYPE_F16, block).k_factors[MXA_LOW], MXA_LEVEL_TOKEN_BLOCK);
    assert_int_equal(forms_of(64, MXA_DTYPE_BF16, block).k_factors[MXA_LOW], MXA_LEVEL_TOKEN_BLOCK);
    assert_int_equal(forms_of(256, MXA_DTYPE_BF16, block).k_factors[MXA_LOW], MXA_LEVEL_TOKEN);
    assert_int_equal(forms_of(128, MXA_DTYPE_BF16, head).k_factors[MXA_LOW], MXA_LEVEL_TOKEN);
}

static void test_other_formats(void **state)
{
    (void)state;
    const mxa_cuda_forms folded = forms_of(DIM, MXA_DTYPE_BF16, "dma4-fp8");
    assert_int_equal(folded.q[MXA_LOW], MXA_CUDA_CODES);
    assert_int_equal(folded.k[MXA_LOW], MXA_CUDA_E5M2);
    assert_false(folded.nonfinite_tiles);
    const mxa_cuda_forms mixed = forms_of(DIM, MXA_DTYPE_BF16, "dma4");
    assert_int_equal(mixed.q[MXA_LOW], MXA_CUDA_BF16);
    assert_int_equal(mixed.k[MXA_LOW], MXA_CUDA_BF16);
    assert_int_equal(mixed.k_factors[MXA_LOW], MXA_LEVEL_DEFAULT);
    const mxa_cuda_forms paper = forms_of(DIM, MXA_DTYPE_BF16, "paper-mxfp4");
    assert_int_equal(paper.q[MXA_HIGH], MXA_CUDA_BF16);
    assert_int_equal(paper.k[MXA_HIGH], MXA_CUDA_BF16);
}

/* High tiles are bf16 by the recipe, P V by the type of V; fp32 becomes bf16. */
static void test_types(void **state)
{
    (void)state;
    const mxa_cuda_forms half = forms_of(DIM, MXA_DTYPE_F16, "dma8");
    assert_int_equal(half.q[MXA_HIGH], MXA_CUDA_BF16);
    assert_int_equal(half.v, MXA_CUDA_TENSOR);
    assert_int_equal(forms_of(DIM, MXA_DTYPE_F16, "bf16,high=f16").q[MXA_HIGH], MXA_CUDA_TENSOR);
    const mxa_cuda_forms single = forms_of(DIM, MXA_DTYPE_F32, "dma8");
    assert_int_equal(single.k[MXA_HIGH], MXA_CUDA_BF16);
    assert_int_equal(single.v, MXA_CUDA_BF16);
}

static void test_refusals(void **state)
{
    (void)state;
    const char *const none = "has no instance for these head dims, types and options";
    mxa_problem p = problem_of(DIM, MXA_DTYPE_BF16);
    refuses(&p, "exact", "computes in fp32");
    refuses(&p, "low=int8,high=fp8,diag=128,sink=128", "has no factors in high tiles");
    refuses(&p, "low=int8,high=f32,diag=128,sink=128", "has no 32-bit tiles");
    p.softcap = 1e-4f;
    refuses(&p, "dma8", "has softcaps from 0.001 to 1000");
    p.softcap = 30;
    refuses(&p, "dma8-fp8", none);
    p = problem_of(DIM, MXA_DTYPE_BF16);
    p.out_dtype = MXA_DTYPE_F16;
    refuses(&p, "dma8", "writes F32 or the type in which P and V meet");
    p = problem_of(DIM, MXA_DTYPE_BF16);
    p.head_dim_v = DIM - 1;
    refuses(&p, "dma8", "stores pairs of columns: head_dim_v must be even");
    p = problem_of(DIM, MXA_DTYPE_BF16);
    p.q_offset = INT64_C(1) << 40;
    refuses(&p, "dma8", "counts positions in 28 bits");
}

static mxa_tensor tensor_at(void *data, int64_t heads, int64_t row)
{
    return (mxa_tensor){
        data, MXA_DTYPE_BF16, { 1, heads, TOKENS, DIM }, { heads * TOKENS * row, TOKENS * row, row, 1 }
    };
}

/* Only addresses and strides are looked at. */
static void test_unsuited(void **state)
{
    (void)state;
    static _Alignas(16) char memory[32];
    const mxa_problem p = problem_of(DIM, MXA_DTYPE_BF16);
    mxa_plan *const plan = plan_of(&p, "bf16");
    mxa_cuda_job job = { .plan = plan, .out = tensor_at(memory, HEADS, DIM) };
    job.q[MXA_HIGH].x = tensor_at(memory, HEADS, DIM);
    job.k[MXA_HIGH].x = job.v.x = tensor_at(memory, HEADS_KV, DIM + 8);
    assert_null(mxa_attention_sm90_unsuited(&job));
    job.v.x = tensor_at(memory + 2, HEADS_KV, DIM);
    assert_string_equal(mxa_attention_sm90_unsuited(&job), "takes tensors aligned to 16 bytes");
    job.v.x = tensor_at(memory, HEADS_KV, DIM + 2);
    assert_string_equal(mxa_attention_sm90_unsuited(&job),
                        "takes strides that are positive multiples of 16 bytes");
    job.v.x = tensor_at(memory, HEADS_KV, DIM);
    job.out = tensor_at(memory, HEADS, DIM + 1);
    assert_string_equal(mxa_attention_sm90_unsuited(&job), "stores aligned pairs of columns");
    const int64_t work = mxa_attention_sm90_work_bytes(plan, NULL);
    assert_true(work >= HEADS * TOKENS * (int64_t)sizeof(mxa_cuda_row));
    mxa_plan_free(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_int8),  cmocka_unit_test(test_levels),   cmocka_unit_test(test_other_formats),
        cmocka_unit_test(test_types), cmocka_unit_test(test_refusals), cmocka_unit_test(test_unsuited),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

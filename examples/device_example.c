/* SPDX-License-Identifier: Apache-2.0 */
/* Attention on the first CUDA device: the same calls, with memory of the device. */
#include <mxattn/mxattn.h>
#include <stdio.h>

enum { HEADS = 8, LEN = 1024, DIM = 128, BYTES = HEADS * LEN * DIM * 2 };
static const mxa_device gpu = MXA_DEVICE_CUDA_0;

/* A bf16 tensor [1][HEADS][LEN][DIM] on the device. */
static mxa_status make_tensor(const void *host, mxa_tensor *x)
{
    void *memory = NULL;
    mxa_status status = mxa_device_alloc(gpu, BYTES, &memory);
    if (status == MXA_OK && host)
        status = mxa_device_copy(gpu, memory, host, BYTES);
    *x = mxa_tensor_contiguous(memory, MXA_DTYPE_BF16, 1, HEADS, LEN, DIM);
    return status;
}

static mxa_status attend(const mxa_tensor *x, const mxa_tensor *out)
{
    mxa_problem problem;
    mxa_problem_default(&problem, 1, HEADS, HEADS, LEN, LEN, DIM);
    problem.q_dtype = problem.k_dtype = problem.v_dtype = problem.out_dtype = MXA_DTYPE_BF16;
    problem.causal = true;
    problem.device = gpu;
    mxa_plan *plan = NULL;
    mxa_attention_args args = { .size = sizeof args, .q = x, .k = x, .v = x, .out = out };
    mxa_status status = mxa_plan_create(&problem, NULL, &plan);
    if (status == MXA_OK)
        status = mxa_device_alloc(gpu, args.work_bytes = mxa_plan_work_bytes(plan), &args.work);
    if (status == MXA_OK)
        status = mxa_attention(plan, &args); /* queued on args.stream, the default stream */
    if (status == MXA_OK)
        status = mxa_device_synchronize(gpu, args.stream);
    mxa_device_free(gpu, args.work);
    mxa_plan_free(plan);
    return status;
}

int main(void)
{
    static uint16_t numbers[BYTES / 2], result[BYTES / 2];
    for (int i = 0; i < BYTES / 2; i++)
        numbers[i] = (uint16_t)(0x3F80 + i % 13); /* 1 and a little, in bf16 */
    if (mxa_device_count() == 0) {
        puts(mxa_error_text());
        return 0;
    }
    mxa_tensor x, out;
    mxa_status status = make_tensor(numbers, &x);
    if (status == MXA_OK)
        status = make_tensor(NULL, &out);
    if (status == MXA_OK)
        status = attend(&x, &out);
    if (status == MXA_OK)
        status = mxa_device_copy(gpu, result, out.data, BYTES);
    puts(status == MXA_OK ? "result is softmax(x x^T / sqrt(128)) x" : mxa_error_text());
    return status != MXA_OK;
}

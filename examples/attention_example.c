/* SPDX-License-Identifier: Apache-2.0 */
#include <mxattn/mxattn.h>
#include <stdio.h>
#include <stdlib.h>

int main(void)
{
    enum { HEADS = 9, HEADS_KV = 3, LEN = 512, DIM = 64 };
    static float q[HEADS * LEN * DIM], k[HEADS_KV * LEN * DIM], v[HEADS_KV * LEN * DIM], o[HEADS * LEN * DIM];
    for (int i = 0; i < HEADS_KV * LEN * DIM; i++)
        k[i] = v[i] = (float)(i % 13); /* your keys and values go here, your queries into q */
    const mxa_tensor tq = mxa_tensor_contiguous(q, MXA_DTYPE_F32, 1, HEADS, LEN, DIM);
    const mxa_tensor tk = mxa_tensor_contiguous(k, MXA_DTYPE_F32, 1, HEADS_KV, LEN, DIM);
    const mxa_tensor tv = mxa_tensor_contiguous(v, MXA_DTYPE_F32, 1, HEADS_KV, LEN, DIM);
    const mxa_tensor to = mxa_tensor_contiguous(o, MXA_DTYPE_F32, 1, HEADS, LEN, DIM);

    mxa_problem problem;
    mxa_problem_default(&problem, 1, HEADS, HEADS_KV, LEN, LEN, DIM);
    problem.causal = true;
    mxa_plan *plan = NULL;
    mxa_attention_args args = { .size = sizeof args, .q = &tq, .k = &tk, .v = &tv, .out = &to };
    mxa_status status = mxa_plan_create(&problem, NULL, &plan); /* NULL: the recipe dma8 */
    if (status == MXA_OK) {
        args.work_bytes = mxa_plan_work_bytes(plan);
        args.work = aligned_alloc(64, args.work_bytes);
        status = mxa_attention(plan, &args);
    }
    puts(status == MXA_OK ? "o is softmax(q k^T / 8) v" : mxa_error_text());
    free(args.work);
    mxa_plan_free(plan);
    return status != MXA_OK;
}

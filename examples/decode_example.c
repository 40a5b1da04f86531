/* SPDX-License-Identifier: Apache-2.0 */
#include <mxattn/mxattn.h>
#include <stdlib.h>

int main(void)
{
    enum { HEADS = 8, HEADS_KV = 2, DIM = 64, PROMPT = 1000, STEPS = 100 };
    static float kv[HEADS_KV * PROMPT * DIM], q[HEADS * DIM], o[HEADS * DIM]; /* yours, of any strides */
    mxa_tensor tk = mxa_tensor_contiguous(kv, MXA_DTYPE_F32, 1, HEADS_KV, PROMPT, DIM);
    const mxa_tensor tq = mxa_tensor_contiguous(q, MXA_DTYPE_F32, 1, HEADS, 1, DIM);
    const mxa_tensor to = mxa_tensor_contiguous(o, MXA_DTYPE_F32, 1, HEADS, 1, DIM);
    mxa_recipe recipe;
    mxa_cache_opts opts;
    mxa_cache *cache = NULL;
    mxa_recipe_parse("dma4,v=int8", &recipe); /* keys MXFP4, values INT8, the nearest and first 128 in bf16 */
    mxa_cache_default(&opts, 1, HEADS_KV, DIM);
    opts.recipe = &recipe;
    mxa_status status = mxa_cache_create(&opts, &cache);
    mxa_cache_attend_args args = { sizeof args, &tq, &to, .softmax_scale = 0.125f,
                                   .window_left = MXA_UNLIMITED };
    args.work_bytes = mxa_cache_work_bytes(cache, HEADS, 1, PROMPT + STEPS);
    args.work = aligned_alloc(64, args.work_bytes);
    for (int step = 0; step < STEPS && status == MXA_OK; step++, tk.shape[2] = 1) {
        status = mxa_cache_append(cache, &tk, &tk, NULL); /* the prompt, then a token a step */
        status = status == MXA_OK ? mxa_cache_attend(cache, &args) : status; /* o of the newest token */
    }
    free(args.work);
    mxa_cache_free(cache);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Fastest first. A plan takes the first entry that runs it. */
#include "cuda/attention_cuda.h"

const mxa_cuda_attention_impl mxa_cuda_attention_impls[] = {
    { .name = NULL },
};

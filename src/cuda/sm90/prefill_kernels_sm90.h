/* SPDX-License-Identifier: Apache-2.0 */
/* Every instance of the prefill kernel, by what it multiplies. */
#ifndef MXA_CUDA_PREFILL_KERNELS_SM90_H
#define MXA_CUDA_PREFILL_KERNELS_SM90_H

#include "cuda/sm90/prefill_params_sm90.h"
#include "cuda/sm90/tiles_sm90.h"

namespace mxa
{

struct PrefillKernel {
    int dim, dim_v; /* the largest that it takes */
    Low low;
    Factor factor;
    Half high, pv;
    bool capped;
    int keys; /* of a step: rows of a box of K and V */
    int smem_bytes;
    const void *function; /* NULL ends a list */
};

/* One list a pair of head dims. */
extern const PrefillKernel prefill_kernels_dim64[], prefill_kernels_dim128[], prefill_kernels_dim192[],
    prefill_kernels_dim256[];
constexpr const PrefillKernel *prefill_kernels[] = { prefill_kernels_dim64, prefill_kernels_dim128,
                                                     prefill_kernels_dim192, prefill_kernels_dim256 };

/* The first that fits what is asked for: at least these dims, all else equal. NULL if there is none. */
const PrefillKernel *prefill_find(const PrefillKernel &wanted);

} // namespace mxa

#endif

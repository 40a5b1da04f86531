/* SPDX-License-Identifier: Apache-2.0 */
/* The instances of the decode kernel of sm_90a: all formats of V for one of K. */
#ifndef MXA_CUDA_DECODE_KERNELS_SM90_CUH
#define MXA_CUDA_DECODE_KERNELS_SM90_CUH

#include "cuda/decode/decode_config_sm90.cuh"

namespace mxa
{

struct DecodeKernel {
    const void *kernel;
    int smem_bytes;
};

/* kernel is NULL where there is no such instance. */
DecodeKernel decode_kernel_mxfp4(Values values, int dim, bool paired);
DecodeKernel decode_kernel_int8(Values values, int dim, bool paired);

} // namespace mxa

#endif

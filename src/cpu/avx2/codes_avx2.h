/* SPDX-License-Identifier: Apache-2.0 */
/* Quantisers and rotation by eight lanes; the contracts are in cpu/kernels.h. */
#ifndef MXA_CPU_AVX2_CODES_AVX2_H
#define MXA_CPU_AVX2_CODES_AVX2_H

#include "cpu/kernels.h"

/* MXFP8, MXFP4, MXINT8. */
mxa_quantize_row_fn mxa_quantize_mx_avx2;
/* FP8 and INT8. */
mxa_quantize_row_fn mxa_quantize_element_avx2;
/* BF16 and F16. */
mxa_quantize_row_fn mxa_quantize_half_avx2;

mxa_hadamard_fn mxa_hadamard_avx2;

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Preparation of rows, quantisers and decoders by eight lanes; the contracts are in cpu/kernels.h. */
#ifndef MXA_CPU_AVX2_CODES_AVX2_H
#define MXA_CPU_AVX2_CODES_AVX2_H

#include "cpu/kernels.h"

mxa_prepare_rows_fn mxa_prepare_avx2;
mxa_dot_rows_fn mxa_dot_avx2;

/* MXFP8, MXFP6, MXFP4, MXINT8. */
mxa_quantize_rows_fn mxa_quantize_mx_avx2;
mxa_quantize_rows_fn mxa_quantize_nvfp4_avx2;
/* FP8 and INT8. */
mxa_quantize_rows_fn mxa_quantize_element_avx2;
/* BF16 and F16. */
mxa_quantize_rows_fn mxa_quantize_half_avx2;

mxa_decode_rows_fn mxa_decode_avx2;

#endif

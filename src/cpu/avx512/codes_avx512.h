/* SPDX-License-Identifier: Apache-2.0 */
/* Preparation of rows, quantisers and decoders by sixteen lanes; the contracts are in cpu/kernels.h. */
#ifndef MXA_CPU_AVX512_CODES_AVX512_H
#define MXA_CPU_AVX512_CODES_AVX512_H

#include "cpu/kernels.h"

mxa_prepare_rows_fn mxa_prepare_avx512;

/* MXFP8, MXFP6, MXFP4, MXINT8. */
mxa_quantize_rows_fn mxa_quantize_mx_avx512;
mxa_quantize_rows_fn mxa_quantize_nvfp4_avx512;
/* FP8 and INT8. */
mxa_quantize_rows_fn mxa_quantize_element_avx512;
/* BF16 and F16. */
mxa_quantize_rows_fn mxa_quantize_half_avx512;

mxa_decode_rows_fn mxa_decode_avx512;

#endif

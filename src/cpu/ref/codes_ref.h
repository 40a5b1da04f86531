/* SPDX-License-Identifier: Apache-2.0 */
/* The reference quantiser and decoder: any format, one element after the other. */
#ifndef MXA_CPU_REF_CODES_REF_H
#define MXA_CPU_REF_CODES_REF_H

#include "cpu/kernels.h"

int64_t mxa_quantize_ref(const mxa_code_spec *spec, const float *x, int64_t cols, float g, uint8_t *codes,
                         uint8_t *scales);

void mxa_decode_ref(const mxa_format_info *info, const uint8_t *codes, const uint8_t *scales, int64_t rows,
                    int64_t cols, float *out, int64_t out_stride);

#endif

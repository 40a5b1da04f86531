/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Quantiser and decoder of every format in loops without branches, which compilers turn into vectors at the
 * baseline of the machine.
 */
#ifndef MXA_CPU_PORTABLE_CODES_PORTABLE_H
#define MXA_CPU_PORTABLE_CODES_PORTABLE_H

#include "cpu/kernels.h"

int64_t mxa_quantize_portable(const mxa_code_spec *spec, const float *x, int64_t cols, float g,
                              uint8_t *codes, uint8_t *scales);

void mxa_decode_portable(const mxa_format_info *info, const uint8_t *codes, const uint8_t *scales,
                         int64_t rows, int64_t cols, float *out, int64_t out_stride);

#endif

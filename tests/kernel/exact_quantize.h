/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Quantising one row as docs/numerics.md describes it, in double where it is exact: slow, short, independent.
 */
#ifndef EXACT_QUANTIZE_H
#define EXACT_QUANTIZE_H

#include "cpu/kernels.h"
#include "exact_values.h"

enum { EXACT_MAX_COLS = 512 };

typedef struct exact_row {
    double elements[EXACT_MAX_COLS]; /* NaN where the code must be one that means NaN */
    uint8_t scales[EXACT_MAX_COLS];
    int64_t bad; /* blocks, or elements, with NaN or Inf */
} exact_row;

void exact_quantize(const mxa_code_spec *spec, const float *x, int64_t cols, float g, exact_row *row);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* docs/numerics.md, section 9, one row after the other. */
#include "core/tensor.h"
#include "cpu/ref/codes_ref.h"
#include "format/hadamard.h"
#include "format/mx.h"

void mxa_prepare_ref(const mxa_source *x, const float *mean, bool rotate, float *out, uint32_t *amax)
{
    for (int64_t r = 0; r < x->rows; r++) {
        float *const row = out + r * x->cols;
        mxa_row_widen(mxa_source_row(x, r), x->dtype, x->cols, row);
        for (int64_t d = 0; d < x->cols && mean; d++)
            row[d] -= mean[d];
        if (rotate)
            mxa_hadamard(row, x->cols);
        for (int64_t d = 0; d < x->cols && amax; d += MXA_AMAX_BLOCK)
            *amax++ = mxa_amax_bits(row + d, x->cols - d < MXA_AMAX_BLOCK ? x->cols - d : MXA_AMAX_BLOCK);
    }
}

void mxa_dot_ref(const mxa_source *x, const float *y, double *out)
{
    enum { PIECE = 64 };
    for (int64_t r = 0; r < x->rows; r++) {
        const char *const row = mxa_source_row(x, r);
        out[r] = 0;
        for (int64_t d = 0; d < x->cols; d += PIECE) {
            const int64_t n = x->cols - d < PIECE ? x->cols - d : PIECE;
            float piece[PIECE];
            mxa_row_widen(row + d * mxa_dtype_bytes(x->dtype), x->dtype, n, piece);
            out[r] += mxa_dot(piece, y + d, n);
        }
    }
}

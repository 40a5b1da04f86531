/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of a copy: what quantising a tensor does to each of its rows at level NONE or TOKEN. */
#ifndef MXA_CPU_COPY_ROW_H
#define MXA_CPU_COPY_ROW_H

#include "attn/plan.h"
#include "cpu/kernels.h"
#include "cpu/steps_cpu.h"
#include "format/second_level.h"

enum { MXA_COPY_ROWS = 16 };

/* A copy with its kernels, found once for many rows. */
typedef struct mxa_row_coder {
    const mxa_copy_plan *copy;
    mxa_code_spec spec;
    mxa_prepare_rows_fn *prepare;
    mxa_quantize_rows_fn *code;
    const float *channels_g; /* [cols] what each channel is divided by first, for FP8 and INT8; or NULL */
} mxa_row_coder;

static inline mxa_row_coder mxa_row_coder_of(const mxa_copy_plan *copy)
{
    return (mxa_row_coder){
        .copy = copy,
        .spec = { copy->info, copy->rule, 0 },
        .prepare = mxa_prepare_pick()->fn,
        .code = mxa_quantize_pick(copy->info->format)->fn,
    };
}

/* fl(x / g), saturated; NaN and Inf stay. */
static inline void mxa_divide_channels(float *rows, int64_t n, int64_t cols, const float *g)
{
    for (int64_t r = 0; r < n; r++, rows += cols)
        for (int64_t d = 0; d < cols; d++)
            rows[d] = mxa_f32_is_finite(rows[d]) ? mxa_saturate(rows[d] / g[d]) : rows[d];
}

/*
 * Rows of x, at most MXA_COPY_ROWS, less mean (NULL: none) into codes and scales; g is written where the copy
 * has factors.
 */
static inline void mxa_copy_rows(const mxa_row_coder *c, const mxa_source *x, const float *mean,
                                 uint8_t *codes, uint8_t *scales, float *g)
{
    uint32_t amax[MXA_COPY_ROWS * MXA_DIM_MAX / MXA_AMAX_BLOCK];
    float rows[MXA_COPY_ROWS * MXA_DIM_MAX];
    const mxa_prepared prepared = { rows, amax, x->rows, x->cols };
    const float one = 1.0f, divisor = mxa_g_divisor(c->copy->info);
    const bool factors = c->copy->level == MXA_LEVEL_TOKEN;
    c->prepare(x, mean, c->copy->rotate, rows, amax);
    if (c->channels_g)
        mxa_divide_channels(rows, x->rows, x->cols, c->channels_g);
    for (int64_t r = 0; r < x->rows && factors; r++)
        g[r] = mxa_second_level(divisor, 0, mxa_f32_from_bits(mxa_prepared_row_amax(&prepared, r)));
    c->code(&c->spec, &prepared, factors ? g : &one, factors, codes, scales);
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* One row of a copy: what quantising a tensor does to each of its rows at level NONE or TOKEN. */
#ifndef MXA_CPU_COPY_ROW_H
#define MXA_CPU_COPY_ROW_H

#include "attn/plan.h"
#include "cpu/kernels.h"
#include "cpu/steps_cpu.h"
#include "format/second_level.h"

/* A copy with its kernels, found once for many rows. */
typedef struct mxa_row_coder {
    const mxa_copy_plan *copy;
    mxa_code_spec spec;
    mxa_prepare_rows_fn *prepare;
    mxa_quantize_rows_fn *code;
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

/* x [dim] less mean (NULL: none) into codes and scales; *g is written where the copy has factors. */
static inline void mxa_copy_row(const mxa_row_coder *c, const float *x, const float *mean, int64_t dim,
                                uint8_t *codes, uint8_t *scales, float *g)
{
    const mxa_source source = { x, MXA_DTYPE_F32, 1, dim, dim };
    float row[MXA_DIM_MAX], factor = 1.0f;
    uint32_t amax;
    c->prepare(&source, mean, c->copy->rotate, row, &amax);
    if (c->copy->level == MXA_LEVEL_TOKEN) {
        const uint32_t finite = amax < MXA_F32_INF ? amax : mxa_finite_amax_bits(row, dim);
        *g = factor = mxa_second_level(mxa_g_divisor(c->copy->info), 0, mxa_f32_from_bits(finite));
    }
    c->code(&c->spec, row, 1, dim, &factor, 0, codes, scales);
}

#endif

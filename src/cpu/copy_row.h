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
    mxa_quantize_row_fn *code;
    mxa_hadamard_fn *rotate; /* NULL: the copy is not rotated */
} mxa_row_coder;

static inline mxa_row_coder mxa_row_coder_of(const mxa_copy_plan *copy)
{
    return (mxa_row_coder){
        .copy = copy,
        .spec = { copy->info, copy->rule, 0 },
        .code = mxa_quantize_pick(copy->info->format)->fn,
        .rotate = copy->rotate ? mxa_hadamard_pick()->fn : NULL,
    };
}

/* x [dim] less mean (NULL: none) into codes and scales; *g is written where the copy has factors. */
static inline void mxa_copy_row(const mxa_row_coder *c, const float *x, const float *mean, int64_t dim,
                                uint8_t *codes, uint8_t *scales, float *g)
{
    float row[MXA_DIM_MAX];
    for (int64_t d = 0; d < dim; d++)
        row[d] = mean ? x[d] - mean[d] : x[d];
    if (c->rotate)
        c->rotate(row, dim);
    float factor = 1.0f;
    if (c->copy->level == MXA_LEVEL_TOKEN) {
        const float amax = mxa_f32_from_bits(mxa_finite_amax_bits(row, dim));
        *g = factor = mxa_second_level(mxa_g_divisor(c->copy->info), 0, amax);
    }
    c->code(&c->spec, row, dim, factor, codes, scales);
}

#endif

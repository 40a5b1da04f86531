/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tokens between a cache and a layout of another engine. They go through values in fp32, and where a low row
 * has the foreign format, its bytes then replace what their quantisation gave.
 */
#ifndef MXA_EXCHANGE_H
#define MXA_EXCHANGE_H

#include "cache/cache.h"

/* K or V on its way. Token t of head h is row t * token_step + h * head_step. */
typedef struct mxa_staged {
    const mxa_format_info *info; /* of the codes; NULL: there are none, only values */
    float g;                     /* of NVFP4 */
    int64_t dim, rows, token_step, head_step;
    int64_t row_bytes, scale_cols;
    float *values; /* [rows][dim], at the beginning of the memory that codes and scales are in too */
    uint8_t *codes, *scales;
} mxa_staged;

/* Tokens [first, first + n) of a cache's sequence, and what K and V are staged in. */
typedef struct mxa_exchange {
    const mxa_cache *cache;
    int64_t b, first, n;
    mxa_staged parts[MXA_KV_OPERANDS];
} mxa_exchange;

/* The operand's memory, zeros; rows has dim, rows and steps. format NONE: no codes. MXA_ERR_MEMORY. */
mxa_status mxa_exchange_stage(mxa_exchange *e, int operand, mxa_staged rows, mxa_format format, float g);
void mxa_exchange_free(mxa_exchange *e);

/* Append what is staged, as codes where there are codes. On failure the cache is as it was. */
mxa_status mxa_exchange_append(mxa_cache *cache, mxa_exchange *e);

/* Stage the cache's tokens, values and codes. MXA_ERR_ARG a removed page; MXA_ERR_MEMORY. */
mxa_status mxa_exchange_read(mxa_exchange *e);

/* Views of the codes, of a copy at level TENSOR or without factors. */
static inline mxa_packed mxa_staged_codes(mxa_staged *s)
{
    return (mxa_packed){ .codes = s->codes, .scales = s->scales, .g = &s->g };
}

#endif

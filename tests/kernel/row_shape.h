/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes of one row of a format, and row lengths to try. */
#ifndef ROW_SHAPE_H
#define ROW_SHAPE_H

#include "check.h"

#include <mxattn/mxattn.h>

typedef struct row_shape {
    int64_t blocks, code_bytes, scale_bytes; /* a short last block is filled */
} row_shape;

static inline row_shape row_shape_of(const mxa_format_info *info, int64_t cols)
{
    const int64_t block = info->block ? info->block : 1, blocks = (cols + block - 1) / block;
    return (row_shape){ blocks, (blocks * block * info->element_bits + 7) / 8, info->block ? blocks : 0 };
}

/* Whole blocks mostly, else any length. */
static inline int64_t row_shape_pick_cols(const mxa_format_info *info)
{
    const int64_t block = info->block ? info->block : 1;
    return check_pick(0, 3) ? block * check_pick(1, 288 / block) : check_pick(1, 288);
}

#endif

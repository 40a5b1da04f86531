/* SPDX-License-Identifier: Apache-2.0 */
/* Where the scale byte of (row, column) of a [rows][cols] matrix lies: docs/numerics.md, section 6. */
#ifndef MXA_FORMAT_SCALE_LAYOUT_H
#define MXA_FORMAT_SCALE_LAYOUT_H

#include <mxattn/mxattn.h>

#include "core/bits.h"

/* Rows and columns are padded to multiples of these. */
MXA_HD static inline int64_t mxa_layout_row_unit(mxa_layout layout)
{
    return layout == MXA_LAYOUT_TILE_128X4 ? 128 : layout == MXA_LAYOUT_AMD ? 256 : 1;
}

MXA_HD static inline int64_t mxa_layout_col_unit(mxa_layout layout)
{
    return layout == MXA_LAYOUT_TILE_128X4 ? 4 : layout == MXA_LAYOUT_AMD ? 8 : 1;
}

MXA_HD static inline int64_t mxa_round_up(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* Of the padded matrix; sizes are checked not to overflow. */
MXA_HD static inline int64_t mxa_layout_bytes(mxa_layout layout, int64_t rows, int64_t cols)
{
    return mxa_round_up(rows, mxa_layout_row_unit(layout)) * mxa_round_up(cols, mxa_layout_col_unit(layout));
}

MXA_HD static inline int64_t mxa_scale_offset(mxa_layout layout, int64_t cols, int64_t r, int64_t c)
{
    const int64_t padded = mxa_round_up(cols, mxa_layout_col_unit(layout));
    switch (layout) {
    case MXA_LAYOUT_TILE_128X4:
        return (r / 128 * (padded / 4) + c / 4) * 512 + r % 32 * 16 + r % 128 / 32 * 4 + c % 4;
    case MXA_LAYOUT_AMD:
        return ((((r / 32 * (padded / 8) + c / 8) * 4 + c % 4) * 16 + r % 16) * 2 + c % 8 / 4) * 2 +
               r % 32 / 16;
    default: return r * cols + c;
    }
}

#endif

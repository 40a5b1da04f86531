/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes that follow from a format's entry in the table. */
#ifndef MXA_FORMAT_FORMAT_H
#define MXA_FORMAT_FORMAT_H

#include <mxattn/mxattn.h>

#include "format/pack.h"
#include "format/scale_layout.h"

/* Bytes of codes of a row; a short last block is stored whole. */
static inline int64_t mxa_row_bytes(const mxa_format_info *info, int64_t cols)
{
    const int64_t stored = info->block ? mxa_round_up(cols, info->block) : cols;
    return mxa_packed_bytes(info->element_bits, stored);
}

/* Scale bytes of a row. */
static inline int64_t mxa_scale_cols(const mxa_format_info *info, int64_t cols)
{
    return info->block ? (cols + info->block - 1) / info->block : 0;
}

static inline bool mxa_format_is_mx(const mxa_format_info *info)
{
    return info->scale == MXA_SCALE_E8M0;
}

/* The rule that stands for MXA_RULE_DEFAULT, and the level for MXA_LEVEL_DEFAULT. */
static inline mxa_rule mxa_rule_resolve(const mxa_format_info *info, mxa_rule rule)
{
    return rule == MXA_RULE_DEFAULT ? info->default_rule : rule;
}

static inline mxa_level mxa_level_resolve(const mxa_format_info *info, mxa_level level)
{
    return level == MXA_LEVEL_DEFAULT ? info->default_level : level;
}

#endif

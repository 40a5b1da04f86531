/* SPDX-License-Identifier: Apache-2.0 */
/* The second-level factor g, an fp32 decode multiplier: docs/numerics.md, section 4. */
#ifndef MXA_FORMAT_SECOND_LEVEL_H
#define MXA_FORMAT_SECOND_LEVEL_H

#include "format/element.h"

#define MXA_G_MIN 0x1p-117f
#define MXA_G_MAX 0x1p117f

MXA_HD static inline bool mxa_g_is_legal(float g)
{
    return g >= MXA_G_MIN && g <= MXA_G_MAX;
}

/* What g maps to 1: the largest element, times the largest block scale where that is bounded. */
MXA_HD static inline float mxa_g_divisor(const mxa_format_info *info)
{
    const double largest_scale = info->scale == MXA_SCALE_UE4M3 ? 448.0 : 1.0;
    return (float)(info->largest * largest_scale);
}

/*
 * g of a region whose largest finite magnitude is amax. nvfp4: MXA_NVFP4_POW2_G rounds up to a power of two.
 */
MXA_HD static inline float mxa_second_level(float divisor, unsigned nvfp4, float amax)
{
    if (amax == 0.0f)
        return 1.0f;
    const float g = amax / divisor;
    const float legal = g < MXA_G_MIN ? MXA_G_MIN : g > MXA_G_MAX ? MXA_G_MAX : g;
    const uint32_t b = mxa_f32_bits(legal);
    return nvfp4 & MXA_NVFP4_POW2_G ? mxa_f32_from_bits((b + 0x007FFFFFu) & 0x7F800000u) : legal;
}

#endif

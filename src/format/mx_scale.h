/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The block scale of the MX formats: docs/numerics.md, section 3. Integers only: logarithms fail next to
 * powers of two.
 */
#ifndef MXA_FORMAT_MX_SCALE_H
#define MXA_FORMAT_MX_SCALE_H

#include "format/element.h"

/*
 * The mantissa field of amax from which the scale is one step larger.
 *   FLOOR never; RCEIL what exceeds the mantissa of the largest element; EVEN what rounds up to the next
 *   power of two.
 */
MXA_HD static inline uint32_t mxa_mx_threshold(mxa_element f, mxa_rule rule)
{
    const uint32_t next_binade = 1u << 23;
    if (rule == MXA_RULE_RCEIL)
        return ((f.largest & ((1u << f.man_bits) - 1)) << (23 - f.man_bits)) + 1;
    return rule == MXA_RULE_EVEN ? next_binade - (1u << (22 - f.man_bits)) : next_binade;
}

/* The E8M0 byte for the bits of a finite amax; threshold from mxa_mx_threshold. */
MXA_HD static inline uint8_t mxa_mx_scale(mxa_element f, uint32_t threshold, uint32_t amax_bits)
{
    const int exponent = (int)(amax_bits >> 23);
    const int e = exponent - f.emax + ((amax_bits & 0x007FFFFFu) >= threshold ? 1 : 0);
    if (exponent == 0 || e < 0)
        return 0;
    return (uint8_t)(e < 254 ? e : 254);
}

#endif

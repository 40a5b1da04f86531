/* SPDX-License-Identifier: Apache-2.0 */
/* Constants and ends of the softmax that every backend shares. Kernels keep logits in base 2. */
#ifndef MXA_ATTN_SOFTMAX_H
#define MXA_ATTN_SOFTMAX_H

#include <math.h>

#include "core/bits.h"

#define MXA_LOG2_E 1.4426950408889634 /* log2(e) */
#define MXA_LN_2   0.6931471805599453

/* Natural logarithm of the row's sum; m is the row's largest logit in base 2, l the sum of 2^(logit - m). */
static inline float mxa_lse(float m, float l)
{
    return l == 0 ? -INFINITY : (float)(MXA_LN_2 * ((double)m + log2((double)l)));
}

#endif

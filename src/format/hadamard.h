/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The orthonormal Hadamard rotation of a row, in place: docs/numerics.md, section 9. The order of the
 * additions is the definition, so that all backends give the same bits. The transform is its own inverse.
 */
#ifndef MXA_FORMAT_HADAMARD_H
#define MXA_FORMAT_HADAMARD_H

#include "format/element.h"

/* Elements that are mixed: the largest power of two that divides cols. */
MXA_HD static inline int64_t mxa_hadamard_group(int64_t cols)
{
    return cols & -cols;
}

MXA_HD static inline void mxa_hadamard_step(float *x, int64_t group, int64_t s)
{
    for (int64_t i = 0; i < group; i += 2 * s) {
        for (int64_t j = i; j < i + s; j++) {
            const float a = x[j], b = x[j + s];
            x[j] = a + b;
            x[j + s] = a - b;
        }
    }
}

/* 1 / sqrt(group) rounded to fp32, for a power of two. */
MXA_HD static inline float mxa_hadamard_norm(int64_t group)
{
    const float half_root = 0x1.6A09E6p-1f; /* 1 / sqrt(2) */
    int log2 = 0;
    while (group >> log2 > 1)
        log2++;
    return mxa_pow2(-(log2 / 2)) * (log2 % 2 ? half_root : 1.0f);
}

MXA_HD static inline void mxa_hadamard(float *x, int64_t cols)
{
    const int64_t group = mxa_hadamard_group(cols);
    if (group <= 1)
        return;
    for (int64_t first = 0; first < cols; first += group)
        for (int64_t s = 1; s < group; s *= 2)
            mxa_hadamard_step(x + first, group, s);
    const float norm = mxa_hadamard_norm(group);
    for (int64_t i = 0; i < cols; i++)
        x[i] *= norm;
}

#endif

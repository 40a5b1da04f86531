/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The orthonormal Hadamard rotation of a row, in place: docs/numerics.md, section 9. The order of the
 * additions is the definition, so that all backends give the same bits. The transform is its own inverse.
 */
#ifndef MXA_FORMAT_HADAMARD_H
#define MXA_FORMAT_HADAMARD_H

#include <math.h>

#include "core/bits.h"

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

MXA_HD static inline void mxa_hadamard(float *x, int64_t cols)
{
    const int64_t group = mxa_hadamard_group(cols);
    if (group <= 1)
        return;
    for (int64_t first = 0; first < cols; first += group)
        for (int64_t s = 1; s < group; s *= 2)
            mxa_hadamard_step(x + first, group, s);
    const float norm = (float)(1.0 / sqrt((double)group));
    for (int64_t i = 0; i < cols; i++)
        x[i] *= norm;
}

#endif

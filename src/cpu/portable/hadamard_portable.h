/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rotation of format/hadamard.h with vectors of four: the same additions in the same order inside each
 * element's chain, so the same bits. Two stages are taken at a time.
 */
#ifndef MXA_CPU_PORTABLE_HADAMARD_PORTABLE_H
#define MXA_CPU_PORTABLE_HADAMARD_PORTABLE_H

#include "cpu/portable/vector_portable.h"
#include "format/hadamard.h"

static inline mxa_vec mxa_flip_signs(mxa_vec v, mxa_veci signs)
{
    return (mxa_vec)((mxa_veci)v ^ signs);
}

/* Stages s = 1 and s = 2 of one vector; a - b is a + (-b). */
static inline mxa_vec mxa_hadamard_within(mxa_vec v)
{
    const mxa_veci odd = { 0, INT32_MIN, 0, INT32_MIN }, upper = { 0, 0, INT32_MIN, INT32_MIN };
    const mxa_vec pairs = __builtin_shufflevector(v, v, 0, 0, 2, 2) +
                          mxa_flip_signs(__builtin_shufflevector(v, v, 1, 1, 3, 3), odd);
    return __builtin_shufflevector(pairs, pairs, 0, 1, 0, 1) +
           mxa_flip_signs(__builtin_shufflevector(pairs, pairs, 2, 3, 2, 3), upper);
}

/* Stages s and 2 s of one group; s is a multiple of 4. */
static inline void mxa_hadamard_two(float *x, int64_t group, int64_t s)
{
    for (int64_t i = 0; i < group; i += 4 * s) {
        for (float *p = x + i; p < x + i + s; p += 4) {
            const mxa_vec a = mxa_vec_load(p), b = mxa_vec_load(p + s);
            const mxa_vec c = mxa_vec_load(p + 2 * s), d = mxa_vec_load(p + 3 * s);
            const mxa_vec ab = a + b, a_b = a - b, cd = c + d, c_d = c - d;
            mxa_vec_store(p, ab + cd);
            mxa_vec_store(p + s, a_b + c_d);
            mxa_vec_store(p + 2 * s, ab - cd);
            mxa_vec_store(p + 3 * s, a_b - c_d);
        }
    }
}

static inline void mxa_hadamard_one(float *x, int64_t group, int64_t s)
{
    for (int64_t i = 0; i < group; i += 2 * s) {
        for (float *p = x + i; p < x + i + s; p += 4) {
            const mxa_vec a = mxa_vec_load(p), b = mxa_vec_load(p + s);
            mxa_vec_store(p, a + b);
            mxa_vec_store(p + s, a - b);
        }
    }
}

static inline void mxa_hadamard_portable(float *x, int64_t cols)
{
    const int64_t group = mxa_hadamard_group(cols);
    if (group < 4) {
        mxa_hadamard(x, cols);
        return;
    }
    for (int64_t i = 0; i < cols; i += 4)
        mxa_vec_store(x + i, mxa_hadamard_within(mxa_vec_load(x + i)));
    for (float *p = x; p < x + cols; p += group) {
        int64_t s = 4;
        for (; 2 * s < group; s *= 4)
            mxa_hadamard_two(p, group, s);
        if (s < group)
            mxa_hadamard_one(p, group, s);
    }
    const float norm = mxa_hadamard_norm(group);
    for (int64_t i = 0; i < cols; i++)
        x[i] *= norm;
}

#endif

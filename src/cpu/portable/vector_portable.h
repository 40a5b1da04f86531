/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Four fp32 lanes by the vector extensions of GCC and Clang, which every machine has or emulates. Each lane
 * does what the scalar expression does: no contraction, no reassociation.
 */
#ifndef MXA_CPU_VECTOR_PORTABLE_H
#define MXA_CPU_VECTOR_PORTABLE_H

#include <stdint.h>
#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

enum { MXA_LANES = 4 };

typedef float mxa_vec __attribute__((vector_size(16)));
typedef int32_t mxa_veci __attribute__((vector_size(16)));
typedef uint32_t mxa_vecu __attribute__((vector_size(16)));

static inline mxa_vec mxa_vec_all(float x)
{
    return (mxa_vec){ x, x, x, x };
}

static inline mxa_vec mxa_vec_load(const float *at)
{
    mxa_vec v;
    memcpy(&v, at, sizeof v);
    return v;
}

static inline void mxa_vec_store(float *at, mxa_vec v)
{
    memcpy(at, &v, sizeof v);
}

/*
 * x, kept in a register: GCC 12 would load it again for each use, which takes a tenth of the products' speed.
 */
static inline mxa_vec mxa_vec_keep(mxa_vec x)
{
#if defined(__SSE2__)
    __asm__("" : "+x"(x));
#endif
    return x;
}

/* a where mask is all ones, b where it is 0. */
static inline mxa_vec mxa_vec_select(mxa_veci mask, mxa_vec a, mxa_vec b)
{
    return (mxa_vec)((mask & (mxa_veci)a) | (~mask & (mxa_veci)b));
}

/* The larger; b where a is NaN. */
static inline mxa_vec mxa_vec_max(mxa_vec a, mxa_vec b)
{
#if defined(__SSE2__)
    return (mxa_vec)_mm_max_ps((__m128)a, (__m128)b);
#else
    return mxa_vec_select(a > b, a, b);
#endif
}

static inline float mxa_vec_largest(mxa_vec v)
{
    const float a = v[0] > v[1] ? v[0] : v[1], b = v[2] > v[3] ? v[2] : v[3];
    return a > b ? a : b;
}

static inline float mxa_vec_sum(mxa_vec v)
{
    return (v[0] + v[1]) + (v[2] + v[3]);
}

/*
 * 2^x to 2^-22 of its value for x <= 0; 0 below -126, -Inf included. NaN gives NaN. 2^x = 2^n 2^f, n the
 * nearest integer; 2^f is the polynomial 1 + f q(f) of degree 5 with the least relative error on [-1/2, 1/2],
 * 9.1e-8.
 */
static inline mxa_vec mxa_vec_exp2(mxa_vec x)
{
    /*
     * In 1.5 * 2^23 the last bit of a float is 1, so that adding it rounds to an integer; 127 is the
     * exponent's bias.
     */
    const mxa_vec round = mxa_vec_all(0x1.8p23f + 127.0f);
    const mxa_vec t = x + round;
    const mxa_vec f = x - (t - round);
    const mxa_vec f2 = f * f; /* pairs of terms, for a short chain of dependent operations */
    const mxa_vec low = mxa_vec_all(0x1.62e42ap-1f) + mxa_vec_all(0x1.ebf9bcp-3f) * f;
    const mxa_vec high = mxa_vec_all(0x1.c6b752p-5f) + mxa_vec_all(0x1.3cea88p-7f) * f;
    const mxa_vec q = low + f2 * (high + f2 * mxa_vec_all(0x1.5bba14p-10f));
    const mxa_vec p = mxa_vec_all(1.0f) + f * q;
    const mxa_vec power = (mxa_vec)((mxa_veci)t << 23);
    return (mxa_vec)(~(x < mxa_vec_all(-126.0f)) & (mxa_veci)(p * power));
}

/*
 * tanh(x) to a few units of 2^-24 of its value. Below 1/4 the odd polynomial, whose next term is 2e-9 of the
 * value; beyond, (1 - e) / (1 + e) with e = exp(-2|x|).
 */
static inline mxa_vec mxa_vec_tanh(mxa_vec x)
{
    const mxa_veci sign_bit = (mxa_veci)mxa_vec_all(-0.0f);
    const mxa_vec size = (mxa_vec)((mxa_veci)x & ~sign_bit), square = x * x;
    mxa_vec p = mxa_vec_all((float)(62.0 / 2835.0));
    p = p * square + mxa_vec_all((float)(-17.0 / 315.0));
    p = p * square + mxa_vec_all((float)(2.0 / 15.0));
    p = p * square + mxa_vec_all((float)(-1.0 / 3.0));
    const mxa_vec near = x + x * square * p;
    const mxa_vec e = mxa_vec_exp2(size * mxa_vec_all((float)(-2.0 * 1.4426950408889634)));
    const mxa_vec far = (mxa_vec_all(1.0f) - e) / (mxa_vec_all(1.0f) + e);
    const mxa_vec signed_far = (mxa_vec)((mxa_veci)far | ((mxa_veci)x & sign_bit));
    return mxa_vec_select(size < mxa_vec_all(0.25f), near, signed_far);
}

/* Rounded to bf16, to nearest even: for numbers of 0..1 and NaN. */
static inline mxa_vec mxa_vec_round_p_bf16(mxa_vec p)
{
    const mxa_vecu bits = (mxa_vecu)p;
    return (mxa_vec)((bits + 0x7FFFu + (bits >> 16 & 1u)) & 0xFFFF0000u);
}

/*
 * Rounded to f16, to nearest even: for numbers of 0..1 and NaN. Below 2^-14 one unit is 2^-24, which is the
 * ulp of 0.5.
 */
static inline mxa_vec mxa_vec_round_p_f16(mxa_vec p)
{
    const mxa_vecu bits = (mxa_vecu)p;
    const mxa_vec normal = (mxa_vec)((bits + 0xFFFu + (bits >> 13 & 1u)) & 0xFFFFE000u);
    const mxa_vec subnormal = (p + mxa_vec_all(0.5f)) - mxa_vec_all(0.5f);
    return mxa_vec_select(p < mxa_vec_all(0x1p-14f), subnormal, normal);
}

#endif

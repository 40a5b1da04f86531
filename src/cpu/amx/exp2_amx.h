/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MXA_CPU_AMX_EXP2_AMX_H
#define MXA_CPU_AMX_EXP2_AMX_H

#include <immintrin.h>

/*
 * 2^x to 2.9e-6 of its value, exactly for integers; from 0 to Inf, NaN gives NaN. 2^x = 2^n 2^f, n the
 * integer below x; 2^f is the polynomial 1 + f q(f) of degree 4 with the least relative error on [0, 1].
 */
static inline __m512 mxa_amx_exp2(__m512 x)
{
    const __m512 f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    __m512 p = _mm512_set1_ps(0x1.b7f730p-7f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.abf868p-5f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.ee2450p-3f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.62d6c6p-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, x);
}

/*
 * The same for numbers that are finite; Inf gives NaN. Beside tiles one port takes all products and
 * conversions of 512 bits, additions have two: so the integer next to x comes from two of them (1.5 * 2^23
 * has a last bit of 1), and the polynomial, 1 + f q(f) of degree 4, is that for [-1/2, 1/2].
 */
static inline __m512 mxa_amx_exp2_finite(__m512 x)
{
    const __m512 round = _mm512_set1_ps(0x1.8p23f);
    const __m512 n = _mm512_sub_ps(_mm512_add_ps(x, round), round), f = _mm512_sub_ps(x, n);
    __m512 p = _mm512_set1_ps(0x1.3a02ccp-7f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.c9fc46p-5f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.ec0378p-3f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.62e12cp-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, n);
}

#endif

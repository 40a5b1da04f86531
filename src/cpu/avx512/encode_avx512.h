/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Codes of sixteen numbers at a time, and quotients without a division for each: as cpu/avx2/encode_avx2.h.
 */
#ifndef MXA_CPU_AVX512_ENCODE_AVX512_H
#define MXA_CPU_AVX512_ENCODE_AVX512_H

#include "cpu/avx2/encode_avx2.h"
#include "cpu/avx512/vector_avx512.h"

enum { MXA_AVX512_CODES = 4 * MXA_AVX512_LANES }; /* that are packed into one vector of bytes */
enum { MXA_AVX512_OR_AND = 0xF8 };                /* ternary logic: a | (b & c) */

static inline __m512i mxa_avx512_magnitude(__m512 x)
{
    return _mm512_and_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x7FFFFFFF));
}

static inline uint32_t mxa_avx512_largest_u31(__m512i v)
{
    return mxa_avx2_largest_u31(_mm256_max_epi32(_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64(v, 1)));
}

MXA_AVX512_INLINE __m512i mxa_avx512_raw_codes(mxa_element f, __m512 mag)
{
    const int cut = 23 - f.man_bits, weights = 1 << 16 | 1 << mxa_avx2_code_shift(f);
    const __m512 normal = _mm512_max_ps(mag, _mm512_set1_ps(mxa_pow2(1 - f.bias)));
    const __m512i power = _mm512_and_epi32(_mm512_castps_si512(normal), _mm512_set1_epi32((int)MXA_F32_INF));
    const __m512 sum = _mm512_fmadd_ps(_mm512_castsi512_ps(power), _mm512_set1_ps(mxa_pow2(cut)), mag);
    return _mm512_madd_epi16(_mm512_castps_si512(sum), _mm512_set1_epi32(weights));
}

MXA_AVX512_INLINE __m512i mxa_avx512_word_codes(mxa_element f, __m512 mag0, __m512 mag1)
{
    const __m512i words = _mm512_packus_epi32(mxa_avx512_raw_codes(f, mag0), mxa_avx512_raw_codes(f, mag1));
    return _mm512_sub_epi16(_mm512_srli_epi16(words, mxa_avx2_code_shift(f)),
                            _mm512_set1_epi16((short)mxa_avx2_code_offset(f)));
}

/* Bytes that were packed from four vectors in order; packing works on quarters of vectors. */
static inline __m512i mxa_avx512_in_order(__m512i bytes)
{
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return _mm512_permutexvar_epi32(order, bytes);
}

/* The lowest bytes of four vectors of integers, saturated with their signs; not in order. */
static inline __m512i mxa_avx512_pack_signed(const __m512i x[4])
{
    return _mm512_packs_epi16(_mm512_packs_epi32(x[0], x[1]), _mm512_packs_epi32(x[2], x[3]));
}

/* Codes of 64 numbers, one a byte. */
MXA_AVX512_INLINE __m512i mxa_avx512_codes(mxa_element f, const __m512 mag[4], const __m512 x[4])
{
    __m512i bits[4];
    for (int i = 0; i < 4; i++)
        bits[i] = _mm512_castps_si512(x[i]);
    const __m512i any = _mm512_packus_epi16(mxa_avx512_word_codes(f, mag[0], mag[1]),
                                            mxa_avx512_word_codes(f, mag[2], mag[3]));
    const __m512i code = _mm512_min_epu8(any, _mm512_set1_epi8((char)f.largest));
    const __m512i signs = _mm512_srli_epi16(mxa_avx512_pack_signed(bits), __builtin_ctz(0x80u / f.sign));
    return mxa_avx512_in_order(
        _mm512_ternarylogic_epi32(code, signs, _mm512_set1_epi8((char)f.sign), MXA_AVX512_OR_AND));
}

/* The nearest integers, ties to even, one a byte; beyond +-127 what saturation makes of them. */
static inline __m512i mxa_avx512_codes_i8(const __m512 x[4])
{
    __m512i n[4];
    for (int i = 0; i < 4; i++)
        n[i] = _mm512_cvtps_epi32(x[i]);
    return mxa_avx512_in_order(mxa_avx512_pack_signed(n));
}

/* 64 codes of four bits, one a byte, as 32 bytes with the even one in the low half. */
static inline __m256i mxa_avx512_nibbles(__m512i codes)
{
    return _mm512_cvtepi16_epi8(_mm512_maddubs_epi16(codes, _mm512_set1_epi16(0x1001)));
}

/* 64 codes of six bits as 48 bytes. */
static inline void mxa_avx512_store_six(__m512i codes, uint8_t *out)
{
    const __m512i pairs = _mm512_maddubs_epi16(codes, _mm512_set1_epi16(0x4001));  /* low + 2^6 high */
    const __m512i fours = _mm512_madd_epi16(pairs, _mm512_set1_epi32(0x10000001)); /* low + 2^12 high */
    const __m128i three = _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
    const __m512i quarters = _mm512_shuffle_epi8(fours, _mm512_broadcast_i32x4(three));
    const __m512i order = _mm512_setr_epi32(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, 3, 7, 11, 15);
    const __m512i bytes = _mm512_permutexvar_epi32(order, quarters);
    _mm256_storeu_si256((void *)out, _mm512_castsi512_si256(bytes));
    _mm_storeu_si128((void *)(out + sizeof(__m256i)), _mm512_extracti32x4_epi32(bytes, 2));
}

typedef struct mxa_avx512_divisor {
    __m512 g, high, low;
} mxa_avx512_divisor;

static inline mxa_avx512_divisor mxa_avx512_divisor_of(float g)
{
    const float high = 1.0f / g;
    return (mxa_avx512_divisor){ _mm512_set1_ps(g), _mm512_set1_ps(high),
                                 _mm512_set1_ps(mxa_avx2_reciprocal_rest(g, high)) };
}

/* mxa_avx2_quotient of sixteen numbers. */
static inline __m512 mxa_avx512_quotient(__m512 x, mxa_avx512_divisor d)
{
    const __m512 q = _mm512_fmadd_ps(x, d.high, _mm512_mul_ps(x, d.low));
    return _mm512_fmadd_ps(_mm512_fnmadd_ps(q, d.g, x), d.high, q);
}

#endif

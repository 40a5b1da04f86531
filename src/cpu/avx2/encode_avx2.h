/* SPDX-License-Identifier: Apache-2.0 */
/* Codes of eight numbers at a time, and quotients without a division for each. */
#ifndef MXA_CPU_AVX2_ENCODE_AVX2_H
#define MXA_CPU_AVX2_ENCODE_AVX2_H

#include "cpu/avx2/vector_avx2.h"
#include "format/element.h"

/* Functions that take a format are compiled once for each, so that its numbers are constants. */
#define MXA_AVX2_INLINE static inline __attribute__((always_inline))

enum { MXA_AVX2_CODES = 4 * MXA_AVX2_LANES }; /* that are packed into one vector of bytes */

static inline __m256i mxa_avx2_magnitude(__m256 x)
{
    return _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7FFFFFFF));
}

static inline uint32_t mxa_avx2_largest_u31(__m256i v)
{
    const __m128i four = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    const __m128i two = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4E));
    return (uint32_t)_mm_cvtsi128_si32(_mm_max_epi32(two, _mm_shuffle_epi32(two, 0xB1)));
}

/*
 * Codes of mag >= 0, which is at most a binade above the largest element; a code above the largest is not yet
 * cut. Added to 2^(e + cut), e the exponent of mag or of the smallest normal number, mag is rounded to a
 * code's unit. The low half of the sum counts these units, the high half is 2^7 times its exponent field;
 * each lane gets (code + mxa_avx2_code_offset) << mxa_avx2_code_shift.
 */
MXA_AVX2_INLINE __m256i mxa_avx2_raw_codes(mxa_element f, __m256 mag)
{
    const int cut = 23 - f.man_bits, weights = 1 << 16 | 1 << (7 - f.man_bits);
    const __m256 normal = _mm256_max_ps(mag, _mm256_set1_ps(mxa_pow2(1 - f.bias)));
    const __m256 power = _mm256_and_ps(normal, _mm256_castsi256_ps(_mm256_set1_epi32((int)MXA_F32_INF)));
    const __m256 sum = _mm256_fmadd_ps(power, _mm256_set1_ps(mxa_pow2(cut)), mag);
    return _mm256_madd_epi16(_mm256_castps_si256(sum), _mm256_set1_epi32(weights));
}

MXA_AVX2_INLINE int mxa_avx2_code_shift(mxa_element f)
{
    return 7 - f.man_bits;
}

MXA_AVX2_INLINE int mxa_avx2_code_offset(mxa_element f)
{
    const int lowest = 127 + 1 - f.bias, cut = 23 - f.man_bits;
    return (lowest + cut) << f.man_bits;
}

/* The codes of two vectors' raw codes as words. */
MXA_AVX2_INLINE __m256i mxa_avx2_word_codes(mxa_element f, __m256 mag0, __m256 mag1)
{
    const __m256i words = _mm256_packus_epi32(mxa_avx2_raw_codes(f, mag0), mxa_avx2_raw_codes(f, mag1));
    return _mm256_sub_epi16(_mm256_srli_epi16(words, mxa_avx2_code_shift(f)),
                            _mm256_set1_epi16((short)mxa_avx2_code_offset(f)));
}

/* Bytes that were packed from four vectors in order; packing works on halves of vectors. */
static inline __m256i mxa_avx2_in_order(__m256i bytes)
{
    return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

/* Codes of 32 numbers, one a byte: magnitudes as above, and what has the signs. */
MXA_AVX2_INLINE __m256i mxa_avx2_codes(mxa_element f, const __m256 mag[4], const __m256 x[4])
{
    __m256i bits[4];
    for (int i = 0; i < 4; i++)
        bits[i] = _mm256_castps_si256(x[i]);
    const __m256i any =
        _mm256_packus_epi16(mxa_avx2_word_codes(f, mag[0], mag[1]), mxa_avx2_word_codes(f, mag[2], mag[3]));
    /* Saturation keeps signs. */
    const __m256i signs =
        _mm256_packs_epi16(_mm256_packs_epi32(bits[0], bits[1]), _mm256_packs_epi32(bits[2], bits[3]));
    const __m256i code = _mm256_min_epu8(any, _mm256_set1_epi8((char)f.largest));
    const __m256i sign = _mm256_and_si256(_mm256_srli_epi16(signs, __builtin_ctz(0x80u / f.sign)),
                                          _mm256_set1_epi8((char)f.sign));
    return mxa_avx2_in_order(_mm256_or_si256(code, sign));
}

/* The nearest integers, ties to even, one a byte; beyond +-127 what saturation makes of them. */
static inline __m256i mxa_avx2_codes_i8(const __m256 x[4])
{
    __m256i n[4];
    for (int i = 0; i < 4; i++)
        n[i] = _mm256_cvtps_epi32(x[i]);
    return mxa_avx2_in_order(
        _mm256_packs_epi16(_mm256_packs_epi32(n[0], n[1]), _mm256_packs_epi32(n[2], n[3])));
}

/* 32 codes of four bits, one a byte, as 16 bytes with the even one in the low half. */
static inline __m128i mxa_avx2_nibbles(__m256i codes)
{
    const __m256i pairs = _mm256_maddubs_epi16(codes, _mm256_set1_epi16(0x1001)); /* low + 16 high */
    return _mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_packus_epi16(pairs, pairs), 0x08));
}

/* 32 codes of six bits as 24 bytes. */
static inline void mxa_avx2_store_six(__m256i codes, uint8_t *out)
{
    const __m256i pairs = _mm256_maddubs_epi16(codes, _mm256_set1_epi16(0x4001));  /* low + 2^6 high */
    const __m256i fours = _mm256_madd_epi16(pairs, _mm256_set1_epi32(0x10000001)); /* low + 2^12 high */
    const __m128i three = _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
    const __m256i halves = _mm256_shuffle_epi8(fours, _mm256_broadcastsi128_si256(three));
    const __m256i bytes = _mm256_permutevar8x32_epi32(halves, _mm256_setr_epi32(0, 1, 2, 4, 5, 6, 3, 7));
    _mm_storeu_si128((void *)out, _mm256_castsi256_si128(bytes));
    _mm_storel_epi64((void *)(out + sizeof(__m128i)), _mm256_extracti128_si256(bytes, 1));
}

/* g, and 1 / g as the sum of two numbers, the first of them 1 / g rounded. */
typedef struct mxa_avx2_divisor {
    __m256 g, high, low;
} mxa_avx2_divisor;

/*
 * Within these limits, what happens in a quotient whose code is not 0 is neither subnormal nor too large.
 */
static inline bool mxa_avx2_divides(float g)
{
    return g >= 0x1p-50f && g <= 0x1p50f;
}

/* 1 / g less its rounded value; by itself, since a division of whole vectors takes longer. */
static inline float mxa_avx2_reciprocal_rest(float g, float high)
{
    return __builtin_fmaf(-g, high, 1.0f) * high;
}

static inline mxa_avx2_divisor mxa_avx2_divisor_of(float g)
{
    const float high = 1.0f / g;
    return (mxa_avx2_divisor){ _mm256_set1_ps(g), _mm256_set1_ps(high),
                               _mm256_set1_ps(mxa_avx2_reciprocal_rest(g, high)) };
}

static inline mxa_avx2_divisor mxa_avx2_divisors_of(__m256 g)
{
    const __m256 one = _mm256_set1_ps(1.0f), high = _mm256_div_ps(one, g);
    return (mxa_avx2_divisor){ g, high, _mm256_mul_ps(_mm256_fnmadd_ps(g, high, one), high) };
}

/*
 * x / g rounded once: the first quotient is next to x / g, its remainder exact, and 1 / g rounded, so that
 * the second is x / g rounded (Markstein, IBM Journal of Research and Development 34, 1990). NaN if x is NaN
 * or Inf or if the quotient overflows; the sign of a zero may be lost.
 */
static inline __m256 mxa_avx2_quotient(__m256 x, mxa_avx2_divisor d)
{
    const __m256 q = _mm256_fmadd_ps(x, d.high, _mm256_mul_ps(x, d.low));
    return _mm256_fmadd_ps(_mm256_fnmadd_ps(q, d.g, x), d.high, q);
}

#endif

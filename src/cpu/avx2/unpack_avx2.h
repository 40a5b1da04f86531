/* SPDX-License-Identifier: Apache-2.0 */
/*
 * 32 packed codes as bytes, and minifloats as fp16: a minifloat is an fp16 number times a power of two, whose
 * exponent and mantissa fields hold the same bits, subnormal ones too.
 */
#ifndef MXA_CPU_AVX2_UNPACK_AVX2_H
#define MXA_CPU_AVX2_UNPACK_AVX2_H

#include "cpu/avx2/encode_avx2.h"

enum { MXA_F16_BIAS = 15, MXA_F16_MAN_BITS = 10, MXA_F16_SIGN_BIT = 15 };

/* 32 codes of four bits, one a byte. */
static inline __m256i mxa_avx2_load_nibbles(const uint8_t *packed)
{
    const __m128i pairs = _mm_loadu_si128((const void *)packed), low = _mm_set1_epi8(0x0F);
    const __m128i even = _mm_and_si128(pairs, low), odd = _mm_and_si128(_mm_srli_epi16(pairs, 4), low);
    return _mm256_setr_m128i(_mm_unpacklo_epi8(even, odd), _mm_unpackhi_epi8(even, odd));
}

/* 32 codes of six bits, one a byte. */
static inline __m256i mxa_avx2_load_six(const uint8_t *packed)
{
    const __m128i spread = _mm_setr_epi8(0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1);
    const __m128i upper = _mm_setr_epi8(4, 5, 6, -1, 7, 8, 9, -1, 10, 11, 12, -1, 13, 14, 15, -1);
    const __m128i a = _mm_loadu_si128((const void *)packed), b = _mm_loadu_si128((const void *)(packed + 8));
    const __m256i fours = _mm256_setr_m128i(_mm_shuffle_epi8(a, spread), _mm_shuffle_epi8(b, upper));
    const __m256i c0 = _mm256_and_si256(fours, _mm256_set1_epi32(0x3F));
    const __m256i c1 = _mm256_and_si256(_mm256_slli_epi32(fours, 2), _mm256_set1_epi32(0x3F00));
    const __m256i c2 = _mm256_and_si256(_mm256_slli_epi32(fours, 4), _mm256_set1_epi32(0x3F0000));
    const __m256i c3 = _mm256_and_si256(_mm256_slli_epi32(fours, 6), _mm256_set1_epi32(0x3F000000));
    return _mm256_or_si256(_mm256_or_si256(c0, c1), _mm256_or_si256(c2, c3));
}

MXA_AVX2_INLINE __m256i mxa_avx2_load_codes(int bits, const uint8_t *packed)
{
    return bits == 4   ? mxa_avx2_load_nibbles(packed)
           : bits == 6 ? mxa_avx2_load_six(packed)
                       : _mm256_loadu_si256((const void *)packed);
}

/* Whether codes of NaN or Inf are among 32. */
MXA_AVX2_INLINE bool mxa_avx2_has_specials(mxa_element f, __m256i codes)
{
    if (f.largest == f.sign - 1)
        return false;
    const __m256i mag = _mm256_and_si256(codes, _mm256_set1_epi8((char)(f.sign - 1)));
    return _mm256_movemask_epi8(_mm256_cmpgt_epi8(mag, _mm256_set1_epi8((char)f.largest)));
}

/* Sixteen codes as fp16 numbers: 2^(bias - 15) times their values. */
MXA_AVX2_INLINE __m256i mxa_avx2_halves(mxa_element f, __m128i codes)
{
    const int sign_shift = MXA_F16_SIGN_BIT - __builtin_ctz(f.sign);
    const __m256i words = _mm256_cvtepu8_epi16(codes);
    const __m256i mag = _mm256_and_si256(words, _mm256_set1_epi16((short)(f.sign - 1)));
    const __m256i sign = _mm256_and_si256(words, _mm256_set1_epi16((short)f.sign));
    return _mm256_or_si256(_mm256_slli_epi16(mag, MXA_F16_MAN_BITS - f.man_bits),
                           _mm256_slli_epi16(sign, sign_shift));
}

MXA_AVX2_INLINE float mxa_avx2_container_scale(mxa_element f)
{
    return mxa_pow2(MXA_F16_BIAS - f.bias);
}

/*
 * Scales that are normal numbers in fp32, times mxa_avx2_container_scale too, and with which no element
 * overflows.
 */
MXA_AVX2_INLINE bool mxa_avx2_is_ordinary(mxa_element f, uint8_t scale)
{
    const int lowest = 7, headroom = f.emax + 1 > MXA_F16_BIAS - f.bias ? f.emax + 1 : MXA_F16_BIAS - f.bias;
    return scale >= lowest && scale <= 254 - headroom;
}

/* The value of an NVFP4 block's scale byte, which is not NaN. */
static inline float mxa_avx2_ue4m3_value(uint8_t scale)
{
    const mxa_element f = mxa_element_e4m3();
    const unsigned mag = scale & (f.sign - 1);
    return _cvtsh_ss((unsigned short)(mag << (MXA_F16_MAN_BITS - f.man_bits))) * mxa_avx2_container_scale(f);
}

#endif

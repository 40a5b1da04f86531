/* SPDX-License-Identifier: Apache-2.0 */
#include "cpu/avx2/codes_avx2.h"
#include "cpu/avx2/vector_avx2.h"
#include "cpu/portable/codes_portable.h"
#include "format/mx.h"

/* Functions that take a format are compiled once for each, so that its numbers are constants. */
#define SPECIALIZE static inline __attribute__((always_inline))

static inline __m256i magnitude(__m256 x)
{
    return _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7FFFFFFF));
}

/*
 * mxa_element_encode without branches: above the smallest normal number the fp32 mantissa is rounded by an
 * integer addition; below it, adding a power of two rounds to the code's unit and leaves the code in the low
 * bits.
 */
SPECIALIZE __m256i encode(mxa_element f, __m256 x)
{
    const int cut = 23 - f.man_bits, lowest = 1 - f.bias;
    const __m256i mag = magnitude(x), half = _mm256_set1_epi32((1 << (cut - 1)) - 1);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(mag, cut), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(mag, half), odd), cut);
    const __m256i normal = _mm256_sub_epi32(rounded, _mm256_set1_epi32((127 - f.bias) << f.man_bits));

    const __m256 unit = _mm256_set1_ps(mxa_pow2(lowest - f.man_bits + 23));
    const __m256 sum = _mm256_add_ps(_mm256_castsi256_ps(mag), unit);
    const __m256i subnormal = _mm256_sub_epi32(_mm256_castps_si256(sum), _mm256_castps_si256(unit));

    const __m256i is_normal =
        _mm256_cmpgt_epi32(mag, _mm256_set1_epi32((int32_t)mxa_f32_bits(mxa_pow2(lowest)) - 1));
    const __m256i any = _mm256_blendv_epi8(subnormal, normal, is_normal);
    const __m256i code = _mm256_min_epi32(any, _mm256_set1_epi32((int32_t)f.largest));
    const __m256i sign =
        _mm256_and_si256(_mm256_srai_epi32(_mm256_castps_si256(x), 31), _mm256_set1_epi32((int32_t)f.sign));
    return _mm256_or_si256(code, sign);
}

/* Nearest integers, ties to even, clamped to -127..127. */
static inline __m256i encode_i8(__m256 x)
{
    const __m256 low = _mm256_max_ps(x, _mm256_set1_ps(-127.0f));
    return _mm256_cvtps_epi32(_mm256_min_ps(low, _mm256_set1_ps(127.0f)));
}

SPECIALIZE __m256i encode_mx(mxa_format format, __m256 x)
{
    return format == MXA_FORMAT_MXINT8 ? encode_i8(_mm256_mul_ps(x, _mm256_set1_ps(64.0f)))
                                       : encode(mxa_element_of(format), x);
}

/* The low bytes of four vectors in order; packing works on halves of vectors, so dwords are put right. */
static inline __m256i low_bytes(const __m256i v[4])
{
    const __m256i byte = _mm256_set1_epi32(0xFF);
    const __m256i a = _mm256_packus_epi32(_mm256_and_si256(v[0], byte), _mm256_and_si256(v[1], byte));
    const __m256i b = _mm256_packus_epi32(_mm256_and_si256(v[2], byte), _mm256_and_si256(v[3], byte));
    return _mm256_permutevar8x32_epi32(_mm256_packus_epi16(a, b), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

/* 32 codes, one a byte, or two with the even one in the low four bits. */
SPECIALIZE void store_codes(bool nibbles, __m256i codes, uint8_t *out)
{
    if (!nibbles) {
        _mm256_storeu_si256((void *)out, codes);
        return;
    }
    const __m256i pairs = _mm256_maddubs_epi16(codes, _mm256_set1_epi16(0x1001)); /* low + 16 high */
    const __m256i bytes = _mm256_permute4x64_epi64(_mm256_packus_epi16(pairs, pairs), 0x08);
    _mm_storeu_si128((void *)out, _mm256_castsi256_si128(bytes));
}

static inline uint32_t largest_u31(__m256i v)
{
    const __m128i four = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    const __m128i two = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4E));
    return (uint32_t)_mm_cvtsi128_si32(_mm_max_epi32(two, _mm_shuffle_epi32(two, 0xB1)));
}

/* One whole block at level NONE. */
SPECIALIZE bool mx_block(mxa_format format, uint32_t threshold, const float *x, uint8_t *codes,
                         uint8_t *scale)
{
    const bool nibbles = format == MXA_FORMAT_MXFP4;
    __m256 v[4];
    __m256i amax = _mm256_setzero_si256(), c[4];
    for (int i = 0; i < 4; i++) {
        v[i] = _mm256_loadu_ps(x + i * MXA_AVX2_LANES);
        amax = _mm256_max_epi32(amax, magnitude(v[i]));
    }
    const uint32_t amax_bits = largest_u31(amax);
    if (amax_bits >= MXA_F32_INF) {
        store_codes(nibbles, _mm256_setzero_si256(), codes);
        *scale = MXA_E8M0_NAN;
        return true;
    }
    *scale = mxa_mx_scale(mxa_element_of(format), threshold, amax_bits);
    const __m256 inverse = _mm256_set1_ps(mxa_pow2(127 - *scale));
    for (int i = 0; i < 4; i++)
        c[i] = encode_mx(format, _mm256_mul_ps(v[i], inverse));
    store_codes(nibbles, low_bytes(c), codes);
    return false;
}

/* A short last block is filled with zeros, which change neither scale nor codes of the others. */
SPECIALIZE int64_t mx_row(mxa_format format, mxa_rule rule, const float *x, int64_t cols, uint8_t *codes,
                          uint8_t *scales)
{
    const uint32_t threshold = mxa_mx_threshold(mxa_element_of(format), rule);
    const int64_t block_bytes = format == MXA_FORMAT_MXFP4 ? MXA_MX_BLOCK / 2 : MXA_MX_BLOCK;
    const int64_t whole = cols / MXA_MX_BLOCK;
    int64_t n_bad = 0;
    for (int64_t i = 0; i < whole; i++)
        n_bad += mx_block(format, threshold, x + i * MXA_MX_BLOCK, codes + i * block_bytes, scales + i);
    if (cols % MXA_MX_BLOCK) {
        float filled[MXA_MX_BLOCK] = { 0 };
        memcpy(filled, x + whole * MXA_MX_BLOCK, (size_t)(cols % MXA_MX_BLOCK) * sizeof *x);
        n_bad += mx_block(format, threshold, filled, codes + whole * block_bytes, scales + whole);
    }
    return n_bad;
}

int64_t mxa_quantize_mx_avx2(const mxa_code_spec *spec, const float *x, int64_t cols, float g, uint8_t *codes,
                             uint8_t *scales)
{
    const mxa_rule rule = spec->rule;
    if (g != 1.0f) /* rare: a second level on an MX format */
        return mxa_quantize_portable(spec, x, cols, g, codes, scales);
    switch (spec->info->format) {
    case MXA_FORMAT_MXFP8_E4M3: return mx_row(MXA_FORMAT_MXFP8_E4M3, rule, x, cols, codes, scales);
    case MXA_FORMAT_MXFP8_E5M2: return mx_row(MXA_FORMAT_MXFP8_E5M2, rule, x, cols, codes, scales);
    case MXA_FORMAT_MXINT8: return mx_row(MXA_FORMAT_MXINT8, rule, x, cols, codes, scales);
    default: return mx_row(MXA_FORMAT_MXFP4, rule, x, cols, codes, scales);
    }
}

/* 32 elements; NaN and Inf get the NaN code. Returns how many those are. */
SPECIALIZE int element_block(mxa_format format, const float *x, __m256 g, uint8_t *codes)
{
    const int nan = format == MXA_FORMAT_FP8 ? MXA_FP8_NAN : MXA_INT8_NAN;
    __m256i c[4];
    int n_bad = 0;
    for (int i = 0; i < 4; i++) {
        const __m256 v = _mm256_loadu_ps(x + i * MXA_AVX2_LANES), t = _mm256_div_ps(v, g);
        const __m256i bad = _mm256_cmpgt_epi32(magnitude(v), _mm256_set1_epi32((int32_t)MXA_F32_INF - 1));
        const __m256i code = format == MXA_FORMAT_FP8 ? encode(mxa_element_e4m3(), t) : encode_i8(t);
        c[i] = _mm256_blendv_epi8(code, _mm256_set1_epi32(nan), bad);
        n_bad += __builtin_popcount((unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(bad)));
    }
    _mm256_storeu_si256((void *)codes, low_bytes(c));
    return n_bad;
}

SPECIALIZE int64_t element_row(mxa_format format, const float *x, int64_t cols, float g, uint8_t *codes)
{
    enum { BLOCK = 4 * MXA_AVX2_LANES };
    const __m256 factor = _mm256_set1_ps(g);
    const int64_t whole = cols & -(int64_t)BLOCK;
    int64_t n_bad = 0;
    for (int64_t i = 0; i < whole; i += BLOCK)
        n_bad += element_block(format, x + i, factor, codes + i);
    if (whole < cols) {
        float filled[BLOCK] = { 0 };
        uint8_t block[BLOCK];
        memcpy(filled, x + whole, (size_t)(cols - whole) * sizeof *x);
        n_bad += element_block(format, filled, factor, block);
        memcpy(codes + whole, block, (size_t)(cols - whole));
    }
    return n_bad;
}

int64_t mxa_quantize_element_avx2(const mxa_code_spec *spec, const float *x, int64_t cols, float g,
                                  uint8_t *codes, uint8_t *scales)
{
    (void)scales;
    return spec->info->format == MXA_FORMAT_FP8 ? element_row(MXA_FORMAT_FP8, x, cols, g, codes)
                                                : element_row(MXA_FORMAT_INT8, x, cols, g, codes);
}

/* As mxa_bf16_from_f32: what would round beyond the largest number is the largest; NaN is 0x7FC0. */
static inline __m128i to_bf16(__m256 x)
{
    const __m256i bits = _mm256_castps_si256(x), mag = magnitude(x);
    const __m256i inf = _mm256_set1_epi32((int32_t)MXA_F32_INF), largest = _mm256_set1_epi32(0x7F7F7FFF);
    const __m256i capped = _mm256_min_epi32(mag, largest);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(capped, 16), _mm256_set1_epi32(1));
    const __m256i half = _mm256_add_epi32(_mm256_set1_epi32(0x7FFF), odd);
    const __m256i finite = _mm256_srli_epi32(_mm256_add_epi32(capped, half), 16);
    const __m256i is_inf = _mm256_cmpeq_epi32(mag, inf), is_nan = _mm256_cmpgt_epi32(mag, inf);
    const __m256i number = _mm256_blendv_epi8(finite, _mm256_set1_epi32(0x7F80), is_inf);
    const __m256i sign = _mm256_andnot_si256(is_nan, _mm256_slli_epi32(_mm256_srli_epi32(bits, 31), 15));
    const __m256i half_bits =
        _mm256_or_si256(sign, _mm256_blendv_epi8(number, _mm256_set1_epi32(0x7FC0), is_nan));
    const __m256i packed = _mm256_packus_epi32(half_bits, half_bits);
    return _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
}

/* As mxa_f16_from_f32; NaN is 0x7E00. */
static inline __m128i to_f16(__m256 x)
{
    const __m256i mag = magnitude(x), inf = _mm256_set1_epi32((int32_t)MXA_F32_INF);
    const __m256i is_finite = _mm256_cmpgt_epi32(inf, mag), is_nan = _mm256_cmpgt_epi32(mag, inf);
    const __m256 largest = _mm256_set1_ps(65504.0f), lowest = _mm256_set1_ps(-65504.0f);
    const __m256 capped = _mm256_min_ps(_mm256_max_ps(x, lowest), largest);
    const __m256 number = _mm256_blendv_ps(x, capped, _mm256_castsi256_ps(is_finite));
    const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32((int32_t)MXA_F32_NAN));
    return _mm256_cvtps_ph(_mm256_blendv_ps(number, nan, _mm256_castsi256_ps(is_nan)),
                           _MM_FROUND_TO_NEAREST_INT);
}

SPECIALIZE void half_row(bool bf16, const float *x, int64_t cols, uint8_t *codes)
{
    enum { BYTES = sizeof(uint16_t) };
    const int64_t whole = cols & -(int64_t)MXA_AVX2_LANES;
    for (int64_t i = 0; i < whole; i += MXA_AVX2_LANES) {
        const __m256 v = _mm256_loadu_ps(x + i);
        _mm_storeu_si128((void *)(codes + i * BYTES), bf16 ? to_bf16(v) : to_f16(v));
    }
    if (whole < cols) {
        float filled[MXA_AVX2_LANES] = { 0 };
        uint8_t halves[MXA_AVX2_LANES * BYTES];
        memcpy(filled, x + whole, (size_t)(cols - whole) * sizeof *x);
        const __m256 v = _mm256_loadu_ps(filled);
        _mm_storeu_si128((void *)halves, bf16 ? to_bf16(v) : to_f16(v));
        memcpy(codes + whole * BYTES, halves, (size_t)(cols - whole) * BYTES);
    }
}

int64_t mxa_quantize_half_avx2(const mxa_code_spec *spec, const float *x, int64_t cols, float g,
                               uint8_t *codes, uint8_t *scales)
{
    (void)g;
    (void)scales;
    if (spec->info->format == MXA_FORMAT_BF16)
        half_row(true, x, cols, codes);
    else
        half_row(false, x, cols, codes);
    return 0;
}

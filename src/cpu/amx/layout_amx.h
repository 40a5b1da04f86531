/* SPDX-License-Identifier: Apache-2.0 */
/* Rows as bf16, and columns as tiles want them. */
#ifndef MXA_CPU_AMX_LAYOUT_AMX_H
#define MXA_CPU_AMX_LAYOUT_AMX_H

#include "core/bits.h"
#include "cpu/amx/tiles_amx.h"
#include "cpu/avx512/vector_avx512.h"
#include "format/mx.h"

enum { MXA_AMX_WORDS = 2 * MXA_AVX512_LANES }; /* 16-bit words of a vector */

/* Words 16 n to 16 n + 3 of four rows that are four apart: one in each quarter of the vector. */
static inline __m512i mxa_amx_quarters(const uint8_t *x, int64_t stride)
{
    __m512i v = _mm512_castsi128_si512(_mm_loadu_si128((const void *)x));
    v = _mm512_inserti32x4(v, _mm_loadu_si128((const void *)(x + 4 * stride)), 1);
    v = _mm512_inserti32x4(v, _mm_loadu_si128((const void *)(x + 8 * stride)), 2);
    return _mm512_inserti32x4(v, _mm_loadu_si128((const void *)(x + 12 * stride)), 3);
}

/* A tile of columns from 16 rows of 64 bytes: words of 4 bytes, transposed. */
static inline void mxa_amx_transpose(const uint8_t *rows, int64_t stride, uint8_t *tile)
{
    enum { QUARTER = MXA_AMX_ROW_BYTES / 4 };
    for (int n = 0; n < 4; n++) {
        const uint8_t *const from = rows + n * QUARTER;
        const __m512i a = mxa_amx_quarters(from, stride), b = mxa_amx_quarters(from + stride, stride);
        const __m512i c = mxa_amx_quarters(from + 2 * stride, stride);
        const __m512i d = mxa_amx_quarters(from + 3 * stride, stride);
        const __m512i ab = _mm512_unpacklo_epi32(a, b), cd = _mm512_unpacklo_epi32(c, d);
        const __m512i ab2 = _mm512_unpackhi_epi32(a, b), cd2 = _mm512_unpackhi_epi32(c, d);
        uint8_t *const to = tile + n * 4 * MXA_AMX_ROW_BYTES;
        _mm512_storeu_si512(to, _mm512_unpacklo_epi64(ab, cd));
        _mm512_storeu_si512(to + MXA_AMX_ROW_BYTES, _mm512_unpackhi_epi64(ab, cd));
        _mm512_storeu_si512(to + 2 * MXA_AMX_ROW_BYTES, _mm512_unpacklo_epi64(ab2, cd2));
        _mm512_storeu_si512(to + 3 * MXA_AMX_ROW_BYTES, _mm512_unpackhi_epi64(ab2, cd2));
    }
}

/* Words of two rows side by side, 32 columns: the pairs of columns 0 to 15, and of 16 to 31. */
static inline void mxa_amx_interleave(const uint16_t *a, const uint16_t *b, void *low, void *high)
{
    const __m512i order = _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0);
    const __m512i x = _mm512_permutexvar_epi64(order, _mm512_loadu_si512(a));
    const __m512i y = _mm512_permutexvar_epi64(order, _mm512_loadu_si512(b));
    _mm512_storeu_si512(low, _mm512_unpacklo_epi16(x, y));
    _mm512_storeu_si512(high, _mm512_unpackhi_epi16(x, y));
}

/* As mxa_bf16_from_f32, of 16 numbers. */
static inline __m256i mxa_amx_bf16_from_f32(__m512 x)
{
    const __m512i bits = _mm512_castps_si512(x), mag = _mm512_and_si512(bits, _mm512_set1_epi32(0x7FFFFFFF));
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(mag, 16), _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(_mm512_add_epi32(mag, _mm512_set1_epi32(0x7FFF)), odd);
    const __m512i inf = _mm512_set1_epi32((int)MXA_F32_INF);
    __m512i half = _mm512_min_epu32(_mm512_srli_epi32(up, 16), _mm512_set1_epi32(0x7F7F));
    half = _mm512_mask_mov_epi32(half, _mm512_cmpeq_epi32_mask(mag, inf), _mm512_set1_epi32(0x7F80));
    half = _mm512_mask_mov_epi32(half, _mm512_cmpgt_epi32_mask(mag, inf), _mm512_set1_epi32(0x7FC0));
    const __m512i sign = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(0x8000));
    return _mm512_cvtepi32_epi16(_mm512_or_si512(half, sign));
}

/* A block of E2M1 codes as bf16. What bf16 cannot hold becomes Inf or zero. */
static inline __m512i mxa_amx_mxfp4(const uint8_t *codes, uint8_t scale)
{
    const __m512i table = _mm512_broadcast_i64x4(_mm256_setr_epi16(
        0, 0x3F00, 0x3F80, 0x3FC0, 0x4000, 0x4040, 0x4080, 0x40C0, (short)0x8000, (short)0xBF00,
        (short)0xBF80, (short)0xBFC0, (short)0xC000, (short)0xC040, (short)0xC080, (short)0xC0C0));
    const __mmask32 zeros = 0x01010101;
    const int bias = 127, lowest = 2, highest = 252, exponent_bit = 7;
    const __m512i power = _mm512_set1_epi16((short)((scale - bias) * (1 << exponent_bit)));
    __m512i values = _mm512_mask_add_epi16(table, (__mmask32)~zeros, table, power);
    if (scale < lowest)
        values = _mm512_setzero_si512();
    if (scale > highest)
        values = _mm512_set1_epi16(0x7F80);
    /* Byte n / 2 into word n, then its high half down in odd words; the table repeats after 16. */
    const __m128i pairs = _mm_loadu_si128((const void *)codes);
    const __m256i bytes = _mm256_set_m128i(_mm_unpackhi_epi8(pairs, pairs), _mm_unpacklo_epi8(pairs, pairs));
    const __m512i nibbles = _mm512_srlv_epi16(_mm512_cvtepu8_epi16(bytes), _mm512_set1_epi32(4 << 16));
    return _mm512_permutexvar_epi16(nibbles, values);
}

#endif

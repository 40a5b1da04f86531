/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AVX-512 for machines without it: included before a source, its intrinsics are those of SIMDe, compiled for
 * AVX2. The bf16 instructions are here: SIMDe keeps subnormal numbers, which the hardware takes for zeros.
 */
#ifndef EMULATED_AVX512_H
#define EMULATED_AVX512_H

#include <string.h>

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>
#include <simde/x86/fma.h>

enum { EMULATED_LANES = 16 };

typedef struct emulated_words {
    uint32_t lane[EMULATED_LANES];
} emulated_words;

/* A number that is not below the normal ones, or a zero of its sign. */
static inline uint32_t emulated_flush(uint32_t x)
{
    return x & 0x7F800000u ? x : x & 0x80000000u;
}

static inline float emulated_float(uint32_t x)
{
    float f;
    x = emulated_flush(x);
    memcpy(&f, &x, sizeof f);
    return f;
}

/* The sum keeps one rounding for each product, the odd one's first. */
static inline __m512 emulated_dpbf16_ps(__m512 c, __m512bh a, __m512bh b)
{
    emulated_words sum, x, y;
    memcpy(&sum, &c, sizeof sum);
    memcpy(&x, &a, sizeof x);
    memcpy(&y, &b, sizeof y);
    for (int i = 0; i < EMULATED_LANES; i++)
        for (int shift = 0; shift <= 16; shift += 16) {
            const float product =
                __builtin_fmaf(emulated_float(x.lane[i] << shift & 0xFFFF0000u),
                               emulated_float(y.lane[i] << shift & 0xFFFF0000u), emulated_float(sum.lane[i]));
            memcpy(&sum.lane[i], &product, sizeof product);
            sum.lane[i] = emulated_flush(sum.lane[i]);
        }
    memcpy(&c, &sum, sizeof sum);
    return c;
}

/* To nearest even; NaN is quiet. */
static inline uint16_t emulated_bf16(uint32_t x)
{
    x = emulated_flush(x);
    if ((x & 0x7FFFFFFFu) > 0x7F800000u)
        return (uint16_t)(x >> 16 | 0x40u);
    return (uint16_t)((x + 0x7FFFu + (x >> 16 & 1u)) >> 16);
}

static inline __m512bh emulated_cvtne2ps_pbh(__m512 high, __m512 low)
{
    emulated_words words[2];
    uint16_t halves[2 * EMULATED_LANES];
    __m512bh packed;
    memcpy(&words[0], &low, sizeof low);
    memcpy(&words[1], &high, sizeof high);
    for (int i = 0; i < 2 * EMULATED_LANES; i++)
        halves[i] = emulated_bf16(words[i / EMULATED_LANES].lane[i % EMULATED_LANES]);
    memcpy(&packed, halves, sizeof packed);
    return packed;
}

/* What SIMDe lacks. Masked loads read no byte that the mask leaves out. */

static inline __m512i emulated_maskz_loadu_epi8(uint64_t mask, const void *from)
{
    uint8_t bytes[64] = { 0 };
    __m512i v;
    for (int i = 0; i < 64; i++)
        if (mask >> i & 1)
            bytes[i] = ((const uint8_t *)from)[i];
    memcpy(&v, bytes, sizeof v);
    return v;
}

/* One bit of the mask for n bytes. */
static inline __m512i emulated_maskz_loadu(uint32_t mask, int n, const void *from)
{
    uint64_t bytes = 0;
    for (int i = 0; i < 64; i++)
        bytes |= (uint64_t)(mask >> i / n & 1) << i;
    return emulated_maskz_loadu_epi8(bytes, from);
}

static inline __m256i emulated_maskz_loadu_epi8_256(uint32_t mask, const void *from)
{
    return simde_mm512_castsi512_si256(emulated_maskz_loadu_epi8(mask, from));
}

static inline __m512 emulated_cvtepi32_ps(__m512i x)
{
    int32_t from[EMULATED_LANES];
    float to[EMULATED_LANES];
    __m512 v;
    memcpy(from, &x, sizeof x);
    for (int i = 0; i < EMULATED_LANES; i++)
        to[i] = (float)from[i];
    memcpy(&v, to, sizeof v);
    return v;
}

/* Integers without sign of from_bytes each, twice as wide. */
static inline __m512i emulated_widen(__m256i x, int from_bytes)
{
    uint8_t from[32], to[64] = { 0 };
    __m512i v;
    memcpy(from, &x, sizeof x);
    for (int i = 0; i < 32; i++)
        to[i / from_bytes * 2 * from_bytes + i % from_bytes] = from[i];
    memcpy(&v, to, sizeof v);
    return v;
}

static inline __m512i emulated_cvtps_epi32(__m512 x)
{
    __m256 halves[2];
    memcpy(halves, &x, sizeof x);
    const __m256i n[2] = { _mm256_cvtps_epi32(halves[0]), _mm256_cvtps_epi32(halves[1]) };
    __m512i v;
    memcpy(&v, n, sizeof v);
    return v;
}

static inline __m256i emulated_cvtepi32_epi16(__m512i x)
{
    uint16_t from[2 * EMULATED_LANES], to[EMULATED_LANES];
    __m256i v;
    memcpy(from, &x, sizeof x);
    for (int i = 0; i < EMULATED_LANES; i++)
        to[i] = from[2 * i];
    memcpy(&v, to, sizeof v);
    return v;
}

/* Two bits of pick for each lane of a quarter, and below for each quarter of the vector. */
static inline __m512 emulated_permute_ps(__m512 x, int pick)
{
    float from[EMULATED_LANES], to[EMULATED_LANES];
    memcpy(from, &x, sizeof x);
    for (int i = 0; i < EMULATED_LANES; i++)
        to[i] = from[i / 4 * 4 + (pick >> 2 * (i % 4) & 3)];
    memcpy(&x, to, sizeof x);
    return x;
}

static inline __m512 emulated_shuffle_f32x4(__m512 low, __m512 high, int pick)
{
    float from[2][EMULATED_LANES], to[EMULATED_LANES];
    memcpy(from[0], &low, sizeof low);
    memcpy(from[1], &high, sizeof high);
    for (int i = 0; i < EMULATED_LANES; i++)
        to[i] = from[i / 8][(pick >> 2 * (i / 4) & 3) * 4 + i % 4];
    memcpy(&low, to, sizeof low);
    return low;
}

static inline void emulated_mask_storeu(void *to, uint64_t mask, int n, const void *from)
{
    for (int i = 0; i < 64; i++)
        if (mask >> i & 1)
            memcpy((char *)to + i * n, (const char *)from + i * n, (size_t)n);
}

static inline void emulated_mask_storeu_256(void *to, uint32_t mask, int n, __m256i x)
{
    emulated_mask_storeu(to, mask, n, &x);
}

static inline void emulated_mask_storeu_512(void *to, uint64_t mask, int n, __m512i x)
{
    emulated_mask_storeu(to, mask, n, &x);
}

static inline __m512i emulated_cvtepi8_epi32(__m128i x)
{
    const __m256i halves[2] = { _mm256_cvtepi8_epi32(x), _mm256_cvtepi8_epi32(_mm_srli_si128(x, 8)) };
    __m512i v;
    memcpy(&v, halves, sizeof v);
    return v;
}

static inline __m512 emulated_cvtph_ps(__m256i x)
{
    const __m256 halves[2] = { _mm256_cvtph_ps(_mm256_castsi256_si128(x)),
                               _mm256_cvtph_ps(_mm256_extracti128_si256(x, 1)) };
    __m512 v;
    memcpy(&v, halves, sizeof v);
    return v;
}

static inline __m256i emulated_cvtps_ph(__m512 x)
{
    __m256 halves[2];
    memcpy(halves, &x, sizeof x);
    return _mm256_set_m128i(_mm256_cvtps_ph(halves[1], _MM_FROUND_TO_NEAREST_INT),
                            _mm256_cvtps_ph(halves[0], _MM_FROUND_TO_NEAREST_INT));
}

static inline float emulated_reduce_add_ps(__m512 x)
{
    float lane[EMULATED_LANES];
    memcpy(lane, &x, sizeof x);
    for (int n = EMULATED_LANES / 2; n > 0; n /= 2)
        for (int i = 0; i < n; i++)
            lane[i] += lane[i + n];
    return lane[0];
}

static inline float emulated_reduce_max_ps(__m512 x)
{
    float lane[EMULATED_LANES];
    memcpy(lane, &x, sizeof x);
    for (int n = EMULATED_LANES / 2; n > 0; n /= 2)
        for (int i = 0; i < n; i++)
            lane[i] = lane[i] > lane[i + n] ? lane[i] : lane[i + n];
    return lane[0];
}

#undef _mm512_cvtps_ph
#undef _mm512_dpbf16_ps
#undef _mm512_madd_epi16 /* of four arguments in SIMDe 0.7.4 */
#define _mm256_maskz_loadu_epi8(m, p)     emulated_maskz_loadu_epi8_256(m, p)
#define _mm256_mask_storeu_epi16(p, m, x) emulated_mask_storeu_256(p, m, 2, x)
#define _mm256_mask_storeu_epi8(p, m, x)  emulated_mask_storeu_256(p, m, 1, x)
#define _mm512_cvtepi32_epi16(x)          emulated_cvtepi32_epi16(x)
#define _mm512_cvtps_epi32(x)             emulated_cvtps_epi32(x)
#define _mm512_mask_storeu_epi8(p, m, x)  emulated_mask_storeu_512(p, m, 1, x)
#define _mm512_permute_ps(x, pick)        emulated_permute_ps(x, pick)
#define _mm512_shuffle_f32x4(a, b, pick)  emulated_shuffle_f32x4(a, b, pick)
#define _mm512_cvtepi8_epi32(x)           emulated_cvtepi8_epi32(x)
#define _mm512_cvtepi32_ps(x)             emulated_cvtepi32_ps(x)
#define _mm512_cvtne2ps_pbh(b, a)         emulated_cvtne2ps_pbh(b, a)
#define _mm512_cvtph_ps(x)                emulated_cvtph_ps(x)
#define _mm512_cvtps_ph(x, rounding)      emulated_cvtps_ph(x)
#define _mm512_cvtepu16_epi32(x)          emulated_widen(x, 2)
#define _mm512_cvtepu8_epi16(x)           emulated_widen(x, 1)
#define _mm512_cvtss_f32(x)               simde_mm_cvtss_f32(simde_mm512_castps512_ps128(x))
#define _mm512_dpbf16_ps(c, a, b)         emulated_dpbf16_ps(c, a, b)
#define _mm512_madd_epi16(a, b)           simde_mm512_madd_epi16(a, b)
#define _mm512_maskz_loadu_epi16(m, p)    emulated_maskz_loadu(m, 2, p)
#define _mm512_maskz_loadu_epi8(m, p)     emulated_maskz_loadu_epi8(m, p)
#define _mm512_maskz_loadu_ps(m, p)       ((__m512)emulated_maskz_loadu(m, 4, p))
#define _mm512_reduce_add_ps(x)           emulated_reduce_add_ps(x)
#define _mm512_reduce_max_ps(x)           emulated_reduce_max_ps(x)

#endif

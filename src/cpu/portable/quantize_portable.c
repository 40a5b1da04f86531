/* SPDX-License-Identifier: Apache-2.0 */
#include "cpu/portable/codes_portable.h"
#include "cpu/ref/codes_ref.h"
#include "format/format.h"
#include "format/nvfp4.h"

/*
 * Functions that take an element description are compiled once for each, so that its numbers are constants.
 */
#define SPECIALIZE static inline __attribute__((always_inline))

/*
 * mxa_element_encode without branches: above the smallest normal number the fp32 mantissa is rounded by an
 * integer addition; below it, adding a power of two rounds to the code's unit and leaves the code in the low
 * bits.
 */
SPECIALIZE int32_t encode(mxa_element f, float x)
{
    const uint32_t b = mxa_f32_bits(x), mag = b & 0x7FFFFFFFu;
    const int cut = 23 - f.man_bits, lowest = 1 - f.bias;
    const uint32_t rounded = (mag + (1u << (cut - 1)) - 1 + (mag >> cut & 1u)) >> cut;
    const int32_t normal = (int32_t)(rounded - ((uint32_t)(127 - f.bias) << f.man_bits));

    const float unit = mxa_pow2(lowest - f.man_bits + 23);
    const int32_t subnormal = (int32_t)(mxa_f32_bits(mxa_f32_from_bits(mag) + unit) - mxa_f32_bits(unit));

    const int32_t any = mag < mxa_f32_bits(mxa_pow2(lowest)) ? subnormal : normal;
    const int32_t code = any < (int32_t)f.largest ? any : (int32_t)f.largest;
    return code | (int32_t)(b >> 31 ? f.sign : 0);
}

/* The low byte holds the integer: see mxa_round_i8. */
SPECIALIZE int32_t encode_i8(float x)
{
    const float clamped = x > 127.0f ? 127.0f : x < -127.0f ? -127.0f : x;
    return (int32_t)(mxa_f32_bits(clamped + 0x1.8p23f) & 0xFFu);
}

SPECIALIZE int32_t encode_mx(mxa_format format, float x)
{
    return format == MXA_FORMAT_MXINT8 ? encode_i8(x * 64.0f) : encode(mxa_element_of(format), x);
}

/* Two nibbles of a 16-bit word become one byte. */
SPECIALIZE void pack_nibbles(const uint8_t *restrict codes, int n, uint8_t *restrict packed)
{
    for (int j = 0; j < n / 2; j++) {
        uint16_t pair;
        memcpy(&pair, codes + 2 * j, sizeof pair);
        packed[j] = (uint8_t)(pair | pair >> 4);
    }
}

SPECIALIZE void store_block(int bits, const uint8_t *codes, int n, uint8_t *packed)
{
    if (bits == 4)
        pack_nibbles(codes, n, packed);
    else
        mxa_pack(bits, codes, n, packed);
}

/* One whole block; a short one is filled with zeros, which change neither scale nor codes of the others. */
SPECIALIZE bool mx_block(mxa_format format, uint32_t threshold, const float *restrict x, float g,
                         uint8_t *restrict codes, uint8_t *scale)
{
    float t[MXA_MX_BLOCK];
    uint32_t amax = mxa_amax_bits(x, MXA_MX_BLOCK);
    if (amax >= MXA_F32_INF) {
        memset(codes, 0, MXA_MX_BLOCK);
        *scale = MXA_E8M0_NAN;
        return true;
    }
    if (g != 1.0f) {
        for (int i = 0; i < MXA_MX_BLOCK; i++)
            t[i] = mxa_saturate(x[i] / g);
        amax = mxa_amax_bits(t, MXA_MX_BLOCK);
        x = t;
    }
    *scale = mxa_mx_scale(mxa_element_of(format), threshold, amax);
    const float inverse = mxa_pow2(127 - *scale);
    for (int i = 0; i < MXA_MX_BLOCK; i++)
        codes[i] = (uint8_t)encode_mx(format, x[i] * inverse);
    return false;
}

SPECIALIZE int64_t mx_row(mxa_format format, int bits, mxa_rule rule, const float *x, int64_t cols, float g,
                          uint8_t *codes, uint8_t *scales)
{
    const uint32_t threshold = mxa_mx_threshold(mxa_element_of(format), rule);
    const int64_t whole = cols / MXA_MX_BLOCK;
    uint8_t block[MXA_MX_BLOCK];
    int64_t n_bad = 0;
    for (int64_t i = 0; i < whole; i++) {
        n_bad += mx_block(format, threshold, x + i * MXA_MX_BLOCK, g, block, scales + i);
        store_block(bits, block, MXA_MX_BLOCK, codes + i * MXA_MX_BLOCK / 8 * bits);
    }
    if (cols % MXA_MX_BLOCK) {
        float filled[MXA_MX_BLOCK] = { 0 };
        memcpy(filled, x + whole * MXA_MX_BLOCK, (size_t)(cols % MXA_MX_BLOCK) * sizeof *x);
        n_bad += mx_block(format, threshold, filled, g, block, scales + whole);
        store_block(bits, block, MXA_MX_BLOCK, codes + whole * MXA_MX_BLOCK / 8 * bits);
    }
    return n_bad;
}

/* Not inlined: clang 14 would unroll the loop for a known n and then find no vectors. */
__attribute__((noinline)) static void encode_quotients(const float *restrict x, int n, float d,
                                                       uint8_t *restrict codes)
{
    for (int i = 0; i < n; i++)
        codes[i] = (uint8_t)encode(mxa_element_e2m1(), x[i] / d);
}

static bool nvfp4_block(unsigned options, const float *x, float g, uint8_t *codes, uint8_t *scale)
{
    const uint32_t amax = mxa_amax_bits(x, MXA_NVFP4_BLOCK);
    const bool is_finite = amax < MXA_F32_INF;
    *scale = !is_finite  ? MXA_UE4M3_NAN
             : amax == 0 ? 0
                         : mxa_nvfp4_scale(mxa_f32_from_bits(amax) / (6.0f * g), options);
    /* Where the scale is 0 or NaN, dividing by Inf leaves zeros with their signs; NaN blocks have none. */
    const float d = *scale == 0 ? mxa_f32_from_bits(MXA_F32_INF) : mxa_ue4m3_decode(*scale) * g;
    encode_quotients(x, MXA_NVFP4_BLOCK, d, codes);
    if (!is_finite)
        memset(codes, 0, MXA_NVFP4_BLOCK);
    else if (options & MXA_NVFP4_FOUR_OVER_SIX && amax != 0)
        mxa_nvfp4_try_four(options, x, MXA_NVFP4_BLOCK, mxa_f32_from_bits(amax), g, codes, scale);
    return !is_finite;
}

static int64_t nvfp4_row(unsigned options, const float *x, int64_t cols, float g, uint8_t *codes,
                         uint8_t *scales)
{
    uint8_t block[MXA_NVFP4_BLOCK];
    int64_t n_bad = 0;
    for (int64_t first = 0; first < cols; first += MXA_NVFP4_BLOCK) {
        float filled[MXA_NVFP4_BLOCK] = { 0 };
        const int64_t n = cols - first < MXA_NVFP4_BLOCK ? cols - first : MXA_NVFP4_BLOCK;
        if (n < MXA_NVFP4_BLOCK)
            memcpy(filled, x + first, (size_t)n * sizeof *x);
        n_bad += nvfp4_block(options, n < MXA_NVFP4_BLOCK ? filled : x + first, g, block,
                             scales + first / MXA_NVFP4_BLOCK);
        pack_nibbles(block, MXA_NVFP4_BLOCK, codes + first / 2);
    }
    return n_bad;
}

/* n <= ELEMENTS, so that the count fits a vector's lanes. */
enum { ELEMENTS = 4096 };

SPECIALIZE int32_t element_piece(mxa_format format, const float *restrict x, int32_t n, float g,
                                 uint8_t *restrict codes)
{
    int32_t n_bad = 0;
    for (int32_t i = 0; i < n; i++) {
        const int32_t mag = (int32_t)(mxa_f32_bits(x[i]) & 0x7FFFFFFFu);
        const float t = x[i] / g;
        const int32_t code = format == MXA_FORMAT_FP8 ? encode(mxa_element_e4m3(), t) : encode_i8(t);
        const int32_t nan = format == MXA_FORMAT_FP8 ? MXA_FP8_NAN : MXA_INT8_NAN;
        codes[i] = (uint8_t)(mag < (int32_t)MXA_F32_INF ? code : nan);
        n_bad += mag >= (int32_t)MXA_F32_INF;
    }
    return n_bad;
}

SPECIALIZE int64_t element_row(mxa_format format, const float *x, int64_t cols, float g, uint8_t *codes)
{
    int64_t n_bad = 0;
    for (int64_t i = 0; i < cols; i += ELEMENTS) {
        const int32_t n = cols - i < ELEMENTS ? (int32_t)(cols - i) : ELEMENTS;
        n_bad += element_piece(format, x + i, n, g, codes + i);
    }
    return n_bad;
}

static void bf16_row(const float *restrict x, int64_t cols, uint8_t *restrict codes)
{
    for (int64_t i = 0; i < cols; i++) {
        const uint16_t half = mxa_bf16_from_f32(x[i]);
        memcpy(codes + i * (int64_t)sizeof half, &half, sizeof half);
    }
}

static void f16_row(const float *restrict x, int64_t cols, uint8_t *restrict codes)
{
    for (int64_t i = 0; i < cols; i++) {
        const uint16_t half = mxa_f16_from_f32(x[i]);
        memcpy(codes + i * (int64_t)sizeof half, &half, sizeof half);
    }
}

static int64_t quantize_row(const mxa_code_spec *spec, const float *x, int64_t cols, float g, uint8_t *codes,
                            uint8_t *scales)
{
    const mxa_rule rule = spec->rule;
    switch (spec->info->format) {
    case MXA_FORMAT_MXFP8_E4M3: return mx_row(MXA_FORMAT_MXFP8_E4M3, 8, rule, x, cols, g, codes, scales);
    case MXA_FORMAT_MXFP8_E5M2: return mx_row(MXA_FORMAT_MXFP8_E5M2, 8, rule, x, cols, g, codes, scales);
    case MXA_FORMAT_MXFP6_E3M2: return mx_row(MXA_FORMAT_MXFP6_E3M2, 6, rule, x, cols, g, codes, scales);
    case MXA_FORMAT_MXFP6_E2M3: return mx_row(MXA_FORMAT_MXFP6_E2M3, 6, rule, x, cols, g, codes, scales);
    case MXA_FORMAT_MXFP4: return mx_row(MXA_FORMAT_MXFP4, 4, rule, x, cols, g, codes, scales);
    case MXA_FORMAT_MXINT8: return mx_row(MXA_FORMAT_MXINT8, 8, rule, x, cols, g, codes, scales);
    case MXA_FORMAT_NVFP4: return nvfp4_row(spec->nvfp4, x, cols, g, codes, scales);
    case MXA_FORMAT_FP8: return element_row(MXA_FORMAT_FP8, x, cols, g, codes);
    case MXA_FORMAT_INT8: return element_row(MXA_FORMAT_INT8, x, cols, g, codes);
    case MXA_FORMAT_BF16: bf16_row(x, cols, codes); return 0;
    default: f16_row(x, cols, codes); return 0;
    }
}

int64_t mxa_quantize_portable(const mxa_code_spec *spec, const mxa_prepared *x, const float *g,
                              int64_t g_step, uint8_t *codes, uint8_t *scales)
{
    const mxa_format_info *const info = spec->info;
    if (info->format == MXA_FORMAT_F32)
        return mxa_quantize_ref(spec, x, g, g_step, codes, scales);
    const int64_t row_bytes = mxa_row_bytes(info, x->cols), scale_cols = mxa_scale_cols(info, x->cols);
    int64_t n_bad = 0;
    for (int64_t r = 0; r < x->rows; r++)
        n_bad += quantize_row(spec, x->x + r * x->cols, x->cols, g[r * g_step], codes + r * row_bytes,
                              info->block ? scales + r * scale_cols : NULL);
    return n_bad;
}

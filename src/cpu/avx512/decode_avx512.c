/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Codes to fp32, 32 at a time. What is rare (NaN, scales at the ends of their range, a short last block) goes
 * to the portable code.
 */
#include "cpu/avx2/unpack_avx2.h"
#include "cpu/avx512/codes_avx512.h"
#include "cpu/avx512/vector_avx512.h"
#include "cpu/portable/codes_portable.h"
#include "format/format.h"
#include "format/nvfp4.h"

/* Sixteen codes times a factor that has mxa_avx2_container_scale in it. */
MXA_AVX512_INLINE void decode_sixteen(mxa_element f, __m128i codes, __m512 factor, float *out)
{
    _mm512_storeu_ps(out, _mm512_mul_ps(_mm512_cvtph_ps(mxa_avx2_halves(f, codes)), factor));
}

/* Thirty-two integers times a factor. */
static inline void decode_integers(const uint8_t *codes, __m512 factor, float *out)
{
    for (int i = 0; i < MXA_AVX2_CODES; i += MXA_AVX512_LANES) {
        const __m512i n = _mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)(codes + i)));
        _mm512_storeu_ps(out + i, _mm512_mul_ps(_mm512_cvtepi32_ps(n), factor));
    }
}

/* Whole blocks, or 32 elements of FP8 or INT8; false if they need care. */
MXA_AVX512_INLINE bool decode_block(mxa_format format, int bits, const uint8_t *codes, const uint8_t *scale,
                                    float *out)
{
    if (format == MXA_FORMAT_INT8) {
        const __m256i nan =
            _mm256_cmpeq_epi8(_mm256_loadu_si256((const void *)codes), _mm256_set1_epi8(INT8_MIN));
        if (_mm256_movemask_epi8(nan))
            return false;
        decode_integers(codes, _mm512_set1_ps(1.0f), out);
        return true;
    }
    const mxa_element f = mxa_element_of(format);
    const bool has_scale = format != MXA_FORMAT_FP8;
    if (has_scale && !mxa_avx2_is_ordinary(f, *scale))
        return false;
    const float block = has_scale ? mxa_f32_from_bits((uint32_t)*scale << 23) : 1.0f;
    if (format == MXA_FORMAT_MXINT8) {
        decode_integers(codes, _mm512_set1_ps(0x1p-6f * block), out);
        return true;
    }
    const __m256i c = mxa_avx2_load_codes(bits, codes);
    if (mxa_avx2_has_specials(f, c))
        return false;
    const __m512 factor = _mm512_set1_ps(mxa_avx2_container_scale(f) * block);
    decode_sixteen(f, _mm256_castsi256_si128(c), factor, out);
    decode_sixteen(f, _mm256_extracti128_si256(c, 1), factor, out + MXA_AVX2_CODES / 2);
    return true;
}

/* Two blocks. */
static inline bool decode_nvfp4(const uint8_t *codes, const uint8_t *scales, float *out)
{
    const mxa_element f = mxa_element_e2m1();
    const __m256i c = mxa_avx2_load_nibbles(codes);
    for (int b = 0; b < 2; b++) {
        if ((scales[b] & MXA_UE4M3_NAN) == MXA_UE4M3_NAN)
            return false;
        const float factor = mxa_avx2_ue4m3_value(scales[b]) * mxa_avx2_container_scale(f);
        decode_sixteen(f, b ? _mm256_extracti128_si256(c, 1) : _mm256_castsi256_si128(c),
                       _mm512_set1_ps(factor), out + b * MXA_NVFP4_BLOCK);
    }
    return true;
}

/* Sixteen elements of a plain format. */
MXA_AVX512_INLINE __m512 widen(mxa_format format, const uint8_t *codes, int i)
{
    if (format == MXA_FORMAT_F32)
        return _mm512_loadu_ps((const float *)(const void *)codes + i);
    const __m256i half = _mm256_loadu_si256((const void *)(codes + i * (int)sizeof(uint16_t)));
    return format == MXA_FORMAT_F16 ? _mm512_cvtph_ps(half)
                                    : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

/* 32 elements; false if NaN is among them. */
MXA_AVX512_INLINE bool decode_plain(mxa_format format, const uint8_t *codes, float *out)
{
    const __m512 a = widen(format, codes, 0), b = widen(format, codes, MXA_AVX512_LANES);
    _mm512_storeu_ps(out, a);
    _mm512_storeu_ps(out + MXA_AVX512_LANES, b);
    return _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q) == 0;
}

MXA_AVX512_INLINE bool decode_piece(mxa_format format, int bits, const uint8_t *codes, const uint8_t *scales,
                                    float *out)
{
    switch (format) {
    case MXA_FORMAT_NVFP4: return decode_nvfp4(codes, scales, out);
    case MXA_FORMAT_F32:
    case MXA_FORMAT_F16:
    case MXA_FORMAT_BF16: return decode_plain(format, codes, out);
    default: return decode_block(format, bits, codes, scales, out);
    }
}

/* What mxa_decode_rows_fn is given. */
typedef struct request {
    const mxa_format_info *info;
    const uint8_t *codes, *scales;
    int64_t rows, cols;
    float *out;
    int64_t out_stride;
} request;

MXA_AVX512_INLINE void decode_rows(mxa_format format, int bits, const request *q)
{
    const int64_t row_bytes = mxa_row_bytes(q->info, q->cols), scale_cols = mxa_scale_cols(q->info, q->cols);
    const int64_t bytes = MXA_AVX2_CODES * bits / 8, n_scales = mxa_scale_cols(q->info, MXA_AVX2_CODES);
    for (int64_t r = 0; r < q->rows; r++) {
        const uint8_t *codes = q->codes + r * row_bytes, *scales = q->scales + r * scale_cols;
        float *const out = q->out + r * q->out_stride;
        for (int64_t d = 0; d < q->cols; d += MXA_AVX2_CODES, codes += bytes, scales += n_scales) {
            const int64_t n = q->cols - d < MXA_AVX2_CODES ? q->cols - d : MXA_AVX2_CODES;
            if (n < MXA_AVX2_CODES || !decode_piece(format, bits, codes, scales, out + d))
                mxa_decode_portable(q->info, codes, scales, 1, n, out + d, n);
        }
    }
}

void mxa_decode_avx512(const mxa_format_info *info, const uint8_t *codes, const uint8_t *scales, int64_t rows,
                       int64_t cols, float *out, int64_t out_stride)
{
    const request q = { info, codes, info->block ? scales : codes, rows, cols, out, out_stride };
    switch (info->format) {
    case MXA_FORMAT_MXFP8_E4M3: decode_rows(MXA_FORMAT_MXFP8_E4M3, 8, &q); break;
    case MXA_FORMAT_MXFP8_E5M2: decode_rows(MXA_FORMAT_MXFP8_E5M2, 8, &q); break;
    case MXA_FORMAT_MXFP6_E3M2: decode_rows(MXA_FORMAT_MXFP6_E3M2, 6, &q); break;
    case MXA_FORMAT_MXFP6_E2M3: decode_rows(MXA_FORMAT_MXFP6_E2M3, 6, &q); break;
    case MXA_FORMAT_MXFP4: decode_rows(MXA_FORMAT_MXFP4, 4, &q); break;
    case MXA_FORMAT_MXINT8: decode_rows(MXA_FORMAT_MXINT8, 8, &q); break;
    case MXA_FORMAT_NVFP4: decode_rows(MXA_FORMAT_NVFP4, 4, &q); break;
    case MXA_FORMAT_FP8: decode_rows(MXA_FORMAT_FP8, 8, &q); break;
    case MXA_FORMAT_INT8: decode_rows(MXA_FORMAT_INT8, 8, &q); break;
    case MXA_FORMAT_BF16: decode_rows(MXA_FORMAT_BF16, 16, &q); break;
    case MXA_FORMAT_F16: decode_rows(MXA_FORMAT_F16, 16, &q); break;
    default: decode_rows(MXA_FORMAT_F32, 32, &q); break;
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A segment of a KV cache with AVX-512 and VNNI: the dot products of INT8 queries with MXFP4 keys, and P V.
 * The rest is that of the AVX2 level.
 */
#include "cpu/avx512/kv_attend_avx512.h"

#include "cpu/avx2/kv_tile_avx2.h"
#include "cpu/avx512/products_avx512.h"
#include "format/mx.h"

/* Query rows whose sums stay in registers; bytes of a word; words of a block of codes, two chunks each. */
enum { ROWS = 8, WORD = 4, WORDS = MXA_MX_BLOCK / 2 / WORD };

/*
 * [dim / 4][16][4] unsigned bytes 2 k + 12, as turn_e2m1 of kv_keys_avx2.c: a register has keys 0, 4, 8, 12
 * of each row of four in its parts of 16 bytes, and keys in order once their words are turned.
 */
static void turn_e2m1(const mxa_kv_rows *rows, int64_t blocks, uint8_t *out)
{
    const __m512i nibble = _mm512_set1_epi8(0x0F);
    const __m512i table =
        _mm512_broadcast_i32x4(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    const int64_t stride = rows->part->row_bytes;
    for (int64_t b = 0; b < blocks; b++) {
        const uint8_t *const at = rows->codes + b * WORDS * WORD;
        __m512i r[4], pairs[4], words[4];
        for (int i = 0; i < 4; i++) { /* rows i, i + 4, i + 8, i + 12 */
            const __m128i first = _mm_loadu_si128((const void *)(at + i * stride));
            r[i] = _mm512_castsi128_si512(first);
            r[i] = _mm512_inserti32x4(r[i], _mm_loadu_si128((const void *)(at + (i + 4) * stride)), 1);
            r[i] = _mm512_inserti32x4(r[i], _mm_loadu_si128((const void *)(at + (i + 8) * stride)), 2);
            r[i] = _mm512_inserti32x4(r[i], _mm_loadu_si128((const void *)(at + (i + 12) * stride)), 3);
        }
        for (int i = 0; i < 2; i++) {
            pairs[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
            pairs[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
        }
        for (int i = 0; i < 2; i++) {
            words[2 * i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
            words[2 * i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
        }
        for (int j = 0; j < WORDS; j++, out += 2 * MXA_AVX2_COLS * WORD) {
            const __m512i low = _mm512_and_si512(words[j], nibble);
            const __m512i high = _mm512_and_si512(_mm512_srli_epi16(words[j], 4), nibble);
            _mm512_store_si512(out, _mm512_shuffle_epi8(table, low));
            _mm512_store_si512(out + MXA_AVX2_COLS * WORD, _mm512_shuffle_epi8(table, high));
        }
    }
}

/* The start of a block's 32-bit sums: both halves of those of 16 bits. */
static inline __m512i start_of(int32_t halves)
{
    return _mm512_set1_epi32((int16_t)halves + (halves >> 16));
}

/* Rows [row, row + rows) and 16 keys. */
MXA_AVX512_INLINE void multiply_e2m1(int rows, const mxa_kv_work_avx2 *w, const mxa_kv_queries_avx2 *q,
                                     int64_t row, float *logits)
{
    const int64_t dim = q->dim, blocks = dim / MXA_MX_BLOCK;
    const int8_t *chunk = (const int8_t *)q->q + row * dim;
    const uint8_t *k = w->k;
    __m512 total[ROWS];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
        total[r] = _mm512_setzero_ps();
    for (int64_t b = 0; b < blocks; b++) {
        mxa_avx512_ints sums[ROWS];
        if (row == 0)
            mxa_kv_prefetch(w->next_k + b * (MXA_AVX2_COLS * MXA_MX_BLOCK / 2),
                            MXA_AVX2_COLS * MXA_MX_BLOCK / 2);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++)
            sums[r] = (mxa_avx512_ints)start_of(q->starts[(row + r) * blocks + b]);
        for (int c = 0; c < 2 * WORDS; c++, chunk += WORD, k += MXA_AVX2_COLS * WORD) {
            const __m512i keys = _mm512_load_si512(k);
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) {
                int32_t word;
                memcpy(&word, chunk + r * dim, sizeof word);
                sums[r] =
                    (mxa_avx512_ints)_mm512_dpbusd_epi32((__m512i)sums[r], keys, _mm512_set1_epi32(word));
            }
        }
        const __m512 scale = _mm512_load_ps(w->k_scale + b * MXA_AVX2_COLS);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++)
            total[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps((__m512i)sums[r]), scale, total[r]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
        _mm512_store_ps(logits + r * MXA_TILE, total[r]);
}

static void dots_e2m1(mxa_kv_work_avx2 *w, const mxa_kv_rows *rows, int64_t j)
{
    const mxa_kv_queries_avx2 *const q = &w->q[w->copy];
    const int64_t blocks = q->dim / MXA_MX_BLOCK, cols = rows->part->scale_cols;
    turn_e2m1(rows, blocks, w->k);
    for (int64_t b = 0; b < blocks; b++)
        for (int half = 0; half < MXA_AVX2_COLS; half += MXA_AVX2_LANES)
            _mm256_store_ps(w->k_scale + b * MXA_AVX2_COLS + half,
                            mxa_kv_block_scales(rows->scales + half * cols, cols, b));
    float *const logits = w->logits + j;
    int64_t row = 0;
    for (; row + ROWS <= w->rows; row += ROWS)
        multiply_e2m1(ROWS, w, q, row, logits + row * MXA_TILE);
    for (; row + 4 <= w->rows; row += 4)
        multiply_e2m1(4, w, q, row, logits + row * MXA_TILE);
    for (; row < w->rows; row++)
        multiply_e2m1(1, w, q, row, logits + row * MXA_TILE);
}

static void dots(mxa_kv_work_avx2 *w)
{
    if (w->q[w->copy].product != MXA_KV_E2M1) {
        mxa_kv_dots_avx2(w);
        return;
    }
    for (int64_t j = w->begin & -(int64_t)MXA_AVX2_COLS; j < w->end; j += MXA_AVX2_COLS) {
        const mxa_kv_rows rows = mxa_kv_group(w, w->copy, MXA_KV_K, j);
        mxa_kv_factors(rows.g, w->g_k + j);
        w->next_k = mxa_kv_next_group(w, w->copy, MXA_KV_K, j);
        dots_e2m1(w, &rows, j);
    }
}

/* Sixteen channels from element at on. */
MXA_AVX512_INLINE __m512 widen(int kind, const void *row, int64_t at)
{
    const uint16_t *const halves = (const uint16_t *)row + at;
    switch (kind) {
    case MXA_KV_BYTES:
        return _mm512_cvtepi32_ps(
            _mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)((const int8_t *)row + at))));
    case MXA_KV_HALVES_BF16:
        return _mm512_castsi512_ps(
            _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)halves)), 16));
    case MXA_KV_HALVES_F16: return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)halves));
    default: return _mm512_loadu_ps((const float *)row + at);
    }
}

/*
 * Sixteen channels from c on of rows [row, row + rows); p and o of the first row. Even and odd keys have
 * sums of their own, since one is a chain of dependent additions.
 */
MXA_AVX512_INLINE void multiply_pv(int kind, int rows, const mxa_kv_work_avx2 *w, const mxa_kv_values *v,
                                   const float *p, int64_t row, int64_t c, float *o)
{
    const int64_t element = kind == MXA_KV_BYTES ? 1 : kind == MXA_KV_FLOATS ? (int64_t)sizeof(float) : 2;
    const int64_t row_bytes = v->stride * element, channels = w->job->channels;
    const __m512 g = _mm512_loadu_ps(w->channel + w->v_copy * channels + c);
    __m512 sums[ROWS][2];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
        sums[r][0] = sums[r][1] = _mm512_setzero_ps();
    for (int64_t j = w->begin & -(int64_t)MXA_AVX2_COLS; j < w->end; j += MXA_AVX2_COLS) {
        const char *key = v->group[j / MXA_AVX2_COLS];
        const float *weight = p + j;
        if (row == 0)
            mxa_kv_prefetch(v->next[j / MXA_AVX2_COLS] + c / MXA_AVX2_COLS * v->slice, v->slice);
        for (int i = 0; i < MXA_AVX2_COLS; i += 2, weight += 2)
#pragma GCC unroll 2
            for (int odd = 0; odd < 2; odd++, key += row_bytes) {
                const __m512 values = widen(kind, key, c);
#pragma GCC unroll 8
                for (int r = 0; r < rows; r++)
                    sums[r][odd] =
                        _mm512_fmadd_ps(_mm512_set1_ps(weight[r * MXA_TILE + odd]), values, sums[r][odd]);
            }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
        const __m512 sum = _mm512_mul_ps(_mm512_add_ps(sums[r][0], sums[r][1]), g);
        const __m512 shrink = _mm512_set1_ps(w->alpha[row + r]);
        _mm512_storeu_ps(o + r * channels, _mm512_fmadd_ps(_mm512_loadu_ps(o + r * channels), shrink, sum));
    }
}

MXA_AVX512_INLINE void multiply_kind(int kind, const mxa_kv_work_avx2 *w, const mxa_kv_values *v,
                                     const float *p, int64_t c, float *o)
{
    const int64_t channels = w->job->channels;
    int64_t row = 0;
    for (; row + ROWS <= w->rows; row += ROWS)
        multiply_pv(kind, ROWS, w, v, p + row * MXA_TILE, row, c, o + row * channels);
    for (; row + 4 <= w->rows; row += 4)
        multiply_pv(kind, 4, w, v, p + row * MXA_TILE, row, c, o + row * channels);
    for (; row < w->rows; row++)
        multiply_pv(kind, 1, w, v, p + row * MXA_TILE, row, c, o + row * channels);
}

static void multiply(const mxa_kv_work_avx2 *w, const mxa_kv_values *v, const float *p, int64_t c, float *o)
{
    switch (v->kind) {
    case MXA_KV_BYTES: multiply_kind(MXA_KV_BYTES, w, v, p, c, o + c); break;
    case MXA_KV_HALVES_BF16: multiply_kind(MXA_KV_HALVES_BF16, w, v, p, c, o + c); break;
    case MXA_KV_HALVES_F16: multiply_kind(MXA_KV_HALVES_F16, w, v, p, c, o + c); break;
    default: multiply_kind(MXA_KV_FLOATS, w, v, p, c, o + c); break;
    }
}

void mxa_kv_segment_avx512(const mxa_kv_job *job, const mxa_kv_unit *u, mxa_span tiles, void *scratch,
                           const mxa_kv_sums *sums)
{
    static const mxa_kv_phases phases = { dots, multiply };
    mxa_kv_segment_phases_avx2(job, u, tiles, scratch, sums, &phases);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Q K and P V of one block of query rows and one key tile. */
#include "cpu/avx512/attention_tile_avx512.h"

MXA_AVX512_INLINE void store_sums(int rows, __m512 (*sums)[2], float *logits)
{
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++) {
        _mm512_storeu_ps(logits + r * MXA_TILE, sums[r][0]);
        _mm512_storeu_ps(logits + r * MXA_TILE + MXA_AVX512_LANES, sums[r][1]);
    }
}

/* INT8 by INT8: the whole sum in integers. */
MXA_AVX512_INLINE void multiply_integers(int rows, const mxa_avx512_copy *c, int64_t row, const uint8_t *k,
                                         float *logits)
{
    mxa_avx512_ints sums[MXA_AVX512_ROWS][2];
    mxa_avx512_block_i8(rows, c->dim / 4, (const int8_t *)c->q + row * MXA_AVX512_STRIDE, MXA_AVX512_STRIDE,
                        k, c->q_start + row, 1, sums);
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++) {
        float *const to = logits + r * MXA_TILE;
        _mm512_storeu_ps(to, _mm512_cvtepi32_ps((__m512i)sums[r][0]));
        _mm512_storeu_ps(to + MXA_AVX512_LANES, _mm512_cvtepi32_ps((__m512i)sums[r][1]));
    }
}

/* to = before + sums * the scales of 16 keys, and of the row where it has one. */
static inline void add_scaled(mxa_avx512_ints sums, const float *q_scale, const float *k_scale, bool first,
                              float *to)
{
    __m512 sum = _mm512_cvtepi32_ps((__m512i)sums);
    if (q_scale)
        sum = _mm512_mul_ps(sum, _mm512_set1_ps(*q_scale));
    const __m512 before = first ? _mm512_setzero_ps() : _mm512_loadu_ps(to);
    _mm512_storeu_ps(to, _mm512_fmadd_ps(sum, _mm512_loadu_ps(k_scale), before));
}

/* Integers with a scale per 32: each block's sum is exact. */
MXA_AVX512_INLINE void multiply_blocks(int rows, bool q_scaled, const mxa_avx512_copy *c, int64_t row,
                                       const uint8_t *k, const float *k_scale, float *logits)
{
    const int64_t blocks = c->dim / MXA_MX_BLOCK;
    const int8_t *const q = (const int8_t *)c->q + row * MXA_AVX512_STRIDE;
    for (int64_t n = 0; n < blocks; n++) {
        mxa_avx512_ints sums[MXA_AVX512_ROWS][2];
        mxa_avx512_block_i8(rows, MXA_MX_BLOCK / 4, q + n * MXA_MX_BLOCK, MXA_AVX512_STRIDE,
                            k + n * MXA_MX_BLOCK * MXA_AVX512_COLS, c->q_start + row * blocks + n, blocks,
                            sums);
        const float *const scale = k_scale + n * MXA_TILE;
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++) {
            float *const to = logits + r * MXA_TILE;
            const float *const q_scale = q_scaled ? c->q_scale + (row + r) * blocks + n : NULL;
            add_scaled(sums[r][0], q_scale, scale, n == 0, to);
            add_scaled(sums[r][1], q_scale, scale + MXA_AVX512_LANES, n == 0, to + MXA_AVX512_LANES);
        }
    }
}

/* Rows [row, row + rows) of the item with the keys from j on; logits are the first row's. */
MXA_AVX512_INLINE void multiply_keys(int rows, const mxa_avx512_work *w, const mxa_avx512_copy *c,
                                     int64_t row, int64_t j, float *logits)
{
    const int64_t at = row * MXA_AVX512_STRIDE;
    __m512 sums[MXA_AVX512_ROWS][2];
    if (c->kind == MXA_AVX512_INT8) {
        multiply_integers(rows, c, row, (const uint8_t *)w->k + j * c->dim, logits);
    } else if (c->kind == MXA_AVX512_BLOCKS) {
        const uint8_t *const k = (const uint8_t *)w->k + j * c->dim;
        if (c->q_scale)
            multiply_blocks(rows, true, c, row, k, w->k_scale + j, logits);
        else
            multiply_blocks(rows, false, c, row, k, w->k_scale + j, logits);
    } else if (c->kind == MXA_AVX512_BF16) {
        mxa_avx512_block_bf16(rows, c->dim / 2, (const uint16_t *)c->q + at, MXA_AVX512_STRIDE,
                              (const uint16_t *)w->k + j * c->dim, sums);
        store_sums(rows, sums, logits);
    } else {
        mxa_avx512_block_f32(rows, c->dim, (const float *)c->q + at, MXA_AVX512_STRIDE,
                             (const float *)w->k + j * c->dim, sums);
        store_sums(rows, sums, logits);
    }
}

/* A group of keys stays in the L1 cache for all rows of the block. */
void mxa_avx512_multiply_qk(const mxa_avx512_work *w, const mxa_avx512_copy *c, const mxa_avx512_block *b)
{
    for (int64_t j = b->begin; j < b->end; j += MXA_AVX512_COLS)
        for (int r = 0, rows; r < b->rows; r += rows) {
            const int64_t row = b->first + r;
            float *const logits = w->logits + r * MXA_TILE + j;
            rows = mxa_avx512_rows_of(b->rows - r);
            switch (rows) { /* a compiler keeps the sums in registers only if it knows their number */
            case 1: multiply_keys(1, w, c, row, j, logits); break;
            case 2: multiply_keys(2, w, c, row, j, logits); break;
            case 4: multiply_keys(4, w, c, row, j, logits); break;
            case 8: multiply_keys(8, w, c, row, j, logits); break;
            default: multiply_keys(MXA_AVX512_ROWS, w, c, row, j, logits); break;
            }
        }
}

/* O = O alpha + P V for rows [r, r + rows) of the block and 32 channels from c on. */
MXA_AVX512_INLINE void multiply_channels(int rows, const mxa_avx512_work *w, const mxa_avx512_block *b, int r,
                                         int64_t c)
{
    const int64_t n = b->end - b->begin, v = c * MXA_TILE + b->begin * MXA_AVX512_COLS;
    const int64_t p = r * MXA_TILE + b->begin, channels = w->item.channels;
    __m512 sums[MXA_AVX512_ROWS][2];
    if (w->bf16)
        mxa_avx512_block_bf16(rows, n / 2, w->p + p, MXA_TILE, (const uint16_t *)w->v + v, sums);
    else
        mxa_avx512_block_f32(rows, n, w->logits + p, MXA_TILE, (const float *)w->v + v, sums);
    float *const o = w->item.o + (b->first + r) * channels + c;
#pragma GCC unroll 12
    for (int i = 0; i < rows; i++) {
        float *const low = o + i * channels, *const high = low + MXA_AVX512_LANES;
        const __m512 alpha = _mm512_set1_ps(b->alpha[r + i]);
        _mm512_storeu_ps(low, _mm512_fmadd_ps(_mm512_loadu_ps(low), alpha, sums[i][0]));
        _mm512_storeu_ps(high, _mm512_fmadd_ps(_mm512_loadu_ps(high), alpha, sums[i][1]));
    }
}

void mxa_avx512_multiply_pv(const mxa_avx512_work *w, const mxa_avx512_block *b)
{
    for (int64_t c = 0; c < w->item.channels; c += MXA_AVX512_COLS)
        for (int r = 0, rows; r < b->rows; r += rows) {
            rows = mxa_avx512_rows_of(b->rows - r);
            switch (rows) {
            case 1: multiply_channels(1, w, b, r, c); break;
            case 2: multiply_channels(2, w, b, r, c); break;
            case 4: multiply_channels(4, w, b, r, c); break;
            case 8: multiply_channels(8, w, b, r, c); break;
            default: multiply_channels(MXA_AVX512_ROWS, w, b, r, c); break;
            }
        }
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Q K of a KV cache. K of MXFP4 is turned so that a register has four elements of each of eight keys, as
 * unsigned bytes 2 k + 12 from a table; 16-bit sums of products with signed q start at -12 times the sum of
 * q, so that those of a block are right, and fit: 16 products of at most 12 * 127 in each
 * (docs/kernels_cpu.md).
 */
#include "attn/softmax.h"
#include "cpu/avx2/kv_tile_avx2.h"
#include "cpu/avx2/layout_avx2.h"
#include "format/element.h"
#include "format/mx.h"

/* Query rows whose sums stay in registers beside two of keys, a query and a product. */
enum { E2M1_ROWS = 4, E2M1_OFFSET = 12, CHUNK = 4, CHUNKS = MXA_MX_BLOCK / CHUNK };

mxa_kv_product mxa_kv_product_avx2(const mxa_kv_job *job, int copy)
{
    const mxa_format k = job->view->layout->part[copy][MXA_KV_K].copy.info->format;
    if (job->q[copy].copy->info->format != MXA_FORMAT_INT8)
        return MXA_KV_F32;
    return k == MXA_FORMAT_MXFP4 ? MXA_KV_E2M1 : k == MXA_FORMAT_INT8 ? MXA_KV_INT8 : MXA_KV_F32;
}

/* Even elements of each eight, then the odd ones: what low and high nibbles of four bytes meet. */
static void load_q_e2m1(const int8_t *codes, int64_t dim, int8_t *q, int32_t *starts)
{
    for (int64_t d = 0; d < dim; d++)
        q[(d & -8) + d % 2 * CHUNK + d % 8 / 2] = codes[d];
    for (int64_t b = 0; b < dim / MXA_MX_BLOCK; b++) {
        int sum[2] = { 0 };
        for (int i = 0; i < MXA_MX_BLOCK; i++)
            sum[i % CHUNK / 2] += q[b * MXA_MX_BLOCK + i];
        starts[b] = (int32_t)((uint32_t)(-E2M1_OFFSET * sum[1]) << 16 | (uint16_t)(-E2M1_OFFSET * sum[0]));
    }
}

/* Row r. INT8's NaN is no number: the factor says it. */
static void load_integers(mxa_kv_queries_avx2 *q, const uint8_t *codes, int64_t r, int64_t dim)
{
    int8_t padded[MXA_DIM_MAX] = { 0 };
    memcpy(padded, codes, (size_t)dim);
    if (memchr(codes, MXA_INT8_NAN, (size_t)dim))
        q->factor[r] = mxa_f32_from_bits(MXA_F32_NAN);
    if (q->product == MXA_KV_E2M1)
        load_q_e2m1(padded, q->dim, (int8_t *)q->q + r * q->dim, q->starts + r * (q->dim / MXA_MX_BLOCK));
    else
        mxa_avx2_widen(padded, q->dim, (int16_t *)q->q + r * q->dim);
}

void mxa_kv_load_q_avx2(mxa_kv_work_avx2 *w, int copy)
{
    const mxa_kv_job *const job = w->job;
    const mxa_kv_query *const from = &job->q[copy];
    const mxa_kv_part *const k = &job->view->layout->part[copy][MXA_KV_K];
    mxa_kv_queries_avx2 *const q = &w->q[copy];
    const double unit = job->softcap > 0 ? 1.0 : MXA_LOG2_E;
    const float scale = (float)((double)job->softmax_scale * unit);
    for (int64_t r = 0; r < w->rows; r++) {
        const int64_t at = mxa_kv_row(job, w->unit, r);
        const uint8_t *const codes = from->codes + at * from->row_bytes;
        q->factor[r] = scale * (from->g ? from->g[at] : 1.0f);
        q->bias[r] = k->copy.smooth ? (float)((double)job->bias[at] * unit) : 0.0f;
        if (q->product != MXA_KV_F32)
            load_integers(q, codes, r, k->dim);
        else
            mxa_decode_pick(from->copy->info->format)
                ->fn(from->copy->info, codes, from->scale_cols ? from->scales + at * from->scale_cols : NULL,
                     1, k->dim, (float *)q->q + r * q->dim, k->dim);
    }
}

/*
 * [dim / 4][16][4]: chunk 2 j of a block has the low nibbles of its bytes 4 j.., chunk 2 j + 1 the high
 * ones.
 */
static void turn_e2m1(const mxa_kv_rows *rows, int64_t blocks, uint8_t *out)
{
    const __m256i nibble = _mm256_set1_epi8(0x0F);
    const __m256i table =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    const int64_t stride = rows->part->row_bytes;
    for (int64_t b = 0; b < blocks; b++)
        for (int half = 0; half < MXA_AVX2_COLS; half += MXA_AVX2_LANES) {
            const uint8_t *const at = rows->codes + half * stride + b * (MXA_MX_BLOCK / 2);
            __m256i r[4], pairs[4], words[4];
            for (int i = 0; i < 4; i++) {
                const __m128i low = _mm_loadu_si128((const void *)(at + i * stride));
                const __m128i high = _mm_loadu_si128((const void *)(at + (i + 4) * stride));
                r[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
            }
            for (int i = 0; i < 2; i++) {
                pairs[2 * i] = _mm256_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
                pairs[2 * i + 1] = _mm256_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
            }
            for (int i = 0; i < 2; i++) {
                words[2 * i] = _mm256_unpacklo_epi64(pairs[i], pairs[i + 2]);
                words[2 * i + 1] = _mm256_unpackhi_epi64(pairs[i], pairs[i + 2]);
            }
            uint8_t *const to = out + (b * CHUNKS * MXA_AVX2_COLS + half) * CHUNK;
            for (int j = 0; j < 4; j++) {
                const __m256i low = _mm256_and_si256(words[j], nibble);
                const __m256i high = _mm256_and_si256(_mm256_srli_epi16(words[j], 4), nibble);
                _mm256_storeu_si256((void *)(to + 2 * j * MXA_AVX2_COLS * CHUNK),
                                    _mm256_shuffle_epi8(table, low));
                _mm256_storeu_si256((void *)(to + (2 * j + 1) * MXA_AVX2_COLS * CHUNK),
                                    _mm256_shuffle_epi8(table, high));
            }
        }
}

/* Eight words of 16 bits; GCC keeps sums of this type in registers. */
typedef int16_t words_avx2 __attribute__((vector_size(32)));

/* Rows [row, row + rows) and 16 keys: sums of a block in integers, then its scales. */
MXA_AVX2_INLINE void multiply_e2m1(int rows, const mxa_kv_work_avx2 *w, const mxa_kv_queries_avx2 *q,
                                   int64_t row, float *logits)
{
    const int64_t dim = q->dim, blocks = dim / MXA_MX_BLOCK;
    const int8_t *chunks = (const int8_t *)q->q + row * dim;
    const uint8_t *k = w->k;
    const __m256i ones = _mm256_set1_epi16(1);
    for (int64_t b = 0; b < blocks; b++) {
        words_avx2 sums[E2M1_ROWS][2];
        if (row == 0)
            mxa_kv_prefetch(w->next_k + b * (MXA_AVX2_COLS * MXA_MX_BLOCK / 2),
                            MXA_AVX2_COLS * MXA_MX_BLOCK / 2);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++)
            sums[r][0] = sums[r][1] = (words_avx2)_mm256_set1_epi32(q->starts[(row + r) * blocks + b]);
#pragma GCC unroll 2
        for (int c = 0; c < CHUNKS; c++, chunks += CHUNK, k += MXA_AVX2_COLS * CHUNK) {
            const __m256i k0 = _mm256_load_si256((const void *)k);
            const __m256i k1 = _mm256_load_si256((const void *)(k + MXA_AVX2_LANES * CHUNK));
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) {
                const __m256i x = _mm256_castps_si256(_mm256_broadcast_ss((const void *)(chunks + r * dim)));
                sums[r][0] += (words_avx2)_mm256_maddubs_epi16(k0, x);
                sums[r][1] += (words_avx2)_mm256_maddubs_epi16(k1, x);
            }
        }
        for (int half = 0; half < 2; half++) {
            const __m256 scale = _mm256_load_ps(w->k_scale + b * MXA_AVX2_COLS + half * MXA_AVX2_LANES);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) {
                float *const to = logits + r * MXA_TILE + half * MXA_AVX2_LANES;
                const __m256 sum = _mm256_cvtepi32_ps(_mm256_madd_epi16((__m256i)sums[r][half], ones));
                const __m256 before = b ? _mm256_load_ps(to) : _mm256_setzero_ps();
                _mm256_store_ps(to, _mm256_fmadd_ps(sum, scale, before));
            }
        }
    }
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
    for (; row + E2M1_ROWS <= w->rows; row += E2M1_ROWS)
        multiply_e2m1(E2M1_ROWS, w, q, row, logits + row * MXA_TILE);
    switch (w->rows - row) {
    case 1: multiply_e2m1(1, w, q, row, logits + row * MXA_TILE); break;
    case 2: multiply_e2m1(2, w, q, row, logits + row * MXA_TILE); break;
    case 3: multiply_e2m1(3, w, q, row, logits + row * MXA_TILE); break;
    default: break;
    }
}

/* INT8 by INT8, or fp32. */
MXA_AVX2_INLINE void multiply_rows(int rows, const mxa_kv_work_avx2 *w, const mxa_kv_queries_avx2 *q,
                                   int64_t row, float *logits)
{
    __m256 sums[MXA_AVX2_ROWS][2];
    if (q->product == MXA_KV_INT8) {
        mxa_avx2_ints whole[MXA_AVX2_ROWS][2];
        mxa_avx2_block_i16(rows, q->dim / 2, (const int16_t *)q->q + row * q->dim, q->dim, w->k, whole);
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++)
            for (int half = 0; half < 2; half++)
                sums[r][half] = _mm256_cvtepi32_ps((__m256i)whole[r][half]);
    } else {
        mxa_avx2_block_f32(rows, q->dim, (const float *)q->q + row * q->dim, q->dim, w->k, sums);
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
        for (int half = 0; half < 2; half++)
            _mm256_store_ps(logits + r * MXA_TILE + half * MXA_AVX2_LANES, sums[r][half]);
}

static void dots_rows(mxa_kv_work_avx2 *w, int64_t j)
{
    const mxa_kv_queries_avx2 *const q = &w->q[w->copy];
    float *const logits = w->logits + j;
    for (int64_t row = 0; row < w->rows; row += MXA_AVX2_ROWS) {
        float *const to = logits + row * MXA_TILE;
        if (row == 0)
            mxa_kv_prefetch(w->next_k, w->next_bytes);
        switch (w->rows - row) {
        case 1: multiply_rows(1, w, q, row, to); break;
        case 2: multiply_rows(2, w, q, row, to); break;
        case 3: multiply_rows(3, w, q, row, to); break;
        case 4: multiply_rows(4, w, q, row, to); break;
        case 5: multiply_rows(5, w, q, row, to); break;
        default: multiply_rows(MXA_AVX2_ROWS, w, q, row, to); break;
        }
    }
}

static void dots_int8(mxa_kv_work_avx2 *w, const mxa_kv_rows *rows, int64_t j)
{
    const int64_t dim = rows->part->dim, padded = w->q[w->copy].dim;
    const int8_t *codes = (const int8_t *)rows->codes;
    if (dim != padded) {
        int8_t *const raw = w->raw;
        for (int i = 0; i < MXA_AVX2_COLS; i++) {
            memcpy(raw + i * padded, codes + i * dim, (size_t)dim);
            memset(raw + i * padded + dim, 0, (size_t)(padded - dim));
        }
        codes = raw;
    }
    for (int i = 0; i < MXA_AVX2_COLS; i++)
        if (memchr(rows->codes + i * dim, MXA_INT8_NAN, (size_t)dim))
            w->g_k[j + i] = mxa_f32_from_bits(MXA_F32_NAN);
    mxa_avx2_pair_keys(codes, padded, w->k);
    dots_rows(w, j);
}

static void dots_f32(mxa_kv_work_avx2 *w, const mxa_kv_rows *rows, int64_t j)
{
    const mxa_format_info *const info = rows->part->copy.info;
    const int64_t dim = rows->part->dim;
    const bool half = info->format == MXA_FORMAT_BF16 || info->format == MXA_FORMAT_F16;
    if (half && dim % MXA_AVX2_LANES == 0)
        mxa_avx2_widen_row((const uint16_t *)(const void *)rows->codes,
                           info->format == MXA_FORMAT_F16 ? MXA_DTYPE_F16 : MXA_DTYPE_BF16,
                           MXA_AVX2_COLS * dim, w->raw);
    else
        mxa_decode_pick(info->format)->fn(info, rows->codes, rows->scales, MXA_AVX2_COLS, dim, w->raw, dim);
    mxa_avx2_transpose_keys(w->raw, dim, w->k);
    dots_rows(w, j);
}

void mxa_kv_dots_avx2(mxa_kv_work_avx2 *w)
{
    for (int64_t j = w->begin & -(int64_t)MXA_AVX2_COLS; j < w->end; j += MXA_AVX2_COLS) {
        const mxa_kv_rows rows = mxa_kv_group(w, w->copy, MXA_KV_K, j);
        mxa_kv_factors(rows.g, w->g_k + j);
        w->next_k = mxa_kv_next_group(w, w->copy, MXA_KV_K, j);
        w->next_bytes = MXA_AVX2_COLS * rows.part->row_bytes;
        switch (w->q[w->copy].product) {
        case MXA_KV_E2M1: dots_e2m1(w, &rows, j); break;
        case MXA_KV_INT8: dots_int8(w, &rows, j); break;
        default: dots_f32(w, &rows, j); break;
        }
    }
}

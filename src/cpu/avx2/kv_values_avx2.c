/* SPDX-License-Identifier: Apache-2.0 */
/*
 * P V of a KV cache: sums of up to six rows and 16 channels stay in registers over a tile's keys, whose V is
 * widened as it is loaded. Factors of V are multiplied into P.
 */
#include "cpu/avx2/kv_tile_avx2.h"
#include "cpu/avx2/layout_avx2.h"
#include "format/element.h"
#include "format/mx.h"

/* Are some of the keys' bytes INT8's NaN. */
static bool has_nan(const mxa_kv_work_avx2 *w, const mxa_kv_rows *rows, int64_t j)
{
    const int64_t first = mxa_max(w->begin - j, 0), end = mxa_min(w->end - j, MXA_AVX2_COLS);
    const int64_t bytes = (end - first) * rows->part->row_bytes, whole = bytes & -32;
    const uint8_t *const codes = rows->codes + first * rows->part->row_bytes;
    const __m256i nan = _mm256_set1_epi8((char)MXA_INT8_NAN);
    __m256i least = _mm256_set1_epi8(0);
#pragma GCC unroll 4
    for (int64_t i = 0; i < whole; i += 32)
        least = _mm256_min_epi8(least, _mm256_loadu_si256((const void *)(codes + i)));
    return _mm256_movemask_epi8(_mm256_cmpeq_epi8(least, nan)) != 0 ||
           memchr(codes + whole, MXA_INT8_NAN, (size_t)(bytes - whole));
}

/* Codes of MXFP4 doubled, one a byte, and the scales of their blocks. */
static void load_e2m1(mxa_kv_work_avx2 *w, const mxa_kv_rows *rows, int64_t j, int64_t stride)
{
    const int64_t cols = rows->part->scale_cols;
    int8_t *const out = (int8_t *)w->raw + j * stride;
    for (int i = 0; i < MXA_AVX2_COLS; i++)
        mxa_avx2_doubled_e2m1(rows->codes + i * rows->part->row_bytes, stride, out + i * stride);
    for (int64_t b = 0; b < cols; b++)
        for (int half = 0; half < MXA_AVX2_COLS; half += MXA_AVX2_LANES)
            _mm256_storeu_ps(w->g_v + b * MXA_TILE + j + half,
                             mxa_kv_block_scales(rows->scales + half * cols, cols, b));
}

static mxa_kv_values values_of(const mxa_kv_work_avx2 *w)
{
    const mxa_kv_part *const part = &w->job->view->layout->part[w->v_copy][MXA_KV_V];
    const bool whole = part->dim % MXA_AVX2_COLS == 0;
    switch (part->copy.info->format) {
    case MXA_FORMAT_INT8:
        return (mxa_kv_values){ .kind = MXA_KV_BYTES, .stride = whole ? part->dim : w->job->channels };
    case MXA_FORMAT_MXFP4:
        return (mxa_kv_values){ .kind = MXA_KV_BYTES, .blocks = true, .stride = 2 * part->row_bytes };
    case MXA_FORMAT_BF16:
        return (mxa_kv_values){ .kind = whole ? MXA_KV_HALVES_BF16 : MXA_KV_FLOATS, .stride = part->dim };
    case MXA_FORMAT_F16:
        return (mxa_kv_values){ .kind = whole ? MXA_KV_HALVES_F16 : MXA_KV_FLOATS, .stride = part->dim };
    default: return (mxa_kv_values){ .kind = MXA_KV_FLOATS };
    }
}

/* Zeros for those of 16 rows whose keys no row sees: 0 times anything then is 0. */
static void *clear_unseen(const mxa_kv_work_avx2 *w, void *rows, int64_t j, int64_t row_bytes)
{
    for (int i = 0; i < MXA_AVX2_COLS; i++)
        if (j + i < w->begin || j + i >= w->end)
            memset((char *)rows + i * row_bytes, 0, (size_t)row_bytes);
    return rows;
}

/* Rows of bytes that are no whole vectors, zeros behind each: a page may end with its last row. */
static void *fill_rows(const mxa_kv_work_avx2 *w, const mxa_kv_rows *rows, int64_t j, int64_t stride)
{
    uint8_t *const out = (uint8_t *)w->raw + j * stride;
    const int64_t dim = rows->part->dim;
    memset(out, 0, (size_t)(MXA_AVX2_COLS * stride));
    for (int i = 0; i < MXA_AVX2_COLS; i++)
        memcpy(out + i * stride, rows->codes + i * dim, (size_t)dim);
    return out;
}

/* Where the rows are, decoded if need be. False: a NaN among bytes. */
static bool load_groups(mxa_kv_work_avx2 *w, mxa_kv_values *v)
{
    const int64_t channels = w->job->channels;
    v->stride = v->kind == MXA_KV_FLOATS ? channels : v->stride;
    for (int64_t j = w->begin & -(int64_t)MXA_AVX2_COLS; j < w->end; j += MXA_AVX2_COLS) {
        const mxa_kv_rows rows = mxa_kv_group(w, w->v_copy, MXA_KV_V, j);
        const mxa_format_info *const info = rows.part->copy.info;
        v->group[j / MXA_AVX2_COLS] = rows.codes;
        v->next[j / MXA_AVX2_COLS] = mxa_kv_next_group(w, w->v_copy, MXA_KV_V, j);
        v->slice = MXA_AVX2_COLS * MXA_AVX2_COLS * rows.part->row_bytes / channels;
        if (!v->blocks)
            mxa_kv_factors(rows.g, w->g_v + j);
        if (v->kind == MXA_KV_FLOATS) {
            float *const out = (float *)w->raw + j * channels;
            mxa_decode_pick(info->format)
                ->fn(info, rows.codes, rows.scales, MXA_AVX2_COLS, rows.part->dim, out, channels);
            v->group[j / MXA_AVX2_COLS] = clear_unseen(w, out, j, channels * (int64_t)sizeof(float));
        } else if (v->kind != MXA_KV_BYTES) {
            if (j < w->begin || j + MXA_AVX2_COLS > w->end) {
                char *const own = (char *)w->raw + j * rows.part->row_bytes;
                memcpy(own, rows.codes, (size_t)(MXA_AVX2_COLS * rows.part->row_bytes));
                v->group[j / MXA_AVX2_COLS] = clear_unseen(w, own, j, rows.part->row_bytes);
            }
        } else if (v->blocks) {
            load_e2m1(w, &rows, j, v->stride);
            v->group[j / MXA_AVX2_COLS] = (const int8_t *)w->raw + j * v->stride;
        } else if (has_nan(w, &rows, j)) {
            return false;
        } else if (v->stride != rows.part->dim) {
            v->group[j / MXA_AVX2_COLS] = fill_rows(w, &rows, j, v->stride);
        }
    }
    return true;
}

/* Eight channels from element at on. */
MXA_AVX2_INLINE __m256 widen(int kind, const void *row, int64_t at)
{
    const uint16_t *const halves = (const uint16_t *)row + at;
    switch (kind) {
    case MXA_KV_BYTES:
        return _mm256_cvtepi32_ps(
            _mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)((const int8_t *)row + at))));
    case MXA_KV_HALVES_BF16:
        return _mm256_castsi256_ps(
            _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)halves)), 16));
    case MXA_KV_HALVES_F16: return _mm256_cvtph_ps(_mm_loadu_si128((const void *)halves));
    default: return _mm256_loadu_ps((const float *)row + at);
    }
}

/* P times g_v, which is 0 for keys that no row sees. */
static void scale_p(const mxa_kv_work_avx2 *w, const float *g_v)
{
    const int64_t first = w->begin & -(int64_t)MXA_AVX2_COLS, end = mxa_kv_whole_groups(w->end);
    for (int64_t r = 0; r < w->rows; r++)
        for (int64_t j = first; j < end; j += MXA_AVX2_LANES)
            _mm256_store_ps(
                w->scaled + r * MXA_TILE + j,
                _mm256_mul_ps(_mm256_load_ps(w->logits + r * MXA_TILE + j), _mm256_load_ps(g_v + j)));
}

/* Sixteen channels from c on of rows [row, row + rows); p and o of the first row. */
MXA_AVX2_INLINE void multiply_pv(int kind, int rows, const mxa_kv_work_avx2 *w, const mxa_kv_values *v,
                                 const float *p, int64_t row, int64_t c, float *o)
{
    const int64_t channels = w->job->channels;
    const int64_t row_bytes = v->stride * (kind == MXA_KV_BYTES    ? 1
                                           : kind == MXA_KV_FLOATS ? (int64_t)sizeof(float)
                                                                   : 2);
    const float *const channel = w->channel + w->v_copy * channels + c;
    __m256 sums[MXA_AVX2_ROWS][2];
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
        sums[r][0] = sums[r][1] = _mm256_setzero_ps();
    for (int64_t j = w->begin & -(int64_t)MXA_AVX2_COLS; j < w->end; j += MXA_AVX2_COLS) {
        const char *key = v->group[j / MXA_AVX2_COLS];
        const float *weight = p + j;
        if (row == 0)
            mxa_kv_prefetch(v->next[j / MXA_AVX2_COLS] + c / MXA_AVX2_COLS * v->slice, v->slice);
#pragma GCC unroll 2
        for (int i = 0; i < MXA_AVX2_COLS; i++, key += row_bytes, weight++) {
            const __m256 v0 = widen(kind, key, c), v1 = widen(kind, key, c + MXA_AVX2_LANES);
#pragma GCC unroll 6
            for (int r = 0; r < rows; r++) {
                const __m256 x = _mm256_broadcast_ss(weight + r * MXA_TILE);
                sums[r][0] = _mm256_fmadd_ps(x, v0, sums[r][0]);
                sums[r][1] = _mm256_fmadd_ps(x, v1, sums[r][1]);
            }
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) {
        const __m256 shrink = _mm256_broadcast_ss(w->alpha + row + r);
        for (int half = 0; half < 2; half++) {
            float *const to = o + r * channels + half * MXA_AVX2_LANES;
            const __m256 g = _mm256_loadu_ps(channel + half * MXA_AVX2_LANES);
            _mm256_storeu_ps(to,
                             _mm256_fmadd_ps(_mm256_loadu_ps(to), shrink, _mm256_mul_ps(sums[r][half], g)));
        }
    }
}

MXA_AVX2_INLINE void multiply_kind(int kind, const mxa_kv_work_avx2 *w, const mxa_kv_values *v,
                                   const float *p, int64_t c, float *o)
{
    for (int64_t row = 0; row < w->rows; row += MXA_AVX2_ROWS) {
        const float *const from = p + row * MXA_TILE;
        float *const to = o + row * w->job->channels + c;
        switch (w->rows - row) {
        case 1: multiply_pv(kind, 1, w, v, from, row, c, to); break;
        case 2: multiply_pv(kind, 2, w, v, from, row, c, to); break;
        case 3: multiply_pv(kind, 3, w, v, from, row, c, to); break;
        case 4: multiply_pv(kind, 4, w, v, from, row, c, to); break;
        case 5: multiply_pv(kind, 5, w, v, from, row, c, to); break;
        default: multiply_pv(kind, MXA_AVX2_ROWS, w, v, from, row, c, to); break;
        }
    }
}

/* A compiler keeps the sums in registers only if it knows the number of rows, and the type's loads. */
void mxa_kv_multiply_avx2(const mxa_kv_work_avx2 *w, const mxa_kv_values *v, const float *p, int64_t c,
                          float *o)
{
    switch (v->kind) {
    case MXA_KV_BYTES: multiply_kind(MXA_KV_BYTES, w, v, p, c, o); break;
    case MXA_KV_HALVES_BF16: multiply_kind(MXA_KV_HALVES_BF16, w, v, p, c, o); break;
    case MXA_KV_HALVES_F16: multiply_kind(MXA_KV_HALVES_F16, w, v, p, c, o); break;
    default: multiply_kind(MXA_KV_FLOATS, w, v, p, c, o); break;
    }
}

/* Factors of keys that no row sees, which may be anything. */
static void clear_factors(const mxa_kv_work_avx2 *w, const mxa_kv_values *v)
{
    const int64_t blocks = v->blocks ? w->job->view->layout->part[w->v_copy][MXA_KV_V].scale_cols : 1;
    const int64_t first = w->begin & -(int64_t)MXA_AVX2_COLS, end = mxa_kv_whole_groups(w->end);
    for (int64_t b = 0; b < blocks; b++) {
        float *const g = w->g_v + b * MXA_TILE;
        memset(g + first, 0, (size_t)(w->begin - first) * sizeof *g);
        memset(g + w->end, 0, (size_t)(end - w->end) * sizeof *g);
    }
}

void mxa_kv_add_values_avx2(mxa_kv_work_avx2 *w, mxa_kv_multiply_fn *multiply, float *o)
{
    mxa_kv_values v = values_of(w);
    if (!load_groups(w, &v)) {
        v = (mxa_kv_values){ .kind = MXA_KV_FLOATS };
        load_groups(w, &v);
    }
    clear_factors(w, &v);
    const bool plain = v.kind == MXA_KV_HALVES_BF16 || v.kind == MXA_KV_HALVES_F16;
    if (!v.blocks && !plain)
        scale_p(w, w->g_v);
    for (int64_t c = 0; c < w->job->channels; c += MXA_AVX2_COLS) {
        if (v.blocks && c % MXA_MX_BLOCK == 0)
            scale_p(w, w->g_v + c / MXA_MX_BLOCK * MXA_TILE);
        multiply(w, &v, plain ? w->logits : w->scaled, c, o);
    }
}

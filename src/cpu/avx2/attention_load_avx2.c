/* SPDX-License-Identifier: Apache-2.0 */
/* Q, K and V of the AVX2 attention in the order that its products read them. */
#include "attn/softmax.h"
#include "cpu/avx2/attention_tile_avx2.h"
#include "cpu/avx2/layout_avx2.h"

static bool has_integers(mxa_format format)
{
    return format == MXA_FORMAT_INT8 || format == MXA_FORMAT_MXINT8 || format == MXA_FORMAT_MXFP4;
}

mxa_avx2_copy mxa_avx2_copy_of(const mxa_plan *plan, int copy, bool *q_scaled)
{
    const mxa_format q = plan->q[copy].info->format, k = plan->k[copy].info->format;
    const int64_t dim = plan->problem.head_dim;
    *q_scaled = false;
    if (!has_integers(q) || !has_integers(k))
        return (mxa_avx2_copy){ .dim = dim, .block = dim };
    *q_scaled = q != MXA_FORMAT_INT8;
    if (q == MXA_FORMAT_INT8 && k == MXA_FORMAT_INT8) {
        const int64_t padded = mxa_avx2_groups(dim);
        return (mxa_avx2_copy){ .integers = true, .dim = padded, .block = padded };
    }
    const int64_t blocks = (dim + MXA_MX_BLOCK - 1) / MXA_MX_BLOCK;
    return (mxa_avx2_copy){ .integers = true, .dim = blocks * MXA_MX_BLOCK, .block = MXA_MX_BLOCK };
}

/*
 * A row's codes as integers, padded with zeros to dim. False if it holds the NaN of INT8, which is no number.
 */
static bool load_codes(const mxa_rows *rows, int64_t i, int64_t dim, int8_t *out)
{
    const mxa_operand *const op = rows->operand;
    const uint8_t *const codes = rows->codes + i * op->row_bytes;
    const int64_t n = op->x->shape[3];
    if (op->plan->info->format == MXA_FORMAT_MXFP4) {
        mxa_avx2_doubled_e2m1(codes, dim, out); /* rows have whole blocks */
        return true;
    }
    memcpy(out, codes, (size_t)n);
    memset(out + n, 0, (size_t)(dim - n));
    return op->plan->info->format == MXA_FORMAT_MXINT8 || !memchr(out, MXA_INT8_NAN, (size_t)n);
}

/*
 * What sums of a block's integers are multiplied with. NaN for NaN, and where an element might exceed fp32,
 * which saturates one by one: such rows go to the reference.
 */
static float block_scale(const mxa_rows *rows, int64_t i, int64_t block)
{
    const mxa_operand *const op = rows->operand;
    if (!rows->scales)
        return 1.0f;
    const int highest = 252, scale = rows->scales[i * op->scale_cols + block];
    const float unit = op->plan->info->format == MXA_FORMAT_MXFP4 ? 0.5f : 0x1p-6f;
    return scale > highest ? mxa_f32_from_bits(MXA_F32_NAN) : mxa_pow2(scale - 127) * unit;
}

static void load_q_integers(mxa_avx2_work *w, mxa_avx2_copy *c, const mxa_rows *q, int64_t i, int64_t row)
{
    int8_t *const codes = w->raw;
    if (!load_codes(q, i, c->dim, codes))
        c->factor[row] = mxa_f32_from_bits(MXA_F32_NAN);
    mxa_avx2_widen(codes, c->dim, (int16_t *)c->q + row * c->dim);
    const int64_t blocks = c->dim / c->block;
    for (int64_t b = 0; b < blocks && c->q_scale; b++)
        c->q_scale[row * blocks + b] = block_scale(q, i, b);
}

/* Head h + n of the item. */
static void load_q_head(mxa_avx2_work *w, int copy, int64_t n)
{
    const mxa_item_rows *const item = &w->item;
    const mxa_problem *const p = &item->job->plan->problem;
    mxa_avx2_copy *const c = &w->copy[copy];
    const mxa_rows q = mxa_job_q(item->job, copy, item->s, item->h + n);
    const double unit = p->softcap > 0 ? 1.0 : MXA_LOG2_E;
    const float scale = (float)((double)p->softmax_scale * unit);
    const int64_t first = item->rows.first;
    for (int64_t i = 0; i < item->head_rows; i++) {
        const int64_t row = n * item->head_rows + i;
        c->factor[row] = scale * mxa_rows_factor(&q, first + i);
        c->bias[row] = (float)((double)mxa_job_bias(item->job, copy, item->s, item->h + n, first + i) * unit);
        if (c->integers)
            load_q_integers(w, c, &q, first + i, row);
    }
    if (!c->integers)
        mxa_rows_load(&q, first, item->head_rows, (float *)c->q + n * item->head_rows * c->dim, c->dim);
}

void mxa_avx2_load_q(mxa_avx2_work *w, int copy)
{
    for (int64_t n = 0; w->copy[copy].factor && n * w->item.head_rows < w->item.n; n++)
        load_q_head(w, copy, n);
    w->copy[copy].loaded = true;
}

/* Keys as rows of codes; a NaN code makes the key's factor NaN. */
static void load_k_integers(mxa_avx2_work *w, const mxa_key_tile *t, const mxa_rows *k)
{
    const mxa_avx2_copy *const c = &w->copy[t->copy];
    int8_t *const codes = w->raw;
    for (int64_t j = t->begin; j < t->end; j++)
        if (!load_codes(k, t->first + j, c->dim, codes + j * c->dim))
            w->g_k[j] = mxa_f32_from_bits(MXA_F32_NAN);
    const bool scaled = c->block == MXA_MX_BLOCK;
    for (int64_t b = 0; b < c->dim / c->block && scaled; b++) {
        memset(w->k_scale + b * MXA_TILE, 0, MXA_TILE * sizeof *w->k_scale);
        for (int64_t j = t->begin; j < t->end; j++)
            w->k_scale[b * MXA_TILE + j] = block_scale(k, t->first + j, b);
    }
}

/* Whole groups of keys; those that no row sees are zero. */
void mxa_avx2_load_k(mxa_avx2_work *w, const mxa_key_tile *t)
{
    const mxa_avx2_copy *const c = &w->copy[t->copy];
    const mxa_rows k = mxa_job_k(w->item.job, t->copy, w->item.s, w->item.h_kv);
    const int64_t first = t->begin / MXA_AVX2_COLS * MXA_AVX2_COLS, end = mxa_avx2_groups(t->end);
    const int64_t row_bytes = c->dim * (c->integers ? 1 : (int64_t)sizeof(float));
    char *const raw = w->raw;
    for (int64_t j = first; j < end; j++)
        w->g_k[j] = j >= t->begin && j < t->end ? mxa_rows_factor(&k, t->first + j) : 0.0f;
    if (c->integers)
        load_k_integers(w, t, &k);
    else
        mxa_rows_load(&k, t->first + t->begin, t->end - t->begin, (float *)w->raw + t->begin * c->dim,
                      c->dim);
    memset(raw + first * row_bytes, 0, (size_t)((t->begin - first) * row_bytes));
    memset(raw + t->end * row_bytes, 0, (size_t)((end - t->end) * row_bytes));
    for (int64_t j = first; j < end; j += MXA_AVX2_COLS)
        if (c->integers)
            mxa_avx2_pair_keys((const int8_t *)w->raw + j * c->dim, c->dim, (int16_t *)w->k + j * c->dim);
        else
            mxa_avx2_transpose_keys((const float *)w->raw + j * c->dim, c->dim, (float *)w->k + j * c->dim);
}

/*
 * V of one key in the P V type as fp32, padded with zeros. Inf and NaN stay, or are taken out by the careful
 * path.
 */
static void load_v_row(mxa_avx2_work *w, const mxa_key_tile *t, int64_t j, mxa_dtype type)
{
    const mxa_item_rows *const item = &w->item;
    const mxa_tensor *const v = item->job->v;
    float *const row = item->row;
    const int64_t i = item->s->k_first + t->first + j;
    if (v->dtype == type && item->dim_v % MXA_AVX2_LANES == 0)
        mxa_avx2_widen_row(mxa_row(v, item->s->batch, item->h_kv, i), type, item->dim_v, row);
    else
        mxa_row_load_as(v, item->s->batch, item->h_kv, i, type, row);
    item->v_nonfinite[j] = false;
    for (int64_t d = 0; d < item->dim_v && item->careful; d++)
        if (!mxa_f32_is_finite(row[d])) {
            row[d] = 0.0f;
            item->v_nonfinite[j] = true;
        }
}

void mxa_avx2_load_v(mxa_avx2_work *w, const mxa_key_tile *t)
{
    const int64_t first = t->begin / MXA_AVX2_COLS * MXA_AVX2_COLS, end = mxa_avx2_groups(t->end);
    const mxa_dtype type = w->item.job->plan->pv == MXA_PV_F16 ? MXA_DTYPE_F16 : MXA_DTYPE_BF16;
    const int64_t channels = w->item.channels;
    memset(w->item.row, 0, (size_t)channels * sizeof *w->item.row);
    for (int64_t j = first; j < end; j++) {
        const bool seen = j >= t->begin && j < t->end;
        if (seen)
            load_v_row(w, t, j, type);
        for (int64_t c = 0; c < channels; c += MXA_AVX2_COLS) {
            float *const to = w->v + c * MXA_TILE + j * MXA_AVX2_COLS;
            if (seen)
                memcpy(to, w->item.row + c, MXA_AVX2_COLS * sizeof *to);
            else
                memset(to, 0, MXA_AVX2_COLS * sizeof *to);
        }
    }
}

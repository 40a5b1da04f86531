/* SPDX-License-Identifier: Apache-2.0 */
/* Q, K and V of the AVX-512 attention in the order that its products read them. */
#include <math.h>

#include "attn/softmax.h"
#include "cpu/avx512/attention_tile_avx512.h"
#include "cpu/avx512/layout_avx512.h"

static bool has_integers(mxa_format format)
{
    return format == MXA_FORMAT_INT8 || format == MXA_FORMAT_MXINT8 || format == MXA_FORMAT_MXFP4;
}

/* Element times block scale has at most 8 significant bits. */
static bool fits_bf16(mxa_format format)
{
    return format != MXA_FORMAT_F16 && format != MXA_FORMAT_F32;
}

mxa_avx512_copy mxa_avx512_copy_of(const mxa_plan *plan, int copy, bool bf16, bool *q_scaled)
{
    const mxa_format q = plan->q[copy].info->format, k = plan->k[copy].info->format;
    const int64_t blocks = (plan->problem.head_dim + MXA_MX_BLOCK - 1) / MXA_MX_BLOCK;
    const int64_t dim = blocks * MXA_MX_BLOCK;
    mxa_avx512_copy c = { .dim = dim, .block = dim };
    *q_scaled = false;
    if (has_integers(q) && has_integers(k)) {
        const bool plain = q == MXA_FORMAT_INT8 && k == MXA_FORMAT_INT8;
        c.kind = plain ? MXA_AVX512_INT8 : MXA_AVX512_BLOCKS;
        c.element = sizeof(int8_t);
        c.block = plain ? dim : MXA_MX_BLOCK;
        *q_scaled = q != MXA_FORMAT_INT8;
    } else if (bf16 && fits_bf16(q) && fits_bf16(k)) {
        c.kind = MXA_AVX512_BF16;
        c.element = sizeof(uint16_t);
    } else {
        c.kind = MXA_AVX512_F32;
        c.element = sizeof(float);
    }
    return c;
}

/* A row's codes as integers, then zeros. False if it holds the NaN of INT8, which is no number. */
static bool load_codes(const mxa_rows *rows, int64_t i, int8_t *out)
{
    const mxa_operand *const op = rows->operand;
    const uint8_t *const codes = rows->codes + i * op->row_bytes;
    const int64_t n = op->x->shape[3];
    if (op->plan->info->format == MXA_FORMAT_MXFP4) {
        mxa_avx512_doubled_e2m1(codes, op->row_bytes * 2, out);
        return true;
    }
    const bool found = mxa_avx512_copy_bytes(codes, n, MXA_INT8_NAN, out);
    return !found || op->plan->info->format == MXA_FORMAT_MXINT8;
}

/* The row of a bf16 copy as it lies in memory, or NULL. */
static const uint16_t *bf16_row(const mxa_rows *rows, int64_t i)
{
    const mxa_operand *const op = rows->operand;
    if (op->plan->info->format != MXA_FORMAT_BF16)
        return NULL;
    if (rows->codes)
        return (const void *)(rows->codes + i * op->row_bytes);
    return op->x->dtype == MXA_DTYPE_BF16 ? mxa_row(op->x, rows->batch, rows->head, rows->first + i) : NULL;
}

/* A row as floats, then zeros up to whole groups. */
static void load_floats(const mxa_rows *rows, int64_t i, float *out)
{
    const int64_t n = rows->operand->x->shape[3];
    const uint16_t *const halves = bf16_row(rows, i);
    if (halves) {
        mxa_avx512_widen_row(halves, n, out);
        return;
    }
    mxa_rows_load(rows, i, 1, out, MXA_AVX512_STRIDE);
    memset(out + n, 0, (size_t)(mxa_avx512_groups(n) - n) * sizeof *out);
}

/* A row as bf16 numbers, then zeros. False if bf16 multiplication does not take them as they are. */
static bool load_bf16(const mxa_rows *rows, int64_t i, uint16_t *out)
{
    const int64_t n = rows->operand->x->shape[3];
    const uint16_t *const halves = bf16_row(rows, i);
    if (halves)
        return mxa_avx512_copy_bf16(halves, n, out);
    float row[MXA_DIM_MAX];
    load_floats(rows, i, row);
    return mxa_avx512_cut_to_bf16(row, mxa_avx512_groups(n), out);
}

/* Row i as c wants it. False if the row cannot be multiplied: its factor is NaN then. */
static bool load_row(const mxa_avx512_copy *c, const mxa_rows *rows, int64_t i, void *out)
{
    if (c->element == sizeof(int8_t))
        return load_codes(rows, i, out);
    if (c->kind == MXA_AVX512_BF16)
        return load_bf16(rows, i, out);
    load_floats(rows, i, out);
    return true;
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

/* Block by block: where its sums start, and its scales. */
static void load_q_blocks(const mxa_avx512_copy *c, const mxa_rows *q, int64_t i, int64_t row)
{
    const int8_t *const codes = (const int8_t *)c->q + row * MXA_AVX512_STRIDE;
    const int64_t blocks = c->dim / c->block;
    for (int64_t b = 0; b < blocks; b++) {
        int32_t sum = 0;
        for (int64_t d = b * c->block; d < (b + 1) * c->block; d++)
            sum += codes[d];
        c->q_start[row * blocks + b] = -MXA_AVX512_OFFSET * sum;
        if (c->q_scale)
            c->q_scale[row * blocks + b] = block_scale(q, i, b);
    }
}

/*
 * vdpbf16ps takes sums below 2^-126 for zeros. Factors of Q and K up to 2^40 keep that below 2^-37 of a
 * logit; rows and keys with larger ones go to the reference.
 */
static float checked_factor(const mxa_avx512_copy *c, float factor)
{
    const float limit = 0x1p40f;
    return c->kind != MXA_AVX512_BF16 || fabsf(factor) <= limit ? factor : mxa_f32_from_bits(MXA_F32_NAN);
}

/* Head h + n of the item. */
static void load_q_head(mxa_avx512_work *w, int copy, int64_t n)
{
    const mxa_item_rows *const item = &w->item;
    const mxa_problem *const p = &item->job->plan->problem;
    const mxa_avx512_copy *const c = &w->copy[copy];
    const mxa_rows q = mxa_job_q(item->job, copy, item->s, item->h + n);
    const double unit = p->softcap > 0 ? 1.0 : MXA_LOG2_E;
    const float scale = (float)((double)p->softmax_scale * unit);
    for (int64_t i = 0; i < item->head_rows; i++) {
        const int64_t row = n * item->head_rows + i, at = item->rows.first + i;
        const bool good = load_row(c, &q, at, (char *)c->q + row * MXA_AVX512_STRIDE * c->element);
        const float factor = checked_factor(c, scale * mxa_rows_factor(&q, at));
        c->factor[row] = good ? factor : mxa_f32_from_bits(MXA_F32_NAN);
        c->bias[row] = (float)((double)mxa_job_bias(item->job, copy, item->s, item->h + n, at) * unit);
        if (c->element == sizeof(int8_t))
            load_q_blocks(c, &q, at, row);
    }
}

void mxa_avx512_load_q(mxa_avx512_work *w, int copy)
{
    for (int64_t n = 0; w->copy[copy].factor && n * w->item.head_rows < w->item.n; n++)
        load_q_head(w, copy, n);
    w->copy[copy].loaded = true;
}

/* Of a copy with a scale per block; 0 for keys that no row sees. */
static void load_k_scales(mxa_avx512_work *w, const mxa_key_tile *t, const mxa_rows *k, int64_t blocks)
{
    memset(w->k_scale, 0, (size_t)(blocks * MXA_TILE) * sizeof *w->k_scale);
    for (int64_t j = t->begin; j < t->end; j++)
        for (int64_t b = 0; b < blocks; b++)
            w->k_scale[b * MXA_TILE + j] = block_scale(k, t->first + j, b);
}

/* Whole groups of keys; those that no row sees are zero. */
void mxa_avx512_load_k(mxa_avx512_work *w, const mxa_key_tile *t)
{
    const mxa_avx512_copy *const c = &w->copy[t->copy];
    const mxa_rows k = mxa_job_k(w->item.job, t->copy, w->item.s, w->item.h_kv);
    const int64_t first = t->begin / MXA_AVX512_COLS * MXA_AVX512_COLS, end = mxa_avx512_groups(t->end);
    const int64_t stride = MXA_AVX512_STRIDE * c->element;
    char *const raw = w->raw;
    for (int64_t j = first; j < end; j++) {
        const bool seen = j >= t->begin && j < t->end;
        const bool good = seen && load_row(c, &k, t->first + j, raw + j * stride);
        const float g = good ? checked_factor(c, mxa_rows_factor(&k, t->first + j)) : 0.0f;
        w->g_k[j] = seen && !good ? mxa_f32_from_bits(MXA_F32_NAN) : g;
        if (!seen)
            memset(raw + j * stride, 0, (size_t)stride);
    }
    if (c->kind == MXA_AVX512_BLOCKS)
        load_k_scales(w, t, &k, c->dim / c->block);
    const int64_t words = c->dim * c->element / (int64_t)sizeof(uint32_t);
    const uint32_t flip = c->element == sizeof(int8_t) ? 0x01010101u * MXA_AVX512_OFFSET : 0;
    for (int64_t j = first; j < end; j += MXA_AVX512_COLS)
        mxa_avx512_pair_keys(raw + j * stride, stride, words, flip, (uint32_t *)w->k + j * words);
}

/* 32 channels of V, from its rows. */
typedef struct channels {
    const char *first; /* those of the first key that some row sees */
    int64_t stride;    /* bytes from key to key */
    mxa_dtype from, to;
    __mmask32 whole; /* the ones that V has */
    bool careful;
} channels;

static channels channels_of(const mxa_item_rows *item, const mxa_key_tile *t, int64_t d)
{
    const mxa_tensor *const v = item->job->v;
    const int64_t element = mxa_dtype_bytes(v->dtype);
    const int64_t key = item->s->k_first + t->first + t->begin;
    return (channels){
        .first = (const char *)mxa_row(v, item->s->batch, item->h_kv, key) + d * element,
        .stride = v->stride[2] * element,
        .from = v->dtype,
        .to = item->job->plan->pv == MXA_PV_F16 ? MXA_DTYPE_F16 : MXA_DTYPE_BF16,
        .whole = mxa_avx512_first_halves(item->dim_v - d),
        .careful = item->careful,
    };
}

/* Of key j, in the P V type; zeros where no row sees it. The careful path takes Inf and NaN out. */
static inline void load_key(const channels *v, const mxa_key_tile *t, int64_t j, bool *v_nonfinite,
                            __m512 c[2])
{
    c[0] = c[1] = _mm512_setzero_ps();
    if (j < t->begin || j >= t->end)
        return;
    mxa_avx512_load_floats(v->first + (j - t->begin) * v->stride, v->from, v->whole, c);
    if (v->from != v->to)
        mxa_avx512_round_to(v->to, c);
    if (v->careful && mxa_avx512_drop_nonfinite(c))
        v_nonfinite[j] = true;
}

/*
 * Rows that see a key of which vdpbf16ps takes V for zeros, or whose sums with P might exceed fp32, go to the
 * reference.
 */
static void check_key(mxa_avx512_work *w, int64_t j, const __m512 c[2])
{
    const float limit = 0x1p55f;
    if (mxa_avx512_extreme(c[0], limit) | mxa_avx512_extreme(c[1], limit))
        w->g_k[j] = mxa_f32_from_bits(MXA_F32_NAN);
}

/* After the keys. Whole groups of them; those that no row sees are zero. */
void mxa_avx512_load_v(mxa_avx512_work *w, const mxa_key_tile *t)
{
    const int64_t first = t->begin / MXA_AVX512_COLS * MXA_AVX512_COLS, end = mxa_avx512_groups(t->end);
    bool *const nonfinite = w->item.v_nonfinite;
    memset(nonfinite, 0, MXA_TILE * sizeof *nonfinite);
    for (int64_t d = 0; d < w->item.channels; d += MXA_AVX512_COLS) {
        const channels v = channels_of(&w->item, t, d);
        for (int64_t j = first; j < end; j += 2) {
            const int64_t at = d * MXA_TILE + j * MXA_AVX512_COLS;
            __m512 even[2], odd[2];
            load_key(&v, t, j, nonfinite, even);
            load_key(&v, t, j + 1, nonfinite, odd);
            if (!w->bf16) {
                mxa_avx512_store_channels(even, odd, (float *)w->v + at);
                continue;
            }
            mxa_avx512_pair_channels(even, odd, (uint16_t *)w->v + at);
            check_key(w, j, even);
            check_key(w, j + 1, odd);
        }
    }
}

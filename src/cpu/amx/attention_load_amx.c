/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Q, K and V as tiles want them. What tiles cannot multiply as the specification says, since they take
 * subnormal numbers for zeros and bf16 ends where fp32 does, makes the row's or the key's factor NaN: rows
 * that meet it go to the reference.
 */
#include "attn/softmax.h"
#include "cpu/amx/attention_amx.h"
#include "cpu/amx/attention_tile_amx.h"
#include "cpu/amx/layout_amx.h"

/*
 * Elements below 2^55 give sums below 2^118; factors up to 2^40 keep their products within fp32, and
 * subnormal numbers taken for zeros below 2^-23 of a logit.
 */
enum { ELEMENT_LIMIT_BF16 = (127 + 55) << 7 };
#define FACTOR_LIMIT 0x1p40f

mxa_amx_copy mxa_amx_copy_of(const mxa_plan *plan, int copy)
{
    const bool integers =
        plan->q[copy].info->format == MXA_FORMAT_INT8 && plan->k[copy].info->format == MXA_FORMAT_INT8;
    const int64_t bytes = plan->problem.head_dim * (integers ? 1 : (int64_t)sizeof(uint16_t));
    return (mxa_amx_copy){ .integers = integers, .row_bytes = mxa_amx_whole(bytes, MXA_AMX_ROW_BYTES) };
}

static float checked_factor(float factor)
{
    return fabsf(factor) <= FACTOR_LIMIT ? factor : mxa_f32_from_bits(MXA_F32_NAN);
}

/* Are all of n words numbers that tiles multiply? n is a multiple of MXA_AMX_WORDS. */
static bool in_range(const uint16_t *x, int64_t n)
{
    __m512i largest = _mm512_setzero_si512();
    for (int64_t d = 0; d < n; d += MXA_AMX_WORDS)
        largest =
            _mm512_max_epu16(largest, _mm512_and_si512(_mm512_loadu_si512(x + d), _mm512_set1_epi16(0x7FFF)));
    return _mm512_cmpge_epu16_mask(largest, _mm512_set1_epi16((short)ELEMENT_LIMIT_BF16)) == 0;
}

/* The masks of 16 numbers of n, from number d on. */
static __mmask16 first_lanes(int64_t n, int64_t d)
{
    return mxa_avx512_span_mask(d, 0, n);
}

static void load_words(const uint16_t *x, int64_t n, int64_t padded, uint16_t *out)
{
    memcpy(out, x, (size_t)n * sizeof *x);
    memset(out + n, 0, (size_t)(padded - n) * sizeof *x);
}

static void round_row(const float *x, int64_t n, int64_t padded, uint16_t *out)
{
    for (int64_t d = 0; d < padded; d += MXA_AVX512_LANES)
        _mm256_storeu_si256((void *)(out + d),
                            mxa_amx_bf16_from_f32(_mm512_maskz_loadu_ps(first_lanes(n, d), x + d)));
}

static void widen_int8(const uint8_t *codes, int64_t n, int64_t padded, uint16_t *out)
{
    for (int64_t d = 0; d < padded; d += MXA_AVX512_LANES) {
        const __m256i bytes = _mm256_maskz_loadu_epi8(first_lanes(n, d), codes + d);
        const __m512i x = _mm512_cvtepi8_epi32(_mm256_castsi256_si128(bytes));
        _mm256_storeu_si256((void *)(out + d), mxa_amx_bf16_from_f32(_mm512_cvtepi32_ps(x)));
    }
}

/* A row of bf16 where it lies, in the copy or in the tensor that is the copy. */
static const uint16_t *bf16_row(const mxa_rows *rows, int64_t i)
{
    const mxa_operand *const op = rows->operand;
    return rows->codes ? (const void *)(rows->codes + i * op->row_bytes)
                       : mxa_row(op->x, rows->batch, rows->head, rows->first + i);
}

static void load_mxfp4(const mxa_rows *rows, int64_t i, int64_t padded, uint16_t *out)
{
    const uint8_t *const codes = rows->codes + i * rows->operand->row_bytes;
    const uint8_t *const scales = rows->scales + i * rows->operand->scale_cols;
    for (int64_t b = 0; b < padded / MXA_MX_BLOCK; b++)
        _mm512_storeu_si512(out + b * MXA_MX_BLOCK, mxa_amx_mxfp4(codes + b * MXA_MX_BLOCK / 2, scales[b]));
}

/* Rows [first, first + n) as bf16, element times block scale, padded with zeros to whole rows of tiles. */
static void load_bf16(const mxa_amx_load *l, const mxa_rows *rows, int64_t first, int64_t n, int64_t padded,
                      uint16_t *out)
{
    const mxa_operand *const op = rows->operand;
    const mxa_format format = op->plan->info->format;
    const int64_t dim = op->x->shape[3];
    const bool is_bf16 = format == MXA_FORMAT_BF16 && (rows->codes || op->x->dtype == MXA_DTYPE_BF16);
    const bool wide = !is_bf16 && format != MXA_FORMAT_INT8 && format != MXA_FORMAT_MXFP4;
    if (wide)
        mxa_rows_load(rows, first, n, l->wide, dim);
    for (int64_t r = 0; r < n; r++, out += padded) {
        if (is_bf16)
            load_words(bf16_row(rows, first + r), dim, padded, out);
        else if (format == MXA_FORMAT_INT8)
            widen_int8(rows->codes + (first + r) * op->row_bytes, dim, padded, out);
        else if (format == MXA_FORMAT_MXFP4)
            load_mxfp4(rows, first + r, padded, out);
        else
            round_row(l->wide + r * dim, dim, padded, out);
    }
}

/* Codes of INT8, padded with zeros. */
static void load_int8(const mxa_rows *rows, int64_t first, int64_t n, int64_t row_bytes, uint8_t *out)
{
    const int64_t dim = rows->operand->x->shape[3];
    const uint8_t *const codes = rows->codes + first * rows->operand->row_bytes;
    if (row_bytes == dim) {
        memcpy(out, codes, (size_t)(n * row_bytes));
        return;
    }
    for (int64_t r = 0; r < n; r++, out += row_bytes) {
        memcpy(out, codes + r * dim, (size_t)dim);
        memset(out + dim, 0, (size_t)(row_bytes - dim));
    }
}

/* Factors of INT8 rows that hold its NaN, which is no number, become NaN. */
static void find_int8_nan(const mxa_rows *rows, int64_t first, int64_t n, float *factors)
{
    const mxa_operand *const op = rows->operand;
    const uint8_t *const codes = rows->codes + first * op->row_bytes;
    if (op->plan->info->format != MXA_FORMAT_INT8 ||
        !memchr(codes, MXA_INT8_NAN, (size_t)(n * op->row_bytes)))
        return;
    for (int64_t r = 0; r < n; r++)
        if (memchr(codes + r * op->row_bytes, MXA_INT8_NAN, (size_t)op->row_bytes))
            factors[r] = mxa_f32_from_bits(MXA_F32_NAN);
}

/* Rows as the copy's tiles have them; factors of those that tiles do not hold become NaN. */
static void load_rows(const mxa_amx_load *l, const mxa_amx_copy *c, const mxa_rows *rows, int64_t first,
                      int64_t n, uint8_t *out, float *factors)
{
    const int64_t words = c->row_bytes / (int64_t)sizeof(uint16_t);
    if (c->integers)
        load_int8(rows, first, n, c->row_bytes, out);
    else
        load_bf16(l, rows, first, n, words, (uint16_t *)out);
    for (int64_t r = 0; r < n && !c->integers; r++)
        if (!in_range((uint16_t *)out + r * words, words))
            factors[r] = mxa_f32_from_bits(MXA_F32_NAN);
    find_int8_nan(rows, first, n, factors);
}

/* Head h + n of the item. */
static void load_q_head(mxa_amx_work *w, int copy, int64_t n)
{
    const mxa_item_rows *const item = &w->item;
    const mxa_problem *const p = &item->job->plan->problem;
    mxa_amx_copy *const c = &w->copy[copy];
    const mxa_rows q = mxa_job_q(item->job, copy, item->s, item->h + n);
    const double unit = p->softcap > 0 ? 1.0 : MXA_LOG2_E;
    const float scale = (float)((double)p->softmax_scale * unit);
    const int64_t first = item->rows.first, row = n * item->head_rows;
    for (int64_t i = 0; i < item->head_rows; i++) {
        c->factor[row + i] = checked_factor(scale * mxa_rows_factor(&q, first + i));
        c->bias[row + i] =
            (float)((double)mxa_job_bias(item->job, copy, item->s, item->h + n, first + i) * unit);
    }
    load_rows(&w->load, c, &q, first, item->head_rows, c->q + row * c->row_bytes, c->factor + row);
}

void mxa_amx_load_q(mxa_amx_work *w, int copy)
{
    mxa_amx_copy *const c = &w->copy[copy];
    const int64_t whole = mxa_amx_whole(w->item.n, MXA_AMX_BLOCK);
    for (int64_t n = 0; n * w->item.head_rows < w->item.n; n++)
        load_q_head(w, copy, n);
    memset(c->q + w->item.n * c->row_bytes, 0, (size_t)((whole - w->item.n) * c->row_bytes));
    c->loaded = true;
}

/* Keys [0, n) of a tile whose first is number first. */
static void load_k(const mxa_attention_job *job, int copy, const mxa_rows *k, int64_t first, int64_t n,
                   const mxa_amx_load *l, const mxa_amx_keys *keys)
{
    const mxa_amx_copy c = mxa_amx_copy_of(job->plan, copy);
    const int64_t steps = c.row_bytes / MXA_AMX_ROW_BYTES;
    for (int64_t j = 0; j < MXA_TILE; j++)
        keys->g_k[copy][j] = j < n ? checked_factor(mxa_rows_factor(k, first + j)) : 1.0f;
    load_rows(l, &c, k, first, n, l->raw, keys->g_k[copy]);
    memset(l->raw + n * c.row_bytes, 0, (size_t)((MXA_TILE - n) * c.row_bytes));
    uint8_t *to = keys->k[copy];
    for (int64_t j = 0; j < MXA_TILE; j += MXA_AMX_ROWS)
        for (int64_t i = 0; i < steps; i++, to += MXA_AMX_TILE_BYTES)
            mxa_amx_transpose(l->raw + j * c.row_bytes + i * MXA_AMX_ROW_BYTES, c.row_bytes, to);
}

/* Is one of n words a subnormal number, or one whose sums with P might exceed fp32? */
static bool holds_extreme(const uint16_t *x, int64_t n)
{
    const short limit = (short)ELEMENT_LIMIT_BF16, last_finite = 0x7F7F, last_subnormal = 0x7F;
    __mmask32 any = 0;
    for (int64_t d = 0; d < n; d += MXA_AMX_WORDS) {
        const __m512i mag = _mm512_and_si512(_mm512_loadu_si512(x + d), _mm512_set1_epi16(0x7FFF));
        const __m512i above_zero = _mm512_sub_epi16(mag, _mm512_set1_epi16(1));
        const __m512i above_limit = _mm512_sub_epi16(mag, _mm512_set1_epi16(limit));
        any |= _mm512_cmple_epu16_mask(above_zero, _mm512_set1_epi16(last_subnormal - 1));
        any |= _mm512_cmple_epu16_mask(above_limit, _mm512_set1_epi16(last_finite - limit));
    }
    return any != 0;
}

/* Inf and NaN become zeros; are there any? */
static bool take_out_nonfinite(uint16_t *x, int64_t n)
{
    const __m512i exponent = _mm512_set1_epi16(0x7F80);
    __mmask32 any = 0;
    for (int64_t d = 0; d < n; d += MXA_AMX_WORDS) {
        const __m512i v = _mm512_loadu_si512(x + d);
        const __mmask32 bad = _mm512_cmpge_epu16_mask(_mm512_and_si512(v, exponent), exponent);
        _mm512_storeu_si512(x + d, _mm512_maskz_mov_epi16((__mmask32)~bad, v));
        any |= bad;
    }
    return any != 0;
}

/* n numbers rounded to bf16, padded with zeros. */
static void round_v_row(const void *v, mxa_dtype type, int64_t n, int64_t padded, uint16_t *out)
{
    for (int64_t d = 0; d < padded; d += MXA_AVX512_LANES) {
        const __mmask16 lanes = first_lanes(n, d);
        __m256i half;
        if (type == MXA_DTYPE_F32)
            half = mxa_amx_bf16_from_f32(_mm512_maskz_loadu_ps(lanes, (const float *)v + d));
        else
            half = _mm512_castsi512_si256(_mm512_maskz_loadu_epi16(lanes, (const uint16_t *)v + d));
        if (type == MXA_DTYPE_F16)
            half = mxa_amx_bf16_from_f32(_mm512_cvtph_ps(half));
        _mm256_storeu_si256((void *)(out + d), half);
    }
}

/* Rows of V of one head, from a tile's first key on. */
typedef struct v_source {
    const mxa_tensor *v;
    int64_t batch, head, first;
    int64_t n; /* keys of the tile */
    int64_t channels;
    bool *nonfinite; /* [MXA_TILE] keys whose Inf and NaN were taken out; NULL: they stay */
} v_source;

/* V of key j as bf16, in the tensor or in memory. */
static const uint16_t *load_v_row(const v_source *x, int64_t j, uint16_t *memory)
{
    const mxa_tensor *const v = x->v;
    if (j >= x->n) {
        memset(memory, 0, (size_t)x->channels * sizeof *memory);
        return memory;
    }
    const uint16_t *const row = mxa_row(v, x->batch, x->head, x->first + j);
    if (v->dtype == MXA_DTYPE_BF16 && x->channels == v->shape[3] && !x->nonfinite)
        return row;
    round_v_row(row, v->dtype, v->shape[3], x->channels, memory);
    if (x->nonfinite)
        x->nonfinite[j] = take_out_nonfinite(memory, x->channels);
    return memory;
}

/* factors, if wanted, become NaN where V has numbers beyond what tiles sum. */
static void load_v(const v_source *x, uint16_t *memory, float *factors, uint8_t *out)
{
    const int64_t next_channels = MXA_AMX_KEY_STEPS * MXA_AMX_TILE_BYTES;
    for (int64_t j = 0; j < MXA_TILE; j += 2) {
        const uint16_t *const a = load_v_row(x, j, memory);
        const uint16_t *const b = load_v_row(x, j + 1, memory + x->channels);
        uint8_t *to =
            out + j / MXA_AMX_BLOCK * MXA_AMX_TILE_BYTES + j % MXA_AMX_BLOCK / 2 * MXA_AMX_ROW_BYTES;
        for (int64_t c = 0; c < x->channels; c += MXA_AMX_BLOCK, to += 2 * next_channels)
            mxa_amx_interleave(a + c, b + c, to, to + next_channels);
        if (factors && holds_extreme(a, x->channels))
            factors[j] = mxa_f32_from_bits(MXA_F32_NAN);
        if (factors && holds_extreme(b, x->channels))
            factors[j + 1] = mxa_f32_from_bits(MXA_F32_NAN);
    }
}

static v_source v_source_of(const mxa_attention_job *job, const mxa_sequence *s, int64_t h_kv, int64_t first)
{
    return (v_source){ .v = job->v,
                       .batch = s->batch,
                       .head = h_kv,
                       .first = s->k_first + first,
                       .n = mxa_min(s->map.kv_len - first, MXA_TILE),
                       .channels = mxa_amx_channels(job->plan) };
}

void mxa_amx_load_careful_v(mxa_amx_work *w, const mxa_key_tile *t)
{
    v_source x = v_source_of(w->item.job, w->item.s, w->item.h_kv, t->first);
    x.nonfinite = w->item.v_nonfinite;
    load_v(&x, w->load.v_rows, NULL, w->v);
}

void mxa_attention_amx_share(const mxa_attention_job *job, const mxa_sequence *s, int64_t h_kv,
                             int64_t k_tile, void *scratch)
{
    mxa_amx_keys keys;
    mxa_amx_load l;
    mxa_amx_place_keys(&keys, job->plan, mxa_job_shared(job, s, h_kv, k_tile));
    mxa_amx_place_load(&l, job->plan, scratch);
    const v_source v = v_source_of(job, s, h_kv, k_tile * MXA_TILE);
    float held[MXA_TILE] = { 0 };
    load_v(&v, l.v_rows, held, keys.v);
    for (int i = 0; i < MXA_COPIES; i++) {
        if (!job->plan->k[i].info)
            continue;
        const mxa_rows k = mxa_job_k(job, i, s, h_kv);
        load_k(job, i, &k, k_tile * MXA_TILE, v.n, &l, &keys);
        for (int64_t j = 0; j < MXA_TILE; j++)
            keys.g_k[i][j] += held[j];
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows against key tiles, 32 and one at a time: while a block is in the softmax, which takes vector units,
 * the tile unit multiplies P V of the block before and Q K of the one after.
 */
#include <math.h>

#include "attn/softmax.h"
#include "cpu/amx/attention_tile_amx.h"
#include "cpu/amx/exp2_amx.h"

/* Of a tile, in one of 16 lanes: the maximum stays while P is below 2^8 where its usual largest is 1. */
#define LARGEST_SUM (MXA_AMX_P_SCALE * 0x1p8f)

enum { ROW_STRIDE = MXA_AMX_PLACES * MXA_TILE }; /* of dots and p, in elements */

/* Some rows, a key tile, and its keys that they see between them, in whole blocks. */
typedef struct block {
    const mxa_amx_tile *tile;
    int64_t first; /* row of the item */
    int rows;
    int place; /* of its dots and p */
    int64_t begin, end;
    mxa_span seen[MXA_AMX_BLOCK]; /* unless the tile is whole */
} block;

static float *dots_of(const mxa_amx_work *w, const block *b)
{
    return w->dots + b->place * MXA_TILE;
}

static uint16_t *p_of(const mxa_amx_work *w, const block *b)
{
    return w->p + b->place * MXA_TILE;
}

/* Sums of 32 rows by 32 columns, and what is multiplied for them next, 64 bytes at a time. */
typedef struct sums_block {
    float *sums;
    const uint8_t *rows, *columns;
    int64_t row_stride, next_columns, sum_stride; /* in bytes */
    int64_t steps_left;
    bool integers, from_zero;
} sums_block;

/* Products that wait: Q K of one block, P V of another, either absent. */
typedef struct products {
    const mxa_amx_work *w;
    const block *qk, *pv;
    int64_t key, channel; /* the next columns */
    int64_t left, total;  /* steps */
    int64_t due;          /* steps by the present row, times rows */
    sums_block now;       /* its sums and the factors of its next step are in tile registers */
} products;

static sums_block next_qk(products *x)
{
    const mxa_amx_copy *const c = x->qk->tile->copy;
    const int64_t row_bytes = c->row_bytes, steps = row_bytes / MXA_AMX_ROW_BYTES, key = x->key;
    x->key += MXA_AMX_BLOCK;
    return (sums_block){ .sums = dots_of(x->w, x->qk) + key,
                         .rows = c->q + x->qk->first * row_bytes,
                         .columns = x->qk->tile->k + key / MXA_AMX_ROWS * steps * MXA_AMX_TILE_BYTES,
                         .row_stride = row_bytes,
                         .next_columns = steps * MXA_AMX_TILE_BYTES,
                         .sum_stride = ROW_STRIDE * sizeof(float),
                         .steps_left = steps,
                         .integers = c->integers,
                         .from_zero = true };
}

static sums_block next_pv(products *x)
{
    const int64_t step = x->pv->begin / MXA_AMX_BLOCK, channel = x->channel;
    x->channel += MXA_AMX_BLOCK;
    return (sums_block){ .sums = mxa_amx_o(x->w, x->pv->first) + channel,
                         .rows = (const uint8_t *)(p_of(x->w, x->pv) + x->pv->begin),
                         .columns = x->pv->tile->v +
                                    (channel / MXA_AMX_ROWS * MXA_AMX_KEY_STEPS + step) * MXA_AMX_TILE_BYTES,
                         .row_stride = ROW_STRIDE * sizeof(uint16_t),
                         .next_columns = MXA_AMX_KEY_STEPS * MXA_AMX_TILE_BYTES,
                         .sum_stride = MXA_AMX_PLACES * x->w->o_row * (int64_t)sizeof(float),
                         .steps_left = x->pv->end / MXA_AMX_BLOCK - step };
}

static sums_block next_sums(products *x)
{
    return x->qk && x->key < x->qk->end ? next_qk(x) : next_pv(x);
}

static void load_factors(const sums_block *b)
{
    mxa_amx_load_factors(b->rows, b->row_stride, b->columns, b->next_columns);
}

static void load_sums(const sums_block *b)
{
    if (b->from_zero)
        mxa_amx_zero_sums();
    else
        mxa_amx_load_sums(b->sums, b->sum_stride);
}

static products products_of(const mxa_amx_work *w, const block *qk, const block *pv)
{
    products x = { .w = w, .qk = qk, .pv = pv, .key = qk ? qk->begin : 0 };
    if (qk)
        x.total += (qk->end - qk->begin) / MXA_AMX_BLOCK * (qk->tile->copy->row_bytes / MXA_AMX_ROW_BYTES);
    if (pv)
        x.total += (pv->end - pv->begin) / MXA_AMX_BLOCK * (w->item.channels / MXA_AMX_BLOCK);
    x.left = x.total;
    if (x.left > 0) {
        x.now = next_sums(&x);
        load_factors(&x.now);
        load_sums(&x.now);
    }
    return x;
}

/* Factors are loaded a step ahead, before sums are stored: for those sums they need not wait then. */
MXA_AVX512_INLINE void step(products *x)
{
    if (x->now.integers)
        mxa_amx_multiply(true);
    else
        mxa_amx_multiply(false);
    float *const sums = x->now.sums;
    const int64_t sum_stride = x->now.sum_stride;
    const bool last = --x->now.steps_left == 0;
    x->left--;
    if (!last) {
        x->now.rows += MXA_AMX_ROW_BYTES;
        x->now.columns += MXA_AMX_TILE_BYTES;
    } else if (x->left > 0) {
        x->now = next_sums(x);
    }
    if (x->left > 0)
        load_factors(&x->now);
    if (last)
        mxa_amx_store_sums(sums, sum_stride);
    if (last && x->left > 0)
        load_sums(&x->now);
}

static void finish(products *x)
{
    while (x->left > 0)
        step(x);
}

/*
 * The share of one of some rows. A step is as much as stands beside a row or two of softmax in the
 * processor's window of instructions.
 */
MXA_AVX512_INLINE void advance(products *x, int rows)
{
    for (x->due += x->total; x->due >= rows; x->due -= rows)
        step(x);
}

/*
 * Sums of products, 16 keys. Integers are below 2^22 and become the last bits of 1.5 * 2^23: two additions in
 * place of a conversion, as in mxa_amx_exp2_finite.
 */
MXA_AVX512_INLINE __m512 load_dots(bool integers, const float *dots)
{
    if (!integers)
        return _mm512_loadu_ps(dots);
    const __m512 round = _mm512_set1_ps(0x1.8p23f);
    const __m512i bits = _mm512_add_epi32(_mm512_loadu_si512(dots), _mm512_castps_si512(round));
    return _mm512_sub_ps(_mm512_castsi512_ps(bits), round);
}
static_assert(127 * 127 * MXA_DIM_MAX < 1 << 22, "sums of INT8 products");

/* How a row's logits come from its dot products, and which keys it sees. */
typedef struct row_terms {
    const float *dots, *g_k;
    float factor, shift;
    int64_t begin, end; /* in whole blocks */
    mxa_span seen;
} row_terms;

/*
 * A row by the largest logit so far: P of bf16 and its sums lane by lane. False if they show that a logit is
 * much larger, or NaN: then nothing has happened. Whole: it sees all keys from begin to end.
 */
MXA_AVX512_INLINE bool weigh_by_old_max(bool integers, bool scaled, bool whole, const row_terms *x,
                                        float *lanes, uint16_t *p)
{
    const __m512 factor = _mm512_set1_ps(x->factor), shift = _mm512_set1_ps(x->shift);
    __m512 sums[2] = { _mm512_setzero_ps(), _mm512_setzero_ps() };
#pragma GCC unroll 4
    for (int64_t j = 0; j < MXA_TILE; j += MXA_AMX_BLOCK) {
        if (!whole && (j < x->begin || j >= x->end))
            continue;
        __m512 half[2];
#pragma GCC unroll 2
        for (int n = 0; n < 2; n++) {
            const int64_t at = j + n * MXA_AVX512_LANES;
            const __m512 dots = load_dots(integers, x->dots + at);
            const __m512 y = scaled ? _mm512_mul_ps(dots, _mm512_loadu_ps(x->g_k + at)) : dots;
            half[n] = mxa_amx_exp2_finite(_mm512_fmadd_ps(y, factor, shift));
            if (!whole)
                half[n] = _mm512_maskz_mov_ps(mxa_avx512_span_mask(at, x->seen.first, x->seen.end), half[n]);
            sums[n] = _mm512_add_ps(sums[n], half[n]);
        }
        _mm512_storeu_si512(p + j, mxa_avx512_pack_bf16(half[0], half[1]));
    }
    const __m512 sum = _mm512_add_ps(sums[0], sums[1]);
    if (_mm512_cmp_ps_mask(sum, _mm512_set1_ps(LARGEST_SUM), _CMP_LE_OQ) != 0xFFFF)
        return false;
    _mm512_storeu_ps(lanes, _mm512_add_ps(_mm512_loadu_ps(lanes), sum));
    return true;
}

static row_terms terms_of(const mxa_amx_work *w, const block *b, int r)
{
    const int64_t row = b->first + r;
    const mxa_amx_copy *const c = b->tile->copy;
    return (row_terms){ .dots = dots_of(w, b) + r * ROW_STRIDE,
                        .g_k = b->tile->g_k,
                        .factor = c->factor[row],
                        .shift = c->bias[row] - w->item.max[row] + MXA_AMX_P_LOG2,
                        .begin = b->begin,
                        .end = b->end };
}

/* Has the row a maximum that later logits can be taken relative to? */
MXA_AVX512_INLINE bool has_max(const mxa_amx_work *w, int64_t row)
{
    return w->item.max[row] != -INFINITY && w->item.job->plan->problem.softcap == 0;
}

/* Of a row, -Inf where it sees no key. Returns the largest; NaN only beside nothing but -Inf. */
static float find_logits(const mxa_amx_work *w, const block *b, int r, mxa_span seen)
{
    const mxa_amx_copy *const c = b->tile->copy;
    const float *const dots = dots_of(w, b) + r * ROW_STRIDE, *const g_k = b->tile->g_k;
    const float softcap = w->item.job->plan->problem.softcap;
    const __m512 factor = _mm512_set1_ps(c->factor[b->first + r]), none = _mm512_set1_ps(-INFINITY);
    const __m512 bias = _mm512_set1_ps(c->bias[b->first + r]), cap = _mm512_set1_ps(softcap);
    const __m512 cap2 = _mm512_set1_ps((float)((double)softcap * MXA_LOG2_E));
    __m512 largest = none;
    __mmask16 nan = 0;
    for (int64_t j = b->begin; j < b->end; j += MXA_AVX512_LANES) {
        const __m512 scaled = _mm512_mul_ps(load_dots(c->integers, dots + j), _mm512_loadu_ps(g_k + j));
        __m512 x = _mm512_fmadd_ps(scaled, factor, bias);
        /* A cap near the largest number is infinite in base 2. */
        if (softcap > 0)
            x = mxa_avx512_nan_if_inf(_mm512_mul_ps(cap2, mxa_avx512_tanh(_mm512_div_ps(x, cap))));
        x = _mm512_mask_mov_ps(none, mxa_avx512_span_mask(j, seen.first, seen.end), x);
        nan |= _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
        largest = _mm512_max_ps(x, largest); /* which stays where x is NaN */
        _mm512_storeu_ps(w->logits + j, x);
    }
    const float max = _mm512_reduce_max_ps(largest);
    return nan && max == -INFINITY ? NAN : max;
}

/* What the row has so far shrinks by 2^(old - new). */
static void raise_max(const mxa_amx_work *w, int64_t row, float new)
{
    const float old = w->item.max[row];
    w->item.max[row] = new;
    if (old == -INFINITY)
        return;
    const __m512 alpha = mxa_avx512_exp2_fine(_mm512_set1_ps(old - new)); /* its error adds up over tiles */
    float *const o = mxa_amx_o(w, row), *const lanes = w->lanes + row * MXA_AVX512_LANES;
    for (int64_t d = 0; d < w->item.channels; d += MXA_AVX512_LANES)
        _mm512_storeu_ps(o + d, _mm512_mul_ps(_mm512_loadu_ps(o + d), alpha));
    _mm512_storeu_ps(lanes, _mm512_mul_ps(_mm512_loadu_ps(lanes), alpha));
    w->item.sum[row] *= _mm512_cvtss_f32(alpha);
}

/* Any row by its new maximum; its logits are there. */
static void add_by_new_max(const mxa_amx_work *w, const block *b, int r, float largest)
{
    const int64_t row = b->first + r;
    float *const lanes = w->lanes + row * MXA_AVX512_LANES;
    uint16_t *const p = p_of(w, b) + r * ROW_STRIDE;
    if (!(largest <= w->item.max[row])) /* NaN too */
        raise_max(w, row, largest);
    if (w->item.max[row] == -INFINITY) {
        memset(p + b->begin, 0, (size_t)(b->end - b->begin) * sizeof *p);
        return;
    }
    const __m512 max = _mm512_set1_ps(w->item.max[row]), power = _mm512_set1_ps(MXA_AMX_P_LOG2);
    __m512 sum = _mm512_loadu_ps(lanes);
    for (int64_t j = b->begin; j < b->end; j += MXA_AMX_BLOCK) {
        const __m512 low = _mm512_sub_ps(_mm512_loadu_ps(w->logits + j), max);
        const __m512 high = _mm512_sub_ps(_mm512_loadu_ps(w->logits + j + MXA_AVX512_LANES), max);
        const __m512 p0 = mxa_amx_exp2(_mm512_add_ps(low, power));
        const __m512 p1 = mxa_amx_exp2(_mm512_add_ps(high, power));
        sum = _mm512_add_ps(sum, _mm512_add_ps(p0, p1));
        _mm512_storeu_si512(p + j, mxa_avx512_pack_bf16(p0, p1));
    }
    _mm512_storeu_ps(lanes, sum);
}

/* A row in any case. */
static void add_row(const mxa_amx_work *w, const block *b, int r, bool weighed)
{
    const mxa_span all = { 0, MXA_TILE }, seen = b->tile->whole ? all : b->seen[r];
    if (!weighed && !b->tile->whole && has_max(w, b->first + r)) {
        row_terms x = terms_of(w, b, r);
        x.seen = seen;
        float *const lanes = w->lanes + (b->first + r) * MXA_AVX512_LANES;
        uint16_t *const p = p_of(w, b) + r * ROW_STRIDE;
        weighed = b->tile->copy->integers ? weigh_by_old_max(true, true, false, &x, lanes, p)
                                          : weigh_by_old_max(false, true, false, &x, lanes, p);
    }
    if (weighed && !w->item.careful)
        return;
    const float largest = find_logits(w, b, r, seen);
    if (w->item.careful)
        mxa_item_collect(&w->item, &b->tile->t, b->first + r, w->logits);
    if (!weighed)
        add_by_new_max(w, b, r, largest);
}

/* All rows of a block, and products beside them. */
MXA_AVX512_INLINE void add_rows(bool integers, bool scaled, const mxa_amx_work *w, const block *b,
                                products *beside)
{
    for (int r = 0; r < b->rows; r++) {
        advance(beside, b->rows);
        bool weighed = false;
        if (b->tile->whole && has_max(w, b->first + r)) {
            const row_terms x = terms_of(w, b, r);
            weighed =
                weigh_by_old_max(integers, scaled, true, &x, w->lanes + (b->first + r) * MXA_AVX512_LANES,
                                 p_of(w, b) + r * ROW_STRIDE);
        }
        if (!weighed || w->item.careful)
            add_row(w, b, r, weighed);
    }
}

static void add_block(const mxa_amx_work *w, const block *b, products *beside)
{
    if (b->tile->copy->integers)
        add_rows(true, true, w, b, beside);
    else if (b->tile->scaled)
        add_rows(false, true, w, b, beside);
    else
        add_rows(false, false, w, b, beside);
}

/* Rows from first on, and which keys of the tile they see. */
static void start_block(const mxa_amx_work *w, const mxa_amx_tile *tile, int64_t first, block *b)
{
    b->tile = tile;
    b->first = first;
    b->rows = (int)mxa_min(w->item.n - first, MXA_AMX_BLOCK);
    b->begin = tile->whole ? 0 : MXA_TILE;
    b->end = tile->whole ? MXA_TILE : 0;
    for (int r = 0; r < b->rows && !tile->whole; r++) {
        b->seen[r] = mxa_item_seen(&w->item, &tile->t, first + r);
        if (b->seen[r].first < b->seen[r].end) {
            b->begin = mxa_min(b->begin, b->seen[r].first / MXA_AMX_BLOCK * MXA_AMX_BLOCK);
            b->end = mxa_max(b->end, mxa_amx_whole(b->seen[r].end, MXA_AMX_BLOCK));
        }
    }
}

/* The blocks of a group of rows with any key of the tiles, in the order in which they are computed. */
static int start_group(const mxa_amx_work *w, const mxa_amx_tile *tiles, int64_t n_tiles, int64_t first,
                       block *blocks)
{
    const int64_t end = mxa_min(first + MXA_AMX_GROUP, w->item.n);
    int n = 0;
    for (int64_t i = 0; i < n_tiles; i++)
        for (int64_t row = first; row < end; row += MXA_AMX_BLOCK) {
            start_block(w, &tiles[i], row, &blocks[n]);
            blocks[n].place = n % MXA_AMX_PLACES;
            n += blocks[n].begin < blocks[n].end;
        }
    return n;
}

/* A new maximum scales O, in which P V of the same rows must be by then. */
static void add_group(const mxa_amx_work *w, const block *blocks, int n)
{
    products ahead = products_of(w, n > 0 ? &blocks[0] : NULL, NULL);
    finish(&ahead);
    for (int i = 0; i < n; i++) {
        const block *const b = &blocks[i], *before = i > 0 ? b - 1 : NULL;
        if (before && before->first == b->first) {
            products pv = products_of(w, NULL, before);
            finish(&pv);
            before = NULL;
        }
        products beside = products_of(w, i + 1 < n ? b + 1 : NULL, before);
        add_block(w, b, &beside);
    }
    products behind = products_of(w, NULL, n > 0 ? &blocks[n - 1] : NULL);
    finish(&behind);
}

void mxa_amx_add_tiles(const mxa_amx_work *w, const mxa_amx_tile *tiles, int64_t n)
{
    block blocks[MXA_AMX_CHUNK * MXA_AMX_PLACES];
    for (int64_t first = 0; first < w->item.n; first += MXA_AMX_GROUP)
        add_group(w, blocks, start_group(w, tiles, n, first, blocks));
    /* GCC forgets it here; code without AVX then takes many times as long. */
    _mm256_zeroupper();
}

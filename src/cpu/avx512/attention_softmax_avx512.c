/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The online softmax of a block. Logits are taken relative to the row's reference, which is its largest logit
 * until one exceeds it by raise_above: weights stay below 2^raise_above, and neither they nor O are scaled
 * while the largest logit grows by less.
 */
#include <math.h>

#include "attn/softmax.h"
#include "cpu/avx512/attention_tile_avx512.h"

static const float raise_above = 8.0f;

/*
 * Dot products to logits in base 2 less base, or to natural ones where a softcap follows. Returns the largest
 * of each lane.
 */
static __m512 finish_logits(const mxa_avx512_work *w, const mxa_avx512_copy *c, const mxa_avx512_block *b,
                            int r, float base)
{
    float *const s = w->logits + r * MXA_TILE;
    const __m512 factor = _mm512_set1_ps(c->factor[b->first + r]);
    const __m512 bias = _mm512_set1_ps(c->bias[b->first + r] - base);
    __m512 largest[2] = { _mm512_set1_ps(-INFINITY), _mm512_set1_ps(-INFINITY) };
    for (int64_t j = b->begin; j < b->end; j += MXA_AVX512_COLS)
        for (int half = 0; half < 2; half++) {
            const int64_t at = j + half * MXA_AVX512_LANES;
            const __m512 scaled = _mm512_mul_ps(_mm512_loadu_ps(s + at), _mm512_loadu_ps(w->g_k + at));
            const __m512 logit = mxa_avx512_nan_if_inf(_mm512_fmadd_ps(scaled, factor, bias));
            largest[half] = _mm512_max_ps(logit, largest[half]); /* keeps its second operand beside NaN */
            _mm512_storeu_ps(s + at, logit);
        }
    return _mm512_max_ps(largest[0], largest[1]);
}

/* A cap near the largest number is infinite in base 2. */
static void cap_logits(float *s, const mxa_avx512_block *b, float softcap, float base)
{
    const __m512 cap = _mm512_set1_ps(softcap), less = _mm512_set1_ps(base);
    const __m512 cap2 = _mm512_set1_ps((float)((double)softcap * MXA_LOG2_E));
    for (int64_t j = b->begin; j < b->end; j += MXA_AVX512_LANES) {
        const __m512 ratio = mxa_avx512_tanh(_mm512_div_ps(_mm512_loadu_ps(s + j), cap));
        _mm512_storeu_ps(s + j, mxa_avx512_nan_if_inf(_mm512_fmsub_ps(cap2, ratio, less)));
    }
}

/* -Inf for keys of the block that the row does not see. Returns the largest of each lane. */
static __m512 mask_logits(float *s, const mxa_avx512_block *b, mxa_span seen)
{
    __m512 largest = _mm512_set1_ps(-INFINITY);
    for (int64_t j = b->begin; j < b->end; j += MXA_AVX512_LANES) {
        const __mmask16 visible = mxa_avx512_span_mask(j, seen.first, seen.end);
        const __m512 logit = _mm512_mask_mov_ps(_mm512_set1_ps(-INFINITY), visible, _mm512_loadu_ps(s + j));
        largest = _mm512_max_ps(logit, largest);
        _mm512_storeu_ps(s + j, logit);
    }
    return largest;
}

/* Logits of n vectors to weights: floats in place, or bf16 in p. Adds the unrounded ones to two sums. */
MXA_AVX512_INLINE void weigh_vectors(int n, bool bf16, float *s, uint16_t *p, __m512 sums[2])
{
    __m512 x[MXA_AVX512_TOGETHER];
#pragma GCC unroll 4
    for (int i = 0; i < n; i++)
        x[i] = _mm512_loadu_ps(s + i * MXA_AVX512_LANES);
    mxa_avx512_exp2(n, bf16 ? MXA_AVX512_P_LOG2 : 0.0f, x);
#pragma GCC unroll 4
    for (int i = 0; i < n; i++) {
        sums[i % 2] = _mm512_add_ps(sums[i % 2], x[i]);
        if (!bf16)
            _mm512_storeu_ps(s + i * MXA_AVX512_LANES, x[i]);
        else if (i % 2)
            _mm512_storeu_si512(p + (i - 1) * MXA_AVX512_LANES, mxa_avx512_pack_bf16(x[i - 1], x[i]));
    }
}

/* Logits of a row to weights; adds them to its sums. */
MXA_AVX512_INLINE void weigh(bool bf16, float *s, const mxa_avx512_block *b, uint16_t *p, float *row_sums)
{
    __m512 sums[2] = { _mm512_loadu_ps(row_sums), _mm512_setzero_ps() };
    const int64_t step = MXA_AVX512_TOGETHER * MXA_AVX512_LANES;
    int64_t j = b->begin;
    for (; j + step <= b->end; j += step)
        weigh_vectors(MXA_AVX512_TOGETHER, bf16, s + j, p + j, sums);
    for (; j < b->end; j += MXA_AVX512_COLS)
        weigh_vectors(2, bf16, s + j, p + j, sums);
    _mm512_storeu_ps(row_sums, _mm512_add_ps(sums[0], sums[1]));
}

/*
 * Set the row's reference to the largest logit; sum, O and logits follow. Where references are so large that
 * rounding them leaves a logit above the new one by more than weights may be, it counts as that much.
 */
static void raise_row(mxa_avx512_work *w, mxa_avx512_block *b, int r, float largest)
{
    const int64_t row = b->first + r;
    float *const s = w->logits + r * MXA_TILE, *const sums = w->sums + row * MXA_AVX512_LANES;
    const bool begun = w->item.max[row] != -INFINITY;
    const float base = begun ? w->item.max[row] : 0.0f, raised = base + largest, step = raised - base;
    const __m512 alpha = begun ? mxa_avx512_exp2_fine(_mm512_set1_ps(-step)) : _mm512_setzero_ps();
    const __m512 highest = _mm512_set1_ps(raise_above);
    for (int64_t j = b->begin; j < b->end; j += MXA_AVX512_LANES) {
        const __m512 logit = _mm512_sub_ps(_mm512_loadu_ps(s + j), _mm512_set1_ps(step));
        _mm512_storeu_ps(s + j, _mm512_min_ps(highest, logit)); /* which stays if it is NaN */
    }
    _mm512_storeu_ps(sums, _mm512_mul_ps(_mm512_loadu_ps(sums), alpha));
    b->alpha[r] = _mm512_cvtss_f32(alpha);
    w->item.sum[row] *= b->alpha[r];
    w->item.max[row] = raised;
}

static void softmax_row(mxa_avx512_work *w, const mxa_key_tile *t, mxa_avx512_block *b, int r)
{
    const int64_t row = b->first + r;
    const float softcap = w->item.job->plan->problem.softcap;
    float *const s = w->logits + r * MXA_TILE;
    uint16_t *const p = w->p + r * MXA_TILE;
    const bool begun = w->item.max[row] != -INFINITY;
    const bool edge = b->seen[r].first > b->begin || b->seen[r].end < b->end;
    const float base = begun ? w->item.max[row] : 0.0f;
    __m512 largest = finish_logits(w, &w->copy[t->copy], b, r, softcap > 0 ? 0.0f : base);
    if (softcap > 0)
        cap_logits(s, b, softcap, base);
    if (softcap > 0 || edge)
        largest = mask_logits(s, b, b->seen[r]);
    if (w->item.careful)
        mxa_item_collect(&w->item, t, row, s);

    b->alpha[r] = 1.0f;
    if (!begun || _mm512_cmp_ps_mask(largest, _mm512_set1_ps(raise_above), _CMP_GT_OQ)) {
        const float found = _mm512_reduce_max_ps(largest);
        if (found != -INFINITY)
            raise_row(w, b, r, found);
    }
    float *const sums = w->sums + row * MXA_AVX512_LANES;
    if (w->bf16)
        weigh(true, s, b, p, sums);
    else
        weigh(false, s, b, p, sums);
}

void mxa_avx512_softmax(mxa_avx512_work *w, const mxa_key_tile *t, mxa_avx512_block *b)
{
    for (int r = 0; r < b->rows; r++)
        softmax_row(w, t, b, r);
}

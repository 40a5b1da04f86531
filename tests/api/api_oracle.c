/* SPDX-License-Identifier: Apache-2.0 */
/* Attention in float64, as docs/numerics.md writes it, and the bounds within which a recipe has to stay. */
#include "api_support.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

/* ------------------------------------------------------------------ the formula */

/* Where a row of the tensors stands: rows and keys of its sequence, and its position. */
typedef struct row_place {
    int64_t key_first, key_count, position;
    bool in_sequence;
} row_place;

static row_place place_of(const mxa_problem *p, int64_t i)
{
    int64_t q_first = 0, q_count = p->q_len;
    row_place place = { 0, p->kv_len, 0, true };
    if (p->cu_seqlens_q != NULL) {
        int64_t s = 0;
        while (s < p->batch && p->cu_seqlens_q[s + 1] <= i)
            s++;
        if (s == p->batch)
            return (row_place){ 0, 0, 0, false };
        q_first = p->cu_seqlens_q[s];
        q_count = p->cu_seqlens_q[s + 1] - q_first;
        place.key_first = p->cu_seqlens_k[s];
        place.key_count = p->cu_seqlens_k[s + 1] - place.key_first;
    }
    place.position = i - q_first + (p->q_offset == MXA_OFFSET_AUTO ? place.key_count - q_count : p->q_offset);
    return place;
}

static bool is_visible(const mxa_problem *p, int64_t position, int64_t key)
{
    const int64_t right = p->causal ? 0 : p->window_right;
    return (p->window_left < 0 || key >= position - p->window_left) && (right < 0 || key <= position + right);
}

static double logit_of(const api_call *c, int64_t b, int64_t h, int64_t i, int64_t key, double *dot_abs)
{
    const mxa_problem *p = &c->problem;
    const int64_t h_kv = h / (p->heads / p->heads_kv);
    double dot = 0;
    *dot_abs = 0;
    for (int64_t d = 0; d < p->head_dim; d++) {
        const double product = api_get(&c->q, b, h, i, d) * api_get(&c->k, b, h_kv, key, d);
        dot += product;
        *dot_abs += fabs(product);
    }
    *dot_abs *= fabs((double)p->softmax_scale);
    return p->softmax_scale * dot;
}

/* Logits of the row's visible keys, which seen marks; fills in what the bounds need. */
static void row_logits(const api_call *c, api_expected *e, int64_t row, row_place place, double *logits,
                       bool *seen)
{
    const mxa_problem *p = &c->problem;
    const int64_t b = row / (p->heads * p->q_len), h = row / p->q_len % p->heads, i = row % p->q_len;
    for (int64_t j = 0; j < place.key_count; j++) {
        seen[j] = is_visible(p, place.position, j);
        if (!seen[j])
            continue;
        double dot_abs;
        const double t = logit_of(c, b, h, i, place.key_first + j, &dot_abs);
        logits[j] = p->softcap > 0 ? p->softcap * tanh(t / p->softcap) : t;
        e->visible[row]++;
        e->dot_abs[row] = fmax(e->dot_abs[row], dot_abs);
        e->logit_abs[row] = fmax(e->logit_abs[row], fabs(t));
    }
}

/*
 * Turn logits into weights and return LSE. A visible NaN or +Inf makes the row NaN, -Inf counts as masked;
 * keys that are not seen have weight 0.
 */
static double row_weights(double *logits, const bool *seen, int64_t n, double sink)
{
    double max = sink;
    for (int64_t j = 0; j < n; j++)
        if (seen[j])
            max = isnan(max) || isnan(logits[j]) || logits[j] == INFINITY ? NAN : fmax(max, logits[j]);
    double sum = sink == -INFINITY ? 0 : exp(sink - max);
    for (int64_t j = 0; j < n; j++) {
        logits[j] = !seen[j] || max == -INFINITY ? 0 : exp(logits[j] - max);
        sum += logits[j];
    }
    for (int64_t j = 0; j < n && max != -INFINITY; j++)
        logits[j] /= sum;
    return max == -INFINITY ? -INFINITY : max + log(sum);
}

static void row_output(const api_call *c, api_expected *e, int64_t row, row_place place,
                       const double *weights, const bool *seen)
{
    const mxa_problem *p = &c->problem;
    const int64_t b = row / (p->heads * p->q_len), h = row / p->q_len % p->heads;
    for (int64_t d = 0; d < p->head_dim_v; d++) {
        double o = 0, o_abs = 0, v_abs = 0;
        for (int64_t j = 0; j < place.key_count; j++) {
            if (!seen[j])
                continue;
            const double v = api_get(&c->v, b, h / (p->heads / p->heads_kv), place.key_first + j, d);
            o += isinf(v) && !isnan(weights[j]) ? v : weights[j] * v;
            o_abs += weights[j] * fabs(v);
            v_abs = fmax(v_abs, fabs(v));
        }
        e->o[row * e->dim_v + d] = o;
        e->o_abs[row * e->dim_v + d] = o_abs;
        e->v_abs[row * e->dim_v + d] = v_abs;
    }
}

static double *zeros(int64_t count)
{
    return memset(api_bytes((size_t)count * sizeof(double)), 0, (size_t)count * sizeof(double));
}

api_expected api_oracle(const api_call *call)
{
    const mxa_problem *p = &call->problem;
    const int64_t rows = call->q.shape[0] * p->heads * p->q_len;
    api_expected e = { .rows = rows, .dim_v = p->head_dim_v };
    e.o = zeros(rows * e.dim_v);
    e.o_abs = zeros(rows * e.dim_v);
    e.v_abs = zeros(rows * e.dim_v);
    e.lse = zeros(rows);
    e.dot_abs = zeros(rows);
    e.logit_abs = zeros(rows);
    e.visible = memset(api_bytes((size_t)rows * sizeof(int64_t)), 0, (size_t)rows * sizeof(int64_t));
    double *logits = zeros(p->kv_len);
    bool *seen = api_bytes((size_t)p->kv_len * sizeof(bool));
    for (int64_t row = 0; row < rows; row++) {
        const row_place place = place_of(p, row % p->q_len);
        const bool sink = call->sinks != NULL && place.in_sequence;
        row_logits(call, &e, row, place, logits, seen);
        e.lse[row] = row_weights(logits, seen, place.key_count,
                                 sink ? call->sinks[row / p->q_len % p->heads] : -INFINITY);
        row_output(call, &e, row, place, logits, seen);
    }
    return e;
}

/* ------------------------------------------------------------------ comparing */

const api_tolerance API_EXACT = { 0 };

/*
 * fp32 arithmetic of the kernels: a dot product of head_dim products and its factors; 2^x as roughly as the
 * entry of the list that has the roughest; P in bf16, or fp16 where V is.
 */
api_tolerance api_tolerance_of(const api_call *call)
{
    const double ulp = ldexp(1, -24);
    const bool f16 = call->problem.v_dtype == MXA_DTYPE_F16;
    if (strcmp(call->recipe, "exact") == 0)
        return API_EXACT;
    return (api_tolerance){ .dot = (double)(call->problem.head_dim + 16) * ulp,
                            .logit = 8 * ulp,
                            .exp2 = ldexp(1, -18),
                            .p = ldexp(1, f16 ? -11 : -8),
                            .p_abs = f16 ? ldexp(1, -25) : 0,
                            .sum = 2 * ulp };
}

/* Error of float64 sums, relative to the sum of magnitudes. */
static const double sum_error = 1e-12;

/* Error of one rounding to the type. */
static double rounding(mxa_dtype dtype, double value)
{
    if (dtype == MXA_DTYPE_F32)
        return ldexp(fabs(value), -24) + ldexp(1, -149);
    return dtype == MXA_DTYPE_F16 ? ldexp(fabs(value), -11) + ldexp(1, -25) : ldexp(fabs(value), -8);
}

/* Both NaN, or the same infinity, or both finite: then they are to be compared. */
static bool both_finite(double got, double want, const char *what, int64_t row, int64_t d)
{
    if (isfinite(got) && isfinite(want))
        return true;
    if (!(isnan(got) && isnan(want)) && got != want)
        fail_msg("%s of row %lld, channel %lld: %g instead of %g", what, (long long)row, (long long)d, got,
                 want);
    return false;
}

static void check_row(const api_call *call, const api_expected *want, int64_t row, api_tolerance tol)
{
    const mxa_tensor *out = &call->out;
    const int64_t heads = out->shape[1], q_len = out->shape[2], n = want->visible[row];
    const double logit = (tol.dot + sum_error) * want->dot_abs[row] + tol.logit * want->logit_abs[row];
    const double sum = tol.sum * (double)n + tol.exp2 + sum_error;
    if (call->lse != NULL && both_finite(call->lse[row], want->lse[row], "LSE", row, -1)) {
        const double error = fabs(call->lse[row] - want->lse[row]);
        const double bound = logit + sum + 4 * rounding(MXA_DTYPE_F32, want->lse[row]);
        if (error > bound)
            fail_msg("LSE of row %lld: %.9g instead of %.9g, bound %g", (long long)row, call->lse[row],
                     want->lse[row], bound);
    }
    for (int64_t d = 0; d < want->dim_v; d++) {
        const int64_t at = row * want->dim_v + d;
        const double got = api_get(out, row / (heads * q_len), row / q_len % heads, row % q_len, d);
        if (!both_finite(got, want->o[at], "O", row, d))
            continue;
        const double bound = (expm1(2 * logit) + tol.p + 2 * sum) * want->o_abs[at] +
                             (double)n * tol.p_abs * want->v_abs[at] + rounding(out->dtype, want->o[at]);
        if (fabs(got - want->o[at]) > bound)
            fail_msg("O of row %lld, channel %lld: %.9g instead of %.9g, bound %g (recipe %s)",
                     (long long)row, (long long)d, got, want->o[at], bound, call->recipe);
    }
}

void api_check(const api_call *call, const api_expected *want, api_tolerance tolerance)
{
    for (int64_t row = 0; row < want->rows; row++)
        check_row(call, want, row, tolerance);
}

void api_attend_and_check(const api_call *call)
{
    api_attend(call);
    const api_expected want = api_oracle(call);
    api_check(call, &want, api_tolerance_of(call));
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>

#include "core/bits.h"
#include "core/status.h"
#include "core/tensor.h"

static mxa_status check_part(const char *name, const mxa_tensor *o, const mxa_tensor *out)
{
    const mxa_status status = mxa_check_tensor(name, o);
    if (status != MXA_OK)
        return status;
    for (int axis = 0; axis < 4; axis++)
        if (o->shape[axis] != out->shape[axis])
            return mxa_fail(MXA_ERR_SHAPE, "%s: size %lld of axis %d is not the output's %lld", name,
                            (long long)o->shape[axis], axis, (long long)out->shape[axis]);
    return MXA_OK;
}

static mxa_status check_array(const char *name, const float *array)
{
    if ((uintptr_t)array % sizeof(float) != 0)
        return mxa_fail(MXA_ERR_ALIGN, "%s: %p is not aligned to its 4-byte elements", name,
                        (const void *)array);
    return MXA_OK;
}

static mxa_status check_merge(int n, const mxa_tensor *o, const float *const *lse, const float *sinks,
                              const mxa_tensor *out, const float *out_lse)
{
    if (n < 0)
        return mxa_fail(MXA_ERR_ARG, "n: %d is negative", n);
    if (n > 0 && (!o || !lse))
        return mxa_fail(MXA_ERR_ARG, "%s: is NULL", o ? "lse" : "o");
    mxa_status status = mxa_check_output("out", out);
    for (int i = 0; i < n && status == MXA_OK; i++) {
        char name[32];
        snprintf(name, sizeof name, "o[%d]", i);
        status = check_part(name, &o[i], out);
        snprintf(name, sizeof name, "lse[%d]", i);
        if (status == MXA_OK && !lse[i])
            status = mxa_fail(MXA_ERR_ARG, "%s: is NULL", name);
        if (status == MXA_OK)
            status = check_array(name, lse[i]);
    }
    if (status == MXA_OK)
        status = check_array("sinks", sinks);
    return status == MXA_OK ? check_array("out_lse", out_lse) : status;
}

/* The row's parts: weights exp(lse - max) relative to the largest, a sink logit among them without value. */
typedef struct row_state {
    double max, sum;
    bool is_nan;
} row_state;

static row_state weigh(int n, const float *const *lse, int64_t row, double sink)
{
    row_state s = { sink, 0, isnan(sink) || sink == INFINITY };
    for (int i = 0; i < n; i++) {
        const double x = (double)lse[i][row];
        s.is_nan = s.is_nan || isnan(x) || x == INFINITY;
        s.max = x > s.max ? x : s.max;
    }
    if (s.is_nan || s.max == -INFINITY)
        return s;
    s.sum = exp(sink - s.max);
    for (int i = 0; i < n; i++)
        s.sum += exp((double)lse[i][row] - s.max);
    return s;
}

static float load_element(const mxa_tensor *x, const void *row, int64_t d)
{
    switch (x->dtype) {
    case MXA_DTYPE_F16: return mxa_f32_from_f16(((const uint16_t *)row)[d]);
    case MXA_DTYPE_BF16: return mxa_f32_from_bf16(((const uint16_t *)row)[d]);
    default: return ((const float *)row)[d];
    }
}

static void store_element(const mxa_tensor *x, void *row, int64_t d, float value)
{
    switch (x->dtype) {
    case MXA_DTYPE_F16: ((uint16_t *)row)[d] = mxa_f16_from_f32(value); break;
    case MXA_DTYPE_BF16: ((uint16_t *)row)[d] = mxa_bf16_from_f32(value); break;
    default: ((float *)row)[d] = mxa_f32_from_bits(mxa_f32_canonical(value)); break; /* one NaN */
    }
}

/*
 * Up to CHUNK elements of a row from d on, all parts read before the first is written. Empty parts do not
 * count.
 */
enum { CHUNK = 128 };

static void merge_chunk(int n, const mxa_tensor *o, const float *const *lse, int64_t row, const row_state *s,
                        const mxa_tensor *out, const int64_t at[3], int64_t d)
{
    const int64_t count = out->shape[3] - d < CHUNK ? out->shape[3] - d : CHUNK;
    double sum[CHUNK] = { 0 };
    for (int i = 0; i < n; i++) {
        const void *const part = mxa_row(&o[i], at[0], at[1], at[2]);
        const double weight = exp((double)lse[i][row] - s->max);
        for (int64_t e = 0; e < count && lse[i][row] != -INFINITY; e++) {
            const float value = load_element(&o[i], part, d + e);
            /* Inf stays Inf, also where its weight underflows. */
            sum[e] += mxa_f32_is_finite(value) ? weight * (double)value : (double)value;
        }
    }
    void *const to = mxa_row(out, at[0], at[1], at[2]);
    for (int64_t e = 0; e < count; e++)
        store_element(out, to, d + e, s->is_nan ? NAN : s->sum == 0 ? 0.0f : (float)(sum[e] / s->sum));
}

mxa_status mxa_merge(int n, const mxa_tensor *o, const float *const *lse, const float *sinks,
                     const mxa_tensor *out, float *out_lse)
{
    const mxa_status status = check_merge(n, o, lse, sinks, out, out_lse);
    if (status != MXA_OK)
        return status;
    const int64_t *const shape = out->shape;
    const int64_t rows = shape[0] * shape[1] * shape[2];
    for (int64_t row = 0; row < rows; row++) {
        const int64_t at[3] = { row / (shape[1] * shape[2]), row / shape[2] % shape[1], row % shape[2] };
        const row_state s = weigh(n, lse, row, sinks ? (double)sinks[at[1]] : -INFINITY);
        for (int64_t d = 0; d < shape[3]; d += CHUNK)
            merge_chunk(n, o, lse, row, &s, out, at, d);
        if (out_lse)
            out_lse[row] = s.is_nan ? NAN : s.sum == 0 ? -INFINITY : (float)(s.max + log(s.sum));
    }
    return MXA_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

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

static mxa_status check_merge(int n, const mxa_tensor *o, const float *const *lse, const mxa_tensor *out)
{
    if (n < 0)
        return mxa_fail(MXA_ERR_ARG, "n: %d is negative", n);
    if (n > 0 && (!o || !lse))
        return mxa_fail(MXA_ERR_ARG, "%s: is NULL", o ? "lse" : "o");
    mxa_status status = mxa_check_output("out", out);
    for (int i = 0; i < n && status == MXA_OK; i++) {
        status = check_part("o", &o[i], out);
        if (status == MXA_OK && !lse[i])
            status = mxa_fail(MXA_ERR_ARG, "lse[%d]: is NULL", i);
    }
    return status;
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

/* One element: parts of weight 0 do not count, whatever they hold. */
static float merge_element(int n, const float *const *lse, int64_t row, const row_state *s,
                           const mxa_tensor *o, const int64_t at[3], int64_t d)
{
    double sum = 0;
    for (int i = 0; i < n; i++) {
        const void *const data = mxa_row(&o[i], at[0], at[1], at[2]);
        if ((double)lse[i][row] == -INFINITY)
            continue;
        const float value = o[i].dtype == MXA_DTYPE_F32   ? ((const float *)data)[d]
                            : o[i].dtype == MXA_DTYPE_F16 ? mxa_f32_from_f16(((const uint16_t *)data)[d])
                                                          : mxa_f32_from_bf16(((const uint16_t *)data)[d]);
        /* Inf stays Inf, also with a weight that underflows. */
        const double weight = exp((double)lse[i][row] - s->max);
        sum += mxa_f32_is_finite(value) ? weight * (double)value : (double)value;
    }
    return s->is_nan ? NAN : s->sum == 0 ? 0.0f : (float)(sum / s->sum);
}

static void store_element(const mxa_tensor *out, const int64_t at[3], int64_t d, float value)
{
    void *const data = mxa_row(out, at[0], at[1], at[2]);
    switch (out->dtype) {
    case MXA_DTYPE_F32: ((float *)data)[d] = value; break;
    case MXA_DTYPE_F16: ((uint16_t *)data)[d] = mxa_f16_from_f32(value); break;
    case MXA_DTYPE_BF16: ((uint16_t *)data)[d] = mxa_bf16_from_f32(value); break;
    }
}

mxa_status mxa_merge(int n, const mxa_tensor *o, const float *const *lse, const float *sinks,
                     const mxa_tensor *out, float *out_lse)
{
    const mxa_status status = check_merge(n, o, lse, out);
    if (status != MXA_OK)
        return status;
    const int64_t *const shape = out->shape;
    const int64_t rows = shape[0] * shape[1] * shape[2];
    for (int64_t row = 0; row < rows; row++) {
        const int64_t at[3] = { row / (shape[1] * shape[2]), row / shape[2] % shape[1], row % shape[2] };
        const row_state s = weigh(n, lse, row, sinks ? (double)sinks[at[1]] : -INFINITY);
        for (int64_t d = 0; d < shape[3]; d++)
            store_element(out, at, d, merge_element(n, lse, row, &s, o, at, d));
        if (out_lse)
            out_lse[row] = s.is_nan ? NAN : s.sum == 0 ? -INFINITY : (float)(s.max + log(s.sum));
    }
    return MXA_OK;
}

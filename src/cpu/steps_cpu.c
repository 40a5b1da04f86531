/* SPDX-License-Identifier: Apache-2.0 */
#include "cpu/steps_cpu.h"

#include "core/tensor.h"
#include "cpu/kernels.h"
#include "cpu/row_items.h"

/* Channels whose sums are kept on the stack together. */
#define MEAN_CHANNELS 64

/* Channels [first, first + n) of some tokens. */
static void mean_channels(const mxa_tensor *x, mxa_row_span s, int64_t first, int64_t n, float *mean)
{
    double sum[MEAN_CHANNELS] = { 0 };
    int64_t count[MEAN_CHANNELS] = { 0 };
    float row[MEAN_CHANNELS];
    mxa_tensor part = *x;
    if (s.rows > 0) /* an empty tensor may have no data */
        part.data = (char *)x->data + first * mxa_dtype_bytes(x->dtype);
    part.shape[3] = n;
    for (int64_t i = 0; i < s.rows; i++) {
        mxa_row_load(&part, s.b, s.h, s.first + i, row);
        for (int64_t d = 0; d < n; d++) {
            if (mxa_f32_is_finite(row[d])) {
                sum[d] += (double)row[d];
                count[d]++;
            }
        }
    }
    for (int64_t d = 0; d < n; d++)
        mean[first + d] = count[d] ? (float)(sum[d] / (double)count[d]) : 0.0f;
}

void mxa_span_mean(const mxa_tensor *x, mxa_row_span s, float *mean)
{
    const int64_t dim = x->shape[3];
    for (int64_t first = 0; first < dim; first += MEAN_CHANNELS)
        mean_channels(x, s, first, dim - first < MEAN_CHANNELS ? dim - first : MEAN_CHANNELS, mean);
}

void mxa_mean_cpu(const mxa_tensor *x, int64_t n_tokens, int threads, float *mean)
{
    const int64_t dim = x->shape[3], matrices = x->shape[0] * x->shape[1];
#pragma omp parallel for schedule(static) num_threads(mxa_token_threads(threads, matrices))
    for (int64_t matrix = 0; matrix < matrices; matrix++) {
        const mxa_row_span s = {
            .b = matrix / x->shape[1], .h = matrix % x->shape[1], .matrix = matrix, .rows = n_tokens
        };
        mxa_span_mean(x, s, mean + matrix * dim);
    }
}

static void sanitize(mxa_dtype dtype, float *x, int64_t n)
{
    const float largest = dtype == MXA_DTYPE_F32   ? mxa_f32_from_bits(MXA_F32_MAX)
                          : dtype == MXA_DTYPE_F16 ? mxa_f32_from_f16(0x7BFF)
                                                   : mxa_f32_from_bf16(0x7F7F);
    for (int64_t i = 0; i < n; i++) {
        const uint32_t bits = mxa_f32_bits(x[i]), mag = bits & 0x7FFFFFFFu;
        const float infinity = bits >> 31 ? -largest : largest;
        x[i] = mag < MXA_F32_INF ? x[i] : mag == MXA_F32_INF ? infinity : 0.0f;
    }
}

void mxa_span_prepare(const mxa_tensor *x, mxa_row_span s, mxa_nonfinite policy, const float *mean,
                      bool rotate, float *rows, uint32_t *amax)
{
    const int64_t dim = x->shape[3];
    mxa_prepare_rows_fn *const prepare = mxa_prepare_pick()->fn;
    mxa_source source = { mxa_row(x, s.b, s.h, s.first), x->dtype, s.rows, dim, x->stride[2] };
    if (policy == MXA_NONFINITE_SANITIZE) {
        prepare(&source, NULL, false, rows, NULL);
        sanitize(x->dtype, rows, s.rows * dim);
        source = (mxa_source){ rows, MXA_DTYPE_F32, s.rows, dim, dim };
    }
    prepare(&source, mean ? mean + s.matrix * dim : NULL, rotate, rows, amax);
}

void mxa_rotate_rows(float *x, int64_t rows, int64_t cols)
{
    const mxa_source source = { x, MXA_DTYPE_F32, rows, cols, cols };
    mxa_prepare_pick()->fn(&source, NULL, true, x, NULL);
}

uint32_t mxa_prepared_amax(const mxa_prepared *x)
{
    int32_t amax = 0; /* signed compares are what vector units have */
    for (int64_t i = 0; i < x->rows * mxa_amax_count(x->cols); i++)
        amax = (int32_t)x->amax[i] > amax ? (int32_t)x->amax[i] : amax;
    return (uint32_t)amax;
}

uint32_t mxa_prepared_finite_amax(const mxa_prepared *x)
{
    const uint32_t any = mxa_prepared_amax(x);
    if (any < MXA_F32_INF)
        return any;
    int32_t amax = 0;
    for (int64_t i = 0; i < x->rows * x->cols; i++) {
        const int32_t mag = (int32_t)(mxa_f32_bits(x->x[i]) & 0x7FFFFFFFu);
        const int32_t finite = mag < (int32_t)MXA_F32_INF ? mag : 0;
        amax = finite > amax ? finite : amax;
    }
    return (uint32_t)amax;
}

void mxa_steps_cpu(const mxa_tensor *x, const float *mean, bool rotate, const mxa_tensor *out)
{
    const int64_t items = mxa_item_count(x->shape);
#pragma omp parallel for schedule(static) num_threads(mxa_token_threads(0, items))
    for (int64_t item = 0; item < items; item++) {
        mxa_row_span rest = mxa_item_span(x->shape, item), row;
        while (rest.rows > 0) {
            rest = mxa_span_split(rest, 1, &row);
            mxa_span_prepare(x, row, MXA_NONFINITE_PROPAGATE, mean, rotate,
                             mxa_row(out, row.b, row.h, row.first), NULL);
        }
    }
}

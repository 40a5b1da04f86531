/* SPDX-License-Identifier: Apache-2.0 */
#include "cpu/steps_cpu.h"

#include "core/tensor.h"
#include "cpu/row_items.h"
#include "cpu/portable/hadamard_portable.h"

/* Channels whose sums are kept on the stack together. */
#define MEAN_CHANNELS 64

/* Channels [first, first + n) of matrix (b, h). */
static void mean_channels(const mxa_tensor *x, int64_t b, int64_t h, int64_t first, int64_t n,
                          int64_t n_tokens, float *mean)
{
    double sum[MEAN_CHANNELS] = { 0 };
    int64_t count[MEAN_CHANNELS] = { 0 };
    float row[MEAN_CHANNELS];
    mxa_tensor part = *x;
    part.data = (char *)x->data + first * mxa_dtype_bytes(x->dtype);
    part.shape[3] = n;
    for (int64_t i = 0; i < n_tokens; i++) {
        mxa_row_load(&part, b, h, i, row);
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

void mxa_mean_cpu(const mxa_tensor *x, int64_t n_tokens, int threads, float *mean)
{
    const int64_t dim = x->shape[3], matrices = x->shape[0] * x->shape[1];
#pragma omp parallel for schedule(static) num_threads(mxa_item_threads(threads, matrices))
    for (int64_t matrix = 0; matrix < matrices; matrix++) {
        const int64_t b = matrix / x->shape[1], h = matrix % x->shape[1];
        for (int64_t first = 0; first < dim; first += MEAN_CHANNELS) {
            const int64_t n = dim - first < MEAN_CHANNELS ? dim - first : MEAN_CHANNELS;
            mean_channels(x, b, h, first, n, n_tokens, mean + matrix * dim);
        }
    }
}

void mxa_steps_cpu(const mxa_tensor *x, const float *mean, bool rotate, const mxa_tensor *out)
{
    const int64_t dim = x->shape[3], items = mxa_item_count(x->shape);
#pragma omp parallel for schedule(static) num_threads(mxa_item_threads(0, items))
    for (int64_t item = 0; item < items; item++) {
        const mxa_row_span s = mxa_item_span(x->shape, item);
        for (int64_t r = s.first; r < s.first + s.rows; r++) {
            float *row = mxa_row(out, s.b, s.h, r);
            if (mxa_row(x, s.b, s.h, r) != (void *)row)
                mxa_row_load(x, s.b, s.h, r, row);
            if (mean)
                for (int64_t d = 0; d < dim; d++)
                    row[d] -= mean[s.matrix * dim + d];
            if (rotate)
                mxa_hadamard_portable(row, dim);
        }
    }
}

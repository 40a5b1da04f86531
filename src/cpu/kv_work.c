/* SPDX-License-Identifier: Apache-2.0 */
#include "cpu/kv_work.h"

#include <omp.h>

#include "core/tensor.h"
#include "cpu/attention_cpu.h"
#include "cpu/copy_row.h"
#include "cpu/row_items.h"
#include "format/format.h"

enum { ALIGNMENT = 64 };

static int64_t take(mxa_kv_work *l, int64_t n, int64_t size)
{
    const int64_t at = l->total;
    int64_t bytes;
    l->fits = l->fits && mxa_mul(n, size, &bytes) && mxa_add(bytes, ALIGNMENT - 1, &bytes) &&
              mxa_add(l->total, bytes & -(int64_t)ALIGNMENT, &l->total);
    return at;
}

mxa_kv_work mxa_kv_work_plan(const mxa_kv_job *job, const mxa_copy_plan *q, int64_t batch, int64_t length,
                             int threads, const mxa_kv_impl *impl)
{
    const int64_t dim = job->view->layout->part[MXA_LOW][MXA_KV_K].copy.info
                            ? job->view->layout->part[MXA_LOW][MXA_KV_K].dim
                            : job->view->layout->part[MXA_HIGH][MXA_KV_K].dim;
    mxa_kv_work l = { .fits = true };
    int64_t rows = 0, cells = 0;
    l.fits = mxa_mul(batch, job->heads, &rows) && mxa_mul(rows, job->n, &rows);
    rows = l.fits ? rows : 0;
    for (int c = 0; c < MXA_COPIES; c++) {
        if (!q[c].info)
            continue;
        l.codes[c] = take(&l, rows, mxa_row_bytes(q[c].info, dim));
        l.scales[c] = take(&l, rows, mxa_scale_cols(q[c].info, dim));
        l.g[c] = take(&l, rows, sizeof(float));
    }
    l.bias = take(&l, rows, sizeof(float));
    l.segments = job->n <= MXA_KV_SPLIT_QUERIES ? mxa_kv_segments(length) : 1;
    l.fits = l.fits && mxa_mul(rows, l.segments, &cells);
    cells = l.fits && l.segments > 1 ? cells : 0;
    l.o = take(&l, cells, job->channels * (int64_t)sizeof(float));
    l.max = take(&l, cells, sizeof(float));
    l.sum = take(&l, cells, sizeof(float));
    l.thread_bytes = 2 * mxa_kv_sums_bytes(job->channels);
    l.thread_bytes += impl->scratch_bytes ? mxa_round_up(impl->scratch_bytes(job), ALIGNMENT) : 0;
    l.scratch = take(&l, threads, l.thread_bytes);
    return l;
}

int mxa_kv_threads(int threads)
{
    return threads > 0 ? threads : omp_get_max_threads();
}

int64_t mxa_kv_channels(const mxa_kv_view *view)
{
    return mxa_round_up(view->layout->part[MXA_LOW][MXA_KV_V].dim, MXA_KV_CHANNELS);
}

size_t mxa_kv_work_bytes(const mxa_kv_view *view, const mxa_copy_plan *q, int64_t batch, int64_t heads,
                         int64_t n, int64_t length, int threads, const mxa_kv_impl *impl)
{
    const mxa_kv_job job = { .view = view, .heads = heads, .n = n, .channels = mxa_kv_channels(view) };
    const mxa_kv_work l = mxa_kv_work_plan(&job, q, batch, length, mxa_kv_threads(threads), impl);
    return l.fits ? (size_t)l.total : 0;
}

/* Both copies of row r of the queries, and its bias. */
static void prepare_row(const mxa_kv_job *job, const mxa_row_coder *coders, const mxa_tensor *q, int64_t b,
                        int64_t h, int64_t i, float *bias)
{
    const int64_t dim = q->shape[3], r = (b * job->heads + h) * job->n + i;
    float row[MXA_DIM_MAX];
    mxa_row_load(q, b, h, i, row);
    const mxa_source source = { row, MXA_DTYPE_F32, 1, dim, dim };
    for (int c = 0; c < MXA_COPIES; c++) {
        const mxa_kv_query *const to = &job->q[c];
        if (to->copy->info)
            mxa_copy_rows(&coders[c], &source, NULL, to->codes + r * to->row_bytes,
                          to->scale_cols ? to->scales + r * to->scale_cols : NULL, to->g ? to->g + r : NULL);
    }
    if (bias) {
        const int64_t h_kv = h / (job->heads / job->view->layout->heads_kv);
        const float *const mean = job->view->sequences[b].mean + h_kv * dim;
        bias[r] = (float)((double)job->softmax_scale * mxa_dot(row, mean, dim));
    }
}

void mxa_kv_prepare(mxa_kv_job *job, const mxa_copy_plan *copies, const mxa_tensor *q, const mxa_kv_work *l,
                    char *work, int threads)
{
    const mxa_kv_layout *const kv = job->view->layout;
    mxa_row_coder coders[MXA_COPIES] = { { 0 } };
    bool smooth = false;
    for (int c = 0; c < MXA_COPIES; c++) {
        job->q[c] = (mxa_kv_query){ .copy = &copies[c] };
        if (!copies[c].info)
            continue;
        coders[c] = mxa_row_coder_of(&copies[c]);
        job->q[c].row_bytes = mxa_row_bytes(copies[c].info, q->shape[3]);
        job->q[c].scale_cols = mxa_scale_cols(copies[c].info, q->shape[3]);
        job->q[c].codes = (uint8_t *)work + l->codes[c];
        job->q[c].scales = (uint8_t *)work + l->scales[c];
        job->q[c].g = copies[c].level == MXA_LEVEL_TOKEN ? (float *)(void *)(work + l->g[c]) : NULL;
        smooth = smooth || kv->part[c][MXA_KV_K].copy.smooth;
    }
    float *const bias = smooth ? (float *)(void *)(work + l->bias) : NULL;
    job->bias = bias;
    const int64_t heads = q->shape[0] * job->heads;
#pragma omp parallel for num_threads(mxa_token_threads(threads, job->n > 1 ? heads : 1))
    for (int64_t head = 0; head < heads; head++)
        for (int64_t i = 0; i < mxa_kv_count(job, head / job->heads); i++)
            prepare_row(job, coders, q, head / job->heads, head % job->heads, i, bias);
}

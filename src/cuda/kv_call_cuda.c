/* SPDX-License-Identifier: Apache-2.0 */
/* What an append and an attend of a device's cache queue. */
#include <string.h>

#include "core/status.h"
#include "core/tensor.h"
#include "cuda/decode/decode_cuda.h"
#include "cuda/kv_cuda.h"

enum { ARCH_OF_EARLY_LAUNCHES = 90, WORK_ALIGNMENT = 128 };

/* Queries of a sequence that the decode kernels take at once. */
enum { SLICE_QUERIES = 16 };

/* What there is to check of a tensor: an empty one may have any pointer. */
static const void *data_of(const mxa_tensor *x)
{
    return x->shape[1] == 0 || x->shape[2] == 0 ? NULL : x->data;
}

mxa_status mxa_cuda_kv_check_rows(mxa_kv_device *d, const mxa_tensor *k, const mxa_tensor *v)
{
    if (k->shape[2] > INT32_MAX)
        return mxa_fail(MXA_ERR_UNSUPPORTED, "k: a device takes up to 2^31 - 1 tokens at once, not %lld",
                        (long long)k->shape[2]);
    mxa_cuda_scope scope;
    mxa_status status = mxa_cuda_enter(d->device.index, &scope);
    if (status == MXA_OK)
        status = mxa_cuda_check_memory("k", data_of(k), d->device.index);
    if (status == MXA_OK)
        status = mxa_cuda_check_memory("v", data_of(v), d->device.index);
    mxa_cuda_leave(&scope);
    return status;
}

/* Launches of the sequences of one append. */
static mxa_status store_part(const mxa_kv_device *d, mxa_cuda_kv_append *a, const int64_t *counts)
{
    mxa_status status = MXA_OK;
    const int64_t most = mxa_max(1, mxa_min(MXA_CUDA_KV_SEQUENCES, INT32_MAX / a->spans / a->kv.heads_kv));
    for (a->first = 0; a->first < d->kv.batch && status == MXA_OK; a->first += most) {
        a->n_sequences = (int)mxa_min(most, d->kv.batch - a->first);
        memcpy(a->counts, counts + a->first, (size_t)a->n_sequences * sizeof *counts);
        status = mxa_cuda_kv_store(a, d->stream);
    }
    return status;
}

/*
 * Where a mean is made of tokens that come together with others that are less it, high rows come first; one
 * token never does.
 */
static mxa_status store_rows(const mxa_kv_device *d, const mxa_tensor *k, const mxa_tensor *v,
                             const int64_t *counts, int64_t n)
{
    mxa_cuda_kv_append a = { .kv = d->kv, .k = *k, .v = *v, .means = d->kv.makes_means };
    a.early = d->device.arch >= ARCH_OF_EARLY_LAUNCHES;
    a.spans = (int)((n + d->kv.page_tokens - 2) / d->kv.page_tokens + 1);
    mxa_status status = MXA_OK;
    const bool twice = d->kv.makes_means && n > 1;
    if (twice) {
        a.copies[MXA_HIGH] = true;
        status = store_part(d, &a, counts);
        a.means = false;
    }
    a.copies[MXA_LOW] = true;
    a.copies[MXA_HIGH] = !twice;
    a.lengths = true;
    return status == MXA_OK ? store_part(d, &a, counts) : status;
}

mxa_status mxa_cuda_kv_append_rows(mxa_kv_device *d, const mxa_tensor *k, const mxa_tensor *v,
                                   const int64_t *counts)
{
    int64_t n = 0;
    for (int64_t b = 0; b < d->kv.batch; b++)
        n = mxa_max(n, counts[b]);
    if (n == 0)
        return MXA_OK;
    mxa_cuda_scope scope;
    mxa_status status = mxa_cuda_enter(d->device.index, &scope);
    if (status == MXA_OK)
        status = store_rows(d, k, v, counts, n);
    mxa_cuda_leave(&scope);
    return status;
}

/* ---------------------------------------------------------------- attend */

static mxa_decode_job make_job(const mxa_kv_device *d, const mxa_tensor *q, const mxa_tensor *out,
                               int64_t max_length)
{
    return (mxa_decode_job){
        .device = &d->device,
        .layout = d->layout,
        .recipe = d->recipe,
        .q_copies = d->q,
        .q = *q,
        .out = *out,
        .tables = { d->kv.tables[MXA_LOW], d->kv.tables[MXA_HIGH] },
        .table_pages = d->kv.table_pages,
        .lengths = d->kv.lengths,
        .mean = d->kv.mean,
        .counters = d->kv.counters,
        .max_length = max_length,
    };
}

/* What lies in the workspace of an attend, in bytes. Many queries are attended to in slices. */
typedef struct attend_work {
    int64_t slices; /* 0: the queries are few enough for one call */
    int64_t lengths, counts, lse, total;
    bool fits;
} attend_work;

static int64_t take(attend_work *w, int64_t n, int64_t size)
{
    const int64_t at = w->total;
    int64_t bytes;
    w->fits = w->fits && mxa_mul(n, size, &bytes) && mxa_add(bytes, WORK_ALIGNMENT - 1, &bytes) &&
              mxa_add(w->total, bytes & -(int64_t)WORK_ALIGNMENT, &w->total);
    return at;
}

/* job->q says how many queries; what mxa_decode takes comes first. */
static attend_work plan_work(const mxa_decode_job *job)
{
    const int64_t n = job->q.shape[2], batch = job->q.shape[0];
    mxa_decode_job slice = *job;
    slice.q.shape[2] = slice.out.shape[2] = mxa_min(n, SLICE_QUERIES);
    attend_work w = { .total = mxa_decode_work_bytes(&slice) };
    w.fits = w.total > 0 && mxa_add(w.total, WORK_ALIGNMENT - 1, &w.total);
    w.total &= -(int64_t)WORK_ALIGNMENT;
    if (n <= SLICE_QUERIES || !w.fits)
        return w;
    int64_t places;
    w.slices = (n - 1) / SLICE_QUERIES + 1;
    w.fits = mxa_mul(w.slices, batch, &places);
    w.lengths = take(&w, w.fits ? places : 0, sizeof(int64_t));
    w.counts = take(&w, w.fits ? places : 0, sizeof(int64_t));
    w.lse = take(&w, batch * job->q.shape[1] * SLICE_QUERIES, sizeof(float));
    return w;
}

/* Of any types: none has a say in the workspace. */
size_t mxa_cuda_kv_work_bytes(const mxa_kv_device *d, int64_t heads, int64_t n, int64_t length)
{
    const mxa_kv_part *const parts[MXA_COPIES] = { d->layout->part[MXA_LOW], d->layout->part[MXA_HIGH] };
    const int64_t dim_v = parts[MXA_LOW][MXA_KV_V].dim;
    const int64_t dim = mxa_max(parts[MXA_LOW][MXA_KV_K].dim, parts[MXA_HIGH][MXA_KV_K].dim);
    const mxa_tensor q = mxa_tensor_contiguous(NULL, MXA_DTYPE_F32, d->kv.batch, heads, n, dim);
    const mxa_tensor out = mxa_tensor_contiguous(NULL, MXA_DTYPE_F32, d->kv.batch, heads, n, dim_v);
    const mxa_decode_job job = make_job(d, &q, &out, length);
    const attend_work w = plan_work(&job);
    return w.fits ? (size_t)w.total : 0;
}

static mxa_status check_call(const mxa_kv_device *d, const mxa_kv_device_call *call)
{
    const struct {
        const char *name;
        const void *memory;
    } all[] = { { "q", data_of(call->q) },
                { "out", data_of(call->out) },
                { "lse", call->q->shape[2] > 0 ? call->lse : NULL },
                { "sinks", call->sinks },
                { "work", call->work } };
    mxa_status status = MXA_OK;
    for (size_t i = 0; i < sizeof all / sizeof all[0] && status == MXA_OK; i++)
        status = mxa_cuda_check_memory(all[i].name, all[i].memory, d->device.index);
    return status;
}

static mxa_status send_counts(const mxa_kv_device *d, const int64_t *counts)
{
    mxa_status status = MXA_OK;
    for (int64_t first = 0; first < d->kv.batch && status == MXA_OK; first += MXA_CUDA_KV_CHANGES) {
        mxa_cuda_kv_letter letter = { .n = (int)mxa_min(d->kv.batch - first, MXA_CUDA_KV_CHANGES) };
        for (int i = 0; i < letter.n; i++) {
            letter.where[i] = d->kv.counts + first + i;
            letter.value[i] = counts[first + i];
        }
        status = mxa_cuda_kv_send(&letter, d->stream);
    }
    return status;
}

static mxa_tensor rows_of(const mxa_tensor *x, int64_t first, int64_t n)
{
    mxa_tensor rows = *x;
    rows.data = (char *)x->data + first * x->stride[2] * mxa_dtype_bytes(x->dtype);
    rows.shape[2] = n;
    return rows;
}

/* Queries first.. of all sequences, as the newest of sequences that end with them. */
static mxa_status attend_slice(const mxa_decode_job *job, const attend_work *w, int64_t slice,
                               cudaStream_t stream)
{
    const int64_t batch = job->q.shape[0], first = slice * SLICE_QUERIES, n = job->q.shape[2];
    const int64_t rows = mxa_min(SLICE_QUERIES, n - first);
    char *const work = job->work;
    mxa_decode_job part = *job;
    part.q = rows_of(&job->q, first, rows);
    part.out = rows_of(&job->out, first, rows);
    part.lengths = (const int64_t *)(const void *)(work + w->lengths) + slice * batch;
    part.counts = (const int64_t *)(const void *)(work + w->counts) + slice * batch;
    part.lse = job->lse ? (float *)(void *)(work + w->lse) : NULL;
    const mxa_status status = mxa_decode(&part, stream);
    if (status != MXA_OK || !job->lse)
        return status;
    const size_t width = (size_t)rows * sizeof *job->lse;
    return mxa_cuda_check(cudaMemcpy2DAsync(job->lse + first, (size_t)n * sizeof *job->lse, part.lse, width,
                                            width, (size_t)(batch * job->q.shape[1]),
                                            cudaMemcpyDeviceToDevice, stream),
                          "lse: cudaMemcpy2DAsync");
}

static mxa_status attend_slices(const mxa_decode_job *job, const attend_work *w, cudaStream_t stream)
{
    char *const work = job->work;
    const mxa_cuda_kv_slices slices = {
        .batch = job->q.shape[0],
        .n = job->q.shape[2],
        .each = SLICE_QUERIES,
        .lengths = job->lengths,
        .counts = job->counts,
        .slice_lengths = (int64_t *)(void *)(work + w->lengths),
        .slice_counts = (int64_t *)(void *)(work + w->counts),
    };
    mxa_status status = mxa_cuda_kv_cut(&slices, stream);
    for (int64_t i = 0; i < w->slices && status == MXA_OK; i++)
        status = attend_slice(job, w, i, stream);
    return status;
}

mxa_status mxa_cuda_kv_attend(mxa_kv_device *d, const mxa_kv_device_call *call)
{
    bool capturing;
    mxa_decode_job job = make_job(d, call->q, call->out, call->max_length);
    job.counts = call->counts ? d->kv.counts : NULL;
    job.lse = call->lse;
    job.sinks = call->sinks;
    job.softmax_scale = call->softmax_scale;
    job.softcap = call->softcap;
    job.window_left = call->window_left;
    job.work = call->work;
    mxa_cuda_scope scope;
    mxa_status status = mxa_cuda_enter(d->device.index, &scope);
    if (status == MXA_OK)
        status = check_call(d, call);
    if (status == MXA_OK)
        status = mxa_cuda_kv_capturing(d, &capturing);
    if (status == MXA_OK && call->counts)
        status = send_counts(d, call->counts);
    const attend_work w = plan_work(&job);
    if (status == MXA_OK && call->q->shape[2] > 0)
        status = w.slices > 0 ? attend_slices(&job, &w, d->stream) : mxa_decode(&job, d->stream);
    mxa_cuda_leave(&scope);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The device's part of a cache: its arrays, its pages, and what is queued for whom. */
#include "cuda/kv_cuda.h"

#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "core/tensor.h"
#include "cuda/decode/decode_cuda.h"
#include "cuda/decode/kv_order_cuda.h"
#include "format/format.h"
#include "format/mx_scale.h"
#include "format/second_level.h"

enum { FIRST_TABLE_PAGES = 64, ARCH_OF_EARLY_LAUNCHES = 90 };

struct mxa_kv_device {
    mxa_cuda_device device;
    const mxa_kv_layout *layout;
    const mxa_recipe *recipe;
    const mxa_copy_plan *q;
    cudaStream_t stream;
    bool captured;        /* a graph reads the tables where they are */
    void *state, *tables; /* device memory that holds kv's arrays */
    uint8_t *host_page;   /* room for a page of either kind, in the order of a device */
    mxa_cuda_kv kv;
};

static mxa_cuda_kv_part describe_part(const mxa_kv_part *from)
{
    const mxa_copy_plan *const copy = &from->copy;
    if (!copy->info)
        return (mxa_cuda_kv_part){ .format = MXA_FORMAT_NONE };
    const mxa_element element = mxa_element_of(copy->info->format);
    return (mxa_cuda_kv_part){
        .format = copy->info->format,
        .element_bits = copy->info->element_bits,
        .block = copy->info->block,
        .is_mx = mxa_format_is_mx(copy->info),
        .rotate = copy->rotate,
        .smooth = copy->smooth,
        .element = element,
        .threshold = mxa_mx_threshold(element, copy->rule),
        .divisor = mxa_g_divisor(copy->info),
    };
}

static void describe_layout(const mxa_kv_device_spec *spec, mxa_cuda_kv *kv)
{
    const mxa_kv_layout *const l = spec->layout;
    kv->heads_kv = (int)l->heads_kv;
    kv->page_tokens = (int)l->page_tokens;
    kv->batch = spec->batch;
    kv->unread_end = l->unread_end;
    kv->makes_means = spec->recipe->smooth_k == MXA_SMOOTH_PREFIX && l->part[MXA_LOW][MXA_KV_K].copy.info;
    kv->tiles = mxa_kv_tiles_of(l);
    for (int copy = 0; copy < MXA_COPIES; copy++)
        for (int operand = 0; operand < MXA_KV_OPERANDS; operand++)
            kv->part[copy][operand] = describe_part(&l->part[copy][operand]);
}

/* ---------------------------------------------------------------- arrays */

static int64_t mean_floats(const mxa_kv_device *d)
{
    const int64_t dim = d->layout->part[MXA_LOW][MXA_KV_K].dim;
    const bool smooths = d->recipe->smooth_k != MXA_SMOOTH_NONE && dim > 0;
    return smooths ? d->kv.batch * d->kv.heads_kv * dim : 0;
}

/* All but the tables: zeros. */
static mxa_status create_state(mxa_kv_device *d)
{
    const int64_t batch = d->kv.batch, means = mean_floats(d);
    const int64_t of_sequence = 2 * (int64_t)(sizeof *d->kv.lengths + sizeof *d->kv.tickets);
    const size_t bytes =
        (size_t)(batch * of_sequence + means * (int64_t)sizeof *d->kv.mean) + MXA_DECODE_COUNTER_BYTES;
    mxa_status status = mxa_cuda_check(cudaMalloc(&d->state, bytes), "cache: cudaMalloc");
    if (status == MXA_OK)
        status = mxa_cuda_check(cudaMemset(d->state, 0, bytes), "cache: cudaMemset");
    if (status == MXA_OK)
        status = mxa_cuda_check(cudaStreamSynchronize(NULL), "cache: cudaStreamSynchronize");
    d->kv.counters = d->state;
    d->kv.lengths = (int64_t *)(void *)((char *)d->state + MXA_DECODE_COUNTER_BYTES);
    d->kv.counts = d->kv.lengths + batch;
    d->kv.tickets = (unsigned *)(d->kv.counts + batch);
    d->kv.mean = means > 0 ? (float *)(d->kv.tickets + 2 * batch) : NULL;
    return status;
}

/* Tables of more pages, which begin as the ones before. */
static mxa_status grow_tables(mxa_kv_device *d, int64_t pages)
{
    const int64_t capacity = mxa_max(pages, mxa_max(2 * d->kv.table_pages, FIRST_TABLE_PAGES));
    const size_t width = sizeof *d->kv.tables[0], rows = (size_t)(MXA_COPIES * d->kv.batch);
    int64_t bytes;
    void *made = NULL;
    if (!mxa_mul(capacity, (int64_t)(rows * width), &bytes))
        return mxa_fail(MXA_ERR_MEMORY, "pages: no memory for tables of %lld pages", (long long)capacity);
    mxa_status status = mxa_cuda_check(cudaMalloc(&made, (size_t)bytes), "tables: cudaMalloc");
    if (status != MXA_OK)
        return status;
    if (d->tables)
        status = mxa_cuda_check(
            cudaMemcpy2DAsync(made, (size_t)capacity * width, d->tables, (size_t)d->kv.table_pages * width,
                              (size_t)d->kv.table_pages * width, rows, cudaMemcpyDeviceToDevice, d->stream),
            "tables: cudaMemcpy2DAsync");
    if (status == MXA_OK)
        status = mxa_cuda_check(cudaStreamSynchronize(d->stream), "tables: cudaStreamSynchronize");
    (void)cudaFree(status == MXA_OK ? d->tables : made);
    if (status != MXA_OK)
        return status;
    d->tables = made;
    d->kv.table_pages = capacity;
    for (int copy = 0; copy < MXA_COPIES; copy++)
        d->kv.tables[copy] = (uint64_t *)made + copy * d->kv.batch * capacity;
    return MXA_OK;
}

static mxa_status reserve_tables(mxa_kv_device *d, int64_t pages)
{
    if (pages <= d->kv.table_pages)
        return MXA_OK;
    if (d->captured)
        return mxa_fail(MXA_ERR_MEMORY,
                        "pages: tables of %lld pages do not grow to %lld, since a captured graph reads them",
                        (long long)d->kv.table_pages, (long long)pages);
    mxa_cuda_scope scope;
    mxa_status status = mxa_cuda_enter(d->device.index, &scope);
    if (status == MXA_OK)
        status = grow_tables(d, pages);
    mxa_cuda_leave(&scope);
    return status;
}

static void destroy(mxa_kv_device *d)
{
    mxa_cuda_scope scope;
    if (!d)
        return;
    if (mxa_cuda_enter(d->device.index, &scope) == MXA_OK) {
        (void)cudaFree(d->tables); /* which waits for the device */
        (void)cudaFree(d->state);
        (void)cudaGetLastError();
    }
    mxa_cuda_leave(&scope);
    free(d->host_page);
    free(d);
}

static mxa_status create(const mxa_kv_device_spec *spec, mxa_kv_device **made)
{
    mxa_kv_device *const d = calloc(1, sizeof *d);
    if (!d)
        return mxa_fail(MXA_ERR_MEMORY, "cache: no memory for %zu bytes", sizeof *d);
    d->layout = spec->layout;
    d->recipe = spec->recipe;
    d->q = spec->q;
    describe_layout(spec, &d->kv);
    const int64_t *const bytes = d->layout->page_bytes;
    d->host_page = malloc((size_t)mxa_max(bytes[MXA_LOW], bytes[MXA_HIGH]));
    mxa_cuda_scope scope;
    mxa_status status = mxa_cuda_device_read(spec->device, &d->device);
    if (status == MXA_OK && !d->host_page)
        status = mxa_fail(MXA_ERR_MEMORY, "cache: no memory for a page");
    if (status == MXA_OK) {
        status = mxa_cuda_enter(spec->device, &scope);
        if (status == MXA_OK)
            status = create_state(d);
        if (status == MXA_OK)
            status = grow_tables(d, spec->table_pages);
        mxa_cuda_leave(&scope);
    }
    if (status != MXA_OK)
        destroy(d);
    else
        *made = d;
    return status;
}

/* ---------------------------------------------------------------- pages and streams */

static mxa_status set_stream(mxa_kv_device *d, void *stream)
{
    d->stream = stream;
    return MXA_OK;
}

/* With the device current. */
static mxa_status ask_capturing(mxa_kv_device *d, bool *capturing)
{
    enum cudaStreamCaptureStatus found = cudaStreamCaptureStatusNone;
    const mxa_status status =
        mxa_cuda_check(cudaStreamIsCapturing(d->stream, &found), "stream: cudaStreamIsCapturing");
    *capturing = found != cudaStreamCaptureStatusNone;
    d->captured = d->captured || *capturing;
    return status;
}

static mxa_status is_capturing(mxa_kv_device *d, bool *capturing)
{
    mxa_cuda_scope scope;
    mxa_status status = mxa_cuda_enter(d->device.index, &scope);
    if (status == MXA_OK)
        status = ask_capturing(d, capturing);
    mxa_cuda_leave(&scope);
    return status;
}

static mxa_status check_memory(mxa_kv_device *d, const char *name, const void *memory)
{
    mxa_cuda_scope scope;
    mxa_status status = mxa_cuda_enter(d->device.index, &scope);
    if (status == MXA_OK)
        status = mxa_cuda_check_memory(name, memory, d->device.index);
    mxa_cuda_leave(&scope);
    return status;
}

static mxa_status allocate(mxa_kv_device *d, int64_t bytes, void **memory)
{
    mxa_cuda_scope scope;
    mxa_status status = mxa_cuda_enter(d->device.index, &scope);
    if (status == MXA_OK)
        status = mxa_cuda_check(cudaMalloc(memory, (size_t)bytes), "pages: cudaMalloc");
    mxa_cuda_leave(&scope);
    return status;
}

static void release(mxa_kv_device *d, void *memory)
{
    mxa_cuda_scope scope;
    if (mxa_cuda_enter(d->device.index, &scope) == MXA_OK)
        (void)mxa_cuda_check(cudaFree(memory), "pages: cudaFree");
    mxa_cuda_leave(&scope);
}

static mxa_status copy_bytes(mxa_kv_device *d, void *to, const void *from, int64_t bytes, bool wait)
{
    mxa_cuda_scope scope;
    mxa_status status = mxa_cuda_enter(d->device.index, &scope);
    if (status == MXA_OK)
        status = mxa_cuda_check(cudaMemcpyAsync(to, from, (size_t)bytes, cudaMemcpyDefault, d->stream),
                                "cache: cudaMemcpyAsync");
    if (status == MXA_OK && wait)
        status = mxa_cuda_check(cudaStreamSynchronize(d->stream), "cache: cudaStreamSynchronize");
    mxa_cuda_leave(&scope);
    return status;
}

static mxa_status copy_page(mxa_kv_device *d, int copy, uint8_t *to, const uint8_t *from)
{
    return copy_bytes(d, to, from, d->layout->page_bytes[copy], false);
}

static mxa_status read_page(mxa_kv_device *d, int copy, const uint8_t *page, uint8_t *host)
{
    const mxa_status status = copy_bytes(d, d->host_page, page, d->layout->page_bytes[copy], true);
    if (status == MXA_OK)
        mxa_kv_page_order(d->layout, copy, host, d->host_page, false);
    return status;
}

static mxa_status write_page(mxa_kv_device *d, int copy, uint8_t *page, uint8_t *host)
{
    mxa_kv_page_order(d->layout, copy, host, d->host_page, true);
    return copy_bytes(d, page, d->host_page, d->layout->page_bytes[copy], true);
}

static mxa_status set_mean(mxa_kv_device *d, const float *mean)
{
    const int64_t n = mean_floats(d) / d->kv.batch;
    mxa_status status = MXA_OK;
    for (int64_t b = 0; b < d->kv.batch && n > 0 && status == MXA_OK; b++)
        status = copy_bytes(d, d->kv.mean + b * n, mean, n * (int64_t)sizeof *mean, true);
    return status;
}

/* ---------------------------------------------------------------- tables, lengths, means */

static int64_t *place_of(const mxa_kv_device *d, const mxa_kv_change *c)
{
    if (c->what == MXA_KV_LENGTH)
        return d->kv.lengths + c->b;
    return (int64_t *)(d->kv.tables[c->what] + c->b * d->kv.table_pages + c->page);
}

static mxa_status send(mxa_kv_device *d, int64_t n, const mxa_kv_change *changes)
{
    mxa_cuda_scope scope;
    mxa_status status = mxa_cuda_enter(d->device.index, &scope);
    for (int64_t first = 0; first < n && status == MXA_OK; first += MXA_CUDA_KV_CHANGES) {
        mxa_cuda_kv_letter letter = { .n = (int)mxa_min(n - first, MXA_CUDA_KV_CHANGES) };
        for (int i = 0; i < letter.n; i++) {
            letter.where[i] = place_of(d, &changes[first + i]);
            letter.value[i] = changes[first + i].value;
        }
        status = mxa_cuda_kv_send(&letter, d->stream);
    }
    mxa_cuda_leave(&scope);
    return status;
}

static mxa_status make_means(mxa_kv_device *d)
{
    mxa_cuda_scope scope;
    mxa_status status = mxa_cuda_enter(d->device.index, &scope);
    if (status == MXA_OK)
        status = mxa_cuda_kv_means(&d->kv, d->stream);
    mxa_cuda_leave(&scope);
    return status;
}

/* ---------------------------------------------------------------- append */

/* What there is to check of a tensor: an empty one may have any pointer. */
static const void *data_of(const mxa_tensor *x)
{
    return x->shape[1] == 0 || x->shape[2] == 0 ? NULL : x->data;
}

static mxa_status check_rows(mxa_kv_device *d, const mxa_tensor *k, const mxa_tensor *v)
{
    if (k->shape[2] > INT32_MAX)
        return mxa_fail(MXA_ERR_UNSUPPORTED, "k: a device takes up to 2^31 - 1 tokens at once, not %lld",
                        (long long)k->shape[2]);
    const mxa_status status = check_memory(d, "k", data_of(k));
    return status == MXA_OK ? check_memory(d, "v", data_of(v)) : status;
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

static mxa_status append(mxa_kv_device *d, const mxa_tensor *k, const mxa_tensor *v, const int64_t *counts)
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

/* Of any types: none has a say in the workspace. */
static size_t work_bytes(const mxa_kv_device *d, int64_t heads, int64_t n, int64_t length)
{
    const int64_t dim_v = d->layout->part[MXA_LOW][MXA_KV_V].dim;
    const int64_t dim =
        mxa_max(d->layout->part[MXA_LOW][MXA_KV_K].dim, d->layout->part[MXA_HIGH][MXA_KV_K].dim);
    const mxa_tensor q = mxa_tensor_contiguous(NULL, MXA_DTYPE_F32, d->kv.batch, heads, n, dim);
    const mxa_tensor out = mxa_tensor_contiguous(NULL, MXA_DTYPE_F32, d->kv.batch, heads, n, dim_v);
    const mxa_decode_job job = make_job(d, &q, &out, length);
    return (size_t)mxa_decode_work_bytes(&job);
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

static mxa_status attend(mxa_kv_device *d, const mxa_kv_device_call *call)
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
        status = ask_capturing(d, &capturing);
    if (status == MXA_OK && call->counts)
        status = send_counts(d, call->counts);
    if (status == MXA_OK && call->q->shape[2] > 0)
        status = mxa_decode(&job, d->stream);
    mxa_cuda_leave(&scope);
    return status;
}

const mxa_kv_device_ops mxa_cuda_kv_ops = {
    .error_text = mxa_error_text,
    .create = create,
    .destroy = destroy,
    .set_stream = set_stream,
    .is_capturing = is_capturing,
    .check_memory = check_memory,
    .allocate = allocate,
    .release = release,
    .copy_page = copy_page,
    .read_page = read_page,
    .write_page = write_page,
    .reserve_tables = reserve_tables,
    .send = send,
    .set_mean = set_mean,
    .make_means = make_means,
    .check_rows = check_rows,
    .append = append,
    .work_bytes = work_bytes,
    .attend = attend,
};

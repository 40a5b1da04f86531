/* SPDX-License-Identifier: Apache-2.0 */
/* The device's part of a cache: its arrays and its pages, which follow the host's. */
#include "cuda/kv_cuda.h"

#include <stdlib.h>

#include "core/status.h"
#include "core/tensor.h"
#include "cuda/decode/decode_cuda.h"
#include "cuda/decode/kv_order_cuda.h"
#include "format/format.h"
#include "format/mx_scale.h"
#include "format/second_level.h"

enum { FIRST_TABLE_PAGES = 64 };

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

mxa_status mxa_cuda_kv_capturing(mxa_kv_device *d, bool *capturing)
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
        status = mxa_cuda_kv_capturing(d, capturing);
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
    .check_rows = mxa_cuda_kv_check_rows,
    .append = mxa_cuda_kv_append_rows,
    .work_bytes = mxa_cuda_kv_work_bytes,
    .attend = mxa_cuda_kv_attend,
};

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The decode kernels on a GPU: every entry against the CPU's float64 reference on the same pages, brought
 * into the device's order by the host; repeated, with other pages, and with batch mates. With "time", what
 * a step takes beside a pure read of as many bytes. Without a device it is skipped.
 */
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "check_decode_cuda.h"

enum { SKIPPED = 77, THREADS = 16 };

static int failures;

static uint64_t state = 1;

static uint32_t random_bits(void)
{
    state += 0x9E3779B97F4A7C15u;
    uint64_t z = state;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return (uint32_t)((z ^ z >> 31) >> 32);
}

/* Longer tensors repeat them. */
static const int64_t fresh_numbers = 1 << 20;

/* Nearly normal: a sum of uniform numbers. */
static float random_normal(void)
{
    float sum = -4;
    for (int i = 0; i < 4; i++) {
        const uint32_t r = random_bits();
        sum += (float)(r & 0xFFFF) * 0x1p-16f + (float)(r >> 16) * 0x1p-16f;
    }
    return sum * 1.2247449f; /* variance 8 / 12 */
}

static mxa_tensor random_tensor(int64_t batch, int64_t heads, int64_t n, int64_t dim)
{
    const int64_t size = batch * heads * n * dim;
    float *const x = malloc((size_t)size * sizeof *x);
    for (int64_t i = 0; i < size; i++)
        x[i] = i < fresh_numbers ? random_normal() : x[i - fresh_numbers];
    return mxa_tensor_contiguous(x, MXA_DTYPE_F32, batch, heads, n, dim);
}

void *check_device(size_t bytes, const void *from)
{
    void *memory = NULL;
    if (cudaMalloc(&memory, bytes ? bytes : 1) != cudaSuccess ||
        (from && cudaMemcpy(memory, from, bytes, cudaMemcpyHostToDevice) != cudaSuccess)) {
        printf("%s\n", cudaGetErrorString(cudaGetLastError()));
        exit(1);
    }
    return memory;
}

bool check_done(const char *what)
{
    const cudaError_t error = cudaDeviceSynchronize();
    if (error == cudaSuccess)
        return true;
    printf("%s: %s\n", what, cudaGetErrorString(error));
    exit(1);
}

/* A cache of the CPU and its pages in the device's order. */
static void fill(const check_case *c, check_problem *p)
{
    mxa_cache_opts opts;
    mxa_cache_default(&opts, c->batch, c->heads_kv, c->dim);
    p->c = c;
    if (mxa_recipe_parse(c->recipe, &p->recipe) != MXA_OK) {
        printf("%s: %s\n", c->recipe, mxa_error_text());
        exit(1);
    }
    opts.recipe = &p->recipe;
    opts.page_tokens = c->page;
    opts.threads = THREADS;
    opts.rewind = 16;
    int64_t longest = 0;
    for (int64_t b = 0; b < c->batch; b++)
        longest = mxa_max(longest, c->lengths[b]);
    mxa_tensor k = random_tensor(c->batch, c->heads_kv, longest, c->dim);
    mxa_tensor v = random_tensor(c->batch, c->heads_kv, longest, c->dim);
    for (int i = 0; i < c->nan_values; i++) {
        ((float *)v.data)[random_bits() % (uint64_t)(c->heads_kv * longest * c->dim)] = NAN;
        ((float *)k.data)[random_bits() % (uint64_t)(c->heads_kv * longest * c->dim)] = NAN;
    }
    if (c->wide_values)
        for (int64_t i = 0; i < c->batch * c->heads_kv * longest; i++) {
            const float factor = ldexpf(1, (int)(random_bits() % 33) - 16);
            for (int64_t d = 0; d < c->dim; d++)
                ((float *)v.data)[i * c->dim + d] *= i % 7 == 0 ? 0 : factor;
        }
    /* In two appends, so that the near window is that of a decode step. */
    int64_t first[CHECK_BATCH], rest[CHECK_BATCH];
    for (int64_t b = 0; b < c->batch; b++) {
        rest[b] = mxa_min(c->n, c->lengths[b]);
        first[b] = c->lengths[b] - rest[b];
    }
    bool good =
        mxa_cache_create(&opts, &p->cache) == MXA_OK && mxa_cache_append(p->cache, &k, &v, first) == MXA_OK;
    mxa_tensor k_rest = random_tensor(c->batch, c->heads_kv, c->n, c->dim);
    mxa_tensor v_rest = random_tensor(c->batch, c->heads_kv, c->n, c->dim);
    good = good && mxa_cache_append(p->cache, &k_rest, &v_rest, rest) == MXA_OK;
    if (!good) {
        printf("%s: %s\n", c->recipe, mxa_error_text());
        exit(1);
    }
    free(k.data), free(v.data), free(k_rest.data), free(v_rest.data);
    p->q = random_tensor(c->batch, c->heads, c->n, c->dim);
    p->longest = longest;
}

/* Rows past the length become 0xFF in the device's pages. */
static void poison(const mxa_kv_layout *l, int copy, uint8_t *page, int64_t from)
{
    const mxa_kv_tiles t = mxa_kv_tiles_of(l);
    for (int64_t h = 0; h < l->heads_kv; h++)
        for (int operand = 0; operand < MXA_KV_OPERANDS; operand++) {
            const mxa_kv_tile_part *const part = &t.part[copy][operand];
            for (int64_t row = from; row < l->page_tokens && part->dim; row++) {
                uint8_t *const tile = page + mxa_kv_tile_at(&t, copy, h, (int)row);
                const int token = (int)row % t.tokens;
                for (int d = 0; d < part->dim; d++)
                    memset(tile + mxa_kv_code_at(part, token, d), 0xFF, part->bits == 16 ? 2 : 1);
                for (int s = 0; s < part->scale_cols; s++)
                    tile[mxa_kv_scale_at(part, token, s)] = 0xFF;
                if (part->has_g)
                    memset(tile + mxa_kv_g_at(part, token), 0xFF, sizeof(float));
            }
        }
}

/* Pages of all sequences, copies times; with shuffle, in random places. */
void check_upload(check_problem *p, int64_t copies, bool shuffle)
{
    const mxa_kv_layout *const l = &p->cache->layout;
    const mxa_kv_view view = mxa_cache_view(p->cache);
    const int64_t pages = (p->longest + l->page_tokens - 1) / l->page_tokens, batch = p->c->batch;
    p->table_pages = pages;
    p->copies = copies;
    for (int copy = 0; copy < MXA_COPIES; copy++) {
        const size_t bytes = (size_t)l->page_bytes[copy];
        if (bytes == 0)
            continue;
        int64_t *const at = malloc((size_t)(pages * batch) * sizeof *at), used = batch * pages;
        for (int64_t i = 0; i < used; i++)
            at[i] = i;
        for (int64_t i = used - 1; i > 0 && shuffle; i--) {
            const int64_t j = random_bits() % (uint64_t)(i + 1), x = at[i];
            at[i] = at[j];
            at[j] = x;
        }
        uint8_t *const host = malloc(bytes * (size_t)used);
        memset(host, 0xFF, bytes * (size_t)used);
#pragma omp parallel for num_threads(THREADS)
        for (int64_t i = 0; i < used; i++) {
            const mxa_kv_sequence *const s = &view.sequences[i / pages];
            const int64_t page = i % pages, left = s->length - page * l->page_tokens;
            if (left <= 0 || s->table[copy][page] < 0)
                continue;
            uint8_t *const to = host + bytes * (size_t)at[i];
            mxa_kv_page_order(l, copy, view.pages[copy][s->table[copy][page]], to, true);
            if (left < l->page_tokens)
                poison(l, copy, to, left);
        }
        p->pages[copy] = check_device(bytes * (size_t)(used * copies), NULL);
        uint64_t *const table = malloc((size_t)(used * copies) * sizeof *table);
        for (int64_t r = 0; r < copies; r++) {
            uint8_t *const to = p->pages[copy] + bytes * (size_t)(used * r);
            cudaMemcpy(to, r ? p->pages[copy] : host, bytes * (size_t)used, cudaMemcpyDefault);
            for (int64_t i = 0; i < used; i++) {
                const mxa_kv_sequence *const s = &view.sequences[i / pages];
                const bool held = i % pages * l->page_tokens < s->length && s->table[copy][i % pages] >= 0;
                table[r * used + i] = held ? (uint64_t)(uintptr_t)(to + bytes * (size_t)at[i]) : 0;
            }
        }
        p->tables[copy] = check_device((size_t)(used * copies) * sizeof *table, table);
        free(host), free(table), free(at);
    }
}

static void upload_rest(check_problem *p)
{
    const check_case *const c = p->c;
    const mxa_kv_view view = mxa_cache_view(p->cache);
    const int64_t means = c->heads_kv * c->dim, rows = c->batch * c->heads * c->n;
    p->lengths = check_device((size_t)c->batch * 8, c->lengths);
    p->device_counts = c->has_counts ? check_device((size_t)c->batch * 8, c->counts) : NULL;
    float *const mean = calloc((size_t)(c->batch * means), sizeof *mean);
    for (int64_t b = 0; b < c->batch; b++)
        if (view.sequences[b].mean)
            memcpy(mean + b * means, view.sequences[b].mean, (size_t)means * sizeof *mean);
    p->mean = check_device((size_t)(c->batch * means) * sizeof *mean, mean);
    p->device_q = p->device_out = p->q;
    p->device_q.data = check_device((size_t)(rows * c->dim) * 4, p->q.data);
    p->device_out.data = check_device((size_t)(rows * c->dim) * 4, NULL);
    p->lse = check_device((size_t)rows * 4, NULL);
    float sinks[CHECK_HEADS];
    for (int64_t h = 0; h < c->heads; h++)
        sinks[h] = p->sinks[h] = random_normal() * 3;
    p->device_sinks = c->has_sinks ? check_device((size_t)c->heads * 4, sinks) : NULL;
    p->counters = check_device(MXA_DECODE_COUNTER_BYTES, NULL);
    cudaMemset(p->counters, 0, MXA_DECODE_COUNTER_BYTES);
    free(mean);
}

mxa_decode_job check_job(const check_problem *p, const mxa_cuda_device *device, int64_t copy_number)
{
    mxa_decode_job job = {
        .device = device,
        .layout = &p->cache->layout,
        .recipe = &p->recipe,
        .q_copies = p->cache->q,
        .q = p->device_q,
        .out = p->device_out,
        .table_pages = p->table_pages,
        .lengths = p->lengths,
        .counts = p->device_counts,
        .mean = p->mean,
        .lse = p->lse,
        .sinks = p->device_sinks,
        .counters = p->counters,
        .work = p->work,
        .max_length = p->longest,
        .softmax_scale = (float)(1 / sqrt((double)p->c->dim)),
        .softcap = p->c->softcap,
        .window_left = p->c->window ? p->c->window : MXA_FAR,
    };
    for (int copy = 0; copy < MXA_COPIES; copy++)
        job.tables[copy] =
            p->tables[copy] ? p->tables[copy] + copy_number * p->c->batch * p->table_pages : NULL;
    return job;
}

static void reference(const check_problem *p, const mxa_decode_job *job, float *out, float *lse)
{
    const mxa_kv_view view = mxa_cache_view(p->cache);
    const mxa_kv_impl *impl = mxa_kv_impls;
    while (impl->segment)
        impl++;
    mxa_tensor tensor = p->q;
    tensor.data = out;
    mxa_kv_job ref = {
        .view = &view,
        .recipe = &p->recipe,
        .out = &tensor,
        .counts = p->c->has_counts ? p->c->counts : NULL,
        .lse = lse,
        .sinks = p->c->has_sinks ? p->sinks : NULL,
        .softmax_scale = job->softmax_scale,
        .softcap = job->softcap,
        .heads = p->c->heads,
        .n = p->c->n,
        .window_left = job->window_left,
    };
    const size_t bytes =
        mxa_kv_work_bytes(&view, p->cache->q, p->c->batch, p->c->heads, p->c->n, p->longest, THREADS, impl);
    void *const work = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
    mxa_kv_attend(&ref, p->cache->q, &p->q, THREADS, impl, work);
    free(work);
}

/* Distance of rows relative to their size: the largest. NaN must be where NaN is wanted. */
static void compare(const check_problem *p, const char *entry, const float *want, const float *got,
                    const float *want_lse, const float *got_lse, double bound)
{
    const int64_t rows = p->c->batch * p->c->heads * p->c->n, dim = p->c->dim;
    double worst = 0, worst_lse = 0;
    int64_t wrong = 0, nans = 0;
    for (int64_t r = 0; r < rows; r++) {
        double size = 0, distance = 0;
        for (int64_t d = 0; d < dim; d++) {
            const double w = want[r * dim + d], g = got[r * dim + d];
            nans += isnan(w);
            if (isnan(w) != isnan(g))
                wrong++;
            else if (!isnan(w)) {
                size += w * w;
                distance += (w - g) * (w - g);
            }
        }
        if (size > 0 || distance > 0)
            worst = fmax(worst, sqrt(distance / (size > 0 ? size : 1e-30)));
        if (isnan(want_lse[r]) != isnan(got_lse[r]) || isinf(want_lse[r]) != isinf(got_lse[r]))
            wrong++;
        else if (isfinite(want_lse[r]))
            worst_lse = fmax(worst_lse, fabs((double)want_lse[r] - (double)got_lse[r]));
    }
    const bool good = wrong == 0 && worst <= bound && worst_lse <= 1e-4;
    printf("%-5s %-26s dim %3d heads %d/%d n %2d batch %d: error %.2e lse %.1e%s%s\n", entry, p->c->recipe,
           (int)dim, (int)p->c->heads, (int)p->c->heads_kv, (int)p->c->n, (int)p->c->batch, worst, worst_lse,
           nans ? " (NaN)" : "", good ? "" : "   FAILED");
    if (wrong)
        printf("    %lld elements are NaN or Inf where they should not, or not where they should\n",
               (long long)wrong);
    failures += !good;
}

static void check_entry(check_problem *p, const mxa_cuda_decode_impl *impl, mxa_decode_job *job,
                        const float *want, const float *want_lse, double bound)
{
    const size_t rows = (size_t)(p->c->batch * p->c->heads * p->c->n), bytes = rows * (size_t)p->c->dim * 4;
    float *const got = malloc(bytes), *const lse = malloc(rows * 4), *const again = malloc(bytes);
    const int64_t work_bytes = impl->work_bytes(job);
    job->work = check_device((size_t)work_bytes, NULL);
    cudaMemset(job->work, 0xFF, (size_t)work_bytes);
    for (int repeat = 0; repeat < 3; repeat++) {
        cudaMemset(job->out.data, 0xA5, bytes);
        cudaMemset(job->lse, 0xA5, rows * 4);
        if (impl->run(job, NULL) != MXA_OK)
            printf("%s: %s\n", impl->name, mxa_error_text());
        check_done(impl->name);
        cudaMemcpy(repeat ? again : got, job->out.data, bytes, cudaMemcpyDeviceToHost);
        cudaMemcpy(lse, job->lse, rows * 4, cudaMemcpyDeviceToHost);
        if (repeat && memcmp(again, got, bytes) != 0) {
            printf("%s %s: other bits when repeated\n", impl->name, p->c->recipe);
            failures++;
        }
    }
    compare(p, impl->name, want, got, want_lse, lse, bound);
    cudaFree(job->work);
    free(got), free(lse), free(again);
}

void check_release(check_problem *p)
{
    void *const memory[] = { p->pages[0], p->pages[1],        p->tables[0], p->tables[1],
                             p->lengths,  p->device_counts,   p->mean,      p->device_q.data,
                             p->lse,      p->device_out.data, p->counters,  p->device_sinks };
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        cudaFree(memory[i]);
    mxa_cache_free(p->cache);
    free(p->q.data);
}

void check_make(const check_case *c, check_problem *p, int64_t copies, bool shuffle)
{
    *p = (check_problem){ 0 };
    fill(c, p);
    if (copies)
        check_upload(p, copies, shuffle);
    upload_rest(p);
}

static void check(const check_case *given, const mxa_cuda_device *device)
{
    const int64_t long_enough = 130; /* more than a tile */
    check_case shorter = *given, *const c = &shorter;
    for (int64_t b = 0; b < c->batch; b++)
        c->lengths[b] = mxa_max(mxa_min(c->lengths[b], long_enough), c->lengths[b] / check_shorter);
    const double exact = 2e-6, rounded = c->bound > 0 ? c->bound : 5e-4;
    check_problem p;
    check_make(c, &p, 1, true);
    const size_t rows = (size_t)(c->batch * c->heads * c->n);
    float *const want = malloc(rows * (size_t)c->dim * 4), *const lse = malloc(rows * 4);
    mxa_decode_job job = check_job(&p, device, 0);
    reference(&p, &job, want, lse);
    for (const mxa_cuda_decode_impl *impl = mxa_cuda_decode_impls; impl->name; impl++) {
        const char *const reason = impl->refuses ? impl->refuses(&job) : NULL;
        if (reason && c->fast)
            printf("%s %s %s\n", impl->name, c->recipe, reason), failures++;
        if (!reason)
            check_entry(&p, impl, &job, want, lse, impl->refuses ? rounded : exact);
    }
    free(want), free(lse);
    check_release(&p);
}

static const check_case cases[] = {
    { "dma4,v=mxfp4,rotate-v", 1, 32, 8, 128, 64, 1, { 1000 }, .fast = true, .bound = 3e-3 },
    { "dma4,v=mxfp4,rotate-v", 1, 32, 8, 128, 64, 1, { 5000 }, .fast = true, .bound = 3e-3 },
    { "low_q=int8,low_k=mxfp4,v=mxfp4", 1, 8, 2, 128, 64, 2, { 3000, 77 }, .fast = true },
    { "low_q=int8,low_k=mxfp4,v=mxfp4", 1, 8, 2, 64, 128, 2, { 3000, 77 }, .fast = true },
    { "dma4,v=int8", 1, 32, 8, 128, 64, 1, { 5000 }, .fast = true, .bound = 3e-3 },
    { "dma4,v=int8,pv=f16", 1, 7, 7, 64, 64, 3, { 1500, 1, 4000 }, .fast = true },
    { "dma8,v=int8,pv=f16", 1, 32, 8, 128, 64, 1, { 5000 }, .fast = true },
    { "dma8,v=f16", 1, 16, 4, 128, 64, 2, { 3001, 200 }, .fast = true },
    { "dma4,v=f16", 4, 16, 2, 128, 64, 2, { 3001, 260 }, { 3, 4 }, true, .fast = true },
    { "dma4,v=bf16", 2, 16, 2, 64, 128, 2, { 2050, 260 }, .fast = true, .bound = 3e-3 },
    { "dma4,v=mxfp4,pv=f16", 3, 10, 2, 128, 64, 2, { 1281, 400 }, .fast = true, .has_sinks = true },
    { "dma4,v=fp8,pv=f16", 5, 8, 2, 128, 64, 1, { 2050 }, .window = 700 },
    { "dma4-fp8,v=mxfp4,pv=f16,sink=200,diag=300", 16, 16, 1, 128, 64, 1, { 2055 }, .fast = true },
    { "dma8,v=int8,pv=f16", 5, 8, 2, 128, 64, 1, { 2050 }, .window = 700, .fast = true },
    { "int8,v=int8,pv=f16", 1, 6, 2, 128, 64, 1, { 3333 }, .window = 1000, .fast = true },
    { "dma4,v=mxfp4,pv=f16", 1, 8, 2, 128, 64, 1, { 900 }, .nan_values = 3, .fast = true },
    { "dma8,v=int8,pv=f16", 1, 8, 2, 128, 64, 1, { 900 }, .nan_values = 3, .fast = true },
    { "dma4,v=mxfp4,pv=f16", 1, 8, 2, 128, 64, 1, { 1900 }, .wide_values = true, .fast = true },
    { "dma4,v=int8,pv=f16", 1, 8, 2, 128, 64, 1, { 1900 }, .wide_values = true, .fast = true },
    { "dma4,v=mxfp4,pv=f16", 1, 8, 2, 128, 192, 3, { 9000, 20, 700 }, { 1, 1, 0 }, true, .fast = true },
    { "dma4,v=int8,pv=f16", 2, 6, 1, 64, 256, 2, { 129, 5000 }, .fast = true },
    { "paper-nvfp4,v=nvfp4", 2, 4, 2, 80, 48, 2, { 600, 130 }, .softcap = 3 },
    { "paper-mxfp4,v=mxfp8,diag=0", 1, 4, 2, 48, 16, 1, { 300 }, .has_counts = false },
    { "bf16,high=f32,v=f32", 3, 4, 1, 40, 32, 1, { 500 }, .has_sinks = true, .window = 100 },
    { "mxint8,v=mxint8", 1, 4, 2, 128, 80, 1, { 500 }, .has_counts = false },
    { "mxfp6,v=mxfp6", 1, 4, 2, 128, 64, 1, { 300 }, .has_counts = false },
};

int main(int argc, char **argv)
{
    mxa_cuda_device device;
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
        printf("there is no CUDA device\n");
        return SKIPPED;
    }
    cudaSetDevice(0);
    cudaFree(NULL);
    if (mxa_cuda_device_read(0, &device) != MXA_OK)
        return printf("%s\n", mxa_error_text()), 1;
    if (argc > 1)
        return check_times(&device, argc - 1, argv + 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check(&cases[i], &device);
    printf(failures ? "%d FAILED\n" : "all good\n", failures);
    return failures != 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "kv_pair.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "attn/tile_map.h"
#include "core/bits.h"
#include "core/tensor.h"

enum { MOST_BLOCKS = 16, GROUP_MAX = 4, QUERIES_MAX = 50, FIXED_PAGES = 800 };

/* Device memory of one call. */
typedef struct blocks {
    void *memory[MOST_BLOCKS];
    int n;
} blocks;

static bool ok(const char *what, mxa_status status)
{
    if (status != MXA_OK)
        check_fail("%s: %s", what, mxa_error_text());
    return status == MXA_OK;
}

/* Both caches' answers are one. */
static bool agree(const char *what, mxa_status cpu, mxa_status device)
{
    if (cpu != device)
        check_fail("%s: the CPU says %d, the device %d: %s", what, cpu, device, mxa_error_text());
    return cpu == MXA_OK && device == MXA_OK;
}

static void *on_device(blocks *b, const void *host, size_t bytes)
{
    void *memory = NULL;
    if (!ok("device memory", mxa_device_alloc(MXA_DEVICE_CUDA_0, bytes, &memory)))
        return NULL;
    b->memory[b->n++] = memory;
    ok("copy", mxa_device_copy(MXA_DEVICE_CUDA_0, memory, host, bytes));
    return memory;
}

static void free_blocks(blocks *b)
{
    while (b->n > 0)
        mxa_device_free(MXA_DEVICE_CUDA_0, b->memory[--b->n]);
}

/* ---------------------------------------------------------------- create */

static float *random_mean(const kv_pair *p)
{
    const int64_t n = p->opts.heads_kv * p->opts.head_dim;
    float *const mean = check_floats(n, false);
    for (int64_t i = 0; i < n && p->tame; i++)
        mean[i] = check_normal();
    return mean;
}

bool kv_create(kv_pair *p, const char *recipe, bool exact)
{
    static const int64_t dims[] = { 32, 64, 128, 128, 192, 256, 80, 100, 17 };
    *p = (kv_pair){ .exact = exact, .tame = check_pick(0, 2) > 0 };
    if (!ok(recipe, mxa_recipe_parse(recipe, &p->recipe)))
        return false;
    mxa_cache_default(&p->opts, KV_BATCH, check_pick(1, 3), dims[check_pick(0, 8)]);
    p->opts.head_dim_v = check_pick(0, 2) ? p->opts.head_dim : dims[check_pick(0, 8)];
    p->opts.page_tokens = check_pick(0, 1) ? 64 : 16 * check_pick(1, 16);
    p->opts.recipe = &p->recipe;
    p->opts.rewind = check_pick(0, 40);
    if (p->recipe.smooth_k == MXA_SMOOTH_GIVEN)
        p->opts.mean = p->mean = random_mean(p);
    if (check_pick(0, 1))
        p->opts.pages[MXA_PAGE_LOW] = p->opts.pages[MXA_PAGE_HIGH] = FIXED_PAGES;
    mxa_cache_opts device = p->opts;
    device.device = MXA_DEVICE_CUDA_0;
    return ok("create", mxa_cache_create(&p->opts, &p->caches[KV_CPU])) &&
           ok("create", mxa_cache_create(&device, &p->caches[KV_DEVICE]));
}

void kv_free(kv_pair *p)
{
    for (int i = 0; i < KV_CACHES; i++)
        mxa_cache_free(p->caches[i]);
}

static int64_t length_of(const kv_pair *p, int64_t b)
{
    int64_t lengths[KV_BATCH];
    mxa_cache_lengths(p->caches[KV_CPU], lengths);
    return lengths[b];
}

/* ---------------------------------------------------------------- tensors */

/* In host memory, of a random type, [batch][heads][n][dim] or [batch][n][heads][dim] with gaps. */
static mxa_tensor random_rows(const kv_pair *p, int64_t heads, int64_t n, int64_t dim, bool nonfinite,
                              int64_t *elements)
{
    const int64_t row = dim + (check_pick(0, 1) ? 0 : check_pick(1, 9));
    *elements = KV_BATCH * heads * (n + 1) * row;
    float *const x = check_floats(*elements, nonfinite);
    for (int64_t i = 0; i < *elements && p->tame; i++)
        x[i] = check_normal();
    mxa_tensor t = mxa_tensor_contiguous(x, (mxa_dtype)check_pick(0, 2), KV_BATCH, heads, n, dim);
    const bool by_token = check_pick(0, 1);
    t.stride[2] = by_token ? row * heads : row;
    t.stride[1] = by_token ? row : row * (n + 1);
    t.stride[0] = row * heads * (n + 1);
    uint16_t *const halves = (uint16_t *)(void *)x;
    for (int64_t i = 0; i < *elements && t.dtype != MXA_DTYPE_F32; i++)
        halves[i] = t.dtype == MXA_DTYPE_F16 ? mxa_f16_from_f32(x[i]) : mxa_bf16_from_f32(x[i]);
    return t;
}

static mxa_tensor copy_rows(const mxa_tensor *x, int64_t elements, blocks *b)
{
    mxa_tensor t = *x;
    t.data = on_device(b, x->data, (size_t)(elements * mxa_dtype_bytes(x->dtype)));
    return t;
}

/* What the backend without a device is to do otherwise. */
static void fake(const char *word)
{
    if (word)
        setenv("MXA_FAKE", word, 1);
    else
        unsetenv("MXA_FAKE");
}

static mxa_status append_to_device(mxa_cache *cache, const mxa_tensor *k, const mxa_tensor *v,
                                   const int64_t *counts, bool booked)
{
    const mxa_status status = booked ? mxa_cache_advance(cache, counts) : MXA_OK;
    if (status != MXA_OK)
        return status;
    if (booked)
        fake("capture");
    const mxa_status appended = mxa_cache_append(cache, k, v, counts);
    fake(NULL);
    return appended;
}

void kv_append(kv_pair *p, const int64_t *counts, bool nonfinite, bool booked)
{
    int64_t n = 0, of_k, of_v;
    for (int b = 0; b < KV_BATCH; b++)
        n = mxa_max(n, counts[b]);
    blocks device = { .n = 0 };
    const mxa_tensor k = random_rows(p, p->opts.heads_kv, n, p->opts.head_dim, nonfinite, &of_k);
    const mxa_tensor v = random_rows(p, p->opts.heads_kv, n, p->opts.head_dim_v, nonfinite, &of_v);
    const mxa_tensor k_device = copy_rows(&k, of_k, &device), v_device = copy_rows(&v, of_v, &device);
    const mxa_status cpu = mxa_cache_append(p->caches[KV_CPU], &k, &v, counts);
    if (agree("append", cpu, append_to_device(p->caches[KV_DEVICE], &k_device, &v_device, counts, booked)))
        for (int b = 0; b < KV_BATCH; b++)
            p->appended[b] = counts[b] > 0 ? counts[b] : p->appended[b];
    free_blocks(&device);
}

/* ---------------------------------------------------------------- attend */

/* How far a device's result may be from the CPU's, of the largest: P and the sums are of 16 bits there. */
static const double tolerance = 4e-3;

static void compare(const char *what, bool exact, const float *want, const float *got, int64_t n)
{
    double largest = 1;
    for (int64_t i = 0; i < n; i++)
        if (mxa_f32_is_finite(want[i]))
            largest = fmax(largest, fabs((double)want[i]));
    for (int64_t i = 0; i < n; i++)
        if (mxa_f32_bits(want[i]) != mxa_f32_bits(got[i]) &&
            !check_close(what, i, (double)want[i], (double)got[i], exact ? 0 : tolerance * largest))
            return;
}

typedef struct attend_buffers {
    float *out, *lse;
    void *work;
    size_t work_bytes;
} attend_buffers;

static attend_buffers make_buffers(const mxa_cache *cache, int64_t heads, int64_t n, int64_t length,
                                   int64_t elements)
{
    attend_buffers b = { .work_bytes = mxa_cache_work_bytes(cache, heads, n, length) };
    b.out = (float *)(void *)check_bytes((size_t)elements * sizeof(float)).data;
    b.lse = (float *)(void *)check_bytes((size_t)(KV_BATCH * heads * n) * sizeof(float)).data;
    b.work = check_bytes(b.work_bytes).data;
    return b;
}

static void attend_pair(kv_pair *p, int64_t heads, int64_t n, const int64_t *counts, int64_t longest)
{
    int64_t of_q;
    blocks device = { .n = 0 };
    const int64_t rows = KV_BATCH * heads * n, elements = rows * p->opts.head_dim_v;
    const mxa_tensor q = random_rows(p, heads, n, p->opts.head_dim, false, &of_q);
    const mxa_tensor q_device = copy_rows(&q, of_q, &device);
    float *const sinks = check_pick(0, 2) ? NULL : check_floats(heads, false);
    for (int64_t h = 0; h < heads && sinks; h++)
        sinks[h] = check_normal();
    attend_buffers own = make_buffers(p->caches[KV_CPU], heads, n, longest, elements),
                   other = make_buffers(p->caches[KV_DEVICE], heads, n, longest, elements);
    mxa_tensor out = mxa_tensor_contiguous(own.out, MXA_DTYPE_F32, KV_BATCH, heads, n, p->opts.head_dim_v);
    mxa_cache_attend_args args = {
        .size = sizeof args,
        .q = &q,
        .out = &out,
        .counts = counts,
        .lse = own.lse,
        .sinks = sinks,
        .softmax_scale = 1 / sqrtf((float)p->opts.head_dim),
        .softcap = check_pick(0, 3) ? 0.0f : 5.0f,
        .window_left = check_pick(0, 3) ? MXA_UNLIMITED : check_pick(0, 300),
        .work = own.work,
        .work_bytes = own.work_bytes,
    };
    const mxa_status cpu = mxa_cache_attend(p->caches[KV_CPU], &args);
    args.q = &q_device;
    out.data = on_device(&device, other.out, (size_t)elements * sizeof(float));
    args.lse = on_device(&device, other.lse, (size_t)rows * sizeof(float));
    args.sinks = sinks ? on_device(&device, sinks, (size_t)heads * sizeof *sinks) : NULL;
    args.work = on_device(&device, other.work, other.work_bytes);
    args.work_bytes = other.work_bytes;
    const bool compares = p->exact || p->tame;
    if (agree("attend", cpu, mxa_cache_attend(p->caches[KV_DEVICE], &args)) && compares &&
        ok("attend",
           mxa_device_copy(MXA_DEVICE_CUDA_0, other.out, out.data, (size_t)elements * sizeof(float))) &&
        ok("attend", mxa_device_copy(MXA_DEVICE_CUDA_0, other.lse, args.lse, (size_t)rows * sizeof(float)))) {
        char what[128];
        snprintf(what, sizeof what, "out of dims %d, %d, page %d, type %d, n %d, window %d, softcap %g",
                 (int)p->opts.head_dim, (int)p->opts.head_dim_v, (int)p->opts.page_tokens, (int)q.dtype,
                 (int)n, (int)args.window_left, (double)args.softcap);
        compare(what, p->exact, own.out, other.out, elements);
        compare("lse", p->exact, own.lse, other.lse, rows);
    }
    free_blocks(&device);
}

void kv_attend(kv_pair *p)
{
    int64_t counts[KV_BATCH], n = 1, longest = 0;
    for (int64_t b = 0; b < KV_BATCH; b++) {
        const int64_t most = mxa_min(p->appended[b] + p->opts.rewind, length_of(p, b));
        counts[b] = check_pick(0, mxa_min(most, QUERIES_MAX));
        n = mxa_max(n, counts[b]);
        longest = mxa_max(longest, length_of(p, b));
    }
    attend_pair(p, p->opts.heads_kv * check_pick(1, GROUP_MAX), n, counts, longest);
}

/* ---------------------------------------------------------------- sequences and files */

void kv_truncate(kv_pair *p, int64_t b, int64_t back)
{
    const int64_t length = mxa_max(length_of(p, b) - back, 0);
    const mxa_status cpu = mxa_cache_truncate(p->caches[KV_CPU], b, length);
    if (agree("truncate", cpu, mxa_cache_truncate(p->caches[KV_DEVICE], b, length)))
        p->appended[b] = mxa_max(p->appended[b] - back, 0);
}

void kv_fork(kv_pair *p, int64_t from, int64_t to)
{
    const mxa_status cpu = mxa_cache_fork(p->caches[KV_CPU], from, to);
    if (agree("fork", cpu, mxa_cache_fork(p->caches[KV_DEVICE], from, to)))
        p->appended[to] = p->appended[from];
}

void kv_reorder(kv_pair *p)
{
    int64_t from[KV_BATCH], appended[KV_BATCH];
    memcpy(appended, p->appended, sizeof appended);
    for (int b = 0; b < KV_BATCH; b++) {
        from[b] = check_pick(0, KV_BATCH - 1);
        p->appended[b] = appended[from[b]];
    }
    const mxa_status cpu = mxa_cache_reorder(p->caches[KV_CPU], from);
    agree("reorder", cpu, mxa_cache_reorder(p->caches[KV_DEVICE], from));
}

static bool save(const mxa_cache *cache, char *path)
{
    strcpy(path, "/tmp/mxattn_kv_XXXXXX");
    const int fd = mkstemp(path);
    if (fd >= 0)
        close(fd);
    return ok("save", fd < 0 ? MXA_ERR_FILE : mxa_cache_save(cache, path));
}

static check_buf read_file(const char *path)
{
    FILE *const file = fopen(path, "rb");
    fseek(file, 0, SEEK_END);
    const check_buf data = check_bytes((size_t)ftell(file));
    rewind(file);
    if (fread(data.data, 1, data.bytes, file) != data.bytes)
        check_fail("%s cannot be read", path);
    fclose(file);
    return data;
}

enum { PATH_BYTES = 64 };

void kv_same_files(kv_pair *p)
{
    char paths[KV_CACHES][PATH_BYTES];
    if (save(p->caches[KV_CPU], paths[KV_CPU]) && save(p->caches[KV_DEVICE], paths[KV_DEVICE]))
        check_same("files", read_file(paths[KV_CPU]), read_file(paths[KV_DEVICE]));
    for (int i = 0; i < KV_CACHES; i++)
        unlink(paths[i]);
}

void kv_reload(kv_pair *p)
{
    char paths[KV_CACHES][PATH_BYTES];
    mxa_cache *read[KV_CACHES] = { NULL, NULL };
    mxa_cache_opts opts = p->opts;
    opts.mean = check_pick(0, 1) ? p->mean : NULL; /* the file has it */
    if (save(p->caches[KV_CPU], paths[KV_CPU]) && save(p->caches[KV_DEVICE], paths[KV_DEVICE]) &&
        ok("load", mxa_cache_load(paths[KV_DEVICE], &opts, &read[KV_CPU]))) {
        opts.device = MXA_DEVICE_CUDA_0;
        if (ok("load", mxa_cache_load(paths[KV_CPU], &opts, &read[KV_DEVICE]))) {
            kv_free(p);
            memcpy(p->caches, read, sizeof read);
            memset(p->appended, 0, sizeof p->appended);
        }
    }
    for (int i = 0; i < KV_CACHES; i++)
        unlink(paths[i]);
}

/* Which pages some sequence has. */
static void find_used(const mxa_cache *cache, int kind, bool used[FIXED_PAGES])
{
    memset(used, 0, FIXED_PAGES * sizeof *used);
    for (int64_t b = 0; b < KV_BATCH; b++) {
        mxa_cache_table t;
        if (ok("table", mxa_cache_get_table(cache, b, &t)))
            for (int64_t page = 0; page < t.n_pages; page++)
                if (t.pages[kind][page] >= 0)
                    used[t.pages[kind][page]] = true;
    }
}

/* The contents of some pages go to free ones, the last of all first. */
static void move_pages(const kv_pair *p, int i, int kind, const int32_t *from, int32_t *to, int64_t n)
{
    bool used[FIXED_PAGES];
    mxa_cache_size size;
    int32_t next = FIXED_PAGES - 1;
    find_used(p->caches[i], kind, used);
    ok("bytes", mxa_cache_bytes(&p->opts, &size));
    for (int64_t page = 0; page < n; page++) {
        to[page] = -1;
        if (from[page] < 0)
            continue;
        while (used[next])
            next--;
        to[page] = next--;
        void *const there = mxa_cache_page(p->caches[i], kind, to[page]);
        const void *const here = mxa_cache_page(p->caches[i], kind, from[page]);
        if (i == KV_CPU)
            memcpy(there, here, (size_t)size.page_bytes[kind]);
        else
            ok("copy", mxa_device_copy(MXA_DEVICE_CUDA_0, there, here, (size_t)size.page_bytes[kind]));
    }
}

void kv_swap_pages(kv_pair *p, int64_t b)
{
    for (int i = 0; i < KV_CACHES && p->opts.pages[MXA_PAGE_LOW] > 0; i++) {
        mxa_cache_table t;
        if (!ok("table", mxa_cache_get_table(p->caches[i], b, &t)))
            return;
        for (int kind = 0; kind < MXA_PAGE_KINDS; kind++) {
            const check_buf pages = check_bytes((size_t)(t.n_pages + 1) * sizeof(int32_t));
            move_pages(p, i, kind, t.pages[kind], (int32_t *)(void *)pages.data, t.n_pages);
            t.pages[kind] = (const int32_t *)(const void *)pages.data;
        }
        ok("table", mxa_cache_set_table(p->caches[i], b, &t));
    }
}

/* ---------------------------------------------------------------- refusals */

static void refused(const char *what, mxa_status status)
{
    if (status != MXA_ERR_ARG || !strstr(mxa_error_text(), "is host memory"))
        check_fail("%s: host memory gives %d: %s", what, status, mxa_error_text());
}

void kv_run_out(kv_pair *p)
{
    enum { MANY = 600 };
    blocks device = { .n = 0 };
    int64_t elements;
    kv_same_files(p);
    const mxa_tensor k = random_rows(p, p->opts.heads_kv, MANY, p->opts.head_dim, false, &elements);
    const mxa_tensor k_device = copy_rows(&k, elements, &device);
    const mxa_tensor v = random_rows(p, p->opts.heads_kv, MANY, p->opts.head_dim_v, false, &elements);
    const mxa_tensor v_device = copy_rows(&v, elements, &device);
    fake("full");
    const mxa_status status = mxa_cache_append(p->caches[KV_DEVICE], &k_device, &v_device, NULL);
    fake(NULL);
    if (p->opts.pages[MXA_PAGE_LOW] == 0 && status != MXA_ERR_MEMORY)
        check_fail("out of memory gives %d: %s", status, mxa_error_text());
    if (status != MXA_OK)
        kv_same_files(p);
    free_blocks(&device);
}

void kv_refuse_recorded_changes(kv_pair *p)
{
    mxa_cache *const cache = p->caches[KV_DEVICE];
    static const int64_t from[KV_BATCH];
    mxa_cache_table table;
    if (!ok("table", mxa_cache_get_table(cache, 0, &table)))
        return;
    fake("capture");
    const mxa_status statuses[] = {
        mxa_cache_truncate(cache, 0, table.length),
        mxa_cache_fork(cache, 0, 1),
        mxa_cache_reorder(cache, from),
        mxa_cache_set_table(cache, 0, &table),
        mxa_cache_advance(cache, from),
    };
    fake(NULL);
    for (size_t i = 0; i < sizeof statuses / sizeof *statuses; i++)
        if (statuses[i] != MXA_ERR_ARG)
            check_fail("change %zu on a captured stream gives %d", i, statuses[i]);
    kv_same_files(p);
}

void kv_refuse_host_memory(void)
{
    enum { DIM = 64, PAGES = 4 };
    mxa_cache_opts opts;
    mxa_cache *cache = NULL;
    mxa_cache_size size;
    mxa_cache_default(&opts, 1, 1, DIM);
    opts.device = MXA_DEVICE_CUDA_0;
    opts.pages[MXA_PAGE_LOW] = PAGES;
    if (!ok("bytes", mxa_cache_bytes(&opts, &size)))
        return;
    opts.memory[MXA_PAGE_LOW] = check_bytes((size_t)(PAGES * size.page_bytes[MXA_PAGE_LOW])).data;
    fake("host");
    refused("memory", mxa_cache_create(&opts, &cache));
    opts.memory[MXA_PAGE_LOW] = NULL;
    if (!ok("create", mxa_cache_create(&opts, &cache)))
        return;
    const mxa_tensor rows = mxa_tensor_contiguous(check_floats(DIM, false), MXA_DTYPE_F32, 1, 1, 1, DIM);
    refused("append", mxa_cache_append(cache, &rows, &rows, NULL));
    fake(NULL);
    int64_t length;
    if (ok("lengths", mxa_cache_lengths(cache, &length)) && length != 0)
        check_fail("a refused append left %lld tokens", (long long)length);
    mxa_cache_free(cache);
}

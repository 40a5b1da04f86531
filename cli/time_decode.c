/* SPDX-License-Identifier: Apache-2.0 */
#include "time_decode.h"

#include "attention_input.h"
#include "cli.h"
#include "time_shape.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <sys/mman.h>

#define LEAST_RUNS  10
#define MIN_SECONDS 0.5
#define READ_BYTES  (INT64_C(512) << 20) /* more than the caches of processors hold */
#define READ_WORDS  16                   /* summed at once */
#define HUGE_PAGE   (INT64_C(2) << 20)
#define FILL_TOKENS 512  /* appended at once: a cache holds their high rows all together */
#define PAGE_TOKENS 64   /* of the caches */
#define MOST_STEPS  1024 /* beyond a shape's tokens */

static const char *const recipes[DECODE_RECIPES] = { "dma4,v=int8", "dma4,v=mxfp4,rotate-v", "dma8,v=int8",
                                                     "bf16" };

/* The layers of a recipe, and what a step of any of them takes. */
typedef struct model {
    mxa_cache *layers[DECODE_LAYERS_MAX];
    int64_t n_layers;
    mxa_tensor q, k, v, out; /* of one token */
    mxa_cache_attend_args args;
    int64_t tokens; /* of each sequence */
} model;

typedef struct reader {
    uint64_t *words;
    int64_t n; /* of each thread */
    int threads;
} reader;

static bool check(mxa_status status)
{
    if (status != MXA_OK)
        cli_fail("decode: %s", mxa_error_text());
    return status == MXA_OK;
}

static mxa_tensor rows_of(const mxa_tensor *x, int64_t first, int64_t count)
{
    mxa_tensor view = *x;
    view.data = (char *)x->data + first * x->stride[2] * input_dtype_bytes(x->dtype);
    view.shape[2] = count;
    return view;
}

static bool append_token(model *m, int64_t layer)
{
    return check(mxa_cache_append(m->layers[layer], &m->k, &m->v, NULL));
}

static bool run_step(void *context)
{
    model *const m = context;
    bool ok = true;
    for (int64_t i = 0; i < m->n_layers && ok; i++)
        ok = append_token(m, i) && check(mxa_cache_attend(m->layers[i], &m->args));
    m->tokens++;
    return ok;
}

/* Milliseconds of a token's appends to all layers, over as many tokens as fill a page; below 0: failed. */
static double append_ms(model *m)
{
    bool ok = true;
    const double start = cli_seconds();
    for (int64_t token = 0; token < PAGE_TOKENS && ok; token++)
        for (int64_t i = 0; i < m->n_layers && ok; i++)
            ok = append_token(m, i);
    return ok ? (cli_seconds() - start) * 1e3 / PAGE_TOKENS : -1;
}

static bool run_read(void *context)
{
    const reader *const r = context;
#pragma omp parallel for num_threads(r->threads) schedule(static, 1)
    for (int t = 0; t < r->threads; t++) {
        const uint64_t *const from = r->words + t * r->n;
        uint64_t sums[READ_WORDS] = { 0 };
        for (int64_t i = 0; i < r->n; i += READ_WORDS)
            for (int j = 0; j < READ_WORDS; j++)
                sums[j] += from[i + j];
        for (int j = 0; j < READ_WORDS; j++)
            __asm__ volatile("" ::"r"(sums[j]));
    }
    return true;
}

static bool open_reader(reader *r, int threads)
{
    *r = (reader){ .threads = threads };
    const int64_t share = (READ_BYTES / threads + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    r->n = share / (int64_t)sizeof *r->words;
    r->words = aligned_alloc(HUGE_PAGE, (size_t)(share * threads));
    if (r->words == NULL)
        return cli_fail("no memory to read"), false;
    madvise(r->words, (size_t)(share * threads), MADV_HUGEPAGE); /* as the caches do */
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int t = 0; t < threads; t++)
        for (int64_t i = 0; i < r->n; i++)
            r->words[t * r->n + i] = (uint64_t)i;
    return true;
}

static bool fill(mxa_cache *cache, const shape *s, const mxa_tensor *k, const mxa_tensor *v)
{
    const int64_t n = s->kv_len - 1;
    bool ok = true;
    for (int64_t first = 0; first < n && ok; first += FILL_TOKENS) {
        const int64_t count = n - first < FILL_TOKENS ? n - first : FILL_TOKENS;
        const mxa_tensor part[2] = { rows_of(k, first, count), rows_of(v, first, count) };
        ok = check(mxa_cache_append(cache, &part[0], &part[1], NULL));
    }
    return ok;
}

/* Caches of all tokens but one, which the first step appends. */
static bool open_model(model *m, const shape *s, const char *name, int64_t layers, int threads,
                       const mxa_tensor *k, const mxa_tensor *v)
{
    mxa_recipe recipe;
    mxa_cache_opts opts;
    mxa_cache_default(&opts, s->batch, s->heads_kv, s->dim);
    opts.head_dim_v = s->dim_v;
    opts.page_tokens = PAGE_TOKENS;
    opts.recipe = &recipe;
    opts.threads = threads;
    if (!check(mxa_recipe_parse(name, &recipe)))
        return false;
    m->tokens = s->kv_len - 1;
    m->k = rows_of(k, s->kv_len - 1, 1);
    m->v = rows_of(v, s->kv_len - 1, 1);
    for (; m->n_layers < layers; m->n_layers++)
        if (!check(mxa_cache_create(&opts, &m->layers[m->n_layers])) ||
            !fill(m->layers[m->n_layers], s, k, v))
            return false;
    m->args = (mxa_cache_attend_args){ .size = sizeof m->args,
                                       .q = &m->q,
                                       .out = &m->out,
                                       .softmax_scale = (float)(1 / sqrt((double)s->dim)),
                                       .window_left = MXA_UNLIMITED };
    m->args.work_bytes = mxa_cache_work_bytes(m->layers[0], s->heads, 1, s->kv_len + MOST_STEPS);
    m->args.work = cli_alloc(m->args.work_bytes, "the workspace");
    return m->args.work != NULL;
}

static void close_model(model *m)
{
    for (int64_t i = 0; i < DECODE_LAYERS_MAX; i++)
        mxa_cache_free(m->layers[i]);
    free(m->args.work);
}

static decode_time result_of(const model *m, const char *recipe, timing step)
{
    decode_time t = { .recipe = recipe, .step = step };
    for (int64_t i = 0; i < m->n_layers; i++)
        t.step_bytes += (double)mxa_cache_used_bytes(m->layers[i]);
    t.bytes_per_token = t.step_bytes / (double)(m->q.shape[0] * m->tokens * m->n_layers);
    return t;
}

/* Random tokens of the shape. */
static bool make_tokens(const shape *s, mxa_tensor *k, mxa_tensor *v, mxa_tensor *q, mxa_tensor *out)
{
    const int64_t rows = s->batch * s->heads_kv * s->kv_len;
    *k = mxa_tensor_contiguous(random_tensor(s->type, rows * s->dim, 1), s->type, s->batch, s->heads_kv,
                               s->kv_len, s->dim);
    *v = mxa_tensor_contiguous(random_tensor(s->type, rows * s->dim_v, 2), s->type, s->batch, s->heads_kv,
                               s->kv_len, s->dim_v);
    *q = mxa_tensor_contiguous(random_tensor(s->type, s->batch * s->heads * s->dim, 3), s->type, s->batch,
                               s->heads, 1, s->dim);
    *out = mxa_tensor_contiguous(
        cli_alloc((uint64_t)(s->batch * s->heads * s->dim_v) * sizeof(float), "the output"), MXA_DTYPE_F32,
        s->batch, s->heads, 1, s->dim_v);
    return k->data && v->data && q->data && out->data;
}

static bool time_models(const shape *s, int64_t layers, int threads, model *models, reader *r,
                        decode_time times[DECODE_RECIPES], double *read)
{
    mxa_tensor k, v;
    timed_call calls[DECODE_RECIPES + 1];
    timing results[DECODE_RECIPES + 1];
    bool ok = make_tokens(s, &k, &v, &models[0].q, &models[0].out);
    for (int i = 0; i < DECODE_RECIPES && ok; i++) {
        models[i].q = models[0].q;
        models[i].out = models[0].out;
        ok = open_model(&models[i], s, recipes[i], layers, threads, &k, &v);
        calls[i] = (timed_call){ run_step, &models[i] };
    }
    calls[DECODE_RECIPES] = (timed_call){ run_read, r };
    ok = ok && open_reader(r, threads) &&
         timing_measure(calls, DECODE_RECIPES + 1, LEAST_RUNS, MIN_SECONDS, results);
    for (int i = 0; i < DECODE_RECIPES && ok; i++) {
        times[i] = result_of(&models[i], recipes[i], results[i]);
        const double ms = append_ms(&models[i]);
        times[i].append_share = ms / results[i].median_ms;
        ok = ms >= 0;
    }
    if (ok)
        *read = (double)(r->n * threads) * sizeof *r->words / (results[DECODE_RECIPES].median_ms * 1e-3);
    free(k.data);
    free(v.data);
    free(models[0].q.data);
    free(models[0].out.data);
    return ok;
}

bool time_decode(const shape *s, int64_t layers, int threads, decode_time times[DECODE_RECIPES], double *read)
{
    model models[DECODE_RECIPES] = { 0 };
    reader r = { 0 };
    const bool ok =
        time_models(s, layers, threads > 0 ? threads : omp_get_max_threads(), models, &r, times, read);
    for (int i = 0; i < DECODE_RECIPES; i++)
        close_model(&models[i]);
    free(r.words);
    return ok;
}

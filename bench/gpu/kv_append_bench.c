/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an append of one token costs beside the attention of a decode step: CUDA graphs of many layers, with
 * and without appends. Caches are used in turn, so that none is in the L2 cache.
 *
 *   kv_append_bench [appends]    a line for each recipe and shape; appends: these alone
 */
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mxattn/mxattn.h>

enum { HEADS = 32, HEADS_KV = 8, DIM = 128, LAYERS = 32, CACHES = 4, BLOCK = 2048, ROUNDS = 12 };

typedef struct shape {
    const char *name;
    int64_t batch, length;
} shape;

static void fail(const char *what, const char *why)
{
    printf("FAIL %s: %s\n", what, why);
    exit(1);
}

static void cuda(cudaError_t error, const char *what)
{
    if (error != cudaSuccess)
        fail(what, cudaGetErrorString(error));
}

static void library(mxa_status status, const char *what)
{
    if (status != MXA_OK)
        fail(what, mxa_error_text());
}

/* bf16 of random numbers, [batch][heads][n][DIM]. */
static mxa_tensor random_tensor(int64_t batch, int64_t heads, int64_t n)
{
    const size_t count = (size_t)(batch * heads * n * DIM);
    uint16_t *const host = malloc(count * sizeof *host);
    uint32_t state = 1;
    for (size_t i = 0; i < count; i++) {
        state = state * 1664525u + 1013904223u;
        host[i] = (uint16_t)(0x3E00 + (state >> 23) + (state & 0x8000u)); /* +-1/8..8 */
    }
    void *memory;
    cuda(cudaMalloc(&memory, count * sizeof *host), "memory");
    cuda(cudaMemcpy(memory, host, count * sizeof *host, cudaMemcpyHostToDevice), "copy");
    free(host);
    return mxa_tensor_contiguous(memory, MXA_DTYPE_BF16, batch, heads, n, DIM);
}

typedef struct bench {
    mxa_cache *caches[CACHES];
    mxa_tensor k, v, q, out;
    mxa_cache_attend_args args;
    cudaStream_t stream;
} bench;

static void fill(bench *b, const shape *s)
{
    const int64_t block = s->length < BLOCK ? s->length : BLOCK;
    mxa_tensor rows = random_tensor(s->batch, HEADS_KV, block);
    for (int64_t at = 0; at < s->length; at += block)
        for (int c = 0; c < CACHES; c++)
            library(mxa_cache_append(b->caches[c], &rows, &rows, NULL), "fill");
    cuda(cudaStreamSynchronize(b->stream), "fill");
    cuda(cudaFree(rows.data), "fill");
}

static void make_bench(bench *b, const char *text, const shape *s)
{
    enum { PAGE = 64 };
    const int64_t longest = s->length + LAYERS * (ROUNDS + 2);
    mxa_recipe recipe;
    mxa_cache_opts opts;
    mxa_cache_default(&opts, s->batch, HEADS_KV, DIM);
    library(mxa_recipe_parse(text, &recipe), text);
    opts.recipe = &recipe;
    opts.device = MXA_DEVICE_CUDA_0;
    opts.pages[MXA_PAGE_LOW] = s->batch * (longest / PAGE + 2);
    opts.pages[MXA_PAGE_HIGH] = s->batch * (BLOCK / PAGE + 16);
    cuda(cudaStreamCreateWithFlags(&b->stream, cudaStreamNonBlocking), "stream");
    for (int c = 0; c < CACHES; c++) {
        library(mxa_cache_create(&opts, &b->caches[c]), "create");
        library(mxa_cache_set_stream(b->caches[c], b->stream), "stream");
    }
    fill(b, s);
    b->k = random_tensor(s->batch, HEADS_KV, 1);
    b->v = random_tensor(s->batch, HEADS_KV, 1);
    b->q = random_tensor(s->batch, HEADS, 1);
    b->out = random_tensor(s->batch, HEADS, 1);
    b->args = (mxa_cache_attend_args){
        .size = sizeof b->args,
        .q = &b->q,
        .out = &b->out,
        .softmax_scale = 1 / sqrtf(DIM),
        .window_left = MXA_UNLIMITED,
        .work_bytes = mxa_cache_work_bytes(b->caches[0], HEADS, 1, longest),
        .max_length = longest,
    };
    cuda(cudaMalloc(&b->args.work, b->args.work_bytes), "work");
}

static void free_bench(bench *b)
{
    for (int c = 0; c < CACHES; c++)
        mxa_cache_free(b->caches[c]);
    mxa_tensor *const tensors[] = { &b->k, &b->v, &b->q, &b->out };
    for (int i = 0; i < 4; i++)
        cudaFree(tensors[i]->data);
    cudaFree(b->args.work);
    cudaStreamDestroy(b->stream);
}

static void advance(bench *b, const shape *s)
{
    int64_t *const counts = malloc((size_t)s->batch * sizeof *counts);
    for (int64_t i = 0; i < s->batch; i++)
        counts[i] = 1;
    for (int layer = 0; layer < LAYERS; layer++)
        library(mxa_cache_advance(b->caches[layer % CACHES], counts), "advance");
    free(counts);
}

static cudaGraphExec_t capture(bench *b, bool appends, bool attends)
{
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    cuda(cudaStreamBeginCapture(b->stream, cudaStreamCaptureModeGlobal), "capture");
    for (int layer = 0; layer < LAYERS; layer++) {
        mxa_cache *const cache = b->caches[layer % CACHES];
        if (appends)
            library(mxa_cache_append(cache, &b->k, &b->v, NULL), "append");
        if (attends)
            library(mxa_cache_attend(cache, &b->args), "attend");
    }
    cuda(cudaStreamEndCapture(b->stream, &graph), "capture");
    cuda(cudaGraphInstantiate(&executable, graph, 0), "capture");
    cuda(cudaGraphDestroy(graph), "capture");
    return executable;
}

static int by_size(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Microseconds a layer: the median. */
static float time_graph(bench *b, const shape *s, bool appends, bool attends)
{
    float times[ROUNDS / 3];
    cudaEvent_t begin, end;
    cuda(cudaEventCreate(&begin), "event");
    cuda(cudaEventCreate(&end), "event");
    const cudaGraphExec_t graph = capture(b, appends, attends);
    for (int i = -1; i < ROUNDS / 3; i++) { /* the first is a warm-up */
        if (appends)
            advance(b, s);
        cuda(cudaEventRecord(begin, b->stream), "event");
        cuda(cudaGraphLaunch(graph, b->stream), "launch");
        cuda(cudaEventRecord(end, b->stream), "event");
        cuda(cudaEventSynchronize(end), "launch");
        if (i >= 0)
            cuda(cudaEventElapsedTime(&times[i], begin, end), "event");
    }
    cuda(cudaGraphExecDestroy(graph), "graph");
    qsort(times, ROUNDS / 3, sizeof *times, by_size);
    return times[ROUNDS / 6] * 1e3f / LAYERS;
}

int main(int argc, char **argv)
{
    static const char *const recipes[] = { "dma4", "dma4,v=int8", "dma4,v=mxfp4,rotate-v", "dma8,v=int8" };
    static const shape shapes[] = { { "B1 32k", 1, 32768 },
                                    { "B1 128k", 1, 131072 },
                                    { "B32 8k", 32, 8192 } };
    const bool attends = argc < 2 || strcmp(argv[1], "appends") != 0;
    printf("us a layer                      append   attend     both   share of the append\n");
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (size_t r = 0; r < sizeof recipes / sizeof *recipes; r++) {
            bench b;
            make_bench(&b, recipes[r], &shapes[s]);
            const float append = time_graph(&b, &shapes[s], true, false);
            const float attend = attends ? time_graph(&b, &shapes[s], false, true) : 0;
            const float both = attends ? time_graph(&b, &shapes[s], true, true) : append;
            printf("%-8s %-20s %8.2f %8.2f %8.2f   %.1f %%\n", shapes[s].name, recipes[r], (double)append,
                   (double)attend, (double)both, 100 * (double)((both - attend) / both));
            free_bench(&b);
        }
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A decode step of a device's cache, captured once and launched for every token: the bytes and the results of
 * the CPU's cache, whatever the lengths. Without a device it is skipped.
 */
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <mxattn/mxattn.h>

enum { SKIPPED = 77, BATCH = 3, HEADS = 8, HEADS_KV = 2, DIM = 128, PAGES = 64, STEPS = 150, LOOK_EACH = 15 };
enum { OUTPUTS = BATCH * HEADS * DIM, LONGEST = 700 };

static void fail(const char *what, const char *why)
{
    printf("FAIL %s: %s\n", what, why);
    exit(1);
}

static void cuda(const char *what, cudaError_t error)
{
    if (error != cudaSuccess)
        fail(what, cudaGetErrorString(error));
}

static void library(const char *what, mxa_status status)
{
    if (status != MXA_OK)
        fail(what, mxa_error_text());
}

static float random_number(void)
{
    static uint32_t state = 1;
    float sum = 0;
    for (int i = 0; i < 4; i++) {
        state = state * 1664525u + 1013904223u;
        sum += (float)(state >> 8) * 0x1p-24f - 0.5f;
    }
    return 2 * sum;
}

/* A tensor in host memory and its twin. */
typedef struct twin {
    mxa_tensor host, device;
    size_t bytes;
} twin;

static twin make_twin(int64_t heads, int64_t n)
{
    twin t = { .bytes = (size_t)(BATCH * heads * n * DIM) * sizeof(float) };
    void *memory;
    cuda("memory", cudaMalloc(&memory, t.bytes));
    t.host = mxa_tensor_contiguous(malloc(t.bytes), MXA_DTYPE_F32, BATCH, heads, n, DIM);
    t.device = mxa_tensor_contiguous(memory, MXA_DTYPE_F32, BATCH, heads, n, DIM);
    return t;
}

static void fill_twin(const twin *t, cudaStream_t stream)
{
    float *const x = t->host.data;
    for (size_t i = 0; i < t->bytes / sizeof *x; i++)
        x[i] = random_number();
    cuda("fill", cudaMemcpyAsync(t->device.data, x, t->bytes, cudaMemcpyHostToDevice, stream));
}

static void free_twin(twin *t)
{
    free(t->host.data);
    cudaFree(t->device.data);
}

typedef struct pair {
    mxa_cache *cpu, *device;
    twin k, v, q, out; /* of a step */
    mxa_cache_attend_args args;
    void *host_work, *device_work;
    size_t host_work_bytes;
    cudaStream_t stream;
} pair;

static void make_pair(pair *p, const char *text)
{
    mxa_recipe recipe;
    mxa_cache_opts opts;
    mxa_cache_default(&opts, BATCH, HEADS_KV, DIM);
    library("recipe", mxa_recipe_parse(text, &recipe));
    opts.recipe = &recipe;
    opts.pages[MXA_PAGE_LOW] = opts.pages[MXA_PAGE_HIGH] = PAGES;
    library("create", mxa_cache_create(&opts, &p->cpu));
    opts.device = MXA_DEVICE_CUDA_0;
    library("create", mxa_cache_create(&opts, &p->device));
    cuda("stream", cudaStreamCreateWithFlags(&p->stream, cudaStreamNonBlocking));
    library("stream", mxa_cache_set_stream(p->device, p->stream));
    p->k = make_twin(HEADS_KV, 1);
    p->v = make_twin(HEADS_KV, 1);
    p->q = make_twin(HEADS, 1);
    p->out = make_twin(HEADS, 1);
    const size_t bytes = mxa_cache_work_bytes(p->device, HEADS, 1, LONGEST);
    p->host_work_bytes = mxa_cache_work_bytes(p->cpu, HEADS, 1, LONGEST);
    p->host_work = aligned_alloc(64, (p->host_work_bytes + 63) / 64 * 64);
    cuda("work", cudaMalloc(&p->device_work, bytes));
    p->args = (mxa_cache_attend_args){
        .size = sizeof p->args,
        .softmax_scale = 1 / sqrtf(DIM),
        .window_left = MXA_UNLIMITED,
        .work_bytes = bytes,
        .max_length = LONGEST,
    };
}

static void free_pair(pair *p)
{
    mxa_cache_free(p->cpu);
    mxa_cache_free(p->device);
    cudaStreamDestroy(p->stream);
    free_twin(&p->k);
    free_twin(&p->v);
    free_twin(&p->q);
    free_twin(&p->out);
    free(p->host_work);
    cudaFree(p->device_work);
}

/* Unequal lengths: one sequence passes the first tile later, one has none to begin with. */
static void prefill(pair *p)
{
    enum { TOKENS = 400 };
    static const int64_t counts[BATCH] = { TOKENS, 100, 0 };
    twin k = make_twin(HEADS_KV, TOKENS), v = make_twin(HEADS_KV, TOKENS);
    fill_twin(&k, p->stream);
    fill_twin(&v, p->stream);
    library("prefill", mxa_cache_append(p->cpu, &k.host, &v.host, counts));
    library("prefill", mxa_cache_append(p->device, &k.device, &v.device, counts));
    cuda("prefill", cudaStreamSynchronize(p->stream));
    free_twin(&k);
    free_twin(&v);
}

/* Captured in the strictest mode, in which a call that allocates or waits fails. */
static cudaGraphExec_t capture(pair *p)
{
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    mxa_cache_attend_args args = p->args;
    args.q = &p->q.device;
    args.out = &p->out.device;
    args.work = p->device_work;
    cuda("capture", cudaStreamBeginCapture(p->stream, cudaStreamCaptureModeGlobal));
    library("capture", mxa_cache_append(p->device, &p->k.device, &p->v.device, NULL));
    library("capture", mxa_cache_attend(p->device, &args));
    cuda("capture", cudaStreamEndCapture(p->stream, &graph));
    cuda("capture", cudaGraphInstantiate(&executable, graph, 0));
    cuda("capture", cudaGraphDestroy(graph));
    return executable;
}

static void attend_on_cpu(pair *p)
{
    mxa_cache_attend_args args = p->args;
    args.q = &p->q.host;
    args.out = &p->out.host;
    args.work = p->host_work;
    args.work_bytes = p->host_work_bytes;
    args.max_length = 0;
    library("attend", mxa_cache_attend(p->cpu, &args));
}

static void compare(const pair *p, int step)
{
    static float got[OUTPUTS];
    const float *const want = p->out.host.data;
    double error = 0, size = 0;
    cuda("result", cudaMemcpy(got, p->out.device.data, sizeof got, cudaMemcpyDeviceToHost));
    for (int i = 0; i < OUTPUTS; i++) {
        error += pow((double)(got[i] - want[i]), 2);
        size += pow((double)want[i], 2);
    }
    const double most = 3e-3; /* of P in 16 bits */
    if (!(sqrt(error / size) < most)) {
        printf("step %d: the result is %g off\n", step, sqrt(error / size));
        exit(1);
    }
}

static void compare_files(const pair *p)
{
    static const char *const paths[2] = { "/tmp/mxattn_kv_graph_cpu", "/tmp/mxattn_kv_graph_device" };
    library("save", mxa_cache_save(p->cpu, paths[0]));
    library("save", mxa_cache_save(p->device, paths[1]));
    FILE *const a = fopen(paths[0], "rb"), *const b = fopen(paths[1], "rb");
    int x = 0, y = 0;
    while (x == y && x != EOF) {
        x = fgetc(a);
        y = fgetc(b);
    }
    fclose(a);
    fclose(b);
    for (int i = 0; i < 2; i++)
        unlink(paths[i]);
    if (x != y)
        fail("files", "a graph's bytes are not the CPU's");
}

static void check_recipe(const char *text)
{
    static const int64_t one[BATCH] = { 1, 1, 1 };
    pair p;
    make_pair(&p, text);
    prefill(&p);
    library("advance", mxa_cache_advance(p.device, one));
    const cudaGraphExec_t graph = capture(&p);
    for (int step = 0; step < STEPS; step++) {
        fill_twin(&p.k, p.stream);
        fill_twin(&p.v, p.stream);
        fill_twin(&p.q, p.stream);
        if (step > 0)
            library("advance", mxa_cache_advance(p.device, one));
        cuda("launch", cudaGraphLaunch(graph, p.stream));
        library("append", mxa_cache_append(p.cpu, &p.k.host, &p.v.host, NULL));
        cuda("launch", cudaStreamSynchronize(p.stream)); /* the rows may be overwritten */
        if (step % LOOK_EACH == 0) {
            attend_on_cpu(&p);
            compare(&p, step);
        }
    }
    compare_files(&p);
    cuda("graph", cudaGraphExecDestroy(graph));
    free_pair(&p);
    printf("ok   %s\n", text);
}

int main(void)
{
    static const char *const recipes[] = { "dma4,v=int8", "dma4,v=mxfp4,rotate-v", "dma8,v=int8", "dma4" };
    if (mxa_device_count() == 0) { /* before any call of CUDA */
        puts(mxa_error_text());
        return SKIPPED;
    }
    for (size_t i = 0; i < sizeof recipes / sizeof recipes[0]; i++)
        check_recipe(recipes[i]);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the library promises of calls on a GPU, with a CUDA runtime of the program's own: calls on a stream,
 * in a graph that is replayed with other numbers, and of threads that share a plan give the same bits; the
 * current device and CUDA's last error are what they were. Without a device it is skipped.
 */
#include <cuda_runtime_api.h>
#include <mxattn/mxattn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SKIPPED = 77,
    HEADS = 4,
    HEADS_KV = 2,
    LEN = 300,
    DIM = 64,
    ELEMENTS = HEADS * LEN * DIM,
    THREADS = 4
};
enum { BYTES = ELEMENTS * 2 };

/* Two sets of numbers, and each one's result. */
static uint16_t numbers[2][ELEMENTS], want[2][ELEMENTS];

typedef struct call {
    mxa_tensor q, k, v, out;
    mxa_attention_args args;
} call;

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

static void make_numbers(void)
{
    uint32_t state = 1;
    for (int i = 0; i < 2 * ELEMENTS; i++) {
        state = state * 1664525u + 1013904223u;
        numbers[i / ELEMENTS][i % ELEMENTS] =
            (uint16_t)(0x3E00 + (state >> 23) + (state & 0x8000u)); /* +-1/8..8 */
    }
}

static mxa_plan *make_plan(int device, const char *recipe_text)
{
    mxa_problem p;
    mxa_recipe recipe;
    mxa_plan *plan = NULL;
    mxa_problem_default(&p, 1, HEADS, HEADS_KV, LEN, LEN, DIM);
    p.q_dtype = p.k_dtype = p.v_dtype = p.out_dtype = MXA_DTYPE_BF16;
    p.causal = true;
    p.device = (mxa_device)(MXA_DEVICE_CUDA_0 + device);
    library("recipe", mxa_recipe_parse(recipe_text, &recipe));
    library("plan", mxa_plan_create(&p, &recipe, &plan));
    return plan;
}

static mxa_tensor make_tensor(int64_t heads)
{
    void *memory = NULL;
    cuda("cudaMalloc", cudaMalloc(&memory, BYTES));
    return mxa_tensor_contiguous(memory, MXA_DTYPE_BF16, 1, heads, LEN, DIM);
}

/* Memory of the current device. */
static void make_call(const mxa_plan *plan, call *c)
{
    *c =
        (call){ make_tensor(HEADS), make_tensor(HEADS_KV), make_tensor(HEADS_KV), make_tensor(HEADS), { 0 } };
    c->args =
        (mxa_attention_args){ .size = sizeof c->args, .q = &c->q, .k = &c->k, .v = &c->v, .out = &c->out };
    c->args.work_bytes = mxa_plan_work_bytes(plan);
    cuda("cudaMalloc", cudaMalloc(&c->args.work, c->args.work_bytes + 1));
}

static void free_call(call *c)
{
    cudaFree(c->q.data);
    cudaFree(c->k.data);
    cudaFree(c->v.data);
    cudaFree(c->out.data);
    cudaFree(c->args.work);
}

/* New numbers, and an output that holds no result. */
static void fill(const call *c, int set)
{
    cuda("fill", cudaMemcpy(c->q.data, numbers[set], BYTES, cudaMemcpyHostToDevice));
    cuda("fill", cudaMemcpy(c->k.data, numbers[set], BYTES / 2, cudaMemcpyHostToDevice));
    cuda("fill", cudaMemcpy(c->v.data, numbers[1 - set], BYTES / 2, cudaMemcpyHostToDevice));
    cuda("fill", cudaMemset(c->out.data, 0xFF, BYTES));
    cuda("fill", cudaMemset(c->args.work, 0xFF, c->args.work_bytes));
    cuda("fill", cudaDeviceSynchronize());
}

static void expect(const char *what, const call *c, int set)
{
    static _Thread_local uint16_t got[ELEMENTS];
    cuda(what, cudaDeviceSynchronize());
    cuda(what, cudaMemcpy(got, c->out.data, BYTES, cudaMemcpyDeviceToHost));
    if (memcmp(got, want[set], BYTES) != 0)
        fail(what, "other bits than the first call");
    cuda(what, cudaPeekAtLastError());
}

static void first_results(const mxa_plan *plan, call *c)
{
    for (int set = 0; set < 2; set++) {
        fill(c, set);
        library("first call", mxa_attention(plan, &c->args));
        cuda("first call", cudaDeviceSynchronize());
        cuda("first call", cudaMemcpy(want[set], c->out.data, BYTES, cudaMemcpyDeviceToHost));
    }
    if (memcmp(want[0], want[1], BYTES) == 0)
        fail("first calls", "other numbers give the same result");
}

static void check_stream(const mxa_plan *plan, call *c)
{
    cudaStream_t stream;
    cuda("stream", cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    c->args.stream = stream;
    fill(c, 0);
    library("stream", mxa_attention(plan, &c->args));
    expect("stream", c, 0);
    cuda("stream", cudaStreamDestroy(stream));
    c->args.stream = NULL;
}

/* Captured in the strictest mode, in which a call that allocates or waits fails. */
static void check_graph(const mxa_plan *plan, call *c)
{
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    cuda("graph", cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    c->args.stream = stream;
    cuda("graph", cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    library("graph", mxa_attention(plan, &c->args));
    cuda("graph", cudaStreamEndCapture(stream, &graph));
    cuda("graph", cudaGraphInstantiate(&executable, graph, 0));
    for (int n = 0; n < 6; n++) {
        fill(c, n % 2);
        cuda("graph", cudaGraphLaunch(executable, stream));
        expect("graph", c, n % 2);
    }
    cuda("graph", cudaGraphExecDestroy(executable));
    cuda("graph", cudaGraphDestroy(graph));
    cuda("graph", cudaStreamDestroy(stream));
    c->args.stream = NULL;
}

typedef struct worker {
    const mxa_plan *plan;
    call c;
    cudaStream_t stream;
} worker;

static void *attend_often(void *argument)
{
    worker *const w = argument;
    for (int n = 0; n < 20; n++)
        library("threads", mxa_attention(w->plan, &w->c.args));
    cuda("threads", cudaStreamSynchronize(w->stream));
    return NULL;
}

static void check_threads(const mxa_plan *plan)
{
    worker workers[THREADS];
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        workers[i].plan = plan;
        make_call(plan, &workers[i].c);
        cuda("threads", cudaStreamCreateWithFlags(&workers[i].stream, cudaStreamNonBlocking));
        workers[i].c.args.stream = workers[i].stream;
        fill(&workers[i].c, i % 2);
    }
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, attend_often, &workers[i]) != 0)
            fail("threads", "pthread_create");
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        expect("threads", &workers[i].c, i % 2);
        cuda("threads", cudaStreamDestroy(workers[i].stream));
        free_call(&workers[i].c);
    }
}

/* What is refused is refused before a launch, and CUDA does not know of it. */
static void check_errors(const mxa_plan *plan, call *c)
{
    void *const mine = c->q.data;
    c->q.data = numbers;
    if (mxa_attention(plan, &c->args) != MXA_ERR_ARG || !strstr(mxa_error_text(), "is host memory"))
        fail("host memory", mxa_error_text());
    c->q.data = mine;
    const size_t work_bytes = c->args.work_bytes;
    if (work_bytes > 0) {
        c->args.work_bytes--;
        if (mxa_attention(plan, &c->args) != MXA_ERR_WORKSPACE)
            fail("workspace", mxa_error_text());
        c->args.work_bytes = work_bytes;
    }
    void *memory;
    if (mxa_device_alloc(MXA_DEVICE_CUDA_0, (size_t)1 << 60, &memory) != MXA_ERR_MEMORY)
        fail("too much memory", mxa_error_text());
    cuda("after errors", cudaPeekAtLastError());
    fill(c, 1);
    library("after errors", mxa_attention(plan, &c->args));
    expect("after errors", c, 1);
}

/* A plan of the last device while the first is current, and memory of the first for it. */
static void check_devices(int devices, const char *recipe)
{
    int current = -1;
    call there, here;
    mxa_plan *const plan = make_plan(devices - 1, recipe);
    cuda("devices", cudaSetDevice(devices - 1));
    make_call(plan, &there);
    fill(&there, 0);
    cuda("devices", cudaSetDevice(0));
    library("devices", mxa_attention(plan, &there.args));
    cuda("devices", cudaGetDevice(&current));
    if (current != 0)
        fail("devices", "the current device is another");
    library("devices", mxa_device_synchronize((mxa_device)(MXA_DEVICE_CUDA_0 + devices - 1), NULL));
    expect("devices", &there, 0);
    make_call(plan, &here);
    const mxa_status status = mxa_attention(plan, &here.args);
    if (devices > 1 && (status != MXA_ERR_ARG || !strstr(mxa_error_text(), "is memory of cuda:0")))
        fail("memory of another device", mxa_error_text());
    mxa_plan_free(plan);
    free_call(&there);
    free_call(&here);
}

static void check_recipe(const char *recipe)
{
    call c;
    mxa_plan *const plan = make_plan(0, recipe);
    make_call(plan, &c);
    first_results(plan, &c);
    check_stream(plan, &c);
    check_graph(plan, &c);
    check_threads(plan);
    check_errors(plan, &c);
    check_devices(mxa_device_count(), recipe);
    mxa_plan_free(plan);
    free_call(&c);
    printf("ok   %s\n", recipe);
}

int main(void)
{
    static const char *const recipes[] = { "dma8", "dma4",        "dma8-fp8", "dma4-fp8",
                                           "bf16", "paper-nvfp4", "exact" };
    if (mxa_device_count() == 0) { /* before any call of CUDA */
        puts(mxa_error_text());
        return SKIPPED;
    }
    make_numbers();
    for (size_t i = 0; i < sizeof recipes / sizeof recipes[0]; i++)
        check_recipe(recipes[i]);
    return 0;
}

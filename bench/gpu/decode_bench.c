/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a decode step takes on a GPU, queries quantised inside: graphs of launches over copies of the cache
 * that do not fit the L2 together. Beside it a pure read of as many bytes. Prints a line of JSON for each
 * shape, cache and placement of pages.
 */
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check_decode_cuda.h"
#include "decode_read.h"

const int check_shorter = 1;

enum { HEADS = 32, HEADS_KV = 8, DIM = 128, PAGE = 64, ROUNDS = 15, LAUNCHES = 24 };

/* Bytes that copies of the cache have together, at least: several times the L2. */
static const int64_t rotated_bytes = INT64_C(400) << 20;

static const char *const recipes[] = { "dma4,v=f16", "dma4,v=int8,pv=f16", "dma4,v=mxfp4,rotate-v,pv=f16",
                                       "dma8,v=int8,pv=f16" };

static const struct {
    const char *name;
    int64_t batch, length;
} shapes[] = {
    { "b1_32k", 1, 32768 }, { "b1_128k", 1, 131072 }, { "b32_8k", 32, 8192 }, { "b8_32k", 8, 32768 }
};

static int compare_floats(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

typedef struct spread {
    float least, median, most; /* us a launch */
} spread;

static void expect(cudaError_t error)
{
    if (error != cudaSuccess) {
        printf("%s\n", cudaGetErrorString(error));
        exit(1);
    }
}

static spread time_graph(cudaGraph_t graph, cudaStream_t stream)
{
    cudaGraphExec_t exec;
    cudaEvent_t begin, end;
    float us[ROUNDS];
    expect(cudaGraphInstantiate(&exec, graph, 0));
    expect(cudaEventCreate(&begin));
    expect(cudaEventCreate(&end));
    for (int i = -3; i < ROUNDS; i++) {
        float ms;
        expect(cudaEventRecord(begin, stream));
        expect(cudaGraphLaunch(exec, stream));
        expect(cudaEventRecord(end, stream));
        expect(cudaEventSynchronize(end));
        expect(cudaEventElapsedTime(&ms, begin, end));
        us[i < 0 ? 0 : i] = ms * 1000 / LAUNCHES;
    }
    cudaGraphExecDestroy(exec);
    qsort(us, ROUNDS, sizeof *us, compare_floats);
    return (spread){ us[0], us[ROUNDS / 2], us[ROUNDS - 1] };
}

/* The job of a batch whose sequences are copies of one. */
static mxa_decode_job batch_job(check_problem *p, const mxa_cuda_device *device, int64_t batch)
{
    mxa_decode_job job = check_job(p, device, 0);
    const size_t row = (size_t)DIM * sizeof(float);
    int64_t lengths[CHECK_BATCH];
    for (int64_t b = 0; b < batch; b++)
        lengths[b] = p->longest;
    job.q.shape[0] = job.out.shape[0] = batch;
    job.q.dtype = job.out.dtype = MXA_DTYPE_BF16;
    uint16_t *const q = malloc((size_t)batch * HEADS * row);
    for (int64_t i = 0; i < batch * HEADS * DIM; i++)
        q[i] = mxa_bf16_from_f32(((const float *)p->q.data)[i % (HEADS * DIM)]);
    job.q.data = check_device((size_t)batch * HEADS * row, q);
    job.out.data = check_device((size_t)batch * HEADS * row, NULL);
    job.lse = NULL;
    job.lengths = check_device((size_t)batch * sizeof *lengths, lengths);
    float *const mean = check_device((size_t)batch * HEADS_KV * row, NULL);
    for (int64_t b = 0; b < batch; b++)
        expect(cudaMemcpy(mean + b * HEADS_KV * DIM, p->mean, HEADS_KV * row, cudaMemcpyDeviceToDevice));
    job.mean = mean;
    job.work = check_device((size_t)mxa_decode_work_bytes(&job), NULL);
    free(q);
    return job;
}

static void set_tables(mxa_decode_job *job, const check_problem *p, int64_t copy)
{
    for (int c = 0; c < MXA_COPIES; c++)
        job->tables[c] = p->tables[c] ? p->tables[c] + copy * job->q.shape[0] * p->table_pages : NULL;
}

static spread time_decode(mxa_decode_job *job, const check_problem *p, int64_t rotations, cudaStream_t stream)
{
    cudaGraph_t graph;
    expect(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    for (int i = 0; i < LAUNCHES; i++) {
        set_tables(job, p, i % rotations);
        if (mxa_decode(job, stream) != MXA_OK)
            printf("%s\n", mxa_error_text());
    }
    expect(cudaStreamEndCapture(stream, &graph));
    const spread s = time_graph(graph, stream);
    cudaGraphDestroy(graph);
    return s;
}

static spread time_read(const check_problem *p, int64_t bytes, int64_t rotations, cudaStream_t stream)
{
    cudaGraph_t graph;
    expect(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    for (int i = 0; i < LAUNCHES; i++)
        decode_read(p->pages[MXA_LOW] + i % rotations * bytes, bytes, p->lse, stream);
    expect(cudaStreamEndCapture(stream, &graph));
    const spread s = time_graph(graph, stream);
    cudaGraphDestroy(graph);
    return s;
}

/* Bytes of one sequence: low ones, and of the windows the high ones in place of them. */
static int64_t sequence_bytes(const check_problem *p)
{
    const mxa_kv_layout *const l = &p->cache->layout;
    const int64_t length = p->longest, near = mxa_tile_of(length - 1) - p->cache->near_tiles;
    const int64_t high = mxa_max(0, length - near * MXA_TILE) + l->sink_end;
    const int64_t low_token = l->page_bytes[MXA_LOW] / l->page_tokens;
    const int64_t v_low =
        l->part[MXA_HIGH][MXA_KV_V].copy.info ? 0 : l->heads_kv * l->part[MXA_LOW][MXA_KV_V].row_bytes;
    return (length - high) * low_token + high * (l->page_bytes[MXA_HIGH] / l->page_tokens + v_low);
}

static void time_shape(const mxa_cuda_device *device, int shape, const char *recipe, bool shuffle,
                       cudaStream_t stream)
{
    const int64_t batch = shapes[shape].batch;
    const check_case c = { .recipe = recipe,
                           .n = 1,
                           .heads = HEADS,
                           .heads_kv = HEADS_KV,
                           .dim = DIM,
                           .page = PAGE,
                           .batch = 1,
                           .lengths = { shapes[shape].length } };
    check_problem p;
    check_make(&c, &p, 0, shuffle);
    const int64_t bytes = sequence_bytes(&p) * batch;
    const int64_t rotations = mxa_min(LAUNCHES, rotated_bytes / bytes + 1);
    check_upload(&p, rotations * batch, shuffle);
    const int64_t low_bytes = p.table_pages * p.cache->layout.page_bytes[MXA_LOW] * batch;
    mxa_decode_job job = batch_job(&p, device, batch);
    const spread read = time_read(&p, low_bytes, rotations, stream);
    const spread us = time_decode(&job, &p, rotations, stream);
    const double scaled = (double)read.median * (double)bytes / (double)low_bytes;
    printf("{\"shape\": \"%s\", \"recipe\": \"%s\", \"pages\": \"%s\", \"entry\": \"%s\", \"us\": %.2f, "
           "\"least\": %.2f, \"most\": %.2f, \"bytes\": %lld, \"gb_s\": %.0f, \"read_us\": %.2f, "
           "\"of_read\": %.3f}\n",
           shapes[shape].name, recipe, shuffle ? "random" : "in order", mxa_cuda_decode_pick(&job)->name,
           (double)us.median, (double)us.least, (double)us.most, (long long)bytes,
           (double)bytes / (double)us.median / 1000, scaled, scaled / (double)us.median);
    fflush(stdout);
    cudaFree(job.q.data), cudaFree(job.out.data), cudaFree((void *)job.lengths), cudaFree((void *)job.mean);
    cudaFree(job.work);
    check_release(&p);
}

int check_times(const mxa_cuda_device *device, int n, char **names)
{
    cudaStream_t stream;
    expect(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (int i = 0; i < n; i++)
        for (int s = 0; s < (int)(sizeof shapes / sizeof *shapes); s++)
            for (int r = 0; r < (int)(sizeof recipes / sizeof *recipes); r++)
                if (strcmp(names[i], shapes[s].name) == 0)
                    for (int shuffle = 0; shuffle < 1 + (r == 2); shuffle++)
                        time_shape(device, s, recipes[r], shuffle, stream);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libmxattn_cuda.so for caches without a GPU: the driver of src/cuda, the kernels that fill pages, thread
 * for thread on the host, and attends by the CPU to what tables, lengths and means of the device say.
 */
#include <math.h> /* kernels call fmaf without std:: */

#define MXA_EMULATED_WARP "emulated_warp.h"
#include "cuda/kv_append_cuda.cuh"

#include <memory>
#include <vector>

extern "C" {
#include "core/tensor.h"
#include "cpu/kv_attend_cpu.h"
#include "cuda/backend.h"
#include "cuda/decode/decode_cuda.h"
#include "cuda/decode/kv_order_cuda.h"
}

using namespace mxa;

extern "C" mxa_status mxa_cuda_kv_send(const mxa_cuda_kv_letter *letter, cudaStream_t)
{
    for (int i = 0; i < letter->n; i++)
        *letter->where[i] = letter->value[i];
    return MXA_OK;
}

template <int each>
static void launch_append(const mxa_cuda_kv_append &a)
{
    const auto shared = std::make_unique<KvShared>();
    const int blocks = a.n_sequences * a.kv.heads_kv * a.spans;
    emulated_launch(unsigned(blocks), 1, [&] { append_block<each>(a, blockIdx.x, *shared); });
}

extern "C" mxa_status mxa_cuda_kv_store(const mxa_cuda_kv_append *append, cudaStream_t)
{
    switch (kv_channels_of_lane(append->kv)) {
    case 2: launch_append<2>(*append); break;
    case 4: launch_append<4>(*append); break;
    case 8: launch_append<8>(*append); break;
    default: launch_append<0>(*append); break;
    }
    return MXA_OK;
}

extern "C" mxa_status mxa_cuda_kv_cut(const mxa_cuda_kv_slices *s, cudaStream_t)
{
    for (int64_t first = 0; first < s->n; first += s->each)
        for (int64_t b = 0; b < s->batch; b++)
            mxa_cuda_kv_cut_one(s, first / s->each, b);
    return MXA_OK;
}

extern "C" mxa_status mxa_cuda_kv_means(const mxa_cuda_kv *kv, cudaStream_t)
{
    emulated_launch(unsigned(kv->batch * kv->heads_kv), 1, [&] {
        const int64_t b = blockIdx.x / unsigned(kv->heads_kv), h = blockIdx.x % unsigned(kv->heads_kv);
        if (kv->lengths[b] >= MXA_TILE)
            make_mean(*kv, b, h);
    });
    return MXA_OK;
}

/* ---------------------------------------------------------------- attention */

namespace
{

/* The device's cache as the CPU sees its own. */
struct HostView {
    std::vector<mxa_kv_sequence> sequences;
    std::vector<std::vector<int32_t>> tables;
    std::vector<std::vector<uint8_t>> memory;
    std::vector<uint8_t *> pages[MXA_COPIES];
    mxa_kv_view view;
};

void add_page(const mxa_decode_job *job, int copy, uint64_t address, HostView &host,
              std::vector<int32_t> &table)
{
    if (address == 0) {
        table.push_back(-1);
        return;
    }
    host.memory.emplace_back(size_t(job->layout->page_bytes[copy]));
    uint8_t *const rows = host.memory.back().data();
    mxa_kv_page_order(job->layout, copy, rows, reinterpret_cast<uint8_t *>(address), false);
    table.push_back(int32_t(host.pages[copy].size()));
    host.pages[copy].push_back(rows);
}

void view_of(const mxa_decode_job *job, HostView &host)
{
    const mxa_kv_layout *const l = job->layout;
    const int64_t dim = mxa_max(l->part[MXA_LOW][MXA_KV_K].dim, l->part[MXA_HIGH][MXA_KV_K].dim);
    for (int64_t b = 0; b < job->q.shape[0]; b++) {
        mxa_kv_sequence s{};
        s.length = job->lengths[b];
        s.mean = job->mean ? job->mean + b * l->heads_kv * dim : nullptr;
        host.sequences.push_back(s);
        for (int copy = 0; copy < MXA_COPIES; copy++) {
            std::vector<int32_t> table;
            for (int64_t p = 0; p * l->page_tokens < s.length && l->page_bytes[copy] > 0; p++)
                add_page(job, copy, job->tables[copy][b * job->table_pages + p], host, table);
            host.tables.push_back(std::move(table));
        }
    }
    for (size_t i = 0; i < host.tables.size(); i++)
        host.sequences[i / MXA_COPIES].table[i % MXA_COPIES] = host.tables[i].data();
    host.view = mxa_kv_view{};
    host.view.layout = l;
    host.view.sequences = host.sequences.data();
    for (int copy = 0; copy < MXA_COPIES; copy++)
        host.view.pages[copy] = host.pages[copy].data();
}

mxa_status find(int device)
{
    return device == 0 ? MXA_OK : mxa_fail(MXA_ERR_DEVICE, "device: cuda:%d is not there", device);
}

mxa_status count(int *n)
{
    *n = 1;
    return MXA_OK;
}

mxa_status allocate(int device, size_t bytes, void **memory)
{
    const mxa_status status = find(device);
    return status == MXA_OK ? mxa_cuda_check(cudaMalloc(memory, bytes), "memory") : status;
}

mxa_status release(int device, void *memory)
{
    cudaFree(memory);
    return find(device);
}

mxa_status copy(int device, void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
    return find(device);
}

mxa_status synchronize(int device, void *)
{
    return find(device);
}

} // namespace

extern "C" int64_t mxa_decode_work_bytes(const mxa_decode_job *job)
{
    mxa_kv_view view{};
    view.layout = job->layout;
    const int64_t *const s = job->q.shape;
    return int64_t(
        mxa_kv_work_bytes(&view, job->q_copies, s[0], s[1], s[2], job->max_length, 1, mxa_kv_pick()));
}

extern "C" mxa_status mxa_decode(const mxa_decode_job *job, cudaStream_t)
{
    HostView host;
    view_of(job, host);
    mxa_kv_job on_host{};
    on_host.view = &host.view;
    on_host.recipe = job->recipe;
    on_host.out = &job->out;
    on_host.counts = job->counts;
    on_host.lse = job->lse;
    on_host.sinks = job->sinks;
    on_host.softmax_scale = job->softmax_scale;
    on_host.softcap = job->softcap;
    on_host.heads = job->q.shape[1];
    on_host.n = job->q.shape[2];
    on_host.window_left = job->window_left;
    mxa_kv_attend(&on_host, job->q_copies, &job->q, 1, mxa_kv_pick(), job->work);
    return MXA_OK;
}

extern "C" {
extern const mxa_kv_device_ops mxa_cuda_kv_ops;
MXA_API const mxa_cuda_backend *mxa_cuda_backend_table(void);
}

const mxa_cuda_backend *mxa_cuda_backend_table(void)
{
    static mxa_cuda_backend table = {};
    table.abi = MXA_CUDA_ABI_HERE;
    table.error_text = mxa_error_text;
    table.device_count = count;
    table.device_alloc = allocate;
    table.device_free = release;
    table.device_copy = copy;
    table.device_synchronize = synchronize;
    table.kv = &mxa_cuda_kv_ops;
    return &table;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The entry that takes every job: queries by the quantiser, then a block for each row, in float64. */
#include "cuda/decode/decode_any_cuda.h"

#include "cuda/decode/decode_row.cuh"
#include "cuda/quantize_cuda.h"
#include "cuda/ref/operand_ref_cuda.cuh"

extern "C" {
#include "format/format.h"
}

namespace mxa
{
namespace
{

constexpr int any_threads = MXA_TILE;
constexpr int64_t work_alignment = 128, row_alignment = 16;

struct AnyQueries {
    Operand q[MXA_COPIES];
    const float *bias; /* [rows], or NULL */
    int dim;
};

/* Offsets in bytes; -1: there is no such array. */
struct AnyWork {
    int64_t codes[MXA_COPIES], g[MXA_COPIES], row_bytes[MXA_COPIES], bias, scratch, total;
    bool fits;
};

__device__ void load_queries(const AnyQueries &q, RowShared &s, int64_t row, int64_t b, int64_t h, int64_t i)
{
    for (int copy = 0; copy < MXA_COPIES; copy++) {
        const Operand &op = q.q[copy];
        if (!op.in_tensor && !op.codes)
            continue;
        Rows rows{};
        rows.element = op.element;
        rows.dtype = op.x.dtype;
        rows.first = op.in_tensor ? static_cast<const uint8_t *>(mxa_row(&op.x, b, h, i))
                                  : op.codes + row * op.row_bytes;
        for (int d = threadIdx.x; d < q.dim; d += any_threads)
            s.q[copy][d] = load_element(rows, 0, d);
        if (threadIdx.x == 0)
            s.q_factor[copy] = op.g ? op.g[row] : 1.0f;
    }
    if (threadIdx.x == 0)
        s.bias = q.bias ? q.bias[row] : 0.0f;
}

__global__ void __launch_bounds__(any_threads)
    decode_any(const __grid_constant__ mxa_decode_params p, const __grid_constant__ AnyQueries q)
{
    __shared__ RowShared s;
    const int64_t rows = p.q.shape[0] * p.heads * p.n;
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const int64_t b = row / p.n / p.heads, h = row / p.n % p.heads, i = row % p.n;
        if (i >= mxa_decode_count(&p, b)) {
            clear_row<any_threads>(p, b, h, i);
            continue;
        }
        __syncthreads();
        load_queries(q, s, row, b, h, i);
        attend_row<any_threads>(p, s, b, h, i);
    }
}

/*
 * Formats with block scales in bf16, which holds their numbers exactly; plain copies are read as they come.
 */
mxa_cuda_form query_form(const mxa_copy_plan &copy)
{
    if (!copy.info || !copy.stored)
        return MXA_CUDA_TENSOR;
    return copy.info->block ? MXA_CUDA_BF16 : MXA_CUDA_CODES;
}

int64_t take(AnyWork *w, int64_t n, int64_t size)
{
    const int64_t at = w->total;
    int64_t bytes;
    w->fits = w->fits && mxa_mul(n, size, &bytes) && mxa_add(bytes, work_alignment - 1, &bytes) &&
              mxa_add(w->total, bytes & -work_alignment, &w->total);
    return at;
}

mxa_cuda_rows query_rows(const mxa_decode_job *job)
{
    mxa_cuda_rows r{};
    r.x = job->q;
    r.n_rows = job->q.shape[0] * job->q.shape[1] * job->q.shape[2];
    r.n_blocks = job->q.shape[0] * job->q.shape[1] * mxa_token_blocks(job->q.shape[2]);
    return r;
}

mxa_cuda_copy query_copy(const mxa_decode_job *job, const AnyWork &w, int copy, char *work)
{
    const mxa_copy_plan &plan = job->q_copies[copy];
    mxa_cuda_copy c{};
    c.copy.spec.info = plan.info;
    c.copy.spec.rule = plan.rule;
    c.copy.level = plan.level;
    c.copy.axis = MXA_AXIS_HEAD;
    c.copy.layout = MXA_LAYOUT_ROW;
    c.copy.rotate = plan.rotate;
    c.copy.out.codes = work ? reinterpret_cast<uint8_t *>(work + w.codes[copy]) : nullptr;
    c.copy.out.g =
        work && plan.level != MXA_LEVEL_NONE ? reinterpret_cast<float *>(work + w.g[copy]) : nullptr;
    c.form = query_form(plan);
    c.row_bytes = w.row_bytes[copy];
    c.g_written = plan.level;
    return c;
}

/* The copies that the quantiser makes: how many. */
int query_copies(const mxa_decode_job *job, const AnyWork &w, char *work, mxa_cuda_copy *copies)
{
    int n = 0;
    for (int copy = 0; copy < MXA_COPIES; copy++)
        if (query_form(job->q_copies[copy]) != MXA_CUDA_TENSOR)
            copies[n++] = query_copy(job, w, copy, work);
    return n;
}

AnyWork place(const mxa_decode_job *job)
{
    AnyWork w{};
    w.fits = true;
    int64_t rows = 0;
    w.fits = mxa_mul(job->q.shape[0], job->q.shape[1], &rows) && mxa_mul(rows, job->q.shape[2], &rows);
    rows = w.fits ? rows : 0;
    for (int copy = 0; copy < MXA_COPIES; copy++) {
        const mxa_copy_plan &plan = job->q_copies[copy];
        const mxa_cuda_form form = query_form(plan);
        if (form == MXA_CUDA_TENSOR)
            continue;
        w.row_bytes[copy] =
            mxa_round_up(mxa_cuda_form_row_bytes(plan.info, form, job->q.shape[3]), row_alignment);
        w.codes[copy] = take(&w, rows, w.row_bytes[copy]);
        w.g[copy] = take(&w, plan.level != MXA_LEVEL_NONE ? rows : 0, sizeof(float));
    }
    w.bias = take(&w, rows, sizeof(float));
    mxa_cuda_copy copies[MXA_COPIES];
    const int n = query_copies(job, w, nullptr, copies);
    const mxa_cuda_rows of_q = query_rows(job);
    w.scratch = take(&w, n ? mxa_cuda_quantize_work_bytes(&of_q, MXA_NONFINITE_PROPAGATE, n, copies) : 0, 1);
    return w;
}

bool is_smooth(const mxa_decode_job *job)
{
    return job->layout->part[MXA_LOW][MXA_KV_K].copy.smooth ||
           job->layout->part[MXA_HIGH][MXA_KV_K].copy.smooth;
}

mxa_status queue_queries(const mxa_decode_job *job, const AnyWork &w, cudaStream_t stream)
{
    char *const work = static_cast<char *>(job->work);
    mxa_cuda_copy copies[MXA_COPIES];
    const int n = query_copies(job, w, work, copies);
    const mxa_cuda_rows rows = query_rows(job);
    const mxa_cuda_bias bias = { reinterpret_cast<float *>(work + w.bias), job->mean,
                                 job->q.shape[1] / job->layout->heads_kv, job->softmax_scale, false };
    mxa_cuda_chain chain = { stream, false, false, false };
    if (n == 0 && !is_smooth(job))
        return MXA_OK;
    return mxa_cuda_quantize(&rows, MXA_NONFINITE_PROPAGATE, n, copies, is_smooth(job) ? &bias : nullptr,
                             nullptr, work + w.scratch, &chain);
}

AnyQueries queries_of(const mxa_decode_job *job, const AnyWork &w)
{
    char *const work = static_cast<char *>(job->work);
    AnyQueries q{};
    q.dim = int(job->q.shape[3]);
    q.bias = is_smooth(job) ? reinterpret_cast<float *>(work + w.bias) : nullptr;
    for (int copy = 0; copy < MXA_COPIES; copy++) {
        const mxa_copy_plan &plan = job->q_copies[copy];
        if (!plan.info)
            continue;
        const mxa_cuda_copy made = query_copy(job, w, copy, work);
        mxa_cuda_operand from{};
        from.form = made.form;
        from.x = job->q;
        from.codes = made.form == MXA_CUDA_TENSOR ? nullptr : made.copy.out.codes;
        from.g = made.form == MXA_CUDA_TENSOR ? nullptr : made.copy.out.g;
        from.row_bytes = made.row_bytes;
        from.g_level = plan.level;
        q.q[copy] = make_operand(from, plan.info);
    }
    return q;
}

} // namespace
} // namespace mxa

int64_t mxa_decode_any_work_bytes(const mxa_decode_job *job)
{
    const mxa::AnyWork w = mxa::place(job);
    return w.fits ? mxa_max(w.total, mxa::work_alignment) : 0;
}

mxa_status mxa_decode_any(const mxa_decode_job *job, cudaStream_t stream)
{
    constexpr int64_t blocks_each = 16; /* more than fit a multiprocessor: rows differ in length */
    const mxa::AnyWork w = mxa::place(job);
    const int64_t rows = job->q.shape[0] * job->q.shape[1] * job->q.shape[2];
    const int64_t blocks = mxa_min(rows, blocks_each * job->device->multiprocessors);
    if (blocks == 0)
        return MXA_OK;
    const mxa_status status = mxa::queue_queries(job, w, stream);
    if (status != MXA_OK)
        return status;
    mxa::decode_any<<<unsigned(blocks), mxa::any_threads, 0, stream>>>(mxa_decode_params_of(job),
                                                                       mxa::queries_of(job, w));
    return mxa_cuda_launched("decode_any");
}

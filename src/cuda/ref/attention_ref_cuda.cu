/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention in float64: docs/numerics.md, section 8, on the operands as they are stored. V is rounded to the
 * P V type, P is not; recipe "exact" rounds nothing. A block takes one row after another and walks over tiles
 * of 128 keys, since a tile decides the precision: a thread computes the logit of one key, then two channels
 * of P V.
 */
#include "cuda/ref/attention_ref_cuda.h"

#include "cuda/common/chain_cuda.cuh"
#include "cuda/ref/operand_ref_cuda.cuh"

extern "C" {
#include "format/format.h"
}

namespace mxa
{
namespace
{

constexpr int threads = MXA_TILE;
constexpr int channels = MXA_DIM_MAX / threads; /* of P V for each thread */
static_assert(channels * threads == MXA_DIM_MAX, "a thread's channels");

struct RefParams {
    Operand q[MXA_COPIES], k[MXA_COPIES], v;
    bool has[MXA_COPIES], has_bias[MXA_COPIES];
    mxa_tensor out;
    const float *bias, *sinks;
    float *lse;
    const mxa_sequence *sequences;
    int64_t n_sequences;
    const mxa_cuda_row *list; /* NULL: all rows */
    const int *list_count;
    bool keep_finite; /* rows of the list whose output and result are both finite stay as they are */
    int64_t n_rows; /* of all sequences and heads */
    int heads, heads_kv, dim, dim_v;
    double softmax_scale, softcap;
};

struct Shared {
    double q[MXA_COPIES][MXA_DIM_MAX];
    double p[MXA_TILE]; /* exp(logit - max); -1: the logit is -Inf */
    double warp[threads / 32];
};

/* The sum or the largest of a value of each thread, in a fixed order; NaN wins. */
template <bool is_max>
__device__ double reduce(double x, double (&warp)[threads / 32])
{
    const auto join = [](double a, double b) {
        if (!is_max)
            return a + b;
        return a > b || isnan(a) ? a : b;
    };
    for (int lane = 16; lane > 0; lane /= 2)
        x = join(x, __shfl_xor_sync(~0u, x, lane));
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        warp[threadIdx.x / 32] = x;
    __syncthreads();
    x = warp[0];
    for (int w = 1; w < threads / 32; w++)
        x = join(x, warp[w]);
    return x;
}

/* One row of the output and what it has so far. */
struct Row {
    mxa_sequence s;
    int64_t n, h, h_kv, i; /* number of the sequence, heads, row */
    double max, sum;       /* of exp(logit), relative to max */
    double o[channels];
    float nonfinite[channels]; /* sum of visible Inf and NaN in V: itself, or NaN */
};

__device__ Row find_row(const RefParams &p, int64_t index)
{
    Row r{};
    if (p.list) {
        r.n = p.list[index].sequence;
        r.h = p.list[index].head;
        r.i = p.list[index].row;
    } else {
        int64_t last = p.n_sequences - 1; /* the last sequence that begins at or before the row */
        while (r.n < last) {
            const int64_t middle = (r.n + last + 1) / 2;
            if (p.sequences[middle].q_rows <= index)
                r.n = middle;
            else
                last = middle - 1;
        }
        const int64_t row = index - p.sequences[r.n].q_rows, len = p.sequences[r.n].map.q_len;
        r.h = row / len;
        r.i = row % len;
    }
    r.s = p.sequences[r.n];
    r.h_kv = r.h / (p.heads / p.heads_kv);
    const double sink = p.sinks ? p.sinks[r.h] : -INFINITY;
    r.max = sink == INFINITY ? NAN : sink;
    r.sum = sink == -INFINITY ? 0 : 1;
    return r;
}

/* Key j's logit; -Inf where the row does not see it. */
__device__ double logit(const RefParams &p, const Row &r, const Shared &s, int copy, int64_t j, mxa_span seen)
{
    if (j < seen.first || j >= seen.end)
        return -INFINITY;
    const Rows q = rows_of(p.q[copy], r.s, r.n, false, p.heads, r.h);
    const Rows k = rows_of(p.k[copy], r.s, r.n, true, p.heads_kv, r.h_kv);
    double dot = 0;
    for (int d = 0; d < p.dim; d++)
        dot += s.q[copy][d] * load_element(k, j, d);
    const double bias = p.has_bias[copy] ? p.bias[r.s.q_rows + r.h * r.s.map.q_len + r.i] : 0;
    const double t = p.softmax_scale * q.factor(r.i) * k.factor(j) * dot + bias;
    const double capped = p.softcap > 0 ? p.softcap * tanh(t / p.softcap) : t;
    return capped == INFINITY ? NAN : capped;
}

__device__ void add_values(const RefParams &p, Row &r, const Shared &s, int64_t first, mxa_span seen)
{
    const Rows v = rows_of(p.v, r.s, r.n, true, p.heads_kv, r.h_kv);
    const int64_t begin = mxa_max(first, seen.first), end = mxa_min(first + MXA_TILE, seen.end);
    for (int c = 0; c < channels; c++) {
        const int d = c * threads + threadIdx.x;
        for (int64_t j = begin; j < end && d < p.dim_v; j++) {
            const double weight = s.p[j - first];
            if (weight < 0) /* the logit is -Inf, which counts as masked */
                continue;
            const float x = load_element(v, j, d);
            if (mxa_f32_is_finite(x))
                r.o[c] += weight * x;
            else
                r.nonfinite[c] += x;
        }
    }
}

__device__ void add_tile(const RefParams &p, Row &r, Shared &s, int64_t k_tile, mxa_span seen)
{
    const int64_t q_tile = mxa_tile_of(r.i + r.s.map.q_offset), first = k_tile * MXA_TILE;
    const int copy = mxa_tile_is_high(&r.s.map, q_tile, k_tile) ? MXA_HIGH : MXA_LOW;
    const double x = logit(p, r, s, copy, first + threadIdx.x, seen);
    const double largest = reduce<true>(x, s.warp);
    if (isnan(largest))
        r.max = NAN;
    if (isnan(r.max) || largest == -INFINITY)
        return;
    const double max = fmax(r.max, largest), alpha = exp(r.max - max);
    const double weight = x == -INFINITY ? 0 : exp(x - max);
    s.p[threadIdx.x] = x == -INFINITY ? -1 : weight;
    r.sum = r.sum * alpha + reduce<false>(weight, s.warp);
    r.max = max;
    for (int c = 0; c < channels; c++)
        r.o[c] *= alpha;
    add_values(p, r, s, first, seen);
}

__device__ void load_q(const RefParams &p, const Row &r, Shared &s)
{
    __syncthreads();
    for (int copy = 0; copy < MXA_COPIES; copy++) {
        if (!p.has[copy])
            continue;
        const Rows q = rows_of(p.q[copy], r.s, r.n, false, p.heads, r.h);
        for (int d = threadIdx.x; d < p.dim; d += threads)
            s.q[copy][d] = load_element(q, r.i, d);
    }
    __syncthreads();
}

__device__ void store(void *row, int d, mxa_dtype dtype, float x)
{
    if (dtype == MXA_DTYPE_F32)
        static_cast<float *>(row)[d] = mxa_f32_from_bits(mxa_f32_canonical(x));
    else
        static_cast<uint16_t *>(row)[d] = dtype == MXA_DTYPE_F16 ? mxa_f16_from_f32(x) : mxa_bf16_from_f32(x);
}

__device__ bool stored_is_finite(const void *row, int d, mxa_dtype dtype)
{
    if (dtype == MXA_DTYPE_F32)
        return mxa_f32_is_finite(static_cast<const float *>(row)[d]);
    const uint16_t exponent = dtype == MXA_DTYPE_F16 ? 0x7C00 : 0x7F80;
    return (static_cast<const uint16_t *>(row)[d] & exponent) != exponent;
}

__device__ void store_row(const RefParams &p, const Row &r)
{
    void *const row = mxa_row(&p.out, r.s.batch, r.h, r.s.q_first + r.i);
    float result[channels];
    bool finite = true;
    for (int c = 0; c < channels; c++) {
        const int d = c * threads + threadIdx.x;
        const float sum = r.sum == 0 ? 0.0f : static_cast<float>(r.o[c] / r.sum);
        result[c] = isnan(r.max) ? NAN : r.nonfinite[c] != 0 ? r.nonfinite[c] : sum;
        if (p.keep_finite && d < p.dim_v)
            finite = finite && mxa_f32_is_finite(result[c]) && stored_is_finite(row, d, p.out.dtype);
    }
    if (p.keep_finite && __syncthreads_and(finite))
        return;
    for (int c = 0; c < channels; c++) {
        const int d = c * threads + threadIdx.x;
        if (d < p.dim_v)
            store(row, d, p.out.dtype, result[c]);
    }
    if (threadIdx.x == 0 && p.lse)
        p.lse[(r.s.batch * p.heads + r.h) * p.out.shape[2] + r.s.q_first + r.i] =
            isnan(r.max) ? NAN
            : r.sum == 0 ? -INFINITY
                         : static_cast<float>(r.max + log(r.sum));
}

__global__ void __launch_bounds__(threads) attention_ref(const RefParams p)
{
    __shared__ Shared s;
    await_kernels_before();
    const int64_t n = p.list ? *p.list_count : p.n_rows;
    for (int64_t index = blockIdx.x; index < n; index += gridDim.x) {
        Row r = find_row(p, index);
        const int64_t position = r.i + r.s.map.q_offset;
        const mxa_span seen = mxa_visible_keys(&r.s.map, position, position);
        load_q(p, r, s);
        for (int64_t t = seen.first / MXA_TILE; t * MXA_TILE < seen.end; t++)
            add_tile(p, r, s, t, seen);
        store_row(p, r);
    }
}

RefParams make_params(const mxa_cuda_job &job)
{
    const mxa_plan &plan = *job.plan;
    const mxa_format v_format = plan.recipe.exact       ? MXA_FORMAT_F32
                                : plan.pv == MXA_PV_F16 ? MXA_FORMAT_F16
                                                        : MXA_FORMAT_BF16;
    RefParams p{};
    for (int i = 0; i < MXA_COPIES; i++) {
        p.has[i] = plan.q[i].info != nullptr;
        p.has_bias[i] = plan.k[i].smooth;
        if (p.has[i]) {
            p.q[i] = make_operand(job.q[i], plan.q[i].info);
            p.k[i] = make_operand(job.k[i], plan.k[i].info);
        }
    }
    p.v = make_operand(job.v, mxa_format_get(v_format));
    p.out = job.out;
    p.bias = job.bias;
    p.sinks = job.sinks;
    p.lse = job.lse;
    p.sequences = job.sequences;
    p.n_sequences = plan.n_sequences;
    p.n_rows = plan.q_rows;
    p.heads = static_cast<int>(plan.problem.heads);
    p.heads_kv = static_cast<int>(plan.problem.heads_kv);
    p.dim = static_cast<int>(plan.problem.head_dim);
    p.dim_v = static_cast<int>(plan.problem.head_dim_v);
    p.softmax_scale = plan.problem.softmax_scale;
    p.softcap = plan.problem.softcap;
    return p;
}

mxa_status launch(const RefParams &p, int64_t rows, int multiprocessors, cudaStream_t stream)
{
    constexpr int64_t blocks_each = 16; /* more than fit a multiprocessor: rows differ in length */
    const int64_t blocks = mxa_min(rows, blocks_each * multiprocessors);
    if (blocks == 0)
        return MXA_OK;
    attention_ref<<<static_cast<unsigned>(blocks), threads, 0, stream>>>(p);
    return mxa_cuda_launched("attention_ref");
}

/* The list is empty as a rule: few blocks, which may be there before the kernel in front of them ends. */
mxa_status launch_list(const RefParams &p, int64_t rows, const mxa_cuda_device &device, cudaStream_t stream)
{
    constexpr int64_t blocks_each = 4;
    cudaLaunchAttribute early{};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(mxa_min(rows, blocks_each * device.multiprocessors)));
    config.blockDim = dim3(threads);
    config.stream = stream;
    config.attrs = &early;
    config.numAttrs = device.arch >= 90 ? 1 : 0;
    if (rows == 0)
        return MXA_OK;
    return mxa_cuda_check(cudaLaunchKernelEx(&config, attention_ref, p), "attention_ref");
}

} // namespace
} // namespace mxa

/* Formats with block scales in bf16, which holds their numbers exactly. */
static mxa_cuda_form ref_form(const mxa_copy_plan *copy)
{
    if (!copy->info || !copy->stored)
        return MXA_CUDA_TENSOR;
    return copy->info->block ? MXA_CUDA_BF16 : MXA_CUDA_CODES;
}

mxa_cuda_forms mxa_attention_ref_forms_cuda(const mxa_plan *plan)
{
    mxa_cuda_forms f = {};
    for (int i = 0; i < MXA_COPIES; i++) {
        f.q[i] = ref_form(&plan->q[i]);
        f.k[i] = ref_form(&plan->k[i]);
    }
    return f;
}

mxa_status mxa_attention_ref_cuda(const mxa_cuda_job *job, cudaStream_t stream)
{
    const mxa::RefParams p = mxa::make_params(*job);
    return mxa::launch(p, p.n_rows, job->device->multiprocessors, stream);
}

mxa_status mxa_attention_ref_rows_cuda(const mxa_cuda_job *job, const mxa_cuda_row *rows, const int *count,
                                       int64_t capacity, bool keep_finite, cudaStream_t stream)
{
    mxa::RefParams p = mxa::make_params(*job);
    p.list = rows;
    p.keep_finite = keep_finite;
    p.list_count = count;
    return mxa::launch_list(p, capacity, *job->device, stream);
}

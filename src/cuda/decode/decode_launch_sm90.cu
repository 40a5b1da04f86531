/* SPDX-License-Identifier: Apache-2.0 */
/* Which jobs the decode kernel of sm_90a takes, and its launch. */
#include "cuda/decode/decode_launch_sm90.h"

#include "cuda/decode/decode_kernels_sm90.cuh"

namespace mxa
{
namespace
{

constexpr int64_t length_most = MXA_DECODE_FAR / 4; /* sums of a few stay below 2^31 */
constexpr int64_t work_least = 128;

struct Shape {
    int n, group, columns, passes, segments_wanted, segment_stride;
    int64_t batch, heads_kv;
    bool paired;
};

/* Of the job with at most MXA_DECODE_QUERIES queries. */
Shape shape_of(const mxa_decode_job *job)
{
    Shape s{};
    s.batch = job->q.shape[0];
    s.heads_kv = job->layout->heads_kv;
    s.n = int(mxa_min(job->q.shape[2], MXA_DECODE_QUERIES));
    s.group = int(job->q.shape[1] / s.heads_kv);
    s.paired = s.n * s.group > MXA_DECODE_COLUMNS / 2 || job->q.shape[3] == 64;
    s.columns = s.paired ? MXA_DECODE_COLUMNS : MXA_DECODE_COLUMNS / 2;
    s.passes = mxa_decode_passes(s.n, s.group, s.columns);
    s.segments_wanted = mxa_decode_segments_wanted(
        s.batch * s.heads_kv * ((s.n * s.group + s.columns - 1) / s.columns), job->device->multiprocessors);
    s.segment_stride = mxa_decode_segments(int(mxa_min(job->max_length, length_most)), s.segments_wanted);
    return s;
}

bool is_plain(mxa_format format)
{
    return format == MXA_FORMAT_F16 || format == MXA_FORMAT_BF16;
}

const char *refuses_formats(const mxa_decode_job *job)
{
    const mxa_kv_part(&part)[MXA_COPIES][MXA_KV_OPERANDS] = job->layout->part;
    const mxa_copy_plan &k = part[MXA_LOW][MXA_KV_K].copy, &k_high = part[MXA_HIGH][MXA_KV_K].copy;
    const mxa_copy_plan &v = part[MXA_LOW][MXA_KV_V].copy, &q = job->q_copies[MXA_LOW];
    const mxa_format pv = job->layout->pv == MXA_PV_F16 ? MXA_FORMAT_F16 : MXA_FORMAT_BF16;
    if (!k.info || (k.info->format != MXA_FORMAT_MXFP4 && k.info->format != MXA_FORMAT_INT8))
        return "has keys in mxfp4 and int8 only";
    if (k.info->format == MXA_FORMAT_MXFP4 && k.level != MXA_LEVEL_NONE)
        return "has no factors of keys in mxfp4";
    const bool fp8 = q.info->format == MXA_FORMAT_FP8 && k.info->format == MXA_FORMAT_MXFP4;
    if ((q.info->format != MXA_FORMAT_INT8 && !fp8) || q.level != MXA_LEVEL_TOKEN)
        return "has queries in int8 only, and in fp8 with keys in mxfp4";
    if (k_high.info && (k_high.info->format != MXA_FORMAT_BF16 || k_high.rotate || k_high.smooth))
        return "has high keys in bf16 only";
    if (is_plain(v.info->format))
        return v.info->format == pv ? nullptr : "has values in 16 bits only where P has their type";
    if (v.info->format == MXA_FORMAT_INT8 && v.level == MXA_LEVEL_TOKEN)
        return nullptr;
    if (v.info->format != MXA_FORMAT_MXFP4 || v.level != MXA_LEVEL_NONE || k.info->format != MXA_FORMAT_MXFP4)
        return "has values in 16 bits and int8, and in mxfp4 beside such keys";
    return nullptr;
}

const char *refuses_sizes(const mxa_decode_job *job)
{
    const int64_t dim = job->q.shape[3], heads_kv = job->layout->heads_kv;
    if (dim != job->out.shape[3] || (dim != 64 && dim != 128))
        return "has head_dim and head_dim_v 64 and 128 only";
    if (job->layout->page_tokens % MXA_KV_TILE_LARGE != 0)
        return "has pages of whole 64 tokens only";
    if (job->q.shape[2] > MXA_DECODE_QUERIES)
        return "has 16 queries of a sequence at most";
    if (job->max_length > length_most)
        return "has 2^28 tokens of a sequence at most";
    if (job->q.shape[1] / heads_kv > INT16_MAX)
        return "has no group of so many heads";
    const Shape s = shape_of(job);
    const int64_t pairs = s.batch * s.passes, counters = MXA_DECODE_COUNTER_BYTES / sizeof(uint32_t);
    if (pairs > decode_pairs_most || pairs * heads_kv > counters)
        return "has no batch of so many sequences and heads";
    return nullptr;
}

Values values_of(mxa_format format)
{
    switch (format) {
    case MXA_FORMAT_F16: return Values::f16;
    case MXA_FORMAT_BF16: return Values::bf16;
    case MXA_FORMAT_INT8: return Values::int8;
    default: return Values::mxfp4;
    }
}

DecodeKernel kernel_of(const mxa_decode_job *job, const Shape &s)
{
    const Values values = values_of(job->layout->part[MXA_LOW][MXA_KV_V].copy.info->format);
    const int dim = int(job->q.shape[3]);
    return job->layout->part[MXA_LOW][MXA_KV_K].copy.info->format == MXA_FORMAT_INT8
               ? decode_kernel_int8(values, dim, s.paired)
               : decode_kernel_mxfp4(values, dim, s.paired);
}

DecodeParams params_of(const mxa_decode_job *job, const Shape &s)
{
    DecodeParams p{};
    p.d = mxa_decode_params_of(job);
    p.batch = int(s.batch);
    p.heads_kv = int(s.heads_kv);
    p.passes = s.passes;
    p.segments_wanted = s.segments_wanted;
    p.segment_stride = s.segment_stride;
    p.span.window_left = int(mxa_min(p.d.window_left, MXA_DECODE_FAR));
    p.span.diag_window = int(mxa_min(p.d.diag_window, MXA_DECODE_FAR));
    p.span.sink_window = int(mxa_min(p.d.sink_window, MXA_DECODE_FAR));
    p.page_tiles = unsigned(job->layout->page_tokens / MXA_DECODE_LOW_KEYS);
    p.page_reciprocal = unsigned(((UINT64_C(1) << 32) + p.page_tiles - 1) / p.page_tiles);
    p.rotate_q = job->q_copies[MXA_LOW].rotate;
    p.q_fp8 = job->q_copies[MXA_LOW].info->format == MXA_FORMAT_FP8;
    p.pv_f16 = job->layout->pv == MXA_PV_F16;
    p.parts = static_cast<float *>(job->work);
    return p;
}

} // namespace
} // namespace mxa

const char *mxa_decode_sm90_refuses(const mxa_decode_job *job)
{
    const char *const reason = mxa::refuses_formats(job);
    if (reason)
        return reason;
    return job->softcap > 0 ? "has no softcap" : mxa::refuses_sizes(job);
}

int64_t mxa_decode_sm90_work_bytes(const mxa_decode_job *job)
{
    const mxa::Shape s = mxa::shape_of(job);
    const int64_t part = s.columns * (job->out.shape[3] + 2) * int64_t(sizeof(float));
    int64_t bytes = 0;
    const bool fits = mxa_mul(s.batch * s.heads_kv, int64_t(s.passes) * s.segment_stride, &bytes) &&
                      mxa_mul(bytes, part, &bytes);
    return fits ? mxa_max(bytes, mxa::work_least) : 0;
}

mxa_status mxa_decode_sm90(const mxa_decode_job *job, cudaStream_t stream)
{
    const mxa::Shape s = mxa::shape_of(job);
    const mxa::DecodeKernel kernel = mxa::kernel_of(job, s);
    mxa::DecodeParams p = mxa::params_of(job, s);
    const int64_t items = s.batch * s.passes * s.heads_kv * s.segment_stride;
    if (items == 0)
        return MXA_OK;
    cudaLaunchAttribute early{};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(unsigned(mxa_min(items, job->device->multiprocessors)));
    config.blockDim = dim3(mxa::decode_threads);
    config.dynamicSmemBytes = size_t(kernel.smem_bytes);
    config.stream = stream;
    config.attrs = &early;
    config.numAttrs = 1;
    void *args[] = { &p };
    const mxa_status status = mxa_cuda_check(
        cudaFuncSetAttribute(kernel.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kernel.smem_bytes),
        "decode_sm90: shared memory");
    return status == MXA_OK ? mxa_cuda_check(cudaLaunchKernelExC(&config, kernel.kernel, args), "decode_sm90")
                            : status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The host's part of attention on Hopper: which kernel runs a plan, how it wants its operands, the launch. */
#include "cuda/sm90/attention_sm90.h"

#include <math.h>

#include "attn/softmax.h"
#include "cuda/sm90/prefill_launch_sm90.h"

using namespace mxa;

namespace
{

/* Beyond every distance that lengths below length_limit have; sums of a few stay in an int. */
constexpr int far = 1 << 29;
constexpr int64_t length_limit = 1 << 28, row_limit = INT64_C(1) << 31;
/* 2^x, 1 / x and the sums of cap_logits keep a logit to within 2^-12 up to here. */
constexpr float softcap_least = 1e-3f, softcap_most = 1e3f;

int64_t bytes_of(mxa_dtype type)
{
    return type == MXA_DTYPE_F32 ? 4 : 2;
}

/* Second-level factors, which are stored. */
bool has_factors(const mxa_copy_plan &copy)
{
    return copy.info && mxa_copy_has_factor(copy.info) && copy.level != MXA_LEVEL_NONE;
}

bool is_format(const mxa_copy_plan &copy, mxa_format format)
{
    return copy.info && copy.info->format == format;
}

bool folds_into_e5m2(const mxa_copy_plan &copy)
{
    return is_format(copy, MXA_FORMAT_MXFP4) || is_format(copy, MXA_FORMAT_MXFP6_E3M2) ||
           is_format(copy, MXA_FORMAT_MXFP8_E5M2);
}

Low low_of(const mxa_plan *plan)
{
    const mxa_copy_plan &q = plan->q[MXA_LOW], &k = plan->k[MXA_LOW];
    if (!q.info)
        return Low::none;
    if (is_format(q, MXA_FORMAT_INT8) && is_format(k, MXA_FORMAT_INT8))
        return Low::int8;
    if (is_format(q, MXA_FORMAT_FP8) && folds_into_e5m2(k))
        return Low::e4m3_e5m2;
    if (is_format(q, MXA_FORMAT_FP8) && is_format(k, MXA_FORMAT_FP8))
        return Low::e4m3_e4m3;
    return Low::wide;
}

/* What the plan asks of a kernel. */
PrefillKernel wanted_kernel(const mxa_plan *plan, Factor factor)
{
    PrefillKernel wanted{};
    wanted.dim = int(plan->problem.head_dim);
    wanted.dim_v = int(plan->problem.head_dim_v);
    wanted.low = low_of(plan);
    wanted.factor = factor;
    wanted.high = is_format(plan->q[MXA_HIGH], MXA_FORMAT_F16) ? Half::f16 : Half::bf16;
    wanted.pv = plan->pv == MXA_PV_F16 ? Half::f16 : Half::bf16;
    wanted.capped = plan->problem.softcap > 0;
    return wanted;
}

/*
 * One factor a key tile costs least, but K may have one a key. Factors of more keys are written for each: in
 * int8, scores of small keys would lose precision to the largest.
 */
const PrefillKernel *kernel_of(const mxa_plan *plan)
{
    const mxa_copy_plan &k = plan->k[MXA_LOW];
    const PrefillKernel *kernel = nullptr;
    if (!has_factors(k) || k.level == MXA_LEVEL_TOKEN_BLOCK)
        kernel = prefill_find(wanted_kernel(plan, Factor::tile));
    return kernel ? kernel : prefill_find(wanted_kernel(plan, Factor::key));
}

const char *refuses_sizes(const mxa_plan *plan)
{
    const mxa_problem &p = plan->problem;
    if (p.q_len > length_limit || p.kv_len > length_limit || plan->q_rows + MXA_TILE >= row_limit ||
        plan->k_rows + MXA_TILE >= row_limit || plan->n_tiles * p.heads >= row_limit ||
        plan->n_sequences * p.heads >= row_limit >> prefill_head_shift)
        return "counts rows in 31 bits and lengths in 28";
    for (int64_t b = 0; b < plan->n_sequences; b++)
        if (plan->sequences[b].map.q_offset > length_limit || plan->sequences[b].map.q_offset < -length_limit)
            return "counts positions in 28 bits";
    if (p.head_dim_v % 2)
        return "stores pairs of columns: head_dim_v must be even";
    return nullptr;
}

/* Copies of high tiles meet as they are, without factors. */
const char *refuses_high(const mxa_plan *plan)
{
    const mxa_copy_plan &q = plan->q[MXA_HIGH], &k = plan->k[MXA_HIGH];
    if (is_format(q, MXA_FORMAT_F32) || is_format(k, MXA_FORMAT_F32))
        return "has no 32-bit tiles";
    if (is_format(q, MXA_FORMAT_F16) != is_format(k, MXA_FORMAT_F16))
        return "multiplies high tiles of one 16-bit type";
    if (has_factors(q) || has_factors(k))
        return "has no factors in high tiles";
    return nullptr;
}

/* A 16-bit copy that is the tensor itself needs none; others are made. */
mxa_cuda_form half_form(const mxa_copy_plan &copy, mxa_dtype type, Half half)
{
    const bool same = type == (half == Half::f16 ? MXA_DTYPE_F16 : MXA_DTYPE_BF16);
    const bool plain = copy.info && !copy.info->quantized && !copy.rotate;
    return plain && same ? MXA_CUDA_TENSOR : half == Half::f16 ? MXA_CUDA_F16 : MXA_CUDA_BF16;
}

/* ---------------------------------------------------------------- operands */

PrefillTensor tensor_of(const mxa_cuda_operand &x, int element_bytes, int64_t dim, int64_t rows)
{
    if (x.form != MXA_CUDA_TENSOR)
        return prefill_rows(x.codes, element_bytes, dim, rows, x.row_bytes);
    const int64_t *shape = x.x.shape, *stride = x.x.stride;
    return { x.x.data,
             element_bytes,
             shape[3],
             shape[2],
             shape[1],
             shape[0],
             stride[2] * element_bytes,
             stride[1] * element_bytes,
             stride[0] * element_bytes };
}

struct Call {
    const mxa_cuda_job *job;
    const mxa_plan *plan;
    const PrefillKernel *kernel;
    PrefillTensor q[MXA_COPIES], k[MXA_COPIES], v;
};

Call call_of(const mxa_cuda_job *job)
{
    const mxa_plan *plan = job->plan;
    Call c{ job, plan, kernel_of(plan), {}, {}, {} };
    for (int i = 0; i < MXA_COPIES; i++) {
        const int element_bytes = i == MXA_LOW && c.kernel->low != Low::wide ? 1 : 2;
        if (plan->q[i].info)
            c.q[i] = tensor_of(job->q[i], element_bytes, plan->problem.head_dim, plan->q_rows);
        if (plan->k[i].info)
            c.k[i] = tensor_of(job->k[i], element_bytes, plan->problem.head_dim, plan->k_rows);
    }
    c.v = tensor_of(job->v, 2, plan->problem.head_dim_v, plan->k_rows);
    return c;
}

CUresult make_maps(const Call &c, PrefillParams &p)
{
    CUresult err = prefill_map(&p.v, c.v, c.kernel->keys);
    CUtensorMap *const q_maps[MXA_COPIES] = { &p.q_low, &p.q_high };
    CUtensorMap *const k_maps[MXA_COPIES] = { &p.k_low, &p.k_high };
    for (int i = 0; i < MXA_COPIES; i++) {
        if (!err && c.q[i].data)
            err = prefill_map(q_maps[i], c.q[i], rows);
        if (!err && c.k[i].data)
            err = prefill_map(k_maps[i], c.k[i], c.kernel->keys);
    }
    return err;
}

/* ---------------------------------------------------------------- parameters */

int window(int64_t w)
{
    return w >= far ? -1 : int(w);
}

PrefillSequence sequence_of(const mxa_sequence &s)
{
    return { int(s.map.q_len), int(s.map.kv_len), int(s.map.q_offset), int(s.batch),    int(s.q_first),
             int(s.k_first),   int(s.q_rows),     int(s.k_rows),       int(s.q_blocks), int(s.k_blocks) };
}

void set_places(const Call &c, PrefillParams &p)
{
    const mxa_problem &problem = c.plan->problem;
    const mxa_sequence &first = c.plan->sequences[0];
    const int k_bytes = c.kernel->low == Low::none || c.kernel->low == Low::wide ? 2 : 1;
    p.heads = int(problem.heads);
    p.heads_kv = int(problem.heads_kv);
    p.heads_per_kv = int(problem.heads / problem.heads_kv);
    p.window_left = window(first.map.window_left);
    p.window_right = window(first.map.window_right);
    p.far = far;
    if (c.kernel->low != Low::none) {
        p.diag_window = int(mxa_min(first.map.diag_window, far));
        p.sink_window = int(mxa_min(first.map.sink_window, far));
    }
    p.items = int(c.plan->n_tiles * problem.heads);
    p.first = sequence_of(first);
    const mxa_span tiles = mxa_query_tiles(&first.map);
    p.q_tile_first = int(tiles.first);
    p.q_tiles = int(tiles.end - tiles.first);
    p.heads_in_group = prefill_heads_in_group(
        problem.heads, problem.heads_kv,
        problem.kv_len * (problem.head_dim * k_bytes + problem.head_dim_v * 2), c.job->device->l2_bytes);
    if (c.plan->packed) {
        p.sequences = c.job->sequences;
        p.tiles = c.job->tiles;
    }
}

/* Rows of whole blocks of 8 16-bit columns, each aligned. */
bool has_blocks(const mxa_tensor &out)
{
    constexpr int64_t columns = 8, bytes = columns * sizeof(uint16_t);
    return out.dtype != MXA_DTYPE_F32 && reinterpret_cast<uintptr_t>(out.data) % bytes == 0 &&
           out.shape[3] % columns == 0 && out.stride[0] % columns == 0 && out.stride[1] % columns == 0 &&
           out.stride[2] % columns == 0;
}

void set_numbers(const Call &c, PrefillParams &p)
{
    const mxa_problem &problem = c.plan->problem;
    const mxa_cuda_job *job = c.job;
    p.q_high_rows = job->q[MXA_HIGH].form != MXA_CUDA_TENSOR;
    p.k_high_rows = job->k[MXA_HIGH].form != MXA_CUDA_TENSOR;
    p.v_rows = job->v.form != MXA_CUDA_TENSOR;
    p.gq = job->q[MXA_LOW].g;
    p.gk = job->k[MXA_LOW].g;
    p.q_nonfinite = job->q[MXA_LOW].nonfinite_tiles;
    p.k_nonfinite = job->k[MXA_LOW].nonfinite_tiles;
    p.bias = c.plan->k[MXA_LOW].smooth || c.plan->k[MXA_HIGH].smooth ? job->bias : nullptr;
    p.bias_in_high = c.plan->k[MXA_HIGH].smooth;
    p.sinks = job->sinks;
    p.out = job->out.data;
    p.out_stride_b = job->out.stride[0];
    p.out_stride_h = job->out.stride[1];
    p.out_stride_s = job->out.stride[2];
    p.out_is_float = job->out.dtype == MXA_DTYPE_F32;
    p.out_is_blocks = has_blocks(job->out);
    p.dim_v = int(problem.head_dim_v);
    p.lse = job->lse;
    p.tensor_q_len = int(problem.q_len);
    p.scale_log2 = float(problem.softmax_scale * MXA_LOG2_E);
    if (problem.softcap > 0) {
        p.cap_log2 = float(problem.softcap * MXA_LOG2_E);
        p.cap_rate = 2 / problem.softcap;
    }
}

} // namespace

/* ---------------------------------------------------------------- the entry */

const char *mxa_attention_sm90_refuses(const mxa_plan *plan)
{
    const mxa_problem &p = plan->problem;
    if (plan->recipe.exact)
        return "computes in fp32";
    if (p.softcap > 0 && (p.softcap < softcap_least || p.softcap > softcap_most))
        return "has softcaps from 0.001 to 1000";
    if (p.out_dtype != MXA_DTYPE_F32 &&
        p.out_dtype != (plan->pv == MXA_PV_F16 ? MXA_DTYPE_F16 : MXA_DTYPE_BF16))
        return "writes F32 or the type in which P and V meet";
    const char *reason = refuses_high(plan);
    if (!reason)
        reason = refuses_sizes(plan);
    if (!reason && !kernel_of(plan))
        return "has no instance for these head dims, types and options";
    return reason;
}

mxa_cuda_forms mxa_attention_sm90_forms(const mxa_plan *plan)
{
    const mxa_problem &p = plan->problem;
    const PrefillKernel *kernel = kernel_of(plan);
    mxa_cuda_forms f{};
    const mxa_cuda_form wide = kernel->high == Half::f16 ? MXA_CUDA_F16 : MXA_CUDA_BF16;
    f.q[MXA_LOW] = kernel->low == Low::wide ? wide : MXA_CUDA_CODES;
    f.k[MXA_LOW] = kernel->low == Low::wide        ? wide
                   : kernel->low == Low::e4m3_e5m2 ? MXA_CUDA_E5M2
                                                   : MXA_CUDA_CODES;
    f.q[MXA_HIGH] = half_form(plan->q[MXA_HIGH], p.q_dtype, kernel->high);
    f.k[MXA_HIGH] = half_form(plan->k[MXA_HIGH], p.k_dtype, kernel->high);
    const mxa_dtype pv = kernel->pv == Half::f16 ? MXA_DTYPE_F16 : MXA_DTYPE_BF16;
    f.v = p.v_dtype == pv ? MXA_CUDA_TENSOR : kernel->pv == Half::f16 ? MXA_CUDA_F16 : MXA_CUDA_BF16;
    if (has_factors(plan->q[MXA_LOW]))
        f.q_factors[MXA_LOW] = MXA_LEVEL_TOKEN;
    if (has_factors(plan->k[MXA_LOW]))
        f.k_factors[MXA_LOW] = kernel->factor == Factor::key ? MXA_LEVEL_TOKEN : MXA_LEVEL_TOKEN_BLOCK;
    f.nonfinite_tiles = kernel->low == Low::int8;
    return f;
}

const char *mxa_attention_sm90_unsuited(const mxa_cuda_job *job)
{
    const Call c = call_of(job);
    const char *reason = prefill_unsuited(c.v);
    for (int i = 0; i < MXA_COPIES && !reason; i++) {
        reason = c.q[i].data ? prefill_unsuited(c.q[i]) : nullptr;
        if (!reason && c.k[i].data)
            reason = prefill_unsuited(c.k[i]);
    }
    const int64_t pair_bytes = 2 * bytes_of(job->out.dtype);
    if (!reason && (reinterpret_cast<uintptr_t>(job->out.data) % size_t(pair_bytes) ||
                    job->out.stride[0] % 2 || job->out.stride[1] % 2 || job->out.stride[2] % 2))
        reason = "stores aligned pairs of columns";
    return reason;
}

int64_t mxa_attention_sm90_work_bytes(const mxa_plan *plan, const mxa_cuda_device *)
{
    const int64_t items = plan->n_tiles * plan->problem.heads;
    return plan->q_rows * int64_t(sizeof(mxa_cuda_row)) + consumer_warps * items * int64_t(sizeof(int));
}

mxa_status mxa_attention_sm90_prepare(const mxa_plan *plan, const mxa_cuda_device *)
{
    return mxa_cuda_check(prefill_prepare(*kernel_of(plan)), "attention sm90: cudaFuncSetAttribute");
}

mxa_status mxa_attention_sm90(const mxa_cuda_job *job, cudaStream_t stream)
{
    const Call c = call_of(job);
    PrefillParams p{};
    if (make_maps(c, p) != CUDA_SUCCESS)
        return mxa_fail(MXA_ERR_DEVICE, "attention sm90: cuTensorMapEncodeTiled failed");
    p.next_item = job->counters;
    p.redo_count = p.next_item + 1;
    p.redo = static_cast<mxa_cuda_row *>(job->work);
    p.careful_next = reinterpret_cast<int *>(p.redo + c.plan->q_rows);
    set_places(c, p);
    set_numbers(c, p);
    mxa_status status = mxa_cuda_check(prefill_launch(*c.kernel, p, job->device->multiprocessors, stream),
                                       "attention sm90: launch");
    if (status == MXA_OK)
        status = mxa_attention_ref_rows_cuda(job, p.redo, p.redo_count, c.plan->q_rows, true, stream);
    return status;
}

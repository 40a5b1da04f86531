/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernel reads of a job. */
#ifndef MXA_CUDA_ATTENTION_PARAMS_SM80_CUH
#define MXA_CUDA_ATTENTION_PARAMS_SM80_CUH

#include "cuda/sm80/attention_sm80.cuh"

extern "C" {
#include "format/format.h"
}

namespace mxa
{

/* The 16-bit type in which a copy lies: quantised ones in bf16. */
inline bool is_f16(const mxa_copy_plan &copy)
{
    return copy.info->format == MXA_FORMAT_F16;
}

inline MmaParams make_mma_params(const mxa_cuda_job &job)
{
    const mxa_plan &plan = *job.plan;
    MmaParams p{};
    for (int i = 0; i < MXA_COPIES; i++) {
        p.has_bias[i] = plan.k[i].smooth;
        if (!plan.q[i].info)
            continue;
        p.f16[i] = is_f16(plan.q[i]);
        p.q[i] = make_operand(job.q[i], plan.q[i].info);
        p.k[i] = make_operand(job.k[i], plan.k[i].info);
    }
    p.v_f16 = plan.pv == MXA_PV_F16;
    p.v = make_operand(job.v, mxa_format_get(p.v_f16 ? MXA_FORMAT_F16 : MXA_FORMAT_BF16));
    p.out = job.out;
    p.bias = job.bias;
    p.sinks = job.sinks;
    p.lse = job.lse;
    p.sequences = job.sequences;
    p.tiles = job.tiles;
    p.redo_count = job.counters;
    p.redo = static_cast<mxa_cuda_row *>(job.work);
    p.heads = static_cast<int>(plan.problem.heads);
    p.heads_kv = static_cast<int>(plan.problem.heads_kv);
    p.dim = static_cast<int>(plan.problem.head_dim);
    p.dim_v = static_cast<int>(plan.problem.head_dim_v);
    p.scale_log2 = static_cast<float>(plan.problem.softmax_scale * 1.4426950408889634);
    p.softcap_log2 = static_cast<float>(plan.problem.softcap * 1.4426950408889634);
    return p;
}

} // namespace mxa

#endif

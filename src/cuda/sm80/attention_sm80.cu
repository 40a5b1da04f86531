/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/sm80/attention_sm80.h"

#include "cuda/sm80/attention_params_sm80.cuh"

namespace mxa
{
namespace
{

template <int dim>
__global__ void __launch_bounds__(threads_sm80) attention_sm80(const __grid_constant__ MmaParams p)
{
    extern __shared__ __align__(16) uint8_t memory[];
    Block<dim>(p, *reinterpret_cast<SmemSm80<dim> *>(memory)).run();
}

template <int dim>
mxa_status prepare()
{
    return mxa_cuda_check(cudaFuncSetAttribute(attention_sm80<dim>,
                                               cudaFuncAttributeMaxDynamicSharedMemorySize,
                                               sizeof(SmemSm80<dim>)),
                          "sm80: cudaFuncSetAttribute");
}

template <int dim>
mxa_status launch(const MmaParams &p, int64_t tiles, cudaStream_t stream)
{
    const dim3 grid(static_cast<unsigned>(tiles * Block<dim>::blocks), static_cast<unsigned>(p.heads));
    attention_sm80<dim><<<grid, threads_sm80, sizeof(SmemSm80<dim>), stream>>>(p);
    return mxa_cuda_launched("attention_sm80");
}

int larger_dim(const mxa_plan &plan)
{
    return static_cast<int>(mxa_max(plan.problem.head_dim, plan.problem.head_dim_v));
}

} // namespace
} // namespace mxa

const char *mxa_attention_sm80_refuses(const mxa_plan *plan)
{
    constexpr int64_t most_heads = 65535, most_tiles = int64_t(1) << 29; /* of a grid */
    if (plan->recipe.exact)
        return "computes in fp32, recipe exact wants float64";
    if (plan->problem.heads > most_heads || plan->n_tiles > most_tiles)
        return "has no grid for so many heads or tiles";
    for (int i = 0; i < MXA_COPIES; i++) {
        if (!plan->q[i].info)
            continue;
        if (plan->q[i].info->format == MXA_FORMAT_F32 || plan->k[i].info->format == MXA_FORMAT_F32)
            return "has no products of f32 operands";
        if (mxa::is_f16(plan->q[i]) != mxa::is_f16(plan->k[i]))
            return "has no products of f16 operands with others";
    }
    return nullptr;
}

static mxa_cuda_form form_of(const mxa_copy_plan *copy, mxa_dtype dtype)
{
    if (!copy->info)
        return MXA_CUDA_TENSOR;
    if (copy->info->quantized)
        return MXA_CUDA_BF16;
    return !copy->stored && mxa::dtype_of(copy->info->format) == dtype ? MXA_CUDA_TENSOR : MXA_CUDA_CODES;
}

mxa_cuda_forms mxa_attention_sm80_forms(const mxa_plan *plan)
{
    mxa_cuda_forms f = {};
    for (int i = 0; i < MXA_COPIES; i++) {
        f.q[i] = form_of(&plan->q[i], plan->problem.q_dtype);
        f.k[i] = form_of(&plan->k[i], plan->problem.k_dtype);
    }
    const bool f16 = plan->pv == MXA_PV_F16;
    if (plan->problem.v_dtype != (f16 ? MXA_DTYPE_F16 : MXA_DTYPE_BF16))
        f.v = f16 ? MXA_CUDA_F16 : MXA_CUDA_BF16;
    return f;
}

static int64_t redo_capacity(const mxa_plan *plan)
{
    return plan->q_rows * mxa::ShapeSm80<MXA_DIM_MAX>::parts;
}

int64_t mxa_attention_sm80_work_bytes(const mxa_plan *plan, const mxa_cuda_device *device)
{
    (void)device;
    return redo_capacity(plan) * int64_t(sizeof(mxa_cuda_row));
}

mxa_status mxa_attention_sm80_prepare(const mxa_plan *plan, const mxa_cuda_device *device)
{
    (void)device;
    const int dim = mxa::larger_dim(*plan);
    return dim <= 64 ? mxa::prepare<64>() : dim <= 128 ? mxa::prepare<128>() : mxa::prepare<256>();
}

mxa_status mxa_attention_sm80(const mxa_cuda_job *job, cudaStream_t stream)
{
    const mxa::MmaParams p = mxa::make_mma_params(*job);
    const int64_t tiles = job->plan->n_tiles;
    const int dim = mxa::larger_dim(*job->plan);
    const mxa_status status = dim <= 64    ? mxa::launch<64>(p, tiles, stream)
                              : dim <= 128 ? mxa::launch<128>(p, tiles, stream)
                                           : mxa::launch<256>(p, tiles, stream);
    if (status != MXA_OK)
        return status;
    return mxa_attention_ref_rows_cuda(job, p.redo, p.redo_count, redo_capacity(job->plan), false, stream);
}

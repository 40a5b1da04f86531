/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/sm90/prefill_launch_sm90.h"

namespace mxa
{

namespace
{

constexpr int64_t tensor_map_unit = 16;                       /* bytes, of addresses and strides */
constexpr int64_t tensor_map_stride_limit = INT64_C(1) << 40; /* bytes */
constexpr double l2_share = 2.0 / 3; /* of the cache, for K and V of the heads at work */

bool is_stride(int64_t length, int64_t bytes)
{
    return length <= 1 || (bytes > 0 && bytes < tensor_map_stride_limit && bytes % tensor_map_unit == 0);
}

/* Of a dimension that is never stepped along any stride does, if TMA accepts it. */
cuuint64_t stride_of(int64_t length, int64_t bytes)
{
    return length > 1 ? cuuint64_t(bytes) : cuuint64_t(tensor_map_unit);
}

} // namespace

const PrefillKernel *prefill_find(const PrefillKernel &wanted)
{
    for (const PrefillKernel *kernel : prefill_kernels)
        for (; kernel->function; kernel++)
            if (wanted.dim <= kernel->dim && wanted.dim_v <= kernel->dim_v && wanted.low == kernel->low &&
                wanted.factor == kernel->factor && wanted.high == kernel->high && wanted.pv == kernel->pv &&
                wanted.capped == kernel->capped)
                return kernel;
    return nullptr;
}

PrefillTensor prefill_rows(const void *data, int element_bytes, int64_t dim, int64_t rows, int64_t row_bytes)
{
    return { data, element_bytes, dim, rows, 1, 1, row_bytes, 0, 0 };
}

const char *prefill_unsuited(const PrefillTensor &t)
{
    if (reinterpret_cast<uintptr_t>(t.data) % tensor_map_unit)
        return "takes tensors aligned to 16 bytes";
    if (!is_stride(t.length, t.stride_s) || !is_stride(t.heads, t.stride_h) ||
        !is_stride(t.batch, t.stride_b))
        return "takes strides that are positive multiples of 16 bytes";
    return nullptr;
}

CUresult prefill_map(CUtensorMap *map, const PrefillTensor &t, int box_rows)
{
    mxa_tensor_map_fn *const encode = mxa_cuda_tensor_map();
    if (!encode)
        return CUDA_ERROR_NOT_SUPPORTED;
    const bool wide = t.element_bytes == 2;
    const cuuint64_t sizes[4] = { cuuint64_t(t.dim), cuuint64_t(t.length), cuuint64_t(t.heads),
                                  cuuint64_t(t.batch) };
    const cuuint64_t strides[3] = { stride_of(t.length, t.stride_s), stride_of(t.heads, t.stride_h),
                                    stride_of(t.batch, t.stride_b) };
    const cuuint32_t box[4] = { cuuint32_t(swizzle_bytes / t.element_bytes), cuuint32_t(box_rows), 1, 1 };
    const cuuint32_t steps[4] = { 1, 1, 1, 1 };
    return encode(map, wide ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_UINT8, 4,
                  const_cast<void *>(t.data), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                  CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

int prefill_heads_in_group(int64_t heads, int64_t heads_kv, int64_t kv_bytes_of_head, int64_t l2_bytes)
{
    const int64_t fit = int64_t(double(l2_bytes) * l2_share) / mxa_max(kv_bytes_of_head, 1);
    int64_t group = mxa_min(mxa_max(fit, 1), heads_kv);
    while (heads_kv % group)
        group--;
    return int(group * (heads / heads_kv));
}

cudaError_t prefill_prepare(const PrefillKernel &kernel)
{
    return cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                kernel.smem_bytes);
}

cudaError_t prefill_launch(const PrefillKernel &kernel, const PrefillParams &p, int multiprocessors,
                           cudaStream_t stream)
{
    cudaLaunchAttribute early{}; /* the kernel itself awaits the end of those before it */
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(unsigned(mxa_min(multiprocessors, p.items)));
    config.blockDim = dim3(prefill_threads);
    config.dynamicSmemBytes = size_t(kernel.smem_bytes);
    config.stream = stream;
    config.attrs = &early;
    config.numAttrs = 1;
    void *arguments[] = { const_cast<PrefillParams *>(&p) };
    return cudaLaunchKernelExC(&config, kernel.function, arguments);
}

} // namespace mxa

/* SPDX-License-Identifier: Apache-2.0 */
/* Instances for K in MXFP4: V in 16 bits, INT8 and MXFP4. Of dim 64 all columns are taken for queries. */
#include "cuda/decode/decode_kernels_sm90.cuh"
#include "cuda/decode/decode_sm90.cuh"

namespace mxa
{
namespace
{

template <Values values, int dim, bool paired>
DecodeKernel instance()
{
    using C = Config<Keys::mxfp4, values, dim, paired>;
    return { reinterpret_cast<const void *>(decode_sm90<C>), int(sizeof(DecodeShared<C>)) };
}

template <Values values>
DecodeKernel instance_of(int dim, bool paired)
{
    if (dim == 64)
        return instance<values, 64, true>();
    return paired ? instance<values, 128, true>() : instance<values, 128, false>();
}

} // namespace

DecodeKernel decode_kernel_mxfp4(Values values, int dim, bool paired)
{
    switch (values) {
    case Values::f16: return instance_of<Values::f16>(dim, paired);
    case Values::bf16: return instance_of<Values::bf16>(dim, paired);
    case Values::int8: return instance_of<Values::int8>(dim, paired);
    case Values::mxfp4: return instance_of<Values::mxfp4>(dim, paired);
    default: return {};
    }
}

} // namespace mxa

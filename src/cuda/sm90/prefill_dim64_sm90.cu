/* SPDX-License-Identifier: Apache-2.0 */
/* Head dims up to 64. */
#include "cuda/sm90/prefill_kernels_sm90.h"
#include "cuda/sm90/prefill_sm90.cuh"

namespace mxa
{

namespace
{

template <Low low, Factor factor, Half high, Half pv, bool capped = false>
PrefillKernel kernel()
{
    return prefill_kernel<PrefillType<64, 64, low, factor, high, pv, capped>>();
}

} // namespace

const PrefillKernel prefill_kernels_dim64[] = {
    kernel<Low::none, Factor::tile, Half::bf16, Half::bf16>(),
    kernel<Low::none, Factor::tile, Half::bf16, Half::f16>(),
    kernel<Low::none, Factor::tile, Half::f16, Half::f16>(),
    kernel<Low::int8, Factor::key, Half::bf16, Half::bf16>(),
    kernel<Low::int8, Factor::key, Half::bf16, Half::f16>(),
    kernel<Low::int8, Factor::key, Half::f16, Half::f16>(),
    kernel<Low::int8, Factor::tile, Half::bf16, Half::bf16>(),
    kernel<Low::int8, Factor::tile, Half::bf16, Half::f16>(),
    kernel<Low::e4m3_e5m2, Factor::tile, Half::bf16, Half::bf16>(),
    kernel<Low::e4m3_e5m2, Factor::tile, Half::bf16, Half::f16>(),
    kernel<Low::e4m3_e4m3, Factor::key, Half::bf16, Half::bf16>(),
    kernel<Low::e4m3_e4m3, Factor::key, Half::bf16, Half::f16>(),
    kernel<Low::wide, Factor::key, Half::bf16, Half::bf16>(),
    kernel<Low::wide, Factor::key, Half::bf16, Half::f16>(),
    {},
};

} // namespace mxa

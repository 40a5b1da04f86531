/* SPDX-License-Identifier: Apache-2.0 */
/* Every reciprocal that a quotient rests on is the rounded one: the device's for all units in [1, 2). */
#include "check_cuda.h"
#include "cuda/common/codes_cuda.cuh"

namespace
{

constexpr uint32_t one = 0x3F800000u, units = 1u << 23;

__global__ void count_wrong(unsigned *wrong)
{
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    const float unit = __uint_as_float(one + i);
    if (i < units && mxa::make_divisor(unit).r != __frcp_rn(unit))
        atomicAdd(wrong, 1u);
}

} // namespace

extern "C" void check_divisor_cuda(void)
{
    if (!check_entry("divisor", "cuda", "any", 0) || !check_round())
        return;
    arena_clear();
    constexpr unsigned threads = 256;
    const check_buf count = check_bytes(sizeof(unsigned));
    *reinterpret_cast<unsigned *>(count.data) = 0;
    uint8_t *const device = upload(count, 0);
    count_wrong<<<units / threads, threads>>>(reinterpret_cast<unsigned *>(device));
    must(cudaDeviceSynchronize(), "divisor");
    download(device, count);
    const unsigned wrong = *reinterpret_cast<unsigned *>(count.data);
    if (wrong)
        check_fail("%u of %u reciprocals are not the rounded ones", wrong, units);
}

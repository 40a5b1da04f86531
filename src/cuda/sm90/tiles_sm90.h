/* SPDX-License-Identifier: Apache-2.0 */
/* The numbers that are tuned, apart from the code that uses them, and the operand types of each kernel. */
#ifndef MXA_CUDA_TILES_SM90_H
#define MXA_CUDA_TILES_SM90_H

#include "cuda/sm90/ptx_sm90.cuh"

namespace mxa
{

constexpr int tile = 128; /* queries and keys of a score tile */
constexpr int groups = 2; /* of consumers, each with an equal part of the queries */
constexpr int rows = tile / groups;
static_assert(rows == 64, "the rows of a wgmma");

/* 128 threads each; the sum is the register file. */
constexpr int producer_registers = 24, consumer_registers = 240;
static_assert(128 * (producer_registers + groups * consumer_registers) <= 65536, "register file");

constexpr int swizzle_bytes = 128; /* of a row of an operand panel in shared memory */

enum class Low { none, int8, e4m3_e5m2, e4m3_e4m3 };

/* raw: the low operands are quantized such that their product is the logit in base 2, with no factor left. */
template <Low low, bool is_raw = false>
struct Dim128Bf16 {
    static constexpr int panels = 2; /* of 64 16-bit channels */
    static constexpr int panel_bytes = tile * swizzle_bytes;
    static constexpr int k_slots = 5;
    static constexpr int v_slots = 3;
    static constexpr bool has_low = low != Low::none;
    static constexpr bool low_is_int = low == Low::int8;
    static constexpr bool raw = is_raw;
    static_assert(!raw || (has_low && !low_is_int),
                  "int32 scores need a conversion, which takes the factor in");
    /*
     * A thread's sum of a tile past this raises m. In bf16 P is as exact at any size, so without a factor to
     * spend on m it may grow until fp32 is in sight of overflow.
     */
    static constexpr float sum_limit = raw ? 0x1p100f : 0x1p14f;

    static __device__ __forceinline__ void qk_high(uint32_t (&s)[64], uint32_t a, uint32_t b, int accumulate)
    {
        wgmma_bf16(s, a, b, accumulate);
    }
    static __device__ __forceinline__ void qk_low(uint32_t (&s)[64], uint32_t a, uint32_t b, int accumulate)
    {
        if constexpr (low == Low::int8)
            wgmma_s8(s, a, b, accumulate);
        else if constexpr (low == Low::e4m3_e5m2)
            wgmma_e4m3_e5m2(s, a, b, accumulate);
        else
            wgmma_e4m3_e4m3(s, a, b, accumulate);
    }
    static __device__ __forceinline__ void pv(float (&o)[64], const uint32_t (&a)[4], uint32_t b,
                                              int accumulate)
    {
        wgmma_pv_bf16(o, a, b, accumulate);
    }
    static __device__ __forceinline__ uint32_t pack(float lo, float hi)
    {
        return pack_bf16(lo, hi);
    }
};

} // namespace mxa

#endif

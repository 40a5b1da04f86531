/* SPDX-License-Identifier: Apache-2.0 */
/* The numbers that are tuned, apart from the code that uses them, and the operand types of each kernel. */
#ifndef MXA_CUDA_TILES_SM90_H
#define MXA_CUDA_TILES_SM90_H

#include "cuda/sm90/ptx_sm90.cuh"
#include "cuda/sm90/wgmma_sm90.cuh"

namespace mxa
{

constexpr int tile = 128; /* queries and keys of a score tile */
constexpr int groups = 2; /* of consumers, each with an equal part of the queries */
constexpr int consumer_warps = 4 * groups;
constexpr int rows = tile / groups;
static_assert(rows == 64, "the rows of a wgmma");

constexpr int prefill_head_shift = 4; /* bits that a number of a head leaves to flags in an int */
constexpr int prefill_threads = 128 * (1 + groups);

/* 128 threads each; the sum is the register file. */
constexpr int producer_registers = 40, consumer_registers = 232;
static_assert(128 * (producer_registers + groups * consumer_registers) <= 65536, "register file");

constexpr int swizzle_bytes = 128; /* of a row of an operand panel in shared memory */
constexpr int product_bytes = 32;  /* of a row that one product spans */
constexpr int panel_channels = 64; /* of a 16-bit panel */
constexpr int q_panel_bytes = rows * swizzle_bytes;
constexpr int operand_bytes = 224 * 1024; /* of shared memory that Q, K and V may take */

constexpr int smem_limit = 227 * 1024; /* that a CTA may have */

/* Low operands: 8-bit, or wide: 16-bit containers. */
enum class Low { none, int8, e4m3_e5m2, e4m3_e4m3, wide };

/* Second-level factors of low K: one a key tile or one a key. */
enum class Factor { tile, key };

enum class Half { bf16, f16 };

/* head_dim and head_dim_v as the kernel multiplies them: what a problem lacks of them arrives as zeros. */
template <int head_dim, int head_dim_v, Low low_, Factor factor_, Half high_, Half pv_,
          bool is_capped = false>
struct PrefillType {
    static constexpr Low low = low_;
    static constexpr Factor factor = factor_;
    static constexpr Half high = high_, pv = pv_;
    static constexpr int dim = head_dim, dim_v = head_dim_v;
    static constexpr bool has_low = low != Low::none;
    static constexpr bool low_is_int = low == Low::int8;
    static constexpr bool low_is_wide = low == Low::wide;
    static constexpr bool capped = is_capped; /* softcap */
    static constexpr bool key_factors = factor == Factor::key && has_low;
    static constexpr bool m_in_units = low_is_int && !key_factors;

    /* Keys of a step: what the registers of scores, P and the output allow. */
    static constexpr int keys = dim_v > 128 ? 64 : 128;
    static constexpr int steps = tile / keys; /* of a key tile */

    /*
     * The start of int32 accumulators is written as P is packed, which costs nothing, unless that many
     * registers are wanted in between.
     */
    static constexpr bool int_start_early = low_is_int && keys == 128;

    static constexpr int low_bytes = low_is_wide ? 2 : 1;
    static constexpr int low_channels = swizzle_bytes / low_bytes; /* of a panel */
    static constexpr int high_panels = dim / panel_channels;
    static constexpr int low_panels = has_low ? (dim + low_channels - 1) / low_channels : 0;
    static constexpr int v_panels = dim_v / panel_channels;
    static constexpr int panel_bytes = keys * swizzle_bytes; /* of K and V */
    static constexpr int v_slot_bytes = v_panels * panel_bytes;

    static constexpr int q_bytes = groups * (high_panels + low_panels) * q_panel_bytes;
    static constexpr int v_slots =
        v_panels == 1                                                                 ? 5
        : q_bytes + 3 * v_slot_bytes + 5 * panel_bytes <= operand_bytes && dim == 128 ? 3
                                                                                      : 2;
    static constexpr int k_slots_left = (operand_bytes - q_bytes - v_slots * v_slot_bytes) / panel_bytes;
    static constexpr int k_slots_most =
        6 * tile / keys; /* more would be of no use, and their factors too many */
    static constexpr int k_slots = k_slots_left > k_slots_most ? k_slots_most : k_slots_left;
    static constexpr int operand_bytes_used = q_bytes + v_slots * v_slot_bytes + k_slots * panel_bytes;
    static_assert(k_slots >= high_panels && k_slots >= low_panels, "a step's K");
    /*
     * Factors of low K are read after its product, so they outlive its slots by one step: a warp that gives a
     * slot back has done the softmax of the step before. Where shared memory lacks the space, slots are given
     * back after the softmax.
     */
    static constexpr int low_steps_in_slots = !has_low ? 1 : (k_slots + low_panels - 1) / low_panels;
    static constexpr bool late_k_release =
        key_factors && operand_bytes_used + (low_steps_in_slots + 1) * keys * 4 > operand_bytes + 2048;
    static constexpr int factor_slots = low_steps_in_slots + !late_k_release;
    static constexpr int slot_factors = key_factors ? keys : 1;

    /* A thread's sum of a step past this raises m. */
    static constexpr float sum_limit = 0x1p14f;
    /* A row's sum below this is redone: terms may have vanished, in fp16 of P below 2^-24 of m. */
    static constexpr float least_sum = pv == Half::f16 ? 0.5f : 0x1p-80f;

    /* Terms that vanish where m is 0 are below 2^-62 of those of a row whose m is not below this. */
    static constexpr float vanishing_m = -64.0f;

    static constexpr Product high_product = high == Half::f16 ? Product::f16 : Product::bf16;
    static constexpr Product low_product = low == Low::int8        ? Product::s8
                                           : low == Low::e4m3_e5m2 ? Product::e4m3_e5m2
                                           : low == Low::e4m3_e4m3 ? Product::e4m3_e4m3
                                                                   : high_product;

    static __device__ __forceinline__ uint32_t pack(float lo, float hi)
    {
        return pv == Half::f16 ? pack_f16(lo, hi) : pack_bf16(lo, hi);
    }
    static __device__ __forceinline__ uint32_t zero_times(uint32_t x, uint32_t y)
    {
        return pv == Half::f16 ? zero_times_f16(x, y) : zero_times_bf16(x, y);
    }
};

} // namespace mxa

#endif

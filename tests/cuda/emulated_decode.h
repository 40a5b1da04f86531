/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In place of the instructions of cuda/decode: a block of threads on the host, whose copies are done at
 * once.
 */
#ifndef EMULATED_DECODE_H
#define EMULATED_DECODE_H

#include <algorithm>
#include <cstdint>

#include "emulated_ptx_sm80.h"

#include <cuda_fp16.h>
#include <vector_types.h>

/* Words of CUDA C++ that its headers leave to nvcc. */
#undef __grid_constant__
#define __grid_constant__
#define __noinline__
#undef __launch_bounds__
#define __launch_bounds__(threads, blocks)

extern emulated_index gridDim;

template <class T>
T emulated_of_lane(T x, int lane)
{
    const T *const all = static_cast<const T *>(emulated_exchange(&x, sizeof x));
    const T y = all[lane];
    emulated_done();
    return y;
}

inline int emulated_lane()
{
    return int(threadIdx.x) % 32;
}

template <class T>
T __shfl_xor_sync(unsigned, T x, int mask)
{
    return emulated_of_lane(x, emulated_lane() ^ mask);
}

template <class T>
T __shfl_sync(unsigned, T x, int lane)
{
    return emulated_of_lane(x, lane);
}

template <class T>
T __shfl_up_sync(unsigned, T x, unsigned lanes)
{
    return emulated_of_lane(x,
                            emulated_lane() >= int(lanes) ? emulated_lane() - int(lanes) : emulated_lane());
}

inline bool __any_sync(unsigned, bool x)
{
    const bool *const all = static_cast<const bool *>(emulated_exchange(&x, sizeof x));
    const bool any = std::any_of(all, all + 32, [](bool y) { return y; });
    emulated_done();
    return any;
}

inline bool __all_sync(unsigned mask, bool x)
{
    return !__any_sync(mask, !x);
}

inline void __syncwarp()
{
    __any_sync(~0u, false);
}

inline uint32_t __float_as_uint(float x)
{
    uint32_t r;
    std::memcpy(&r, &x, sizeof r);
    return r;
}

inline float __uint_as_float(uint32_t x)
{
    float r;
    std::memcpy(&r, &x, sizeof r);
    return r;
}

inline uint32_t __byte_perm(uint32_t x, uint32_t y, uint32_t selector)
{
    const uint64_t both = x | uint64_t(y) << 32;
    uint32_t r = 0;
    for (int i = 0; i < 4; i++)
        r |= uint32_t(both >> (selector >> 4 * i & 7) * 8 & 0xFF) << 8 * i;
    return r;
}

inline unsigned __umulhi(unsigned x, unsigned y)
{
    return unsigned(uint64_t(x) * y >> 32);
}

inline float __fdiv_rn(float x, float y)
{
    return x / y;
}

template <class T>
T __ldcg(const T *from)
{
    return *from;
}

namespace mxa
{

using std::max;
using std::min;

extern uint8_t memory[]; /* shared */

inline uint32_t smem_address(const void *p)
{
    return uint32_t(static_cast<const uint8_t *>(p) - memory);
}

/* A barrier is the number of copies that were done. */
inline uint64_t &barrier_at(uint32_t bar)
{
    return *reinterpret_cast<uint64_t *>(memory + bar);
}

inline void barrier_init(uint32_t bar, uint32_t)
{
    barrier_at(bar) = 0;
}

inline void fence_barrier_init()
{
}

inline void barrier_expect(uint32_t, uint32_t)
{
}

/* What is waited for must be on its way. */
void barrier_wait(uint32_t bar, uint32_t parity);

inline void bulk_load(uint32_t dst, const void *src, uint32_t bytes, uint32_t bar)
{
    std::memcpy(memory + dst, src, bytes);
    barrier_at(bar)++;
}

inline void await_kernels_before()
{
}

inline void fence_async_proxy()
{
}

inline float exp2_approx(float x)
{
    return exp2f(x);
}

uint32_t pack_f16(float low, float high);
uint32_t pack_bf16(float low, float high);
uint32_t transpose_matrix(uint32_t x);
void multiply_f16(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                  uint32_t b1);
void multiply_bf16(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                   uint32_t b1);
void multiply_s8(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1);
uint32_t multiply_pairs_f16(uint32_t x, uint32_t y);
uint32_t subtract_pairs_f16(uint32_t x, uint32_t y);
uint32_t pair_of_e4m3(uint16_t codes);
uint16_t e4m3_of_pair(float low, float high);

inline uint32_t add_in_order(uint32_t *counter, uint32_t x)
{
    const uint32_t before = *counter;
    *counter += x;
    return before;
}

inline uint32_t warp_max(uint32_t x)
{
    const auto *const all = static_cast<const uint32_t *>(emulated_exchange(&x, sizeof x));
    const uint32_t largest = *std::max_element(all, all + 32);
    emulated_done();
    return largest;
}

} // namespace mxa

#endif

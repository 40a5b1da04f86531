/* SPDX-License-Identifier: Apache-2.0 */
/* Codes of a device's page, as they lie there, to A operands of mma.sync. */
#ifndef MXA_CUDA_DECODE_FRAGMENTS_CUH
#define MXA_CUDA_DECODE_FRAGMENTS_CUH

#include "cuda/decode/ptx_decode_sm90.cuh"

namespace mxa
{

struct Fragment {
    uint32_t a[4];
};

/*
 * Eight E2M1 codes as fp16, exactly: sign, exponent and mantissa in their places, so that a number is 2^-14
 * times its value. kv_layout_cuda.h says where the bits lie.
 */
__device__ __forceinline__ Fragment nibbles_to_f16(uint32_t w)
{
    constexpr uint32_t mask = 0x8E008E00u, moved = 0x06060606u;
    const uint32_t z = (w >> 3 & moved) | (w & ~moved);
    return { { w & mask, w << 8 & mask, z << 1 & mask, z << 9 & mask } };
}

/* Eight signed bytes, plus 128 each, as fp16. 0x6400 is 1024 in fp16, whose last bits count ones. */
__device__ __forceinline__ Fragment bytes_to_f16(uint32_t low, uint32_t high)
{
    constexpr uint32_t thousands = 0x64646464u, offset = 0x64806480u; /* 1024 + 128 */
    return { { subtract_pairs_f16(__byte_perm(low, thousands, 0x4140), offset),
               subtract_pairs_f16(__byte_perm(low, thousands, 0x4342), offset),
               subtract_pairs_f16(__byte_perm(high, thousands, 0x4140), offset),
               subtract_pairs_f16(__byte_perm(high, thousands, 0x4342), offset) } };
}

/* 1.5 * 2^(b - 127) of byte number i of w, NaN for the byte of NaN, 2^-127 for 0. */
__device__ __forceinline__ float scale_of_byte(uint32_t w, int i)
{
    const uint32_t exponent = i < 3 ? w << (23 - 8 * i) : w >> 1;
    return __uint_as_float((exponent & 0x7F800000u) | 0x00400000u);
}

/* 16 bytes of shared memory. */
__device__ __forceinline__ uint4 load_words(const uint8_t *at)
{
    return *reinterpret_cast<const uint4 *>(at);
}

__device__ __forceinline__ uint32_t word_of(const uint4 &w, int i)
{
    return i == 0 ? w.x : i == 1 ? w.y : i == 2 ? w.z : w.w;
}

} // namespace mxa

#endif

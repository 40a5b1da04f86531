/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A block of threads on the host, for kernels that are compiled with MXA_EMULATED: each thread is a fiber,
 * and instructions of a whole warp wait for its 32 threads. The layouts of fragments are those of the PTX
 * manual.
 */
#ifndef EMULATED_PTX_SM80_H
#define EMULATED_PTX_SM80_H

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>

#include <vector_functions.h>

struct emulated_index {
    unsigned x, y;
};
extern emulated_index threadIdx, blockIdx; /* of the fiber that runs */

void __syncthreads();

/* Each thread's piece of bytes, seen by its whole warp: [32] of them. */
const void *emulated_exchange(const void *mine, size_t bytes);

/* The next exchange of the warp may begin. */
void emulated_done();

/* body by 128 threads, one block after another. */
void emulated_launch(unsigned blocks_x, unsigned blocks_y, const std::function<void()> &body);

inline float __shfl_xor_sync(unsigned, float x, int mask)
{
    const float *const all = static_cast<const float *>(emulated_exchange(&x, sizeof x));
    const float y = all[threadIdx.x % 32 ^ mask];
    emulated_done();
    return y;
}

inline int __shfl_xor_sync(unsigned, int x, int mask)
{
    const int *const all = static_cast<const int *>(emulated_exchange(&x, sizeof x));
    const int y = all[threadIdx.x % 32 ^ mask];
    emulated_done();
    return y;
}

inline int atomicAdd(int *to, int n)
{
    const int before = *to;
    *to += n;
    return before;
}

namespace mxa
{

void load_matrices(uint32_t (&r)[4], const void *row);
void load_matrices_transposed(uint32_t (&r)[4], const void *row);
void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
void mma_f16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
uint32_t pack_two_bf16(float low, float high);
uint32_t pack_two_f16(float low, float high);

} // namespace mxa

#endif

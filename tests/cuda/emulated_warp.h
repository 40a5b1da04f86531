/* SPDX-License-Identifier: Apache-2.0 */
/* In place of cuda/kv_warp_cuda.cuh: a warp on the host. */
#ifndef EMULATED_WARP_H
#define EMULATED_WARP_H

#include "emulated_ptx_sm80.h"

namespace mxa
{

constexpr int warp_width = 32;

inline uint32_t warp_largest(uint32_t x, int width)
{
    const auto *const all = static_cast<const uint32_t *>(emulated_exchange(&x, sizeof x));
    const int first = int(threadIdx.x) % warp_width / width * width;
    uint32_t largest = 0;
    for (int i = first; i < first + width; i++)
        largest = all[i] > largest ? all[i] : largest;
    emulated_done();
    return largest;
}

inline void warp_barrier()
{
    warp_largest(0, warp_width);
}

template <class T>
T warp_exchange(T x, int mask)
{
    const auto *const all = static_cast<const T *>(emulated_exchange(&x, sizeof x));
    const T other = all[int(threadIdx.x) % warp_width ^ mask];
    emulated_done();
    return other;
}

template <class T>
T load_fresh(const T *from)
{
    return *from;
}

inline unsigned draw_ticket(unsigned *tickets)
{
    return (*tickets)++;
}

inline void order_memory()
{
}

} // namespace mxa

#endif

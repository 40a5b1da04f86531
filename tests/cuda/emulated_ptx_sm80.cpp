/* SPDX-License-Identifier: Apache-2.0 */
#include "emulated_ptx_sm80.h"

#include <ucontext.h>
#include <vector>

extern "C" {
#include "core/bits.h"
}

namespace
{

#ifndef EMULATED_THREADS
#define EMULATED_THREADS 128
#endif

constexpr int threads = EMULATED_THREADS, lanes = 32, stack_bytes = 256 << 10, slot_bytes = 64;

/* Threads wait here until as many have come. */
struct Barrier {
    int wanted, come = 0;
    uint64_t generation = 0;
};

ucontext_t fibers[threads], scheduler;
bool finished[threads];
std::vector<char> stacks(size_t(threads) * stack_bytes);
Barrier block_barrier{ threads }, warp_barriers[threads / lanes];
char slots[threads / lanes][lanes][slot_bytes];
char packed[threads / lanes][lanes * slot_bytes];
int current;
const std::function<void()> *running;

void yield()
{
    swapcontext(&fibers[current], &scheduler);
}

void wait(Barrier &b)
{
    const uint64_t generation = b.generation;
    if (++b.come == b.wanted) {
        b.come = 0;
        b.generation++;
        return;
    }
    while (b.generation == generation)
        yield();
}

void run_fiber()
{
    (*running)();
    finished[current] = true;
    yield();
}

void run_block()
{
    for (int t = 0; t < threads; t++) {
        getcontext(&fibers[t]);
        fibers[t].uc_stack.ss_sp = &stacks[size_t(t) * stack_bytes];
        fibers[t].uc_stack.ss_size = stack_bytes;
        fibers[t].uc_link = &scheduler;
        makecontext(&fibers[t], run_fiber, 0);
        finished[t] = false;
    }
    for (int left = threads; left > 0;) {
        left = 0;
        for (current = 0; current < threads; current++) {
            if (finished[current])
                continue;
            threadIdx.x = unsigned(current);
            swapcontext(&scheduler, &fibers[current]);
            left += !finished[current];
        }
    }
}

/* Element e of a fragment's word. */
uint16_t half_of(uint32_t word, int e)
{
    return uint16_t(word >> 16 * e);
}

using Widen = float(uint16_t);

/* Lane l: c rows l / 4 and 8 more, columns l % 4 * 2 and 1 more; a the same rows, columns also 8 more. */
void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Widen *widen)
{
    struct Fragments {
        uint32_t a[4], b[2];
    } mine = { { a[0], a[1], a[2], a[3] }, { b0, b1 } };
    const auto *const all = static_cast<const Fragments *>(emulated_exchange(&mine, sizeof mine));
    const int l = int(threadIdx.x) % lanes;
    for (int i = 0; i < 4; i++) {
        const int row = l / 4 + i / 2 * 8, column = l % 4 * 2 + i % 2;
        for (int k = 0; k < 16; k++) {
            const uint32_t x = all[row % 8 * 4 + k % 8 / 2].a[row / 8 + k / 8 * 2];
            const uint32_t y = all[column * 4 + k % 8 / 2].b[k / 8];
            c[i] += widen(half_of(x, k % 2)) * widen(half_of(y, k % 2));
        }
    }
    emulated_done();
}

void load(uint32_t (&r)[4], const void *row, bool transposed)
{
    const auto *const rows = static_cast<const uint16_t *const *>(emulated_exchange(&row, sizeof row));
    const int l = int(threadIdx.x) % lanes;
    for (int m = 0; m < 4; m++) {
        uint16_t two[2];
        for (int e = 0; e < 2; e++) {
            const int i = l / 4, j = l % 4 * 2 + e;
            two[e] = transposed ? rows[8 * m + j][i] : rows[8 * m + i][j];
        }
        r[m] = two[0] | uint32_t(two[1]) << 16;
    }
    emulated_done();
}

} // namespace

emulated_index threadIdx, blockIdx;

void __syncthreads()
{
    wait(block_barrier);
}

const void *emulated_exchange(const void *mine, size_t bytes)
{
    const int warp = current / lanes, lane = current % lanes;
    std::memcpy(slots[warp][lane], mine, bytes);
    wait(warp_barriers[warp]);
    for (int l = 0; l < lanes; l++)
        std::memcpy(packed[warp] + size_t(l) * bytes, slots[warp][l], bytes);
    return packed[warp];
}

void emulated_done()
{
    wait(warp_barriers[current / lanes]);
}

void emulated_launch(unsigned blocks_x, unsigned blocks_y, const std::function<void()> &body)
{
    for (Barrier &b : warp_barriers)
        b = Barrier{ lanes };
    running = &body;
    for (blockIdx.y = 0; blockIdx.y < blocks_y; blockIdx.y++)
        for (blockIdx.x = 0; blockIdx.x < blocks_x; blockIdx.x++)
            run_block();
}

namespace mxa
{

void load_matrices(uint32_t (&r)[4], const void *row)
{
    load(r, row, false);
}

void load_matrices_transposed(uint32_t (&r)[4], const void *row)
{
    load(r, row, true);
}

void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    multiply(c, a, b0, b1, mxa_f32_from_bf16);
}

void mma_f16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    multiply(c, a, b0, b1, mxa_f32_from_f16);
}

uint32_t pack_two_bf16(float low, float high)
{
    return mxa_bf16_from_f32(low) | uint32_t(mxa_bf16_from_f32(high)) << 16;
}

uint32_t pack_two_f16(float low, float high)
{
    return mxa_f16_from_f32(low) | uint32_t(mxa_f16_from_f32(high)) << 16;
}

} // namespace mxa

/* SPDX-License-Identifier: Apache-2.0 */
/* Every rotation gives the reference's bits. */
#include "check.h"
#include "check_lists.h"
#include "core/bits.h"
#include "cpu/kernels.h"

#include <string.h>

/* Where the transform overflows, machines differ in the NaN that they make. */
static void canonical(check_buf row)
{
    for (size_t i = 0; i < row.bytes; i += sizeof(float)) {
        float x;
        memcpy(&x, row.data + i, sizeof x);
        const uint32_t bits = mxa_f32_canonical(x);
        memcpy(row.data + i, &bits, sizeof bits);
    }
}

static void check_entry_once(const mxa_hadamard_impl *impl)
{
    const int64_t cols = check_pick(0, 1) ? 1 << check_pick(0, 8) : check_pick(1, 300);
    const size_t bytes = (size_t)cols * sizeof(float);
    const check_buf want = check_bytes(bytes), got = check_bytes(bytes);
    const float *const x = check_floats(cols, check_pick(0, 3) == 0);
    memcpy(want.data, x, bytes);
    memcpy(got.data, x, bytes);
    const mxa_hadamard_impl *reference = mxa_hadamard_impls;
    while (reference[1].name)
        reference++;
    reference->fn((float *)(void *)want.data, cols);
    impl->fn((float *)(void *)got.data, cols);
    canonical(want);
    canonical(got);
    check_same_floats("rotated row", want, got);
}

static void bench_entry(const mxa_hadamard_impl *impl)
{
    enum { DIM = 128 };
    float *const x = (float *)(void *)check_bytes(DIM * sizeof(float)).data;
    for (int i = 0; i < DIM; i++)
        x[i] = check_normal();
    for (check_timer t = { .bytes = DIM * sizeof(float) }; check_time(&t);)
        impl->fn(x, DIM);
}

void check_rotate(void)
{
    for (const mxa_hadamard_impl *impl = mxa_hadamard_impls; impl->name; impl++) {
        if (!check_entry("rotate", impl->name, "any", impl->needs))
            continue;
        while (check_round())
            check_entry_once(impl);
        if (check_benching())
            bench_entry(impl);
    }
}

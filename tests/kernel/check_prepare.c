/* SPDX-License-Identifier: Apache-2.0 */
/* Every preparation of rows gives the reference's bits. */
#include "check.h"
#include "check_lists.h"
#include "core/bits.h"
#include "cpu/kernels.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* Where the steps overflow or meet NaN, machines differ in the NaN that they make. */
static void canonical(check_buf rows)
{
    for (size_t i = 0; i < rows.bytes; i += sizeof(float)) {
        float x;
        memcpy(&x, rows.data + i, sizeof x);
        const uint32_t bits = mxa_f32_canonical(x);
        memcpy(rows.data + i, &bits, sizeof bits);
    }
}

static void same_amax(int64_t n, const uint32_t *want, const uint32_t *got)
{
    for (int64_t i = 0; i < n; i++)
        if (want[i] < MXA_F32_INF ? got[i] != want[i] : got[i] < MXA_F32_INF)
            check_fail("amax[%lld] of %lld: want %08X, got %08X", (long long)i, (long long)n, want[i],
                       got[i]);
}

/* n elements of a type, any of its bit patterns among them. */
static void *pick_elements(mxa_dtype dtype, int64_t n)
{
    float *const x = check_floats(n, check_pick(0, 3) == 0);
    if (dtype == MXA_DTYPE_F32)
        return x;
    uint16_t *const half = (uint16_t *)(void *)check_bytes((size_t)n * sizeof *half).data;
    if (check_pick(0, 3))
        for (int64_t i = 0; i < n; i++)
            half[i] = dtype == MXA_DTYPE_F16 ? mxa_f16_from_f32(x[i]) : mxa_bf16_from_f32(x[i]);
    return half;
}

static int64_t pick_cols(void)
{
    const int64_t kind = check_pick(0, 3);
    return kind == 0 ? 1 << check_pick(0, 8) : kind == 1 ? 16 * check_pick(1, 18) : check_pick(1, 300);
}

static void check_entry_once(const mxa_prepare_impl *impl)
{
    enum { MOST_ROWS = 5 };
    const int64_t rows = check_pick(1, MOST_ROWS), cols = pick_cols();
    const mxa_dtype dtype = (mxa_dtype)check_pick(MXA_DTYPE_F32, MXA_DTYPE_BF16);
    const bool in_place = dtype == MXA_DTYPE_F32 && check_pick(0, 1), rotate = check_pick(0, 1);
    const int64_t stride = in_place ? cols : cols + check_pick(0, 5);
    const mxa_source x = { pick_elements(dtype, rows * stride), dtype, rows, cols, stride };
    const float *const mean = check_pick(0, 1) ? check_floats(cols, false) : NULL;

    const size_t bytes = (size_t)(rows * cols) * sizeof(float);
    const check_buf want = check_bytes(bytes), got = check_bytes(bytes);
    const int64_t blocks = rows * mxa_amax_count(cols);
    const check_buf want_amax = check_bytes((size_t)blocks * sizeof(uint32_t));
    const check_buf got_amax = check_bytes(want_amax.bytes);
    const mxa_prepare_impl *reference = mxa_prepare_impls;
    while (reference[1].name)
        reference++;
    reference->fn(&x, mean, rotate, (float *)(void *)want.data, (uint32_t *)(void *)want_amax.data);
    const bool wanted = check_pick(0, 7) > 0;
    mxa_source own = x;
    if (in_place)
        own.data = memcpy(got.data, x.data, bytes);
    impl->fn(&own, mean, rotate, (float *)(void *)got.data,
             wanted ? (uint32_t *)(void *)got_amax.data : NULL);
    canonical(want);
    canonical(got);
    check_same_floats("prepared rows", want, got);
    check_guards("amax", got_amax);
    if (wanted)
        same_amax(blocks, (uint32_t *)(void *)want_amax.data, (uint32_t *)(void *)got_amax.data);
}

/* Some rows by a vector, within the rounding of as many float64 additions. */
static void check_dot_once(const mxa_prepare_impl *impl)
{
    enum { MOST_ROWS = 5 };
    const int64_t rows = check_pick(1, MOST_ROWS), cols = pick_cols(), stride = cols + check_pick(0, 5);
    const mxa_dtype dtype = (mxa_dtype)check_pick(MXA_DTYPE_F32, MXA_DTYPE_BF16);
    const float *const y = check_floats(cols, false);
    const mxa_source x = { pick_elements(dtype, rows * stride), dtype, rows, cols, stride };
    const check_buf got = check_bytes(MOST_ROWS * sizeof(double));
    impl->dot(&x, y, (double *)(void *)got.data);
    check_guards("dots", got);
    for (int64_t r = 0; r < rows; r++) {
        long double want = 0, size = 0;
        for (int64_t d = 0; d < cols; d++) {
            float element;
            mxa_row_widen((const char *)mxa_source_row(&x, r) + d * mxa_dtype_bytes(dtype), dtype, 1,
                          &element);
            want += (long double)element * y[d];
            size += fabsl((long double)element * y[d]);
        }
        const double dot = ((const double *)(void *)got.data)[r];
        const bool right = isfinite((double)want)
                               ? fabsl(dot - want) <= (long double)cols * DBL_EPSILON * size
                               : !isfinite(dot);
        if (!right)
            check_fail("dot[%lld] of %lld columns: want %.17Lg, got %.17g", (long long)r, (long long)cols,
                       want, dot);
    }
}

static void bench_entry(const mxa_prepare_impl *impl)
{
    enum { ROWS = 16, DIM = 128 };
    const float *const numbers = check_floats(DIM, false);
    uint16_t *const half = (uint16_t *)(void *)check_bytes(ROWS * DIM * sizeof *half).data;
    for (int i = 0; i < ROWS * DIM; i++)
        half[i] = mxa_bf16_from_f32(check_normal());
    const mxa_source x = { half, MXA_DTYPE_BF16, ROWS, DIM, DIM };
    float *const out = (float *)(void *)check_bytes(ROWS * DIM * sizeof *out).data;
    uint32_t amax[ROWS * DIM / MXA_AMAX_BLOCK];
    for (check_timer t = { .bytes = ROWS * DIM * sizeof *half }; check_time(&t);)
        impl->fn(&x, numbers, true, out, amax);
}

void check_prepare(void)
{
    for (const mxa_prepare_impl *impl = mxa_prepare_impls; impl->name; impl++) {
        if (!check_entry("prepare", impl->name, "any", impl->needs))
            continue;
        while (check_round()) {
            check_entry_once(impl);
            check_dot_once(impl);
        }
        if (check_benching())
            bench_entry(impl);
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers made to break quantisers. */
#include "check.h"

#include "core/bits.h"

#include <math.h>

enum { BLOCK = 16 };

typedef enum value_kind {
    KIND_NORMAL,
    KIND_TIES,      /* small multiples of 1/64: codes and the points halfway between codes */
    KIND_FP4_TIES,  /* multiples of 1/4 to 6: the same of E2M1, often under a maximum with a scale of 2^k */
    KIND_EDGE,      /* normal values under a maximum at an edge of the scale rules */
    KIND_OUTLIER,   /* one element 2^10 times the others */
    KIND_ZEROS,     /* mostly zeros of both signs */
    KIND_SUBNORMAL, /* below 2^-126 */
    KIND_HUGE,      /* in the top binades */
    KIND_WIDE,      /* 60 binades mixed */
    KIND_BITS,      /* any finite bit pattern */
    KIND_COUNT
} value_kind;

/* In (0, 1]. */
static double uniform(void)
{
    return (double)((check_random() >> 11) + 1) * 0x1p-53;
}

float check_normal(void)
{
    return (float)(sqrt(-2 * log(uniform())) * cos(2 * M_PI * uniform()));
}

static float signed_by_chance(float x)
{
    return check_random() & 1 ? -x : x;
}

/* One ulp below, at, or above a largest code's or a rounding rule's edge, in [1, 2). */
static float edge_value(void)
{
    static const float edges[] = { 1.0f, 1.25f, 1.5f, 1.75f, 1.875f, 1.9375f, 127 / 64.0f, 255 / 128.0f };
    const float edge = edges[check_pick(0, (int64_t)(sizeof edges / sizeof *edges) - 1)];
    return mxa_f32_from_bits(mxa_f32_bits(edge) + (uint32_t)check_pick(-1, 1));
}

static float draw(value_kind kind)
{
    switch (kind) {
    case KIND_TIES: return signed_by_chance((float)check_pick(0, 512) / 64);
    case KIND_FP4_TIES: return signed_by_chance((float)check_pick(0, 24) / 4);
    case KIND_ZEROS: return signed_by_chance(check_pick(0, 3) ? 0.0f : fabsf(check_normal()));
    case KIND_SUBNORMAL: return signed_by_chance(mxa_f32_from_bits((uint32_t)check_pick(0, 0x7FFFFF)));
    case KIND_HUGE: return signed_by_chance(ldexpf((float)uniform(), 127));
    case KIND_WIDE: return ldexpf(check_normal(), (int)check_pick(-30, 30));
    case KIND_BITS: {
        const float x = mxa_f32_from_bits((uint32_t)check_random());
        return mxa_f32_is_finite(x) ? x : 0.0f;
    }
    default: return check_normal();
    }
}

static void fill_block(float *x, int64_t n, bool nonfinite)
{
    const value_kind kind = (value_kind)check_pick(0, KIND_COUNT - 1);
    const int64_t special = check_pick(0, n - 1);
    const int exponent = (int)check_pick(-20, 20);
    for (int64_t i = 0; i < n; i++)
        x[i] = draw(kind);
    if (kind == KIND_EDGE)
        x[special] = signed_by_chance(ldexpf(edge_value(), 4));
    if (kind == KIND_OUTLIER)
        x[special] = ldexpf(x[special], 10);
    if (kind <= KIND_OUTLIER)
        for (int64_t i = 0; i < n; i++)
            x[i] = ldexpf(x[i], exponent);
    if (nonfinite && check_pick(0, 19) == 0)
        x[special] = mxa_f32_from_bits(check_random() & 1 ? MXA_F32_INF : 0xFFC00001u);
}

float *check_floats(int64_t n, bool nonfinite)
{
    float *x = (float *)(void *)check_bytes((size_t)n * sizeof(float)).data;
    /* One kind throughout, so that a factor of the whole row suits all of it; else one for each block. */
    const int64_t block = check_pick(0, 2) ? BLOCK : n;
    for (int64_t i = 0; i < n; i += block)
        fill_block(x + i, n - i < block ? n - i : block, nonfinite);
    return x;
}

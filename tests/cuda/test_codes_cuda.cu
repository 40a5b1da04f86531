/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The codes of the CUDA kernels, compiled for the host, against format/element.h: words of E2M1, FP8 pairs,
 * quotients, and that a bracket decides rightly or not at all. Random bits, and numbers next to the points
 * between codes.
 */
#include <math.h>
#include <stdio.h>

#include "cuda/common/codes_cuda.cuh"

using namespace mxa;

namespace
{

constexpr int rounds = 2000000;
int failures;

uint64_t state = 1;

uint32_t random_bits()
{
    state += 0x9E3779B97F4A7C15u;
    uint64_t z = state;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return uint32_t((z ^ z >> 31) >> 16);
}

void expect(bool good, const char *what, double a, double b)
{
    if (good || failures++ > 10)
        return;
    printf("%s: %.9g, %.9g\n", what, a, b);
}

/* |x| below limit: any bits, or next to a multiple of step. */
float pick(float limit, float step)
{
    float x = mxa_f32_from_bits(random_bits());
    if (random_bits() % 2)
        x = mxa_f32_from_bits(mxa_f32_bits(float(random_bits() % 2048) * step) + random_bits() % 3 - 1);
    if (!(fabsf(x) < limit))
        x = limit * float(random_bits() % 1024) / 1024;
    return random_bits() % 2 ? x : -x;
}

template <bool capped>
void check_e2m1(float limit)
{
    float x[8], t[8];
    uint32_t want = 0;
    for (int i = 0; i < 8; i++) {
        x[i] = pick(limit, 0.25f);
        t[i] = fabsf(x[i]);
        want |= uint32_t(mxa_element_encode(mxa_element_e2m1(), x[i])) << 4 * i;
    }
    const uint32_t got = e2m1_word<capped>(t, x);
    expect(got == want, "E2M1 words", got, want);
}

void check_fp8()
{
    const float lo = pick(1e30f, 0x1p-11f), hi = pick(1e30f, 1.0f);
    const uint32_t want =
        mxa_element_encode(mxa_element_e4m3(), lo) | mxa_element_encode(mxa_element_e4m3(), hi) << 8;
    expect(fp8_pair<__NV_E4M3>(lo, hi) == want, "E4M3", lo, hi);
    const uint32_t wide =
        mxa_element_encode(mxa_element_e5m2(), lo) | mxa_element_encode(mxa_element_e5m2(), hi) << 8;
    expect(fp8_pair<__NV_E5M2>(lo, hi) == wide, "E5M2", lo, hi);
}

/* A factor, and a numerator whose quotient is anything or next to half a whole number. */
void check_quotient()
{
    const float g = ldexpf(1 + float(random_bits() % (1 << 23)) * 0x1p-23f, int(random_bits() % 234) - 117);
    const float q = pick(500, 0.5f), x = q * g;
    if (!mxa_f32_is_finite(x))
        return;
    const float exact = x / g, got = copysignf(quotient(x, make_divisor(g)), x);
    /* What vanishes in every code may differ. */
    expect(got == exact || fabsf(exact) < 0x1p-100f, "quotient", got, exact);

    const Bracket r = bracket_reciprocal(g);
    const uint32_t less = fp8_pair<__NV_E4M3>(x * r.less, 0), more = fp8_pair<__NV_E4M3>(x * r.more, 0);
    expect(less != more || less == mxa_element_encode(mxa_element_e4m3(), exact), "FP8 bracket", x, g);
    if (fabsf(x) * r.more < 127.25f) {
        const uint32_t low = mxa_f32_bits(fmaf(x, r.less, round_whole));
        const uint32_t high = mxa_f32_bits(fmaf(x, r.more, round_whole));
        expect(low != high || uint8_t(low) == uint8_t(mxa_round_i8(exact)), "INT8 bracket", x, g);
    }
}

} // namespace

int main()
{
    for (int i = 0; i < rounds; i++) {
        check_e2m1<false>(6.0f);
        check_e2m1<true>(3e38f);
        check_fp8();
        check_quotient();
    }
    printf("%d failures\n", failures);
    return failures != 0;
}

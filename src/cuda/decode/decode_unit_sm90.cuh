/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One unit of keys by one warp: S^T = K Q^T, softmax, O^T += V^T P^T. A lane has the logits of keys lane / 4
 * and lane / 4 + 8 of each slice, for one column of Q (two, if paired): lane % 4 times two.
 */
#ifndef MXA_CUDA_DECODE_UNIT_SM90_CUH
#define MXA_CUDA_DECODE_UNIT_SM90_CUH

#include "cuda/decode/decode_fragments.cuh"
#include "cuda/decode/decode_query_sm90.cuh"

namespace mxa
{

/* P may exceed 1 by this many powers of two before sums are made relative to a larger logit. */
constexpr float lazy_log2 = 8;

/* Largest factor of V in a tile, relative to the unit of the sums. */
constexpr float factor_low = 0.5f, factor_high = 16;

/* Scale bytes of V of a tile lie in ref + 1 .. ref + 15; a new ref leaves room above. */
constexpr int scale_span = 15, scale_room = 2, scale_ref_most = 239;
constexpr int e8m0_bias = 127, f16_bias = 15, e2m1_log2 = 14;
constexpr uint32_t each_byte = 0x01010101u;

/* What a warp carries from unit to unit. sums [channel tile][register] are in units of 2^unit. */
template <class C>
struct Sums {
    float o[C::channel_tiles][4];
    float max[C::lane_columns], sum[C::lane_columns];
    int unit[C::units];
    uint32_t least[C::units]; /* MXFP4: ref + 1 in each byte */
};

/* Logits, then probabilities: [slice][key lane / 4, + 8][column]. */
template <class C, int slices>
struct Scores {
    float x[slices][2][C::lane_columns];
};

struct UnitKeys {
    int key;         /* first key */
    bool edge;       /* some column does not see all of them */
    int first, last; /* keys that some column sees */
};

__device__ __forceinline__ int lane_of()
{
    return int(threadIdx.x) % 32;
}

template <class C>
__device__ __forceinline__ int column_of(int c)
{
    return C::paired ? lane_of() % 4 * 2 + c : lane_of() % 4;
}

__device__ __forceinline__ float power_of_two(int e)
{
    return __uint_as_float(uint32_t(mxa_max(0, mxa_min(254, e + 127))) << 23);
}

template <class C>
__device__ __forceinline__ void clear_sums(Sums<C> &t)
{
    for (auto &tile : t.o)
        for (float &x : tile)
            x = 0;
    for (int c = 0; c < C::lane_columns; c++) {
        t.max[c] = -INFINITY;
        t.sum[c] = 0;
    }
    for (int u = 0; u < C::units; u++) {
        t.unit[u] = 0;
        t.least[u] = each_byte;
    }
}

/* Sums of unit u relative to another power of two. */
template <class C>
__device__ __forceinline__ void change_unit(Sums<C> &t, int u, int unit)
{
    if (t.unit[u] == unit)
        return;
    const float factor = power_of_two(t.unit[u] - unit);
    t.unit[u] = unit;
    for (int tile = 0; tile < C::channel_tiles; tile++)
        if (C::units == 1 || tile / 2 == u)
            for (float &x : t.o[tile])
                x *= factor;
}

/* ---------------------------------------------------------------- scores */

template <class C>
__device__ __forceinline__ void keep(float (&x)[2][C::lane_columns], const float (&acc)[4], float scale_0,
                                     float scale_8)
{
    for (int c = 0; c < C::lane_columns; c++) {
        x[0][c] += acc[c] * scale_0;
        x[1][c] += acc[2 + c] * scale_8;
    }
}

/* MXFP4: a fresh sum for each block of 32 channels, then its scale. */
template <class C>
__device__ __forceinline__ void scores_mxfp4(const uint8_t *k, const uint2 (&q)[C::low_steps],
                                             Scores<C, low_slices> &s)
{
    constexpr int chunks = C::dim / 64;
    for (int slice = 0; slice < low_slices; slice++) {
        const uint8_t *const scales = k + C::k_codes + (slice * MXA_KV_SLICE + lane_of() / 4 * 2) * C::blocks;
        const uint2 pair = C::blocks == 4 ? *reinterpret_cast<const uint2 *>(scales)
                                          : make_uint2(*reinterpret_cast<const uint32_t *>(scales), 0);
        for (int c = 0; c < C::lane_columns; c++)
            s.x[slice][0][c] = s.x[slice][1][c] = 0;
        for (int chunk = 0; chunk < chunks; chunk++) {
            const uint4 words =
                load_words(k + ((slice * chunks + chunk) * 32 + lane_of()) * MXA_KV_LANE_BYTES);
            for (int half = 0; half < 2; half++) {
                float acc[4] = { 0, 0, 0, 0 };
                for (int i = 2 * half; i < 2 * half + 2; i++) {
                    const Fragment f = nibbles_to_f16(word_of(words, i));
                    const uint2 b = q[chunk * 4 + i];
                    multiply_f16(acc, f.a[0], f.a[1], f.a[2], f.a[3], b.x, b.y);
                }
                const int block = chunk * 2 + half;
                const float scale_0 = scale_of_byte(pair.x, block);
                const float scale_8 =
                    C::blocks == 4 ? scale_of_byte(pair.y, block) : scale_of_byte(pair.x, block + 2);
                keep<C>(s.x[slice], acc, scale_0, scale_8);
            }
        }
    }
}

/* The factors of the lane's keys in a slice of INT8 or FP8. */
__device__ __forceinline__ float2 load_factors(const uint8_t *factors, int slice)
{
    return reinterpret_cast<const float2 *>(factors)[slice * 8 + lane_of() / 4];
}

/* A factor whose sign says that its row holds NaN becomes NaN. */
__device__ __forceinline__ float checked_factor(float g)
{
    return g < 0 ? NAN : g;
}

template <class C>
__device__ __forceinline__ void scores_int8(const uint8_t *k, const uint2 (&q)[C::low_steps],
                                            Scores<C, low_slices> &s)
{
    for (int slice = 0; slice < low_slices; slice++) {
        int acc[4] = { 0, 0, 0, 0 };
        for (int step = 0; step < C::low_steps; step++) {
            const uint4 a =
                load_words(k + ((slice * C::low_steps + step) * 32 + lane_of()) * MXA_KV_LANE_BYTES);
            multiply_s8(acc, a.x, a.y, a.z, a.w, q[step].x, q[step].y);
        }
        const float2 g = load_factors(k + C::k_codes, slice);
        for (int c = 0; c < C::lane_columns; c++) {
            s.x[slice][0][c] = float(acc[c]) * checked_factor(g.x);
            s.x[slice][1][c] = float(acc[2 + c]) * checked_factor(g.y);
        }
    }
}

template <class C>
__device__ __forceinline__ void scores_high(const uint8_t *k, const uint2 (&q)[C::high_steps][32],
                                            Scores<C, 1> &s)
{
    float acc[4] = { 0, 0, 0, 0 };
    for (int step = 0; step < C::high_steps; step++) {
        const uint4 a = load_words(k + (step * 32 + lane_of()) * MXA_KV_LANE_BYTES);
        const uint2 b = q[step][lane_of()];
        multiply_bf16(acc, a.x, a.y, a.z, a.w, b.x, b.y);
    }
    for (int c = 0; c < C::lane_columns; c++) {
        s.x[0][0][c] = acc[c];
        s.x[0][1][c] = acc[2 + c];
    }
}

/* ---------------------------------------------------------------- softmax */

/* Logits in base 2 from products; those that a column does not see are -Inf. */
template <class C, int slices>
__device__ __forceinline__ void finish_scores(Scores<C, slices> &s, const float (&factor)[C::lane_columns],
                                              const float (&bias)[C::lane_columns], const UnitKeys &u,
                                              const DecodeShared<C> &shared)
{
    for (int slice = 0; slice < slices; slice++)
        for (int half = 0; half < 2; half++)
            for (int c = 0; c < C::lane_columns; c++) {
                float &x = s.x[slice][half][c];
                x = fmaf(x, factor[c], bias[c]);
                if (u.edge) {
                    const int key = u.key + slice * MXA_KV_SLICE + lane_of() / 4 + half * 8;
                    const int column = column_of<C>(c);
                    x = key >= shared.seen_first[column] && key <= shared.seen_last[column] ? x : -INFINITY;
                }
            }
}

/*
 * Column c's sums become relative to a logit that is larger by more than lazy_log2. Lanes of a column
 * agree.
 */
template <class C>
__device__ __forceinline__ void raise_max(Sums<C> &t, int c, float largest)
{
    for (int lanes = 4; lanes < 32; lanes *= 2)
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, lanes));
    const bool raise = largest > t.max[c] + lazy_log2;
    const float alpha = raise ? exp2_approx(t.max[c] - largest) : 1.0f;
    t.max[c] = raise ? largest : t.max[c];
    t.sum[c] *= alpha;
    for (auto &tile : t.o) {
        tile[c] *= alpha;
        tile[2 + c] *= alpha;
    }
}

/* Logits to probabilities. NaN and +Inf make the sum NaN. */
template <class C, int slices>
__device__ __forceinline__ void softmax(Scores<C, slices> &s, Sums<C> &t)
{
    for (int c = 0; c < C::lane_columns; c++) {
        float largest = -INFINITY;
        for (int slice = 0; slice < slices; slice++)
            largest = fmaxf(largest, fmaxf(s.x[slice][0][c], s.x[slice][1][c]));
        if (__any_sync(~0u, largest > t.max[c] + lazy_log2))
            raise_max(t, c, largest);
        const float max = t.max[c] == -INFINITY ? 0.0f : t.max[c];
        for (int slice = 0; slice < slices; slice++)
            for (int half = 0; half < 2; half++) {
                s.x[slice][half][c] = exp2_approx(s.x[slice][half][c] - max);
                t.sum[c] += s.x[slice][half][c];
            }
    }
}

/* ---------------------------------------------------------------- values */

/* P of eight keys as the B operand has it; the free columns are 0. */
template <class C, bool f16>
__device__ __forceinline__ uint32_t turn(const float (&p)[C::lane_columns])
{
    const float second = C::paired ? p[C::lane_columns - 1] : 0.0f;
    return transpose_matrix(f16 ? pack_f16(p[0], second) : pack_bf16(p[0], second));
}

/* Which of keys 2t, 2t + 1 of a slice, or of its second half, some column sees, as a mask of 16-bit pairs. */
__device__ __forceinline__ uint32_t pair_mask(const UnitKeys &u, int slice, int half)
{
    const int key = u.key + slice * MXA_KV_SLICE + half * 8 + lane_of() % 4 * 2;
    const uint32_t first = key >= u.first && key <= u.last ? 0x0000FFFFu : 0;
    return first | (key + 1 >= u.first && key + 1 <= u.last ? 0xFFFF0000u : 0);
}

/* V in 16 bits. What no column sees is taken as 0, whatever memory holds. */
template <class C, int slices, bool f16>
__device__ __forceinline__ void values_wide(const uint8_t *v, const Scores<C, slices> &s, const UnitKeys &u,
                                            Sums<C> &t)
{
    for (int slice = 0; slice < slices; slice++) {
        const uint32_t b0 = turn<C, f16>(s.x[slice][0]), b1 = turn<C, f16>(s.x[slice][1]);
        for (int tile = 0; tile < C::channel_tiles; tile++) {
            uint4 a =
                load_words(v + ((slice * C::channel_tiles + tile) * 32 + lane_of()) * MXA_KV_LANE_BYTES);
            if (u.edge) {
                const uint32_t low = pair_mask(u, slice, 0), high = pair_mask(u, slice, 1);
                a = make_uint4(a.x & low, a.y & low, a.z & high, a.w & high);
            }
            if (f16)
                multiply_f16(t.o[tile], a.x, a.y, a.z, a.w, b0, b1);
            else
                multiply_bf16(t.o[tile], a.x, a.y, a.z, a.w, b0, b1);
        }
    }
}

/* The unit of sums follows the largest factor of the tile; a marked factor makes the sums NaN. */
template <class C>
__device__ __forceinline__ void fit_factors(const uint8_t *factors, const UnitKeys &u,
                                            float2 (&g)[low_slices], Sums<C> &t)
{
    uint32_t largest = 0;
    for (int slice = 0; slice < low_slices; slice++) {
        g[slice] = load_factors(factors, slice);
        const int key = u.key + slice * MXA_KV_SLICE + lane_of() / 4;
        if (u.edge && (key < u.first || key > u.last))
            g[slice].x = 0;
        if (u.edge && (key + 8 < u.first || key + 8 > u.last))
            g[slice].y = 0;
        largest = max(largest, max(__float_as_uint(g[slice].x), __float_as_uint(g[slice].y)));
    }
    largest = warp_max(largest);
    const float relative = __uint_as_float(largest) * power_of_two(-t.unit[0]);
    if (!(relative >= factor_low && relative <= factor_high)) {
        change_unit(t, 0, int(largest >> 23 & 0xFF) - 127 - 1);
        for (int c = 0; c < C::lane_columns; c++)
            t.sum[c] = largest >= MXA_F32_INF ? NAN : t.sum[c];
    }
    const float unit = power_of_two(-t.unit[0]);
    for (float2 &pair : g)
        pair = make_float2(pair.x * unit, pair.y * unit);
}

/* V in bytes with a factor for each key, which goes into P. */
template <class C>
__device__ __forceinline__ void values_bytes(const uint8_t *v, Scores<C, low_slices> &s, const UnitKeys &u,
                                             Sums<C> &t)
{
    float2 g[low_slices];
    fit_factors(v + C::v_codes, u, g, t);
    for (int slice = 0; slice < low_slices; slice++) {
        for (int c = 0; c < C::lane_columns; c++) {
            s.x[slice][0][c] *= g[slice].x;
            s.x[slice][1][c] *= g[slice].y;
        }
        const uint32_t b0 = turn<C, true>(s.x[slice][0]), b1 = turn<C, true>(s.x[slice][1]);
        for (int tile = 0; tile < C::channel_tiles; tile += 2) {
            const uint4 w =
                load_words(v + ((slice * C::channel_tiles + tile) / 2 * 32 + lane_of()) * MXA_KV_LANE_BYTES);
            const Fragment first = bytes_to_f16(w.x, w.y);
            const Fragment second = bytes_to_f16(w.z, w.w);
            multiply_f16(t.o[tile], first.a[0], first.a[1], first.a[2], first.a[3], b0, b1);
            multiply_f16(t.o[tile + 1], second.a[0], second.a[1], second.a[2], second.a[3], b0, b1);
        }
    }
}

/* Words of scale bytes in a tile: [slice][lane % 4][block] of four keys each. */
template <class C>
constexpr int scale_words = MXA_DECODE_LOW_KEYS *C::blocks / 4;

/* The words of a slice, whatever the number of blocks. */
template <class C>
__device__ __forceinline__ uint4 load_scales(const uint8_t *scales, int slice)
{
    const uint8_t *const at = scales + (slice * MXA_KV_SLICE + lane_of() % 4 * 4) * C::blocks;
    if constexpr (C::blocks == 4)
        return load_words(at);
    const uint2 w = *reinterpret_cast<const uint2 *>(at);
    return make_uint4(w.x, w.y, 0, 0);
}

/* One word's bytes: 0 where no column sees the key. */
template <class C>
__device__ __forceinline__ uint32_t seen_scales(uint32_t w, int word, const UnitKeys &u)
{
    const int slice = word / (4 * C::blocks), t = word / C::blocks % 4;
    uint32_t mask = 0;
    for (int i = 0; i < 4; i++) {
        const int key = u.key + slice * MXA_KV_SLICE + t * 2 + i % 2 + i / 2 * 8;
        mask |= key >= u.first && key <= u.last ? 0xFFu << 8 * i : 0;
    }
    return w & mask;
}

/*
 * A tile whose scales do not fit the refs, or that is not seen as a whole: new refs, and bytes in place that
 * fit them, ref itself where the scale is 0. A block that spreads too far, or is NaN, makes the sums NaN.
 */
template <class C>
__device__ __forceinline__ void refit_scales(uint8_t *scales, const UnitKeys &u, Sums<C> &t)
{
    constexpr int each = scale_words<C> / 32; /* words of a lane, all of block lane % blocks */
    auto *const words = reinterpret_cast<uint32_t *>(scales) + lane_of();
    uint32_t most = 0, smallest = MXA_E8M0_NAN;
    __syncwarp();
    for (int k = 0; k < each; k++) {
        words[k * 32] = seen_scales<C>(words[k * 32], lane_of() + k * 32, u);
#pragma unroll 1
        for (uint32_t w = words[k * 32]; w != 0; w >>= 8) {
            most = max(most, w & 0xFF);
            smallest = w & 0xFF ? min(smallest, w & 0xFF) : smallest;
        }
    }
    for (int lanes = C::blocks; lanes < 32; lanes *= 2) {
        most = max(most, __shfl_xor_sync(~0u, most, lanes));
        smallest = min(smallest, __shfl_xor_sync(~0u, smallest, lanes));
    }
    const bool wide = int(most) - int(smallest) > scale_span - 1 - scale_room;
    const int wanted = int(most) - scale_span + (wide ? 0 : scale_room);
    const uint32_t ref = uint32_t(mxa_decode_max(0, mxa_decode_min(wanted, scale_ref_most)));
    const bool bad = most == MXA_E8M0_NAN || (most > 0 && smallest <= ref);
    for (int k = 0; k < each; k++) {
        uint32_t w = words[k * 32];
        for (int i = 0; i < 4; i++)
            w += (w >> 8 * i & 0xFF) == 0 ? ref << 8 * i : 0;
        words[k * 32] = w;
    }
    fence_async_proxy(); /* a bulk copy writes there next */
    __syncwarp();
    for (int block = 0; block < C::blocks; block++) {
        const int of_block = int(__shfl_sync(~0u, ref, block));
        t.least[block] = uint32_t(of_block + 1) * each_byte;
        change_unit(t, block, of_block + f16_bias - e8m0_bias + e2m1_log2);
    }
    const bool any_bad = __any_sync(~0u, bad);
    for (int c = 0; c < C::lane_columns; c++)
        t.sum[c] = any_bad ? NAN : t.sum[c];
}

template <class C>
__device__ __forceinline__ void fit_scales(uint8_t *scales, const UnitKeys &u, Sums<C> &t)
{
    uint32_t outside = u.edge ? ~0u : 0;
    for (int slice = 0; slice < low_slices; slice++) {
        const uint4 w = load_scales<C>(scales, slice);
        for (int block = 0; block < C::blocks; block++) {
            const uint32_t above = word_of(w, block) - t.least[block];
            outside |= above | (above + each_byte);
        }
    }
    if (__any_sync(~0u, (outside & 0xF0F0F0F0u) != 0))
        refit_scales(scales, u, t);
}

/* V in MXFP4: the scale of a key and block goes into P, as a power of two in the high byte of fp16. */
template <class C>
__device__ __forceinline__ void values_mxfp4(uint8_t *v, const Scores<C, low_slices> &s, const UnitKeys &u,
                                             Sums<C> &t)
{
    constexpr int chunks = C::dim / 64;
    fit_scales(v + C::v_codes, u, t);
    for (int slice = 0; slice < low_slices; slice++) {
        const uint32_t p0 = turn<C, true>(s.x[slice][0]), p1 = turn<C, true>(s.x[slice][1]);
        const uint4 scales = load_scales<C>(v + C::v_codes, slice);
        for (int block = 0; block < C::blocks; block++) {
            const uint32_t w = word_of(scales, block) * 4 - (t.least[block] - each_byte) * 4;
            const uint32_t b0 = multiply_pairs_f16(p0, __byte_perm(w, 0, 0x1404));
            const uint32_t b1 = multiply_pairs_f16(p1, __byte_perm(w, 0, 0x3424));
            const uint2 codes = reinterpret_cast<const uint2 *>(
                v + ((slice * chunks + block / 2) * 32 + lane_of()) * MXA_KV_LANE_BYTES)[block % 2];
            const Fragment first = nibbles_to_f16(codes.x), second = nibbles_to_f16(codes.y);
            multiply_f16(t.o[block * 2], first.a[0], first.a[2], first.a[1], first.a[3], b0, b1);
            multiply_f16(t.o[block * 2 + 1], second.a[0], second.a[2], second.a[1], second.a[3], b0, b1);
        }
    }
}

} // namespace mxa

#endif

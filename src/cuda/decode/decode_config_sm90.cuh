/* SPDX-License-Identifier: Apache-2.0 */
/* What a decode kernel of sm_90a is made for, its parameters, and its shared memory. */
#ifndef MXA_CUDA_DECODE_CONFIG_SM90_CUH
#define MXA_CUDA_DECODE_CONFIG_SM90_CUH

#include "cuda/decode/decode_row.cuh"
#include "cuda/decode/decode_schedule.h"

namespace mxa
{

enum class Keys { mxfp4, int8 };
enum class Values { f16, bf16, int8, mxfp4 };

constexpr int decode_warps = 8, decode_threads = 32 * decode_warps;
constexpr int decode_pairs_most = 1024; /* sequences times passes */
constexpr int low_slices = MXA_DECODE_LOW_KEYS / MXA_KV_SLICE;
constexpr int two_stages_most = 160 << 10; /* bytes of shared memory */
constexpr float e2m1_unit = 0x1p14f;       /* of E2M1 codes as fp16: decode_fragments.cuh */
constexpr float e8m0_unit = 2.0f / 3;      /* of scales of K: they are 1.5 times the power of two */
static_assert(decode_warps == MXA_DECODE_COLUMNS, "a warp prepares and stores a column");

/* paired: all eight columns of products are queries; else four are, at the even ones. */
template <Keys keys_, Values values_, int dim_, bool paired_>
struct Config {
    static constexpr Keys keys = keys_;
    static constexpr Values values = values_;
    static constexpr int dim = dim_;
    static constexpr bool paired = paired_;
    static constexpr int columns = paired ? 8 : 4, lane_columns = paired ? 2 : 1;
    static constexpr bool wide_values = values == Values::f16 || values == Values::bf16;
    static constexpr int channel_tiles = dim / 16, high_steps = dim / 16;
    static constexpr int low_steps = keys == Keys::int8 ? dim / 32 : dim / 16;
    static constexpr int blocks = dim / MXA_MX_BLOCK;
    static constexpr int units = values == Values::mxfp4 ? blocks : 1; /* exponents of sums */

    static constexpr int high_bytes = MXA_KV_SLICE * dim * 2; /* K or V of a slice in 16 bits */
    static constexpr int k_row = keys == Keys::int8 ? dim : dim / 2, v_row = wide_values ? 2 * dim
                                                                             : values == Values::mxfp4
                                                                                 ? dim / 2
                                                                                 : dim;
    static constexpr int k_codes = MXA_DECODE_LOW_KEYS * k_row, v_codes = MXA_DECODE_LOW_KEYS * v_row;
    static constexpr int k_extra = keys == Keys::int8 ? 4 : blocks;
    static constexpr int v_extra = wide_values ? 0 : values == Values::mxfp4 ? blocks : 4;
    static constexpr int k_bytes = k_codes + MXA_DECODE_LOW_KEYS * k_extra;
    static constexpr int v_bytes = v_codes + MXA_DECODE_LOW_KEYS * v_extra;
    static constexpr int k_stage = k_bytes > high_bytes ? k_bytes : high_bytes;
    static constexpr int v_stage = v_bytes > high_bytes ? v_bytes : high_bytes;
    static constexpr int stages = 2 * decode_warps * (k_stage + v_stage) <= two_stages_most ? 2 : 1;
    static_assert(k_stage % 16 == 0 && v_stage % 16 == 0, "bulk copies");
};

struct DecodeParams {
    mxa_decode_params d;
    mxa_decode_span span; /* windows */
    int batch, heads_kv, passes, segments_wanted, segment_stride;
    unsigned page_tiles, page_reciprocal; /* tiles of a page, and 2^32 / page_tiles rounded up */
    bool rotate_q, q_fp8, pv_f16;
    float *parts; /* [pair][heads_kv][segment_stride][columns * (dim + 2)] */
};

/* One segment of the keys of a pass and a key/value head; segment < 0: there is none. */
struct Item {
    int pair, b, h_kv, segment; /* pair: b * passes + number of the pass */
    int unit_first, unit_end, q_offset;
    mxa_decode_pass pass;
    mxa_decode_keys keys;
};

template <class C>
struct DecodeShared {
    alignas(128) uint8_t ring[decode_warps][C::stages][C::k_stage + C::v_stage];
    union {
        float o[decode_warps][4][C::dim + 8]; /* of the warps, four columns at a time */
        struct {
            float weights[MXA_DECODE_COLUMNS][MXA_DECODE_SEGMENTS];
            float4 sums[2][MXA_DECODE_COLUMNS * C::dim / 4]; /* of every second part */
        } parts;
        RowShared row;
    };
    uint2 q_low[C::low_steps][32], q_high[C::high_steps][32]; /* B operands */
    float low_factor[MXA_DECODE_COLUMNS], high_factor[MXA_DECODE_COLUMNS], bias[MXA_DECODE_COLUMNS];
    int seen_first[MXA_DECODE_COLUMNS], seen_last[MXA_DECODE_COLUMNS];
    float max[decode_warps][MXA_DECODE_COLUMNS], sum[decode_warps][MXA_DECODE_COLUMNS];
    float sum_of_parts[MXA_DECODE_COLUMNS];
    Item items[3];
    uint64_t barriers[decode_warps][C::stages][2];
    uint32_t warp_units[decode_warps];
    uint32_t scan[decode_pairs_most + 1];
    uint32_t units_end; /* where the next block's begin */
    uint32_t last;
    bool careful[MXA_DECODE_COLUMNS];
};

} // namespace mxa

#endif

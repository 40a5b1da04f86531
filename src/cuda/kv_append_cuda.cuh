/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows behind the device's lengths go to the pages that the device's tables name. A length grows once all
 * blocks of its sequence have read it; the mean of smooth-K's PREFIX is made by the last block that has
 * stored its rows of the first tile. So an append of one token is one launch.
 */
#ifndef MXA_CUDA_KV_APPEND_CUDA_CUH
#define MXA_CUDA_KV_APPEND_CUDA_CUH

#include "cuda/kv_lanes_cuda.cuh"

namespace mxa
{

constexpr int kv_threads = 128, kv_warps = kv_threads / warp_width;

/* What append_block has in registers of rows of 64, 128 and 256 channels. */
MXA_HD inline int kv_channels_of_lane(const mxa_cuda_kv &kv)
{
    const int dim = kv.tiles.part[MXA_LOW][MXA_KV_V].dim;
    for (int copy = 0; copy < MXA_COPIES; copy++)
        for (int operand = 0; operand < MXA_KV_OPERANDS; operand++)
            if (kv.part[copy][operand].format != MXA_FORMAT_NONE && kv.tiles.part[copy][operand].dim != dim)
                return 0;
    return dim == 64 || dim == 128 || dim == 256 ? dim / warp_width : 0;
}

struct KvShared {
    KvRow rows[kv_warps];
    bool is_last;
};

__device__ inline unsigned blocks_of_sequence(const mxa_cuda_kv_append &a)
{
    return unsigned(a.spans * a.kv.heads_kv);
}

/* What a block works on: tokens of one page of a sequence and head. */
struct KvSpan {
    int64_t b, h;
    int64_t length, count;    /* of the sequence: before, and what comes */
    int64_t first, end, page; /* tokens */
};

__device__ inline KvSpan find_kv_span(const mxa_cuda_kv_append &a, unsigned block)
{
    const unsigned span = block % unsigned(a.spans), rest = block / unsigned(a.spans);
    const int64_t i = rest / unsigned(a.kv.heads_kv);
    KvSpan s;
    s.b = a.first + i;
    s.h = rest % unsigned(a.kv.heads_kv);
    s.length = a.kv.lengths[s.b];
    s.count = a.counts[i];
    s.page = s.length / a.kv.page_tokens + span;
    s.first = mxa_max(s.page * a.kv.page_tokens, s.length);
    s.end = mxa_min((s.page + 1) * a.kv.page_tokens, s.length + s.count);
    return s;
}

__device__ inline uint8_t *kv_page(const mxa_cuda_kv &kv, int copy, int64_t b, int64_t page)
{
    return reinterpret_cast<uint8_t *>(kv.tables[copy][b * kv.table_pages + page]);
}

/* Which rows of each token a span stores: bit copy * MXA_KV_OPERANDS + operand. */
__device__ inline unsigned find_targets(const mxa_cuda_kv_append &a, const KvSpan &s)
{
    unsigned targets = 0;
    for (int copy = 0; copy < MXA_COPIES; copy++) {
        const bool stores = a.copies[copy] && a.kv.tiles.head_bytes[copy] > 0;
        const bool has_page = stores && kv_page(a.kv, copy, s.b, s.page);
        for (int operand = 0; operand < MXA_KV_OPERANDS; operand++)
            if (has_page && a.kv.part[copy][operand].format != MXA_FORMAT_NONE)
                targets |= 1u << (copy * MXA_KV_OPERANDS + operand);
    }
    return targets;
}

/* The i-th bit that is set. */
__device__ inline int bit_number(unsigned bits, int i)
{
    int bit = 0;
    while (!(bits >> bit & 1) || i-- > 0)
        bit++;
    return bit;
}

/* As mxa_kv_is_unread. */
__device__ inline bool is_unread(const mxa_cuda_kv &kv, int copy, int operand, int64_t token)
{
    return copy == MXA_LOW && kv.part[MXA_HIGH][operand].format != MXA_FORMAT_NONE && token < kv.unread_end;
}

/* One of the rows of token number i of the span. */
template <int each>
__device__ inline void store_token(const mxa_cuda_kv_append &a, const KvSpan &s, int target, int i,
                                   KvRow &row, int lane)
{
    const int copy = target / MXA_KV_OPERANDS, operand = target % MXA_KV_OPERANDS;
    const int64_t token = s.first + i;
    const int page_row = int(token - s.page * a.kv.page_tokens);
    const KvTarget to = { a.kv.part[copy][operand], a.kv.tiles.part[copy][operand],
                          kv_page(a.kv, copy, s.b, s.page) + mxa_kv_tile_at(&a.kv.tiles, copy, s.h, page_row),
                          page_row % a.kv.tiles.tokens };
    const mxa_tensor &x = operand == MXA_KV_K ? a.k : a.v;
    const int64_t offset = s.b * x.stride[0] + s.h * x.stride[1] + (token - s.length) * x.stride[2];
    const int64_t head = s.b * a.kv.heads_kv + s.h;
    const float *const mean = to.part.smooth ? a.kv.mean + head * to.at.dim : nullptr;
    const bool unread = is_unread(a.kv, copy, operand, token);
    if constexpr (each > 0)
        if (!unread && store_lanes<each>(to, x, offset, mean, lane))
            return;
    store_row(to, x, offset, mean, unread, row, lane);
}

template <int each>
__device__ inline void store_span(const mxa_cuda_kv_append &a, const KvSpan &s, KvShared &shared)
{
    const unsigned targets = s.first < s.end ? find_targets(a, s) : 0;
    const int lane = int(threadIdx.x) % warp_width, warp = int(threadIdx.x) / warp_width;
    const int rows = int(s.end - s.first);
    int n = 0;
    for (unsigned left = targets; left; left &= left - 1)
        n++;
    for (int job = warp; job < rows * n; job += kv_warps)
        store_token<each>(a, s, bit_number(targets, job % n), job / n, shared.rows[warp], lane);
}

/* Channel d of K in the high row of a token. */
__device__ inline float high_channel(const mxa_cuda_kv &kv, int64_t b, int64_t h, int token, int d)
{
    const mxa_kv_tile_part &at = kv.tiles.part[MXA_HIGH][MXA_KV_K];
    const mxa_format format = kv.part[MXA_HIGH][MXA_KV_K].format;
    const int row = token % kv.page_tokens;
    const uint8_t *const codes = kv_page(kv, MXA_HIGH, b, token / kv.page_tokens) +
                                 mxa_kv_tile_at(&kv.tiles, MXA_HIGH, h, row) +
                                 mxa_kv_code_at(&at, row % kv.tiles.tokens, d);
    if (format == MXA_FORMAT_F32)
        return load_fresh(reinterpret_cast<const float *>(codes) + d);
    const uint16_t half = load_fresh(reinterpret_cast<const unsigned short *>(codes) + (at.bits ? 0 : d));
    return format == MXA_FORMAT_F16 ? mxa_f32_from_f16(half) : mxa_f32_from_bf16(half);
}

/* Of the first tile of keys as they lie in their high rows: cache/prefix_mean.c. */
__device__ inline float channel_mean(const mxa_cuda_kv &kv, int64_t b, int64_t h, int d)
{
    double sum = 0;
    int count = 0;
    for (int token = 0; token < MXA_TILE; token++) {
        const float x = high_channel(kv, b, h, token, d);
        if (mxa_f32_is_finite(x)) {
            sum += double(x);
            count++;
        }
    }
    return count ? float(sum / count) : 0.0f;
}

__device__ inline void make_mean(const mxa_cuda_kv &kv, int64_t b, int64_t h)
{
    const int dim = kv.tiles.part[MXA_HIGH][MXA_KV_K].dim;
    for (int d = int(threadIdx.x); d < dim; d += kv_threads)
        kv.mean[(b * kv.heads_kv + h) * dim + d] = channel_mean(kv, b, h, d);
}

/* Once all rows of the first tile are stored, the last block to come makes its mean. */
__device__ inline void end_first_tile(const mxa_cuda_kv_append &a, int64_t b, KvShared &shared)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        order_memory();
        shared.is_last = draw_ticket(a.kv.tickets + a.kv.batch + b) == blocks_of_sequence(a) - 1;
        order_memory();
    }
    __syncthreads();
    if (!shared.is_last)
        return;
    if (threadIdx.x == 0)
        a.kv.tickets[a.kv.batch + b] = 0;
    for (int64_t h = 0; h < a.kv.heads_kv; h++)
        make_mean(a.kv, b, h);
}

/* The last block that has read the length lets it grow. All threads of the block have read it. */
__device__ inline void draw_and_grow(const mxa_cuda_kv_append &a, const KvSpan &s)
{
    if (draw_ticket(a.kv.tickets + s.b) != blocks_of_sequence(a) - 1)
        return;
    a.kv.tickets[s.b] = 0;
    if (a.lengths)
        a.kv.lengths[s.b] = s.length + s.count;
}

/* each: channels of a lane, for rows that are in registers; 0: none are. */
template <int each>
__device__ inline void append_block(const mxa_cuda_kv_append &a, unsigned block, KvShared &shared)
{
    const KvSpan s = find_kv_span(a, block);
    const bool ends_tile = a.means && s.length < MXA_TILE && s.length + s.count >= MXA_TILE;
    __syncthreads();
    if (threadIdx.x == kv_threads - 1) /* of the last warp, which has the fewest rows */
        draw_and_grow(a, s);
    store_span<each>(a, s, shared);
    if (ends_tile)
        end_first_tile(a, s.b, shared);
}

} // namespace mxa

#endif

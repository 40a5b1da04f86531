/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Launches the prefill kernel on operands that are quantized already, through a C interface for
 * prefill_bench.py. tests/cuda compiles this file too: it names every instance of the kernel.
 */
#include "cuda/sm90/prefill_sm90.cuh"

#include <math.h>

using namespace mxa;

namespace
{

constexpr int head_dim = 128;
constexpr int bf16_bytes = 2;
constexpr int far = 1 << 30;       /* beyond every distance of a problem that fits a GPU */
constexpr int64_t l2_bytes = 40e6; /* of K and V that the groups of heads may take */
constexpr int slice_bytes = 128;   /* of a row in one TMA box: the swizzle's width */

struct Tensor {
    const void *data; /* [batch][heads][length][head_dim], contiguous */
    int batch, heads, length;
};

/* box_rows by 128 bytes a copy; rows beyond the length arrive as zeros. */
CUresult make_map(CUtensorMap *map, const Tensor &t, int element_bytes, int box_rows)
{
    const cuuint64_t row_bytes = head_dim * element_bytes;
    const cuuint64_t sizes[4] = { head_dim, cuuint64_t(t.length), cuuint64_t(t.heads), cuuint64_t(t.batch) };
    const cuuint64_t strides[3] = { row_bytes, row_bytes * t.length, row_bytes * t.length * t.heads };
    const cuuint32_t box[4] = { cuuint32_t(slice_bytes / element_bytes), cuuint32_t(box_rows), 1, 1 };
    const cuuint32_t steps[4] = { 1, 1, 1, 1 };
    return cuTensorMapEncodeTiled(
        map, element_bytes == bf16_bytes ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_UINT8,
        4, const_cast<void *>(t.data), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
        CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

/* Query heads whose K and V stay in the L2 cache together; divides heads. */
int heads_in_group(int heads, int heads_kv, int kv_len, bool has_low)
{
    const int k_bytes = has_low ? 1 : bf16_bytes;
    const int64_t fit = l2_bytes / (int64_t(kv_len) * head_dim * (k_bytes + bf16_bytes));
    int group = int(min(max(fit, int64_t(1)), int64_t(heads_kv)));
    while (heads_kv % group)
        group--;
    return group * (heads / heads_kv);
}

template <class T>
int launch(const PrefillParams &p, cudaStream_t stream)
{
    constexpr int smem_bytes = prefill_smem_bytes<T>;
    int device, ctas;
    cudaError_t err = cudaGetDevice(&device);
    if (!err)
        err = cudaDeviceGetAttribute(&ctas, cudaDevAttrMultiProcessorCount, device);
    if (!err)
        err = cudaFuncSetAttribute(prefill_sm90<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, smem_bytes);
    if (!err)
        err = cudaMemsetAsync(p.next_item, 0, sizeof *p.next_item, stream);
    if (err)
        return err;
    prefill_sm90<T><<<ctas, prefill_threads, smem_bytes, stream>>>(p);
    return cudaGetLastError();
}

} // namespace

/* The low operands, in the order of MODES in prefill_bench.py. */
enum probe_mode { PROBE_BF16, PROBE_INT8, PROBE_FP8, PROBE_FP8_E4M3, PROBE_FP8_RAW };

/* Device pointers to contiguous tensors; the fields are those of PrefillParams. */
struct probe_args {
    const void *q, *k, *v;     /* bf16 */
    const void *q_low, *k_low; /* 8-bit codes, or NULL in PROBE_BF16 */
    const float *gq, *gk, *bias_log2;
    void *out;
    float *lse;
    int *counter;
    void *stream;
    int batch, heads, heads_kv, q_len, kv_len;
    int window_left, window_right, diag_window, sink_window;
    int mode;
    float softmax_scale;
};

/* 0, or the CUresult or cudaError_t of the step that failed. The last query stands on the last key. */
extern "C" int mxa_prefill_probe(const probe_args *a)
{
    const bool has_low = a->mode != PROBE_BF16;
    const Tensor q = { a->q, a->batch, a->heads, a->q_len }, k = { a->k, a->batch, a->heads_kv, a->kv_len };
    const Tensor v = { a->v, a->batch, a->heads_kv, a->kv_len };
    PrefillParams p{};
    CUresult err = make_map(&p.q_high, q, bf16_bytes, rows);
    if (!err)
        err = make_map(&p.k_high, k, bf16_bytes, tile);
    if (!err)
        err = make_map(&p.v, v, bf16_bytes, tile);
    if (!err && has_low)
        err = make_map(&p.q_low, { a->q_low, q.batch, q.heads, q.length }, 1, rows);
    if (!err && has_low)
        err = make_map(&p.k_low, { a->k_low, k.batch, k.heads, k.length }, 1, tile);
    if (err)
        return err;

    p.gq = a->gq;
    p.gk = a->gk;
    p.bias_log2 = a->bias_log2;
    p.out = a->out;
    p.out_stride_s = head_dim;
    p.out_stride_h = p.out_stride_s * a->q_len;
    p.out_stride_b = p.out_stride_h * a->heads;
    p.lse = a->lse;
    p.next_item = a->counter;
    p.scale_log2 = a->softmax_scale * float(M_LOG2E);
    p.heads = a->heads;
    p.heads_kv = a->heads_kv;
    p.heads_per_kv = a->heads / a->heads_kv;
    p.q_len = a->q_len;
    p.kv_len = a->kv_len;
    p.q_offset = a->kv_len - a->q_len;
    p.window_left = a->window_left;
    p.window_right = a->window_right;
    p.diag_window = has_low ? a->diag_window : 0;
    p.sink_window = has_low ? a->sink_window : 0;
    p.far = far;
    p.heads_in_group = heads_in_group(a->heads, a->heads_kv, a->kv_len, has_low);
    p.q_tile_first = tile_of(p.q_offset);
    p.q_tiles = tile_of(p.q_offset + p.q_len - 1) - p.q_tile_first + 1;
    p.k_tiles = tile_of(p.kv_len - 1) + 1;
    p.items = a->batch * a->heads * p.q_tiles;

    const cudaStream_t stream = static_cast<cudaStream_t>(a->stream);
    switch (a->mode) {
    case PROBE_BF16: return launch<Dim128Bf16<Low::none>>(p, stream);
    case PROBE_INT8: return launch<Dim128Bf16<Low::int8>>(p, stream);
    case PROBE_FP8: return launch<Dim128Bf16<Low::e4m3_e5m2>>(p, stream);
    case PROBE_FP8_E4M3: return launch<Dim128Bf16<Low::e4m3_e4m3>>(p, stream);
    case PROBE_FP8_RAW: return launch<Dim128Bf16<Low::e4m3_e5m2, true>>(p, stream);
    }
    return cudaErrorInvalidValue;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The quantiser's host side: which kernels make the copies, and from where each factor comes. */
#include <string.h>

#include "cuda/common/span_cuda.cuh"
#include "cuda/quantize_params.h"
#include "format/format.h"
#include "format/mx_scale.h"
#include "format/second_level.h"

using namespace mxa;

namespace
{

constexpr int64_t work_unit = 128; /* bytes: the parts of work start on one */
constexpr unsigned no_block = ~0u; /* no block holds NaN or Inf */

bool has_sequences(const mxa_cuda_rows &rows)
{
    return rows.sequences != nullptr;
}

int64_t region_count(const mxa_cuda_rows &rows, mxa_level level)
{
    switch (level) {
    case MXA_LEVEL_TENSOR: return 1;
    case MXA_LEVEL_HEAD: return rows.n_sequences * rows.x.shape[1];
    case MXA_LEVEL_TOKEN_BLOCK: return rows.n_blocks;
    case MXA_LEVEL_TOKEN: return rows.n_rows;
    default: return 0;
    }
}

/* Of the factors of a copy that is written finer than its level: they need a place of their own. */
int64_t region_bytes(const mxa_cuda_rows &rows, const mxa_cuda_copy &copy)
{
    const bool finer = copy.copy.level != MXA_LEVEL_NONE && copy.g_written != copy.copy.level;
    const int64_t count = finer ? region_count(rows, copy.copy.level) : 0;
    return mxa_round_up(count * int64_t(sizeof(float)), work_unit);
}

bool folds(mxa_cuda_form form)
{
    return form == MXA_CUDA_E5M2 || form == MXA_CUDA_E4M3;
}

/* What the kernels need to know of a format. */
void describe_format(const mxa_code_spec &spec, QuantCopy &c)
{
    c.format = spec.info->format;
    c.element_bits = spec.info->element_bits;
    c.block = spec.info->block;
    c.is_mx = mxa_format_is_mx(spec.info);
    c.element = mxa_element_of(spec.info->format);
    c.threshold = mxa_mx_threshold(c.element, spec.rule);
    c.rounds_up = spec.rule != MXA_RULE_FLOOR;
    c.nvfp4 = spec.nvfp4;
    c.divisor = mxa_g_divisor(spec.info);
}

QuantCopy describe_copy(const mxa_cuda_rows &rows, const mxa_cuda_copy &from, int64_t *n_bad)
{
    const mxa_copy &copy = from.copy;
    const bool by_token = copy.axis == MXA_AXIS_TOKEN;
    QuantCopy c{};
    describe_format(copy.spec, c);
    c.form = copy.spec.info->quantized ? from.form : MXA_CUDA_CODES; /* plain ones are their own form */
    c.axis = copy.axis;
    c.layout = copy.layout;
    c.rotate = copy.rotate;
    c.mean = copy.mean;
    c.codes = copy.out.codes;
    c.scales = copy.out.scales;
    c.nonfinite_tiles = copy.out.nonfinite_tiles;
    c.row_bytes = from.row_bytes;
    c.scale_cols = mxa_scale_cols(copy.spec.info, rows.x.shape[by_token ? 2 : 3]);
    c.matrix_scale_bytes = mxa_layout_bytes(copy.layout, rows.x.shape[by_token ? 3 : 2], c.scale_cols);
    c.level = copy.level;
    c.read_level = copy.level;
    c.n_bad = reinterpret_cast<unsigned long long *>(n_bad);
    if (copy.level == MXA_LEVEL_NONE ? folds(c.form) : from.g_written != copy.level) {
        c.g_write = copy.out.g;
        c.write_level = from.g_written;
    }
    return c;
}

/* Both are coded from the same values. */
bool same_steps(const mxa_copy &a, const mxa_copy &b)
{
    return a.rotate == b.rotate && a.mean == b.mean;
}

QuantParams describe(const mxa_cuda_rows &rows, mxa_nonfinite policy, int n, const mxa_cuda_copy *copies,
                     const mxa_cuda_bias *bias, int64_t *n_bad)
{
    QuantParams p{};
    p.rows = rows;
    p.sanitize = policy == MXA_NONFINITE_SANITIZE;
    p.same_steps = n < 2 || same_steps(copies[0].copy, copies[1].copy);
    p.n = n;
    for (int c = 0; c < n; c++)
        p.copies[c] = describe_copy(rows, copies[c], n_bad ? n_bad + c : nullptr);
    if (bias)
        p.bias = *bias;
    return p;
}

/* ---------------------------------------------------------------- factors */

/* The bits of the largest magnitudes become factors. */
__global__ void finish_factors(float *g, int64_t n, float divisor, unsigned nvfp4)
{
    const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < n)
        g[i] = mxa_second_level(divisor, nvfp4, g[i]);
}

struct Queue {
    QuantParams p;
    bool pieces; /* the fast kernels fit */
    mxa_cuda_chain *chain;
    char *work;

    /* Of a copy: scans and finish_factors stand between the kernels of the chain. */
    cudaStream_t stream() const
    {
        return in_order(chain);
    }
};

mxa_status copy_factors(float *to, const float *from, int64_t n, cudaStream_t stream)
{
    if (n == 0 || to == from)
        return MXA_OK;
    return mxa_cuda_check(cudaMemcpyAsync(to, from, size_t(n) * sizeof *to, cudaMemcpyDeviceToDevice, stream),
                          "given factors: cudaMemcpyAsync");
}

/* Given factors are read where they are; out.g gets them by a copy, or by the kernel in its numbering. */
mxa_status read_given(const Queue &q, const mxa_cuda_copy &copy, QuantCopy &c)
{
    c.g_read = copy.copy.g_given;
    c.read_by_tensor_row = has_sequences(q.p.rows) && copy.copy.level == MXA_LEVEL_TOKEN;
    if (c.read_by_tensor_row) {
        c.g_write = copy.copy.out.g;
        c.write_level = copy.g_written;
    }
    if (c.g_write)
        return MXA_OK;
    return copy_factors(copy.copy.out.g, c.g_read, region_count(q.p.rows, copy.copy.level), q.stream());
}

/* A scan puts factors into out.g, or into work where out.g is finer. */
mxa_status compute_factors(Queue &q, const mxa_cuda_copy &copy, int i)
{
    QuantCopy &c = q.p.copies[i];
    float *const g = c.g_write ? reinterpret_cast<float *>(q.work) : copy.copy.out.g;
    q.work += region_bytes(q.p.rows, copy);
    c.g_read = g;
    const int64_t n = region_count(q.p.rows, copy.copy.level);
    if (n == 0)
        return MXA_OK;
    const mxa_status status =
        mxa_cuda_check(cudaMemsetAsync(g, 0, size_t(n) * sizeof *g, q.stream()), "factors: cudaMemsetAsync");
    if (status != MXA_OK)
        return status;
    const QuantScan scan = { reinterpret_cast<unsigned *>(g), nullptr };
    if (q.p.rows.n_blocks > 0) {
        if (q.pieces)
            scan_by_pieces(q.p, scan, i, q.chain);
        else
            scan_by_any(q.p, scan, i, q.stream());
    }
    constexpr int threads = 256;
    finish_factors<<<unsigned((n + threads - 1) / threads), threads, 0, q.stream()>>>(g, n, c.divisor,
                                                                                      c.nvfp4);
    return mxa_cuda_launched("finish_factors");
}

/* The piece kernel computes these itself. */
bool computed_on_the_way(const Queue &q, mxa_level level)
{
    return q.pieces && (level == MXA_LEVEL_TOKEN || level == MXA_LEVEL_TOKEN_BLOCK);
}

mxa_status find_factors(Queue &q, const mxa_cuda_copy &copy, int i)
{
    QuantCopy &c = q.p.copies[i];
    if (copy.copy.level == MXA_LEVEL_NONE)
        return MXA_OK;
    if (copy.copy.g_given)
        return read_given(q, copy, c);
    if (!computed_on_the_way(q, copy.copy.level))
        return compute_factors(q, copy, i);
    c.g_write = copy.copy.out.g;
    c.write_level = copy.g_written;
    return MXA_OK;
}

/* ---------------------------------------------------------------- the other steps */

/* Padding of scale bytes, counts, and the tiles that a kernel only marks. */
mxa_status clear_outputs(const Queue &q, const mxa_cuda_copy *copies, int64_t *n_bad)
{
    mxa_status status = MXA_OK;
    if (n_bad && q.p.n > 0)
        status = mxa_cuda_check(cudaMemsetAsync(n_bad, 0, size_t(q.p.n) * sizeof *n_bad, q.stream()),
                                "n_bad: cudaMemsetAsync");
    for (int i = 0; i < q.p.n && status == MXA_OK; i++) {
        const QuantCopy &c = q.p.copies[i];
        if (c.nonfinite_tiles && !copies[i].tiles_are_zero)
            status =
                mxa_cuda_check(cudaMemsetAsync(c.nonfinite_tiles, 0, size_t(q.p.rows.n_blocks), q.stream()),
                               "nonfinite_tiles: cudaMemsetAsync");
        const int64_t bytes = q.p.rows.x.shape[0] * q.p.rows.x.shape[1] * c.matrix_scale_bytes;
        if (status == MXA_OK && c.layout != MXA_LAYOUT_ROW && c.form == MXA_CUDA_CODES && c.block &&
            bytes > 0)
            status = mxa_cuda_check(cudaMemsetAsync(copies[i].copy.out.scales, 0, size_t(bytes), q.stream()),
                                    "scales: cudaMemsetAsync");
    }
    return status;
}

mxa_status fail_nonfinite(const mxa_cuda_rows &rows, unsigned block)
{
    const int64_t per_matrix = mxa_token_blocks(rows.x.shape[2]), matrix = block / per_matrix;
    const int64_t first = block % per_matrix * MXA_TILE;
    return mxa_fail(
        MXA_ERR_NONFINITE,
        "x: NaN or Inf, maybe by overflow of mean or rotation, in batch %lld, head %lld, tokens %lld "
        "to %lld; policy ERROR allows none",
        (long long)(matrix / rows.x.shape[1]), (long long)(matrix % rows.x.shape[1]), (long long)first,
        (long long)(mxa_min(first + MXA_TILE, rows.x.shape[2]) - 1));
}

/* MXA_NONFINITE_ERROR: look at everything, and wait for the answer. */
mxa_status check_finite(const Queue &q)
{
    unsigned *const found = reinterpret_cast<unsigned *>(q.work);
    unsigned first_bad = no_block;
    mxa_status status =
        mxa_cuda_check(cudaMemsetAsync(found, 0xFF, sizeof *found, q.stream()), "scan: cudaMemsetAsync");
    if (status != MXA_OK)
        return status;
    for (int c = 0; c < (q.p.same_steps ? 1 : q.p.n); c++) {
        if (q.pieces)
            scan_by_pieces(q.p, { nullptr, found }, c, q.chain);
        else
            scan_by_any(q.p, { nullptr, found }, c, q.stream());
    }
    status = mxa_cuda_launched("scan");
    if (status == MXA_OK)
        status = mxa_cuda_check(
            cudaMemcpyAsync(&first_bad, found, sizeof first_bad, cudaMemcpyDeviceToHost, q.stream()),
            "scan: cudaMemcpyAsync");
    if (status == MXA_OK)
        status = mxa_cuda_check(cudaStreamSynchronize(q.stream()), "scan: cudaStreamSynchronize");
    return status == MXA_OK && first_bad != no_block ? fail_nonfinite(q.p.rows, first_bad) : status;
}

mxa_status launch_copies(Queue &q)
{
    if (q.p.rows.n_blocks == 0)
        return MXA_OK;
    if (q.pieces) {
        q.p.awaits = next_awaits(q.chain);
        return hot_fits(q.p) ? mxa_cuda_check(quantize_hot(q.p, q.chain), "quantize_hot")
                             : mxa_cuda_check(quantize_by_pieces(q.p, q.chain), "quantize_pieces");
    }
    for (int c = 0; c < q.p.n; c++)
        quantize_by_any(q.p, c, q.stream());
    if (q.p.bias.bias)
        bias_by_any(q.p, q.stream());
    return mxa_cuda_launched("quantize_any");
}

} // namespace

mxa_status mxa_cuda_quantize(const mxa_cuda_rows *rows, mxa_nonfinite policy, int n,
                             const mxa_cuda_copy *copies, const mxa_cuda_bias *bias, int64_t *n_bad,
                             void *work, mxa_cuda_chain *chain)
{
    Queue q = { describe(*rows, policy, n, copies, bias, n_bad), false, chain, static_cast<char *>(work) };
    q.pieces = pieces_fit(q.p);
    if (rows->n_blocks >= max_blocks)
        return mxa_fail(MXA_ERR_UNSUPPORTED, "x: %lld blocks of 128 rows are more than a CUDA grid has",
                        (long long)rows->n_blocks);
    const char *const reason = q.pieces ? nullptr : any_refuses(q.p);
    if (reason)
        return mxa_fail(MXA_ERR_UNSUPPORTED, "x: dim %lld: the CUDA quantiser %s",
                        (long long)rows->x.shape[3], reason);
    mxa_status status = policy == MXA_NONFINITE_ERROR && q.p.rows.n_blocks > 0 ? check_finite(q) : MXA_OK;
    if (policy == MXA_NONFINITE_ERROR)
        q.work += work_unit;
    if (status == MXA_OK)
        status = clear_outputs(q, copies, n_bad);
    for (int c = 0; c < n && status == MXA_OK; c++)
        status = find_factors(q, copies[c], c);
    return status == MXA_OK ? launch_copies(q) : status;
}

int64_t mxa_cuda_quantize_work_bytes(const mxa_cuda_rows *rows, mxa_nonfinite policy, int n,
                                     const mxa_cuda_copy *copies)
{
    int64_t bytes = policy == MXA_NONFINITE_ERROR ? work_unit : 0;
    for (int c = 0; c < n; c++)
        bytes += region_bytes(*rows, copies[c]);
    return bytes;
}

const char *mxa_cuda_form_refuses(const mxa_format_info *info, mxa_cuda_form form)
{
    if (!info->quantized) {
        const bool own = (form == MXA_CUDA_BF16 && info->format == MXA_FORMAT_BF16) ||
                         (form == MXA_CUDA_F16 && info->format == MXA_FORMAT_F16);
        return form == MXA_CUDA_CODES || own ? nullptr : "a plain format has no other form than its own";
    }
    switch (form) {
    case MXA_CUDA_CODES:
    case MXA_CUDA_BF16: return nullptr;
    case MXA_CUDA_F16:
        return info->scale == MXA_SCALE_E8M0 ? "fp16 does not hold what MX scales reach" : nullptr;
    case MXA_CUDA_E5M2:
        return info->format == MXA_FORMAT_MXFP4 || info->format == MXA_FORMAT_MXFP6_E3M2 ||
                       info->format == MXA_FORMAT_MXFP8_E5M2
                   ? nullptr
                   : "E5M2 holds codes of mxfp4, mxfp6 and mxfp8-e5m2 only";
    case MXA_CUDA_E4M3:
        return info->format == MXA_FORMAT_MXFP4 || info->format == MXA_FORMAT_MXFP6_E3M2 ||
                       info->format == MXA_FORMAT_MXFP6_E2M3
                   ? nullptr
                   : "E4M3 holds codes of mxfp4, mxfp6 and mxfp6-e2m3 only";
    default: return "a tensor that is read as it is needs no copy";
    }
}

int64_t mxa_cuda_form_row_bytes(const mxa_format_info *info, mxa_cuda_form form, int64_t dim)
{
    if (!info->quantized || form == MXA_CUDA_CODES)
        return mxa_row_bytes(info, dim);
    return folds(form) ? dim : dim * int64_t(sizeof(uint16_t));
}

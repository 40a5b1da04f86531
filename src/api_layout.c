/* SPDX-License-Identifier: Apache-2.0 */
/* Public calls for the steps before quantising, and for layouts of codes and scales. */
#include <string.h>

#include "core/status.h"
#include "core/tensor.h"
#include "cpu/steps_cpu.h"
#include "cuda/loader.h"
#include "format/format.h"
#include "format/import.h"
#include "format/second_level.h"

static mxa_status check_mean(const mxa_tensor *x, int64_t n_tokens, const float *mean)
{
    const mxa_status status = mxa_check_tensor("x", x);
    if (status != MXA_OK)
        return status;
    if (n_tokens < -1)
        return mxa_fail(MXA_ERR_ARG, "n_tokens: %lld is not -1 (all), 0 or more", (long long)n_tokens);
    if (!mean)
        return mxa_fail(MXA_ERR_ARG, "mean: is NULL");
    if ((uintptr_t)mean % _Alignof(float) != 0)
        return mxa_fail(MXA_ERR_ALIGN, "mean: %p is not aligned to float", (const void *)mean);
    return MXA_OK;
}

/* As many tokens as there are, for -1 and for more. */
static int64_t mean_tokens(const mxa_tensor *x, int64_t n_tokens)
{
    return n_tokens < 0 || n_tokens > x->shape[2] ? x->shape[2] : n_tokens;
}

mxa_status mxa_channel_mean(const mxa_tensor *x, int64_t n_tokens, float *mean)
{
    const mxa_status status = check_mean(x, n_tokens, mean);
    if (status == MXA_OK)
        mxa_mean_cpu(x, mean_tokens(x, n_tokens), 0, mean);
    return status;
}

mxa_status mxa_device_channel_mean(mxa_device device, const mxa_tensor *x, int64_t n_tokens, float *mean,
                                   void *stream)
{
    if (device < MXA_DEVICE_CUDA_0)
        return mxa_fail(MXA_ERR_ARG, "device: %d is not a CUDA device", (int)device);
    mxa_status status = check_mean(x, n_tokens, mean);
    const mxa_cuda_backend *cuda;
    if (status == MXA_OK)
        status = mxa_cuda_table(device, &cuda);
    if (status != MXA_OK)
        return status;
    return mxa_cuda_result(cuda, cuda->channel_mean(device, x, mean_tokens(x, n_tokens), mean, stream));
}

static mxa_status check_step(const mxa_tensor *x, const mxa_tensor *out)
{
    mxa_status status = mxa_check_tensor("x", x);
    if (status == MXA_OK)
        status = mxa_check_output("out", out);
    if (status != MXA_OK)
        return status;
    if (out->dtype != MXA_DTYPE_F32)
        return mxa_fail(MXA_ERR_ARG, "out: dtype %d is not F32", (int)out->dtype);
    for (int axis = 0; axis < 4; axis++)
        if (out->shape[axis] != x->shape[axis])
            return mxa_fail(MXA_ERR_SHAPE, "out: size %lld of axis %d differs from %lld of x",
                            (long long)out->shape[axis], axis, (long long)x->shape[axis]);
    return MXA_OK;
}

mxa_status mxa_subtract_mean(const mxa_tensor *x, const float *mean, const mxa_tensor *out)
{
    const mxa_status status = check_step(x, out);
    if (status != MXA_OK)
        return status;
    if (!mean)
        return mxa_fail(MXA_ERR_ARG, "mean: is NULL");
    if ((uintptr_t)mean % _Alignof(float) != 0)
        return mxa_fail(MXA_ERR_ALIGN, "mean: %p is not aligned to float", (const void *)mean);
    mxa_steps_cpu(x, mean, false, out);
    return MXA_OK;
}

mxa_status mxa_rotate(const mxa_tensor *x, const mxa_tensor *out)
{
    const mxa_status status = check_step(x, out);
    if (status == MXA_OK)
        mxa_steps_cpu(x, NULL, true, out);
    return status;
}

/* Codes of rows x cols elements of a quantised format, one a byte. */
static mxa_status check_codes(mxa_format format, const void *src, const void *dst, int64_t rows, int64_t cols,
                              const mxa_format_info **info)
{
    int64_t count;
    *info = mxa_format_get(format);
    if (!*info || !(*info)->quantized)
        return mxa_fail(MXA_ERR_FORMAT, "format: %d has no codes to pack", (int)format);
    /* A filled tail adds less than a block to a row. */
    if (rows < 0 || cols < 0 || cols > INT64_MAX / 2 || !mxa_mul(rows, mxa_round_up(cols, 32), &count))
        return mxa_fail(MXA_ERR_SHAPE, "rows, cols: %lld and %lld are negative or overflow", (long long)rows,
                        (long long)cols);
    if (count > 0 && (!src || !dst))
        return mxa_fail(MXA_ERR_ARG, "codes, packed: one is NULL, but there are %lld rows of %lld",
                        (long long)rows, (long long)cols);
    return MXA_OK;
}

mxa_status mxa_pack_codes(mxa_format format, const uint8_t *codes, int64_t rows, int64_t cols,
                          uint8_t *packed)
{
    const mxa_format_info *info;
    const mxa_status status = check_codes(format, codes, packed, rows, cols, &info);
    if (status != MXA_OK || rows == 0 || cols == 0)
        return status;
    const int largest = (1 << info->element_bits) - 1;
    for (int64_t i = 0; i < rows * cols; i++)
        if (codes[i] > largest)
            return mxa_fail(MXA_ERR_ARG, "codes: 0x%02X at row %lld, column %lld is no %d-bit code", codes[i],
                            (long long)(i / cols), (long long)(i % cols), info->element_bits);

    const int64_t row_bytes = mxa_row_bytes(info, cols), used = mxa_packed_bytes(info->element_bits, cols);
    for (int64_t r = 0; r < rows; r++, codes += cols, packed += row_bytes) {
        mxa_pack(info->element_bits, codes, cols, packed);
        memset(packed + used, 0, (size_t)(row_bytes - used));
    }
    return MXA_OK;
}

mxa_status mxa_unpack_codes(mxa_format format, const uint8_t *packed, int64_t rows, int64_t cols,
                            uint8_t *codes)
{
    const mxa_format_info *info;
    const mxa_status status = check_codes(format, packed, codes, rows, cols, &info);
    if (status != MXA_OK || rows == 0 || cols == 0)
        return status;
    const int64_t row_bytes = mxa_row_bytes(info, cols);
    for (int64_t r = 0; r < rows; r++, codes += cols, packed += row_bytes)
        mxa_unpack(info->element_bits, packed, cols, codes);
    return MXA_OK;
}

static bool layout_is_known(mxa_layout layout)
{
    return (int)layout >= MXA_LAYOUT_ROW && layout <= MXA_LAYOUT_AMD;
}

int64_t mxa_scale_bytes(mxa_layout layout, int64_t rows, int64_t cols)
{
    const int64_t most = INT64_MAX - 256; /* no layout pads by more */
    int64_t bytes;
    if (!layout_is_known(layout) || rows < 0 || cols < 0 || rows > most || cols > most ||
        !mxa_mul(mxa_round_up(rows, mxa_layout_row_unit(layout)),
                 mxa_round_up(cols, mxa_layout_col_unit(layout)), &bytes))
        return -1;
    return bytes;
}

mxa_status mxa_relayout_scales(int64_t rows, int64_t cols, mxa_layout from, const uint8_t *src, mxa_layout to,
                               uint8_t *dst)
{
    if (!layout_is_known(from) || !layout_is_known(to))
        return mxa_fail(MXA_ERR_LAYOUT, "from, to: %d and %d are not both ROW, TILE_128X4 or AMD", (int)from,
                        (int)to);
    const int64_t from_bytes = mxa_scale_bytes(from, rows, cols), to_bytes = mxa_scale_bytes(to, rows, cols);
    if (from_bytes < 0 || to_bytes < 0)
        return mxa_fail(MXA_ERR_SHAPE, "rows, cols: %lld and %lld are negative or overflow", (long long)rows,
                        (long long)cols);
    if ((!src && from_bytes > 0) || (!dst && to_bytes > 0))
        return mxa_fail(MXA_ERR_ARG, "%s: is NULL", src ? "dst" : "src");
    if (to_bytes == 0)
        return MXA_OK;
    memset(dst, 0, (size_t)to_bytes);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++)
            dst[mxa_scale_offset(to, cols, r, c)] = src[mxa_scale_offset(from, cols, r, c)];
    return MXA_OK;
}

static mxa_status check_destination(const char *name, const mxa_packed *out, int64_t elements)
{
    if (!out)
        return mxa_fail(MXA_ERR_ARG, "%s: is NULL", name);
    if (elements > 0 && (!out->codes || !out->scales))
        return mxa_fail(MXA_ERR_ARG, "%s: %s is NULL", name, out->codes ? "scales" : "codes");
    return MXA_OK;
}

mxa_status mxa_import_rows(mxa_foreign from, const uint8_t *src, int64_t src_bytes, int64_t rows,
                           int64_t cols, const mxa_packed *out)
{
    mxa_foreign_info info;
    if (!mxa_foreign_find(from, &info))
        return mxa_fail(MXA_ERR_LAYOUT, "from: %d is none of enum mxa_foreign", (int)from);
    if (from == MXA_FOREIGN_GGML_Q8_0)
        return mxa_fail(MXA_ERR_FORMAT,
                        "from: ggml q8_0 has steps that no format holds, caches take its values");
    if (rows < 0 || cols < 0)
        return mxa_fail(MXA_ERR_SHAPE, "rows, cols: %lld or %lld is negative", (long long)rows,
                        (long long)cols);
    if (cols % info.block != 0)
        return mxa_fail(MXA_ERR_LAYOUT, "cols: %lld is not a multiple of the layout's block of %d",
                        (long long)cols, info.block);
    int64_t blocks, want;
    if (!mxa_mul(rows, cols / info.block, &blocks) || !mxa_mul(blocks, info.block_bytes, &want) ||
        want != src_bytes)
        return mxa_fail(MXA_ERR_SHAPE, "src_bytes: %lld is not what %lld rows of %lld take: %d for each %d",
                        (long long)src_bytes, (long long)rows, (long long)cols, info.block_bytes, info.block);
    if (!src && want > 0)
        return mxa_fail(MXA_ERR_ARG, "src: is NULL");
    const mxa_status status = check_destination("out", out, want);
    if (status == MXA_OK && want > 0)
        mxa_import_blocks(from, src, rows, cols, out->codes, out->scales);
    return status;
}

mxa_status mxa_import_vllm_page(const uint8_t *page, int64_t page_bytes, int64_t heads_kv, int64_t tokens,
                                int64_t head_dim, const mxa_packed *k, const mxa_packed *v)
{
    const int64_t interleaved = 4, dim_unit = 64, block = 16;
    if (heads_kv < 0 || tokens < 0 || head_dim < 0)
        return mxa_fail(MXA_ERR_SHAPE, "heads_kv, tokens, head_dim: %lld, %lld or %lld is negative",
                        (long long)heads_kv, (long long)tokens, (long long)head_dim);
    if (tokens % interleaved != 0 || head_dim % dim_unit != 0)
        return mxa_fail(MXA_ERR_LAYOUT, "tokens, head_dim: %lld is not a multiple of 4 or %lld not of 64",
                        (long long)tokens, (long long)head_dim);
    int64_t rows, codes = 0, both = 0;
    const int64_t scale_cols = head_dim / block;
    const bool fits = mxa_mul(heads_kv, tokens, &rows) && mxa_mul(rows, head_dim / 2, &codes) &&
                      mxa_mul(rows, head_dim + 2 * scale_cols, &both);
    if (!fits || both != page_bytes)
        return mxa_fail(MXA_ERR_SHAPE,
                        "page_bytes: %lld is not what heads_kv %lld, tokens %lld, head_dim %lld take",
                        (long long)page_bytes, (long long)heads_kv, (long long)tokens, (long long)head_dim);
    if (!page && both > 0)
        return mxa_fail(MXA_ERR_ARG, "page: is NULL");
    mxa_status status = check_destination("k", k, both);
    if (status == MXA_OK)
        status = check_destination("v", v, both);
    if (status != MXA_OK || both == 0)
        return status;

    const int64_t scales = rows * scale_cols;
    memcpy(k->codes, page, (size_t)codes);
    memcpy(k->scales, page + codes, (size_t)scales);
    memcpy(v->codes, page + codes + scales, (size_t)codes);
    mxa_import_vllm_scales(page + 2 * codes + scales, heads_kv, tokens, scale_cols, v->scales);
    return MXA_OK;
}

mxa_status mxa_import_multipliers(const float *multipliers, int64_t n, float *g)
{
    if (n < 0)
        return mxa_fail(MXA_ERR_SHAPE, "n: %lld is negative", (long long)n);
    if (n > 0 && (!multipliers || !g))
        return mxa_fail(MXA_ERR_ARG, "%s: is NULL", multipliers ? "g" : "multipliers");
    for (int64_t i = 0; i < n; i++)
        if (!mxa_g_is_legal(1.0f / multipliers[i]))
            return mxa_fail(MXA_ERR_SCALE, "multipliers: 1 / %g at %lld is outside 2^-117..2^117",
                            (double)multipliers[i], (long long)i);
    for (int64_t i = 0; i < n; i++)
        g[i] = 1.0f / multipliers[i];
    return MXA_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "cpu/dequantize_cpu.h"

#include "core/tensor.h"
#include "cpu/row_items.h"
#include "cpu/steps_cpu.h"
#include "format/format.h"
#include "format/nvfp4.h"

typedef struct work {
    const mxa_copy *copy;
    const mxa_tensor *out;
    mxa_decode_rows_fn *decode;
    int64_t rows, cols; /* of a stored matrix */
    int64_t item_bytes;
} work;

/* Rows of fp32, for AXIS_TOKEN the columns that they come from, and one row's scale bytes. */
static int64_t thread_bytes(const int64_t shape[4], mxa_axis axis)
{
    const int64_t longest = shape[3] > MXA_ITEM_TOKENS ? shape[3] : MXA_ITEM_TOKENS;
    return mxa_item_bytes(shape) * (1 + (axis == MXA_AXIS_TOKEN)) + mxa_round_up(longest, MXA_SCRATCH_UNIT);
}

size_t mxa_dequantize_scratch_bytes(const int64_t shape[4], mxa_axis axis, int threads)
{
    if (mxa_quantize_scratch_bytes(shape, axis, threads) == SIZE_MAX)
        return SIZE_MAX;
    return (size_t)(thread_bytes(shape, axis) * mxa_token_threads(threads, mxa_item_count(shape)));
}

/* NVFP4 multiplies scale and g first (docs/numerics.md, section 5): 16 values for each block. */
static void nvfp4_row(const uint8_t *codes, const uint8_t *scales, int64_t n, float g, float *x)
{
    for (int64_t first = 0; first < n; first += MXA_NVFP4_BLOCK) {
        float values[16];
        for (uint32_t code = 0; code < 16; code++)
            values[code] = mxa_nvfp4_value(code, scales[first / MXA_NVFP4_BLOCK], g);
        const int64_t count = n - first < MXA_NVFP4_BLOCK ? n - first : MXA_NVFP4_BLOCK;
        for (int64_t i = first; i < first + count; i++)
            x[i] = values[codes[i / 2] >> i % 2 * 4 & 0xF];
    }
}

static void multiply(float g, float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = mxa_f32_is_finite(x[i]) ? mxa_saturate(x[i] * g) : x[i];
}

/* n columns from first on of one stored row; x gets element * scale * g. */
static void decode_piece(const work *w, int64_t matrix, int64_t row, int64_t first, int64_t n, float g,
                         uint8_t *scale_temp, float *x)
{
    const mxa_copy *copy = w->copy;
    const mxa_format_info *info = copy->spec.info;
    const uint8_t *codes = copy->out.codes + (matrix * w->rows + row) * mxa_row_bytes(info, w->cols) +
                           mxa_packed_bytes(info->element_bits, first);
    if (info->block) {
        const int64_t scale_cols = mxa_scale_cols(info, w->cols);
        const uint8_t *scales =
            copy->out.scales + matrix * mxa_layout_bytes(copy->layout, w->rows, scale_cols);
        for (int64_t i = 0; i < mxa_scale_cols(info, n); i++)
            scale_temp[i] = scales[mxa_scale_offset(copy->layout, scale_cols, row, first / info->block + i)];
    }
    if (info->format == MXA_FORMAT_NVFP4) {
        nvfp4_row(codes, scale_temp, n, g, x);
        return;
    }
    w->decode(info, codes, scale_temp, 1, n, x, n);
    if (copy->level != MXA_LEVEL_NONE)
        multiply(g, x, n);
}

static float factor(const work *w, mxa_row_span s, int64_t row)
{
    const mxa_level level = w->copy->level;
    if (level == MXA_LEVEL_NONE)
        return 1.0f;
    return w->copy->out.g[mxa_level_index(level, w->out->shape, s.b, s.h, row)];
}

static void decode_rows(const work *w, mxa_row_span s, char *scratch, float *x)
{
    uint8_t *scale_temp = (uint8_t *)scratch + w->item_bytes;
    const int64_t dim = w->out->shape[3];
    for (int64_t r = s.first; r < s.first + s.rows; r++, x += dim)
        decode_piece(w, s.matrix, r, 0, dim, factor(w, s, r), scale_temp, x);
}

static void decode_columns(const work *w, mxa_row_span s, char *scratch, float *x)
{
    float *columns = (float *)(void *)(scratch + w->item_bytes);
    uint8_t *scale_temp = (uint8_t *)scratch + 2 * w->item_bytes;
    const int64_t dim = w->out->shape[3];
    const float g = factor(w, s, s.first);
    for (int64_t d = 0; d < dim; d++)
        decode_piece(w, s.matrix, d, s.first, s.rows, g, scale_temp, columns + d * s.rows);
    for (int64_t r = 0; r < s.rows; r++)
        for (int64_t d = 0; d < dim; d++)
            x[r * dim + d] = columns[d * s.rows + r];
}

static void finish_row(const work *w, mxa_row_span s, int64_t row, float *x)
{
    const int64_t dim = w->out->shape[3];
    if (w->copy->rotate)
        mxa_rotate_rows(x, 1, dim);
    if (w->copy->mean)
        for (int64_t d = 0; d < dim; d++)
            x[d] += w->copy->mean[s.matrix * dim + d];
    mxa_row_store(w->out, s.b, s.h, row, x);
}

void mxa_dequantize_copy(const mxa_copy *copy, const mxa_tensor *out, int threads, void *scratch)
{
    const int64_t *shape = out->shape, dim = shape[3], items = mxa_item_count(shape);
    const bool by_token = copy->axis == MXA_AXIS_TOKEN;
    const work w = { copy,
                     out,
                     mxa_decode_pick(copy->spec.info->format)->fn,
                     shape[by_token ? 3 : 2],
                     shape[by_token ? 2 : 3],
                     mxa_item_bytes(shape) };
    const int64_t bytes = thread_bytes(shape, copy->axis);
#pragma omp parallel for schedule(static) num_threads(mxa_token_threads(threads, items))
    for (int64_t item = 0; item < items; item++) {
        char *own = (char *)scratch + omp_get_thread_num() * bytes;
        float *x = (float *)(void *)own;
        mxa_row_span rest = mxa_item_span(shape, item), chunk;
        while (rest.rows > 0) {
            rest = mxa_span_split(rest, by_token ? MXA_ITEM_TOKENS : MXA_CHUNK_ROWS, &chunk);
            if (by_token)
                decode_columns(&w, chunk, own, x);
            else
                decode_rows(&w, chunk, own, x);
            for (int64_t r = 0; r < chunk.rows; r++)
                finish_row(&w, chunk, chunk.first + r, x + r * dim);
        }
    }
}

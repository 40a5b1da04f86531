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
    mxa_quantize_rows_fn *to_half; /* of outputs of 16 bits */
    int64_t rows, cols;            /* of a stored matrix */
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

/* Scale and g are multiplied first (docs/numerics.md, section 5): codes are decoded with scales of 1. */
static void nvfp4_row(const work *w, const uint8_t *codes, const uint8_t *scales, int64_t n, float g,
                      float *x)
{
    enum { BLOCKS = 64, PIECE = BLOCKS * MXA_NVFP4_BLOCK, ONE = 0x38 };
    uint8_t ones[BLOCKS];
    memset(ones, ONE, sizeof ones);
    for (int64_t first = 0; first < n; first += PIECE) {
        const int64_t left = n - first < PIECE ? n - first : PIECE;
        w->decode(w->copy->spec.info, codes + first / 2, ones, 1, left, x + first, left);
    }
    for (int64_t first = 0; first < n; first += MXA_NVFP4_BLOCK) {
        const uint8_t scale = scales[first / MXA_NVFP4_BLOCK];
        const float step = mxa_ue4m3_decode(scale) * g;
        const int64_t end = n - first < MXA_NVFP4_BLOCK ? n : first + MXA_NVFP4_BLOCK;
        for (int64_t i = first; i < end; i++)
            x[i] = mxa_saturate(step * x[i]);
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
    const uint8_t *scales = scale_temp;
    if (info->block) {
        const int64_t scale_cols = mxa_scale_cols(info, w->cols), first_scale = first / info->block;
        const uint8_t *own = copy->out.scales + matrix * mxa_layout_bytes(copy->layout, w->rows, scale_cols);
        if (copy->layout == MXA_LAYOUT_ROW)
            scales = own + row * scale_cols + first_scale;
        else
            for (int64_t i = 0; i < mxa_scale_cols(info, n); i++)
                scale_temp[i] = own[mxa_scale_offset(copy->layout, scale_cols, row, first_scale + i)];
    }
    if (info->format == MXA_FORMAT_NVFP4) {
        nvfp4_row(w, codes, scales, n, g, x);
        return;
    }
    w->decode(info, codes, scales, 1, n, x, n);
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

/* As mxa_row_store; the quantisers of 16-bit types use more of the machine. */
static void store_row(const work *w, mxa_row_span s, int64_t row, const float *x)
{
    if (w->out->dtype == MXA_DTYPE_F32) {
        mxa_row_store(w->out, s.b, s.h, row, x);
        return;
    }
    const mxa_format format = w->out->dtype == MXA_DTYPE_F16 ? MXA_FORMAT_F16 : MXA_FORMAT_BF16;
    const mxa_code_spec spec = { .info = mxa_format_get(format) };
    const mxa_prepared prepared = { x, NULL, 1, w->out->shape[3] };
    const float none = 1.0f;
    w->to_half(&spec, &prepared, &none, 0, mxa_row(w->out, s.b, s.h, row), NULL);
}

static void finish_rows(const work *w, mxa_row_span s, float *x)
{
    const int64_t dim = w->out->shape[3];
    if (w->copy->rotate)
        mxa_rotate_rows(x, s.rows, dim);
    for (int64_t r = 0; r < s.rows; r++, x += dim) {
        if (w->copy->mean)
            for (int64_t d = 0; d < dim; d++)
                x[d] += w->copy->mean[s.matrix * dim + d];
        store_row(w, s, s.first + r, x);
    }
}

void mxa_dequantize_copy(const mxa_copy *copy, const mxa_tensor *out, int threads, void *scratch)
{
    const int64_t *shape = out->shape, items = mxa_item_count(shape);
    const bool by_token = copy->axis == MXA_AXIS_TOKEN;
    const work w = { copy,
                     out,
                     mxa_decode_pick(copy->spec.info->format)->fn,
                     mxa_quantize_pick(out->dtype == MXA_DTYPE_F16 ? MXA_FORMAT_F16 : MXA_FORMAT_BF16)->fn,
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
            finish_rows(&w, chunk, x);
        }
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Quantising a tensor. An item of work is 128 tokens of one matrix; it goes through the caches in chunks of
 * rows that are loaded, sanitised, smoothed and rotated once, then coded for each copy.
 */
#include "cpu/quantize_cpu.h"

#include <assert.h>

#include "core/status.h"
#include "core/tensor.h"
#include "cpu/row_items.h"
#include "cpu/steps_cpu.h"
#include "format/format.h"
#include "format/mx.h"
#include "format/second_level.h"

#define MAX_COPIES 2

typedef struct work {
    const mxa_tensor *x;
    mxa_nonfinite policy;
    int n;
    const mxa_copy *copies;
    mxa_quantize_rows_fn *fn[MAX_COPIES];
    bool same_steps; /* both copies see the same prepared rows */
    int64_t items_per_matrix, items;
    int threads;
    char *scratch;
    int64_t thread_bytes, rows_bytes,
        amax_bytes; /* of scratch, and in it of prepared rows and their maxima */
} work;

static int64_t amax_bytes(const int64_t shape[4])
{
    return mxa_round_up(MXA_ITEM_TOKENS * mxa_amax_count(shape[3]) * (int64_t)sizeof(uint32_t),
                        MXA_SCRATCH_UNIT);
}

/* Prepared rows, their maxima, for AXIS_TOKEN their transpose, and one row's or column's scale bytes. */
static int64_t thread_bytes(const int64_t shape[4], mxa_axis axis)
{
    const int64_t longest = shape[3] > MXA_ITEM_TOKENS ? shape[3] : MXA_ITEM_TOKENS;
    return mxa_item_bytes(shape) * (1 + (axis == MXA_AXIS_TOKEN)) + amax_bytes(shape) +
           mxa_round_up(longest, MXA_SCRATCH_UNIT);
}

size_t mxa_quantize_scratch_bytes(const int64_t shape[4], mxa_axis axis, int threads)
{
    const int64_t most = INT64_MAX / MXA_MAX_THREADS; /* more than any machine has */
    const int64_t rows_bound = 3 * MXA_ITEM_TOKENS * (int64_t)sizeof(float);
    if (shape[3] > most / rows_bound - MXA_ITEM_TOKENS)
        return SIZE_MAX;
    return (size_t)(thread_bytes(shape, axis) * mxa_token_threads(threads, mxa_item_count(shape)));
}

static float *transposed(const work *w, char *scratch)
{
    return (float *)(void *)(scratch + w->rows_bytes + w->amax_bytes);
}

static uint8_t *scale_row(const work *w, char *scratch, mxa_axis axis)
{
    return (uint8_t *)scratch + w->amax_bytes + w->rows_bytes * (1 + (axis == MXA_AXIS_TOKEN));
}

static char *thread_scratch(const work *w)
{
    return w->scratch + omp_get_thread_num() * w->thread_bytes;
}

/* The rows of a span as copy c is coded from them. */
static mxa_prepared prepare(const work *w, int c, mxa_row_span s, char *scratch)
{
    float *const rows = (float *)(void *)scratch;
    uint32_t *const amax = (uint32_t *)(void *)(scratch + w->rows_bytes);
    mxa_span_prepare(w->x, s, w->policy, w->copies[c].mean, w->copies[c].rotate, rows, amax);
    return (mxa_prepared){ rows, amax, s.rows, w->x->shape[3] };
}

static bool per_region(mxa_level level)
{
    return level == MXA_LEVEL_TENSOR || level == MXA_LEVEL_HEAD;
}

/*
 * The factors of rows, *step apart. Given factors and those of TENSOR and HEAD lie in out.g already; TOKEN
 * and TOKEN_BLOCK are computed here.
 */
static const float *row_factors(const work *w, const mxa_copy *copy, mxa_row_span s, const mxa_prepared *x,
                                int64_t *step)
{
    static const float none = 1.0f;
    *step = copy->level == MXA_LEVEL_TOKEN;
    if (copy->level == MXA_LEVEL_NONE)
        return &none;
    float *const g = copy->out.g + mxa_level_index(copy->level, w->x->shape, s.b, s.h, s.first);
    if (copy->g_given || per_region(copy->level))
        return g;
    const float divisor = mxa_g_divisor(copy->spec.info);
    const unsigned options = copy->spec.nvfp4;
    if (copy->level == MXA_LEVEL_TOKEN_BLOCK)
        *g = mxa_second_level(divisor, options, mxa_f32_from_bits(mxa_prepared_finite_amax(x)));
    for (int64_t r = 0; r < s.rows && copy->level == MXA_LEVEL_TOKEN; r++)
        g[r] = mxa_second_level(divisor, options, mxa_f32_from_bits(mxa_prepared_row_amax(x, r)));
    return g;
}

/* A stored matrix, and in it where a piece begins: at row and column first, a multiple of the block. */
typedef struct place {
    int64_t matrix, rows, cols;
    int64_t row, first;
} place;

/* x is as wide as the matrix, or has one row. */
static int64_t code_piece(const work *w, int c, const place *p, const mxa_prepared *x, const float *g,
                          int64_t g_step, uint8_t *scale_temp)
{
    const mxa_copy *copy = &w->copies[c];
    const mxa_format_info *info = copy->spec.info;
    const int64_t row_bytes = mxa_row_bytes(info, p->cols);
    uint8_t *codes = copy->out.codes + (p->matrix * p->rows + p->row) * row_bytes +
                     mxa_packed_bytes(info->element_bits, p->first);
    if (info->block == 0)
        return w->fn[c](&copy->spec, x, g, g_step, codes, NULL);

    const int64_t scale_cols = mxa_scale_cols(info, p->cols), first_scale = p->first / info->block;
    uint8_t *scales = copy->out.scales + p->matrix * mxa_layout_bytes(copy->layout, p->rows, scale_cols);
    if (copy->layout == MXA_LAYOUT_ROW)
        return w->fn[c](&copy->spec, x, g, g_step, codes, scales + p->row * scale_cols + first_scale);

    int64_t n_bad = 0;
    for (int64_t r = 0; r < x->rows; r++) {
        const mxa_prepared row = mxa_prepared_row(x, r);
        n_bad += w->fn[c](&copy->spec, &row, g + r * g_step, 0, codes + r * row_bytes, scale_temp);
        for (int64_t i = 0; i < mxa_scale_cols(info, x->cols); i++)
            scales[mxa_scale_offset(copy->layout, scale_cols, p->row + r, first_scale + i)] = scale_temp[i];
    }
    return n_bad;
}

static int64_t code_rows(const work *w, int c, mxa_row_span s, const mxa_prepared *x, char *scratch)
{
    int64_t g_step;
    const float *g = row_factors(w, &w->copies[c], s, x, &g_step);
    const place rows = { s.matrix, w->x->shape[2], x->cols, s.first, 0 };
    return code_piece(w, c, &rows, x, g, g_step, scale_row(w, scratch, MXA_AXIS_HEAD));
}

/* AXIS_TOKEN: each channel's 128 tokens are a piece of its row. */
static int64_t code_columns(const work *w, int c, mxa_row_span s, const mxa_prepared *x, char *scratch)
{
    const int64_t dim = x->cols;
    float *column = transposed(w, scratch);
    for (int64_t r = 0; r < s.rows; r++)
        for (int64_t d = 0; d < dim; d++)
            column[d * s.rows + r] = x->x[r * dim + d];

    int64_t g_step, n_bad = 0;
    const float *g = row_factors(w, &w->copies[c], s, x, &g_step);
    place channel = { s.matrix, dim, w->x->shape[2], 0, s.first };
    for (; channel.row < dim; channel.row++, column += s.rows) {
        uint32_t amax[MXA_ITEM_TOKENS / MXA_AMAX_BLOCK];
        for (int64_t r = 0; r < s.rows; r += MXA_AMAX_BLOCK)
            amax[r / MXA_AMAX_BLOCK] =
                mxa_amax_bits(column + r, s.rows - r < MXA_AMAX_BLOCK ? s.rows - r : MXA_AMAX_BLOCK);
        const mxa_prepared tokens = { column, amax, 1, s.rows };
        n_bad += code_piece(w, c, &channel, &tokens, g, 0, scale_row(w, scratch, MXA_AXIS_TOKEN));
    }
    return n_bad;
}

static int64_t chunk_rows(const work *w)
{
    for (int c = 0; c < w->n; c++)
        if (w->copies[c].axis == MXA_AXIS_TOKEN || w->copies[c].level == MXA_LEVEL_TOKEN_BLOCK)
            return MXA_ITEM_TOKENS;
    return MXA_CHUNK_ROWS;
}

static void code_item(const work *w, int64_t item, char *scratch, int64_t *n_bad)
{
    mxa_row_span rest = mxa_item_span(w->x->shape, item), chunk;
    mxa_prepared x = { 0 };
    for (int c = 0; c < w->n; c++)
        if (w->copies[c].out.nonfinite_tiles)
            w->copies[c].out.nonfinite_tiles[item] = 0;
    while (rest.rows > 0) {
        rest = mxa_span_split(rest, chunk_rows(w), &chunk);
        for (int c = 0; c < w->n; c++) {
            if (c == 0 || !w->same_steps)
                x = prepare(w, c, chunk, scratch);
            if (w->copies[c].out.nonfinite_tiles && mxa_prepared_amax(&x) >= MXA_F32_INF)
                w->copies[c].out.nonfinite_tiles[item] = 1;
            n_bad[c] += w->copies[c].axis == MXA_AXIS_TOKEN ? code_columns(w, c, chunk, &x, scratch)
                                                            : code_rows(w, c, chunk, &x, scratch);
        }
    }
}

static void code_all(const work *w, int64_t *n_bad)
{
    int64_t first = 0, second = 0;
#pragma omp parallel for schedule(static) num_threads(w->threads) reduction(+ : first, second)
    for (int64_t item = 0; item < w->items; item++) {
        int64_t count[MAX_COPIES] = { 0 };
        code_item(w, item, thread_scratch(w), count);
        first += count[0];
        second += count[1];
    }
    n_bad[0] = first;
    if (w->n > 1)
        n_bad[1] = second;
}

/* The bits of the largest finite and the largest magnitude of one item, as copy c sees it. */
static void scan_item(const work *w, int64_t item, char *scratch, int c, uint32_t *finite, uint32_t *any)
{
    mxa_row_span rest = mxa_item_span(w->x->shape, item), chunk;
    *finite = *any = 0;
    while (rest.rows > 0) {
        rest = mxa_span_split(rest, MXA_CHUNK_ROWS, &chunk);
        const mxa_prepared x = prepare(w, c, chunk, scratch);
        const uint32_t chunk_finite = mxa_prepared_finite_amax(&x), chunk_any = mxa_prepared_amax(&x);
        *finite = chunk_finite > *finite ? chunk_finite : *finite;
        *any = chunk_any > *any ? chunk_any : *any;
    }
}

/* The first item that holds NaN or Inf as one of the copies sees it; w->items if there is none. */
static int64_t first_nonfinite(const work *w)
{
    int64_t found = w->items;
#pragma omp parallel for schedule(static) num_threads(w->threads) reduction(min : found)
    for (int64_t item = 0; item < w->items; item++)
        for (int c = 0; c < (w->same_steps ? 1 : w->n); c++) {
            uint32_t finite, any;
            scan_item(w, item, thread_scratch(w), c, &finite, &any);
            if (any >= MXA_F32_INF && item < found)
                found = item;
        }
    return found;
}

static mxa_status check_finite(const work *w)
{
    const int64_t item = first_nonfinite(w);
    if (item == w->items)
        return MXA_OK;
    const mxa_row_span s = mxa_item_span(w->x->shape, item);
    return mxa_fail(
        MXA_ERR_NONFINITE,
        "x: NaN or Inf, maybe by overflow of mean or rotation, in batch %lld, head %lld, tokens %lld "
        "to %lld; policy ERROR allows none",
        (long long)s.b, (long long)s.h, (long long)s.first, (long long)(s.first + s.rows - 1));
}

/*
 * Factors of level TENSOR and HEAD, from a read of their own: out.g holds each region's maximum until all are
 * known.
 */
static void region_factors(const work *w, int c)
{
    const mxa_copy *copy = &w->copies[c];
    const int64_t matrices = w->x->shape[0] * w->x->shape[1];
    const int64_t regions = copy->level == MXA_LEVEL_HEAD ? matrices : 1;
    float *g = copy->out.g;
    for (int64_t i = 0; i < regions; i++)
        g[i] = 0.0f;
#pragma omp parallel for schedule(static) num_threads(w->threads)
    for (int64_t item = 0; item < w->items; item++) {
        uint32_t finite, any;
        scan_item(w, item, thread_scratch(w), c, &finite, &any);
        const mxa_row_span s = mxa_item_span(w->x->shape, item);
        float *region = g + mxa_level_index(copy->level, w->x->shape, s.b, s.h, s.first);
        const float amax = mxa_f32_from_bits(finite);
#pragma omp critical(mxa_region_factors)
        *region = amax > *region ? amax : *region;
    }
    const float divisor = mxa_g_divisor(copy->spec.info);
    for (int64_t i = 0; i < regions; i++)
        g[i] = mxa_second_level(divisor, copy->spec.nvfp4, g[i]);
}

/* What stands in the outputs before the items are coded. */
static void begin_copy(const work *w, int c)
{
    const mxa_copy *copy = &w->copies[c];
    const int64_t *shape = w->x->shape;
    const bool by_token = copy->axis == MXA_AXIS_TOKEN;
    const int64_t rows = shape[by_token ? 3 : 2], cols = shape[by_token ? 2 : 3];
    if (copy->layout != MXA_LAYOUT_ROW && copy->spec.info->block) {
        const int64_t bytes = mxa_layout_bytes(copy->layout, rows, mxa_scale_cols(copy->spec.info, cols));
        memset(copy->out.scales, 0, (size_t)(shape[0] * shape[1] * bytes));
    }
    if (copy->level == MXA_LEVEL_NONE)
        return;
    if (!copy->g_given) {
        if (per_region(copy->level))
            region_factors(w, c);
    } else if (copy->g_given != copy->out.g) {
        memcpy(copy->out.g, copy->g_given, (size_t)mxa_level_count(copy->level, shape) * sizeof(float));
    }
}

static work make_work(const mxa_tensor *x, mxa_nonfinite policy, int n, const mxa_copy *copies, int threads,
                      void *scratch)
{
    work w = { .x = x,
               .policy = policy,
               .n = n,
               .copies = copies,
               .items_per_matrix = mxa_items_per_matrix(x->shape),
               .items = mxa_item_count(x->shape),
               .threads = mxa_token_threads(threads, mxa_item_count(x->shape)),
               .scratch = scratch,
               .rows_bytes = mxa_item_bytes(x->shape),
               .amax_bytes = amax_bytes(x->shape) };
    w.thread_bytes = thread_bytes(x->shape, copies[0].axis);
    w.same_steps = n == 1 || (copies[0].rotate == copies[1].rotate && copies[0].mean == copies[1].mean);
    for (int c = 0; c < n; c++)
        w.fn[c] = mxa_quantize_pick(copies[c].spec.info->format)->fn;
    return w;
}

mxa_status mxa_quantize_copies(const mxa_tensor *x, mxa_nonfinite policy, int n, const mxa_copy *copies,
                               int threads, void *scratch, int64_t *n_bad)
{
    assert(n >= 1 && n <= MAX_COPIES && (n == 1 || copies[0].axis == copies[1].axis));
    const work w = make_work(x, policy, n, copies, threads, scratch);
    const mxa_status status = policy == MXA_NONFINITE_ERROR ? check_finite(&w) : MXA_OK;
    if (status != MXA_OK)
        return status;
    for (int c = 0; c < n; c++)
        begin_copy(&w, c);
    code_all(&w, n_bad);
    return MXA_OK;
}

float mxa_finite_amax(const mxa_tensor *x, mxa_nonfinite policy, const mxa_copy *copy, int threads,
                      void *scratch)
{
    const work w = make_work(x, policy, 1, copy, threads, scratch);
    uint32_t largest = 0;
#pragma omp parallel for schedule(static) num_threads(w.threads) reduction(max : largest)
    for (int64_t item = 0; item < w.items; item++) {
        uint32_t finite, any;
        scan_item(&w, item, thread_scratch(&w), 0, &finite, &any);
        largest = finite > largest ? finite : largest;
    }
    return mxa_f32_from_bits(largest);
}

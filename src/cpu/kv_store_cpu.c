/* SPDX-License-Identifier: Apache-2.0 */
#include "cpu/kv_store_cpu.h"

#include "core/tensor.h"
#include "cpu/copy_row.h"
#include "cpu/row_items.h"

/* Rows first.. of x, which are tokens of one head that share a page. */
static void store_rows(const mxa_kv_rows *rows, const mxa_row_coder *coder, const mxa_tensor *x, int64_t b,
                       int64_t h, int64_t first, const float *mean)
{
    const mxa_kv_part *const part = rows->part;
    for (int64_t r = 0; r < rows->n; r += MXA_COPY_ROWS) {
        const mxa_source source = { mxa_row(x, b, h, first + r), x->dtype,
                                    mxa_min(rows->n - r, MXA_COPY_ROWS), part->dim, x->stride[2] };
        mxa_copy_rows(coder, &source, mean, rows->codes + r * part->row_bytes,
                      part->scale_cols ? rows->scales + r * part->scale_cols : NULL,
                      rows->g ? rows->g + r : NULL);
    }
}

static void clear_rows(const mxa_kv_rows *rows)
{
    memset(rows->codes, 0, (size_t)(rows->n * rows->part->row_bytes));
    if (rows->scales)
        memset(rows->scales, 0, (size_t)(rows->n * rows->part->scale_cols));
    if (rows->g)
        memset(rows->g, 0, (size_t)rows->n * sizeof *rows->g);
}

/* K or V of one head for tokens first..end of sequence b, all in one page. */
static void store_page(const mxa_kv_view *view, int copy, int operand, const mxa_tensor *x, int64_t b,
                       int64_t h, mxa_span tokens)
{
    const mxa_kv_layout *const l = view->layout;
    const mxa_kv_sequence *const s = &view->sequences[b];
    const mxa_kv_part *const part = &l->part[copy][operand];
    if (!part->copy.info || s->table[copy][tokens.first / l->page_tokens] < 0)
        return;
    mxa_row_coder coder = mxa_row_coder_of(&part->copy);
    coder.channels_g = operand == MXA_KV_V ? mxa_kv_channels_g(view, copy, h) : NULL;
    const float *const mean = part->copy.smooth ? s->mean + h * part->dim : NULL;
    for (int64_t first = tokens.first; first < tokens.end;) {
        const bool unread = mxa_kv_is_unread(l, copy, operand, first);
        const int64_t end = unread ? mxa_min(tokens.end, l->unread_end) : tokens.end;
        const mxa_kv_rows rows = mxa_kv_rows_at(view, copy, operand, s, h, first, end);
        if (unread)
            clear_rows(&rows);
        else
            store_rows(&rows, &coder, x, b, h, first - s->length, mean);
        first += rows.n;
    }
}

void mxa_kv_store(const mxa_kv_view *view, int copy, const mxa_tensor *k, const mxa_tensor *v,
                  const int64_t *counts, int threads)
{
    const mxa_kv_layout *const l = view->layout;
    const int64_t batch = k->shape[0], page = l->page_tokens;
    int64_t n = 0;
    for (int64_t b = 0; b < batch; b++)
        n = mxa_max(n, counts[b]);
    const int64_t most = n / page + 2, items = batch * l->heads_kv * most; /* n tokens, in pages */
#pragma omp parallel for schedule(dynamic) num_threads(mxa_token_threads(threads, n > 1 ? items : 1))
    for (int64_t item = 0; item < items; item++) {
        const int64_t b = item / most / l->heads_kv, h = item / most % l->heads_kv;
        const int64_t length = view->sequences[b].length, first = (length / page + item % most) * page;
        const mxa_span tokens = { mxa_max(first, length), mxa_min(first + page, length + counts[b]) };
        if (tokens.first >= tokens.end)
            continue;
        store_page(view, copy, MXA_KV_K, k, b, h, tokens);
        store_page(view, copy, MXA_KV_V, v, b, h, tokens);
    }
}

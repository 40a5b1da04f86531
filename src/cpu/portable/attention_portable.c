/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tiled attention in fp32 on any machine. For each key tile, K is decoded and transposed and V rounded to
 * the P V type once for the whole item; then blocks of query rows go through logits, softmax and P V while
 * their data is in the L1 cache. Keys that a row does not see get logit -Inf, whatever their memory holds.
 * Where Inf or NaN of V reach a result, the item is computed again by the careful path, which keeps them
 * apart (docs/numerics.md, section 8). A row that NaN, or a number beyond fp32, leaves without a result goes
 * to the reference, which tells the two apart.
 */
#include "cpu/portable/attention_portable.h"

#include <assert.h>
#include <math.h>

#include "attn/softmax.h"
#include "cpu/portable/products_portable.h"
#include "cpu/ref/attention_ref.h"

enum { ALIGNMENT = 64 };

/*
 * Scratch of an item. Its rows are those of head h, then of the next head, and so on. V's channels are padded
 * to whole groups of MXA_COLS.
 */
typedef struct tile_work {
    const mxa_attention_job *job;
    const mxa_sequence *s;
    int64_t h, n_heads, h_kv, tile;
    mxa_span rows;        /* of the sequence, in each head */
    int64_t head_rows, n; /* rows of a head, and of all heads */
    int64_t dim, dim_v, channels;
    bool careful, loaded[MXA_COPIES];

    mxa_vec *q[MXA_COPIES];    /* [blocks of MXA_ROWS rows][dim][MXA_ROWS] */
    float *factor[MXA_COPIES]; /* [rows] scale and g_q, in base 2 unless there is a softcap */
    float *bias[MXA_COPIES];   /* [rows] in the same units */
    float *raw;                /* rows as they are loaded: [MXA_TILE][dim], or one of dim_v */
    float *k;                  /* [MXA_TILE / MXA_COLS][dim][MXA_COLS] */
    float *v;                  /* [channels / MXA_COLS][MXA_TILE][MXA_COLS] */
    float *g_k;                /* [MXA_TILE] */
    bool *v_nonfinite;         /* [MXA_TILE]: the careful path took Inf or NaN out of this row of v */
    float *logits;             /* [MXA_ROWS][MXA_TILE] */
    mxa_vec *p;                /* [MXA_TILE][MXA_ROWS] */
    float *o;                  /* [rows][channels] */
    float *max, *sum;          /* [rows] */
    float *nonfinite;          /* [rows][channels]: visible Inf and NaN of V, summed */
} tile_work;

/* One key tile: its keys that some row of the query tile sees, counted from the tile's first. */
typedef struct key_tile {
    int64_t first; /* key 0 of the tile */
    int64_t begin, end;
    int copy;
} key_tile;

static int64_t round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

/* The next part of the scratch; NULL where only sizes are wanted. */
static void *carve(char *base, int64_t *used, int64_t bytes)
{
    void *const part = base ? base + *used : NULL;
    *used += round_up(bytes, ALIGNMENT);
    return part;
}

/* Lay out the parts; returns their size. */
static int64_t place(tile_work *w, const mxa_plan *plan, char *base)
{
    const int64_t dim = plan->problem.head_dim, channels = round_up(plan->problem.head_dim_v, MXA_COLS);
    const int64_t rows = plan->item_rows, blocks = round_up(rows, MXA_ROWS) / MXA_ROWS;
    const int64_t f32 = sizeof(float), lanes = sizeof(mxa_vec);
    int64_t used = 0;
    for (int copy = 0; copy < MXA_COPIES; copy++) {
        if (!plan->q[copy].info)
            continue;
        w->q[copy] = carve(base, &used, blocks * dim * MXA_ROWS * lanes);
        w->factor[copy] = carve(base, &used, rows * f32);
        w->bias[copy] = carve(base, &used, rows * f32);
    }
    w->raw = carve(base, &used, mxa_max(MXA_TILE * dim, channels) * f32);
    w->k = carve(base, &used, MXA_TILE * dim * f32);
    w->v = carve(base, &used, MXA_TILE * channels * f32);
    w->g_k = carve(base, &used, MXA_TILE * f32);
    w->v_nonfinite = carve(base, &used, MXA_TILE);
    w->logits = carve(base, &used, MXA_ROWS * MXA_TILE * f32);
    w->p = carve(base, &used, MXA_TILE * MXA_ROWS * lanes);
    w->o = carve(base, &used, rows * channels * f32);
    w->max = carve(base, &used, rows * f32);
    w->sum = carve(base, &used, rows * f32);
    w->nonfinite = carve(base, &used, rows * channels * f32);
    return used;
}

int64_t mxa_attention_portable_scratch(const mxa_plan *plan)
{
    tile_work w;
    return mxa_max(place(&w, plan, NULL), mxa_attention_ref_scratch(plan));
}

const char *mxa_attention_portable_refuses(const mxa_plan *plan)
{
    return plan->recipe.exact ? "computes in fp32, recipe exact wants float64" : NULL;
}

/* ------------------------------------------------------------------ loading */

/*
 * Head h + n of the item: its rows of the copy, and what their dot products are multiplied with and added to.
 */
static void load_q_head(tile_work *w, int copy, int64_t n)
{
    const mxa_problem *const p = &w->job->plan->problem;
    const mxa_rows q = mxa_job_q(w->job, copy, w->s, w->h + n);
    const double unit = p->softcap > 0 ? 1.0 : MXA_LOG2_E;
    const float scale = (float)((double)p->softmax_scale * unit);
    mxa_rows_load(&q, w->rows.first, w->head_rows, w->raw, w->dim);
    for (int64_t i = 0; i < w->head_rows; i++) {
        const int64_t r = n * w->head_rows + i;
        mxa_spread_row(w->raw + i * w->dim, w->dim,
                       w->q[copy] + r / MXA_ROWS * MXA_ROWS * w->dim + r % MXA_ROWS);
        w->factor[copy][r] = scale * mxa_rows_factor(&q, w->rows.first + i);
        const float bias = mxa_job_bias(w->job, copy, w->s, w->h + n, w->rows.first + i);
        w->bias[copy][r] = (float)((double)bias * unit);
    }
}

static void load_q(tile_work *w, int copy)
{
    for (int64_t n = 0; n < w->n_heads; n++)
        load_q_head(w, copy, n);
    w->loaded[copy] = true;
}

/* Whole groups of keys; those that no row sees are zero. */
static void load_k(tile_work *w, const key_tile *t)
{
    const mxa_rows k = mxa_job_k(w->job, t->copy, w->s, w->h_kv);
    const int64_t first = t->begin / MXA_COLS * MXA_COLS, end = round_up(t->end, MXA_COLS), dim = w->dim;
    mxa_rows_load(&k, t->first + t->begin, t->end - t->begin, w->raw + t->begin * dim, dim);
    memset(w->raw + first * dim, 0, (size_t)((t->begin - first) * dim) * sizeof *w->raw);
    memset(w->raw + t->end * dim, 0, (size_t)((end - t->end) * dim) * sizeof *w->raw);
    for (int64_t j = first; j < end; j += MXA_COLS)
        mxa_transpose_keys(w->raw + j * dim, dim, dim, w->k + j * dim);
    for (int64_t j = first; j < end; j++)
        w->g_k[j] = j >= t->begin && j < t->end ? mxa_rows_factor(&k, t->first + j) : 0.0f;
}

/* V in the P V type as fp32. Inf and NaN stay, or are taken out by the careful path. */
static void load_v(tile_work *w, const key_tile *t)
{
    const int64_t first = t->begin / MXA_COLS * MXA_COLS, end = round_up(t->end, MXA_COLS);
    const mxa_dtype type = w->job->plan->pv == MXA_PV_F16 ? MXA_DTYPE_F16 : MXA_DTYPE_BF16;
    float *const row = w->raw;
    for (int64_t j = first; j < end; j++) {
        memset(row, 0, (size_t)w->channels * sizeof *row);
        w->v_nonfinite[j] = false;
        if (j >= t->begin && j < t->end)
            mxa_row_load_as(w->job->v, w->s->batch, w->h_kv, w->s->k_first + t->first + j, type, row);
        for (int64_t d = 0; d < w->dim_v && w->careful; d++)
            if (!mxa_f32_is_finite(row[d])) {
                row[d] = 0.0f;
                w->v_nonfinite[j] = true;
            }
        for (int64_t c = 0; c < w->channels / MXA_COLS; c++)
            memcpy(w->v + (c * MXA_TILE + j) * MXA_COLS, row + c * MXA_COLS, MXA_COLS * sizeof *row);
    }
}

/* ------------------------------------------------------------------ one block of rows */

/* Up to MXA_ROWS rows, and the keys of the tile that they see between them, in whole groups. */
typedef struct block {
    int64_t first; /* row of the query tile */
    int rows;
    int64_t begin, end;
} block;

/* Keys of the tile that one row sees, counted from the tile's first. */
static mxa_span seen_keys(const tile_work *w, const key_tile *t, int64_t row)
{
    const int64_t position = w->rows.first + row % w->head_rows + w->s->map.q_offset;
    const mxa_span keys = mxa_visible_keys(&w->s->map, position, position);
    return (mxa_span){ mxa_max(keys.first - t->first, t->begin), mxa_min(keys.end - t->first, t->end) };
}

static void multiply_qk(const tile_work *w, const key_tile *t, const block *b)
{
    const mxa_vec *const q = w->q[t->copy] + b->first * w->dim;
    for (int64_t j = b->begin; j < b->end; j += MXA_COLS) {
        mxa_vec sums[MXA_ROWS][2];
        mxa_row_sums(b->rows, 0, w->dim, q, (const mxa_vec *)(const void *)(w->k + j * w->dim), sums);
        for (int r = 0; r < b->rows; r++) {
            mxa_vec_store(w->logits + r * MXA_TILE + j, sums[r][0]);
            mxa_vec_store(w->logits + r * MXA_TILE + j + MXA_LANES, sums[r][1]);
        }
    }
}

/* Dot products to logits in base 2; -Inf for keys outside of seen. */
static void finish_logits(const tile_work *w, const key_tile *t, const block *b, int r, mxa_span seen)
{
    float *const s = w->logits + r * MXA_TILE;
    const float softcap = w->job->plan->problem.softcap;
    const mxa_vec factor = mxa_vec_all(w->factor[t->copy][b->first + r]);
    const mxa_vec bias = mxa_vec_all(w->bias[t->copy][b->first + r]);
    for (int64_t j = b->begin; j < b->end; j += MXA_LANES)
        mxa_vec_store(s + j, mxa_vec_load(s + j) * mxa_vec_load(w->g_k + j) * factor + bias);
    if (softcap > 0) {
        const mxa_vec cap = mxa_vec_all(softcap), cap2 = mxa_vec_all((float)((double)softcap * MXA_LOG2_E));
        for (int64_t j = b->begin; j < b->end; j += MXA_LANES)
            mxa_vec_store(s + j, cap2 * mxa_vec_tanh(mxa_vec_load(s + j) / cap));
    }
    for (int64_t j = b->begin; j < mxa_min(seen.first, b->end); j++)
        s[j] = -INFINITY;
    for (int64_t j = mxa_max(seen.end, b->begin); j < b->end; j++)
        s[j] = -INFINITY;
}

/* The largest logit so far. NaN wins where all others are -Inf; elsewhere it reaches the sum. */
static float new_max(const tile_work *w, const block *b, int r)
{
    const float *const s = w->logits + r * MXA_TILE;
    mxa_vec largest = mxa_vec_all(w->max[b->first + r]);
    for (int64_t j = b->begin; j < b->end; j += MXA_LANES)
        largest = mxa_vec_max(mxa_vec_load(s + j), largest);
    const float max = mxa_vec_largest(largest);
    for (int64_t j = b->begin; j < b->end && max == -INFINITY; j++)
        if (isnan(s[j]))
            return NAN;
    return max;
}

/* The lanes of row r's p for four keys, each spread over a vector. */
static inline void spread_p(mxa_vec p, mxa_vec *out)
{
    out[0] = __builtin_shufflevector(p, p, 0, 0, 0, 0);
    out[MXA_ROWS] = __builtin_shufflevector(p, p, 1, 1, 1, 1);
    out[2 * MXA_ROWS] = __builtin_shufflevector(p, p, 2, 2, 2, 2);
    out[3 * MXA_ROWS] = __builtin_shufflevector(p, p, 3, 3, 3, 3);
}

/* p = 2^(s - max), its sum before it is rounded. Two vectors at a time hide the latency of the polynomial. */
static float weigh(const tile_work *w, const block *b, int r, float max)
{
    const float *const s = w->logits + r * MXA_TILE;
    const bool f16 = w->job->plan->pv == MXA_PV_F16;
    mxa_vec sum[2] = { mxa_vec_all(0.0f), mxa_vec_all(0.0f) };
    for (int64_t j = b->begin; j < b->end; j += MXA_COLS) {
        const mxa_vec p0 = mxa_vec_exp2(mxa_vec_load(s + j) - mxa_vec_all(max));
        const mxa_vec p1 = mxa_vec_exp2(mxa_vec_load(s + j + MXA_LANES) - mxa_vec_all(max));
        sum[0] += p0;
        sum[1] += p1;
        mxa_vec *const out = w->p + j * MXA_ROWS + r;
        spread_p(f16 ? mxa_vec_round_p_f16(p0) : mxa_vec_round_p_bf16(p0), out);
        spread_p(f16 ? mxa_vec_round_p_f16(p1) : mxa_vec_round_p_bf16(p1), out + MXA_LANES * MXA_ROWS);
    }
    return mxa_vec_sum(sum[0] + sum[1]);
}

/* One step of the online softmax for a row: what it had so far shrinks by 2^(old max - new max). */
static void softmax_row(tile_work *w, const block *b, int r)
{
    const int64_t row = b->first + r;
    const float max = new_max(w, b, r);
    if (max == -INFINITY) {
        for (int64_t j = b->begin; j < b->end; j++)
            w->p[j * MXA_ROWS + r] = mxa_vec_all(0.0f);
        return;
    }
    const float alpha = w->max[row] == -INFINITY ? 0.0f : mxa_vec_exp2(mxa_vec_all(w->max[row] - max))[0];
    w->sum[row] = w->sum[row] * alpha + weigh(w, b, r, max);
    w->max[row] = max;
    if (alpha != 1.0f)
        for (int64_t d = 0; d < w->channels; d += MXA_LANES)
            mxa_vec_store(w->o + row * w->channels + d,
                          mxa_vec_load(w->o + row * w->channels + d) * mxa_vec_all(alpha));
}

static void multiply_pv(tile_work *w, const block *b)
{
    for (int64_t c = 0; c < w->channels / MXA_COLS; c++) {
        mxa_vec sums[MXA_ROWS][2];
        mxa_row_sums(b->rows, b->begin, b->end, w->p,
                     (const mxa_vec *)(const void *)(w->v + c * MXA_TILE * MXA_COLS), sums);
        for (int r = 0; r < b->rows; r++) {
            float *const o = w->o + (b->first + r) * w->channels + c * MXA_COLS;
            mxa_vec_store(o, mxa_vec_load(o) + sums[r][0]);
            mxa_vec_store(o + MXA_LANES, mxa_vec_load(o + MXA_LANES) + sums[r][1]);
        }
    }
}

/* Inf and NaN of V that row r sees: a logit of -Inf counts as masked. */
static void collect_nonfinite(tile_work *w, const key_tile *t, const block *b, int r)
{
    float *const sums = w->nonfinite + (b->first + r) * w->channels;
    for (int64_t j = b->begin; j < b->end; j++) {
        if (!w->v_nonfinite[j] || w->logits[r * MXA_TILE + j] == -INFINITY)
            continue;
        float *const v = w->raw;
        mxa_row_load(w->job->v, w->s->batch, w->h_kv, w->s->k_first + t->first + j, v);
        for (int64_t d = 0; d < w->dim_v; d++)
            if (!mxa_f32_is_finite(v[d]))
                sums[d] += v[d];
    }
}

static void add_block(tile_work *w, const key_tile *t, int64_t first)
{
    block b = { first, (int)mxa_min(w->n - first, MXA_ROWS), MXA_TILE, 0 };
    mxa_span seen[MXA_ROWS];
    for (int r = 0; r < b.rows; r++) {
        seen[r] = seen_keys(w, t, first + r);
        if (seen[r].first < seen[r].end) {
            b.begin = mxa_min(b.begin, seen[r].first / MXA_COLS * MXA_COLS);
            b.end = mxa_max(b.end, round_up(seen[r].end, MXA_COLS));
        }
    }
    if (b.begin >= b.end)
        return;
    multiply_qk(w, t, &b);
    for (int r = 0; r < b.rows; r++) {
        finish_logits(w, t, &b, r, seen[r]);
        if (w->careful)
            collect_nonfinite(w, t, &b, r);
        softmax_row(w, &b, r);
    }
    multiply_pv(w, &b);
}

/* ------------------------------------------------------------------ the query tile */

/* The part that owns a sink logit starts with it: m = sink, l = 1. */
static void begin_rows(tile_work *w)
{
    const size_t o_bytes = (size_t)(w->n * w->channels) * sizeof *w->o;
    for (int64_t row = 0; row < w->n; row++) {
        const float sink = w->job->sinks ? w->job->sinks[w->h + row / w->head_rows] : -INFINITY;
        const bool broken = isnan(sink) || sink == INFINITY;
        w->max[row] = broken ? -INFINITY : (float)((double)sink * MXA_LOG2_E);
        w->sum[row] = broken ? NAN : sink == -INFINITY ? 0.0f : 1.0f;
    }
    memset(w->o, 0, o_bytes);
    if (w->careful)
        memset(w->nonfinite, 0, o_bytes);
}

static void add_tiles(tile_work *w)
{
    const mxa_tile_map *const map = &w->s->map;
    const mxa_span keys =
        mxa_visible_keys(map, w->rows.first + map->q_offset, w->rows.end - 1 + map->q_offset);
    if (keys.first >= keys.end)
        return;
    for (int64_t k_tile = keys.first / MXA_TILE; k_tile * MXA_TILE < keys.end; k_tile++) {
        const key_tile t = {
            .first = k_tile * MXA_TILE,
            .begin = mxa_max(keys.first - k_tile * MXA_TILE, 0),
            .end = mxa_min(keys.end - k_tile * MXA_TILE, MXA_TILE),
            .copy = mxa_tile_precision(map, w->tile, k_tile) == MXA_TILE_HIGH ? MXA_HIGH : MXA_LOW,
        };
        if (!w->loaded[t.copy])
            load_q(w, t.copy);
        load_k(w, &t);
        load_v(w, &t);
        for (int64_t first = 0; first < w->n; first += MXA_ROWS)
            add_block(w, &t, first);
    }
}

/* O / l into raw; false if one of them is Inf or NaN other than V's own. */
static bool divide_row(const tile_work *w, int64_t row)
{
    bool finite = true;
    for (int64_t d = 0; d < w->dim_v; d++) {
        const int64_t at = row * w->channels + d;
        const float o = w->sum[row] == 0 ? 0.0f : w->o[at] / w->sum[row];
        w->raw[d] = w->careful && w->nonfinite[at] != 0 ? w->nonfinite[at] : o;
        finite = finite && mxa_f32_is_finite(o);
    }
    return finite;
}

/* A sum of 0 is that of an empty row, or of logits that are all -Inf. */
static bool has_sum(const tile_work *w, int64_t row)
{
    const int64_t position = w->rows.first + row % w->head_rows + w->s->map.q_offset;
    const mxa_span seen = mxa_visible_keys(&w->s->map, position, position);
    return !isnan(w->sum[row]) && (w->sum[row] != 0 || seen.first >= seen.end);
}

/*
 * Store the rows that have a result. False, before all are stored, if the careful path has to do them again.
 */
static bool end_rows(const tile_work *w, bool *stored)
{
    for (int64_t row = 0; row < w->n; row++) {
        const int64_t h = w->h + row / w->head_rows, i = w->rows.first + row % w->head_rows;
        stored[row] = has_sum(w, row);
        if (!stored[row])
            continue;
        stored[row] = divide_row(w, row);
        if (!stored[row] && !w->careful)
            return false;
        mxa_row_store(w->job->out, w->s->batch, h, w->s->q_first + i, w->raw);
        float *const lse = mxa_job_lse(w->job, w->s, h, i);
        if (lse)
            *lse = mxa_lse(w->max[row], w->sum[row]);
    }
    return true;
}

/* Runs of rows of a head that are not stored. The scratch is free by now. */
static void leave_to_reference(const tile_work *w, const bool *stored, void *scratch)
{
    for (int64_t row = 0; row < w->n;) {
        const int64_t first = row, n = row / w->head_rows, head_end = (n + 1) * w->head_rows;
        while (row < head_end && !stored[row])
            row++;
        const int64_t i = w->rows.first + first % w->head_rows;
        if (row > first)
            mxa_attention_ref_rows(w->job, w->s, w->h + n, w->tile, (mxa_span){ i, i + row - first },
                                   scratch);
        else
            row++;
    }
}

void mxa_attention_portable(const mxa_attention_job *job, const mxa_attention_item *item, void *scratch)
{
    tile_work w = { .job = job, .s = item->s, .h = item->h, .n_heads = item->n_heads, .tile = item->tile };
    w.h_kv = mxa_job_kv_head(job, item->h);
    w.rows = mxa_tile_rows(item->s, item->tile);
    w.head_rows = w.rows.end - w.rows.first;
    w.n = w.head_rows * item->n_heads;
    assert(w.n <= MXA_ITEM_ROWS);
    w.dim = job->plan->problem.head_dim;
    w.dim_v = job->plan->problem.head_dim_v;
    w.channels = round_up(w.dim_v, MXA_COLS);
    place(&w, job->plan, scratch);
    bool stored[MXA_ITEM_ROWS];
    begin_rows(&w);
    add_tiles(&w);
    if (!end_rows(&w, stored)) {
        w.careful = true;
        begin_rows(&w);
        add_tiles(&w);
        end_rows(&w, stored);
    }
    leave_to_reference(&w, stored, scratch);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tiled attention in the tile registers of AMX. Key tiles are laid out once for all items; for each of them,
 * an item's rows go through Q K, softmax and P V (docs/kernels_cpu.md).
 */
#include "cpu/amx/attention_amx.h"

#include "cpu/amx/attention_tile_amx.h"
#include "cpu/ref/attention_ref.h"

int64_t mxa_amx_place_keys(mxa_amx_keys *keys, const mxa_plan *plan, char *base)
{
    int64_t used = 0;
    for (int i = 0; i < MXA_COPIES; i++) {
        if (!plan->k[i].info)
            continue;
        keys->k[i] = mxa_amx_carve(base, &used, MXA_TILE * mxa_amx_copy_of(plan, i).row_bytes);
        keys->g_k[i] = mxa_amx_carve(base, &used, MXA_TILE * sizeof(float));
    }
    keys->v = mxa_amx_carve(base, &used, MXA_TILE * mxa_amx_channels(plan) * (int64_t)sizeof(uint16_t));
    return used;
}

int64_t mxa_amx_place_load(mxa_amx_load *load, const mxa_plan *plan, char *base)
{
    int64_t used = 0, row_bytes = 0;
    for (int i = 0; i < MXA_COPIES; i++)
        if (plan->k[i].info)
            row_bytes = mxa_max(row_bytes, mxa_amx_copy_of(plan, i).row_bytes);
    load->raw = mxa_amx_carve(base, &used, MXA_TILE * row_bytes);
    load->wide = mxa_amx_carve(base, &used, MXA_TILE * plan->problem.head_dim * (int64_t)sizeof(float));
    load->v_rows = mxa_amx_carve(base, &used, 2 * mxa_amx_channels(plan) * (int64_t)sizeof(uint16_t));
    return used;
}

static bool divide_row(const mxa_item_rows *item, int64_t row)
{
    const mxa_amx_work *const w = (const void *)item; /* whose first member it is */
    const float *const o = mxa_amx_o(w, row);
    const __m512 factor = _mm512_set1_ps(item->sum[row] == 0 ? 1.0f : 1.0f / item->sum[row]);
    __m512 zero = _mm512_setzero_ps(); /* or NaN, once there is NaN or Inf */
    for (int64_t d = 0; d < item->channels; d += MXA_AVX512_LANES) {
        const __m512 x = _mm512_mul_ps(_mm512_loadu_ps(o + d), factor);
        zero = _mm512_fmadd_ps(x, _mm512_setzero_ps(), zero);
        _mm512_storeu_ps(item->row + d, x);
    }
    return _mm512_cmp_ps_mask(zero, zero, _CMP_UNORD_Q) == 0;
}
static_assert(offsetof(mxa_amx_work, item) == 0, "divide_row");

/* Lay out the parts; returns their size. */
static int64_t place(mxa_amx_work *w, const mxa_plan *plan, char *base)
{
    const int64_t f32 = sizeof(float), f16 = sizeof(uint16_t);
    const int64_t rows = mxa_amx_whole(plan->item_rows, MXA_AMX_GROUP), channels = mxa_amx_channels(plan);
    int64_t used = mxa_amx_place_load(&w->load, plan, base);
    for (int i = 0; i < MXA_COPIES; i++) {
        if (!plan->q[i].info)
            continue;
        w->copy[i] = mxa_amx_copy_of(plan, i);
        w->copy[i].q = mxa_amx_carve(base, &used, rows * w->copy[i].row_bytes);
        w->copy[i].factor = mxa_amx_carve(base, &used, rows * f32);
        w->copy[i].bias = mxa_amx_carve(base, &used, rows * f32);
    }
    w->dots = mxa_amx_carve(base, &used, MXA_AMX_GROUP * MXA_TILE * f32);
    w->p = mxa_amx_carve(base, &used, MXA_AMX_GROUP * MXA_TILE * f16);
    w->v = mxa_amx_carve(base, &used, MXA_TILE * channels * f16);
    w->logits = mxa_amx_carve(base, &used, MXA_TILE * f32);
    w->lanes = mxa_amx_carve(base, &used, rows * MXA_AVX512_LANES * f32);
    w->item.channels = channels;
    w->o_row = mxa_amx_whole(channels, MXA_TILE);
    w->o = mxa_amx_carve(base, &used, rows * w->o_row * f32);
    w->item.divide = divide_row;
    w->item.nonfinite = mxa_amx_carve(base, &used, rows * channels * f32);
    w->item.max = mxa_amx_carve(base, &used, rows * f32);
    w->item.sum = mxa_amx_carve(base, &used, rows * f32);
    w->item.row = mxa_amx_carve(base, &used, channels * f32);
    w->item.v_nonfinite = mxa_amx_carve(base, &used, MXA_TILE);
    return used;
}

int64_t mxa_attention_amx_scratch(const mxa_plan *plan)
{
    mxa_amx_work w;
    return mxa_max(place(&w, plan, NULL), mxa_attention_ref_scratch(plan));
}

int64_t mxa_attention_amx_shared(const mxa_plan *plan)
{
    mxa_amx_keys keys;
    return mxa_amx_place_keys(&keys, plan, NULL);
}

static bool is_exact_in_bf16(const mxa_format_info *info)
{
    return !info || (info->format != MXA_FORMAT_F16 && info->format != MXA_FORMAT_F32);
}

const char *mxa_attention_amx_refuses(const mxa_plan *plan)
{
    if (plan->recipe.exact)
        return "computes in fp32, recipe exact wants float64";
    if (plan->pv == MXA_PV_F16)
        return "its P and V are bf16, the recipe wants f16";
    for (int i = 0; i < MXA_COPIES; i++)
        if (!is_exact_in_bf16(plan->q[i].info) || !is_exact_in_bf16(plan->k[i].info))
            return "its Q and K are bf16 or int8, which do not hold f16 and f32";
    return NULL;
}

static void begin(mxa_amx_work *w)
{
    const int64_t rows = mxa_amx_whole(w->item.n, MXA_AMX_GROUP);
    mxa_item_begin(&w->item);
    memset(w->o, 0, (size_t)(rows * w->o_row) * sizeof *w->o);
    memset(w->lanes, 0, (size_t)(rows * MXA_AVX512_LANES) * sizeof *w->lanes);
}

/*
 * The rows' sums over lanes and with the sink's part. O and they carry the same power of two; a row that sees
 * no key has none of it.
 */
static bool end(const mxa_amx_work *w, bool *stored)
{
    for (int64_t row = 0; row < w->item.n; row++) {
        const float lanes = _mm512_reduce_add_ps(_mm512_loadu_ps(w->lanes + row * MXA_AVX512_LANES));
        if (lanes == 0)
            continue;
        w->item.sum[row] = w->item.sum[row] * MXA_AMX_P_SCALE + lanes;
        w->item.max[row] -= MXA_AMX_P_LOG2;
    }
    return mxa_item_end(&w->item, stored);
}

/* Do all rows see all keys? The first row and the last see least. */
static bool sees_all(const mxa_amx_work *w, const mxa_key_tile *t)
{
    const mxa_span first = mxa_item_seen(&w->item, t, 0);
    const mxa_span last = mxa_item_seen(&w->item, t, w->item.head_rows - 1);
    return mxa_max(first.first, last.first) <= 0 && mxa_min(first.end, last.end) >= MXA_TILE;
}

static bool has_factor(const float *g_k)
{
    __mmask16 any = 0;
    for (int64_t j = 0; j < MXA_TILE; j += MXA_AVX512_LANES)
        any |= _mm512_cmp_ps_mask(_mm512_loadu_ps(g_k + j), _mm512_set1_ps(1.0f), _CMP_NEQ_UQ);
    return any != 0;
}

static mxa_amx_tile open_tile(mxa_amx_work *w, mxa_key_tile t)
{
    const mxa_item_rows *const item = &w->item;
    if (!w->copy[t.copy].loaded)
        mxa_amx_load_q(w, t.copy);
    mxa_amx_keys keys;
    mxa_amx_place_keys(&keys, item->job->plan,
                       mxa_job_shared(item->job, item->s, item->h_kv, t.first / MXA_TILE));
    if (item->careful)
        mxa_amx_load_careful_v(w, &t);
    return (mxa_amx_tile){ .t = t,
                           .copy = &w->copy[t.copy],
                           .k = keys.k[t.copy],
                           .v = item->careful ? w->v : keys.v,
                           .g_k = keys.g_k[t.copy],
                           .scaled = has_factor(keys.g_k[t.copy]),
                           .whole = sees_all(w, &t) };
}

/* There is one tile's careful V. */
static void add_tiles(mxa_amx_work *w)
{
    const mxa_span keys = mxa_item_keys(&w->item);
    const int64_t most = w->item.careful ? 1 : MXA_AMX_CHUNK;
    const int64_t end = keys.first < keys.end ? (keys.end - 1) / MXA_TILE + 1 : 0;
    mxa_amx_tile tiles[MXA_AMX_CHUNK];
    for (int64_t i = keys.first / MXA_TILE; i < end; i += most) {
        const int64_t n = mxa_min(most, end - i);
        for (int64_t k = 0; k < n; k++)
            tiles[k] = open_tile(w, mxa_item_key_tile(&w->item, keys, i + k));
        mxa_amx_add_tiles(w, tiles, n);
    }
}

void mxa_attention_amx(const mxa_attention_job *job, const mxa_attention_item *item, void *scratch)
{
    mxa_amx_work w = { .item = mxa_item_rows_of(job, item) };
    place(&w, job->plan, scratch);
    bool stored[MXA_ITEM_ROWS];
    mxa_amx_begin();
    begin(&w);
    add_tiles(&w);
    if (!end(&w, stored)) {
        w.item.careful = true;
        begin(&w);
        add_tiles(&w);
        end(&w, stored);
    }
    mxa_amx_end();
    mxa_item_leave_to_reference(&w.item, stored, scratch);
}

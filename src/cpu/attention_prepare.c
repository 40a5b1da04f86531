/* SPDX-License-Identifier: Apache-2.0 */
/* What happens before the tiles: the mean of K, the bias of each query, and the copies of Q and K. */
#include <assert.h>

#include "cpu/attention_work.h"
#include "cpu/quantize_cpu.h"
#include "cpu/steps_cpu.h"
#include "format/format.h"
#include "format/second_level.h"

/* [sequences][heads_kv][head_dim] of PREFIX (the first tile's keys) and FULL. */
static void compute_means(const mxa_plan *plan, const mxa_tensor *k, float *mean)
{
    const int64_t heads = plan->problem.heads_kv, dim = plan->problem.head_dim, n = plan->n_sequences * heads;
    const int64_t most = plan->recipe.smooth_k == MXA_SMOOTH_PREFIX ? MXA_TILE : INT64_MAX;
#pragma omp parallel for num_threads(plan->threads)
    for (int64_t i = 0; i < n; i++) {
        const mxa_sequence *const s = &plan->sequences[i / heads];
        const mxa_row_span keys = {
            .b = s->batch, .h = i % heads, .first = s->k_first, .rows = mxa_min(s->map.kv_len, most)
        };
        mxa_span_mean(k, keys, mean + i * dim);
    }
}

/* b_i = softmax_scale * <q_i, mean>, with Q as it comes. */
static void compute_bias(const mxa_plan *plan, const mxa_tensor *q, const float *mean, float *bias)
{
    const mxa_problem *const p = &plan->problem;
    const int64_t group = p->heads / p->heads_kv, dim = p->head_dim, n = plan->n_tiles * p->heads;
    mxa_dot_rows_fn *const dot = mxa_prepare_pick()->dot;
#pragma omp parallel for num_threads(plan->threads) schedule(dynamic)
    for (int64_t item = 0; item < n; item++) {
        const mxa_query_tile *const t = &plan->tiles[item / p->heads];
        const mxa_sequence *const s = &plan->sequences[t->sequence];
        const int64_t h = item % p->heads;
        const float *const mu = mean + (t->sequence * p->heads_kv + h / group) * dim;
        const mxa_span rows = mxa_tile_rows(s, t->tile);
        const mxa_source source = { mxa_row(q, s->batch, h, s->q_first + rows.first), q->dtype,
                                    rows.end - rows.first, dim, q->stride[2] };
        double dots[MXA_TILE];
        dot(&source, mu, dots);
        for (int64_t i = rows.first; i < rows.end; i++)
            bias[s->q_rows + h * s->map.q_len + i] = (float)((double)p->softmax_scale * dots[i - rows.first]);
    }
}

/* Q or K of one call. */
typedef struct operand_source {
    const mxa_plan *plan;
    const mxa_tensor *x;
    bool of_k;
    const mxa_operand *operands; /* [MXA_COPIES] */
    const float *mean, *g_given;
    void *scratch;
} operand_source;

static int64_t units_before(const mxa_sequence *s, mxa_level level, bool of_k, int64_t sequence,
                            int64_t heads)
{
    switch (level) {
    case MXA_LEVEL_HEAD: return sequence * heads;
    case MXA_LEVEL_TOKEN_BLOCK: return of_k ? s->k_blocks : s->q_blocks;
    case MXA_LEVEL_TOKEN: return of_k ? s->k_rows : s->q_rows;
    default: return 0;
    }
}

/* The copy as the quantiser makes it for a whole tensor, or for one sequence of packed ones. */
static mxa_copy make_copy(const operand_source *o, int i, int64_t sequence)
{
    const mxa_operand *const op = &o->operands[i];
    const mxa_copy_plan *const c = op->plan;
    const mxa_sequence *const s = &o->plan->sequences[sequence];
    const int64_t heads = o->x->shape[1], row = o->of_k ? s->k_rows : s->q_rows;
    const int64_t unit = units_before(s, c->level, o->of_k, sequence, heads);
    const bool given = o->g_given && mxa_copy_has_factor(c->info);
    return (mxa_copy){
        .spec = { c->info, c->rule, 0 },
        .level = c->level,
        .axis = MXA_AXIS_HEAD,
        .layout = MXA_LAYOUT_ROW,
        .rotate = c->rotate,
        .mean = c->smooth ? o->mean + sequence * heads * o->x->shape[3] : NULL,
        .g_given = given ? o->plan->packed ? op->g + unit : o->g_given : NULL,
        .out = { op->codes + row * op->row_bytes, op->scales ? op->scales + row * op->scale_cols : NULL,
                 op->g ? op->g + unit : NULL, NULL },
    };
}

/* The rows of one sequence as a tensor of their own. */
static mxa_tensor sequence_view(const operand_source *o, int64_t sequence)
{
    const mxa_sequence *const s = &o->plan->sequences[sequence];
    mxa_tensor view = *o->x;
    view.data = mxa_row(o->x, 0, 0, o->of_k ? s->k_first : s->q_first);
    view.shape[2] = o->of_k ? s->map.kv_len : s->map.q_len;
    return view;
}

/* Given factors of packed tensors, moved to where the copy's sequences have them. */
static void gather_factors(const operand_source *o, const mxa_operand *op)
{
    const int64_t heads = o->x->shape[1], total = o->x->shape[2];
    if (op->plan->level == MXA_LEVEL_TENSOR || op->plan->level == MXA_LEVEL_HEAD) {
        const int64_t n = op->plan->level == MXA_LEVEL_TENSOR ? 1 : o->plan->n_sequences * heads;
        memcpy(op->g, o->g_given, (size_t)n * sizeof *op->g);
        return;
    }
    assert(op->plan->level == MXA_LEVEL_TOKEN);
    for (int64_t b = 0; b < o->plan->n_sequences; b++) {
        const mxa_sequence *const s = &o->plan->sequences[b];
        const int64_t first = o->of_k ? s->k_first : s->q_first, len = o->of_k ? s->map.kv_len : s->map.q_len;
        for (int64_t h = 0; h < heads; h++)
            memcpy(op->g + (o->of_k ? s->k_rows : s->q_rows) + h * len, o->g_given + h * total + first,
                   (size_t)len * sizeof *op->g);
    }
}

/* One factor for all sequences of packed tensors. */
static void tensor_factor(const operand_source *o, int i)
{
    const mxa_operand *const op = &o->operands[i];
    float amax = 0;
    for (int64_t b = 0; b < o->plan->n_sequences; b++) {
        const mxa_tensor view = sequence_view(o, b);
        const mxa_copy copy = make_copy(o, i, b);
        if (view.shape[2] == 0)
            continue;
        const float own =
            mxa_finite_amax(&view, MXA_NONFINITE_PROPAGATE, &copy, o->plan->threads, o->scratch);
        amax = own > amax ? own : amax;
    }
    *op->g = mxa_second_level(mxa_g_divisor(op->plan->info), 0, amax);
}

static void quantize(const operand_source *o, int n, const int *which)
{
    mxa_copy copies[MXA_COPIES];
    int64_t n_bad[MXA_COPIES];
    if (!o->plan->packed && o->plan->n_sequences > 0) {
        for (int c = 0; c < n; c++)
            copies[c] = make_copy(o, which[c], 0);
        mxa_quantize_copies(o->x, MXA_NONFINITE_PROPAGATE, n, copies, o->plan->threads, o->scratch, n_bad);
        return;
    }
    bool fixed[MXA_COPIES] = { false };
    for (int c = 0; c < n; c++) {
        const mxa_operand *const op = &o->operands[which[c]];
        const bool given = o->g_given && mxa_copy_has_factor(op->plan->info);
        fixed[c] = given || op->plan->level == MXA_LEVEL_TENSOR;
        if (given)
            gather_factors(o, op);
        else if (fixed[c])
            tensor_factor(o, which[c]);
    }
    for (int64_t b = 0; b < o->plan->n_sequences; b++) {
        const mxa_tensor view = sequence_view(o, b);
        if (view.shape[2] == 0)
            continue;
        for (int c = 0; c < n; c++) {
            copies[c] = make_copy(o, which[c], b);
            if (fixed[c])
                copies[c].g_given = copies[c].out.g;
        }
        mxa_quantize_copies(&view, MXA_NONFINITE_PROPAGATE, n, copies, o->plan->threads, o->scratch, n_bad);
    }
}

static mxa_operand make_operand(const mxa_copy_plan *copy, const mxa_copy_work *w, char *base,
                                const mxa_tensor *x)
{
    if (!copy->info)
        return (mxa_operand){ 0 };
    return (mxa_operand){
        .plan = copy,
        .decode = mxa_decode_pick(copy->info->format),
        .x = x,
        .codes = copy->stored ? (uint8_t *)base + w->codes : NULL,
        .scales = copy->stored && w->scale_cols ? (uint8_t *)base + w->scales : NULL,
        .g = copy->stored && w->n_factors ? (float *)(void *)(base + w->g) : NULL,
        .row_bytes = w->row_bytes,
        .scale_cols = w->scale_cols,
    };
}

static void make_copies(const operand_source *o)
{
    int n = 0, which[MXA_COPIES];
    for (int i = 0; i < MXA_COPIES; i++)
        if (o->operands[i].codes)
            which[n++] = i;
    const int64_t *const shape = o->x->shape;
    if (n > 0 && shape[0] > 0 && shape[2] > 0)
        quantize(o, n, which);
}

void mxa_attention_prepare(const mxa_plan *plan, const mxa_attention_args *args,
                           const mxa_attention_work *work, mxa_attention_job *job)
{
    char *const base = args->work;
    *job = (mxa_attention_job){
        .plan = plan, .v = args->v, .out = args->out, .lse = args->lse, .sinks = args->sinks
    };
    for (int i = 0; i < MXA_COPIES; i++) {
        job->q[i] = make_operand(&plan->q[i], &work->q[i], base, args->q);
        job->k[i] = make_operand(&plan->k[i], &work->k[i], base, args->k);
    }
    const float *mean = args->mean;
    if (mxa_plan_smooths(plan)) {
        if (plan->recipe.smooth_k != MXA_SMOOTH_GIVEN) {
            float *const computed = (float *)(void *)(base + work->mean);
            compute_means(plan, args->k, computed);
            mean = computed;
        }
        float *const bias = (float *)(void *)(base + work->bias);
        compute_bias(plan, args->q, mean, bias);
        job->bias = bias;
    }
    void *const scratch = base + work->scratch;
    make_copies(&(operand_source){ plan, args->q, false, job->q, NULL, args->g_q, scratch });
    make_copies(&(operand_source){ plan, args->k, true, job->k, mean, args->g_k, scratch });
}

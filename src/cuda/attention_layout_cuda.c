/* SPDX-License-Identifier: Apache-2.0 */
/* What lies where in the workspace of an attention call. */
#include "cuda/attention_plan_cuda.h"
#include "format/format.h"

/* Starts of parts for whole cache lines; rows of codes for the tensor memory accelerator. */
enum { ALIGNMENT = 128, ROW_ALIGNMENT = 16 };

typedef struct layout {
    int64_t total;
    bool fits;
} layout;

/* The offset of an array of n elements of size bytes; -1 if it is empty. */
static int64_t take(layout *l, int64_t n, int64_t size)
{
    const int64_t offset = l->total;
    int64_t bytes;
    if (n == 0 || size == 0)
        return -1;
    l->fits = l->fits && mxa_mul(n, size, &bytes) && mxa_add(bytes, ALIGNMENT - 1, &bytes) &&
              mxa_add(l->total, bytes & -(int64_t)ALIGNMENT, &l->total);
    return offset;
}

static bool folds(mxa_cuda_form form)
{
    return form == MXA_CUDA_E5M2 || form == MXA_CUDA_E4M3;
}

mxa_cuda_rows mxa_cuda_plan_rows(const mxa_plan *plan, mxa_cuda_which which, const mxa_tensor *x)
{
    const mxa_problem *const p = &plan->problem;
    const bool of_k = which != MXA_CUDA_Q;
    const mxa_cuda_plan *const cuda = plan->backend;
    mxa_cuda_rows rows = {
        .sequences = plan->packed && cuda ? cuda->sequences : NULL,
        .n_sequences = plan->n_sequences,
        .n_rows = of_k ? plan->k_rows : plan->q_rows,
        .n_blocks = of_k ? plan->k_blocks : plan->q_blocks,
        .of_k = of_k,
    };
    const mxa_dtype dtypes[3] = { p->q_dtype, p->k_dtype, p->v_dtype };
    rows.x = x ? *x
               : mxa_tensor_contiguous(NULL, dtypes[which], plan->packed ? 1 : p->batch,
                                       of_k ? p->heads_kv : p->heads, of_k ? p->kv_len : p->q_len,
                                       which == MXA_CUDA_V ? p->head_dim_v : p->head_dim);
    return rows;
}

static int64_t count_factors(const mxa_plan *plan, mxa_level level, bool of_k)
{
    switch (level) {
    case MXA_LEVEL_TENSOR: return 1;
    case MXA_LEVEL_HEAD: return plan->n_sequences * (of_k ? plan->problem.heads_kv : plan->problem.heads);
    case MXA_LEVEL_TOKEN_BLOCK: return of_k ? plan->k_blocks : plan->q_blocks;
    case MXA_LEVEL_TOKEN: return of_k ? plan->k_rows : plan->q_rows;
    default: return 0;
    }
}

static const mxa_cuda_place absent = { .form = MXA_CUDA_TENSOR,
                                       .g_level = MXA_LEVEL_NONE,
                                       .codes = -1,
                                       .scales = -1,
                                       .g = -1,
                                       .nonfinite_tiles = -1 };

/* The level at which a form's factors are written. */
static mxa_level level_written(mxa_cuda_form form, mxa_level own, mxa_level wanted)
{
    if (folds(form))
        return MXA_LEVEL_TOKEN_BLOCK;
    return own == MXA_LEVEL_NONE || wanted == MXA_LEVEL_DEFAULT ? own : wanted;
}

/* nonfinite_tiles of each copy, or -1. */
typedef struct tile_marks {
    int64_t q[MXA_COPIES], k[MXA_COPIES];
} tile_marks;

static int64_t take_marks(layout *l, const mxa_copy_plan *copy, mxa_cuda_form form, bool wanted,
                          int64_t blocks)
{
    return wanted && copy->info && form != MXA_CUDA_TENSOR ? take(l, blocks, 1) : -1;
}

/* What begins as zeros lies together. */
static tile_marks place_zeros(layout *l, const mxa_plan *plan, const mxa_cuda_forms *f,
                              mxa_cuda_choice *choice)
{
    tile_marks marks;
    choice->zeros = take(l, MXA_CUDA_COUNTER_BYTES, 1);
    for (int i = 0; i < MXA_COPIES; i++) {
        marks.q[i] = take_marks(l, &plan->q[i], f->q[i], f->nonfinite_tiles, plan->q_blocks);
        marks.k[i] = take_marks(l, &plan->k[i], f->k[i], f->nonfinite_tiles, plan->k_blocks);
    }
    choice->zero_bytes = l->total - choice->zeros;
    return marks;
}

static mxa_cuda_place place_copy(layout *l, const mxa_plan *plan, const mxa_copy_plan *copy, bool of_k,
                                 mxa_cuda_form form, mxa_level factors, int64_t nonfinite_tiles)
{
    mxa_cuda_place p = absent;
    if (!copy->info || form == MXA_CUDA_TENSOR)
        return p;
    const int64_t rows = of_k ? plan->k_rows : plan->q_rows, dim = plan->problem.head_dim;
    p.form = form;
    p.g_level = level_written(form, copy->level, factors);
    p.row_bytes = mxa_round_up(mxa_cuda_form_row_bytes(copy->info, form, dim), ROW_ALIGNMENT);
    p.scale_cols = form == MXA_CUDA_CODES ? mxa_scale_cols(copy->info, dim) : 0;
    p.codes = take(l, rows, p.row_bytes);
    p.scales = take(l, rows, p.scale_cols);
    p.g = take(l, count_factors(plan, p.g_level, of_k), sizeof(float));
    p.nonfinite_tiles = nonfinite_tiles;
    return p;
}

static mxa_cuda_place place_v(layout *l, const mxa_plan *plan, mxa_cuda_form form)
{
    enum { BYTES_OF_16 = 2 };
    mxa_cuda_place p = absent;
    if (form == MXA_CUDA_TENSOR)
        return p;
    p.form = form;
    p.row_bytes = mxa_round_up(plan->problem.head_dim_v * BYTES_OF_16, ROW_ALIGNMENT);
    p.codes = take(l, plan->k_rows, p.row_bytes);
    return p;
}

/* The quantiser's scratch for any of the three. */
static int64_t quantizer_bytes(const mxa_plan *plan, const mxa_cuda_choice *choice)
{
    int64_t most = 0;
    for (int which = MXA_CUDA_Q; which <= MXA_CUDA_V; which++) {
        mxa_cuda_copy copies[MXA_COPIES];
        const int n = mxa_cuda_plan_copies(plan, choice, which, NULL, NULL, NULL, copies);
        const mxa_cuda_rows rows = mxa_cuda_plan_rows(plan, which, NULL);
        if (n > 0)
            most = mxa_max(most, mxa_cuda_quantize_work_bytes(&rows, MXA_NONFINITE_PROPAGATE, n, copies));
    }
    return most;
}

/* A copy of a 16-bit tensor in its own type. */
static mxa_cuda_form copied(mxa_cuda_form form, mxa_dtype dtype)
{
    if (form != MXA_CUDA_TENSOR || dtype == MXA_DTYPE_F32)
        return form;
    return dtype == MXA_DTYPE_F16 ? MXA_CUDA_F16 : MXA_CUDA_BF16;
}

mxa_cuda_forms mxa_cuda_choice_forms(const mxa_plan *plan, const mxa_cuda_choice *choice)
{
    mxa_cuda_forms f = choice->impl->forms(plan);
    for (int i = 0; i < MXA_COPIES && choice->copies; i++) {
        f.q[i] = copied(f.q[i], plan->problem.q_dtype);
        f.k[i] = copied(f.k[i], plan->problem.k_dtype);
    }
    if (choice->copies)
        f.v = copied(f.v, plan->problem.v_dtype);
    return f;
}

bool mxa_cuda_layout(const mxa_plan *plan, const mxa_cuda_device *device, mxa_cuda_choice *choice)
{
    const mxa_problem *const p = &plan->problem;
    const mxa_cuda_forms f = mxa_cuda_choice_forms(plan, choice);
    layout l = { 0, true };
    choice->mean = choice->bias = -1;
    const tile_marks marks = place_zeros(&l, plan, &f, choice);
    if (mxa_plan_smooths(plan)) {
        int64_t means;
        l.fits = mxa_mul(plan->n_sequences, p->heads_kv * p->head_dim, &means);
        choice->mean = take(&l, l.fits ? means : 0, sizeof(float));
        choice->bias = take(&l, plan->q_rows, sizeof(float));
    }
    for (int i = 0; i < MXA_COPIES; i++) {
        choice->q[i] = place_copy(&l, plan, &plan->q[i], false, f.q[i], f.q_factors[i], marks.q[i]);
        choice->k[i] = place_copy(&l, plan, &plan->k[i], true, f.k[i], f.k_factors[i], marks.k[i]);
    }
    choice->v = place_v(&l, plan, f.v);
    const int64_t entry = choice->impl->work_bytes ? choice->impl->work_bytes(plan, device) : 0;
    choice->work = take(&l, mxa_max(quantizer_bytes(plan, choice), entry), 1);
    choice->total = l.total;
    return l.fits;
}

static uint8_t *at(char *work, int64_t offset)
{
    return work && offset >= 0 ? (uint8_t *)work + offset : NULL;
}

static mxa_cuda_copy make_copy(const mxa_copy_plan *c, const mxa_cuda_place *place, char *work,
                               const float *g, const float *mean)
{
    return (mxa_cuda_copy){
        .copy = { .spec = { c->info, c->rule, 0 },
                  .level = c->level,
                  .axis = MXA_AXIS_HEAD,
                  .layout = MXA_LAYOUT_ROW,
                  .rotate = c->rotate,
                  .mean = c->smooth ? mean : NULL,
                  .g_given = c->level != MXA_LEVEL_NONE ? g : NULL,
                  .out = { at(work, place->codes), at(work, place->scales),
                           (float *)(void *)at(work, place->g), at(work, place->nonfinite_tiles) } },
        .form = place->form,
        .row_bytes = place->row_bytes,
        .g_written = place->g_level,
        .tiles_are_zero = true,
    };
}

int mxa_cuda_plan_copies(const mxa_plan *plan, const mxa_cuda_choice *choice, mxa_cuda_which which,
                         char *work, const float *g, const float *mean, mxa_cuda_copy copies[MXA_COPIES])
{
    if (which == MXA_CUDA_V) {
        const bool half = choice->v.form == MXA_CUDA_F16;
        const mxa_copy_plan v = { .info = mxa_format_get(half ? MXA_FORMAT_F16 : MXA_FORMAT_BF16),
                                  .level = MXA_LEVEL_NONE };
        copies[0] = make_copy(&v, &choice->v, work, NULL, NULL);
        copies[0].form = MXA_CUDA_CODES;
        return choice->v.form != MXA_CUDA_TENSOR;
    }
    const mxa_copy_plan *const plans = which == MXA_CUDA_Q ? plan->q : plan->k;
    const mxa_cuda_place *const places = which == MXA_CUDA_Q ? choice->q : choice->k;
    int n = 0;
    for (int i = 0; i < MXA_COPIES; i++)
        if (places[i].form != MXA_CUDA_TENSOR)
            copies[n++] = make_copy(&plans[i], &places[i], work, g, mean);
    return n;
}

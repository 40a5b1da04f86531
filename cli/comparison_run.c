/* SPDX-License-Identifier: Apache-2.0 */
#include "comparison.h"

#include "attend.h"
#include "cli.h"
#include "progress.h"
#include "tiles.h"
#include "timing.h"

#include <math.h>
#include <stdlib.h>

#define EXACT_RECIPE  "exact"
#define FP32_RECIPE   "low=f32" /* the baseline on a CPU */
#define BF16_RECIPE   "bf16"    /* the baseline on a GPU */
#define TIMED_RUNS    5
#define TIMED_SECONDS 0.3
#define BITS_PER_BYTE 8

/* Outputs of the reference and of the recipe at hand, which comes in 16 bits first where GPUs write these. */
typedef struct outputs {
    float *reference, *reference_lse, *result, *result_lse;
    void *narrow;
} outputs;

static bool alloc_outputs(outputs *o, const attention_input *input)
{
    const uint64_t rows = (uint64_t)(input->matrices * input->q.shape[2]);
    uint64_t bytes;
    if (__builtin_mul_overflow(rows * sizeof(float), (uint64_t)input->v.shape[3], &bytes))
        bytes = UINT64_MAX;
    return (o->narrow = cli_alloc(bytes, "the output")) != NULL &&
           (o->reference = cli_alloc(bytes, "the reference output")) != NULL &&
           (o->result = cli_alloc(bytes, "the output")) != NULL &&
           (o->reference_lse = cli_alloc(rows * sizeof(float), "the reference log-sum-exp")) != NULL &&
           (o->result_lse = cli_alloc(rows * sizeof(float), "the log-sum-exp")) != NULL;
}

static void free_outputs(outputs *o)
{
    free(o->narrow);
    free(o->reference);
    free(o->reference_lse);
    free(o->result);
    free(o->result_lse);
}

static bool run_call(void *call)
{
    return attend_run(call);
}

/* The type of a recipe's output: kernels of GPUs write that of the input. */
static mxa_dtype result_dtype(const attention_input *input)
{
    return device_is_cuda(input->problem.device) ? input->q.dtype : MXA_DTYPE_F32;
}

/* The narrow output as fp32, exactly. */
static bool widen(const attention_input *input, const outputs *o)
{
    const int64_t *q = input->q.shape;
    const mxa_dtype dtype = result_dtype(input);
    const mxa_format format = dtype == MXA_DTYPE_F32   ? MXA_FORMAT_F32
                              : dtype == MXA_DTYPE_F16 ? MXA_FORMAT_F16
                                                       : MXA_FORMAT_BF16;
    const mxa_packed narrow = { .codes = o->narrow };
    const mxa_tensor wide =
        mxa_tensor_contiguous(o->result, MXA_DTYPE_F32, q[0], q[1], q[2], input->v.shape[3]);
    if (mxa_dequantize(&narrow, format, NULL, &wide) == MXA_OK)
        return true;
    cli_fail("%s: %s", input->file.path, mxa_error_text());
    return false;
}

/* Run a recipe into the result, and time it. */
static bool time_recipe(const attention_input *input, const mxa_recipe *recipe, const outputs *o, double *ms)
{
    attend_call call;
    const timed_call once = { run_call, &call };
    timing t = { 0 };
    const bool ok = attend_open(&call, input, recipe, result_dtype(input), o->narrow, o->result_lse) &&
                    timing_measure(&once, 1, TIMED_RUNS, TIMED_SECONDS, &t) && attend_fetch(&call) &&
                    widen(input, o);
    attend_close(&call);
    *ms = t.median_ms;
    return ok;
}

/* Stored bits of an element of K: of the low copy, or of the high one if the recipe has no low tiles. */
static bool key_bits(const attention_input *input, const mxa_recipe *recipe, double *bits)
{
    const int64_t *k = input->k.shape;
    const mxa_format format = recipe->low_k != MXA_FORMAT_NONE ? recipe->low_k : recipe->high_k;
    if (recipe->exact) {
        *bits = BITS_PER_BYTE * input_dtype_bytes(input->k.dtype);
        return true;
    }
    mxa_quant_opts opts;
    mxa_quant_default(&opts);
    opts.fill_tail = true;
    const mxa_scale_type scale = mxa_format_get(format)->scale;
    if (scale == MXA_SCALE_E8M0)
        opts.rule = recipe->rule_k;
    else if (mxa_format_get(format)->quantized)
        opts.level = recipe->level_k;
    mxa_packed_size size;
    if (mxa_packed_sizes(format, &opts, k, &size) != MXA_OK) {
        cli_fail("%s: tensor \"k\": %s", input->file.path, mxa_error_text());
        return false;
    }
    const double bytes = (double)size.code_bytes + (double)size.scale_bytes + 4.0 * (double)size.g_count;
    const double elements = (double)k[0] * (double)k[1] * (double)k[2] * (double)k[3];
    *bits = elements > 0 ? BITS_PER_BYTE * bytes / elements : 0;
    return true;
}

/* Rows of the reference with NaN or Inf. */
static int64_t count_nonfinite(const float *reference, int64_t rows, int64_t dim)
{
    int64_t count = 0;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t d = 0; d < dim; d++)
            if (!isfinite(reference[i * dim + d])) {
                count++;
                break;
            }
    return count;
}

static bool run_row(comparison_row *row, const comparison *c, const attention_input *input, const outputs *o)
{
    mxa_recipe recipe;
    tile_counts tiles;
    if (mxa_recipe_parse(row->recipe, &recipe) != MXA_OK) {
        cli_fail("--recipe %.80s: %s", row->recipe, mxa_error_text());
        return false;
    }
    row->heads = cli_alloc((uint64_t)c->matrices * sizeof(metric_sums), "the sums of each head");
    if (row->heads == NULL || !time_recipe(input, &recipe, o, &row->time_ms) ||
        !key_bits(input, &recipe, &row->k_bits) ||
        !tiles_count(&input->problem, &recipe, input->seq_count, &tiles))
        return false;
    const int64_t rows = input->q.shape[2], dim = input->v.shape[3];
    for (int64_t h = 0; h < c->matrices; h++)
        row->heads[h] = metrics_head(o->result + h * rows * dim, o->reference + h * rows * dim,
                                     o->result_lse + h * rows, o->reference_lse + h * rows, rows, dim);
    row->total = metrics_of(row->heads, c->matrices);
    row->high_share = tiles_high_share(&tiles);
    return true;
}

/* Whether a device has no kernel for a recipe, after a note. */
static bool has_no_kernel(const attention_input *input, const char *text)
{
    mxa_problem problem = input->problem;
    mxa_recipe recipe;
    mxa_plan *plan = NULL;
    if (!device_is_cuda(problem.device) || mxa_recipe_parse(text, &recipe) != MXA_OK)
        return false;
    problem.out_dtype = result_dtype(input);
    const mxa_status status = mxa_plan_create(&problem, &recipe, &plan);
    mxa_plan_free(plan);
    if (status == MXA_ERR_UNSUPPORTED)
        cli_note("%s left out: %s", text, mxa_error_text());
    return status == MXA_ERR_UNSUPPORTED;
}

static bool run_all(comparison *c, const attention_input *input, const char *const *recipes, size_t count,
                    const outputs *o)
{
    mxa_recipe exact, baseline;
    attention_input on_cpu = *input;
    on_cpu.problem.device = MXA_DEVICE_CPU;
    const bool cuda = device_is_cuda(input->problem.device);
    c->baseline = cuda ? "bf16" : "fp32";
    if (mxa_recipe_parse(EXACT_RECIPE, &exact) != MXA_OK ||
        mxa_recipe_parse(cuda ? BF16_RECIPE : FP32_RECIPE, &baseline) != MXA_OK) {
        cli_fail("%s", mxa_error_text());
        return false;
    }
    progress_begin("float64", attend_steps(&on_cpu, &exact) + 1 + (int64_t)count);
    if (!attend_all(&on_cpu, &exact, MXA_DTYPE_F32, o->reference, o->reference_lse))
        return false;
    c->rows_compared = c->matrices * input->q.shape[2];
    c->nonfinite = count_nonfinite(o->reference, c->rows_compared, input->v.shape[3]);
    progress_label(c->baseline);
    if (!time_recipe(input, &baseline, o, &c->baseline_ms))
        return false;
    progress_step();
    for (size_t i = 0; i < count; i++, progress_step()) {
        if (has_no_kernel(input, recipes[i]))
            continue;
        comparison_row *row = &c->rows[c->count++];
        *row = (comparison_row){ .recipe = recipes[i] };
        progress_label(row->recipe);
        if (!run_row(row, c, input, o))
            return false;
    }
    return true;
}

bool comparison_run(comparison *c, const attention_input *input, const char *const *recipes, size_t count)
{
    *c = (comparison){ .matrices = input->matrices,
                       .heads = input->q.shape[1],
                       .heads_kv = input->k.shape[1],
                       .q_len = input->q.shape[2],
                       .kv_len = input->k.shape[2],
                       .dim = input->q.shape[3] };
    c->rows = cli_alloc(count * sizeof *c->rows, "the results");
    outputs o = { 0 };
    const bool ok = c->rows != NULL && alloc_outputs(&o, input) && run_all(c, input, recipes, count, &o);
    progress_end();
    free_outputs(&o);
    return ok;
}

void comparison_free(comparison *c)
{
    for (size_t i = 0; i < c->count; i++)
        free(c->rows[i].heads);
    free(c->rows);
    *c = (comparison){ 0 };
}

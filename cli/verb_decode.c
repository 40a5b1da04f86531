/* SPDX-License-Identifier: Apache-2.0 */
#include "attend.h"
#include "cli.h"
#include "json_text.h"
#include "metrics.h"
#include "options.h"

#include <stdio.h>
#include <stdlib.h>

#define EXACT_RECIPE   "exact"
#define DEFAULT_RECIPE "dma4"
#define DEFAULT_TOKENS 16

enum { KEY_TOKENS = OPTION_FIRST, KEY_RECIPE, KEY_THREADS, KEY_JSON };

typedef struct decode_options {
    const char *input;
    mxa_recipe recipe;
    int64_t tokens;
    int threads;
    bool json;
} decode_options;

static const struct argp_option table[] = {
    { "tokens", KEY_TOKENS, "N", 0, "steps: the newest N tokens, one by one (default 16)", 0 },
    { "recipe", KEY_RECIPE, "R", 0, "name or text (default dma4); v=FORMAT is that of V", 0 },
    { "threads", KEY_THREADS, "N", 0, "threads (default: as OpenMP decides)", 0 },
    { "json", KEY_JSON, 0, 0, "print JSON", 0 },
    OPTION_HELP,
    { 0 }
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    enum { MOST_THREADS = 1024 };
    decode_options *options = state->input;
    switch (key) {
    case KEY_TOKENS: options->tokens = option_integer("--tokens", arg, 1, INT64_MAX); return 0;
    case KEY_RECIPE: options->recipe = option_recipe(arg); return 0;
    case KEY_THREADS: options->threads = (int)option_integer("--threads", arg, 0, MOST_THREADS); return 0;
    case KEY_JSON: options->json = true; return 0;
    case ARGP_KEY_ARG: options_one_input(&options->input, arg); return 0;
    case ARGP_KEY_END:
        if (options->input == NULL)
            cli_usage("decode needs IN");
        return 0;
    default: return options_default(key, state);
    }
}

/* A cache and the outputs of its last steps, [batch][heads][steps][dim_v]. */
typedef struct decode_run {
    mxa_cache *cache;
    float *result, *result_lse, *reference, *reference_lse;
    void *work;
    size_t work_bytes;
    double *append_ms, *attend_ms; /* of each step */
    double fill_ms;
} decode_run;

static mxa_tensor rows_of(const mxa_tensor *x, int64_t first, int64_t count)
{
    mxa_tensor view = *x;
    view.data = (char *)x->data + first * x->stride[2] * input_dtype_bytes(x->dtype);
    view.shape[2] = count;
    return view;
}

static bool fail_library(const decode_options *options)
{
    cli_fail("%s: %s", options->input, mxa_error_text());
    return false;
}

static bool check_input(const decode_options *options, const attention_input *input)
{
    const int64_t q_len = input->q.shape[2], kv_len = input->k.shape[2];
    if (input->cu_seqlens[0] != NULL) {
        cli_fail("%s: has cu_seqlens, decode takes one length for all sequences", options->input);
        return false;
    }
    if (options->tokens > q_len || options->tokens > kv_len) {
        cli_fail("%s: --tokens %lld, but it has %lld queries and %lld keys", options->input,
                 (long long)options->tokens, (long long)q_len, (long long)kv_len);
        return false;
    }
    return true;
}

static bool alloc_run(decode_run *run, const decode_options *options, const attention_input *input)
{
    const uint64_t rows = (uint64_t)(input->matrices * options->tokens);
    const uint64_t bytes = rows * (uint64_t)input->v.shape[3] * sizeof(float);
    const uint64_t steps = (uint64_t)options->tokens * sizeof(double);
    run->work_bytes = mxa_cache_work_bytes(run->cache, input->q.shape[1], 1, input->k.shape[2]);
    return (run->result = cli_alloc(bytes, "the output")) != NULL &&
           (run->reference = cli_alloc(bytes, "the reference output")) != NULL &&
           (run->result_lse = cli_alloc(rows * sizeof(float), "the log-sum-exp")) != NULL &&
           (run->reference_lse = cli_alloc(rows * sizeof(float), "the reference log-sum-exp")) != NULL &&
           (run->append_ms = cli_alloc(steps, "the times")) != NULL &&
           (run->attend_ms = cli_alloc(steps, "the times")) != NULL &&
           (run->work = cli_alloc(run->work_bytes, "the workspace")) != NULL;
}

static void free_run(decode_run *run)
{
    mxa_cache_free(run->cache);
    free(run->result);
    free(run->reference);
    free(run->result_lse);
    free(run->reference_lse);
    free(run->append_ms);
    free(run->attend_ms);
    free(run->work);
}

/* Append tokens first.. and return the milliseconds; below 0 after a failure. */
static double append(decode_run *run, const attention_input *input, int64_t first, int64_t count)
{
    const mxa_tensor k = rows_of(&input->k, first, count), v = rows_of(&input->v, first, count);
    const double start = cli_seconds();
    const mxa_status status = mxa_cache_append(run->cache, &k, &v, NULL);
    return status == MXA_OK ? (cli_seconds() - start) * 1e3 : -1;
}

/* One step: its token goes in, its query attends; row step of the result. */
static bool decode_step(decode_run *run, const decode_options *options, const attention_input *input,
                        int64_t step)
{
    const int64_t n = options->tokens, first = input->k.shape[2] - n + step;
    const int64_t heads = input->q.shape[1], dim = input->v.shape[3];
    const mxa_tensor q = rows_of(&input->q, input->q.shape[2] - n + step, 1);
    mxa_tensor out = mxa_tensor_contiguous(run->result, MXA_DTYPE_F32, q.shape[0], heads, n, dim);
    out = rows_of(&out, step, 1);
    float *const lse =
        run->result_lse + step * input->matrices; /* [steps][batch][heads] until they are turned */
    const mxa_cache_attend_args args = { .size = sizeof args,
                                         .q = &q,
                                         .out = &out,
                                         .lse = lse,
                                         .sinks = input->sinks,
                                         .softmax_scale = input->problem.softmax_scale,
                                         .window_left = MXA_UNLIMITED,
                                         .work = run->work,
                                         .work_bytes = run->work_bytes };
    run->append_ms[step] = append(run, input, first, 1);
    if (run->append_ms[step] < 0)
        return fail_library(options);
    const double start = cli_seconds();
    if (mxa_cache_attend(run->cache, &args) != MXA_OK)
        return fail_library(options);
    run->attend_ms[step] = (cli_seconds() - start) * 1e3;
    return true;
}

static bool decode_all(decode_run *run, const decode_options *options, const attention_input *input)
{
    mxa_cache_opts opts;
    mxa_cache_default(&opts, input->k.shape[0], input->k.shape[1], input->k.shape[3]);
    opts.head_dim_v = input->v.shape[3];
    opts.recipe = &options->recipe;
    opts.threads = options->threads;
    if (mxa_cache_create(&opts, &run->cache) != MXA_OK)
        return fail_library(options);
    if (!alloc_run(run, options, input))
        return false;
    run->fill_ms = append(run, input, 0, input->k.shape[2] - options->tokens);
    bool ok = run->fill_ms >= 0 || fail_library(options);
    for (int64_t step = 0; step < options->tokens && ok; step++)
        ok = decode_step(run, options, input, step);
    return ok;
}

/* The same queries by recipe exact in one call. */
static bool compute_reference(decode_run *run, const decode_options *options, const attention_input *input)
{
    attention_input last = *input;
    mxa_recipe exact;
    last.q = rows_of(&input->q, input->q.shape[2] - options->tokens, options->tokens);
    last.problem.q_len = options->tokens;
    if (mxa_recipe_parse(EXACT_RECIPE, &exact) != MXA_OK)
        return fail_library(options);
    attend_call call;
    const bool ok = attend_open(&call, &last, &exact, MXA_DTYPE_F32, run->reference, run->reference_lse) &&
                    attend_run(&call);
    attend_close(&call);
    return ok;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *values, int64_t n)
{
    qsort(values, (size_t)n, sizeof *values, by_size);
    return (values[n / 2] + values[(n - 1) / 2]) / 2;
}

static bool report(decode_run *run, const decode_options *options, const attention_input *input)
{
    const int64_t n = options->tokens, dim = input->v.shape[3],
                  tokens = input->k.shape[2] * input->k.shape[0];
    metric_sums *heads = cli_alloc((uint64_t)input->matrices * sizeof *heads, "the errors");
    float *lse = cli_alloc((uint64_t)n * sizeof *lse, "a head's log-sum-exps");
    for (int64_t m = 0; m < input->matrices && heads && lse; m++) {
        for (int64_t step = 0; step < n; step++)
            lse[step] = run->result_lse[step * input->matrices + m];
        heads[m] = metrics_head(run->result + m * n * dim, run->reference + m * n * dim, lse,
                                run->reference_lse + m * n, n, dim);
    }
    const bool ok = heads && lse;
    const metrics errors = ok ? metrics_of(heads, input->matrices) : (metrics){ 0 };
    free(heads);
    free(lse);
    if (!ok)
        return false;
    const double attend_ms = median(run->attend_ms, n), append_ms = median(run->append_ms, n);
    const double bytes = (double)mxa_cache_used_bytes(run->cache), per_token = bytes / (double)tokens;
    const double gb_s = bytes / attend_ms * 1e-6;
    if (options->json)
        return json_print(json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "attend_ms",
                                    json_number(attend_ms), "append_ms", json_number(append_ms), "fill_ms",
                                    json_number(run->fill_ms), "bytes_per_token", json_number(per_token),
                                    "gb_per_s", json_number(gb_s), "rel_l2", json_number(errors.rel_l2),
                                    "worst_row", json_number(errors.worst_row)));
    printf("%lld tokens, %lld of them one by one\n", (long long)input->k.shape[2], (long long)n);
    printf("attend      %.3f ms a token (median), %.2f GB/s of the cache\n", attend_ms, gb_s);
    printf("append      %.3f ms a token; %.1f ms for the %lld before\n", append_ms, run->fill_ms,
           (long long)(input->k.shape[2] - n));
    printf("cache       %.1f bytes a token\n", per_token);
    printf("error       %.2e relative to float64, worst row %.2e\n", errors.rel_l2, errors.worst_row);
    return true;
}

int verb_decode(int argc, char **argv)
{
    static const struct argp argp = { .options = table,
                                      .parser = parse,
                                      .args_doc = "IN",
                                      .doc =
                                          "Fill a KV cache with the tensors k, v of a safetensors file, and "
                                          "decode its newest tokens.\v"
                                          "Example: mxattn decode qkv.safetensors --recipe dma4,v=int8" };
    decode_options options = { .tokens = DEFAULT_TOKENS };
    if (mxa_recipe_parse(DEFAULT_RECIPE, &options.recipe) != MXA_OK)
        return cli_fail("%s", mxa_error_text());
    options_parse(&argp, argc, argv, &options);

    const attention_options causal = { .causal = true,
                                       .window_left = MXA_UNLIMITED,
                                       .q_offset = MXA_OFFSET_AUTO,
                                       .threads = options.threads,
                                       .device = MXA_DEVICE_CPU };
    attention_input input = INPUT_NONE;
    decode_run run = { 0 };
    const bool ok = input_open(&input, options.input, &causal) && check_input(&options, &input) &&
                    decode_all(&run, &options, &input) && compute_reference(&run, &options, &input) &&
                    report(&run, &options, &input);
    free_run(&run);
    input_close(&input);
    return ok ? CLI_DONE : CLI_FAILED;
}

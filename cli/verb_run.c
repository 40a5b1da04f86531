/* SPDX-License-Identifier: Apache-2.0 */
#include "attend.h"
#include "cli.h"
#include "options.h"
#include "output_file.h"
#include "progress.h"

#include <stdio.h>
#include <stdlib.h>

enum { KEY_RECIPE = OPTION_FIRST, KEY_LSE, KEY_OUT_DTYPE };

typedef struct run_options {
    attention_options attention;
    const char *input, *output;
    mxa_recipe recipe;
    int out_dtype; /* -1: as q */
    bool lse;
} run_options;

static const struct argp_option table[] = {
    { "output", 'o', "OUT", 0, "file to write: o, and lse if asked", 0 },
    { "recipe", KEY_RECIPE, "R", 0, "name or text (default dma8)", 0 },
    { "lse", KEY_LSE, 0, 0, "also write the log-sum-exp of each row", 0 },
    { "out-dtype", KEY_OUT_DTYPE, "T", 0, "f32, f16 or bf16 (default: as q)", 0 },
    OPTION_HELP,
    { 0 }
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    run_options *options = state->input;
    switch (key) {
    case ARGP_KEY_INIT: attention_options_start(&options->attention, state); return 0;
    case 'o': options->output = arg; return 0;
    case KEY_RECIPE: options->recipe = option_recipe(arg); return 0;
    case KEY_LSE: options->lse = true; return 0;
    case KEY_OUT_DTYPE: options->out_dtype = option_word_value("--out-dtype", option_dtypes, arg); return 0;
    case ARGP_KEY_ARG: options_one_input(&options->input, arg); return 0;
    case ARGP_KEY_END:
        if (options->input == NULL || options->output == NULL)
            cli_usage("run needs IN and -o OUT");
        return 0;
    default: return options_default(key, state);
    }
}

static bool write_result(const run_options *options, const attention_input *input, mxa_dtype dtype, void *out,
                         float *lse)
{
    const size_t rank = input->rank;
    const int64_t *q = input->q.shape, rows = input->matrices * q[2];
    st_item items[2] = { { "o", input_dtype_name(dtype), rank, { 0 }, out, 0 },
                         { "lse", "F32", rank - 1, { 0 }, lse, 0 } };
    for (size_t i = 0; i + 1 < rank; i++)
        items[0].shape[i] = items[1].shape[i] = q[4 - rank + i];
    items[0].shape[rank - 1] = input->v.shape[3];
    items[0].bytes = (uint64_t)(rows * input->v.shape[3] * input_dtype_bytes(dtype));
    items[1].bytes = (uint64_t)rows * sizeof(float);
    return st_write(options->output, items, lse != NULL ? 2 : 1, NULL);
}

static bool run(const run_options *options, attention_input *input)
{
    const mxa_dtype dtype = options->out_dtype < 0 ? input->q.dtype : (mxa_dtype)options->out_dtype;
    const uint64_t rows = (uint64_t)(input->matrices * input->q.shape[2]);
    uint64_t elements;
    if (__builtin_mul_overflow(rows, (uint64_t)input->v.shape[3], &elements) || elements > SIZE_MAX / 8) {
        cli_fail("%s: the output's shape overflows", options->input);
        return false;
    }
    void *out = cli_alloc(elements * (uint64_t)input_dtype_bytes(dtype), "the output");
    float *lse = options->lse ? cli_alloc(rows * sizeof(float), "the log-sum-exp") : NULL;
    bool ok = out != NULL && (lse != NULL || !options->lse);
    if (ok) {
        progress_begin("run", attend_steps(input, &options->recipe));
        ok = attend_all(input, &options->recipe, dtype, out, lse);
        progress_end();
    }
    ok = ok && write_result(options, input, dtype, out, lse);
    free(out);
    free(lse);
    return ok;
}

int verb_run(int argc, char **argv)
{
    static const struct argp_child children[] = { { &attention_argp, 0, NULL, 0 }, { 0 } };
    static const struct argp argp = {
        .options = table,
        .parser = parse,
        .args_doc = "IN -o OUT",
        .doc = "Attention over the tensors q, k, v of a safetensors file.\v"
               "Example: mxattn run qkv.safetensors -o o.safetensors --recipe dma4 --causal",
        .children = children
    };
    run_options options = { .out_dtype = -1 };
    mxa_recipe_default(&options.recipe);
    options_parse(&argp, argc, argv, &options);

    attention_input input = INPUT_NONE;
    const bool ok = output_possible_from(options.input, options.output) &&
                    input_open(&input, options.input, &options.attention) && run(&options, &input);
    input_close(&input);
    return ok ? CLI_DONE : CLI_FAILED;
}

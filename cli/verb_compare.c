/* SPDX-License-Identifier: Apache-2.0 */
#include "cli.h"
#include "comparison.h"
#include "options.h"

#include <inttypes.h>
#include <stdlib.h>

enum { KEY_RECIPE = OPTION_FIRST, KEY_JSON, KEY_CSV, KEY_PER_HEAD };

/* Ours, the published ones, one format everywhere. */
static const char *const default_recipes[] = { "dma8",        "dma4",        "dma8-fp8", "dma4-fp8",
                                               "paper-mxfp4", "paper-nvfp4", "int8",     "mxint8",
                                               "mxfp8",       "mxfp4",       "nvfp4",    "bf16" };

typedef struct compare_options {
    attention_options attention;
    const char *input;
    const char **recipes;
    size_t recipe_count;
    bool json, csv, per_head;
} compare_options;

static const struct argp_option table[] = { { "recipe", KEY_RECIPE, "R", 0,
                                              "recipe to compare, repeatable (default: several)", 0 },
                                            { "json", KEY_JSON, 0, 0, "print a JSON list", 0 },
                                            { "csv", KEY_CSV, 0, 0, "print CSV", 0 },
                                            { "per-head", KEY_PER_HEAD, 0, 0, "add a row for each head", 0 },
                                            OPTION_HELP,
                                            { 0 } };

static error_t parse(int key, char *arg, struct argp_state *state)
{
    compare_options *options = state->input;
    switch (key) {
    case ARGP_KEY_INIT: attention_options_start(&options->attention, state); return 0;
    case KEY_RECIPE:
        option_recipe(arg);
        options->recipes[options->recipe_count++] = arg;
        return 0;
    case KEY_JSON: options->json = true; return 0;
    case KEY_CSV: options->csv = true; return 0;
    case KEY_PER_HEAD: options->per_head = true; return 0;
    case ARGP_KEY_ARG: options_one_input(&options->input, arg); return 0;
    case ARGP_KEY_END:
        if (options->input == NULL)
            cli_usage("compare needs IN");
        if (options->json && options->csv)
            cli_usage("--json and --csv exclude each other");
        return 0;
    default: return options_default(key, state);
    }
}

static bool compare(const compare_options *options)
{
    attention_input input = INPUT_NONE;
    comparison c = { 0 };
    const bool given = options->recipe_count > 0;
    const size_t count = given ? options->recipe_count : sizeof default_recipes / sizeof default_recipes[0];
    bool ok = input_open(&input, options->input, &options->attention) &&
              comparison_run(&c, &input, given ? options->recipes : default_recipes, count);
    if (ok && c.nonfinite > 0)
        cli_note("%s: %" PRId64 " of %" PRId64
                 " output rows hold NaN or Inf in float64 too; where a recipe has them "
                 "as well, they do not enter its errors",
                 options->input, c.nonfinite, c.rows_compared);
    if (ok && options->json)
        ok = comparison_print_json(&c, options->per_head);
    else if (ok && options->csv)
        ok = comparison_print_csv(&c, options->per_head);
    else if (ok)
        ok = comparison_print_table(&c, options->per_head);
    comparison_free(&c);
    input_close(&input);
    return ok;
}

int verb_compare(int argc, char **argv)
{
    static const struct argp_child children[] = { { &attention_argp, 0, NULL, 0 }, { 0 } };
    static const struct argp argp = {
        .options = table,
        .parser = parse,
        .args_doc = "IN",
        .doc = "Each recipe's error against float64 attention on q, k, v of IN, its tiles and its time.\v"
               "Example:\n  mxattn compare qkv.safetensors --causal --recipe dma4 --recipe dma4,diag=256",
        .children = children
    };
    compare_options options = { .recipes =
                                    cli_alloc((uint64_t)argc * sizeof(char *), "the list of recipes") };
    if (options.recipes == NULL)
        return CLI_FAILED;
    options_parse(&argp, argc, argv, &options);
    const bool ok = compare(&options);
    free(options.recipes);
    return ok ? CLI_DONE : CLI_FAILED;
}

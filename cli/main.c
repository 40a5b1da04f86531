/* SPDX-License-Identifier: Apache-2.0 */
/* The command mxattn: one verb each for what the library does to files of tensors. */
#include "cli.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *usage, *summary;
} verbs[] = {
    { "info", verb_info, "mxattn info", "version, CPU features, the kernels that run here" },
    { "quantize", verb_quantize, "mxattn quantize", "quantise a tensor of a safetensors file" },
    { "dequantize", verb_dequantize, "mxattn dequantize", "turn a quantised tensor back into numbers" },
    { "run", verb_run, "mxattn run", "attention over the tensors q, k, v of a file" },
    { "compare", verb_compare, "mxattn compare", "error and time of recipes on the tensors of a file" },
    { "decode", verb_decode, "mxattn decode", "decode the newest tokens of a file from a KV cache" },
    { "map", verb_map, "mxattn map", "draw which score tiles are high, low or skipped" },
    { "bench", verb_bench, "mxattn bench", "time attention and quantisers on random data" },
};

enum { VERB_COUNT = sizeof verbs / sizeof verbs[0] };

static int print_help(void)
{
    puts("Usage: mxattn VERB [OPTION...]\n"
         "Attention with mixed-precision scores, and the microscaling formats it needs.\n");
    for (int i = 0; i < VERB_COUNT; i++)
        printf("  %-11s %s\n", verbs[i].name, verbs[i].summary);
    puts(
        "\n  mxattn VERB --help    the options of a verb, with an example\n"
        "  mxattn --version      the version\n\n"
        "Files are safetensors with tensors q, k, v of shape [heads, seq, dim] or [batch, heads, seq, dim],\n"
        "F32, F16 or BF16. Exit status: 0 done, 1 failed, 2 the command line is wrong.\n\n"
        "Example: mxattn compare qkv.safetensors --causal");
    return CLI_DONE;
}

static int run_verb(int argc, char **argv)
{
    if (argc < 2)
        cli_usage("no verb; mxattn --help lists them");
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)
        return print_help();
    if (strcmp(argv[1], "--version") == 0) {
        printf("mxattn %s\n", mxa_version());
        return CLI_DONE;
    }
    for (int i = 0; i < VERB_COUNT; i++)
        if (strcmp(argv[1], verbs[i].name) == 0) {
            argv[1] = (char *)verbs[i].usage;
            return verbs[i].run(argc - 1, argv + 1);
        }
    if (strcmp(argv[1], "eval") == 0 || strcmp(argv[1], "report") == 0)
        cli_usage("%s is a verb of the Python package: python -m mxattn %s", argv[1], argv[1]);
    cli_usage("unknown verb \"%.80s\"; known: info quantize dequantize run compare decode map bench",
              argv[1]);
}

int main(int argc, char **argv)
{
    return cli_finish(run_verb(argc, argv));
}

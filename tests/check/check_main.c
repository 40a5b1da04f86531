/* SPDX-License-Identifier: Apache-2.0 */
/* mxa_check: test, and with --bench time, every entry of every list of kernels. */
#include "check_lists.h"
#include "check_state.h"

#include "cpu/features.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

static void (*const lists[])(void) = { check_prepare,   check_quantize, check_decode,
                                       check_attention, check_cache,    check_attention_cuda };

static const char usage[] = "usage: mxa_check [--cpu=ref|portable|avx2|avx512|amx] [--seed N] [--rounds N]\n"
                            "                 [--filter PART_OF_OP/NAME/FORMAT] [--bench]\n";

/* The features are read when first asked for, so the mask is set before. */
static void parse(int argc, char **argv)
{
    static const struct option options[] = {
        { "cpu", required_argument, NULL, 'c' },    { "seed", required_argument, NULL, 's' },
        { "rounds", required_argument, NULL, 'r' }, { "filter", required_argument, NULL, 'f' },
        { "bench", no_argument, NULL, 'b' },        { 0 },
    };
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (c) {
        case 'c': setenv("MXA_CPU", optarg, 1); break;
        case 's': check_now.seed = strtoull(optarg, NULL, 10); break;
        case 'r': check_now.rounds = atoi(optarg); break;
        case 'f': check_now.filter = optarg; break;
        case 'b': check_now.bench = true; break;
        default: fputs(usage, stderr); exit(2);
        }
    }
    if (optind != argc) {
        fputs(usage, stderr);
        exit(2);
    }
}

int main(int argc, char **argv)
{
    parse(argc, argv);
    if (mxa_cpu_mask_status() != MXA_OK) {
        fprintf(stderr, "mxa_check: %s\n", mxa_error_text());
        return 2;
    }
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        lists[i]();
        check_entry_end();
    }
    printf("mxa_check: %d passed, %d failed, %d skipped\n", check_now.passed, check_now.failed,
           check_now.skipped);
    return check_now.failed > 0 || check_now.passed == 0;
}

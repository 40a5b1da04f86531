/* SPDX-License-Identifier: Apache-2.0 */
/* mxa_check_cuda: what the CUDA backend is made of against the CPU. Without a device it is skipped. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

#include "check_cuda.h"
#include "check_state.h"

enum { SKIPPED = 77 };

static void (*const lists[])(void) = { check_divisor_cuda, check_quantize_cuda, check_forms_cuda };

static void parse(int argc, char **argv)
{
    static const struct option options[] = { { "seed", required_argument, NULL, 's' },
                                             { "rounds", required_argument, NULL, 'r' },
                                             { "filter", required_argument, NULL, 'f' },
                                             { 0 } };
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (c) {
        case 's': check_now.seed = strtoull(optarg, NULL, 10); break;
        case 'r': check_now.rounds = atoi(optarg); break;
        case 'f': check_now.filter = optarg; break;
        default: fputs("usage: mxa_check_cuda [--seed N] [--rounds N] [--filter PART]\n", stderr); exit(2);
        }
    }
}

int main(int argc, char **argv)
{
    parse(argc, argv);
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        puts("no CUDA device");
        return SKIPPED;
    }
    arena_create();
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        lists[i]();
        check_entry_end();
    }
    printf("mxa_check_cuda: %d passed, %d failed\n", check_now.passed, check_now.failed);
    return check_now.failed > 0 || check_now.passed == 0;
}

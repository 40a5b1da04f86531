/* SPDX-License-Identifier: Apache-2.0 */
/* mxattn_peak: what the multiply instructions of this machine and its memory reach, as a table or as JSON. */
#include "peak.h"

#include "cpu/features.h"

#include <getopt.h>
#include <omp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define FIRST_STEPS   10000
#define LEAST_SECONDS 0.01 /* of a pass */
#define PASSES        30

static const char usage[] = "usage: mxattn_peak [--threads N] [--json]\n";

double peak_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static double pass_seconds(const peak_loop *loop, int threads, int64_t steps)
{
    const double begun = peak_seconds();
#pragma omp parallel num_threads(threads)
    loop->run(steps);
    return peak_seconds() - begun;
}

/* Operations a second of the fastest pass: other programs only take time. */
static double best_rate(const peak_loop *loop, int threads)
{
    int64_t steps = FIRST_STEPS;
    while (pass_seconds(loop, threads, steps) < LEAST_SECONDS)
        steps *= 2;
    double best = 0;
    for (int pass = 0; pass < PASSES; pass++) {
        const double rate = loop->ops * (double)steps * threads / pass_seconds(loop, threads, steps);
        best = rate > best ? rate : best;
    }
    return best;
}

static void print_json(int threads)
{
    printf("{\"threads\": %d, \"read_gbs\": %.2f, \"copy_gbs\": %.2f, \"peaks\": [", threads,
           1e-9 * peak_read(threads), 1e-9 * peak_copy(threads));
    for (const peak_loop *loop = peak_loops; loop->level; loop++) {
        printf("%s{\"level\": \"%s\", \"use\": \"%s\", \"instruction\": \"%s\", \"gops\": ",
               loop == peak_loops ? "" : ", ", loop->level, loop->use, loop->instruction);
        if (mxa_cpu_has(loop->needs))
            printf("%.1f}", 1e-9 * best_rate(loop, threads));
        else
            printf("null}");
    }
    puts("]}");
}

static void print_table(int threads)
{
    printf("%d threads; operations: multiplications and additions\n", threads);
    for (const peak_loop *loop = peak_loops; loop->level; loop++) {
        printf("%-8s %-6s %-18s ", loop->level, loop->use, loop->instruction);
        if (mxa_cpu_has(loop->needs))
            printf("%10.1f Gop/s\n", 1e-9 * best_rate(loop, threads));
        else
            puts("   skipped: this machine, as masked by MXA_CPU, lacks it");
    }
    printf("memory   read %26.1f GB/s\n", 1e-9 * peak_read(threads));
    printf("memory   copy %26.1f GB/s\n", 1e-9 * peak_copy(threads));
}

int main(int argc, char **argv)
{
    static const struct option options[] = { { "threads", required_argument, NULL, 't' },
                                             { "json", no_argument, NULL, 'j' },
                                             { 0 } };
    int threads = omp_get_max_threads();
    bool json = false;
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (c) {
        case 't': threads = atoi(optarg); break;
        case 'j': json = true; break;
        default: threads = 0;
        }
    }
    if (optind != argc || threads < 1) {
        fputs(usage, stderr);
        return 2;
    }
    if (mxa_cpu_mask_status() != MXA_OK) {
        fprintf(stderr, "mxattn_peak: %s\n", mxa_error_text());
        return 2;
    }
    (json ? print_json : print_table)(threads);
    return 0;
}

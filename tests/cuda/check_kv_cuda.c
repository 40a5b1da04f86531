/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Caches of a device against those of the CPU, by the public interface: after random appends in random
 * chunks, cuts, forks and files their saved bytes are the same, and their results agree. With --exact (a
 * backend whose attends are the CPU's) to the bit. Without a device it is skipped.
 */
#include "kv_pair.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check_state.h"

enum { SKIPPED = 77, STEPS = 12 };

static const char *const recipes[] = {
    "dma4,v=int8",
    "dma4,v=mxfp4,rotate-v",
    "dma8,v=f16",
    "dma8,diag=300,v=int8,pv=f16",
    "dma4-fp8,sink=200,v=fp8",
    "paper-nvfp4,v=nvfp4",
    "paper-mxfp4,diag=0,v=mxfp8",
    "low_q=int8,low_k=mxfp4,v=mxfp4",
    "int8,v=int8",
    "mxint8,v=mxint8",
    "mxfp6,v=mxfp6,rotate-v",
    "dma4,smooth-k=given,v=mxfp8-e5m2",
    "bf16",
    "bf16,high=f32,v=f32",
};

/* One token, a few, or many. */
static int64_t pick_count(void)
{
    static const int64_t edges[] = { 0, 1, 64, 127, 128, 129 };
    const int64_t kind = check_pick(0, 3);
    return kind == 0   ? check_pick(0, 3)
           : kind == 1 ? edges[check_pick(0, 5)]
                       : check_pick(0, kind == 2 ? 40 : 200);
}

static void append_some(kv_pair *p)
{
    int64_t counts[KV_BATCH];
    for (int b = 0; b < KV_BATCH; b++)
        counts[b] = pick_count();
    kv_append(p, counts, check_pick(0, 3) == 0, p->exact && check_pick(0, 2) == 0);
}

static void step(kv_pair *p)
{
    const int64_t b = check_pick(0, KV_BATCH - 1);
    switch (check_pick(0, 7)) {
    case 0: kv_truncate(p, b, check_pick(0, 30)); break;
    case 1: kv_fork(p, b, check_pick(0, KV_BATCH - 1)); break;
    case 2: kv_reorder(p); break;
    case 3: kv_reload(p); break;
    case 4: kv_attend(p); break;
    case 5: kv_swap_pages(p, b); break;
    default: append_some(p); break;
    }
}

static void check_caches(const char *recipe, bool exact)
{
    if (!check_entry("kv", recipe, "cuda", 0))
        return;
    while (check_round()) {
        kv_pair p;
        if (kv_create(&p, recipe, exact)) {
            for (int i = 0; i < STEPS && !check_now.entry_failed; i++)
                step(&p);
            append_some(&p);
            kv_same_files(&p);
            kv_attend(&p);
            if (exact) {
                kv_refuse_recorded_changes(&p);
                kv_run_out(&p);
            }
        }
        kv_free(&p);
    }
}

static void check_refusals(void)
{
    if (!check_entry("kv", "memory", "cuda", 0))
        return;
    while (check_round())
        kv_refuse_host_memory();
}

static bool parse(int argc, char **argv)
{
    static const struct option options[] = { { "seed", required_argument, NULL, 's' },
                                             { "rounds", required_argument, NULL, 'r' },
                                             { "filter", required_argument, NULL, 'f' },
                                             { "exact", no_argument, NULL, 'e' },
                                             { 0 } };
    bool exact = false;
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (c) {
        case 's': check_now.seed = strtoull(optarg, NULL, 10); break;
        case 'r': check_now.rounds = atoi(optarg); break;
        case 'f': check_now.filter = optarg; break;
        case 'e': exact = true; break;
        default:
            fputs("usage: check_kv_cuda [--seed N] [--rounds N] [--filter PART] [--exact]\n", stderr);
            exit(2);
        }
    }
    return exact;
}

int main(int argc, char **argv)
{
    check_now.rounds = 4;
    const bool exact = parse(argc, argv);
    if (mxa_device_count() == 0) {
        puts(mxa_error_text());
        return SKIPPED;
    }
    for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++)
        check_caches(recipes[i], exact);
    check_refusals();
    check_entry_end();
    printf("check_kv_cuda: %d passed, %d failed\n", check_now.passed, check_now.failed);
    return check_now.failed > 0 || check_now.passed == 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every entry of the CUDA backend against the float64 reference on the CPU within the tolerance of
 * docs/numerics.md, section 12; a second call and what masked keys hold do not change a bit. Skipped without
 * a device.
 */
#include "check_lists.h"

#include "attention_masked.h"
#include "attention_run_cuda.h"
#include "attention_tolerance.h"
#include "check_state.h"

#include <stdio.h>

/* A problem that the entry runs: with 16-bit operands and outputs if need be. False: none was found. */
static bool pick_problem(const mxa_attention_impl *impl, attention_problem *a)
{
    enum { TRIES = 20 };
    for (int n = 0; n < TRIES; n++) {
        attention_problem_pick(a);
        if (check_pick(0, 1))
            a->p.out_dtype = check_pick(0, 1) ? MXA_DTYPE_BF16 : MXA_DTYPE_F16;
        if (cuda_runs(a, impl))
            return true;
    }
    return false;
}

static void check_entry_once(const mxa_attention_impl *impl, int *ran)
{
    attention_problem a;
    if (!pick_problem(impl, &a))
        return;
    const attention_result got = cuda_run(&a, impl), again = cuda_run(&a, impl);
    check_same("out of a second call", got.out, again.out);
    check_same("lse of a second call", got.lse, again.lse);
    check_tolerance(&a, impl, &got);
    check_masked(&a, cuda_run, impl);
    ++*ran;
}

/* A length at a time over what is a block, a tile or two to each kernel. */
static void check_lengths(const mxa_attention_impl *impl)
{
    enum { LONGEST = 300, HEADS = 2, HEADS_KV = 1 };
    static const char *const recipes[] = { "dma8", "dma8,level_k=token_block", "dma4", "dma8-fp8", "dma4-fp8",
                                           "bf16" };
    static const int64_t dims[] = { 64, 128, 256, 80 };
    for (int length; check_each(&length, LONGEST);)
        for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++) {
            attention_problem a;
            attention_problem_prefill(&a, recipes[i], HEADS, HEADS_KV, length, dims[length % 4]);
            a.p.out_dtype = MXA_DTYPE_BF16;
            if (!cuda_runs(&a, impl))
                continue;
            const attention_result got = cuda_run(&a, impl);
            check_tolerance(&a, impl, &got);
        }
}

void check_attention_cuda(void)
{
    mxa_attention_impl impl;
    if (!cuda_open()) {
        printf("skip attention-cuda: %s\n", mxa_error_text());
        check_now.skipped++;
        return;
    }
    for (int i = 0; cuda_entry_at(i, &impl); i++) {
        if (!check_entry("attention-cuda", impl.name, "any", 0))
            continue;
        int ran = 0;
        while (check_round())
            check_entry_once(&impl, &ran);
        if (ran == 0)
            check_fail("no problem was one for this entry");
    }
    for (int i = 0; cuda_entry_at(i, &impl); i++)
        if (check_entry("lengths-cuda", impl.name, "any", 0))
            check_lengths(&impl);
}

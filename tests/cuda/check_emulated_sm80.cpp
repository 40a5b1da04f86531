/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel of src/cuda/sm80 on the host, thread for thread, on random problems: within the tolerance of
 * docs/numerics.md, section 12, of the float64 reference; what masked keys hold changes no bit; no row is
 * left to the reference where all numbers are of moderate size.
 */
#define MXA_EMULATED "emulated_ptx_sm80.h"
#include "cuda/sm80/attention_params_sm80.cuh"

#include <memory>
#include <vector>

#include "emulated_job.h"

extern "C" {
#include "attention_masked.h"
#include "check_state.h"
}

#include <cstdio>
#include <cstdlib>

using namespace mxa;

namespace
{

constexpr double f32_eps = 0x1p-24, exp2_eps = 0x1p-22;

template <int dim>
void launch(const MmaParams &p, int64_t tiles)
{
    const auto smem = std::make_unique<SmemSm80<dim>>();
    emulated_launch(unsigned(tiles * Block<dim>::blocks), unsigned(p.heads),
                    [&] { Block<dim>(p, *smem).run(); });
}

bool has_16_bits(mxa_format format)
{
    return format != MXA_FORMAT_F32;
}

/* One that the entry runs, and small enough for an emulation. */
bool is_for_us(const attention_problem &a)
{
    constexpr int64_t most = 600000;
    const mxa_recipe &r = a.recipe;
    const bool low =
        r.low_q == MXA_FORMAT_NONE || (has_16_bits(r.low_q) && has_16_bits(r.low_k) &&
                                       (r.low_q == MXA_FORMAT_F16) == (r.low_k == MXA_FORMAT_F16));
    const bool high =
        r.high_q == MXA_FORMAT_NONE || (has_16_bits(r.high_q) && has_16_bits(r.high_k) &&
                                        (r.high_q == MXA_FORMAT_F16) == (r.high_k == MXA_FORMAT_F16));
    const int64_t batch = a.p.cu_seqlens_q ? 1 : a.p.batch;
    return low && high && batch * a.p.heads * (a.p.q_len + 32) * (a.p.kv_len + 32) < most;
}

bool pick(attention_problem *a)
{
    for (int n = 0; n < 100; n++) {
        attention_problem_pick(a);
        if (is_for_us(*a))
            return true;
    }
    return false;
}

const mxa_attention_impl *reference()
{
    const mxa_attention_impl *impl = mxa_attention_impls;
    while (impl[1].name)
        impl++;
    return impl;
}

/* No element so large that fp32 might not hold a sum of products. */
bool is_moderate(const mxa_tensor &x)
{
    constexpr float large = 1e6f;
    for (int64_t row = 0; row < x.shape[0] * x.shape[1] * x.shape[2]; row++)
        for (int64_t d = 0; d < x.shape[3]; d++)
            if (!(fabsf(tensor_get(&x, row / x.shape[2] / x.shape[1], row / x.shape[2] % x.shape[1],
                                   row % x.shape[2], d)) < large))
                return false;
    return true;
}

/* Rows past the last sequence are the driver's. */
void clear_tail(const attention_problem &a, const attention_result &want, const mxa_plan &plan,
                attention_result *r)
{
    mxa_sequence tensor{};
    for (int64_t h = 0; h < a.p.heads && plan.packed; h++)
        for (int64_t i = plan.q_used; i < a.p.q_len; i++)
            emulated_take_row(&a, &want, &tensor, h, i, r);
}

/* With the reference's rows where the kernel leaves them to it; redone of them. */
attention_result run(const attention_problem &a, int *redone)
{
    attention_result r{};
    mxa_cuda_job job;
    mxa_plan *const plan = emulated_job(&a, &r, &job);
    if (!plan)
        return r;
    std::vector<char> work(size_t(plan->q_rows) * 2 * sizeof(mxa_cuda_row));
    int counters[MXA_CUDA_COUNTER_BYTES / sizeof(int)] = {};
    job.work = work.data();
    job.counters = counters;
    const MmaParams p = make_mma_params(job);
    const int64_t dim = mxa_max(a.p.head_dim, a.p.head_dim_v);
    if (dim <= 64)
        launch<64>(p, plan->n_tiles);
    else if (dim <= 128)
        launch<128>(p, plan->n_tiles);
    else
        launch<256>(p, plan->n_tiles);
    const attention_result want = attention_run(&a, reference(), 1);
    for (int i = 0; i < *p.redo_count; i++)
        emulated_take_row(&a, &want, &plan->sequences[p.redo[i].sequence], p.redo[i].head, p.redo[i].row, &r);
    clear_tail(a, want, *plan, &r);
    *redone = *p.redo_count;
    mxa_plan_free(plan);
    return r;
}

attention_result run_again(const attention_problem *a, const mxa_attention_impl *)
{
    int redone;
    return run(*a, &redone);
}

void check_once()
{
    attention_problem a;
    int redone = 0;
    if (!pick(&a))
        return;
    const attention_result r = run(a, &redone);
    if (redone > 0 && is_moderate(a.q) && is_moderate(a.k) && is_moderate(a.v))
        check_fail("%d rows were left to the reference", redone);
    mxa_attention_impl impl{};
    impl.name = "sm80";
    impl.sum_eps = f32_eps;
    impl.exp2_eps = exp2_eps;
    impl.rounds_p = true;
    check_tolerance(&a, &impl, &r);
    check_masked(&a, run_again, &impl);
}

} // namespace

int main(int argc, char **argv)
{
    check_now.rounds = argc > 1 ? atoi(argv[1]) : 12;
    if (check_entry("attention", "sm80", "emulated", 0))
        while (check_round())
            check_once();
    check_entry_end();
    printf("%d passed, %d failed\n", check_now.passed, check_now.failed);
    return check_now.failed > 0 || check_now.passed == 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The header from C++: an attention over one key gives that key's value. */
#include <mxattn/mxattn.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

int main()
{
    constexpr int dim = 64;
    std::vector<float> q(dim, 1.0f), k(dim, 2.0f), v(dim, 3.0f), o(dim);
    mxa_problem problem;
    mxa_problem_default(&problem, 1, 1, 1, 1, 1, dim);
    mxa_plan *plan = nullptr;
    if (mxa_plan_create(&problem, nullptr, &plan) != MXA_OK) {
        std::fprintf(stderr, "%s\n", mxa_error_text());
        return 1;
    }
    const auto view = [](std::vector<float> &x) {
        return mxa_tensor_contiguous(x.data(), MXA_DTYPE_F32, 1, 1, 1, dim);
    };
    const mxa_tensor tq = view(q), tk = view(k), tv = view(v), to = view(o);
    mxa_attention_args args = {};
    args.size = sizeof args;
    args.q = &tq;
    args.k = &tk;
    args.v = &tv;
    args.out = &to;
    args.work_bytes = (mxa_plan_work_bytes(plan) + 63) / 64 * 64;
    args.work = std::aligned_alloc(64, args.work_bytes);
    const mxa_status status = mxa_attention(plan, &args);
    if (status != MXA_OK)
        std::fprintf(stderr, "%s\n", mxa_error_text());
    std::free(args.work);
    mxa_plan_free(plan);
    return status != MXA_OK || o != v;
}

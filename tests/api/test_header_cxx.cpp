// SPDX-License-Identifier: Apache-2.0
// The public header is valid C++, links, and its options can be made and passed from there.
#include <mxattn/mxattn.h>

#include <cstring>
#include <vector>

static_assert(sizeof(mxa_status) == sizeof(int), "a status is an int in every language");
static_assert(MXA_OFFSET_AUTO < 0 && MXA_ALL > 0 && MXA_UNLIMITED == -1 && MXA_TILE == 128, "constants");

int main()
{
    std::vector<float> zeros(4 * 32), out(4 * 32, 1.0f);
    const mxa_tensor x = mxa_tensor_contiguous(zeros.data(), MXA_DTYPE_F32, 1, 1, 4, 32);
    const mxa_tensor o = mxa_tensor_contiguous(out.data(), MXA_DTYPE_F32, 1, 1, 4, 32);
    mxa_problem problem;
    mxa_problem_default(&problem, 1, 1, 1, 4, 4, 32);
    mxa_recipe recipe;
    if (mxa_recipe_parse("dma4", &recipe) != MXA_OK)
        return 1;
    mxa_plan *plan = nullptr;
    if (mxa_plan_create(&problem, &recipe, &plan) != MXA_OK)
        return 2;
    std::vector<char> work(mxa_plan_work_bytes(plan) + 64);
    mxa_attention_args args = {};
    args.size = sizeof args;
    args.q = args.k = args.v = &x;
    args.out = &o;
    args.work = work.data() + (64 - reinterpret_cast<uintptr_t>(work.data()) % 64) % 64;
    args.work_bytes = mxa_plan_work_bytes(plan);
    const mxa_status status = mxa_attention(plan, &args);
    mxa_plan_free(plan);
    return status == MXA_OK && out[0] == 0 && std::strcmp(mxa_version(), "0.1.0") == 0 ? 0 : 3;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The list of decode kernels, fastest first. A job takes the first that runs it. */
#include "cuda/decode/decode_cuda.h"

#include "cuda/decode/decode_any_cuda.h"
#include "cuda/decode/decode_launch_sm90.h"

const mxa_cuda_decode_impl mxa_cuda_decode_impls[] = {
    { .name = "sm90",
      .arch = 90,
      .arch_exact = true,
      .refuses = mxa_decode_sm90_refuses,
      .work_bytes = mxa_decode_sm90_work_bytes,
      .run = mxa_decode_sm90 },
    { .name = "any", .arch = 80, .work_bytes = mxa_decode_any_work_bytes, .run = mxa_decode_any },
    { .name = NULL },
};

static bool runs(const mxa_cuda_decode_impl *impl, const mxa_decode_job *job)
{
    const int arch = job->device->arch;
    const bool fits = impl->arch_exact ? arch == impl->arch : arch >= impl->arch;
    return fits && !(impl->refuses && impl->refuses(job));
}

const mxa_cuda_decode_impl *mxa_cuda_decode_pick(const mxa_decode_job *job)
{
    const mxa_cuda_decode_impl *impl = mxa_cuda_decode_impls;
    while (!runs(impl, job))
        impl++;
    return impl;
}

/* Which entry takes a job depends on more than sizes, so there is room for each. */
int64_t mxa_decode_work_bytes(const mxa_decode_job *job)
{
    int64_t most = 0;
    for (const mxa_cuda_decode_impl *impl = mxa_cuda_decode_impls; impl->name; impl++) {
        const int64_t bytes = impl->work_bytes(job);
        if (bytes == 0)
            return 0;
        most = mxa_max(most, bytes);
    }
    return most;
}

mxa_status mxa_decode(const mxa_decode_job *job, cudaStream_t stream)
{
    return mxa_cuda_decode_pick(job)->run(job, stream);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What libmxattn.so calls in libmxattn_cuda.so: a table of functions, got from the one symbol that the second
 * library exports. Plain C, no CUDA types, so that libmxattn.so builds and runs without CUDA.
 *
 * The two libraries share the structs below as they are, so they must come from the same build: the numbers
 * at the top of the table are compared before anything else is read.
 */
#ifndef MXA_CUDA_BACKEND_H
#define MXA_CUDA_BACKEND_H

#ifdef __cplusplus
extern "C" {
#endif

#include "attn/kv_device.h"
#include "core/text.h"
#include "format/copy.h"

/* Changes with every change of the table's functions. */
#define MXA_CUDA_ABI 2u

#define MXA_CUDA_LIBRARY_NAME "libmxattn_cuda.so"
#define MXA_CUDA_ENTRY_NAME   "mxa_cuda_backend_table"

/* What both sides must agree on. */
typedef struct mxa_cuda_abi {
    unsigned number;
    int major, minor, patch; /* version of the package */
    size_t plan_bytes, args_bytes, copy_bytes, info_bytes, kv_bytes;
} mxa_cuda_abi;

#define MXA_CUDA_ABI_HERE                                                                                    \
    {                                                                                                        \
        MXA_CUDA_ABI, MXA_VERSION_MAJOR, MXA_VERSION_MINOR, MXA_VERSION_PATCH, sizeof(struct mxa_plan),      \
            sizeof(mxa_attention_args), sizeof(mxa_copy), sizeof(mxa_device_info), sizeof(mxa_kv_layout)     \
    }

/* An attention kernel, for the harness. */
typedef struct mxa_cuda_entry {
    const char *name;
    int arch;                 /* sm_90 is 90 */
    double sum_eps, exp2_eps; /* as in mxa_cuda_attention_impl */
    bool rounds_p;
} mxa_cuda_entry;

/*
 * A function that returns a status leaves its sentence in error_text. Arguments are checked as far as they
 * can be without CUDA. device counts from 0.
 */
typedef struct mxa_cuda_backend {
    mxa_cuda_abi abi;
    const char *(*error_text)(void); /* of the calling thread's last error */
    mxa_status (*device_count)(int *count);
    mxa_status (*device_query)(int device, mxa_device_info *info);
    mxa_status (*device_alloc)(int device, size_t bytes, void **memory);
    mxa_status (*device_free)(int device, void *memory);
    mxa_status (*device_copy)(int device, void *to, const void *from, size_t bytes);
    mxa_status (*device_synchronize)(int device, void *stream);

    /* Entry i of the list of attention kernels; false past the end. */
    bool (*entry_at)(int i, mxa_cuda_entry *entry);

    /*
     * Choose the kernels of a built plan, fill in work_bytes, backend and backend_free. only: this entry or
     * MXA_ERR_UNSUPPORTED; NULL: the first that runs the plan.
     */
    mxa_status (*plan)(mxa_plan *plan, const char *only);
    void (*describe)(const mxa_plan *plan, mxa_text *out);
    mxa_status (*attention)(const mxa_plan *plan, const mxa_attention_args *args);

    /* n copies (1 or 2) of x; n_bad is [n] of device memory, or NULL. */
    mxa_status (*quantize)(int device, const mxa_tensor *x, mxa_nonfinite policy, int n,
                           const mxa_copy *copies, int64_t *n_bad, void *stream);
    mxa_status (*dequantize)(int device, const mxa_copy *copy, const mxa_tensor *out, void *stream);
    mxa_status (*channel_mean)(int device, const mxa_tensor *x, int64_t n_tokens, float *mean, void *stream);

    const mxa_kv_device_ops *kv; /* caches */
} mxa_cuda_backend;

typedef const mxa_cuda_backend *mxa_cuda_backend_fn(void);

#ifdef __cplusplus
}
#endif

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The quantiser of the CPU backend: arguments are checked already, nothing is allocated. */
#ifndef MXA_CPU_QUANTIZE_CPU_H
#define MXA_CPU_QUANTIZE_CPU_H

#include "cpu/kernels.h"

/* One copy to be made of a tensor. */
typedef struct mxa_copy {
    mxa_code_spec spec;
    mxa_level level; /* resolved; NONE for plain and most MX formats */
    mxa_axis axis;
    mxa_layout layout;
    bool rotate;
    const float *mean;    /* [batch][heads][dim], or NULL */
    const float *g_given; /* factors of the level, or NULL: computed into out.g */
    mxa_packed out;       /* out.g receives given factors too */
} mxa_copy;

#define MXA_MAX_THREADS 1024 /* a call that asks for more is refused */

/* Bytes of scratch that mxa_quantize_copies needs for a tensor; SIZE_MAX if they do not fit. */
size_t mxa_quantize_scratch_bytes(const int64_t shape[4], mxa_axis axis, int threads);

/*
 * Make n copies (1 or 2) of x from one read of it (computed factors of level TENSOR and HEAD need a read
 * before). n_bad[c] receives copy c's count. Work is shared over OpenMP threads by (matrix, 128 rows); the
 * bytes don't depend on threads. scratch is 64-byte aligned. MXA_ERR_NONFINITE under MXA_NONFINITE_ERROR,
 * with nothing written.
 */
mxa_status mxa_quantize_copies(const mxa_tensor *x, mxa_nonfinite policy, int n, const mxa_copy *copies,
                               int threads, void *scratch, int64_t *n_bad);

/*
 * The largest finite magnitude of x after the copy's mean and rotation: for a factor of level TENSOR over
 * several tensors, which is mxa_second_level of the largest of them (format/second_level.h). Scratch as
 * above.
 */
float mxa_finite_amax(const mxa_tensor *x, mxa_nonfinite policy, const mxa_copy *copy, int threads,
                      void *scratch);

/* How many factors a tensor has at a level; 0 at NONE. */
int64_t mxa_level_count(mxa_level level, const int64_t shape[4]);

/* Index of the factor of (batch, head, row) at a level; 0 at level NONE. */
static inline int64_t mxa_level_index(mxa_level level, const int64_t shape[4], int64_t b, int64_t h,
                                      int64_t row)
{
    const int64_t matrix = b * shape[1] + h;
    switch (level) {
    case MXA_LEVEL_HEAD: return matrix;
    case MXA_LEVEL_TOKEN_BLOCK: return matrix * ((shape[2] + 127) / 128) + row / 128;
    case MXA_LEVEL_TOKEN: return matrix * shape[2] + row;
    default: return 0;
    }
}

#endif

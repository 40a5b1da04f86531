/* SPDX-License-Identifier: Apache-2.0 */
/* The quantiser of the CPU backend: arguments are checked already, nothing is allocated. */
#ifndef MXA_CPU_QUANTIZE_CPU_H
#define MXA_CPU_QUANTIZE_CPU_H

#include "cpu/kernels.h"

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

#endif

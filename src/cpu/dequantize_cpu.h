/* SPDX-License-Identifier: Apache-2.0 */
/* Back to numbers on the CPU. Arguments are checked already, nothing is allocated. */
#ifndef MXA_CPU_DEQUANTIZE_CPU_H
#define MXA_CPU_DEQUANTIZE_CPU_H

#include "cpu/quantize_cpu.h"

/* Bytes of scratch for mxa_dequantize_copy, 64-byte aligned; SIZE_MAX if they do not fit. */
size_t mxa_dequantize_scratch_bytes(const int64_t shape[4], mxa_axis axis, int threads);

/* out [batch][heads][seq][dim] from copy->out; rotation and mean are undone. g_given is not read. */
void mxa_dequantize_copy(const mxa_copy *copy, const mxa_tensor *out, int threads, void *scratch);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preparation of rows, quantiser and decoder of every format in loops without branches, which compilers turn
 * into vectors at the baseline of the machine.
 */
#ifndef MXA_CPU_PORTABLE_CODES_PORTABLE_H
#define MXA_CPU_PORTABLE_CODES_PORTABLE_H

#include "cpu/kernels.h"

mxa_prepare_rows_fn mxa_prepare_portable;
mxa_quantize_rows_fn mxa_quantize_portable;
mxa_decode_rows_fn mxa_decode_portable;

#endif

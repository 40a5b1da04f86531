/* SPDX-License-Identifier: Apache-2.0 */
/* The reference of the steps before quantising, of quantiser and decoder: one element after the other. */
#ifndef MXA_CPU_REF_CODES_REF_H
#define MXA_CPU_REF_CODES_REF_H

#include "cpu/kernels.h"

mxa_prepare_rows_fn mxa_prepare_ref;
mxa_dot_rows_fn mxa_dot_ref;
mxa_quantize_rows_fn mxa_quantize_ref;
mxa_decode_rows_fn mxa_decode_ref;

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Decode kernels for the host: K in MXFP4. */
#include "emulated_decode.h"

#include "cuda/decode/decode_mxfp4_sm90.cu"

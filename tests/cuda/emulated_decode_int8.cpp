/* SPDX-License-Identifier: Apache-2.0 */
/* Decode kernels for the host: K in INT8, and the launch. */
#include "emulated_decode.h"

#include "cuda/decode/decode_int8_sm90.cu"
#include "cuda/decode/decode_launch_sm90.cu"

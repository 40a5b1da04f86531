/* SPDX-License-Identifier: Apache-2.0 */
/* Fastest first; a call takes the first entry that this machine runs. */
#include "cpu/features.h"
#include "cpu/kv_attend_cpu.h"
#include "cpu/portable/kv_attend_portable.h"

const mxa_kv_impl mxa_kv_impls[] = {
    { "portable", MXA_CPU_PORTABLE, mxa_kv_scratch_portable, mxa_kv_segment_portable },
    { "ref", 0, NULL, NULL },
    { NULL, 0, NULL, NULL },
};

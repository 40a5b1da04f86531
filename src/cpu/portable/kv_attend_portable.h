/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MXA_CPU_PORTABLE_KV_ATTEND_PORTABLE_H
#define MXA_CPU_PORTABLE_KV_ATTEND_PORTABLE_H

#include "cpu/kv_attend_cpu.h"

mxa_kv_scratch_fn mxa_kv_scratch_portable;
mxa_kv_segment_fn mxa_kv_segment_portable;

#endif

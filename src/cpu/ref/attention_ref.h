/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MXA_CPU_ATTENTION_REF_H
#define MXA_CPU_ATTENTION_REF_H

#include "cpu/attention_cpu.h"

mxa_attention_scratch_fn mxa_attention_ref_scratch;
mxa_attention_run_fn mxa_attention_ref;

#endif

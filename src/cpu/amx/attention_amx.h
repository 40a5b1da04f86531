/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MXA_CPU_AMX_ATTENTION_AMX_H
#define MXA_CPU_AMX_ATTENTION_AMX_H

#include "cpu/attention_cpu.h"

mxa_attention_refuses_fn mxa_attention_amx_refuses;
mxa_attention_scratch_fn mxa_attention_amx_scratch;
mxa_attention_run_fn mxa_attention_amx;
mxa_attention_shared_fn mxa_attention_amx_shared;
mxa_attention_share_fn mxa_attention_amx_share;

#endif

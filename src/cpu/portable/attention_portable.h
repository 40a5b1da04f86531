/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MXA_CPU_ATTENTION_PORTABLE_H
#define MXA_CPU_ATTENTION_PORTABLE_H

#include "cpu/attention_cpu.h"

mxa_attention_refuses_fn mxa_attention_portable_refuses;
mxa_attention_scratch_fn mxa_attention_portable_scratch;
mxa_attention_run_fn mxa_attention_portable;

#endif

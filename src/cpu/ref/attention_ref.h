/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MXA_CPU_ATTENTION_REF_H
#define MXA_CPU_ATTENTION_REF_H

#include "cpu/attention_cpu.h"

mxa_attention_scratch_fn mxa_attention_ref_scratch;
mxa_attention_run_fn mxa_attention_ref;

/* Some rows of a query tile of head h. */
void mxa_attention_ref_rows(const mxa_attention_job *job, const mxa_sequence *s, int64_t h, int64_t tile,
                            mxa_span rows, void *scratch);

#endif

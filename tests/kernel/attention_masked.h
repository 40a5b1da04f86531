/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ATTENTION_MASKED_H
#define ATTENTION_MASKED_H

#include "attention_problem.h"

/* Runs a problem by an entry: on the CPU with one thread, or on a device. */
typedef attention_result attention_run_fn(const attention_problem *a, const mxa_attention_impl *impl);

/* Fail unless both rows have the same bits; what goes into the sentence. */
void same_row(const char *what, const attention_result *want, int64_t want_row, const attention_result *got,
              int64_t got_row, int64_t dim);

/* One key holds zeros, or Inf and NaN: rows that don't see it have the same bits. */
void check_masked(const attention_problem *a, attention_run_fn *run, const mxa_attention_impl *impl);

#endif

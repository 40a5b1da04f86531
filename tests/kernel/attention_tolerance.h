/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ATTENTION_TOLERANCE_H
#define ATTENTION_TOLERANCE_H

#include "attention_problem.h"

/*
 * Fail unless an entry's result is the float64 reference's within docs/numerics.md, section 12: a bound for
 * each row and channel from the inputs and the entry's own errors.
 */
void check_tolerance(const attention_problem *a, const mxa_attention_impl *impl, const attention_result *got);

#endif

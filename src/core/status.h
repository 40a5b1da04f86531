/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MXA_CORE_STATUS_H
#define MXA_CORE_STATUS_H

#include <mxattn/mxattn.h>

/*
 * Set the calling thread's error sentence and return status. The sentence names the argument, its value and
 * the rule: mxa_fail(MXA_ERR_SHAPE, "q: head_dim %lld is not a multiple of 32", (long long)d).
 */
mxa_status mxa_fail(mxa_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif

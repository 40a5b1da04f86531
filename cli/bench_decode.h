/* SPDX-License-Identifier: Apache-2.0 */
/* The table of mxattn bench --decode. */
#ifndef MXA_BENCH_DECODE_H
#define MXA_BENCH_DECODE_H

#include "shapes.h"

/* Time the named shapes, which are single queries; count 0: all such of the list. False after a message. */
bool bench_decode(const shape_list *list, const char *const *names, size_t count, int64_t layers, int threads,
                  bool json);

#endif

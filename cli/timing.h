/* SPDX-License-Identifier: Apache-2.0 */
/* How long a call takes: the median of runs after a warm-up, and how far they spread. */
#ifndef MXA_TIMING_H
#define MXA_TIMING_H

#include <stdbool.h>

typedef struct timing {
    double median_ms, p10_ms, p90_ms;
    int runs;
} timing;

/*
 * Call until there are least runs and the time is spent; a call that takes many times as long is made once
 * more. False as soon as a call is, after its message.
 */
bool timing_measure(bool (*call)(void *), void *context, int least, double seconds, timing *result);

#endif

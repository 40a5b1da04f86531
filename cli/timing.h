/* SPDX-License-Identifier: Apache-2.0 */
/* How long calls take: the median of runs after a warm-up, and how far they spread. */
#ifndef MXA_TIMING_H
#define MXA_TIMING_H

#include <stdbool.h>

typedef struct timing {
    double median_ms, p10_ms, p90_ms;
    int runs;
} timing;

/* call returns false after a message. */
typedef struct timed_call {
    bool (*call)(void *context);
    void *context;
} timed_call;

enum { MAX_CONTENDERS = 5 };

/*
 * Call n contenders in turn, so that whatever else the machine does meets all of them, until there are least
 * rounds and the seconds for each are spent; calls that take many times as long are made once more. False as
 * soon as a call is.
 */
bool timing_measure(const timed_call *calls, int n, int least, double seconds, timing *results);

#endif

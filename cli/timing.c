/* SPDX-License-Identifier: Apache-2.0 */
#include "timing.h"

#include "cli.h"

#include <stdlib.h>

#define MAX_RUNS      200
#define LONG_CALL     8 /* times the seconds given: one more run must do */
#define MS_PER_SECOND 1e3

static int compare_doubles(const void *left, const void *right)
{
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

bool timing_measure(bool (*call)(void *), void *context, int least, double seconds, timing *result)
{
    double ms[MAX_RUNS];
    int runs = 0;
    const double begin = cli_seconds();
    if (!call(context))
        return false;
    const double warm = cli_seconds();
    if (warm - begin > LONG_CALL * seconds)
        least = 1;
    while (runs < MAX_RUNS && (runs < least || cli_seconds() - warm < seconds)) {
        const double start = cli_seconds();
        if (!call(context))
            return false;
        ms[runs++] = (cli_seconds() - start) * MS_PER_SECOND;
    }
    qsort(ms, (size_t)runs, sizeof ms[0], compare_doubles);
    *result = (timing){ .median_ms = (ms[runs / 2] + ms[(runs - 1) / 2]) / 2,
                        .p10_ms = ms[runs / 10],
                        .p90_ms = ms[runs - 1 - runs / 10],
                        .runs = runs };
    return true;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "timing.h"

#include "cli.h"

#include <stdlib.h>

#define MAX_RUNS      200
#define LONG_CALL     8 /* times the seconds given: one more round must do */
#define MS_PER_SECOND 1e3

static int compare_doubles(const void *left, const void *right)
{
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* One call of a contender, in milliseconds; negative if it failed. */
static double call_ms(const timed_call *c)
{
    const double start = cli_seconds();
    return c->call(c->context) ? (cli_seconds() - start) * MS_PER_SECOND : -1;
}

static timing summary(double ms[MAX_RUNS], int runs)
{
    qsort(ms, (size_t)runs, sizeof ms[0], compare_doubles);
    return (timing){ .median_ms = (ms[runs / 2] + ms[(runs - 1) / 2]) / 2,
                     .p10_ms = ms[runs / 10],
                     .p90_ms = ms[runs - 1 - runs / 10],
                     .runs = runs };
}

bool timing_measure(const timed_call *calls, int n, int least, double seconds, timing *results)
{
    double ms[MAX_CONTENDERS][MAX_RUNS];
    const double begin = cli_seconds();
    for (int i = 0; i < n; i++)
        if (call_ms(&calls[i]) < 0)
            return false;
    const double warm = cli_seconds();
    if (warm - begin > LONG_CALL * seconds * n)
        least = 1;
    int runs = 0;
    for (; runs < MAX_RUNS && (runs < least || cli_seconds() - warm < seconds * n); runs++)
        for (int i = 0; i < n; i++)
            if ((ms[i][runs] = call_ms(&calls[i])) < 0)
                return false;
    for (int i = 0; i < n; i++)
        results[i] = summary(ms[i], runs);
    return true;
}

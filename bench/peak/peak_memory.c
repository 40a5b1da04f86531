/* SPDX-License-Identifier: Apache-2.0 */
#include "peak.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LEAST_BYTES  (INT64_C(256) << 20)
#define CACHES       4 /* buffers are as many times as large as the last cache */
#define PASSES       5
#define WORDS        8 /* read at once */
#define BUFFER_ALIGN 4096

/* Of all threads together. */
static int64_t buffer_bytes(void)
{
    const int64_t cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    return CACHES * cache > LEAST_BYTES ? CACHES * cache : LEAST_BYTES;
}

static void read_bytes(const uint64_t *from, int64_t bytes)
{
    uint64_t sums[WORDS] = { 0 };
    for (int64_t i = 0; i < bytes / (int64_t)sizeof *from; i += WORDS)
        for (int j = 0; j < WORDS; j++)
            sums[j] += from[i + j];
    for (int j = 0; j < WORDS; j++)
        __asm__ volatile("" ::"r"(sums[j]));
}

/* The fastest of some passes; the first touches the pages. */
static double best_rate(int threads, int64_t moved, int64_t share, uint8_t *to)
{
    double best = 0;
    for (int pass = 0; pass <= PASSES; pass++) {
        const double begun = peak_seconds();
#pragma omp parallel for num_threads(threads) schedule(static, 1)
        for (int t = 0; t < threads; t++) {
            uint8_t *const mine = to + t * share;
            if (pass == 0)
                memset(mine, 1, (size_t)share);
            else if (moved < share)
                memcpy(mine, mine + moved, (size_t)moved);
            else
                read_bytes((const uint64_t *)(const void *)mine, moved);
        }
        const double rate = threads * (double)moved / (peak_seconds() - begun);
        if (pass > 0 && rate > best)
            best = rate;
    }
    return best;
}

/* 0 if there is no memory for it. */
static double rate_of(int threads, int parts)
{
    const int64_t moved = buffer_bytes() / threads / BUFFER_ALIGN * BUFFER_ALIGN;
    uint8_t *const buffer = aligned_alloc(BUFFER_ALIGN, (size_t)(moved * threads * parts));
    const double rate = buffer ? best_rate(threads, moved, moved * parts, buffer) : 0;
    free(buffer);
    return rate;
}

double peak_read(int threads)
{
    return rate_of(threads, 1);
}

double peak_copy(int threads)
{
    return rate_of(threads, 2);
}

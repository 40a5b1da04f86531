/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The harness behind mxa_check: every entry of every list of kernels runs against the reference, on random
 * ragged shapes and on inputs made to break it. One function a list:
 *
 *     for (const mxa_x_impl *impl = mxa_x_impls; impl->name; impl++) {
 *         if (!check_entry("x", impl->name, format_name, impl->needs))
 *             continue;
 *         while (check_round()) {
 *             ... shapes by check_pick, inputs by check_floats, outputs by check_bytes ...
 *             check_same("codes", want, got);
 *         }
 *         if (check_benching())
 *             for (check_timer t = { .bytes = n }; check_time(&t);)
 *                 impl->fn(...);
 *     }
 *
 * Memory that the harness hands out lives until the next round or entry begins.
 */
#ifndef CHECK_H
#define CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Guard bytes stand before and after data, which is 64-byte aligned and filled with random bytes. */
typedef struct check_buf {
    uint8_t *data;
    size_t bytes;
} check_buf;

/* One benchmark: set the first two, one of them may be 0. */
typedef struct check_timer {
    double bytes, flops; /* of one call */
    int n_samples;
    double started;
    double samples[32]; /* seconds a call */
} check_timer;

/*
 * Begin an entry, named op/name/format. False if it is not to run: --filter leaves it out, or this machine
 * (as masked by --cpu) lacks what it needs, which is reported as skipped.
 */
bool check_entry(const char *op, const char *name, const char *format, uint32_t needs);

/* Begin the next round of this entry; false after the last, and after the first that failed. */
bool check_round(void);

/* The same for rounds n = 1 to last whatever --rounds says: for what is tried exhaustively. */
bool check_each(int *n, int last);

/* Random numbers: the same for the same --seed, entry and round. check_pick includes both ends. */
uint64_t check_random(void);
int64_t check_pick(int64_t low, int64_t high);

/* Standard normal. */
float check_normal(void);

/*
 * n floats, all of one random kind or each block of 16 of its own: normal, ties between codes, maxima at the
 * edge of saturation, one outlier, zeros of both signs, subnormals, huge, any bit pattern. Inf and NaN only
 * if asked for.
 */
float *check_floats(int64_t n, bool nonfinite);

check_buf check_bytes(size_t bytes);

/* Report a failure of this round. Prints the sentence, and once the command that repeats it. */
void check_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Fail unless got's guards are whole and its bytes are want's. The second prints floats. */
bool check_same(const char *what, check_buf want, check_buf got);
bool check_same_floats(const char *what, check_buf want, check_buf got);

/* Fail unless buf's guards are whole. */
bool check_guards(const char *what, check_buf buf);

/* Fail unless Inf and NaN agree and |want - got| <= bound; index goes into the sentence. */
bool check_close(const char *what, int64_t index, double want, double got, double bound);

/* Whether --bench is on and this entry has not failed. */
bool check_benching(void);

/* True until enough calls are timed, then prints their median and spread. The first call is a warm-up. */
bool check_time(check_timer *timer);

#endif

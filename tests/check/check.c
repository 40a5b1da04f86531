/* SPDX-License-Identifier: Apache-2.0 */
#include "check_state.h"

#include "core/bits.h"
#include "cpu/features.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { GUARD_BYTES = 64, MAX_BUFFERS = 256, MAX_DIFFERENCES = 5 };

static const uint8_t guard_byte = 0xA5;
static const double bench_seconds = 0.25;

check_state check_now = { .seed = 1, .rounds = 60 };

static void *buffers[MAX_BUFFERS];
static int n_buffers;

static uint64_t splitmix64(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

uint64_t check_random(void)
{
    return splitmix64(&check_now.random);
}

int64_t check_pick(int64_t low, int64_t high)
{
    return low + (int64_t)(check_random() % (uint64_t)(high - low + 1));
}

static void release_buffers(void)
{
    while (n_buffers > 0)
        free(buffers[--n_buffers]);
}

check_buf check_bytes(size_t bytes)
{
    const size_t padded = (bytes + GUARD_BYTES - 1) / GUARD_BYTES * GUARD_BYTES;
    uint8_t *memory = n_buffers < MAX_BUFFERS ? aligned_alloc(GUARD_BYTES, padded + 2 * GUARD_BYTES) : NULL;
    if (!memory) {
        fprintf(stderr, "mxa_check: no memory for a buffer of %zu bytes\n", bytes);
        exit(1);
    }
    buffers[n_buffers++] = memory;
    memset(memory, guard_byte, padded + 2 * GUARD_BYTES);
    for (size_t i = 0; i < bytes; i += sizeof(uint64_t)) {
        const uint64_t random = check_random();
        memcpy(memory + GUARD_BYTES + i, &random, bytes - i < sizeof random ? bytes - i : sizeof random);
    }
    return (check_buf){ memory + GUARD_BYTES, bytes };
}

static void begin(uint64_t round)
{
    release_buffers();
    check_now.random = check_now.seed;
    for (const char *p = check_now.entry; *p; p++)
        check_now.random = splitmix64(&check_now.random) ^ (unsigned char)*p;
    check_now.random = splitmix64(&check_now.random) ^ round;
}

void check_entry_end(void)
{
    if (!check_now.entry[0])
        return;
    if (check_now.entry_failed)
        check_now.failed++;
    else
        check_now.passed++;
    printf("%s %s\n", check_now.entry_failed ? "FAIL" : "ok  ", check_now.entry);
    check_now.entry[0] = 0;
    release_buffers();
}

bool check_entry(const char *op, const char *name, const char *format, uint32_t needs)
{
    check_entry_end();
    char entry[sizeof check_now.entry], missing[MXA_CPU_FLAGS_TEXT];
    snprintf(entry, sizeof entry, "%s/%s/%s", op, name, format);
    if (check_now.filter && !strstr(entry, check_now.filter))
        return false;
    const uint32_t lacking = needs & ~mxa_cpu_flags();
    if (lacking) {
        mxa_cpu_flags_text(lacking, missing, sizeof missing);
        printf("skip %s: needs %s\n", entry, *missing ? missing : "a higher --cpu");
        check_now.skipped++;
        return false;
    }
    memcpy(check_now.entry, entry, sizeof entry);
    check_now.round = 0;
    check_now.entry_failed = false;
    begin(0);
    return true;
}

bool check_each(int *n, int last)
{
    if (check_now.entry_failed || check_now.round == last)
        return false;
    *n = ++check_now.round;
    begin((uint64_t)*n);
    return true;
}

bool check_round(void)
{
    int n;
    return check_each(&n, check_now.rounds);
}

void check_fail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    printf("%s, round %d: ", check_now.entry, check_now.round);
    vprintf(format, args);
    printf("\n");
    va_end(args);
    if (!check_now.entry_failed)
        printf("  repeat: mxa_check --seed %llu --filter %s\n", (unsigned long long)check_now.seed,
               check_now.entry);
    check_now.entry_failed = true;
}

bool check_guards(const char *what, check_buf buf)
{
    const ptrdiff_t bytes = (ptrdiff_t)buf.bytes;
    const ptrdiff_t padded = (bytes + GUARD_BYTES - 1) / GUARD_BYTES * GUARD_BYTES;
    for (ptrdiff_t i = -GUARD_BYTES; i < padded + GUARD_BYTES; i = i == -1 ? bytes : i + 1)
        if (buf.data[i] != guard_byte) {
            check_fail("%s: byte %td of a buffer of %td bytes was written", what, i, bytes);
            return false;
        }
    return true;
}

bool check_same(const char *what, check_buf want, check_buf got)
{
    if (!check_guards(what, got))
        return false;
    int differences = 0;
    for (size_t i = 0; i < want.bytes && differences < MAX_DIFFERENCES; i++) {
        if (want.data[i] != got.data[i]) {
            check_fail("%s[%zu]: want 0x%02X, got 0x%02X", what, i, want.data[i], got.data[i]);
            differences++;
        }
    }
    return differences == 0;
}

bool check_same_floats(const char *what, check_buf want, check_buf got)
{
    if (!check_guards(what, got))
        return false;
    int differences = 0;
    for (size_t i = 0; i < want.bytes / sizeof(float) && differences < MAX_DIFFERENCES; i++) {
        float w, g;
        memcpy(&w, want.data + i * sizeof w, sizeof w);
        memcpy(&g, got.data + i * sizeof g, sizeof g);
        if (mxa_f32_bits(w) != mxa_f32_bits(g)) {
            check_fail("%s[%zu]: want %.9g (%08X), got %.9g (%08X)", what, i, (double)w, mxa_f32_bits(w),
                       (double)g, mxa_f32_bits(g));
            differences++;
        }
    }
    return differences == 0;
}

bool check_close(const char *what, int64_t index, double want, double got, double bound)
{
    const bool ordinary = isfinite(want) && isfinite(got);
    if (ordinary ? fabs(want - got) <= bound : want == got || (isnan(want) && isnan(got)))
        return true;
    check_fail("%s[%lld]: want %.9g, got %.9g, bound %.3g", what, (long long)index, want, got, bound);
    return false;
}

/* ------------------------------------------------------------------ timing */

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void report_times(check_timer *t)
{
    qsort(t->samples, (size_t)t->n_samples, sizeof *t->samples, compare_doubles);
    const double median = t->samples[t->n_samples / 2];
    const double spread = t->samples[t->n_samples * 3 / 4] - t->samples[t->n_samples / 4];
    printf("time %-32s %10.2f us, spread %.0f %%", check_now.entry, median * 1e6, 100 * spread / median);
    if (t->bytes > 0)
        printf(", %.2f GB/s", t->bytes / median * 1e-9);
    if (t->flops > 0)
        printf(", %.2f GFLOP/s", t->flops / median * 1e-9);
    printf("\n");
}

bool check_benching(void)
{
    return check_now.bench && !check_now.entry_failed;
}

/* n_samples counts from -1 while the warm-up call runs; started is 0 before it. */
bool check_time(check_timer *t)
{
    const int capacity = (int)(sizeof t->samples / sizeof *t->samples);
    static double begun;
    const double now = seconds();
    if (t->started == 0) {
        t->n_samples = -1;
    } else if (t->n_samples < 0) {
        t->n_samples = 0;
        begun = now;
    } else {
        t->samples[t->n_samples++] = now - t->started;
        if (t->n_samples == capacity || (now - begun > bench_seconds && t->n_samples >= 5)) {
            report_times(t);
            return false;
        }
    }
    t->started = seconds();
    return true;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A decode step on a GPU: what is checked and timed. */
#ifndef CHECK_DECODE_CUDA_H
#define CHECK_DECODE_CUDA_H

#ifdef __cplusplus
extern "C" {
#endif

#include "cache/cache.h"
#include "cpu/kv_attend_cpu.h"
#include "cuda/decode/decode_cuda.h"
#include "cuda/decode/kv_order_cuda.h"

enum { CHECK_BATCH = 32, CHECK_HEADS = 64 };

typedef struct check_case {
    const char *recipe;
    int64_t n, heads, heads_kv, dim, page, batch;
    int64_t lengths[CHECK_BATCH], counts[CHECK_BATCH];
    bool has_counts, has_sinks, fast; /* fast: the fast entry must take it */
    int64_t window;                   /* 0: none */
    float softcap;
    int nan_values; /* keys and values that become NaN */
    bool wide_values;
    double bound;
} check_case;

typedef struct check_problem {
    const check_case *c;
    mxa_recipe recipe;
    mxa_cache *cache;
    mxa_tensor q, device_q, device_out;
    float sinks[CHECK_HEADS];
    int64_t longest, table_pages, copies;
    uint8_t *pages[MXA_COPIES];
    uint64_t *tables[MXA_COPIES];
    int64_t *lengths, *device_counts;
    float *mean, *lse, *device_sinks;
    uint32_t *counters;
    void *work;
} check_problem;

/* Sequences are so much shorter: where kernels are emulated. */
extern const int check_shorter;

void *check_device(size_t bytes, const void *from);
bool check_done(const char *what);
void check_make(const check_case *c, check_problem *p, int64_t copies, bool shuffle);
void check_upload(check_problem *p, int64_t copies, bool shuffle);
void check_release(check_problem *p);
mxa_decode_job check_job(const check_problem *p, const mxa_cuda_device *device, int64_t copy_number);

/* Times of the shapes whose names are given, or of all; 0 if all went well. */
int check_times(const mxa_cuda_device *device, int n, char **names);

#ifdef __cplusplus
}
#endif

#endif

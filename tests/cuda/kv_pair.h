/* SPDX-License-Identifier: Apache-2.0 */
/* A cache of the CPU and one of a device that get the same calls. What differs fails the round. */
#ifndef KV_PAIR_H
#define KV_PAIR_H

#include <mxattn/mxattn.h>

#include "check.h"

enum { KV_BATCH = 3, KV_CACHES = 2, KV_CPU = 0, KV_DEVICE = 1 };

typedef struct kv_pair {
    mxa_cache *caches[KV_CACHES];
    mxa_cache_opts opts; /* the CPU's */
    mxa_recipe recipe;
    float *mean;
    bool exact;                 /* results are the same to the bit */
    bool tame;                  /* all numbers are normal; others are compared where results are exact only */
    int64_t appended[KV_BATCH]; /* by the last append */
} kv_pair;

bool kv_create(kv_pair *p, const char *recipe, bool exact);
void kv_free(kv_pair *p);

/*
 * Random rows of random types and strides; nonfinite: NaN and Inf too. booked: the device's tokens are
 * booked, then come as a captured append brings them (of the backend without a device only, which runs it at
 * once).
 */
void kv_append(kv_pair *p, const int64_t *counts, bool nonfinite, bool booked);

/* The newest queries that the caches can take, some of each sequence. */
void kv_attend(kv_pair *p);

/* Take back tokens of sequence b; both caches or neither can. */
void kv_truncate(kv_pair *p, int64_t b, int64_t back);
void kv_fork(kv_pair *p, int64_t from, int64_t to);
void kv_reorder(kv_pair *p);

/* Both caches become what is read from the other one's file. */
void kv_reload(kv_pair *p);

/* The pages of sequence b move, where their number is fixed and enough are free. */
void kv_swap_pages(kv_pair *p, int64_t b);

void kv_same_files(kv_pair *p);

/* Memory of the host in calls on a device's cache. */
void kv_refuse_host_memory(void);

/* What changes sequences while a graph is recorded. Without a device only. */
void kv_refuse_recorded_changes(kv_pair *p);

/* The device has no memory left: an append fails, and the cache is as it was. Without a device only. */
void kv_run_out(kv_pair *p);

#endif

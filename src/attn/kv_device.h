/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a device does for a KV cache whose pages are its memory: the cache asks, a backend answers. Host and
 * device each have lengths and tables. The host's say what is booked; kernels read the device's, which are
 * changed by work on the cache's stream alone, so that a captured graph replays with other lengths.
 */
#ifndef MXA_ATTN_KV_DEVICE_H
#define MXA_ATTN_KV_DEVICE_H

#include "attn/kv_view.h"

/* The device's part of a cache. */
typedef struct mxa_kv_device mxa_kv_device;

typedef struct mxa_kv_device_spec {
    int device; /* from 0 */
    int64_t batch;
    const mxa_kv_layout *layout; /* these three live as long as the cache */
    const mxa_recipe *recipe;
    const mxa_copy_plan *q; /* [MXA_COPIES] */
    int64_t table_pages;    /* room in each table to begin with */
} mxa_kv_device_spec;

/* A number that the device has another of. */
typedef struct mxa_kv_change {
    int what;  /* a copy: entry `page` of its table becomes the address `value`; MXA_KV_LENGTH: the length */
    int64_t b; /* the sequence */
    int64_t page;  /* by token / page_tokens */
    int64_t value; /* 0 where there is no page */
} mxa_kv_change;

enum { MXA_KV_LENGTH = MXA_COPIES };

/* What an attend is asked for; all pointers but counts, and those in the views, are device memory. */
typedef struct mxa_kv_device_call {
    const mxa_tensor *q, *out;
    const int64_t *counts; /* [batch], or NULL */
    float *lse;
    const float *sinks;
    float softmax_scale, softcap;
    int64_t window_left; /* 0..MXA_FAR */
    int64_t max_length;  /* no sequence is longer when this runs */
    void *work;
} mxa_kv_device_call;

/*
 * Statuses have their sentence in error_text. "Queued": on the stream, in the order of the calls. A failure
 * of what is queued is MXA_ERR_DEVICE, after which the cache is of no more use.
 */
typedef struct mxa_kv_device_ops {
    const char *(*error_text)(void);
    mxa_status (*create)(const mxa_kv_device_spec *spec, mxa_kv_device **made);
    void (*destroy)(mxa_kv_device *d); /* waits for the device; NULL is allowed */
    mxa_status (*set_stream)(mxa_kv_device *d, void *stream);
    /* Whether the stream is recording a graph. */
    mxa_status (*is_capturing)(mxa_kv_device *d, bool *capturing);

    /* Memory of pages; the caller's: MXA_ERR_ARG unless it is the device's. */
    mxa_status (*check_memory)(mxa_kv_device *d, const char *name, const void *memory);
    mxa_status (*allocate)(mxa_kv_device *d, int64_t bytes, void **memory);
    void (*release)(mxa_kv_device *d, void *memory);
    mxa_status (*copy_page)(mxa_kv_device *d, int copy, uint8_t *to, const uint8_t *from); /* queued */

    /* A page as attn/kv_view.h draws it, in host memory; waits. */
    mxa_status (*read_page)(mxa_kv_device *d, int copy, const uint8_t *page, uint8_t *host);
    mxa_status (*write_page)(mxa_kv_device *d, int copy, uint8_t *page, uint8_t *host);

    /* Room for pages in each table: MXA_ERR_MEMORY leaves the tables as they are. May wait. */
    mxa_status (*reserve_tables)(mxa_kv_device *d, int64_t pages);
    /* Queued; changes may be overwritten at once. */
    mxa_status (*send)(mxa_kv_device *d, int64_t n, const mxa_kv_change *changes);
    /* GIVEN: the mean of all sequences, host memory [heads_kv][head_dim]. Waits. */
    mxa_status (*set_mean)(mxa_kv_device *d, const float *mean);
    /* The means of PREFIX of all sequences that have MXA_TILE tokens, from their high rows. Queued. */
    mxa_status (*make_means)(mxa_kv_device *d);

    /* The tensors are the device's. */
    mxa_status (*check_rows)(mxa_kv_device *d, const mxa_tensor *k, const mxa_tensor *v);
    /*
     * counts[b] rows behind the device's length of each sequence, whose pages are in its tables; the lengths
     * grow by them. Queued.
     */
    mxa_status (*append)(mxa_kv_device *d, const mxa_tensor *k, const mxa_tensor *v, const int64_t *counts);

    /* Of attends of at most n queries to at most length tokens; 0 if the bytes do not fit. */
    size_t (*work_bytes)(const mxa_kv_device *d, int64_t heads, int64_t n, int64_t length);
    /* Memory that is not the device's is refused. Queued. */
    mxa_status (*attend)(mxa_kv_device *d, const mxa_kv_device_call *call);
} mxa_kv_device_ops;

#endif

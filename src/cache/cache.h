/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pages of a KV cache and whose they are. What is in a page is the backend's business (attn/kv_view.h).
 */
#ifndef MXA_CACHE_CACHE_H
#define MXA_CACHE_CACHE_H

#include "attn/kv_view.h"
#include "cache/page_pool.h"

enum { MXA_CACHE_ALIGNMENT = 64 };

typedef struct mxa_cache_sequence {
    int64_t length;
    int64_t high_first; /* keys from it on are held in high precision, and those of the sink window */
    int64_t capacity;   /* of each table */
    int32_t *table[MXA_COPIES];
    /* [heads_kv][head_dim], or NULL; PREFIX: set once there are MXA_TILE tokens, on a device by the device */
    float *mean;
    int64_t unsent_first; /* table entries from it on, and the length, of which the device does not know */
    bool unsent_length;
} mxa_cache_sequence;

struct mxa_cache {
    mxa_cache_opts opts; /* recipe and mean are NULL, memory as given */
    mxa_recipe recipe;
    mxa_copy_plan q[MXA_COPIES];
    mxa_kv_layout layout;
    int64_t near_tiles; /* key tiles before its own that the diag window makes high for a query; -1: none */
    mxa_page_pool pool[MXA_COPIES];
    bool has_g_v;                 /* low rows of V have the factors of their channels */
    float *g_v;                   /* [heads_kv][head_dim_v], or NULL */
    const mxa_kv_device_ops *ops; /* NULL: the CPU's cache */
    mxa_kv_device *device;
    uint8_t *host_page; /* of a device's cache: room for a page of either kind */
    mxa_cache_sequence *sequences;
    mxa_kv_sequence *views; /* [batch] what mxa_cache_view gives */
    int64_t *counts;        /* [batch] of the append at work */
};

/* Checked opts as a cache without pages and sequences: layout, copies, windows. */
mxa_status mxa_cache_describe_opts(const mxa_cache_opts *opts, mxa_cache *cache);

/* The same for opts of a file, whose mean and g_v follow: their values are not looked at. */
mxa_status mxa_cache_describe_sizes(const mxa_cache_opts *opts, mxa_cache *cache);

/* mxa_cache_create and mxa_cache_load, by the ops of the device that opts names; NULL: the CPU. */
mxa_status mxa_cache_make(const mxa_cache_opts *opts, const mxa_kv_device_ops *ops, mxa_cache **cache);
mxa_status mxa_cache_read(const char *path, const mxa_cache_opts *opts, const mxa_kv_device_ops *ops,
                          mxa_cache **cache);

/* High rows that a sequence of length tokens keeps after an append of one token. */
int64_t mxa_cache_high_tokens(const mxa_cache *cache, int64_t length);

/* The first key that a query at position sees in high precision by its diag window. */
int64_t mxa_cache_near_first(const mxa_cache *cache, int64_t position);

static inline int64_t mxa_cache_pages_of(const mxa_cache *cache, int64_t tokens)
{
    return (tokens + cache->layout.page_tokens - 1) / cache->layout.page_tokens;
}

mxa_kv_view mxa_cache_view(const mxa_cache *cache);

/* Room for that many pages in the tables of a sequence, and in the device's. */
mxa_status mxa_cache_grow_tables(const mxa_cache *cache, mxa_cache_sequence *s, int64_t pages);

/*
 * Pages for counts[b] tokens more of each sequence: those that no new query needs are given back, shared ones
 * that will be written are copied. Lengths stay until mxa_cache_commit. On failure nothing changed.
 */
mxa_status mxa_cache_make_room(mxa_cache *cache, const int64_t *counts);
void mxa_cache_commit(mxa_cache *cache, const int64_t *counts);

/* The mean of PREFIX, once sequence b has MXA_TILE tokens with high rows. Of a CPU's cache. */
void mxa_cache_set_mean(mxa_cache *cache, int64_t b);

/* Low rows of K are less a mean that is made of high ones. */
static inline bool mxa_cache_makes_means(const mxa_cache *cache)
{
    return cache->recipe.smooth_k == MXA_SMOOTH_PREFIX && cache->layout.part[MXA_LOW][MXA_KV_K].copy.info;
}

/* What an op returned, with its sentence taken over. */
mxa_status mxa_cache_result(const mxa_cache *cache, mxa_status status);

/* MXA_ERR_ARG while the device's stream is captured: the graph would make the change at each launch. */
mxa_status mxa_cache_check_change(const mxa_cache *cache);

/* Queue what the device does not know of tables and lengths; nothing where there is no device. */
mxa_status mxa_cache_send(mxa_cache *cache);

/* The same once sequences have become others: their means too, which on the CPU they brought along. */
mxa_status mxa_cache_send_all(mxa_cache *cache);

/* Numbers of pages that there are, and all that are needed. */
mxa_status mxa_cache_check_table(const mxa_cache *cache, const mxa_cache_table *table);

/* A table of the caller's, without the mean. */
mxa_status mxa_cache_adopt_table(mxa_cache *cache, int64_t b, const mxa_cache_table *table);

/* Every page that the queries of sequence b read is there; MXA_ERR_ARG says which is not. */
mxa_status mxa_cache_check_visible(const mxa_cache *cache, int64_t b, const mxa_tile_map *map);

#endif

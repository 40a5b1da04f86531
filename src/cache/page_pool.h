/* SPDX-License-Identifier: Apache-2.0 */
/* Pages by number: who uses them how often, and which are free. */
#ifndef MXA_CACHE_PAGE_POOL_H
#define MXA_CACHE_PAGE_POOL_H

#include "attn/kv_device.h"

typedef struct mxa_page_pool {
    const mxa_kv_device_ops *ops; /* NULL: pages are host memory */
    mxa_kv_device *device;
    int64_t page_bytes;
    int64_t count, capacity; /* pages there are, and room in the arrays below */
    bool fixed;              /* no more than there are now */
    uint8_t **pages;         /* [count] */
    int32_t *users;          /* [count] sequences that name it */
    int32_t *free;           /* [n_free] numbers, the next one last */
    int32_t *free_at;        /* [count] where a free page stands among them */
    int64_t n_free;
    void **slabs; /* [n_slabs] memory of pages that the pool allocated, some pages each */
    int64_t n_slabs;
} mxa_page_pool;

/*
 * fixed pages in memory (NULL: the pool's own), or none yet (fixed 0), of the device that *pool names.
 * MXA_ERR_MEMORY leaves an empty pool.
 */
mxa_status mxa_pool_create(mxa_page_pool *pool, int64_t page_bytes, int64_t fixed, void *memory);
void mxa_pool_free(mxa_page_pool *pool);

/* At least n pages are free then. MXA_ERR_MEMORY: nothing changed. */
mxa_status mxa_pool_reserve(mxa_page_pool *pool, int64_t n);

/* A free page for one user; there is one. Host memory is filled with zeros. */
int32_t mxa_pool_take(mxa_page_pool *pool);

/* One user more of any page. */
void mxa_pool_share(mxa_page_pool *pool, int32_t page);

/* One user less; a page without users is free. -1 is no page. */
void mxa_pool_release(mxa_page_pool *pool, int32_t page);

#endif

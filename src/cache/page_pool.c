/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/page_pool.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "attn/tile_map.h"
#include "core/status.h"

enum { ALIGNMENT = 64, FIRST_CAPACITY = 16 };

/* Pages of virtual memory that Linux maps as one: a sweep over packed bytes then misses its tables less. */
#define HUGE_PAGE ((int64_t)2 << 20)
#define SLAB_MAX  (32 * HUGE_PAGE) /* beyond what an append needs */

/* Memory of n pages; the pool frees it. */
static uint8_t *new_slab(mxa_page_pool *pool, int64_t n)
{
    int64_t bytes;
    if (__builtin_mul_overflow(n, pool->page_bytes, &bytes) || bytes > PTRDIFF_MAX - HUGE_PAGE)
        return NULL;
    void **const slabs = realloc(pool->slabs, (size_t)(pool->n_slabs + 1) * sizeof *slabs);
    if (!slabs)
        return NULL;
    pool->slabs = slabs;
    if (pool->ops) {
        void *memory = NULL;
        const bool got = pool->ops->allocate(pool->device, bytes, &memory) == MXA_OK;
        return got ? slabs[pool->n_slabs++] = memory : NULL;
    }
    const int64_t alignment = bytes < HUGE_PAGE ? ALIGNMENT : HUGE_PAGE;
    void *const slab = aligned_alloc((size_t)alignment, (size_t)((bytes + alignment - 1) & -alignment));
    if (!slab)
        return NULL;
    if (alignment == HUGE_PAGE)
        madvise(slab, (size_t)bytes, MADV_HUGEPAGE); /* advice: whether it is taken does not matter */
    return slabs[pool->n_slabs++] = slab;
}

/* Room in the arrays for n pages. */
static bool grow_arrays(mxa_page_pool *pool, int64_t n)
{
    if (n <= pool->capacity)
        return true;
    const int64_t doubled = pool->capacity < FIRST_CAPACITY / 2 ? FIRST_CAPACITY : 2 * pool->capacity;
    const int64_t capacity = n > doubled ? n : doubled;
    if (capacity > INT32_MAX)
        return false;
    uint8_t **const pages = realloc(pool->pages, (size_t)capacity * sizeof *pages);
    pool->pages = pages ? pages : pool->pages;
    int32_t *const users = realloc(pool->users, (size_t)capacity * sizeof *users);
    pool->users = users ? users : pool->users;
    int32_t *const free_pages = realloc(pool->free, (size_t)capacity * sizeof *free_pages);
    pool->free = free_pages ? free_pages : pool->free;
    int32_t *const free_at = realloc(pool->free_at, (size_t)capacity * sizeof *free_at);
    pool->free_at = free_at ? free_at : pool->free_at;
    if (!pages || !users || !free_pages || !free_at)
        return false;
    pool->capacity = capacity;
    return true;
}

/* The page becomes entry i of the free ones. */
static void put_free(mxa_page_pool *pool, int64_t i, int32_t page)
{
    pool->free[i] = page;
    pool->free_at[page] = (int32_t)i;
}

static void add_page(mxa_page_pool *pool, uint8_t *memory)
{
    pool->pages[pool->count] = memory;
    pool->users[pool->count] = 0;
    put_free(pool, pool->n_free++, (int32_t)pool->count++);
}

/* n pages more, all or none. */
static bool grow_slab(mxa_page_pool *pool, int64_t n)
{
    uint8_t *const base = grow_arrays(pool, pool->count + n) ? new_slab(pool, n) : NULL;
    for (int64_t i = 0; i < n && base; i++)
        add_page(pool, base + i * pool->page_bytes);
    return base != NULL;
}

mxa_status mxa_pool_create(mxa_page_pool *pool, int64_t page_bytes, int64_t fixed, void *memory)
{
    *pool = (mxa_page_pool){
        .ops = pool->ops, .device = pool->device, .page_bytes = page_bytes, .fixed = fixed > 0
    };
    if (fixed == 0)
        return MXA_OK;
    uint8_t *const base = memory ? memory : new_slab(pool, fixed);
    if (!base || !grow_arrays(pool, fixed)) {
        mxa_pool_free(pool);
        return mxa_fail(MXA_ERR_MEMORY, "pages: no memory for %lld pages of %lld bytes", (long long)fixed,
                        (long long)page_bytes);
    }
    for (int64_t i = 0; i < fixed; i++)
        add_page(pool, base + i * page_bytes);
    for (int64_t i = 0; i < fixed; i++) /* page 0 is taken first */
        put_free(pool, i, (int32_t)(fixed - 1 - i));
    return MXA_OK;
}

void mxa_pool_free(mxa_page_pool *pool)
{
    for (int64_t i = 0; i < pool->n_slabs; i++) {
        if (pool->ops)
            pool->ops->release(pool->device, pool->slabs[i]);
        else
            free(pool->slabs[i]);
    }
    free(pool->slabs);
    free(pool->pages);
    free(pool->users);
    free(pool->free);
    free(pool->free_at);
    *pool = (mxa_page_pool){ .page_bytes = pool->page_bytes };
}

mxa_status mxa_pool_reserve(mxa_page_pool *pool, int64_t n)
{
    const int64_t missing = n - pool->n_free;
    if (missing <= 0)
        return MXA_OK;
    if (pool->fixed)
        return mxa_fail(MXA_ERR_MEMORY, "pages: %lld of the cache's %lld are free, %lld are needed",
                        (long long)pool->n_free, (long long)pool->count, (long long)n);
    if (!grow_slab(pool, mxa_max(missing, mxa_min(pool->count, SLAB_MAX / pool->page_bytes))) &&
        !grow_slab(pool, missing))
        return mxa_fail(MXA_ERR_MEMORY, "pages: no memory for %lld pages of %lld bytes more",
                        (long long)missing, (long long)pool->page_bytes);
    return MXA_OK;
}

int32_t mxa_pool_take(mxa_page_pool *pool)
{
    const int32_t page = pool->free[--pool->n_free];
    pool->users[page] = 1;
    if (!pool->ops)
        memset(pool->pages[page], 0, (size_t)pool->page_bytes);
    return page;
}

void mxa_pool_share(mxa_page_pool *pool, int32_t page)
{
    if (pool->users[page]++ == 0)
        put_free(pool, pool->free_at[page], pool->free[--pool->n_free]);
}

void mxa_pool_release(mxa_page_pool *pool, int32_t page)
{
    if (page >= 0 && --pool->users[page] == 0)
        put_free(pool, pool->n_free++, page);
}

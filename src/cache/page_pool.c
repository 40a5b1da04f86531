/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/page_pool.h"

#include <stdlib.h>
#include <string.h>

#include "core/status.h"

enum { ALIGNMENT = 64, FIRST_CAPACITY = 16 };

static void *new_pages(int64_t n, int64_t page_bytes)
{
    int64_t bytes;
    if (__builtin_mul_overflow(n, page_bytes, &bytes) || bytes > PTRDIFF_MAX)
        return NULL;
    return aligned_alloc(ALIGNMENT, (size_t)bytes); /* page_bytes is a multiple of the alignment */
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
    if (!pages || !users || !free_pages)
        return false;
    pool->capacity = capacity;
    return true;
}

static void add_page(mxa_page_pool *pool, uint8_t *memory)
{
    pool->pages[pool->count] = memory;
    pool->users[pool->count] = 0;
    pool->free[pool->n_free++] = (int32_t)pool->count++;
}

mxa_status mxa_pool_create(mxa_page_pool *pool, int64_t page_bytes, int64_t fixed, void *memory)
{
    *pool = (mxa_page_pool){ .page_bytes = page_bytes, .fixed = fixed > 0 };
    if (fixed == 0)
        return MXA_OK;
    uint8_t *const base = memory ? memory : new_pages(fixed, page_bytes);
    pool->own = memory ? NULL : base;
    if (!base || !grow_arrays(pool, fixed)) {
        mxa_pool_free(pool);
        return mxa_fail(MXA_ERR_MEMORY, "pages: no memory for %lld pages of %lld bytes", (long long)fixed,
                        (long long)page_bytes);
    }
    for (int64_t i = 0; i < fixed; i++)
        add_page(pool, base + i * page_bytes);
    for (int64_t i = 0; i < fixed; i++) /* page 0 is taken first */
        pool->free[i] = (int32_t)(fixed - 1 - i);
    return MXA_OK;
}

void mxa_pool_free(mxa_page_pool *pool)
{
    for (int64_t i = 0; i < pool->count && !pool->fixed; i++)
        free(pool->pages[i]);
    free(pool->own);
    free(pool->pages);
    free(pool->users);
    free(pool->free);
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
    bool got = grow_arrays(pool, pool->count + missing);
    while (got && pool->n_free < n) {
        uint8_t *const memory = new_pages(1, pool->page_bytes);
        got = memory != NULL;
        if (got)
            add_page(pool, memory);
    }
    return got ? MXA_OK
               : mxa_fail(MXA_ERR_MEMORY, "pages: no memory for %lld pages of %lld bytes more",
                          (long long)(n - pool->n_free), (long long)pool->page_bytes);
}

int32_t mxa_pool_take(mxa_page_pool *pool)
{
    const int32_t page = pool->free[--pool->n_free];
    pool->users[page] = 1;
    memset(pool->pages[page], 0, (size_t)pool->page_bytes);
    return page;
}

void mxa_pool_share(mxa_page_pool *pool, int32_t page)
{
    int64_t i = 0;
    while (pool->users[page] == 0 && pool->free[i] != page)
        i++;
    if (pool->users[page]++ == 0)
        pool->free[i] = pool->free[--pool->n_free];
}

void mxa_pool_release(mxa_page_pool *pool, int32_t page)
{
    if (page >= 0 && --pool->users[page] == 0)
        pool->free[pool->n_free++] = page;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Pages for new tokens, and pages of high copies that they make superfluous. */
#include "cache/cache.h"

#include <stdlib.h>
#include <string.h>

#include "core/status.h"

/* Does some key of the page have a high row, if those from high_first on have one. */
static bool holds_high(const mxa_cache *c, int64_t page, int64_t high_first)
{
    const int64_t first = page * c->layout.page_tokens, end = first + c->layout.page_tokens;
    return c->layout.page_bytes[MXA_HIGH] && (first < c->layout.sink_end || end > high_first);
}

/* Where an append of tokens from length on makes the near window begin. */
static int64_t next_high_first(const mxa_cache *c, const mxa_cache_sequence *s)
{
    const int64_t oldest_query = mxa_max(s->length - c->opts.rewind, 0);
    return mxa_max(s->high_first, mxa_cache_near_first(c, oldest_query));
}

/* The first page that may have keys of the near window. */
static int64_t first_near_page(const mxa_cache *c, const mxa_cache_sequence *s)
{
    return mxa_min(s->high_first, s->length) / c->layout.page_tokens;
}

typedef struct need {
    int64_t pages[MXA_COPIES];
} need;

/* Users of the page that sequence b goes on in, once the sequences before it have copies of their own. */
static int64_t users_left(const mxa_cache *c, const int64_t *counts, int64_t b, int copy, int32_t page)
{
    int64_t users = c->pool[copy].users[page];
    for (int64_t i = 0; i < b && users > 1; i++) {
        const mxa_cache_sequence *const s = &c->sequences[i];
        if (counts[i] > 0 && s->length % c->layout.page_tokens != 0)
            users -= s->table[copy][s->length / c->layout.page_tokens] == page;
    }
    return users;
}

/* Pages that the new tokens of sequence b take, less those that they give back. */
static void count_need(const mxa_cache *c, const int64_t *counts, int64_t b, need *total)
{
    const mxa_cache_sequence *const s = &c->sequences[b];
    const int64_t n = counts[b], first = s->length / c->layout.page_tokens,
                  end = mxa_cache_pages_of(c, s->length + n);
    const int64_t had = mxa_cache_pages_of(c, s->length), high_first = next_high_first(c, s);
    for (int copy = 0; copy < MXA_COPIES; copy++) {
        for (int64_t p = first; p < end; p++) {
            const int32_t page = p < had ? s->table[copy][p] : -1;
            const bool wanted = copy == MXA_LOW || holds_high(c, p, high_first);
            total->pages[copy] += wanted && (page < 0 || users_left(c, counts, b, copy, page) > 1);
        }
    }
    for (int64_t p = first_near_page(c, s); p < first; p++) {
        const int32_t page = s->table[MXA_HIGH][p];
        if (page >= 0 && !holds_high(c, p, high_first) && c->pool[MXA_HIGH].users[page] == 1)
            total->pages[MXA_HIGH]--;
    }
}

mxa_status mxa_cache_grow_tables(const mxa_cache *c, mxa_cache_sequence *s, int64_t pages)
{
    if (c->ops) {
        const mxa_status status = mxa_cache_result(c, c->ops->reserve_tables(c->device, pages));
        if (status != MXA_OK)
            return status;
    }
    if (pages <= s->capacity)
        return MXA_OK;
    const int64_t capacity = mxa_max(pages, 2 * s->capacity);
    for (int copy = 0; copy < MXA_COPIES; copy++) {
        int32_t *const table = realloc(s->table[copy], (size_t)capacity * sizeof *table);
        if (!table)
            return mxa_fail(MXA_ERR_MEMORY, "pages: no memory for a table of %lld pages",
                            (long long)capacity);
        s->table[copy] = table;
    }
    s->capacity = capacity;
    return MXA_OK;
}

/* High pages that no query from the next append on reads. */
static void drop_high(mxa_cache *c, mxa_cache_sequence *s)
{
    const int64_t before = first_near_page(c, s);
    s->high_first = next_high_first(c, s);
    const int64_t end = first_near_page(c, s);
    for (int64_t p = before; p < end; p++)
        if (!holds_high(c, p, s->high_first)) {
            mxa_pool_release(&c->pool[MXA_HIGH], s->table[MXA_HIGH][p]);
            s->table[MXA_HIGH][p] = -1;
        }
}

/* *page becomes one's own, which holds what the shared one does. */
static mxa_status own_page(const mxa_cache *c, mxa_page_pool *pool, int copy, int32_t *page)
{
    const int32_t shared = *page;
    mxa_status status = MXA_OK;
    if (shared >= 0 && pool->users[shared] == 1)
        return MXA_OK;
    *page = mxa_pool_take(pool);
    if (shared >= 0 && c->ops)
        status =
            mxa_cache_result(c, c->ops->copy_page(c->device, copy, pool->pages[*page], pool->pages[shared]));
    else if (shared >= 0)
        memcpy(pool->pages[*page], pool->pages[shared], (size_t)pool->page_bytes);
    mxa_pool_release(pool, shared);
    return status;
}

static mxa_status take_pages(mxa_cache *c, mxa_cache_sequence *s, int64_t n)
{
    const int64_t first = s->length / c->layout.page_tokens, end = mxa_cache_pages_of(c, s->length + n);
    const int64_t had = mxa_cache_pages_of(c, s->length);
    mxa_status status = MXA_OK;
    for (int copy = 0; copy < MXA_COPIES; copy++)
        for (int64_t p = first; p < end && status == MXA_OK; p++) {
            const int32_t before = p < had ? s->table[copy][p] : -1;
            int32_t page = before;
            if (copy == MXA_LOW || holds_high(c, p, s->high_first))
                status = own_page(c, &c->pool[copy], copy, &page);
            s->table[copy][p] = page;
            if (page != before || p >= had)
                s->unsent_first = mxa_min(s->unsent_first, p);
        }
    return status;
}

mxa_status mxa_cache_make_room(mxa_cache *c, const int64_t *counts)
{
    need total = { { 0 } };
    mxa_status status = MXA_OK;
    for (int64_t b = 0; b < c->opts.batch && status == MXA_OK; b++) {
        mxa_cache_sequence *const s = &c->sequences[b];
        status = mxa_cache_grow_tables(c, s, mxa_cache_pages_of(c, s->length + counts[b]));
        if (status == MXA_OK && counts[b] > 0)
            count_need(c, counts, b, &total);
    }
    for (int copy = 0; copy < MXA_COPIES && status == MXA_OK; copy++)
        status = mxa_pool_reserve(&c->pool[copy], total.pages[copy]);
    for (int64_t b = 0; b < c->opts.batch && status == MXA_OK; b++)
        if (counts[b] > 0)
            drop_high(c, &c->sequences[b]);
    for (int64_t b = 0; b < c->opts.batch && status == MXA_OK; b++)
        if (counts[b] > 0)
            status = take_pages(c, &c->sequences[b], counts[b]);
    return status;
}

void mxa_cache_commit(mxa_cache *c, const int64_t *counts)
{
    for (int64_t b = 0; b < c->opts.batch; b++)
        c->sequences[b].length += counts[b];
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Sequences that are cut, share their pages, or get them from the caller. */
#include <stdlib.h>
#include <string.h>

#include "cache/cache.h"
#include "core/status.h"

static mxa_status check_sequence(const mxa_cache *c, const char *name, int64_t b)
{
    if (!c)
        return mxa_fail(MXA_ERR_ARG, "cache: is NULL");
    if (b < 0 || b >= c->opts.batch)
        return mxa_fail(MXA_ERR_ARG, "%s: %lld is not a sequence of the %lld", name, (long long)b,
                        (long long)c->opts.batch);
    return MXA_OK;
}

static void release(mxa_cache *c, mxa_cache_sequence *s, int64_t first, int64_t end)
{
    for (int copy = 0; copy < MXA_COPIES; copy++)
        for (int64_t p = first; p < end; p++) {
            mxa_pool_release(&c->pool[copy], s->table[copy][p]);
            s->table[copy][p] = -1;
        }
}

static void share(mxa_cache *c, const mxa_cache_sequence *s)
{
    const int64_t n = mxa_cache_pages_of(c, s->length);
    for (int copy = 0; copy < MXA_COPIES; copy++)
        for (int64_t p = 0; p < n; p++)
            if (s->table[copy][p] >= 0)
                mxa_pool_share(&c->pool[copy], s->table[copy][p]);
}

/* If keys from high_first on have high rows: does the query at position length find what it sees. */
static bool holds_window(const mxa_cache *c, int64_t high_first, int64_t length)
{
    const int64_t wanted = mxa_max(mxa_cache_near_first(c, length), c->layout.sink_end);
    return c->near_tiles < 0 || mxa_min(high_first, length) <= wanted;
}

mxa_status mxa_cache_truncate(mxa_cache *c, int64_t b, int64_t length)
{
    mxa_status status = check_sequence(c, "b", b);
    if (status == MXA_OK)
        status = mxa_cache_check_change(c);
    if (status != MXA_OK)
        return status;
    mxa_cache_sequence *const s = &c->sequences[b];
    if (length < 0 || length > s->length)
        return mxa_fail(MXA_ERR_ARG, "length: %lld is not within the sequence's %lld tokens",
                        (long long)length, (long long)s->length);
    if (!holds_window(c, s->high_first, length))
        return mxa_fail(
            MXA_ERR_ARG,
            "length: the near window of %lld is no longer held in high precision, which begins at "
            "token %lld (opts.rewind keeps more)",
            (long long)length, (long long)s->high_first);
    const int64_t last = length / c->layout.page_tokens;
    if (length % c->layout.page_tokens != 0 && s->table[MXA_LOW][last] < 0)
        return mxa_fail(MXA_ERR_ARG, "length: the page of token %lld was removed", (long long)length - 1);
    release(c, s, mxa_cache_pages_of(c, length), mxa_cache_pages_of(c, s->length));
    s->length = length;
    s->unsent_length = true;
    if (c->near_tiles >= 0)
        s->high_first = mxa_min(s->high_first, length);
    return mxa_cache_send(c);
}

/* to (room is made, no pages) becomes what from is, users aside. */
static void copy_sequence(const mxa_cache *c, const mxa_cache_sequence *from, mxa_cache_sequence *to)
{
    const size_t n = (size_t)mxa_cache_pages_of(c, from->length);
    for (int copy = 0; copy < MXA_COPIES && n > 0; copy++)
        memcpy(to->table[copy], from->table[copy], n * sizeof *to->table[copy]);
    if (from->mean)
        memcpy(to->mean, from->mean, (size_t)(c->opts.heads_kv * c->opts.head_dim) * sizeof *to->mean);
    to->length = from->length;
    to->high_first = from->high_first;
    to->unsent_first = 0;
    to->unsent_length = true;
}

mxa_status mxa_cache_fork(mxa_cache *c, int64_t from, int64_t to)
{
    mxa_status status = check_sequence(c, "from", from);
    if (status == MXA_OK)
        status = check_sequence(c, "to", to);
    if (status == MXA_OK)
        status = mxa_cache_check_change(c);
    if (status != MXA_OK || from == to)
        return status;
    const mxa_cache_sequence *const source = &c->sequences[from];
    mxa_cache_sequence *const s = &c->sequences[to];
    status = mxa_cache_grow_tables(c, s, mxa_cache_pages_of(c, source->length));
    if (status != MXA_OK)
        return status;
    release(c, s, 0, mxa_cache_pages_of(c, s->length));
    copy_sequence(c, source, s);
    share(c, s);
    return mxa_cache_send_all(c);
}

static void free_sequences(mxa_cache_sequence *s, int64_t n)
{
    for (int64_t b = 0; b < n && s; b++) {
        for (int copy = 0; copy < MXA_COPIES; copy++)
            free(s[b].table[copy]);
        free(s[b].mean);
    }
    free(s);
}

/* New sequences in the old ones' place, whose pages have all the users they need before any is released. */
mxa_status mxa_cache_reorder(mxa_cache *c, const int64_t *from)
{
    if (!c || !from)
        return mxa_fail(MXA_ERR_ARG, "%s: is NULL", c ? "from" : "cache");
    const int64_t batch = c->opts.batch;
    mxa_status status = MXA_OK;
    for (int64_t b = 0; b < batch && status == MXA_OK; b++)
        status = check_sequence(c, "from", from[b]);
    if (status == MXA_OK)
        status = mxa_cache_check_change(c);
    if (status != MXA_OK)
        return status;
    mxa_cache_sequence *const made = calloc((size_t)mxa_max(batch, 1), sizeof *made);
    bool got = made != NULL;
    for (int64_t b = 0; b < batch && got; b++) {
        const mxa_cache_sequence *const source = &c->sequences[from[b]];
        const size_t mean_bytes = (size_t)(c->opts.heads_kv * c->opts.head_dim) * sizeof(float);
        made[b].mean = source->mean ? malloc(mean_bytes) : NULL;
        got = (made[b].mean || !source->mean) &&
              mxa_cache_grow_tables(c, &made[b], mxa_cache_pages_of(c, source->length)) == MXA_OK;
        if (got)
            copy_sequence(c, source, &made[b]);
    }
    if (!got) {
        free_sequences(made, batch);
        return mxa_fail(MXA_ERR_MEMORY, "batch: no memory for the tables of %lld sequences",
                        (long long)batch);
    }
    for (int64_t b = 0; b < batch; b++)
        share(c, &made[b]);
    for (int64_t b = 0; b < batch; b++)
        release(c, &c->sequences[b], 0, mxa_cache_pages_of(c, c->sequences[b].length));
    free_sequences(c->sequences, batch);
    c->sequences = made;
    return mxa_cache_send_all(c);
}

mxa_status mxa_cache_remove(mxa_cache *c, int64_t b, int64_t first, int64_t n)
{
    const mxa_status status = check_sequence(c, "b", b);
    if (status != MXA_OK)
        return status;
    mxa_cache_sequence *const s = &c->sequences[b];
    const int64_t full = s->length / c->layout.page_tokens;
    if (first < 0 || n < 0 || first > full || n > full - first)
        return mxa_fail(MXA_ERR_ARG, "first %lld, n %lld: not among the %lld full pages", (long long)first,
                        (long long)n, (long long)full);
    if (first * c->layout.page_tokens < c->layout.sink_end)
        return mxa_fail(MXA_ERR_ARG, "first: page %lld holds tokens of the sink window, which stays",
                        (long long)first);
    release(c, s, first, first + n);
    return MXA_OK;
}

mxa_status mxa_cache_get_table(const mxa_cache *c, int64_t b, mxa_cache_table *table)
{
    const mxa_status status = check_sequence(c, "b", b);
    if (status != MXA_OK)
        return status;
    if (!table)
        return mxa_fail(MXA_ERR_ARG, "table: is NULL");
    const mxa_cache_sequence *const s = &c->sequences[b];
    *table = (mxa_cache_table){
        s->length, s->high_first, mxa_cache_pages_of(c, s->length), { s->table[MXA_LOW], s->table[MXA_HIGH] }
    };
    return MXA_OK;
}

/*
 * A page number, and that those are there which appends and the windows need: low pages of the sink window
 * and of the newest token, high pages of both windows where their tokens were not removed.
 */
static mxa_status check_entry(const mxa_cache *c, const mxa_cache_table *t, int copy, int64_t p)
{
    const int32_t page = t->pages[copy][p];
    if (page < -1 || page >= c->pool[copy].count)
        return mxa_fail(MXA_ERR_ARG, "table: page %lld of kind %d is %d, the cache has %lld", (long long)p,
                        copy, page, (long long)c->pool[copy].count);
    const int64_t first = p * c->layout.page_tokens, end = first + c->layout.page_tokens;
    const bool sink = first < c->layout.sink_end, removed = t->pages[MXA_LOW][p] < 0;
    const bool needed = copy == MXA_LOW ? sink || end > t->length : sink || (end > t->high_first && !removed);
    if (page < 0 && needed)
        return mxa_fail(MXA_ERR_ARG, "table: page %lld of kind %d is absent, but holds %s", (long long)p,
                        copy,
                        copy == MXA_LOW ? "the sink window or the newest token" : "tokens of the windows");
    return MXA_OK;
}

mxa_status mxa_cache_check_table(const mxa_cache *c, const mxa_cache_table *t)
{
    if (t->length < 0 || t->length > MXA_POSITION_MAX || t->n_pages < mxa_cache_pages_of(c, t->length))
        return mxa_fail(MXA_ERR_SHAPE, "table: %lld pages do not hold length %lld", (long long)t->n_pages,
                        (long long)t->length);
    if (t->high_first < 0 || !holds_window(c, t->high_first, t->length))
        return mxa_fail(MXA_ERR_ARG, "table: high_first %lld is after the near window of length %lld",
                        (long long)t->high_first, (long long)t->length);
    mxa_status status = MXA_OK;
    for (int copy = 0; copy < MXA_COPIES; copy++)
        for (int64_t p = 0; p < mxa_cache_pages_of(c, t->length) && status == MXA_OK; p++)
            if (c->layout.page_bytes[copy])
                status = check_entry(c, t, copy, p);
    return status;
}

static mxa_status check_given(const mxa_cache *c, const mxa_cache_table *t)
{
    if (!t || !t->pages[MXA_LOW] || (!t->pages[MXA_HIGH] && c->layout.page_bytes[MXA_HIGH]))
        return mxa_fail(MXA_ERR_ARG, "table: %s NULL", t ? "its pages are" : "is");
    if (!c->pool[MXA_LOW].fixed)
        return mxa_fail(MXA_ERR_ARG, "table: the cache has no fixed number of pages (opts.pages)");
    return mxa_cache_check_table(c, t);
}

mxa_status mxa_cache_adopt_table(mxa_cache *c, int64_t b, const mxa_cache_table *t)
{
    mxa_status status = check_sequence(c, "b", b);
    if (status == MXA_OK)
        status = check_given(c, t);
    if (status == MXA_OK)
        status = mxa_cache_check_change(c);
    mxa_cache_sequence next = { 0 };
    const int64_t n = status == MXA_OK ? mxa_cache_pages_of(c, t->length) : 0;
    if (status == MXA_OK)
        status = mxa_cache_grow_tables(c, &next, mxa_max(n, 1));
    if (status != MXA_OK) {
        free(next.table[MXA_LOW]);
        free(next.table[MXA_HIGH]);
        return status;
    }
    mxa_cache_sequence *const s = &c->sequences[b];
    next.length = t->length;
    next.high_first = c->near_tiles < 0 ? MXA_FAR : t->high_first;
    next.mean = s->mean;
    next.unsent_length = true;
    for (int copy = 0; copy < MXA_COPIES; copy++)
        for (int64_t p = 0; p < n; p++)
            next.table[copy][p] = c->layout.page_bytes[copy] ? t->pages[copy][p] : -1;
    mxa_cache_sequence old = *s;
    *s = next;
    share(c, s);
    release(c, &old, 0, mxa_cache_pages_of(c, old.length));
    free(old.table[MXA_LOW]);
    free(old.table[MXA_HIGH]);
    return mxa_cache_send_all(c);
}

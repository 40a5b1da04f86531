/* SPDX-License-Identifier: Apache-2.0 */
/* A device's tables and lengths follow the host's. */
#include "cache/cache.h"

#include "core/status.h"

mxa_status mxa_cache_result(const mxa_cache *c, mxa_status status)
{
    return status == MXA_OK ? MXA_OK : mxa_fail(status, "%s", c->ops->error_text());
}

mxa_status mxa_cache_check_change(const mxa_cache *c)
{
    bool capturing = false;
    const mxa_status status =
        c->ops ? mxa_cache_result(c, c->ops->is_capturing(c->device, &capturing)) : MXA_OK;
    if (status == MXA_OK && capturing)
        return mxa_fail(MXA_ERR_ARG,
                        "cache: its stream is being captured, and the graph would repeat the change");
    return status;
}

enum { LETTER_CHANGES = 256 };

/* Changes that go to the device together. */
typedef struct letter {
    int64_t n;
    mxa_kv_change changes[LETTER_CHANGES];
} letter;

static mxa_status post(const mxa_cache *c, letter *l)
{
    const int64_t n = l->n;
    l->n = 0;
    return n == 0 ? MXA_OK : mxa_cache_result(c, c->ops->send(c->device, n, l->changes));
}

static mxa_status add(const mxa_cache *c, letter *l, mxa_kv_change change)
{
    l->changes[l->n++] = change;
    return l->n == LETTER_CHANGES ? post(c, l) : MXA_OK;
}

static mxa_status add_sequence(const mxa_cache *c, letter *l, int64_t b)
{
    const mxa_cache_sequence *const s = &c->sequences[b];
    const int64_t end = mxa_cache_pages_of(c, s->length);
    mxa_status status = MXA_OK;
    for (int copy = 0; copy < MXA_COPIES; copy++)
        for (int64_t p = s->unsent_first; p < end && status == MXA_OK; p++) {
            const int32_t page = s->table[copy][p];
            const int64_t address = page >= 0 ? (int64_t)(intptr_t)c->pool[copy].pages[page] : 0;
            status = add(c, l, (mxa_kv_change){ copy, b, p, address });
        }
    if (s->unsent_length && status == MXA_OK)
        status = add(c, l, (mxa_kv_change){ MXA_KV_LENGTH, b, 0, s->length });
    return status;
}

mxa_status mxa_cache_send(mxa_cache *c)
{
    if (!c->ops)
        return MXA_OK;
    letter l;
    l.n = 0;
    mxa_status status = MXA_OK;
    for (int64_t b = 0; b < c->opts.batch && status == MXA_OK; b++) {
        status = add_sequence(c, &l, b);
        c->sequences[b].unsent_first = MXA_FAR;
        c->sequences[b].unsent_length = false;
    }
    return status == MXA_OK ? post(c, &l) : status;
}

mxa_status mxa_cache_send_all(mxa_cache *c)
{
    const mxa_status status = mxa_cache_send(c);
    if (status != MXA_OK || !c->ops || !mxa_cache_makes_means(c))
        return status;
    return mxa_cache_result(c, c->ops->make_means(c->device));
}

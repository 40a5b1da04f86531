/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The work of decode kernels for random lengths and windows, against attn/tile_map.h: every query and head in
 * one pass, every key that a query sees in one unit of its tile's precision. And the order of a device's
 * page: a bijection, whose bytes are where the A operand of mma.sync has them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>

#include "cache/cache.h"
#include "cuda/decode/decode_schedule.h"
#include "cuda/decode/kv_order_cuda.h"

enum { ROUNDS = 20000, KEYS = 3000, ROWS = 1024 };

static uint64_t state = 1;

static int pick(int first, int last)
{
    state += 0x9E3779B97F4A7C15u;
    uint64_t z = state;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return first + (int)((z ^ z >> 31) >> 33) % (last - first + 1);
}

static mxa_tile_map pick_map(void)
{
    const int length = pick(1, KEYS);
    mxa_tile_map m = { .kv_len = length, .q_len = pick(1, (int)mxa_min(length, MXA_DECODE_QUERIES)) };
    m.q_offset = length - m.q_len;
    m.window_left = pick(0, 1) ? MXA_FAR : pick(0, KEYS);
    m.diag_window = pick(0, 2) ? pick(0, 600) : MXA_FAR;
    m.sink_window = pick(0, 2) ? pick(0, 600) : 0;
    return m;
}

static int near(int64_t window)
{
    return (int)mxa_min(window, MXA_DECODE_FAR);
}

static mxa_decode_span span_of(const mxa_tile_map *m)
{
    return (mxa_decode_span){ (int)m->q_len,        (int)m->kv_len,       (int)m->q_offset,
                              near(m->window_left), near(m->diag_window), near(m->sink_window) };
}

/* Each key that the pass sees is in one unit, of the precision of its tile. */
static void check_units(const mxa_tile_map *m, const mxa_decode_pass *p, int group, const mxa_decode_keys *k)
{
    static uint8_t times[KEYS + MXA_DECODE_LOW_KEYS];
    memset(times, 0, sizeof times);
    assert_int_equal(mxa_decode_segment_first(k, 0), 0);
    assert_int_equal(mxa_decode_segment_first(k, k->segments), k->units);
    for (int i = 0, segment = 0; i <= k->units; i++) {
        while (segment < k->segments && mxa_decode_segment_first(k, segment) < i)
            segment++;
        assert_int_equal(mxa_decode_segment_from(k, i), segment);
    }
    for (int i = 0; i < k->units; i++) {
        const mxa_decode_unit u = mxa_decode_unit_at(k, i);
        const int n = u.high ? MXA_DECODE_HIGH_KEYS : MXA_DECODE_LOW_KEYS;
        assert_int_equal(u.high, mxa_tile_is_high(m, p->q_tile, u.key / MXA_TILE));
        assert_int_equal(u.key / MXA_TILE, (u.key + n - 1) / MXA_TILE);
        assert_true(u.key < k->end && u.key + n > k->first);
        for (int j = 0; j < n; j++)
            times[u.key + j]++;
    }
    for (int c = 0; c < p->n_rows; c++) {
        const int64_t position = m->q_offset + mxa_decode_query(p, group, c);
        const mxa_span seen = mxa_visible_keys(m, position, position);
        assert_int_equal(mxa_tile_of(position), p->q_tile);
        assert_true(seen.first <= k->all_first && seen.end > k->all_last);
        for (int64_t j = seen.first; j < seen.end; j++)
            assert_int_equal(times[j], 1);
    }
}

static void test_schedule(void **unused)
{
    (void)unused;
    for (int round = 0; round < ROUNDS; round++) {
        const mxa_tile_map m = pick_map();
        const mxa_decode_span span = span_of(&m);
        const int group = pick(1, 16), columns = pick(0, 1) ? MXA_DECODE_COLUMNS : 4, most = pick(1, 20);
        uint8_t rows[MXA_DECODE_QUERIES * 16] = { 0 };
        for (int i = 0; i < mxa_decode_passes((int)m.q_len, group, columns); i++) {
            const mxa_decode_pass p = mxa_decode_pass_at(&span, group, columns, i);
            for (int c = 0; c < p.n_rows; c++)
                rows[mxa_decode_query(&p, group, c) * group + (p.first_row + c) % group]++;
            if (p.n_rows == 0)
                continue;
            const mxa_decode_keys k = mxa_decode_keys_of(&span, &p, group, most);
            assert_in_range(k.segments, 1, mxa_decode_segments(span.kv_len, most));
            check_units(&m, &p, group, &k);
        }
        for (int r = 0; r < m.q_len * group; r++)
            assert_int_equal(rows[r], 1);
    }
}

static const char *const recipes[] = { "dma4,v=int8",     "dma4,v=mxfp4,rotate-v", "dma8,v=f16",
                                       "dma4-fp8,v=fp8",  "paper-nvfp4,v=nvfp4",   "paper-mxfp4,v=mxfp8",
                                       "mxint8,v=mxint8", "mxfp6,v=mxfp6",         "bf16,high=f32,v=f32" };

static void check_page(const mxa_kv_layout *l, int copy)
{
    const size_t bytes = (size_t)l->page_bytes[copy];
    uint8_t *const rows = malloc(bytes), *const page = calloc(1, bytes), *const back = malloc(bytes);
    for (size_t i = 0; i < bytes; i++)
        rows[i] = (uint8_t)pick(0, 255);
    for (int64_t h = 0; h < l->heads_kv; h++)
        for (int operand = 0; operand < MXA_KV_OPERANDS; operand++) {
            const mxa_kv_part *const p = &l->part[copy][operand];
            for (int64_t i = 0; p->copy.info && p->copy.level == MXA_LEVEL_TOKEN && i < l->page_tokens; i++)
                rows[h * l->head_bytes[copy] + p->g + i * 4 + 3] &= 0x7F; /* factors are positive */
        }
    memcpy(back, rows, bytes);
    mxa_kv_page_order(l, copy, rows, page, true);
    for (int64_t h = 0; h < l->heads_kv; h++) /* what is no padding must come back from the page */
        for (int operand = 0; operand < MXA_KV_OPERANDS; operand++) {
            const mxa_kv_part *const p = &l->part[copy][operand];
            uint8_t *const record = back + h * l->head_bytes[copy];
            if (!p->copy.info)
                continue;
            memset(record + p->codes, 0x55, (size_t)(l->page_tokens * p->row_bytes));
            memset(record + p->scales, 0x55, (size_t)(l->page_tokens * p->scale_cols));
            if (p->copy.level == MXA_LEVEL_TOKEN)
                memset(record + p->g, 0x55, (size_t)l->page_tokens * sizeof(float));
        }
    mxa_kv_page_order(l, copy, back, page, false);
    assert_memory_equal(back, rows, bytes);
    free(rows), free(page), free(back);
}

static void test_page_order(void **unused)
{
    (void)unused;
    for (size_t r = 0; r < sizeof recipes / sizeof *recipes; r++)
        for (int dim = 48; dim <= 192; dim += 16)
            for (int tokens = 16; tokens <= 128; tokens += 16) {
                mxa_recipe recipe;
                mxa_cache_opts opts;
                mxa_cache cache;
                assert_int_equal(mxa_recipe_parse(recipes[r], &recipe), MXA_OK);
                mxa_cache_default(&opts, 1, 2, dim);
                opts.recipe = &recipe;
                opts.page_tokens = tokens;
                assert_int_equal(mxa_cache_describe_opts(&opts, &cache), MXA_OK);
                for (int copy = 0; copy < MXA_COPIES; copy++)
                    if (cache.layout.page_bytes[copy])
                        check_page(&cache.layout, copy);
            }
}

/* Nibbles to fp16 as kernels do it: all sixteen pairs of codes, in both bytes of both halves. */
static void test_nibbles(void **unused)
{
    (void)unused;
    for (unsigned pair = 0; pair < 256; pair++) {
        const uint8_t byte = mxa_kv_join(pair & 15, pair >> 4);
        assert_int_equal(mxa_kv_first(byte), pair & 15);
        assert_int_equal(mxa_kv_second(byte), pair >> 4);
        const uint32_t w = (uint32_t)byte << 8, z = (w >> 3 & 0x0606u) | (w & 0x4141u);
        const uint16_t first = w & 0x8E00u, second = z << 1 & 0x8E00u;
        const float scale = 0x1p14f;
        assert_true(mxa_f32_from_f16(first) * scale == mxa_element_decode(mxa_element_e2m1(), pair & 15));
        assert_true(mxa_f32_from_f16(second) * scale == mxa_element_decode(mxa_element_e2m1(), pair >> 4));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schedule),
        cmocka_unit_test(test_page_order),
        cmocka_unit_test(test_nibbles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

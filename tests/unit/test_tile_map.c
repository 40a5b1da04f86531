/* SPDX-License-Identifier: Apache-2.0 */
/* attn/tile_map.h: the maps of tests/vectors/tile_map.json, and the definition tried pair by pair. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <string.h>

#include "attn/tile_map.h"

static int64_t field(const json_t *json, const char *key)
{
    return (int64_t)json_integer_value(json_object_get(json, key));
}

static char letter(const mxa_problem *p, const mxa_recipe *recipe, int64_t q_tile, int64_t k_tile)
{
    mxa_precision precision;
    assert_int_equal(mxa_tile_map_at(p, recipe, 0, q_tile, k_tile, &precision), MXA_OK);
    return ".LH"[precision];
}

static void stored_maps(void **state)
{
    (void)state;
    json_t *const file = json_load_file("tests/vectors/tile_map.json", 0, NULL);
    assert_true(json_array_size(file) > 0);
    for (size_t n = 0; n < json_array_size(file); n++) {
        const json_t *const stored = json_array_get(file, n), *const rows = json_object_get(stored, "map");
        mxa_problem p;
        mxa_problem_default(&p, 1, 1, 1, field(stored, "q_len"), field(stored, "kv_len"), 1);
        p.window_left = field(stored, "window_left");
        p.window_right = field(stored, "window_right");
        if (json_object_get(stored, "q_offset"))
            p.q_offset = field(stored, "q_offset");
        mxa_recipe recipe;
        mxa_recipe_default(&recipe);
        recipe.smooth_k = MXA_SMOOTH_NONE;
        recipe.diag_window = field(stored, "diag_window");
        recipe.sink_window = field(stored, "sink_window");

        mxa_tile_range range;
        assert_int_equal(mxa_tile_map_range(&p, 0, &range), MXA_OK);
        assert_int_equal(range.q_first, field(stored, "first_query_tile"));
        assert_int_equal(range.q_count, json_array_size(rows));
        for (int64_t q = 0; q < range.q_count; q++) {
            const char *const row = json_string_value(json_array_get(rows, (size_t)q));
            assert_int_equal(range.k_count, strlen(row));
            for (int64_t k = 0; k < range.k_count; k++)
                assert_int_equal(letter(&p, &recipe, range.q_first + q, k), row[k]);
        }
    }
    json_decref(file);
}

/* docs/numerics.md, section 10, in words: is some pair visible, and near enough or a sink? */
static mxa_precision by_pairs(const mxa_tile_map *m, int64_t q_tile, int64_t k_tile)
{
    bool seen = false, high = false;
    for (int64_t p = q_tile * MXA_TILE; p < (q_tile + 1) * MXA_TILE; p++)
        for (int64_t j = k_tile * MXA_TILE; j < (k_tile + 1) * MXA_TILE; j++) {
            const int64_t distance = p - j;
            if (distance < -m->window_right || distance > m->window_left)
                continue;
            high = high || (distance < m->diag_window && -distance < m->diag_window) || j < m->sink_window;
            seen = seen || (p >= m->q_offset && p < m->q_offset + m->q_len && j < m->kv_len);
        }
    return !seen ? MXA_TILE_SKIP : high ? MXA_TILE_HIGH : MXA_TILE_LOW;
}

static uint64_t next(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

static int64_t pick(uint64_t *state, int64_t low, int64_t high)
{
    return low + (int64_t)(next(state) % (uint64_t)(high - low + 1));
}

static void random_maps_pair_by_pair(void **state)
{
    (void)state;
    uint64_t random = 1;
    for (int round = 0; round < 150; round++) {
        const mxa_tile_map m = {
            .q_len = pick(&random, 0, 300),
            .kv_len = pick(&random, 0, 400),
            .q_offset = pick(&random, -300, 400),
            .window_left = pick(&random, 0, 3) ? pick(&random, 0, 400) : MXA_FAR,
            .window_right = pick(&random, 0, 3) ? pick(&random, 0, 300) : MXA_FAR,
            .diag_window = pick(&random, 0, 3) ? pick(&random, 0, 300) : MXA_FAR,
            .sink_window = pick(&random, 0, 300),
        };
        const mxa_span tiles = mxa_query_tiles(&m);
        for (int64_t q = tiles.first; q < tiles.end; q++)
            for (int64_t k = 0; k * MXA_TILE < m.kv_len; k++)
                assert_int_equal(mxa_tile_precision(&m, q, k), by_pairs(&m, q, k));
    }
}

static void numbers_at_the_limits(void **state)
{
    (void)state;
    const mxa_tile_map m = { .q_len = MXA_POSITION_MAX,
                             .kv_len = MXA_POSITION_MAX,
                             .q_offset = -MXA_POSITION_MAX,
                             .window_left = MXA_FAR,
                             .window_right = MXA_FAR,
                             .diag_window = MXA_FAR,
                             .sink_window = MXA_FAR };
    const mxa_span tiles = mxa_query_tiles(&m);
    assert_int_equal(tiles.first, -MXA_POSITION_MAX / MXA_TILE);
    assert_int_equal(mxa_tile_precision(&m, tiles.first, m.kv_len / MXA_TILE - 1), MXA_TILE_HIGH);
    assert_int_equal(mxa_tile_of(-1), -1);
    assert_int_equal(mxa_tile_of(-MXA_TILE), -1);
    assert_int_equal(mxa_tile_of(-MXA_TILE - 1), -2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stored_maps),
        cmocka_unit_test(random_maps_pair_by_pair),
        cmocka_unit_test(numbers_at_the_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

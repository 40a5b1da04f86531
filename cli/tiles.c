/* SPDX-License-Identifier: Apache-2.0 */
#include "tiles.h"

#include "cli.h"

#include <stddef.h>

static bool fail_library(void)
{
    cli_fail("tile map: %s", mxa_error_text());
    return false;
}

bool tiles_row(const mxa_problem *problem, const mxa_recipe *recipe, int64_t b, int64_t q_tile,
               int64_t k_count, tile_counts *counts, char *letters)
{
    static const char letter[] = { [MXA_TILE_SKIP] = '.', [MXA_TILE_LOW] = 'L', [MXA_TILE_HIGH] = 'H' };
    for (int64_t k = 0; k < k_count; k++) {
        mxa_precision precision;
        if (mxa_tile_map_at(problem, recipe, b, q_tile, k, &precision) != MXA_OK)
            return fail_library();
        counts->of[precision]++;
        if (letters != NULL)
            letters[k] = letter[precision];
    }
    return true;
}

bool tiles_count(const mxa_problem *problem, const mxa_recipe *recipe, int64_t sequences, tile_counts *counts)
{
    *counts = (tile_counts){ 0 };
    for (int64_t b = 0; b < sequences; b++) {
        mxa_tile_range range;
        if (mxa_tile_map_range(problem, b, &range) != MXA_OK)
            return fail_library();
        for (int64_t m = 0; m < range.q_count; m++)
            if (!tiles_row(problem, recipe, b, range.q_first + m, range.k_count, counts, NULL))
                return false;
    }
    return true;
}

double tiles_high_share(const tile_counts *counts)
{
    const int64_t high = counts->of[MXA_TILE_HIGH], low = counts->of[MXA_TILE_LOW];
    return high == 0 ? 0 : (double)high / (double)(high + low);
}

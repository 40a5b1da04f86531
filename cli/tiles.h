/* SPDX-License-Identifier: Apache-2.0 */
/* Counts of the tile map. */
#ifndef MXA_TILES_H
#define MXA_TILES_H

#include <mxattn/mxattn.h>

typedef struct tile_counts {
    int64_t of[3]; /* by mxa_precision */
} tile_counts;

/*
 * Add the tiles of one row of sequence b; letters gets '.', 'L' or 'H' for each, unless NULL. False after a
 * message.
 */
bool tiles_row(const mxa_problem *problem, const mxa_recipe *recipe, int64_t b, int64_t q_tile,
               int64_t k_count, tile_counts *counts, char *letters);

/* Count the tiles of all sequences. False after a message. */
bool tiles_count(const mxa_problem *problem, const mxa_recipe *recipe, int64_t sequences,
                 tile_counts *counts);

/* high / (high + low), 0 if there are none. */
double tiles_high_share(const tile_counts *counts);

#endif

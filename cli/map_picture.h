/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tile map drawn: letters, colours of a terminal, a PNG picture. Rows are query tiles, columns key
 * tiles.
 */
#ifndef MXA_MAP_PICTURE_H
#define MXA_MAP_PICTURE_H

#include <stdbool.h>
#include <stdint.h>

/* The map as letters 'H', 'L' and '.'. */
typedef struct tile_map_text {
    int64_t rows, columns;
    char *letters; /* [rows][columns] */
} tile_map_text;

/* One line for each row. */
void map_print_letters(const tile_map_text *map);

/* Coloured cells that fit a terminal of some columns and lines: large maps get cells of several tiles. */
void map_print_colours(const tile_map_text *map, int terminal_columns, int terminal_lines);

/* A picture with square tiles, written under a temporary name and renamed. False after a message. */
bool map_write_png(const tile_map_text *map, const char *path);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#include "map_picture.h"

#include <inttypes.h>
#include <stdio.h>

/* Background colours of the 256-colour palette. */
enum { COLOUR_HIGH = 166, COLOUR_LOW = 31, COLOUR_SKIP = 236 };

#define LEGEND_LINES 8 /* below the map */

void map_print_letters(const tile_map_text *map)
{
    for (int64_t r = 0; r < map->rows; r++) {
        fwrite(map->letters + r * map->columns, 1, (size_t)map->columns, stdout);
        putchar('\n');
    }
}

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* The highest precision among the tiles of a cell of side x side. */
static char cell_letter(const tile_map_text *map, int64_t row, int64_t column, int64_t side)
{
    char highest = '.';
    for (int64_t r = row * side; r < (row + 1) * side && r < map->rows; r++)
        for (int64_t c = column * side; c < (column + 1) * side && c < map->columns; c++) {
            const char letter = map->letters[r * map->columns + c];
            if (letter == 'H')
                return letter;
            if (letter == 'L')
                highest = letter;
        }
    return highest;
}

static void print_cell(char letter)
{
    const int colour = letter == 'H' ? COLOUR_HIGH : letter == 'L' ? COLOUR_LOW : COLOUR_SKIP;
    printf("\033[48;5;%dm  ", colour);
}

/* A cell is two characters wide, which makes it about square. */
void map_print_colours(const tile_map_text *map, int terminal_columns, int terminal_lines)
{
    const int64_t across = terminal_columns > 2 ? terminal_columns / 2 : 1;
    const int64_t down = terminal_lines > 2 * LEGEND_LINES ? terminal_lines - LEGEND_LINES : LEGEND_LINES;
    int64_t side = ceil_div(map->columns, across);
    if (ceil_div(map->rows, down) > side)
        side = ceil_div(map->rows, down);
    if (side < 1)
        side = 1;
    for (int64_t r = 0; r < ceil_div(map->rows, side); r++) {
        for (int64_t c = 0; c < ceil_div(map->columns, side); c++)
            print_cell(cell_letter(map, r, c, side));
        puts("\033[0m");
    }
    putchar('\n');
    print_cell('H');
    fputs("\033[0m high  ", stdout);
    print_cell('L');
    fputs("\033[0m low  ", stdout);
    print_cell('.');
    puts("\033[0m skipped");
    if (side > 1)
        printf("A cell is %" PRId64 " x %" PRId64 " tiles and shows the highest precision among them.\n",
               side, side);
}

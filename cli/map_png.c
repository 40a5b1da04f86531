/* SPDX-License-Identifier: Apache-2.0 */
#include "map_picture.h"

#include "cli.h"
#include "output_file.h"

#include <errno.h>
#include <png.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PICTURE_PIXELS 1024 /* of the longer side, as far as whole pixels for a tile allow */
#define LARGEST_TILE   64   /* pixels */
#define GRID_TILE      8    /* pixels from which tiles are set apart by a line */
#define PALETTE_BITS   8

enum { INK_SKIP, INK_LOW, INK_HIGH, INK_GRID, INK_COUNT };

/* Colours that stay apart for the colour-blind and in grey. */
static const png_color palette[INK_COUNT] = {
    { 238, 238, 238 }, { 86, 150, 200 }, { 200, 80, 20 }, { 255, 255, 255 }
};

static void write_bytes(png_structp png, png_bytep data, png_size_t bytes)
{
    if (!output_write(png_get_io_ptr(png), data, bytes))
        png_error(png, "write");
}

static void flush_nothing(png_structp png)
{
    (void)png;
}

/* output_write has said what happened; libpng's own words only matter where it did not. */
static _Noreturn void on_error(png_structp png, png_const_charp text)
{
    output_file *out = png_get_error_ptr(png);
    if (out->fd >= 0)
        cli_fail("%s: libpng: %s", out->path, text);
    png_longjmp(png, 1);
}

static void on_warning(png_structp png, png_const_charp text)
{
    (void)png;
    (void)text;
}

static int tile_pixels(const tile_map_text *map)
{
    const int64_t longest = map->rows > map->columns ? map->rows : map->columns;
    const int64_t pixels = PICTURE_PIXELS / longest;
    return pixels < 1 ? 1 : pixels > LARGEST_TILE ? LARGEST_TILE : (int)pixels;
}

static void paint_row(const char *letters, int64_t columns, int tile, bool grid, png_bytep pixels)
{
    for (int64_t c = 0; c < columns; c++) {
        const int ink = letters[c] == 'H' ? INK_HIGH : letters[c] == 'L' ? INK_LOW : INK_SKIP;
        memset(pixels + c * tile, grid && tile >= GRID_TILE ? INK_GRID : ink, (size_t)tile);
        if (tile >= GRID_TILE)
            pixels[c * tile + tile - 1] = INK_GRID;
    }
}

/* Everything that libpng may leave by longjmp. */
static bool write_picture(const tile_map_text *map, int tile, png_structp png, png_infop info,
                          png_bytep pixels)
{
    if (setjmp(png_jmpbuf(png)))
        return false;
    png_set_IHDR(png, info, (png_uint_32)(map->columns * tile), (png_uint_32)(map->rows * tile), PALETTE_BITS,
                 PNG_COLOR_TYPE_PALETTE, PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT,
                 PNG_FILTER_TYPE_DEFAULT);
    png_set_PLTE(png, info, palette, INK_COUNT);
    png_write_info(png, info);
    for (int64_t r = 0; r < map->rows; r++)
        for (int y = 0; y < tile; y++) {
            paint_row(map->letters + r * map->columns, map->columns, tile, y == tile - 1, pixels);
            png_write_row(png, pixels);
        }
    png_write_end(png, info);
    return true;
}

bool map_write_png(const tile_map_text *map, const char *path)
{
    if (map->rows == 0 || map->columns == 0) {
        cli_fail("--png: a map of %lld x %lld tiles has no picture", (long long)map->rows,
                 (long long)map->columns);
        return false;
    }
    output_file out;
    if (!output_begin(&out, path))
        return false;
    const int tile = tile_pixels(map);
    png_bytep pixels = cli_alloc((uint64_t)(map->columns * tile), "a row of the picture");
    png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, &out, on_error, on_warning);
    png_infop info = png != NULL ? png_create_info_struct(png) : NULL;
    bool ok = pixels != NULL && info != NULL;
    if (pixels != NULL && info == NULL)
        cli_fail("out of memory: the picture");
    if (ok) {
        png_set_write_fn(png, &out, write_bytes, flush_nothing);
        ok = write_picture(map, tile, png, info, pixels) && output_commit(&out);
    }
    if (!ok)
        output_discard(&out);
    png_destroy_write_struct(&png, &info);
    free(pixels);
    return ok;
}

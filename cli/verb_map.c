/* SPDX-License-Identifier: Apache-2.0 */
#include "cli.h"
#include "json_text.h"
#include "map_picture.h"
#include "options.h"
#include "output_file.h"
#include "progress.h"
#include "tiles.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { KEY_Q_LEN = OPTION_FIRST, KEY_KV_LEN, KEY_RECIPE, KEY_PNG, KEY_JSON };

enum { MAX_TILES = 1 << 16, HEAD_DIM = 64, TERMINAL_COLUMNS = 80, TERMINAL_LINES = 24 };

typedef struct map_options {
    attention_options attention;
    int64_t q_len, kv_len;
    mxa_recipe recipe;
    const char *png;
    bool json;
} map_options;

static const struct argp_option table[] = { { "q-len", KEY_Q_LEN, "N", 0, "queries", 0 },
                                            { "kv-len", KEY_KV_LEN, "N", 0, "keys", 0 },
                                            { "recipe", KEY_RECIPE, "R", 0, "name or text (default dma8)",
                                              0 },
                                            { "png", KEY_PNG, "FILE", 0, "also write a picture", 0 },
                                            { "json", KEY_JSON, 0, 0, "print JSON", 0 },
                                            OPTION_HELP,
                                            { 0 } };

static error_t parse(int key, char *arg, struct argp_state *state)
{
    map_options *options = state->input;
    switch (key) {
    case ARGP_KEY_INIT: attention_options_start(&options->attention, state); return 0;
    case KEY_Q_LEN: options->q_len = option_integer("--q-len", arg, 0, INT64_MAX); return 0;
    case KEY_KV_LEN: options->kv_len = option_integer("--kv-len", arg, 0, INT64_MAX); return 0;
    case KEY_RECIPE: options->recipe = option_recipe(arg); return 0;
    case KEY_PNG: options->png = arg; return 0;
    case KEY_JSON: options->json = true; return 0;
    case ARGP_KEY_ARG: cli_usage("map takes no input, not \"%.80s\"", arg);
    case ARGP_KEY_END:
        if (options->q_len < 0 || options->kv_len < 0)
            cli_usage("map needs --q-len N and --kv-len N");
        return 0;
    default: return options_default(key, state);
    }
}

/* The map of one sequence. False after a message. */
static bool make_map(const map_options *options, tile_map_text *map, tile_counts *counts, int64_t *q_first)
{
    mxa_problem problem;
    mxa_tile_range range;
    mxa_problem_default(&problem, 1, 1, 1, options->q_len, options->kv_len, HEAD_DIM);
    attention_options_apply(&options->attention, &problem);
    if (mxa_tile_map_range(&problem, 0, &range) != MXA_OK) {
        cli_fail("tile map: %s", mxa_error_text());
        return false;
    }
    if (range.q_count > MAX_TILES || range.k_count > MAX_TILES) {
        cli_fail("a map of %" PRId64 " x %" PRId64 " tiles; at most %d x %d are drawn", range.q_count,
                 range.k_count, MAX_TILES, MAX_TILES);
        return false;
    }
    *q_first = range.q_first;
    *map = (tile_map_text){ .rows = range.q_count, .columns = range.k_count };
    map->letters = cli_alloc((uint64_t)(map->rows * map->columns), "the map");
    bool ok = map->letters != NULL;
    progress_begin("map", map->rows);
    for (int64_t r = 0; r < map->rows && ok; r++, progress_step())
        ok = tiles_row(&problem, &options->recipe, 0, range.q_first + r, map->columns, counts,
                       map->letters + r * map->columns);
    progress_end();
    return ok;
}

static void print_counts(const tile_map_text *map, const tile_counts *counts)
{
    static const char *const names[] = { "skipped", "low", "high" };
    const double tiles = (double)map->rows * (double)map->columns;
    printf("\n%" PRId64 " x %" PRId64 " tiles of %d x %d", map->rows, map->columns, MXA_TILE, MXA_TILE);
    for (int p = MXA_TILE_HIGH; p >= MXA_TILE_SKIP; p--)
        printf("%s %s %" PRId64 " (%.1f %%)", p == MXA_TILE_HIGH ? ":" : ",", names[p], counts->of[p],
               tiles > 0 ? 100 * (double)counts->of[p] / tiles : 0);
    printf("\nhigh / (high + low): %.1f %%\n", 100 * tiles_high_share(counts));
}

static bool print_drawing(const tile_map_text *map, const tile_counts *counts)
{
    struct winsize window;
    const char *terminal = getenv("TERM");
    if (isatty(STDOUT_FILENO) && getenv("NO_COLOR") == NULL && terminal != NULL &&
        strcmp(terminal, "dumb") != 0) {
        const bool known =
            ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0 && window.ws_row > 0;
        map_print_colours(map, known ? window.ws_col : TERMINAL_COLUMNS,
                          known ? window.ws_row : TERMINAL_LINES);
    } else {
        map_print_letters(map);
    }
    print_counts(map, counts);
    return true;
}

static bool print_json(const tile_map_text *map, const tile_counts *counts, int64_t q_first)
{
    const int64_t low = counts->of[MXA_TILE_LOW], high = counts->of[MXA_TILE_HIGH];
    json_t *lines = json_array();
    int failed = 0;
    for (int64_t r = 0; r < map->rows; r++)
        failed |=
            json_array_append_new(lines, json_stringn(map->letters + r * map->columns, (size_t)map->columns));
    if (failed) {
        json_decref(lines);
        return json_print(NULL);
    }
    return json_print(json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:o}", "q_tiles", (json_int_t)map->rows, "k_tiles",
        (json_int_t)map->columns, "q_first", (json_int_t)q_first, "high", (json_int_t)high, "low",
        (json_int_t)low, "skipped", (json_int_t)counts->of[MXA_TILE_SKIP], "high_share",
        tiles_high_share(counts), "low_share", low > 0 ? 1 - tiles_high_share(counts) : 0.0, "map", lines));
}

int verb_map(int argc, char **argv)
{
    static const struct argp_child children[] = { { &mask_argp, 0, NULL, 0 }, { 0 } };
    static const struct argp argp = {
        .options = table,
        .parser = parse,
        .doc =
            "Which 128 x 128 score tiles are high (H), low (L) or skipped (.): a row for each query tile.\v"
            "Example:\n  mxattn map --q-len 2048 --kv-len 2048 --causal --recipe dma4 --png map.png",
        .children = children
    };
    map_options options = { .q_len = -1, .kv_len = -1 };
    mxa_recipe_default(&options.recipe);
    options_parse(&argp, argc, argv, &options);

    tile_map_text map = { 0 };
    tile_counts counts = { 0 };
    int64_t q_first = 0;
    bool ok = (options.png == NULL || output_possible(options.png)) &&
              make_map(&options, &map, &counts, &q_first) &&
              (options.png == NULL || map_write_png(&map, options.png));
    if (ok)
        ok = options.json ? print_json(&map, &counts, q_first) : print_drawing(&map, &counts);
    free(map.letters);
    return ok ? CLI_DONE : CLI_FAILED;
}

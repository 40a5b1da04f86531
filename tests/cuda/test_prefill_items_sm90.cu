/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The prefill kernel's list of work, evaluated on the host for random problems, against attn/tile_map.h:
 * every query tile of every head once, every key tile that a row sees once and in its precision, and a mask
 * wherever a row does not see all keys of a tile.
 */
#include "attn/tile_map.h"
#include "cuda/sm90/prefill_item_sm90.h"

#include <random>
#include <stdio.h>
#include <vector>

using namespace mxa;

namespace
{

constexpr int problems = 40000, heads = 4, heads_per_kv = 2, heads_in_group = 2;
constexpr int far = 1 << 30;
constexpr int reports = 5; /* failures that are printed */

std::mt19937 generator(1);
long failures;

int pick(int first, int last)
{
    return std::uniform_int_distribution<int>(first, last)(generator);
}

/* -1 is no window. */
PrefillParams random_problem()
{
    PrefillParams p{};
    p.far = far;
    p.q_len = pick(1, 900);
    p.kv_len = pick(1, 1500);
    p.q_offset = pick(0, 3) ? p.kv_len - p.q_len : pick(-400, 1500);
    p.window_left = pick(0, 1) ? -1 : pick(0, 700);
    p.window_right = pick(0, 2) == 0 ? -1 : pick(0, 2) ? 0 : pick(0, 500);
    p.diag_window = pick(0, 3) ? pick(0, 500) : pick(0, 1) ? 0 : p.far;
    p.sink_window = pick(0, 2) ? pick(0, 700) : 0;
    p.heads = heads;
    p.heads_per_kv = heads_per_kv;
    p.heads_kv = heads / heads_per_kv;
    p.heads_in_group = heads_in_group;
    p.q_tile_first = tile_of(p.q_offset);
    p.q_tiles = tile_of(p.q_offset + p.q_len - 1) - p.q_tile_first + 1;
    p.k_tiles = tile_of(p.kv_len - 1) + 1;
    p.items = heads * p.q_tiles;
    return p;
}

mxa_tile_map map_of(const PrefillParams &p)
{
    mxa_tile_map m{};
    m.q_len = p.q_len;
    m.kv_len = p.kv_len;
    m.q_offset = p.q_offset;
    m.window_left = p.window_left < 0 ? MXA_FAR : p.window_left;
    m.window_right = p.window_right < 0 ? MXA_FAR : p.window_right;
    m.diag_window = p.diag_window == p.far ? MXA_FAR : p.diag_window;
    m.sink_window = p.sink_window;
    return m;
}

void fail(const PrefillParams &p, const PrefillItem &it, int k_tile, const char *what)
{
    if (failures++ < reports)
        printf(
            "%s: q_tile %d, k_tile %d; q_len %d, kv_len %d, offset %d, left %d, right %d, diag %d, sink %d\n",
            what, it.q_tile, k_tile, p.q_len, p.kv_len, p.q_offset, p.window_left, p.window_right,
            p.diag_window, p.sink_window);
}

/* When each key tile comes, -1 where it does not. */
std::vector<int> order_of(const PrefillParams &p, const PrefillItem &it)
{
    std::vector<int> order(p.k_tiles, -1);
    for (int n = 0; n < it.tiles(); n++) {
        const int k_tile = it.k_tile(n);
        if (k_tile < 0 || k_tile >= p.k_tiles || order[k_tile] >= 0)
            fail(p, it, k_tile, "no such tile, or twice");
        else
            order[k_tile] = n;
    }
    return order;
}

/* An item counts rows that the call does not hold: it may take a tile that the map skips, never miss one. */
void check_precision(const PrefillParams &p, const PrefillItem &it, const std::vector<int> &order)
{
    const mxa_tile_map map = map_of(p);
    for (int k_tile = 0; k_tile < p.k_tiles; k_tile++) {
        const mxa_precision want = mxa_tile_precision(&map, it.q_tile, k_tile);
        if (want == MXA_TILE_SKIP)
            continue;
        if (order[k_tile] < 0)
            fail(p, it, k_tile, "missing");
        else if (it.high(order[k_tile]) != (want == MXA_TILE_HIGH))
            fail(p, it, k_tile, "precision");
    }
}

bool sees(const PrefillParams &p, int position, int key)
{
    return key < p.kv_len && (p.window_right < 0 || key - position <= p.window_right) &&
           (p.window_left < 0 || position - key <= p.window_left);
}

/* Where no mask is applied, the corners of a group's part of a tile are seen, and so all between them. */
void check_masks(const PrefillParams &p, const PrefillItem &it, const std::vector<int> &order)
{
    for (int k_tile = 0; k_tile < p.k_tiles; k_tile++) {
        for (int group = 0; group < groups; group++) {
            if (order[k_tile] < 0 || k_tile > it.mask_above[group] || k_tile < it.mask_below[group])
                continue;
            const int position = it.q_tile * tile + group * rows, key = k_tile * tile;
            if (!sees(p, position, key) || !sees(p, position, key + tile - 1) ||
                !sees(p, position + rows - 1, key) || !sees(p, position + rows - 1, key + tile - 1))
                fail(p, it, k_tile, "mask");
        }
    }
}

void check_problem(const PrefillParams &p)
{
    std::vector<bool> done(p.items);
    for (int i = 0; i < p.items; i++) {
        PrefillItem it;
        set_item(p, i, it);
        const int place = it.h * p.q_tiles + it.q_tile - p.q_tile_first;
        if (done.at(place) || it.h_kv != it.h / p.heads_per_kv)
            fail(p, it, -1, "item");
        done[place] = true;
        const std::vector<int> order = order_of(p, it);
        check_precision(p, it, order);
        check_masks(p, it, order);
    }
}

} // namespace

int main()
{
    for (int i = 0; i < problems; i++)
        check_problem(random_problem());
    printf("%d problems, %ld failures\n", problems, failures);
    return failures != 0;
}

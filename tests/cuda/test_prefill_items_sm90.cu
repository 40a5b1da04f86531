/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The prefill kernel's list of work, evaluated on the host for random problems, against attn/tile_map.h:
 * every query tile of every head once, every step of keys that a row sees once and in its tile's precision,
 * and a mask wherever a row does not see all keys of a step. Steps of 128 and of 64 keys; the problem alone,
 * and as the second of three packed sequences.
 */
#include "attn/tile_map.h"
#include "cuda/sm90/prefill_item_sm90.h"

#include <random>
#include <stdio.h>
#include <vector>

using namespace mxa;

namespace
{

constexpr int problems = 20000, heads = 4, heads_per_kv = 2, heads_in_group = 2;
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
    PrefillSequence &s = p.first;
    p.far = far;
    s.q_len = pick(1, 900);
    s.kv_len = pick(1, 1500);
    s.q_offset = pick(0, 3) ? s.kv_len - s.q_len : pick(-400, 1500);
    p.window_left = pick(0, 1) ? -1 : pick(0, 700);
    p.window_right = pick(0, 2) == 0 ? -1 : pick(0, 2) ? 0 : pick(0, 500);
    p.diag_window = pick(0, 3) ? pick(0, 500) : pick(0, 1) ? 0 : p.far;
    p.sink_window = pick(0, 2) ? pick(0, 700) : 0;
    p.heads = heads;
    p.heads_per_kv = heads_per_kv;
    p.heads_kv = heads / heads_per_kv;
    p.heads_in_group = heads_in_group;
    p.q_tile_first = tile_of(s.q_offset);
    p.q_tiles = tile_of(s.q_offset + s.q_len - 1) - p.q_tile_first + 1;
    p.items = heads * p.q_tiles;
    return p;
}

mxa_tile_map map_of(const PrefillParams &p)
{
    mxa_tile_map m{};
    m.q_len = p.first.q_len;
    m.kv_len = p.first.kv_len;
    m.q_offset = p.first.q_offset;
    m.window_left = p.window_left < 0 ? MXA_FAR : p.window_left;
    m.window_right = p.window_right < 0 ? MXA_FAR : p.window_right;
    m.diag_window = p.diag_window == p.far ? MXA_FAR : p.diag_window;
    m.sink_window = p.sink_window;
    return m;
}

void fail(const PrefillParams &p, const PrefillItem &it, int step, const char *what)
{
    if (failures++ < reports)
        printf(
            "%s: q_tile %d, step %d; q_len %d, kv_len %d, offset %d, left %d, right %d, diag %d, sink %d\n",
            what, it.q_tile, step, p.first.q_len, p.first.kv_len, p.first.q_offset, p.window_left,
            p.window_right, p.diag_window, p.sink_window);
}

/* When each step of keys comes, -1 where it does not. */
template <int keys>
std::vector<int> order_of(const PrefillParams &p, const PrefillItem &it)
{
    std::vector<int> order(step_of<keys>(p.first.kv_len - 1) + 1, -1);
    for (int n = 0; n < it.count(); n++) {
        const int step = it.step(n);
        if (step < 0 || step >= int(order.size()) || order[step] >= 0)
            fail(p, it, step, "no such step, or twice");
        else
            order[step] = n;
    }
    return order;
}

bool sees(const PrefillParams &p, int position, int key)
{
    return key < p.first.kv_len && (p.window_right < 0 || key - position <= p.window_right) &&
           (p.window_left < 0 || position - key <= p.window_left);
}

/* Whether a query of the call sees a key of the step: it has every distance between those of its corners. */
template <int keys>
bool is_seen(const PrefillParams &p, const PrefillItem &it, int step)
{
    const int first = max(it.q_tile * tile, p.first.q_offset);
    const int last = min(it.q_tile * tile + tile, p.first.q_offset + p.first.q_len) - 1;
    const int key = step * keys, key_last = min(key + keys, p.first.kv_len) - 1;
    return (p.window_right < 0 || key - last <= p.window_right) &&
           (p.window_left < 0 || first - key_last <= p.window_left);
}

/* An item counts rows that the call does not hold: it may take a step that the map skips, never miss one. */
template <int keys>
void check_precision(const PrefillParams &p, const PrefillItem &it, const std::vector<int> &order)
{
    const mxa_tile_map map = map_of(p);
    for (int step = 0; step < int(order.size()); step++) {
        const mxa_precision want = mxa_tile_precision(&map, it.q_tile, step * keys / tile);
        if (want == MXA_TILE_SKIP || !is_seen<keys>(p, it, step))
            continue;
        if (order[step] < 0)
            fail(p, it, step, "missing");
        else if (it.high(order[step]) != (want == MXA_TILE_HIGH))
            fail(p, it, step, "precision");
    }
}

/* Where no mask is applied, the corners of a group's part of a step are seen, and so all between them. */
template <int keys>
void check_masks(const PrefillParams &p, const PrefillItem &it, const std::vector<int> &order)
{
    for (int step = 0; step < int(order.size()); step++) {
        for (int group = 0; group < groups; group++) {
            if (order[step] < 0 || step > it.mask_above[group] || step < it.mask_below[group])
                continue;
            const int position = it.q_tile * tile + group * rows, key = step * keys;
            if (!sees(p, position, key) || !sees(p, position, key + keys - 1) ||
                !sees(p, position + rows - 1, key) || !sees(p, position + rows - 1, key + keys - 1))
                fail(p, it, step, "mask");
        }
    }
}

template <int keys>
void check_item(const PrefillParams &p, const PrefillItem &it, std::vector<bool> &done)
{
    const int place = it.h * p.q_tiles + it.q_tile - p.q_tile_first;
    if (done.at(place) || it.h_kv != it.h / p.heads_per_kv)
        fail(p, it, -1, "item");
    done[place] = true;
    if (it.count() < 1)
        fail(p, it, -1, "no step");
    const std::vector<int> order = order_of<keys>(p, it);
    check_precision<keys>(p, it, order);
    check_masks<keys>(p, it, order);
}

template <int keys>
void check_problem(const PrefillParams &p)
{
    std::vector<bool> done(p.items);
    for (int i = 0; i < p.items; i++) {
        PrefillItem it;
        set_item<keys>(p, i, it);
        check_item<keys>(p, it, done);
    }
}

/* Rows of tensors and copies in front of the sequence. */
constexpr int q_before = 333, k_before = 77;

template <int keys>
void check_packed(PrefillParams p)
{
    mxa_sequence sequences[3] = {};
    sequences[1].map = map_of(p);
    sequences[1].q_first = q_before;
    sequences[1].k_first = k_before;
    sequences[1].q_rows = heads * q_before;
    sequences[1].k_rows = p.heads_kv * k_before;
    std::vector<mxa_query_tile> tiles;
    for (int t = 0; t < p.q_tiles; t++)
        tiles.push_back({ 1, p.q_tile_first + t, 0 });
    p.sequences = sequences;
    p.tiles = tiles.data();
    std::vector<bool> done(p.items);
    for (int i = 0; i < p.items; i++) {
        PrefillItem it;
        set_item<keys>(p, i, it);
        check_item<keys>(p, it, done);
        const int query = it.q_tile * tile - p.first.q_offset;
        if (it.first != query || it.q_row != q_before + query || it.k_row != k_before ||
            it.q_copy != heads * q_before + it.h * p.first.q_len + query ||
            it.k_copy != p.heads_kv * k_before + it.h_kv * p.first.kv_len)
            fail(p, it, -1, "place");
    }
}

} // namespace

int main()
{
    for (int i = 0; i < problems; i++) {
        const PrefillParams p = random_problem();
        check_problem<128>(p);
        check_problem<64>(p);
        check_packed<64>(p);
    }
    printf("%d problems, %ld failures\n", problems, failures);
    return failures != 0;
}

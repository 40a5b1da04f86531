/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AMX for machines without it, beside emulated_avx512.h: eight tiles of 16 rows of 64 bytes, which is all
 * that the kernels configure. Products of bf16 flush subnormal numbers and are rounded one by one, as the
 * manual says.
 */
#ifndef EMULATED_AMX_H
#define EMULATED_AMX_H

#include "emulated_avx512.h"

#include <math.h>

enum { EMULATED_TILES = 8, EMULATED_ROWS = 16 };

typedef struct emulated_tile {
    uint32_t row[EMULATED_ROWS][EMULATED_LANES];
} emulated_tile;

static _Thread_local emulated_tile emulated_tiles[EMULATED_TILES];

static inline void emulated_tile_zero(int tile)
{
    memset(&emulated_tiles[tile], 0, sizeof emulated_tiles[tile]);
}

static inline void emulated_tile_load(int tile, const void *from, int64_t stride)
{
    for (int i = 0; i < EMULATED_ROWS; i++)
        memcpy(emulated_tiles[tile].row[i], (const char *)from + i * stride,
               sizeof emulated_tiles[tile].row[i]);
}

static inline void emulated_tile_store(int tile, void *to, int64_t stride)
{
    for (int i = 0; i < EMULATED_ROWS; i++)
        memcpy((char *)to + i * stride, emulated_tiles[tile].row[i], sizeof emulated_tiles[tile].row[i]);
}

static inline void emulated_dpbssd(int sums, int rows, int columns)
{
    for (int m = 0; m < EMULATED_ROWS; m++)
        for (int n = 0; n < EMULATED_LANES; n++) {
            uint32_t *const sum = &emulated_tiles[sums].row[m][n];
            for (int k = 0; k < EMULATED_LANES; k++)
                for (int shift = 0; shift < 32; shift += 8)
                    *sum += (uint32_t)((int8_t)(emulated_tiles[rows].row[m][k] >> shift) *
                                       (int8_t)(emulated_tiles[columns].row[k][n] >> shift));
        }
}

static inline float emulated_flushed(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return emulated_float(bits);
}

/* Even and odd products are summed apart. */
static inline void emulated_dpbf16ps(int sums, int rows, int columns)
{
    for (int m = 0; m < EMULATED_ROWS; m++)
        for (int n = 0; n < EMULATED_LANES; n++) {
            float part[2] = { 0 };
            for (int k = 0; k < EMULATED_LANES; k++)
                for (int odd = 0; odd < 2; odd++) {
                    const uint32_t a = emulated_tiles[rows].row[m][k], b = emulated_tiles[columns].row[k][n];
                    const int shift = odd ? 0 : 16;
                    part[odd] = emulated_flushed(fmaf(emulated_float(a << shift & 0xFFFF0000u),
                                                      emulated_float(b << shift & 0xFFFF0000u), part[odd]));
                }
            uint32_t *const sum = &emulated_tiles[sums].row[m][n];
            const float total = emulated_flushed(emulated_float(*sum) + emulated_flushed(part[0] + part[1]));
            memcpy(sum, &total, sizeof total);
        }
}

/* x less the integer below it. */
static inline __m512 emulated_reduce_ps(__m512 x, int mode)
{
    float lanes[EMULATED_LANES];
    (void)mode;
    memcpy(lanes, &x, sizeof x);
    for (int i = 0; i < EMULATED_LANES; i++)
        lanes[i] = isinf(lanes[i]) ? 0.0f : lanes[i] - floorf(lanes[i]);
    memcpy(&x, lanes, sizeof x);
    return x;
}

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbssd
#undef _tile_dpbf16ps
#undef _mm512_reduce_ps
#define _tile_loadconfig(config) ((void)(config))
#define _tile_release()          ((void)0)
#define _tile_zero               emulated_tile_zero
#define _tile_loadd              emulated_tile_load
#define _tile_stored             emulated_tile_store
#define _tile_dpbssd             emulated_dpbssd
#define _tile_dpbf16ps           emulated_dpbf16ps
#define _mm512_reduce_ps         emulated_reduce_ps

#endif

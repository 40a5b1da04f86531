/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products in tile registers: blocks of two by two tiles of 16 rows by 16 columns, four sums, two tiles of
 * rows and two of columns. A tile of rows (Q, P) holds 64 bytes of each of 16 rows; one of columns (K, V)
 * holds for each 4 bytes of these rows the 4 bytes that they meet in each of 16 columns: 4 int8 or 2 bf16.
 */
#ifndef MXA_CPU_AMX_TILES_AMX_H
#define MXA_CPU_AMX_TILES_AMX_H

#include <assert.h>
#include <immintrin.h>
#include <mxattn/mxattn.h>
#include <stdint.h>

enum {
    MXA_AMX_ROWS = 16,      /* rows, and columns, of a tile */
    MXA_AMX_ROW_BYTES = 64, /* of one of them */
    MXA_AMX_TILE_BYTES = MXA_AMX_ROWS * MXA_AMX_ROW_BYTES,
    MXA_AMX_BLOCK = 2 * MXA_AMX_ROWS,                          /* rows, and columns, of a block */
    MXA_AMX_PAIRS = MXA_AMX_ROW_BYTES / (int)sizeof(uint32_t), /* of bf16 in a tile's row */
    MXA_AMX_KEY_STEPS = MXA_TILE / (MXA_AMX_ROW_BYTES / (int)sizeof(uint16_t)), /* of P V in a key tile */
};
static_assert(MXA_AMX_PAIRS == MXA_AMX_ROWS, "a tile of columns is as large as one of rows");

/* What LDTILECFG reads. */
typedef struct mxa_amx_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} mxa_amx_config;
static_assert(sizeof(mxa_amx_config) == 64, "LDTILECFG reads 64 bytes");

/* Eight whole tiles, for this thread until mxa_amx_end. */
static inline void mxa_amx_begin(void)
{
    enum { B = MXA_AMX_ROW_BYTES, R = MXA_AMX_ROWS };
    /* Static, since GCC's operand names only its first bytes. */
    static const mxa_amx_config config = { .palette = 1,
                                           .row_bytes = { B, B, B, B, B, B, B, B },
                                           .rows = { R, R, R, R, R, R, R, R } };
    _tile_loadconfig(&config);
}

static inline void mxa_amx_end(void)
{
    _tile_release();
}

/* GCC's tile loads name no memory: stores to what they read must not move behind them. */
static inline void mxa_amx_order(void)
{
    __asm__ volatile("" ::: "memory");
}

/* The block's four sums: zero, or from and to rows that are stride bytes apart. */
static inline void mxa_amx_zero_sums(void)
{
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

static inline void mxa_amx_load_sums(const float *sums, int64_t stride)
{
    const char *const next = (const char *)sums + MXA_AMX_ROWS * stride;
    mxa_amx_order();
    _tile_loadd(0, sums, stride);
    _tile_loadd(1, sums + MXA_AMX_ROWS, stride);
    _tile_loadd(2, next, stride);
    _tile_loadd(3, next + MXA_AMX_ROW_BYTES, stride);
}

static inline void mxa_amx_store_sums(float *sums, int64_t stride)
{
    char *const next = (char *)sums + MXA_AMX_ROWS * stride;
    _tile_stored(0, sums, stride);
    _tile_stored(1, sums + MXA_AMX_ROWS, stride);
    _tile_stored(2, next, stride);
    _tile_stored(3, next + MXA_AMX_ROW_BYTES, stride);
}

/* 64 bytes of 32 rows, stride apart, and of 32 columns, whose two tiles are next_columns apart. */
static inline void mxa_amx_load_factors(const uint8_t *rows, int64_t stride, const uint8_t *columns,
                                        int64_t next_columns)
{
    mxa_amx_order();
    _tile_loadd(4, rows, stride);
    _tile_loadd(6, columns, MXA_AMX_ROW_BYTES);
    _tile_loadd(7, columns + next_columns, MXA_AMX_ROW_BYTES);
    _tile_loadd(5, rows + MXA_AMX_ROWS * stride, stride);
}

/* Add their products to the sums. */
static inline void mxa_amx_multiply(bool integers)
{
    if (integers) {
        _tile_dpbssd(0, 4, 6);
        _tile_dpbssd(1, 4, 7);
        _tile_dpbssd(2, 5, 6);
        _tile_dpbssd(3, 5, 7);
    } else {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
}

#endif

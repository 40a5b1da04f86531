/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Assembly, so that no compiler adds register moves to what is measured, and no file needs flags of its own.
 * A step has more independent sums than any of these instructions has latency times throughput, all in
 * registers.
 */
#include "peak.h"

#include "cpu/features.h"

#include <stddef.h>

#if defined(__x86_64__)

/* A step is body for r = 0..11: \\r is the number of its sum. Register 15 holds a factor, 14 is free. */
#define LOOP_OF_12(load, body)                                                                               \
    __asm__ volatile(load "\n1:\n .irp r,0,1,2,3,4,5,6,7,8,9,10,11\n" body "\n.endr\n"                       \
                          "dec %0\n jnz 1b\n vzeroupper"                                                     \
                     : "+r"(steps)                                                                           \
                     : "r"(factors)                                                                          \
                     : "cc", "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7",       \
                       "xmm8", "xmm9", "xmm10", "xmm11", "xmm14", "xmm15")
#define LOAD_YMM "vmovups (%1), %%ymm15"
#define LOAD_ZMM "vmovups (%1), %%zmm15"

enum { SUMS = 12, FACTORS = 16, TILES = 4, TILE_ROWS = 16 };

/* Pairs of bf16 near 1, of which each is an fp32 near 1 as well: no sum overflows or is subnormal. */
static const uint32_t factors[FACTORS] = {
    0x3F66BF8D, 0xBF8D3F9A, 0x3F9ABF4D, 0xBF4D3F33, 0x3F33BFA6, 0xBFA63F8C, 0x3F8CBF66, 0xBF663FB3,
    0x3FB3BF19, 0xBF193F80, 0x3F80BF73, 0xBF733F26, 0x3F26BFC0, 0xBFC03F59, 0x3F59BF99, 0xBF993F40,
};

static void fma_ymm(int64_t steps)
{
    LOOP_OF_12(LOAD_YMM, "vfmadd231ps %%ymm15, %%ymm15, %%ymm\\r");
}

/* 16-bit products summed in pairs, and the addition without which they are of no use. */
static void pmaddwd_ymm(int64_t steps)
{
    LOOP_OF_12(LOAD_YMM, "vpmaddwd %%ymm15, %%ymm15, %%ymm14\n vpaddd %%ymm14, %%ymm\\r, %%ymm\\r");
}

static void fma_zmm(int64_t steps)
{
    LOOP_OF_12(LOAD_ZMM, "vfmadd231ps %%zmm15, %%zmm15, %%zmm\\r");
}

static void dpbf16_zmm(int64_t steps)
{
    LOOP_OF_12(LOAD_ZMM, "vdpbf16ps %%zmm15, %%zmm15, %%zmm\\r");
}

static void dpbusd_zmm(int64_t steps)
{
    LOOP_OF_12(LOAD_ZMM, "vpdpbusd %%zmm15, %%zmm15, %%zmm\\r");
}

/* Palette 1, and the shape of the eight tiles: Intel SDM, volume 2, LDTILECFG. */
typedef struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;

/* A 2 x 2 block of tile products: sums in tiles 0 to 3, rows in 4 and 5, columns in 6 and 7. */
#define LOOP_OF_TILES(instruction)                                                                           \
    __asm__ volatile("ldtilecfg (%1)\n"                                                                      \
                     ".irp r,0,1,2,3\n tilezero %%tmm\\r\n .endr\n"                                          \
                     ".irp r,4,5,6,7\n tileloadd (%2, %3), %%tmm\\r\n .endr\n"                               \
                     "1:\n" instruction " %%tmm6, %%tmm4, %%tmm0\n" instruction " %%tmm7, %%tmm4, %%tmm1\n"  \
                     "" instruction " %%tmm6, %%tmm5, %%tmm2\n" instruction " %%tmm7, %%tmm5, %%tmm3\n"      \
                     "dec %0\n jnz 1b\n tilerelease"                                                         \
                     : "+r"(steps)                                                                           \
                     : "r"(&config), "r"(factors), "r"((int64_t)0)                                           \
                     : "cc", "memory")

static const tile_config config = { .palette = 1,
                                    .row_bytes = { 64, 64, 64, 64, 64, 64, 64, 64 },
                                    .rows = { 16, 16, 16, 16, 16, 16, 16, 16 } };

static void dpbf16_tiles(int64_t steps)
{
    LOOP_OF_TILES("tdpbf16ps");
}

static void dpbssd_tiles(int64_t steps)
{
    LOOP_OF_TILES("tdpbssd");
}

/* A multiply-add is two operations. products: an instruction's lanes times the pairs or fours it sums. */
#define VECTOR_OPS(products) (2.0 * SUMS * (products))
#define TILE_OPS(products)   (2.0 * TILES * TILE_ROWS * TILE_ROWS * (products))

const peak_loop peak_loops[] = {
    { "avx2", "f32", "vfmadd231ps ymm", MXA_CPU_AVX2, VECTOR_OPS(8), fma_ymm },
    { "avx2", "int", "vpmaddwd ymm", MXA_CPU_AVX2, VECTOR_OPS(16), pmaddwd_ymm },
    { "avx512", "f32", "vfmadd231ps zmm", MXA_CPU_AVX512, VECTOR_OPS(16), fma_zmm },
    { "avx512", "half", "vdpbf16ps zmm", MXA_CPU_AVX512_BF16, VECTOR_OPS(32), dpbf16_zmm },
    { "avx512", "int", "vpdpbusd zmm", MXA_CPU_AVX512_VNNI, VECTOR_OPS(64), dpbusd_zmm },
    { "amx", "half", "tdpbf16ps", MXA_CPU_AMX, TILE_OPS(32), dpbf16_tiles },
    { "amx", "int", "tdpbssd", MXA_CPU_AMX, TILE_OPS(64), dpbssd_tiles },
    { NULL, NULL, NULL, 0, 0, NULL },
};

#else

const peak_loop peak_loops[] = { { NULL, NULL, NULL, 0, 0, NULL } };

#endif

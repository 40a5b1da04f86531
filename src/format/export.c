/* SPDX-License-Identifier: Apache-2.0 */
#include "format/export.h"

#include <string.h>

#include "format/import.h"

/* Packed pairs of n elements as ggml has them: byte j holds elements j, in its low nibble, and j + n / 2. */
static void pairs_to_halves(const uint8_t *pairs, int n, uint8_t *halves)
{
    const int quarter = n / 4;
    for (int j = 0; j < quarter; j++) {
        halves[2 * j] = (uint8_t)((pairs[j] & 0x0F) | pairs[quarter + j] << 4);
        halves[2 * j + 1] = (uint8_t)(pairs[j] >> 4 | (pairs[quarter + j] & 0xF0));
    }
}

void mxa_export_blocks(mxa_foreign to, const uint8_t *codes, const uint8_t *scales, int64_t rows,
                       int64_t cols, uint8_t *dst)
{
    mxa_foreign_info info;
    mxa_foreign_find(to, &info);
    const int n_scales = info.block_bytes - info.block / 2, part = info.block / n_scales;
    for (int64_t i = 0; i < rows * (cols / info.block); i++) {
        memcpy(dst, scales, (size_t)n_scales);
        dst += n_scales;
        scales += n_scales;
        for (int s = 0; s < n_scales; s++, codes += part / 2, dst += part / 2)
            pairs_to_halves(codes, part, dst);
    }
}

void mxa_export_vllm_scales(const uint8_t *scales, int64_t heads, int64_t tokens, int64_t scale_cols,
                            uint8_t *dst)
{
    for (int64_t h = 0; h < heads; h++, dst += tokens * scale_cols)
        for (int64_t t = 0; t < tokens; t++)
            for (int64_t s = 0; s < scale_cols; s++)
                dst[t / 4 * 4 * scale_cols + s * 4 + t % 4] = *scales++;
}

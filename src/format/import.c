/* SPDX-License-Identifier: Apache-2.0 */
#include "format/import.h"

#include <string.h>

#include "format/element.h"
#include "format/q8_0.h"

/* ggml: struct block_mxfp4 and struct block_nvfp4 of ggml-common.h. */
enum {
    GGML_MXFP4_BLOCK = 32,
    GGML_NVFP4_BLOCK = 64,
    GGML_NVFP4_SCALES = 4,
};

bool mxa_foreign_find(mxa_foreign from, mxa_foreign_info *info)
{
    switch (from) {
    case MXA_FOREIGN_GGML_MXFP4:
    case MXA_FOREIGN_GPT_OSS:
        *info = (mxa_foreign_info){ GGML_MXFP4_BLOCK, 1 + GGML_MXFP4_BLOCK / 2 };
        return true;
    case MXA_FOREIGN_GGML_NVFP4:
        *info = (mxa_foreign_info){ GGML_NVFP4_BLOCK, GGML_NVFP4_SCALES + GGML_NVFP4_BLOCK / 2 };
        return true;
    case MXA_FOREIGN_GGML_Q8_0: *info = (mxa_foreign_info){ MXA_Q8_0_BLOCK, MXA_Q8_0_BYTES }; return true;
    }
    return false;
}

/* ggml keeps the first half of n elements in the low nibbles and the second in the high ones. */
static void halves_to_pairs(const uint8_t *halves, int n, uint8_t *pairs)
{
    const int quarter = n / 4;
    for (int j = 0; j < quarter; j++) {
        pairs[j] = (uint8_t)((halves[2 * j] & 0x0F) | halves[2 * j + 1] << 4);
        pairs[quarter + j] = (uint8_t)(halves[2 * j] >> 4 | (halves[2 * j + 1] & 0xF0));
    }
}

static void import_ggml_mxfp4(const uint8_t *src, int64_t blocks, uint8_t *codes, uint8_t *scales)
{
    for (int64_t i = 0; i < blocks; i++, src += 1 + GGML_MXFP4_BLOCK / 2, codes += GGML_MXFP4_BLOCK / 2) {
        scales[i] = src[0];
        halves_to_pairs(src + 1, GGML_MXFP4_BLOCK, codes);
    }
}

static void import_ggml_nvfp4(const uint8_t *src, int64_t blocks, uint8_t *codes, uint8_t *scales)
{
    const int part = GGML_NVFP4_BLOCK / GGML_NVFP4_SCALES; /* elements of one scale */
    for (int64_t i = 0; i < blocks; i++) {
        for (int s = 0; s < GGML_NVFP4_SCALES; s++) /* ggml reads 0x7F as 0, we as NaN */
            *scales++ = src[s] == MXA_UE4M3_NAN ? 0 : src[s];
        src += GGML_NVFP4_SCALES;
        for (int s = 0; s < GGML_NVFP4_SCALES; s++, src += part / 2, codes += part / 2)
            halves_to_pairs(src, part, codes);
    }
}

void mxa_import_blocks(mxa_foreign from, const uint8_t *src, int64_t rows, int64_t cols, uint8_t *codes,
                       uint8_t *scales)
{
    if (from == MXA_FOREIGN_GGML_MXFP4) {
        import_ggml_mxfp4(src, rows * (cols / GGML_MXFP4_BLOCK), codes, scales);
    } else if (from == MXA_FOREIGN_GGML_NVFP4) {
        import_ggml_nvfp4(src, rows * (cols / GGML_NVFP4_BLOCK), codes, scales);
    } else {
        const int64_t code_bytes = rows * (cols / 2);
        memcpy(codes, src, (size_t)code_bytes);
        memcpy(scales, src + code_bytes, (size_t)(rows * (cols / GGML_MXFP4_BLOCK)));
    }
}

void mxa_import_vllm_scales(const uint8_t *src, int64_t heads, int64_t tokens, int64_t scale_cols,
                            uint8_t *scales)
{
    for (int64_t h = 0; h < heads; h++, src += tokens * scale_cols)
        for (int64_t t = 0; t < tokens; t++)
            for (int64_t s = 0; s < scale_cols; s++)
                *scales++ = src[t / 4 * 4 * scale_cols + s * 4 + t % 4];
}

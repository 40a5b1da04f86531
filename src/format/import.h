/* SPDX-License-Identifier: Apache-2.0 */
/* Layouts of other software, moved to ours: docs/numerics.md, section 6. Sizes are checked already. */
#ifndef MXA_FORMAT_IMPORT_H
#define MXA_FORMAT_IMPORT_H

#include <mxattn/mxattn.h>

typedef struct mxa_foreign_info {
    int block;       /* cols is a multiple of it */
    int block_bytes; /* codes and scales of one block */
} mxa_foreign_info;

/* False if there is no such layout. */
bool mxa_foreign_find(mxa_foreign from, mxa_foreign_info *info);

void mxa_import_blocks(mxa_foreign from, const uint8_t *src, int64_t rows, int64_t cols, uint8_t *codes,
                       uint8_t *scales);

/* V scales of a vLLM page, four tokens interleaved, to [head][token][scale_cols]. */
void mxa_import_vllm_scales(const uint8_t *src, int64_t heads, int64_t tokens, int64_t scale_cols,
                            uint8_t *scales);

#endif

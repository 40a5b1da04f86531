/* SPDX-License-Identifier: Apache-2.0 */
/* Our layouts, moved to those of other software: format/import.h backwards. Sizes are checked already. */
#ifndef MXA_FORMAT_EXPORT_H
#define MXA_FORMAT_EXPORT_H

#include <mxattn/mxattn.h>

/* Rows of MXFP4 or NVFP4 codes and row scales as blocks of ggml's mxfp4 or nvfp4. */
void mxa_export_blocks(mxa_foreign to, const uint8_t *codes, const uint8_t *scales, int64_t rows,
                       int64_t cols, uint8_t *dst);

/* V scales [head][token][scale_cols] as a vLLM page has them, four tokens interleaved. */
void mxa_export_vllm_scales(const uint8_t *scales, int64_t heads, int64_t tokens, int64_t scale_cols,
                            uint8_t *dst);

#endif

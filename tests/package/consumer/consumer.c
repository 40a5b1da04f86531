/* SPDX-License-Identifier: Apache-2.0 */
/* A program outside the tree: quantise one block and read it back. */
#include <mxattn/mxattn.h>

#include <stdio.h>
#include <string.h>

enum { COLS = 32 };

int main(void)
{
    float x[COLS], y[COLS];
    uint8_t codes[COLS / 2], scale;
    for (int i = 0; i < COLS; i++)
        x[i] = (float)(i % 5) - 2; /* whole numbers to 2 are exact in MXFP4 */
    const mxa_tensor in = mxa_tensor_contiguous(x, MXA_DTYPE_F32, 1, 1, 1, COLS);
    const mxa_tensor out = mxa_tensor_contiguous(y, MXA_DTYPE_F32, 1, 1, 1, COLS);
    const mxa_packed packed = { .codes = codes, .scales = &scale };

    if (mxa_quantize(&in, MXA_FORMAT_MXFP4, NULL, &packed, NULL) != MXA_OK ||
        mxa_dequantize(&packed, MXA_FORMAT_MXFP4, NULL, &out) != MXA_OK) {
        fprintf(stderr, "%s\n", mxa_error_text());
        return 1;
    }
    printf("mxattn %s\n", mxa_version());
    return memcmp(x, y, sizeof x) != 0;
}

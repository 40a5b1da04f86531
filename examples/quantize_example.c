/* SPDX-License-Identifier: Apache-2.0 */
/* Quantise a row to MXFP4, look at the bytes, and turn it back. */
#include <mxattn/mxattn.h>
#include <stdio.h>

int main(void)
{
    float x[32], y[32];
    for (int d = 0; d < 32; d++)
        x[d] = (float)(d - 16) / 3;
    const mxa_tensor from = mxa_tensor_contiguous(x, MXA_DTYPE_F32, 1, 1, 1, 32);
    const mxa_tensor to = mxa_tensor_contiguous(y, MXA_DTYPE_F32, 1, 1, 1, 32);

    uint8_t codes[16], scales[1]; /* mxa_packed_sizes gives these sizes for any shape and format */
    const mxa_packed packed = { .codes = codes, .scales = scales };
    if (mxa_quantize(&from, MXA_FORMAT_MXFP4, NULL, &packed, NULL) != MXA_OK ||
        mxa_dequantize(&packed, MXA_FORMAT_MXFP4, NULL, &to) != MXA_OK) {
        fprintf(stderr, "%s\n", mxa_error_text());
        return 1;
    }
    printf("scale 2^%d, 32 elements in 16 bytes\n", scales[0] - 127);
    for (int d = 0; d < 32; d += 5)
        printf("%7.3f is stored as %6.2f\n", x[d], y[d]);
    return 0;
}

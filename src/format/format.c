/* SPDX-License-Identifier: Apache-2.0 */
#include "format/format.h"

#include <float.h>
#include <string.h>

/* In the order of mxa_format. */
static const mxa_format_info formats[] = {
    { MXA_FORMAT_F32, "f32", 32, 0, MXA_SCALE_NONE, false, FLT_MAX, MXA_RULE_DEFAULT, MXA_LEVEL_NONE },
    { MXA_FORMAT_F16, "f16", 16, 0, MXA_SCALE_NONE, false, 65504, MXA_RULE_DEFAULT, MXA_LEVEL_NONE },
    { MXA_FORMAT_BF16, "bf16", 16, 0, MXA_SCALE_NONE, false, 0x1.FEp127, MXA_RULE_DEFAULT, MXA_LEVEL_NONE },
    { MXA_FORMAT_MXFP8_E4M3, "mxfp8", 8, 32, MXA_SCALE_E8M0, true, 448, MXA_RULE_RCEIL, MXA_LEVEL_NONE },
    { MXA_FORMAT_MXFP8_E5M2, "mxfp8-e5m2", 8, 32, MXA_SCALE_E8M0, true, 57344, MXA_RULE_RCEIL,
      MXA_LEVEL_NONE },
    { MXA_FORMAT_MXFP6_E3M2, "mxfp6", 6, 32, MXA_SCALE_E8M0, true, 28, MXA_RULE_RCEIL, MXA_LEVEL_NONE },
    { MXA_FORMAT_MXFP6_E2M3, "mxfp6-e2m3", 6, 32, MXA_SCALE_E8M0, true, 7.5, MXA_RULE_RCEIL, MXA_LEVEL_NONE },
    { MXA_FORMAT_MXFP4, "mxfp4", 4, 32, MXA_SCALE_E8M0, true, 6, MXA_RULE_EVEN, MXA_LEVEL_NONE },
    { MXA_FORMAT_MXINT8, "mxint8", 8, 32, MXA_SCALE_E8M0, true, 127.0 / 64, MXA_RULE_RCEIL, MXA_LEVEL_NONE },
    { MXA_FORMAT_NVFP4, "nvfp4", 4, 16, MXA_SCALE_UE4M3, true, 6, MXA_RULE_DEFAULT, MXA_LEVEL_TOKEN },
    { MXA_FORMAT_FP8, "fp8", 8, 0, MXA_SCALE_NONE, true, 448, MXA_RULE_DEFAULT, MXA_LEVEL_TOKEN },
    { MXA_FORMAT_INT8, "int8", 8, 0, MXA_SCALE_NONE, true, 127, MXA_RULE_DEFAULT, MXA_LEVEL_TOKEN },
};
static const int format_count = sizeof formats / sizeof formats[0];

const mxa_format_info *mxa_format_get(mxa_format format)
{
    const int i = (int)format - MXA_FORMAT_F32;
    return i >= 0 && i < format_count ? &formats[i] : NULL;
}

const mxa_format_info *mxa_format_find(const char *name)
{
    for (int i = 0; name && i < format_count; i++)
        if (strcmp(formats[i].name, name) == 0)
            return &formats[i];
    return NULL;
}

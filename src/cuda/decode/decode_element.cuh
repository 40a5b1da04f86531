/* SPDX-License-Identifier: Apache-2.0 */
/* One element of K or V in a device's page as a number, whatever its format. */
#ifndef MXA_CUDA_DECODE_ELEMENT_CUH
#define MXA_CUDA_DECODE_ELEMENT_CUH

#include "cuda/decode/decode_params_cuda.h"
#include "format/mx.h"

namespace mxa
{

/* Bits of element d in a row of codes that are packed as on the CPU. */
__device__ inline uint32_t row_code(const uint8_t *row, mxa_format format, int d)
{
    switch (format) {
    case MXA_FORMAT_MXFP4:
    case MXA_FORMAT_NVFP4: return row[d / 2] >> d % 2 * 4 & 15u;
    case MXA_FORMAT_MXFP6_E3M2:
    case MXA_FORMAT_MXFP6_E2M3: {
        const int bit = 6 * d % 8, byte = 6 * d / 8;
        const uint32_t next = bit > 2 ? row[byte + 1] : 0; /* the last code ends with its row */
        return (row[byte] | next << 8) >> bit & 63u;
    }
    case MXA_FORMAT_F32: return reinterpret_cast<const uint32_t *>(row)[d];
    case MXA_FORMAT_F16:
    case MXA_FORMAT_BF16: return reinterpret_cast<const uint16_t *>(row)[d];
    default: return row[d];
    }
}

__device__ inline uint32_t slice_code(const mxa_kv_tile_part &p, const uint8_t *at, int d)
{
    if (p.bits == 16)
        return *reinterpret_cast<const uint16_t *>(at);
    if (p.bits == 8)
        return *at ^ p.flip;
    return d % 16 < 8 ? mxa_kv_first(*at) : mxa_kv_second(*at);
}

/* Channel d of a token of the tile, its factor aside. */
__device__ inline float tile_element(const mxa_kv_tile_part &p, mxa_format format, const uint8_t *tile,
                                     int token, int d)
{
    const uint8_t *const at = tile + mxa_kv_code_at(&p, token, d);
    const uint32_t code = p.bits ? slice_code(p, at, d) : row_code(at, format, d);
    switch (format) {
    case MXA_FORMAT_F32: return mxa_f32_from_bits(code);
    case MXA_FORMAT_F16: return mxa_f32_from_f16(uint16_t(code));
    case MXA_FORMAT_BF16: return mxa_f32_from_bf16(uint16_t(code));
    case MXA_FORMAT_INT8: return mxa_int8_decode(code);
    case MXA_FORMAT_FP8: return mxa_element_decode(mxa_element_e4m3(), code);
    case MXA_FORMAT_NVFP4:
        return mxa_element_decode(mxa_element_e2m1(), code) *
               mxa_ue4m3_decode(tile[mxa_kv_scale_at(&p, token, d / 16)]);
    default: return mxa_mx_value(format, code, tile[mxa_kv_scale_at(&p, token, d / MXA_MX_BLOCK)]);
    }
}

__device__ inline float tile_factor(const mxa_kv_tile_part &p, const uint8_t *tile, int token)
{
    return p.has_g ? fabsf(*reinterpret_cast<const float *>(tile + mxa_kv_g_at(&p, token))) : 1.0f;
}

} // namespace mxa

#endif

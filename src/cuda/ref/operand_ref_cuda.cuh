/* SPDX-License-Identifier: Apache-2.0 */
/* Elements of Q, K and V as numbers, whatever form they lie in. */
#ifndef MXA_CUDA_OPERAND_REF_CUDA_CUH
#define MXA_CUDA_OPERAND_REF_CUDA_CUH

#include <math.h>

#include "cuda/attention_cuda.h"

extern "C" {
#include "core/tensor.h"
#include "format/element.h"
}

namespace mxa
{

/* How an element is read. The last two round a tensor's element to the type of its copy first. */
enum class Element { f32, f16, bf16, int8, e4m3, e5m2, to_f16, to_bf16 };

/* One operand of a kernel's parameters. */
struct Operand {
    Element element;
    bool in_tensor; /* x is read, by its strides */
    mxa_tensor x;
    const uint8_t *codes; /* [rows][row_bytes] */
    int64_t row_bytes;
    const float *g;
    mxa_level g_level;
};

inline Element element_of(mxa_dtype dtype)
{
    return dtype == MXA_DTYPE_F32 ? Element::f32 : dtype == MXA_DTYPE_F16 ? Element::f16 : Element::bf16;
}

/* The element of a plain type that is read from a tensor. */
inline Element rounded_to(mxa_dtype dtype, mxa_dtype to)
{
    if (dtype == to || to == MXA_DTYPE_F32)
        return element_of(dtype);
    return to == MXA_DTYPE_F16 ? Element::to_f16 : Element::to_bf16;
}

inline Element element_of_codes(const mxa_format_info *info)
{
    switch (info->format) {
    case MXA_FORMAT_F32: return Element::f32;
    case MXA_FORMAT_F16: return Element::f16;
    case MXA_FORMAT_BF16: return Element::bf16;
    case MXA_FORMAT_INT8: return Element::int8;
    default: return Element::e4m3;
    }
}

inline Element element_of_form(const mxa_format_info *info, mxa_cuda_form form)
{
    switch (form) {
    case MXA_CUDA_E5M2: return Element::e5m2;
    case MXA_CUDA_E4M3: return Element::e4m3;
    case MXA_CUDA_BF16: return Element::bf16;
    case MXA_CUDA_F16: return Element::f16;
    default: return element_of_codes(info);
    }
}

inline mxa_dtype dtype_of(mxa_format format)
{
    return format == MXA_FORMAT_F16    ? MXA_DTYPE_F16
           : format == MXA_FORMAT_BF16 ? MXA_DTYPE_BF16
                                       : MXA_DTYPE_F32;
}

/* info is that of the copy; of V, what it is rounded to. */
inline Operand make_operand(const mxa_cuda_operand &from, const mxa_format_info *info)
{
    Operand op{};
    op.in_tensor = from.form == MXA_CUDA_TENSOR;
    op.element =
        op.in_tensor ? rounded_to(from.x.dtype, dtype_of(info->format)) : element_of_form(info, from.form);
    op.x = from.x;
    op.codes = from.codes;
    op.row_bytes = from.row_bytes;
    op.g = from.g;
    op.g_level = from.g_level;
    return op;
}

/* Rows of one head of a sequence. */
struct Rows {
    const uint8_t *first; /* of row 0 */
    int64_t row_bytes;    /* may be negative */
    Element element;
    mxa_dtype dtype; /* of the tensor, for what is rounded */
    const float *g;  /* of row 0 */
    int64_t g_rows;  /* rows that share a factor */

    __device__ float factor(int64_t row) const
    {
        return g ? g[row / g_rows] : 1.0f;
    }
};

/* s: of sequence number n; heads: of this operand. */
__device__ inline Rows rows_of(const Operand &op, const mxa_sequence &s, int64_t n, bool of_k, int64_t heads,
                               int64_t h)
{
    const int64_t len = of_k ? s.map.kv_len : s.map.q_len;
    const int64_t row = (of_k ? s.k_rows : s.q_rows) + h * len;
    const int64_t block = (of_k ? s.k_blocks : s.q_blocks) + h * ((len + MXA_TILE - 1) / MXA_TILE);
    Rows r{};
    r.element = op.element;
    r.dtype = op.x.dtype;
    if (op.in_tensor) {
        r.first = static_cast<const uint8_t *>(mxa_row(&op.x, s.batch, h, of_k ? s.k_first : s.q_first));
        r.row_bytes = op.x.stride[2] * mxa_dtype_bytes(op.x.dtype);
    } else {
        r.first = op.codes + row * op.row_bytes;
        r.row_bytes = op.row_bytes;
    }
    const bool by_row = op.g_level == MXA_LEVEL_TOKEN, by_block = op.g_level == MXA_LEVEL_TOKEN_BLOCK;
    const int64_t unit = by_row ? row : by_block ? block : op.g_level == MXA_LEVEL_HEAD ? n * heads + h : 0;
    r.g = op.g ? op.g + unit : nullptr;
    r.g_rows = by_row ? 1 : by_block ? MXA_TILE : INT64_MAX;
    return r;
}

__device__ inline float load_plain(const void *row, int64_t d, mxa_dtype dtype)
{
    if (dtype == MXA_DTYPE_F32)
        return static_cast<const float *>(row)[d];
    const uint16_t bits = static_cast<const uint16_t *>(row)[d];
    return dtype == MXA_DTYPE_F16 ? mxa_f32_from_f16(bits) : mxa_f32_from_bf16(bits);
}

/* Element d of a row, without its factor. */
__device__ inline float load_element(const Rows &r, int64_t row, int64_t d)
{
    const uint8_t *const data = r.first + row * r.row_bytes;
    switch (r.element) {
    case Element::f32: return load_plain(data, d, MXA_DTYPE_F32);
    case Element::f16: return load_plain(data, d, MXA_DTYPE_F16);
    case Element::bf16: return load_plain(data, d, MXA_DTYPE_BF16);
    case Element::int8:
        return data[d] == MXA_INT8_NAN ? NAN : static_cast<float>(static_cast<int8_t>(data[d]));
    case Element::e4m3: return mxa_element_decode(mxa_element_e4m3(), data[d]);
    case Element::e5m2: return mxa_element_decode(mxa_element_e5m2(), data[d]);
    case Element::to_f16: return mxa_f32_from_f16(mxa_f16_from_f32(load_plain(data, d, r.dtype)));
    default: return mxa_f32_from_bf16(mxa_bf16_from_f32(load_plain(data, d, r.dtype)));
    }
}

} // namespace mxa

#endif

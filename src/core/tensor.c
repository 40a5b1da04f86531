/* SPDX-License-Identifier: Apache-2.0 */
#include "core/tensor.h"

#include "core/bits.h"
#include "core/status.h"

mxa_tensor mxa_tensor_contiguous(void *data, mxa_dtype dtype, int64_t batch, int64_t heads, int64_t seq,
                                 int64_t dim)
{
    /* Unsigned: a shape whose strides overflow is refused later, by the function that takes the view. */
    const uint64_t row = (uint64_t)dim, head = (uint64_t)seq * row, item = (uint64_t)heads * head;
    return (mxa_tensor){ data, dtype, { batch, heads, seq, dim }, { (int64_t)item, (int64_t)head, dim, 1 } };
}

mxa_status mxa_check_shape(const char *name, const int64_t shape[4])
{
    int64_t bytes = mxa_dtype_bytes(MXA_DTYPE_F32);
    for (int axis = 0; axis < 4; axis++) {
        if (shape[axis] < 0)
            return mxa_fail(MXA_ERR_SHAPE, "%s: size %lld of axis %d is negative", name,
                            (long long)shape[axis], axis);
        /* An empty axis counts as 1, so that offsets along the others fit too. */
        if (!mxa_mul(bytes, shape[axis] ? shape[axis] : 1, &bytes))
            return mxa_fail(MXA_ERR_SHAPE, "%s: [%lld][%lld][%lld][%lld] does not fit 63 bits of bytes", name,
                            (long long)shape[0], (long long)shape[1], (long long)shape[2],
                            (long long)shape[3]);
    }
    return MXA_OK;
}

static bool is_empty(const mxa_tensor *x)
{
    return x->shape[0] == 0 || x->shape[1] == 0 || x->shape[2] == 0 || x->shape[3] == 0;
}

/* Every element's offset from data, in bytes, fits 63 bits. */
static mxa_status check_strides(const char *name, const mxa_tensor *x)
{
    if (x->shape[3] > 1 && x->stride[3] != 1)
        return mxa_fail(MXA_ERR_ALIGN, "%s: stride[3] is %lld, dim must have stride 1", name,
                        (long long)x->stride[3]);
    int64_t low = 0, high = x->shape[3];
    for (int axis = 0; axis < 3; axis++) {
        int64_t reach;
        bool fits = mxa_mul(x->shape[axis] - 1, x->stride[axis], &reach);
        fits = fits && (reach < 0 ? mxa_add(low, reach, &low) : mxa_add(high, reach, &high));
        if (!fits || low < INT64_MIN / 4 || high > INT64_MAX / 4)
            return mxa_fail(MXA_ERR_SHAPE,
                            "%s: stride[%d] %lld times size %lld does not fit 63 bits of bytes", name, axis,
                            (long long)x->stride[axis], (long long)x->shape[axis]);
    }
    return MXA_OK;
}

mxa_status mxa_check_tensor(const char *name, const mxa_tensor *x)
{
    if (!x)
        return mxa_fail(MXA_ERR_ARG, "%s: is NULL", name);
    if (x->dtype != MXA_DTYPE_F32 && x->dtype != MXA_DTYPE_F16 && x->dtype != MXA_DTYPE_BF16)
        return mxa_fail(MXA_ERR_ARG, "%s: dtype %d is not F32, F16 or BF16", name, (int)x->dtype);
    const mxa_status status = mxa_check_shape(name, x->shape);
    if (status != MXA_OK || is_empty(x))
        return status;
    if (!x->data)
        return mxa_fail(MXA_ERR_ARG, "%s: data is NULL", name);
    if ((uintptr_t)x->data % (uintptr_t)mxa_dtype_bytes(x->dtype) != 0)
        return mxa_fail(MXA_ERR_ALIGN, "%s: data %p is not aligned to its %d-byte elements", name, x->data,
                        (int)mxa_dtype_bytes(x->dtype));
    return check_strides(name, x);
}

static int64_t stride_size(const mxa_tensor *x, int axis)
{
    if (x->shape[axis] == 1)
        return 0;
    return x->stride[axis] < 0 ? -x->stride[axis] : x->stride[axis];
}

/* Sorted by stride, each axis must step over all that lies within the finer ones. */
static bool overlaps_itself(const mxa_tensor *x)
{
    int order[3] = { 2, 1, 0 };
    for (int i = 1; i < 3; i++)
        for (int j = i; j > 0 && stride_size(x, order[j]) < stride_size(x, order[j - 1]); j--) {
            const int swap = order[j];
            order[j] = order[j - 1];
            order[j - 1] = swap;
        }
    int64_t extent = x->shape[3];
    for (int i = 0; i < 3; i++) {
        const int axis = order[i];
        if (x->shape[axis] == 1)
            continue;
        if (stride_size(x, axis) < extent)
            return true;
        extent += (x->shape[axis] - 1) * stride_size(x, axis);
    }
    return false;
}

mxa_status mxa_check_output(const char *name, const mxa_tensor *x)
{
    const mxa_status status = mxa_check_tensor(name, x);
    if (status != MXA_OK || is_empty(x))
        return status;
    if (overlaps_itself(x))
        return mxa_fail(MXA_ERR_ARG, "%s: strides %lld, %lld, %lld make the output overlap itself", name,
                        (long long)x->stride[0], (long long)x->stride[1], (long long)x->stride[2]);
    return MXA_OK;
}

void mxa_row_widen(const void *data, mxa_dtype dtype, int64_t n, float *row)
{
    const uint16_t *half = data;
    if (dtype == MXA_DTYPE_F32)
        memmove(row, data, (size_t)n * sizeof *row);
    else if (dtype == MXA_DTYPE_BF16)
        for (int64_t d = 0; d < n; d++)
            row[d] = mxa_f32_from_bf16(half[d]);
    else
        for (int64_t d = 0; d < n; d++)
            row[d] = mxa_f32_from_f16(half[d]);
}

void mxa_row_load(const mxa_tensor *x, int64_t b, int64_t h, int64_t i, float *row)
{
    mxa_row_widen(mxa_row(x, b, h, i), x->dtype, x->shape[3], row);
}

void mxa_row_store(const mxa_tensor *x, int64_t b, int64_t h, int64_t i, const float *row)
{
    void *data = mxa_row(x, b, h, i);
    const int64_t dim = x->shape[3];
    if (x->dtype == MXA_DTYPE_F32) {
        float *out = data;
        for (int64_t d = 0; d < dim; d++) /* one NaN for all machines */
            out[d] = mxa_f32_from_bits(mxa_f32_canonical(row[d]));
    } else if (x->dtype == MXA_DTYPE_BF16) {
        uint16_t *half = data;
        for (int64_t d = 0; d < dim; d++)
            half[d] = mxa_bf16_from_f32(row[d]);
    } else {
        uint16_t *half = data;
        for (int64_t d = 0; d < dim; d++)
            half[d] = mxa_f16_from_f32(row[d]);
    }
}

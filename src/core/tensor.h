/* SPDX-License-Identifier: Apache-2.0 */
/* Views of the caller's memory: checked sizes, checks that name the argument, rows as fp32. */
#ifndef MXA_CORE_TENSOR_H
#define MXA_CORE_TENSOR_H

#include <mxattn/mxattn.h>

#include "core/bits.h"

MXA_HD static inline int64_t mxa_dtype_bytes(mxa_dtype dtype)
{
    return dtype == MXA_DTYPE_F32 ? 4 : 2;
}

/* False if the product or sum does not fit; *out is then undefined. */
static inline bool mxa_mul(int64_t a, int64_t b, int64_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

static inline bool mxa_add(int64_t a, int64_t b, int64_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

/*
 * MXA_ERR_SHAPE unless the sizes are not negative and the tensor, in bytes of the largest type, fits 63 bits.
 */
mxa_status mxa_check_shape(const char *name, const int64_t shape[4]);

/* All that the comment of mxa_tensor promises; that it does not overlap itself, of an output only. */
mxa_status mxa_check_tensor(const char *name, const mxa_tensor *x);
mxa_status mxa_check_output(const char *name, const mxa_tensor *x);

/* The first element of row (b, h, i). */
MXA_HD static inline void *mxa_row(const mxa_tensor *x, int64_t b, int64_t h, int64_t i)
{
    const int64_t offset = b * x->stride[0] + h * x->stride[1] + i * x->stride[2];
    return (char *)x->data + offset * mxa_dtype_bytes(x->dtype);
}

/* n elements widened to fp32, exactly. In place if the type is F32. */
void mxa_row_widen(const void *data, mxa_dtype dtype, int64_t n, float *row);

/*
 * A row of dim elements widened to fp32, exactly; and fp32 rounded into a row (docs/numerics.md, section 5).
 */
void mxa_row_load(const mxa_tensor *x, int64_t b, int64_t h, int64_t i, float *row);
void mxa_row_store(const mxa_tensor *x, int64_t b, int64_t h, int64_t i, const float *row);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The contracts that CPU kernels keep, and the ordered list of each operation. Fastest first, the reference
 * last; dispatch takes the first entry whose format and needs fit. The harness runs and times every entry.
 */
#ifndef MXA_CPU_KERNELS_H
#define MXA_CPU_KERNELS_H

#include "core/tensor.h"
#include "format/copy.h"

/* Rows of a tensor as they come: row r starts stride elements after row r - 1. */
typedef struct mxa_source {
    const void *data;
    mxa_dtype dtype;
    int64_t rows, cols, stride;
} mxa_source;

static inline const void *mxa_source_row(const mxa_source *x, int64_t r)
{
    return (const char *)x->data + r * x->stride * mxa_dtype_bytes(x->dtype);
}

/* Elements that share a maximum: a block of the MX formats, and how many such blocks a row has. */
#define MXA_AMAX_BLOCK 32

static inline int64_t mxa_amax_count(int64_t cols)
{
    return (cols + MXA_AMAX_BLOCK - 1) / MXA_AMAX_BLOCK;
}

/*
 * Rows as quantisers want them: widened to fp32, less the mean, rotated (docs/numerics.md, section 9).
 *
 *   mean  [cols], or NULL: none
 *   out   [rows][cols]; may be x->data where that is F32 without gaps
 *   amax  [rows][mxa_amax_count(cols)] bits of the largest magnitude of each 32 elements, MXA_F32_INF or more
 *         where NaN or Inf is among them; NULL: not wanted
 *
 * Every implementation gives the reference's bits, but for those of NaN.
 */
typedef void mxa_prepare_rows_fn(const mxa_source *x, const float *mean, bool rotate, float *out,
                                 uint32_t *amax);

/* <a, b> in float64 by four sums, since one is a chain of dependent additions. */
static inline double mxa_dot(const float *a, const float *b, int64_t n)
{
    double sum[4] = { 0 };
    int64_t d = 0;
    for (; d + 4 <= n; d += 4)
        for (int i = 0; i < 4; i++)
            sum[i] += (double)a[d + i] * (double)b[d + i];
    for (; d < n; d++)
        sum[0] += (double)a[d] * (double)b[d];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/* out[r] = <x_r, y> in float64, rows as they come; sums run in any order. */
typedef void mxa_dot_rows_fn(const mxa_source *x, const float *y, double *out);

typedef struct mxa_prepare_impl {
    const char *name;
    uint32_t needs; /* MXA_CPU_... */
    mxa_prepare_rows_fn *fn;
    mxa_dot_rows_fn *dot;
} mxa_prepare_impl;

/* What an mxa_prepare_rows_fn has written. */
typedef struct mxa_prepared {
    const float *x;       /* [rows][cols] */
    const uint32_t *amax; /* [rows][mxa_amax_count(cols)] */
    int64_t rows, cols;
} mxa_prepared;

static inline mxa_prepared mxa_prepared_row(const mxa_prepared *x, int64_t r)
{
    return (mxa_prepared){ x->x + r * x->cols, x->amax + r * mxa_amax_count(x->cols), 1, x->cols };
}

/*
 * Quantise prepared rows.
 *
 *   x       plain formats don't read its amax
 *   g       second-level factors: row r has g[r * g_step]; 1 where there are none
 *   codes   [rows][row_bytes] packed; a short last block is filled with codes 0
 *   scales  [rows][ceil(cols / block)], or unused
 *
 * Returns the number of blocks (formats without block scale: elements) with NaN or Inf. Plain formats: 0.
 * Every implementation gives the reference's bytes.
 */
typedef int64_t mxa_quantize_rows_fn(const mxa_code_spec *spec, const mxa_prepared *x, const float *g,
                                     int64_t g_step, uint8_t *codes, uint8_t *scales);

typedef struct mxa_quantize_impl {
    const char *name;
    mxa_format format; /* MXA_FORMAT_NONE: any */
    uint32_t needs;
    mxa_quantize_rows_fn *fn;
} mxa_quantize_impl;

/*
 * Decode rows of a format to fp32 containers: element * block scale, without g. Exact, or saturated to
 * +-FLT_MAX; NaN codes and scales give quiet NaN.
 *
 *   codes   [rows][row_bytes], scales [rows][ceil(cols / block)]
 *   out     row r starts at out + r * out_stride
 */
typedef void mxa_decode_rows_fn(const mxa_format_info *info, const uint8_t *codes, const uint8_t *scales,
                                int64_t rows, int64_t cols, float *out, int64_t out_stride);

typedef struct mxa_decode_impl {
    const char *name;
    mxa_format format; /* MXA_FORMAT_NONE: any */
    uint32_t needs;
    mxa_decode_rows_fn *fn;
} mxa_decode_impl;

/* Terminated by an entry without name. */
extern const mxa_prepare_impl mxa_prepare_impls[];
extern const mxa_quantize_impl mxa_quantize_impls[];
extern const mxa_decode_impl mxa_decode_impls[];

/* The first entry that fits the format and the (masked) features of this machine. */
const mxa_prepare_impl *mxa_prepare_pick(void);
const mxa_quantize_impl *mxa_quantize_pick(mxa_format format);
const mxa_decode_impl *mxa_decode_pick(mxa_format format);

#endif

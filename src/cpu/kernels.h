/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The contracts that CPU kernels keep, and the ordered list of each operation. Fastest first, the reference
 * last; dispatch takes the first entry whose format and needs fit. The harness runs and times every entry.
 */
#ifndef MXA_CPU_KERNELS_H
#define MXA_CPU_KERNELS_H

#include "format/copy.h"

/*
 * Quantise one row.
 *
 *   x       [cols] fp32: widened, sanitised, smoothed and rotated already
 *   g       the row's second-level factor; 1 where there is none
 *   codes   [row_bytes] packed; a short last block is filled with codes 0
 *   scales  [ceil(cols / block)], or unused
 *
 * Returns the number of blocks (formats without block scale: elements) with NaN or Inf. Plain formats: 0.
 * Every implementation gives the reference's bytes.
 */
typedef int64_t mxa_quantize_row_fn(const mxa_code_spec *spec, const float *x, int64_t cols, float g,
                                    uint8_t *codes, uint8_t *scales);

typedef struct mxa_quantize_impl {
    const char *name;
    mxa_format format; /* MXA_FORMAT_NONE: any */
    uint32_t needs;    /* MXA_CPU_... */
    mxa_quantize_row_fn *fn;
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

/* Rotate one row in place: docs/numerics.md, section 9. Every implementation gives the reference's bits. */
typedef void mxa_hadamard_fn(float *x, int64_t cols);

typedef struct mxa_hadamard_impl {
    const char *name;
    uint32_t needs;
    mxa_hadamard_fn *fn;
} mxa_hadamard_impl;

/* Terminated by an entry without name. */
extern const mxa_quantize_impl mxa_quantize_impls[];
extern const mxa_decode_impl mxa_decode_impls[];
extern const mxa_hadamard_impl mxa_hadamard_impls[];

/* The first entry that fits the format and the (masked) features of this machine. */
const mxa_quantize_impl *mxa_quantize_pick(mxa_format format);
const mxa_decode_impl *mxa_decode_pick(mxa_format format);
const mxa_hadamard_impl *mxa_hadamard_pick(void);

#endif

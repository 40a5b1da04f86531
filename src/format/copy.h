/* SPDX-License-Identifier: Apache-2.0 */
/* What a quantiser of any backend is asked for: one quantised copy of a tensor, everything resolved. */
#ifndef MXA_FORMAT_COPY_H
#define MXA_FORMAT_COPY_H

#include <mxattn/mxattn.h>

/* What turns fp32 into one format's codes; everything is resolved (no DEFAULT). */
typedef struct mxa_code_spec {
    const mxa_format_info *info;
    mxa_rule rule;  /* of MX formats */
    unsigned nvfp4; /* MXA_NVFP4_... */
} mxa_code_spec;

/* One copy to be made of a tensor. */
typedef struct mxa_copy {
    mxa_code_spec spec;
    mxa_level level; /* resolved; NONE for plain and most MX formats */
    mxa_axis axis;
    mxa_layout layout;
    bool rotate;
    const float *mean;    /* [batch][heads][dim], or NULL */
    const float *g_given; /* factors of the level, or NULL: computed into out.g */
    mxa_packed out;       /* out.g receives given factors too */
} mxa_copy;

static inline int64_t mxa_token_blocks(int64_t rows)
{
    return (rows + MXA_TILE - 1) / MXA_TILE;
}

/* How many factors a tensor has at a level; 0 at NONE. */
static inline int64_t mxa_level_count(mxa_level level, const int64_t shape[4])
{
    const int64_t matrices = shape[0] * shape[1];
    switch (level) {
    case MXA_LEVEL_TENSOR: return 1;
    case MXA_LEVEL_HEAD: return matrices;
    case MXA_LEVEL_TOKEN_BLOCK: return matrices * mxa_token_blocks(shape[2]);
    case MXA_LEVEL_TOKEN: return matrices * shape[2];
    default: return 0;
    }
}

/* Index of the factor of (batch, head, row) at a level; 0 at level NONE. */
static inline int64_t mxa_level_index(mxa_level level, const int64_t shape[4], int64_t b, int64_t h,
                                      int64_t row)
{
    const int64_t matrix = b * shape[1] + h;
    switch (level) {
    case MXA_LEVEL_HEAD: return matrix;
    case MXA_LEVEL_TOKEN_BLOCK: return matrix * mxa_token_blocks(shape[2]) + row / MXA_TILE;
    case MXA_LEVEL_TOKEN: return matrix * shape[2] + row;
    default: return 0;
    }
}

#endif

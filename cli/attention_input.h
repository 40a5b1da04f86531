/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors q, k, v, sinks and cu_seqlens_* of a file as a problem of the library. */
#ifndef MXA_ATTENTION_INPUT_H
#define MXA_ATTENTION_INPUT_H

#include "options.h"
#include "safetensors.h"

typedef struct attention_input {
    st_file file;
    size_t rank; /* of q, k, v and the output: 3 or 4 */
    mxa_tensor q, k, v;
    float *sinks;                /* [heads], or NULL */
    int32_t *cu_seqlens[2];      /* of q and of k, or NULL */
    mxa_problem problem;         /* the output has q's type */
    int64_t matrices, seq_count; /* [batch][heads] of the tensors; sequences of the tile map */
} attention_input;

#define INPUT_NONE ((attention_input){ .file = { .fd = -1 } }) /* what input_close may also take */

/* Read and check a file. False after a message; input_close may follow either way. */
bool input_open(attention_input *input, const char *path, const attention_options *options);
void input_close(attention_input *input);

/* The dtype of a tensor that the library takes; false for others. */
bool input_dtype(const st_tensor *tensor, mxa_dtype *dtype);
int input_dtype_bytes(mxa_dtype dtype);
const char *input_dtype_name(mxa_dtype dtype); /* as safetensors spells it */

#endif

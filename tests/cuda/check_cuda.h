/* SPDX-License-Identifier: Apache-2.0 */
/* What the checks on a device share: its memory, and random tensors that both sides have. */
#ifndef CHECK_CUDA_H
#define CHECK_CUDA_H

#ifdef __cplusplus
extern "C" {
#endif

#include "check.h"
#include "cuda/quantize_cuda.h"

/* A tensor in host memory and its twin. */
typedef struct source {
    mxa_tensor host, device;
    float *mean; /* [batch][heads][dim], or NULL */
    const float *device_mean;
} source;

/* Memory on the device for all that a round uploads; a round begins with it empty. */
void arena_create(void);
void arena_clear(void);

/* End the program unless CUDA is content. */
void must(cudaError_t error, const char *what);

/* A copy of a host buffer with its guards; shift moves it off its alignment. And back. */
uint8_t *upload(check_buf b, size_t shift);
void download(const void *from, check_buf b);
const float *upload_floats(const float *x, int64_t n);

/* Mostly dims that the kernels of pieces take. */
int64_t pick_dim(void);

/* Of random type, lengths and strides, sometimes with Inf and NaN. */
source pick_source(int64_t dim);
void add_mean(source *s);

/* A tensor as the quantiser wants it. */
mxa_cuda_rows rows_of(const mxa_tensor *x);

/* Scratch of a call. */
void *work_for(const mxa_cuda_rows *rows, mxa_nonfinite policy, int n, const mxa_cuda_copy *copies);

void check_quantize_cuda(void);
void check_forms_cuda(void);
void check_divisor_cuda(void);

#ifdef __cplusplus
}
#endif

#endif

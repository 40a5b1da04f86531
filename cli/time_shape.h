/* SPDX-License-Identifier: Apache-2.0 */
/* Time a shape on random normal data. */
#ifndef MXA_TIME_SHAPE_H
#define MXA_TIME_SHAPE_H

#include "shapes.h"
#include "timing.h"

typedef struct shape_time {
    const char *variant; /* a recipe, or a way to quantise */
    double work;         /* operations of an attention, input bytes of a quantiser */
    timing time;
} shape_time;

enum { ATTENTION_VARIANTS = 5, QUANTIZE_VARIANTS = 3, MAX_VARIANTS = MAX_CONTENDERS };

/* Random normal numbers of a type; the same seed gives the same ones. NULL after a message. */
void *random_tensor(mxa_dtype type, int64_t elements, uint64_t seed);

/*
 * Fill in a time for each variant; they alternate. threads 0: as OpenMP decides. False after a message.
 */
bool time_attention(const shape *s, int threads, mxa_device device, shape_time times[ATTENTION_VARIANTS]);
bool time_quantizer(const shape *s, int threads, shape_time times[QUANTIZE_VARIANTS]);
bool time_quantizer_cuda(const shape *s, mxa_device device, shape_time times[QUANTIZE_VARIANTS]);

#endif

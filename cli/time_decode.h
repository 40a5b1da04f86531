/* SPDX-License-Identifier: Apache-2.0 */
/* Time the decode steps of a model's layers, each with a KV cache of its own. */
#ifndef MXA_TIME_DECODE_H
#define MXA_TIME_DECODE_H

#include "shapes.h"
#include "timing.h"

typedef struct decode_time {
    const char *recipe;
    timing step;            /* a token appended and attended in every layer */
    double append_share;    /* of the steps' time, new pages included */
    double bytes_per_token; /* of a layer, all KV heads */
    double step_bytes;      /* that a step reads: what all layers hold */
} decode_time;

enum { DECODE_RECIPES = 4, DECODE_LAYERS_MAX = 1024 };

/*
 * A shape of one query, at most DECODE_LAYERS_MAX layers. read receives the bytes a second of a sum over
 * memory by as many threads, timed in turns with the steps. threads 0: as OpenMP decides. False after a
 * message.
 */
bool time_decode(const shape *s, int64_t layers, int threads, decode_time times[DECODE_RECIPES],
                 double *read);

#endif

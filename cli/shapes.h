/* SPDX-License-Identifier: Apache-2.0 */
/* The shapes that bench times, read from a text file (bench/shapes.txt explains it). */
#ifndef MXA_SHAPES_H
#define MXA_SHAPES_H

#include <mxattn/mxattn.h>

enum { SHAPE_NAME_BYTES = 48 };

typedef enum shape_operation { SHAPE_ATTENTION, SHAPE_QUANTIZE } shape_operation;

typedef struct shape {
    shape_operation operation;
    char name[SHAPE_NAME_BYTES];
    int64_t batch, heads, heads_kv, q_len, kv_len, dim, dim_v; /* q_len is a quantiser's seq */
    mxa_dtype type;
    bool causal;
    mxa_format low, high;
} shape;

typedef struct shape_list {
    shape *shapes;
    size_t count;
} shape_list;

/* Read a file; path NULL: the one that was built or installed with the command. False after a message. */
bool shapes_read(shape_list *list, const char *path);
void shapes_free(shape_list *list);

/* NULL if there is none. */
const shape *shapes_find(const shape_list *list, const char *name);

#endif

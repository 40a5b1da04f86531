/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A quantised tensor as the command stores it: NAME.codes, NAME.scales, NAME.g and metadata NAME.format and
 * so on.
 */
#ifndef MXA_PACKED_TENSOR_H
#define MXA_PACKED_TENSOR_H

#include "safetensors.h"

#include <mxattn/mxattn.h>

/* The longest NAME, and a NAME.part with its end. */
enum { PACKED_NAME_LENGTH = 240, PACKED_KEY_BYTES = PACKED_NAME_LENGTH + 16 };

typedef struct packed_tensor {
    const char *name;
    const mxa_format_info *format;
    mxa_quant_opts opts; /* rule and level resolved */
    size_t rank;         /* of the original, 2 to 4: [seq, dim] with heads and batch before it */
    int64_t
        shape[4]; /* of the original, [batch][heads][seq][dim] with 1 where the original has no such axis */
    mxa_dtype dtype; /* of the original */
    mxa_packed_size size;
    mxa_packed data;
} packed_tensor;

/* Allocate the data; size is set. False after a message; packed_free may follow either way. */
bool packed_alloc(packed_tensor *packed);
void packed_free(packed_tensor *packed);

bool packed_write(const packed_tensor *packed, const char *path);

/* Read what the metadata of a file says of a name, and its data. False after a message. */
bool packed_read(packed_tensor *packed, const st_file *file, const char *name);

#endif

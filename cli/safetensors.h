/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The safetensors file format: 8 bytes of header length, a JSON header, then the tensors' bytes, without
 * gaps and little endian. Every failure prints one sentence that names the file, the tensor, the value and
 * the rule.
 */
#ifndef MXA_SAFETENSORS_H
#define MXA_SAFETENSORS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ST_LENGTH_BYTES 8
#define ST_METADATA_KEY "__metadata__"
#define ST_MAX_RANK     4 /* dimensions that are kept; tensors with more can be in a file, but not be used */

typedef struct st_dtype {
    const char *name;
    int bits;
} st_dtype;

typedef struct st_tensor {
    const char *name; /* belongs to the file's header */
    const st_dtype *dtype;
    size_t rank;
    int64_t shape[ST_MAX_RANK];
    uint64_t begin, end; /* bytes, from the end of the header */
} st_tensor;

typedef struct st_file {
    const char *path;
    int fd;
    uint64_t data_start;
    json_t *header;
    size_t count;
    st_tensor *tensors;
} st_file;

/* Open and check a file. False after a message; st_close may follow either way. */
bool st_open(st_file *file, const char *path);
void st_close(st_file *file);

/*
 * Check a header and list its tensors; file has path, the rest is set here. data_bytes follow it in the
 * file.
 */
bool st_parse(st_file *file, const char *text, size_t text_bytes, uint64_t data_bytes);

/* NULL if there is none. */
const st_tensor *st_find(const st_file *file, const char *name);
const char *st_metadata(const st_file *file, const char *key);

/* As st_find; NULL after a message that lists the tensors that are there. */
const st_tensor *st_require(const st_file *file, const char *name);

/* The tensor's bytes in aligned memory, to be freed; NULL after a message. */
void *st_load(const st_file *file, const st_tensor *tensor);

/* A tensor to write. */
typedef struct st_item {
    const char *name, *dtype; /* dtype as in the file: "F32" */
    size_t rank;
    int64_t shape[ST_MAX_RANK];
    const void *data;
    uint64_t bytes;
} st_item;

/*
 * Write a file: under another name first, then renamed. metadata is an object of strings or NULL. Items are
 * stored with the largest elements first, so that each is aligned; the same items give the same bytes. False
 * after a message.
 */
bool st_write(const char *path, const st_item *items, size_t count, json_t *metadata);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#include "safetensors.h"

#include "cli.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const st_dtype dtypes[] = {
    { "BOOL", 8 },    { "U8", 8 },    { "I8", 8 },      { "F8_E4M3", 8 }, { "F8_E5M2", 8 },
    { "F8_E8M0", 8 }, { "F4", 4 },    { "F6_E2M3", 6 }, { "U16", 16 },    { "I16", 16 },
    { "F16", 16 },    { "BF16", 16 }, { "U32", 32 },    { "I32", 32 },    { "F6_E3M2", 6 },
    { "F32", 32 },    { "U64", 64 },  { "I64", 64 },    { "F64", 64 },    { "C64", 64 },
};

static const st_dtype *find_dtype(const char *name)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++)
        if (strcmp(dtypes[i].name, name) == 0)
            return &dtypes[i];
    return NULL;
}

static bool fail_tensor(const st_file *file, const char *name, const char *rule)
{
    cli_fail("%s: tensor \"%.80s\": %s", file->path, name, rule);
    return false;
}

/* Element i of an array as a non-negative integer. */
static bool read_size(const json_t *array, size_t i, int64_t *value)
{
    const json_t *item = json_array_get(array, i);
    if (!json_is_integer(item) || json_integer_value(item) < 0)
        return false;
    *value = json_integer_value(item);
    return true;
}

/* Multiply the sizes of a shape of any rank; keep the first ST_MAX_RANK. */
static bool read_shape(const st_file *file, const json_t *shape, st_tensor *tensor, uint64_t *bytes)
{
    if (!json_is_array(shape))
        return fail_tensor(file, tensor->name, "shape is not a list of sizes");
    tensor->rank = json_array_size(shape);
    uint64_t bits = (uint64_t)tensor->dtype->bits;
    bool overflow = false;
    for (size_t i = 0; i < tensor->rank; i++) {
        int64_t size;
        if (!read_size(shape, i, &size))
            return fail_tensor(file, tensor->name,
                               "shape holds something that is not a size from 0 to 2^63 - 1");
        if (i < ST_MAX_RANK)
            tensor->shape[i] = size;
        overflow |= __builtin_mul_overflow(bits, (uint64_t)size, &bits);
    }
    if (overflow)
        return fail_tensor(file, tensor->name, "the product of its shape is over 2^64 bits");
    if (bits % 8 != 0)
        return fail_tensor(file, tensor->name, "its shape does not fill whole bytes");
    *bytes = bits / 8;
    return true;
}

static bool read_offsets(const st_file *file, const json_t *offsets, uint64_t bytes, uint64_t data_bytes,
                         st_tensor *tensor)
{
    int64_t begin, end;
    if (!json_is_array(offsets) || json_array_size(offsets) != 2 || !read_size(offsets, 0, &begin) ||
        !read_size(offsets, 1, &end))
        return fail_tensor(file, tensor->name, "data_offsets is not a list of two sizes");
    tensor->begin = (uint64_t)begin;
    tensor->end = (uint64_t)end;
    if (begin > end || tensor->end > data_bytes) {
        cli_fail("%s: tensor \"%.80s\": data_offsets [%" PRId64 ", %" PRId64
                 "] do not ascend inside the file's %" PRIu64 " bytes of data",
                 file->path, tensor->name, begin, end, data_bytes);
        return false;
    }
    if (tensor->end - tensor->begin != bytes) {
        cli_fail("%s: tensor \"%.80s\": data_offsets span %" PRIu64
                 " bytes, its shape and dtype %s need %" PRIu64,
                 file->path, tensor->name, tensor->end - tensor->begin, tensor->dtype->name, bytes);
        return false;
    }
    return true;
}

static bool read_tensor(const st_file *file, const char *name, const json_t *info, uint64_t data_bytes,
                        st_tensor *tensor)
{
    *tensor = (st_tensor){ .name = name };
    if (!json_is_object(info))
        return fail_tensor(file, name, "its entry in the header is not an object");
    const char *dtype = json_string_value(json_object_get(info, "dtype"));
    if (dtype == NULL)
        return fail_tensor(file, name, "dtype is not a string");
    tensor->dtype = find_dtype(dtype);
    if (tensor->dtype == NULL) {
        cli_fail("%s: tensor \"%.80s\": unknown dtype \"%.40s\"", file->path, name, dtype);
        return false;
    }
    uint64_t bytes;
    return read_shape(file, json_object_get(info, "shape"), tensor, &bytes) &&
           read_offsets(file, json_object_get(info, "data_offsets"), bytes, data_bytes, tensor);
}

static bool check_metadata(const st_file *file, json_t *metadata)
{
    const char *key;
    json_t *value;
    if (!json_is_object(metadata)) {
        cli_fail("%s: " ST_METADATA_KEY " is not an object", file->path);
        return false;
    }
    json_object_foreach(metadata, key, value)
    {
        if (json_is_string(value))
            continue;
        cli_fail("%s: " ST_METADATA_KEY ": the value of \"%.80s\" is not a string", file->path, key);
        return false;
    }
    return true;
}

static int compare_offsets(const void *left, const void *right)
{
    const st_tensor *a = left, *b = right;
    if (a->begin != b->begin)
        return a->begin < b->begin ? -1 : 1;
    if (a->end != b->end)
        return a->end < b->end ? -1 : 1;
    return strcmp(a->name, b->name);
}

/* Tensors must follow each other without overlap or gap up to the end of the data. Sorts them by offset. */
static bool check_cover(const st_file *file, uint64_t data_bytes)
{
    qsort(file->tensors, file->count, sizeof file->tensors[0], compare_offsets);
    uint64_t expected = 0;
    for (size_t i = 0; i < file->count; i++) {
        const st_tensor *tensor = &file->tensors[i];
        if (tensor->begin != expected) {
            cli_fail("%s: tensor \"%.80s\": begins at byte %" PRIu64 " of the data where %s byte %" PRIu64,
                     file->path, tensor->name, tensor->begin,
                     tensor->begin < expected ? "it overlaps the tensor that ends at"
                                              : "it leaves a gap after the tensor that ends at",
                     expected);
            return false;
        }
        expected = tensor->end;
    }
    if (expected == data_bytes)
        return true;
    cli_fail("%s: %" PRIu64 " bytes follow the last tensor, which must end the file", file->path,
             data_bytes - expected);
    return false;
}

bool st_parse(st_file *file, const char *text, size_t text_bytes, uint64_t data_bytes)
{
    json_error_t error;
    file->header = json_loadb(text, text_bytes, JSON_REJECT_DUPLICATES, &error);
    if (file->header == NULL) {
        cli_fail("%s: the header is not valid JSON: %s", file->path, error.text);
        return false;
    }
    if (text[0] != '{') {
        cli_fail("%s: the header is not a JSON object that starts with its first byte", file->path);
        return false;
    }
    file->tensors = cli_alloc(json_object_size(file->header) * sizeof(st_tensor), "the list of tensors");
    if (file->tensors == NULL)
        return false;

    const char *name;
    json_t *info;
    json_object_foreach(file->header, name, info)
    {
        if (strcmp(name, ST_METADATA_KEY) == 0) {
            if (!check_metadata(file, info))
                return false;
        } else if (!read_tensor(file, name, info, data_bytes, &file->tensors[file->count++])) {
            return false;
        }
    }
    return check_cover(file, data_bytes);
}

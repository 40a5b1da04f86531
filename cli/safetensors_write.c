/* SPDX-License-Identifier: Apache-2.0 */
#include "safetensors.h"

#include "cli.h"
#include "output_file.h"

#include <stdlib.h>
#include <string.h>

/* Bytes of an element of the dtypes that the command writes. */
static int element_bytes(const st_item *item)
{
    if (strcmp(item->dtype, "F32") == 0 || strcmp(item->dtype, "I32") == 0)
        return 4;
    return strcmp(item->dtype, "F16") == 0 || strcmp(item->dtype, "BF16") == 0 ? 2 : 1;
}

static json_t *item_entry(const st_item *item, uint64_t begin)
{
    json_t *shape = json_array();
    for (size_t i = 0; i < item->rank; i++)
        if (json_array_append_new(shape, json_integer(item->shape[i])) != 0) {
            json_decref(shape);
            return NULL;
        }
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", item->dtype, "shape", shape, "data_offsets",
                     (json_int_t)begin, (json_int_t)(begin + item->bytes));
}

/* The header as text, padded so that the data begins at a multiple of 8; NULL if memory runs out. */
static char *header_text(const st_item **order, size_t count, json_t *metadata)
{
    json_t *header = json_object();
    int failed = metadata != NULL && json_object_set(header, ST_METADATA_KEY, metadata) != 0;
    uint64_t offset = 0;
    for (size_t i = 0; i < count; offset += order[i++]->bytes)
        failed |= json_object_set_new(header, order[i]->name, item_entry(order[i], offset)) != 0;
    char *text = failed ? NULL : json_dumps(header, JSON_COMPACT);
    json_decref(header);
    if (text == NULL)
        return NULL;

    const size_t length = strlen(text),
                 padded = (length + ST_LENGTH_BYTES - 1) / ST_LENGTH_BYTES * ST_LENGTH_BYTES;
    char *whole = realloc(text, padded + 1);
    if (whole == NULL) {
        free(text);
        return NULL;
    }
    memset(whole + length, ' ', padded - length);
    whole[padded] = '\0';
    return whole;
}

static bool write_all(const char *path, const char *header, const st_item **order, size_t count)
{
    const uint64_t header_bytes = strlen(header);
    uint8_t length[ST_LENGTH_BYTES];
    for (int i = 0; i < ST_LENGTH_BYTES; i++)
        length[i] = (uint8_t)(header_bytes >> (8 * i));

    output_file out;
    if (!output_begin(&out, path) || !output_write(&out, length, sizeof length) ||
        !output_write(&out, header, header_bytes))
        return false;
    for (size_t i = 0; i < count; i++)
        if (!output_write(&out, order[i]->data, order[i]->bytes))
            return false;
    return output_commit(&out);
}

bool st_write(const char *path, const st_item *items, size_t count, json_t *metadata)
{
    const st_item **order = cli_alloc(count * sizeof *order, "the header");
    if (order == NULL)
        return false;
    size_t n = 0;
    for (int size = 4; size >= 1; size /= 2)
        for (size_t i = 0; i < count; i++)
            if (element_bytes(&items[i]) == size)
                order[n++] = &items[i];

    char *header = header_text(order, n, metadata);
    if (header == NULL)
        cli_fail("out of memory: the header of %s", path);
    const bool ok = header != NULL && write_all(path, header, order, n);
    free(header);
    free(order);
    return ok;
}

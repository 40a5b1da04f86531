/* SPDX-License-Identifier: Apache-2.0 */
#include "packed_tensor.h"

#include "attention_input.h"
#include "cli.h"
#include "options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHAPE_BYTES 96

bool packed_alloc(packed_tensor *packed)
{
    const mxa_packed_size *size = &packed->size;
    mxa_packed *data = &packed->data;
    data->codes = cli_alloc((uint64_t)size->code_bytes, "the codes");
    if (data->codes == NULL)
        return false;
    if (size->scale_bytes > 0 &&
        (data->scales = cli_alloc((uint64_t)size->scale_bytes, "the scales")) == NULL)
        return false;
    if (size->g_count > 0 &&
        (data->g = cli_alloc((uint64_t)size->g_count * sizeof(float), "the second-level factors")) == NULL)
        return false;
    return true;
}

void packed_free(packed_tensor *packed)
{
    free(packed->data.codes);
    free(packed->data.scales);
    free(packed->data.g);
    packed->data = (mxa_packed){ 0 };
}

static bool set_text(json_t *metadata, const char *name, const char *key, const char *value)
{
    char full[PACKED_KEY_BYTES];
    snprintf(full, sizeof full, "%s.%s", name, key);
    return json_object_set_new(metadata, full, json_string(value)) == 0;
}

static json_t *describe(const packed_tensor *packed)
{
    char shape[SHAPE_BYTES] = "[";
    for (size_t i = 4 - packed->rank; i < 4; i++)
        snprintf(shape + strlen(shape), sizeof shape - strlen(shape), "%lld%s", (long long)packed->shape[i],
                 i < 3 ? ", " : "]");
    const mxa_quant_opts *o = &packed->opts;
    json_t *metadata = json_object();
    bool ok = set_text(metadata, packed->name, "format", packed->format->name) &&
              set_text(metadata, packed->name, "level", option_word_text(option_levels, o->level)) &&
              set_text(metadata, packed->name, "layout", option_word_text(option_layouts, o->layout)) &&
              set_text(metadata, packed->name, "axis", option_word_text(option_axes, o->axis)) &&
              set_text(metadata, packed->name, "rotated", o->rotate ? "true" : "false") &&
              set_text(metadata, packed->name, "shape", shape) &&
              set_text(metadata, packed->name, "dtype", input_dtype_name(packed->dtype));
    if (packed->format->scale == MXA_SCALE_E8M0)
        ok = ok && set_text(metadata, packed->name, "rule", option_word_text(option_rules, o->rule));
    if (ok)
        return metadata;
    json_decref(metadata);
    cli_fail("out of memory: the metadata");
    return NULL;
}

/*
 * The original's leading axes, then what a matrix has: [batch, heads, rows, columns] without those it lacks.
 */
static void set_shape(const packed_tensor *packed, st_item *item, int64_t rows, int64_t columns)
{
    item->rank = 0;
    for (size_t i = 4 - packed->rank; i < 2; i++)
        item->shape[item->rank++] = packed->shape[i];
    if (rows >= 0)
        item->shape[item->rank++] = rows;
    if (columns >= 0)
        item->shape[item->rank++] = columns;
}

static void set_factor_shape(const packed_tensor *packed, st_item *item)
{
    const int64_t matrices = packed->size.matrices;
    switch (packed->opts.level) {
    case MXA_LEVEL_TOKEN:
    case MXA_LEVEL_TOKEN_BLOCK:
        set_shape(packed, item, matrices > 0 ? packed->size.g_count / matrices : 0, -1);
        break;
    case MXA_LEVEL_HEAD: set_shape(packed, item, -1, -1); break;
    default: item->rank = 0; break;
    }
    if (item->rank == 0) {
        item->rank = 1;
        item->shape[0] = packed->size.g_count;
    }
}

bool packed_write(const packed_tensor *packed, const char *path)
{
    const mxa_packed_size *size = &packed->size;
    char names[3][PACKED_KEY_BYTES];
    static const char *const parts[3] = { "codes", "scales", "g" };
    for (int i = 0; i < 3; i++)
        snprintf(names[i], PACKED_KEY_BYTES, "%s.%s", packed->name, parts[i]);

    st_item items[3] = {
        { .name = names[0], .dtype = "U8", .data = packed->data.codes, .bytes = (uint64_t)size->code_bytes }
    };
    size_t count = 1;
    set_shape(packed, &items[0], size->rows, size->row_bytes);
    if (packed->format->scale != MXA_SCALE_NONE) {
        st_item *scales = &items[count++];
        *scales = (st_item){
            .name = names[1], .dtype = "U8", .data = packed->data.scales, .bytes = (uint64_t)size->scale_bytes
        };
        if (packed->opts.layout == MXA_LAYOUT_ROW)
            set_shape(packed, scales, size->rows, size->scale_cols);
        else
            set_shape(packed, scales, -1, size->matrix_scale_bytes);
    }
    if (packed->opts.level != MXA_LEVEL_NONE) {
        st_item *g = &items[count++];
        *g = (st_item){ .name = names[2],
                        .dtype = "F32",
                        .data = packed->data.g,
                        .bytes = (uint64_t)size->g_count * sizeof(float) };
        set_factor_shape(packed, g);
    }
    json_t *metadata = describe(packed);
    const bool ok = metadata != NULL && st_write(path, items, count, metadata);
    json_decref(metadata);
    return ok;
}

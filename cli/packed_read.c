/* SPDX-License-Identifier: Apache-2.0 */
#include "packed_tensor.h"

#include "attention_input.h"
#include "cli.h"
#include "options.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const option_word booleans[] = { { "false", false }, { "true", true }, { NULL, 0 } };
static const option_word dtypes[] = {
    { "F32", MXA_DTYPE_F32 }, { "F16", MXA_DTYPE_F16 }, { "BF16", MXA_DTYPE_BF16 }, { NULL, 0 }
};

static const char *text_of(const st_file *file, const char *name, const char *key)
{
    char full[PACKED_KEY_BYTES];
    snprintf(full, sizeof full, "%s.%s", name, key);
    const char *text = st_metadata(file, full);
    if (text == NULL)
        cli_fail("%s: metadata has no \"%.160s\"", file->path, full);
    return text;
}

static bool word_of(const st_file *file, const char *name, const char *key, const option_word *words,
                    int *value)
{
    const char *text = text_of(file, name, key);
    if (text == NULL)
        return false;
    if (option_word_find(words, text, value))
        return true;
    cli_fail("%s: metadata \"%.80s.%s\": unknown \"%.80s\"", file->path, name, key, text);
    return false;
}

static bool shape_of(packed_tensor *packed, const st_file *file)
{
    const char *text = text_of(file, packed->name, "shape");
    if (text == NULL)
        return false;
    json_t *list = json_loads(text, 0, NULL);
    packed->rank = json_array_size(list);
    bool ok = packed->rank >= 2 && packed->rank <= 4;
    for (size_t i = 0; i < 4 && ok; i++) {
        const json_t *item = json_array_get(list, i - (4 - packed->rank));
        packed->shape[i] = item ? json_integer_value(item) : 1;
        ok = (item == NULL || json_is_integer(item)) && packed->shape[i] >= 0;
    }
    json_decref(list);
    if (!ok)
        cli_fail("%s: metadata \"%.80s.shape\": \"%.80s\" is not a list of 2 to 4 sizes", file->path,
                 packed->name, text);
    return ok;
}

static bool read_description(packed_tensor *packed, const st_file *file)
{
    const char *name = packed->name, *format = text_of(file, name, "format");
    if (format == NULL)
        return false;
    packed->format = mxa_format_find(format);
    if (packed->format == NULL) {
        cli_fail("%s: metadata \"%.80s.format\": unknown format \"%.80s\"", file->path, name, format);
        return false;
    }
    int level, layout, axis, rotated, dtype, rule = MXA_RULE_DEFAULT;
    if (!word_of(file, name, "level", option_levels, &level) ||
        !word_of(file, name, "layout", option_layouts, &layout) ||
        !word_of(file, name, "axis", option_axes, &axis) ||
        !word_of(file, name, "rotated", booleans, &rotated) ||
        !word_of(file, name, "dtype", dtypes, &dtype) || !shape_of(packed, file))
        return false;
    if (packed->format->scale == MXA_SCALE_E8M0 && !word_of(file, name, "rule", option_rules, &rule))
        return false;
    mxa_quant_default(&packed->opts);
    packed->opts.rule = (mxa_rule)rule;
    packed->opts.level = (mxa_level)level;
    packed->opts.layout = (mxa_layout)layout;
    packed->opts.axis = (mxa_axis)axis;
    packed->opts.rotate = rotated;
    packed->opts.fill_tail = true;
    packed->dtype = (mxa_dtype)dtype;
    return true;
}

/* NAME.part as bytes, which must be as many as the description needs; NULL after a message. */
static void *load_part(const packed_tensor *packed, const st_file *file, const char *part, const char *dtype,
                       uint64_t bytes)
{
    char full[PACKED_KEY_BYTES];
    snprintf(full, sizeof full, "%s.%s", packed->name, part);
    const st_tensor *tensor = st_require(file, full);
    if (tensor == NULL)
        return NULL;
    if (strcmp(tensor->dtype->name, dtype) == 0 && tensor->end - tensor->begin == bytes)
        return st_load(file, tensor);
    cli_fail("%s: tensor \"%.80s\" is %s of %" PRIu64 " bytes; the metadata asks for %s of %" PRIu64,
             file->path, full, tensor->dtype->name, tensor->end - tensor->begin, dtype, bytes);
    return NULL;
}

bool packed_read(packed_tensor *packed, const st_file *file, const char *name)
{
    *packed = (packed_tensor){ .name = name };
    if (strlen(name) > PACKED_NAME_LENGTH) {
        cli_fail("%s: metadata \"%.80s...\": the name is over %d bytes long", file->path, name,
                 PACKED_NAME_LENGTH);
        return false;
    }
    if (!read_description(packed, file))
        return false;
    const mxa_packed_size *size = &packed->size;
    if (mxa_packed_sizes(packed->format->format, &packed->opts, packed->shape, &packed->size) != MXA_OK) {
        cli_fail("%s: tensor \"%.80s\": %s", file->path, name, mxa_error_text());
        return false;
    }
    mxa_packed *data = &packed->data;
    data->codes = load_part(packed, file, "codes", "U8", (uint64_t)size->code_bytes);
    if (data->codes == NULL)
        return false;
    if (packed->format->scale != MXA_SCALE_NONE &&
        (data->scales = load_part(packed, file, "scales", "U8", (uint64_t)size->scale_bytes)) == NULL)
        return false;
    if (packed->opts.level != MXA_LEVEL_NONE &&
        (data->g = load_part(packed, file, "g", "F32", (uint64_t)size->g_count * sizeof(float))) == NULL)
        return false;
    return true;
}

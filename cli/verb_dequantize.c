/* SPDX-License-Identifier: Apache-2.0 */
#include "attention_input.h"
#include "cli.h"
#include "options.h"
#include "output_file.h"
#include "packed_tensor.h"

#include <stdlib.h>
#include <string.h>

#define FORMAT_SUFFIX ".format"

enum { KEY_DTYPE = OPTION_FIRST, KEY_UNROTATE };

typedef struct dequantize_options {
    const char *input, *output;
    mxa_dtype dtype;
    bool unrotate;
} dequantize_options;

static const struct argp_option table[] = {
    { "output", 'o', "OUT", 0, "file to write: tensor NAME in its original shape", 0 },
    { "dtype", KEY_DTYPE, "T", 0, "f32, f16 or bf16 (default f32)", 0 },
    { "unrotate", KEY_UNROTATE, 0, 0, "turn a rotated tensor back", 0 },
    OPTION_HELP,
    { 0 }
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    dequantize_options *options = state->input;
    switch (key) {
    case 'o': options->output = arg; return 0;
    case KEY_DTYPE: options->dtype = (mxa_dtype)option_word_value("--dtype", option_dtypes, arg); return 0;
    case KEY_UNROTATE: options->unrotate = true; return 0;
    case ARGP_KEY_ARG: options_one_input(&options->input, arg); return 0;
    case ARGP_KEY_END:
        if (options->input == NULL || options->output == NULL)
            cli_usage("dequantize needs IN and -o OUT");
        return 0;
    default: return options_default(key, state);
    }
}

/* Decode one tensor into item, whose name and data are allocated. */
static bool decode_tensor(const dequantize_options *options, const st_file *file, const char *name,
                          st_item *item)
{
    packed_tensor packed;
    bool ok = packed_read(&packed, file, name);
    if (ok && options->unrotate && !packed.opts.rotate) {
        cli_fail("%s: tensor \"%.80s\" is not rotated, --unrotate needs one that is", file->path, name);
        ok = false;
    }
    if (ok) {
        packed.opts.rotate = options->unrotate;
        const int64_t *s = packed.shape;
        *item = (st_item){ .name = name, .dtype = input_dtype_name(options->dtype), .rank = packed.rank };
        memcpy(item->shape, s + (4 - packed.rank), packed.rank * sizeof s[0]);
        item->bytes = (uint64_t)(s[0] * s[1] * s[2] * s[3] * input_dtype_bytes(options->dtype));
        void *data = cli_alloc(item->bytes, "the tensor");
        item->data = data;
        const mxa_tensor out = mxa_tensor_contiguous(data, options->dtype, s[0], s[1], s[2], s[3]);
        ok = data != NULL;
        if (ok && mxa_dequantize(&packed.data, packed.format->format, &packed.opts, &out) != MXA_OK) {
            cli_fail("%s: tensor \"%.80s\": %s", file->path, name, mxa_error_text());
            ok = false;
        }
    }
    packed_free(&packed);
    return ok;
}

/*
 * The next NAME of a metadata key NAME.format after iter; NULL at the end or, with a message, without
 * memory.
 */
static char *next_name(json_t *metadata, void **iter)
{
    for (; *iter != NULL; *iter = json_object_iter_next(metadata, *iter)) {
        const char *key = json_object_iter_key(*iter);
        const size_t length = strlen(key), suffix = strlen(FORMAT_SUFFIX);
        if (length <= suffix || strcmp(key + length - suffix, FORMAT_SUFFIX) != 0)
            continue;
        *iter = json_object_iter_next(metadata, *iter);
        char *name = strndup(key, length - suffix);
        if (name == NULL)
            cli_fail("out of memory: the name %.80s", key);
        return name;
    }
    return NULL;
}

/* Decode every tensor that the metadata describes, and write them. */
static bool dequantize(const dequantize_options *options, const st_file *file)
{
    json_t *metadata = json_object_get(file->header, ST_METADATA_KEY);
    st_item *items = cli_alloc((json_object_size(metadata) + 1) * sizeof *items, "the list of tensors");
    if (items == NULL)
        return false;
    size_t count = 0;
    bool ok = true;
    char *name;
    for (void *iter = json_object_iter(metadata); ok && (name = next_name(metadata, &iter)) != NULL;
         count++) {
        items[count] = (st_item){ .name = name };
        ok = decode_tensor(options, file, name, &items[count]);
    }
    if (ok && count == 0) {
        cli_fail("%s: metadata names no quantised tensor (NAME" FORMAT_SUFFIX ")", file->path);
        ok = false;
    }
    ok = ok && st_write(options->output, items, count, NULL);
    for (size_t i = 0; i < count; i++) {
        free((void *)items[i].name);
        free((void *)items[i].data);
    }
    free(items);
    return ok;
}

int verb_dequantize(int argc, char **argv)
{
    static const struct argp argp = {
        .options = table,
        .parser = parse,
        .args_doc = "IN -o OUT",
        .doc = "Turn what quantize wrote back into numbers.\v"
               "Example: mxattn dequantize k4.safetensors -o k.safetensors --dtype bf16"
    };
    dequantize_options options = { .dtype = MXA_DTYPE_F32 };
    options_parse(&argp, argc, argv, &options);

    st_file file = { .fd = -1 };
    const bool ok = output_possible_from(options.input, options.output) && st_open(&file, options.input) &&
                    dequantize(&options, &file);
    st_close(&file);
    return ok ? CLI_DONE : CLI_FAILED;
}

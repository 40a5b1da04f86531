/* SPDX-License-Identifier: Apache-2.0 */
#include "attention_input.h"
#include "cli.h"
#include "device_memory.h"
#include "options.h"
#include "output_file.h"
#include "packed_tensor.h"
#include "progress.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    KEY_TENSOR = OPTION_FIRST,
    KEY_FORMAT,
    KEY_RULE,
    KEY_LEVEL,
    KEY_LAYOUT,
    KEY_AXIS,
    KEY_POLICY,
    KEY_ROTATE,
    KEY_G,
    KEY_OPTION,
    KEY_FILL_TAIL,
    KEY_DEVICE
};

typedef struct quantize_options {
    const char *input, *output, *tensor;
    mxa_format format;
    mxa_quant_opts quant;
    float g;
} quantize_options;

static const option_word policies[] = { { "propagate", MXA_NONFINITE_PROPAGATE },
                                        { "error", MXA_NONFINITE_ERROR },
                                        { "sanitize", MXA_NONFINITE_SANITIZE },
                                        { NULL, 0 } };
static const option_word nvfp4_options[] = { { "scale-up", MXA_NVFP4_SCALE_UP },
                                             { "flush-tiny", MXA_NVFP4_FLUSH_TINY },
                                             { "pow2-g", MXA_NVFP4_POW2_G },
                                             { "four-over-six", MXA_NVFP4_FOUR_OVER_SIX },
                                             { NULL, 0 } };

static const struct argp_option table[] = {
    { "output", 'o', "OUT", 0, "file to write: NAME.codes, NAME.scales, NAME.g", 0 },
    { "tensor", KEY_TENSOR, "NAME", 0, "tensor to quantise, F32, F16 or BF16", 0 },
    { "format", KEY_FORMAT, "F", 0, "mxfp8 mxfp8-e5m2 mxfp6 mxfp6-e2m3 mxfp4 mxint8 nvfp4 fp8 int8", 0 },
    { "rule", KEY_RULE, "R", 0, "MX scales: floor, rceil or even", 0 },
    { "level", KEY_LEVEL, "L", 0, "factors: none tensor head token_block token", 0 },
    { "g", KEY_G, "X", 0, "the factor itself, with --level tensor", 0 },
    { "layout", KEY_LAYOUT, "Y", 0, "scale bytes: row, tile_128x4 or amd", 0 },
    { "axis", KEY_AXIS, "A", 0, "blocks along head (dim) or token", 0 },
    { "policy", KEY_POLICY, "P", 0, "NaN and Inf: propagate, error or sanitize", 0 },
    { "rotate", KEY_ROTATE, 0, 0, "Hadamard rotation along dim first", 0 },
    { "option", KEY_OPTION, "O", 0, "NVFP4: scale-up flush-tiny pow2-g four-over-six", 0 },
    { "fill-tail", KEY_FILL_TAIL, 0, 0, "fill a short last block with zeros", 0 },
    { "device", KEY_DEVICE, "D", 0, "auto, cpu or cuda:N; the bytes are the same", 0 },
    OPTION_HELP,
    { 0 }
};

static void check_options(const quantize_options *options)
{
    if (options->input == NULL || options->output == NULL || options->tensor == NULL ||
        options->format == MXA_FORMAT_NONE)
        cli_usage("quantize needs IN, -o OUT, --tensor NAME and --format F");
    if (options->quant.g != NULL && options->quant.level != MXA_LEVEL_TENSOR)
        cli_usage("--g goes with --level tensor: it is one factor for the whole tensor");
    if (options->quant.nvfp4 != 0 && options->format != MXA_FORMAT_NVFP4)
        cli_usage("--option goes with --format nvfp4");
    if (options->quant.rule != MXA_RULE_DEFAULT &&
        mxa_format_get(options->format)->default_rule == MXA_RULE_DEFAULT)
        cli_usage("--rule goes with MX formats; %s has none", mxa_format_get(options->format)->name);
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    quantize_options *options = state->input;
    mxa_quant_opts *quant = &options->quant;
    switch (key) {
    case 'o': options->output = arg; return 0;
    case KEY_TENSOR: options->tensor = arg; return 0;
    case KEY_FORMAT: options->format = option_format("--format", arg); return 0;
    case KEY_RULE: quant->rule = (mxa_rule)option_word_value("--rule", option_rules, arg); return 0;
    case KEY_LEVEL: quant->level = (mxa_level)option_word_value("--level", option_levels, arg); return 0;
    case KEY_LAYOUT: quant->layout = (mxa_layout)option_word_value("--layout", option_layouts, arg); return 0;
    case KEY_AXIS: quant->axis = (mxa_axis)option_word_value("--axis", option_axes, arg); return 0;
    case KEY_POLICY: quant->nonfinite = (mxa_nonfinite)option_word_value("--policy", policies, arg); return 0;
    case KEY_ROTATE: quant->rotate = true; return 0;
    case KEY_OPTION: quant->nvfp4 |= (unsigned)option_word_value("--option", nvfp4_options, arg); return 0;
    case KEY_FILL_TAIL: quant->fill_tail = true; return 0;
    case KEY_DEVICE: quant->device = option_device("--device", arg); return 0;
    case KEY_G:
        options->g = option_number("--g", arg);
        quant->g = &options->g;
        return 0;
    case ARGP_KEY_ARG: options_one_input(&options->input, arg); return 0;
    case ARGP_KEY_END: check_options(options); return 0;
    default: return options_default(key, state);
    }
}

/* Describe the tensor and load it; NULL after a message. */
static void *load_tensor(const quantize_options *options, const st_file *file, packed_tensor *packed)
{
    const st_tensor *tensor = st_require(file, options->tensor);
    if (tensor == NULL)
        return NULL;
    if (strlen(tensor->name) > PACKED_NAME_LENGTH) {
        cli_fail("%s: tensor \"%.80s...\": the name is over %d bytes long", file->path, tensor->name,
                 PACKED_NAME_LENGTH);
        return NULL;
    }
    if (!input_dtype(tensor, &packed->dtype)) {
        cli_fail("%s: tensor \"%.80s\" is %s; only F32, F16 and BF16 can be quantised", file->path,
                 tensor->name, tensor->dtype->name);
        return NULL;
    }
    if (tensor->rank < 2 || tensor->rank > 4) {
        cli_fail(
            "%s: tensor \"%.80s\" has %zu dimensions; it must be [heads, seq, dim] with an optional batch",
            file->path, tensor->name, tensor->rank);
        return NULL;
    }
    packed->rank = tensor->rank;
    for (size_t i = 0; i < 4; i++)
        packed->shape[i] = i < 4 - tensor->rank ? 1 : tensor->shape[i - (4 - tensor->rank)];
    return st_load(file, tensor);
}

/* Whether a call of the library succeeded, after a message if not. */
static bool check(const quantize_options *options, mxa_status status)
{
    if (status != MXA_OK)
        cli_fail("%s%s: tensor \"%.80s\": %s", status == MXA_ERR_MEMORY ? "out of memory: " : "",
                 options->input, options->tensor, mxa_error_text());
    return status == MXA_OK;
}

/* Upload, quantise there, download. */
static bool quantize_there(const quantize_options *options, packed_tensor *packed, mxa_tensor x,
                           int64_t *n_bad)
{
    device_memory m = { .device = packed->opts.device };
    const mxa_packed_size *size = &packed->size;
    const uint64_t g_bytes = (uint64_t)size->g_count * sizeof(float);
    const int64_t *s = x.shape;
    mxa_quant_opts opts = packed->opts;
    void *codes = NULL, *scales = NULL, *g = NULL, *given = (void *)opts.g, *bad = n_bad;
    bool ok =
        device_upload(&m, (uint64_t)(s[0] * s[1] * s[2] * s[3] * input_dtype_bytes(x.dtype)), &x.data) &&
        device_alloc(&m, (uint64_t)size->code_bytes, &codes) &&
        device_alloc(&m, (uint64_t)size->scale_bytes, &scales) && device_alloc(&m, g_bytes, &g) &&
        device_upload(&m, sizeof(float), &given) && device_upload(&m, sizeof *n_bad, &bad);
    opts.g = given;
    const mxa_packed there = { .codes = codes, .scales = scales, .g = g };
    ok = ok && check(options, mxa_quantize(&x, options->format, &opts, &there, bad)) &&
         device_download(&m, codes, (uint64_t)size->code_bytes, packed->data.codes) &&
         device_download(&m, scales, (uint64_t)size->scale_bytes, packed->data.scales) &&
         device_download(&m, g, g_bytes, packed->data.g) && device_download(&m, bad, sizeof *n_bad, n_bad);
    device_free(&m);
    return ok;
}

static bool quantize(const quantize_options *options, packed_tensor *packed, void *data)
{
    const int64_t *s = packed->shape;
    const mxa_tensor x = mxa_tensor_contiguous(data, packed->dtype, s[0], s[1], s[2], s[3]);
    int64_t n_bad = 0;
    if (!check(options, mxa_packed_sizes(options->format, &packed->opts, s, &packed->size)) ||
        !packed_alloc(packed))
        return false;
    progress_begin("quantize", 1);
    const bool ok =
        device_is_cuda(packed->opts.device)
            ? quantize_there(options, packed, x, &n_bad)
            : check(options, mxa_quantize(&x, options->format, &packed->opts, &packed->data, &n_bad));
    progress_end();
    if (!ok)
        return false;
    if (!packed_write(packed, options->output))
        return false;
    if (n_bad > 0)
        fprintf(stderr, "mxattn: %s: tensor \"%.80s\": %" PRId64 " %s hold NaN or Inf\n", options->input,
                packed->name, n_bad, packed->format->block > 0 ? "blocks" : "elements");
    return true;
}

int verb_quantize(int argc, char **argv)
{
    static const struct argp argp = {
        .options = table,
        .parser = parse,
        .args_doc = "IN -o OUT --tensor NAME --format F",
        .doc = "Quantise one tensor of a safetensors file.\v"
               "Example:\n  mxattn quantize qkv.safetensors -o k4.safetensors --tensor k --format mxfp4"
    };
    quantize_options options = { .format = MXA_FORMAT_NONE };
    mxa_quant_default(&options.quant);
    options_parse(&argp, argc, argv, &options);

    st_file file = { .fd = -1 };
    const mxa_format_info *format = mxa_format_get(options.format);
    packed_tensor packed = { .name = options.tensor, .format = format, .opts = options.quant };
    if (packed.opts.rule == MXA_RULE_DEFAULT)
        packed.opts.rule = format->default_rule;
    if (packed.opts.level == MXA_LEVEL_DEFAULT)
        packed.opts.level = format->default_level;
    void *data = NULL;
    const bool ok = output_possible_from(options.input, options.output) && st_open(&file, options.input) &&
                    (data = load_tensor(&options, &file, &packed)) != NULL &&
                    quantize(&options, &packed, data);
    packed_free(&packed);
    free(data);
    st_close(&file);
    return ok ? CLI_DONE : CLI_FAILED;
}

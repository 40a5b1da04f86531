/* SPDX-License-Identifier: Apache-2.0 */
/* Public calls that quantise and dequantise: arguments are checked here, the work is the backend's. */
#include <stdlib.h>

#include "core/status.h"
#include "core/tensor.h"
#include "cpu/dequantize_cpu.h"
#include "cpu/features.h"
#include "cuda/loader.h"
#include "format/format.h"
#include "format/second_level.h"

/* What sentences call the arguments of a copy. */
typedef struct names {
    const char *format, *opts, *packed, *tensor;
} names;

/* One copy of a tensor: what to do, how large it becomes, and what else its options say. */
typedef struct request {
    names names;
    bool fill_tail;
    mxa_copy copy;
    mxa_packed_size size;
    mxa_nonfinite policy;
    int threads;
    mxa_device device;
    void *stream;
} request;

static bool on_cuda(const request *r)
{
    return r->device >= MXA_DEVICE_CUDA_0;
}

void mxa_quant_default(mxa_quant_opts *opts)
{
    *opts = (mxa_quant_opts){ .size = sizeof *opts, .device = MXA_DEVICE_CPU };
}

static const char *level_name(mxa_level level)
{
    static const char *const names[] = { "DEFAULT", "NONE", "TENSOR", "HEAD", "TOKEN_BLOCK", "TOKEN" };
    return names[level];
}

static mxa_status check_rule(const char *name, const mxa_format_info *info, mxa_rule rule)
{
    if ((int)rule < MXA_RULE_DEFAULT || rule > MXA_RULE_EVEN)
        return mxa_fail(MXA_ERR_RULE, "%s: rule %d is not DEFAULT, FLOOR, RCEIL or EVEN", name, (int)rule);
    if (rule != MXA_RULE_DEFAULT && !mxa_format_is_mx(info))
        return mxa_fail(MXA_ERR_RULE, "%s: rule %d, but %s has no scale rule; only MX formats have", name,
                        (int)rule, info->name);
    return MXA_OK;
}

static mxa_status check_level(const char *name, const mxa_format_info *info, const mxa_quant_opts *opts)
{
    if ((int)opts->level < MXA_LEVEL_DEFAULT || opts->level > MXA_LEVEL_TOKEN)
        return mxa_fail(MXA_ERR_ARG, "%s: level %d is none of enum mxa_level", name, (int)opts->level);
    const mxa_level level = mxa_level_resolve(info, opts->level);
    if (!info->quantized && level != MXA_LEVEL_NONE)
        return mxa_fail(MXA_ERR_ARG, "%s: level %s, but %s has no second-level factors", name,
                        level_name(level), info->name);
    if (info->quantized && info->scale == MXA_SCALE_NONE && level == MXA_LEVEL_NONE)
        return mxa_fail(MXA_ERR_ARG, "%s: level NONE, but %s has no other scale than second-level factors",
                        name, info->name);
    if (opts->axis == MXA_AXIS_TOKEN && level == MXA_LEVEL_TOKEN)
        return mxa_fail(MXA_ERR_ARG,
                        "%s: level TOKEN with axis TOKEN: a block would hold several factors; "
                        "choose TOKEN_BLOCK, HEAD or TENSOR",
                        name);
    if (opts->g && level == MXA_LEVEL_NONE)
        return mxa_fail(MXA_ERR_ARG, "%s: g is given, but level NONE has no factors", name);
    if ((uintptr_t)opts->g % _Alignof(float) != 0)
        return mxa_fail(MXA_ERR_ALIGN, "%s: g %p is not aligned to float", name, (const void *)opts->g);
    return MXA_OK;
}

static mxa_status check_layout(const char *name, const mxa_format_info *info, mxa_layout layout)
{
    if ((int)layout < MXA_LAYOUT_ROW || layout > MXA_LAYOUT_AMD)
        return mxa_fail(MXA_ERR_LAYOUT, "%s: layout %d is not ROW, TILE_128X4 or AMD", name, (int)layout);
    if (layout != MXA_LAYOUT_ROW && info->block == 0)
        return mxa_fail(MXA_ERR_LAYOUT, "%s: layout %d of scale bytes, but %s has none", name, (int)layout,
                        info->name);
    return MXA_OK;
}

static mxa_status check_choices(const char *name, const mxa_format_info *info, const mxa_quant_opts *opts)
{
    const unsigned all =
        MXA_NVFP4_SCALE_UP | MXA_NVFP4_FLUSH_TINY | MXA_NVFP4_POW2_G | MXA_NVFP4_FOUR_OVER_SIX;
    if (opts->axis != MXA_AXIS_HEAD && opts->axis != MXA_AXIS_TOKEN)
        return mxa_fail(MXA_ERR_ARG, "%s: axis %d is not HEAD or TOKEN", name, (int)opts->axis);
    if ((int)opts->nonfinite < MXA_NONFINITE_PROPAGATE || opts->nonfinite > MXA_NONFINITE_SANITIZE)
        return mxa_fail(MXA_ERR_ARG, "%s: nonfinite %d is not PROPAGATE, ERROR or SANITIZE", name,
                        (int)opts->nonfinite);
    if (opts->nvfp4 & ~all)
        return mxa_fail(MXA_ERR_ARG, "%s: nvfp4 0x%x has bits that are no option", name, opts->nvfp4);
    if (opts->nvfp4 && info->format != MXA_FORMAT_NVFP4)
        return mxa_fail(MXA_ERR_ARG, "%s: nvfp4 0x%x, but the format is %s", name, opts->nvfp4, info->name);
    if (opts->mean && !info->quantized)
        return mxa_fail(MXA_ERR_ARG, "%s: mean is given, but %s keeps the input as it is", name, info->name);
    if ((uintptr_t)opts->mean % _Alignof(float) != 0)
        return mxa_fail(MXA_ERR_ALIGN, "%s: mean %p is not aligned to float", name, (const void *)opts->mean);
    if (opts->threads < 0 || opts->threads > MXA_MAX_THREADS)
        return mxa_fail(MXA_ERR_ARG, "%s: threads %d is outside 0..%d", name, opts->threads, MXA_MAX_THREADS);
    if (opts->device < MXA_DEVICE_AUTO)
        return mxa_fail(MXA_ERR_ARG, "%s: device %d is not auto, cpu or a CUDA device", name,
                        (int)opts->device);
    return MXA_OK;
}

static mxa_status check_opts(const char *name, const mxa_format_info *info, const mxa_quant_opts *opts)
{
    if (opts->size != sizeof *opts)
        return mxa_fail(MXA_ERR_ARG, "%s: size %zu is not %zu; mxa_quant_default sets it", name, opts->size,
                        sizeof *opts);
    mxa_status status = check_choices(name, info, opts);
    if (status == MXA_OK)
        status = check_rule(name, info, opts->rule);
    if (status == MXA_OK)
        status = check_level(name, info, opts);
    return status == MXA_OK ? check_layout(name, info, opts->layout) : status;
}

/* Everything about a copy that does not depend on the tensor's shape. */
static mxa_status read_options(names names, mxa_format format, const mxa_quant_opts *opts, request *r)
{
    const mxa_format_info *info = mxa_format_get(format);
    if (!info)
        return mxa_fail(MXA_ERR_FORMAT, "%s: %d is none of enum mxa_format", names.format, (int)format);
    mxa_quant_opts defaults;
    mxa_quant_default(&defaults);
    const mxa_quant_opts *o = opts ? opts : &defaults;
    const mxa_status status = check_opts(names.opts, info, o);
    if (status != MXA_OK)
        return status;
    *r = (request){ .names = names,
                    .fill_tail = o->fill_tail,
                    .copy = { .spec = { info, mxa_rule_resolve(info, o->rule), o->nvfp4 },
                              .level = mxa_level_resolve(info, o->level),
                              .axis = o->axis,
                              .layout = o->layout,
                              .rotate = o->rotate,
                              .mean = o->mean,
                              .g_given = o->g },
                    .policy = o->nonfinite,
                    .threads = o->threads,
                    .device = o->device,
                    .stream = o->stream };
    return MXA_OK;
}

/* The sizes of a copy; the shape is checked, so that rows, cols and their product fit. */
static mxa_status measure(request *r, const int64_t shape[4])
{
    const mxa_format_info *info = r->copy.spec.info;
    const bool by_token = r->copy.axis == MXA_AXIS_TOKEN;
    mxa_packed_size *size = &r->size;
    *size = (mxa_packed_size){ .matrices = shape[0] * shape[1],
                               .rows = shape[by_token ? 3 : 2],
                               .cols = shape[by_token ? 2 : 3] };
    if (info->block && size->cols % info->block != 0 && !r->fill_tail)
        return mxa_fail(
            MXA_ERR_SHAPE, "%s: %s %lld is not a multiple of %s's block of %d and fill_tail is off",
            r->names.tensor, by_token ? "seq" : "dim", (long long)size->cols, info->name, info->block);
    size->row_bytes = mxa_row_bytes(info, size->cols);
    size->scale_cols = mxa_scale_cols(info, size->cols);
    size->g_count = mxa_level_count(r->copy.level, shape);
    size->tile_count = size->matrices * ((shape[2] + MXA_TILE - 1) / MXA_TILE);
    size->matrix_scale_bytes =
        info->block ? mxa_scale_bytes(r->copy.layout, size->rows, size->scale_cols) : 0;
    int64_t matrix_codes;
    if (size->matrix_scale_bytes < 0 || !mxa_mul(size->rows, size->row_bytes, &matrix_codes) ||
        !mxa_mul(size->matrices, matrix_codes, &size->code_bytes) ||
        !mxa_mul(size->matrices, size->matrix_scale_bytes, &size->scale_bytes))
        return mxa_fail(MXA_ERR_SHAPE, "%s: [%lld][%lld][%lld][%lld] as %s does not fit 63 bits of bytes",
                        r->names.tensor, (long long)shape[0], (long long)shape[1], (long long)shape[2],
                        (long long)shape[3], info->name);
    return MXA_OK;
}

mxa_status mxa_packed_sizes(mxa_format format, const mxa_quant_opts *opts, const int64_t shape[4],
                            mxa_packed_size *out)
{
    if (!shape || !out)
        return mxa_fail(MXA_ERR_ARG, "%s: is NULL", shape ? "out" : "shape");
    request r;
    mxa_status status = mxa_check_shape("shape", shape);
    if (status == MXA_OK)
        status = read_options((names){ "format", "opts", NULL, "shape" }, format, opts, &r);
    if (status == MXA_OK)
        status = measure(&r, shape);
    if (status == MXA_OK)
        *out = r.size;
    return status;
}

/* The buffers that a copy of this size has. */
static mxa_status check_packed(const char *name, const mxa_packed *packed, const mxa_packed_size *size)
{
    if (!packed)
        return mxa_fail(MXA_ERR_ARG, "%s: is NULL", name);
    if (size->code_bytes > 0 && !packed->codes)
        return mxa_fail(MXA_ERR_ARG, "%s: codes is NULL, %lld bytes belong there", name,
                        (long long)size->code_bytes);
    if (size->scale_bytes > 0 && !packed->scales)
        return mxa_fail(MXA_ERR_ARG, "%s: scales is NULL, %lld bytes belong there", name,
                        (long long)size->scale_bytes);
    if (size->g_count > 0 && !packed->g)
        return mxa_fail(MXA_ERR_ARG, "%s: g is NULL, %lld factors belong there", name,
                        (long long)size->g_count);
    if ((uintptr_t)packed->g % _Alignof(float) != 0)
        return mxa_fail(MXA_ERR_ALIGN, "%s: g %p is not aligned to float", name, (void *)packed->g);
    return MXA_OK;
}

/* g NULL: nothing to check; nor can factors in a device's memory be. */
static mxa_status check_factors(const request *r, const char *name, const float *g)
{
    const int64_t count = on_cuda(r) ? 0 : r->size.g_count;
    for (int64_t i = 0; g && i < count; i++)
        if (!mxa_g_is_legal(g[i]))
            return mxa_fail(MXA_ERR_SCALE, "%s: g[%lld] is %g, outside 2^-117..2^117", name, (long long)i,
                            (double)g[i]);
    return MXA_OK;
}

/* Whether a tensor of this shape and these buffers suit the options. */
static mxa_status finish_request(request *r, const int64_t shape[4], const mxa_packed *packed)
{
    mxa_status status = measure(r, shape);
    if (status == MXA_OK)
        status = check_packed(r->names.packed, packed, &r->size);
    if (status == MXA_OK)
        r->copy.out = *packed;
    return status;
}

static mxa_status no_memory(size_t bytes)
{
    return mxa_fail(MXA_ERR_MEMORY, "scratch: %zu bytes could not be allocated", bytes);
}

/* NULL if there is no memory. free releases it. */
static void *allocate_scratch(size_t bytes)
{
    const size_t line = 64, rounded = bytes + (line - bytes % line);
    return rounded > bytes ? aligned_alloc(line, rounded) : NULL;
}

static mxa_status quantize_cuda(const mxa_tensor *x, const request *first, int n, const mxa_copy *copies,
                                int64_t *n_bad)
{
    const mxa_cuda_backend *cuda;
    const mxa_status status = mxa_cuda_table(first->device, &cuda);
    if (status != MXA_OK)
        return status;
    return mxa_cuda_result(cuda,
                           cuda->quantize(first->device, x, first->policy, n, copies, n_bad, first->stream));
}

/* first: of the one that holds what all copies have in common. n_bad [n], or NULL. */
static mxa_status quantize(const mxa_tensor *x, const request *first, int n, const mxa_copy *copies,
                           int64_t *n_bad)
{
    if ((uintptr_t)n_bad % _Alignof(int64_t) != 0)
        return mxa_fail(MXA_ERR_ALIGN, "n_bad: %p is not aligned to its 8-byte elements", (void *)n_bad);
    if (on_cuda(first))
        return quantize_cuda(x, first, n, copies, n_bad);
    const size_t bytes = mxa_quantize_scratch_bytes(x->shape, copies[0].axis, first->threads);
    void *scratch = allocate_scratch(bytes);
    if (!scratch)
        return no_memory(bytes);
    int64_t counts[2] = { 0 };
    const mxa_status status =
        mxa_quantize_copies(x, first->policy, n, copies, first->threads, scratch, counts);
    free(scratch);
    for (int c = 0; c < n && status == MXA_OK && n_bad; c++)
        n_bad[c] = counts[c];
    return status;
}

mxa_status mxa_quantize(const mxa_tensor *x, mxa_format format, const mxa_quant_opts *opts,
                        const mxa_packed *out, int64_t *n_bad)
{
    request r;
    mxa_status status = mxa_cpu_mask_status();
    if (status == MXA_OK)
        status = mxa_check_tensor("x", x);
    if (status == MXA_OK)
        status = read_options((names){ "format", "opts", "out", "x" }, format, opts, &r);
    if (status == MXA_OK)
        status = finish_request(&r, x->shape, out);
    if (status == MXA_OK)
        status = check_factors(&r, r.names.opts, r.copy.g_given);
    return status == MXA_OK ? quantize(x, &r, 1, &r.copy, n_bad) : status;
}

/*
 * What a pair must have in common, so that one read serves both. A plain copy has no mean, whatever the other
 * has.
 */
static mxa_status check_pair(const request *low, const request *high)
{
    const bool both_quantized = low->copy.spec.info->quantized && high->copy.spec.info->quantized;
    if (low->copy.axis != MXA_AXIS_HEAD || high->copy.axis != MXA_AXIS_HEAD)
        return mxa_fail(MXA_ERR_ARG, "axis: TOKEN; a pair is quantised along HEAD only");
    if (low->policy != high->policy)
        return mxa_fail(MXA_ERR_ARG, "nonfinite: low %d and high %d differ; a pair has one policy",
                        (int)low->policy, (int)high->policy);
    if (both_quantized && low->copy.mean != high->copy.mean)
        return mxa_fail(MXA_ERR_ARG, "mean: low %p and high %p differ; a pair has one mean",
                        (const void *)low->copy.mean, (const void *)high->copy.mean);
    return MXA_OK;
}

mxa_status mxa_quantize_pair(const mxa_tensor *x, mxa_format low, const mxa_quant_opts *low_opts,
                             const mxa_packed *low_out, mxa_format high, const mxa_quant_opts *high_opts,
                             const mxa_packed *high_out, int64_t n_bad[2])
{
    request r[2] = { 0 };
    const mxa_packed *outs[2] = { low_out, high_out };
    mxa_status status = mxa_cpu_mask_status();
    if (status == MXA_OK)
        status = mxa_check_tensor("x", x);
    if (status == MXA_OK)
        status = read_options((names){ "low", "low_opts", "low_out", "x" }, low, low_opts, &r[0]);
    if (status == MXA_OK)
        status = read_options((names){ "high", "high_opts", "high_out", "x" }, high, high_opts, &r[1]);
    if (status == MXA_OK)
        status = check_pair(&r[0], &r[1]);
    for (int c = 0; c < 2 && status == MXA_OK; c++)
        status = finish_request(&r[c], x->shape, outs[c]);
    for (int c = 0; c < 2 && status == MXA_OK; c++)
        status = check_factors(&r[c], r[c].names.opts, r[c].copy.g_given);
    const mxa_copy copies[2] = { r[0].copy, r[1].copy };
    return status == MXA_OK ? quantize(x, &r[0], 2, copies, n_bad) : status;
}

static mxa_status dequantize_cuda(const request *r, const mxa_tensor *out)
{
    const mxa_cuda_backend *cuda;
    const mxa_status status = mxa_cuda_table(r->device, &cuda);
    if (status != MXA_OK)
        return status;
    return mxa_cuda_result(cuda, cuda->dequantize(r->device, &r->copy, out, r->stream));
}

mxa_status mxa_dequantize(const mxa_packed *in, mxa_format format, const mxa_quant_opts *opts,
                          const mxa_tensor *out)
{
    request r;
    mxa_status status = mxa_cpu_mask_status();
    if (status == MXA_OK)
        status = mxa_check_output("out", out);
    if (status == MXA_OK)
        status = read_options((names){ "format", "opts", "in", "out" }, format, opts, &r);
    if (status == MXA_OK)
        status = finish_request(&r, out->shape, in);
    if (status == MXA_OK)
        status = check_factors(&r, "in", in->g);
    if (status != MXA_OK)
        return status;
    if (on_cuda(&r))
        return dequantize_cuda(&r, out);
    const size_t bytes = mxa_dequantize_scratch_bytes(out->shape, r.copy.axis, r.threads);
    void *scratch = allocate_scratch(bytes);
    if (!scratch)
        return no_memory(bytes);
    mxa_dequantize_copy(&r.copy, out, r.threads, scratch);
    free(scratch);
    return MXA_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA quantiser against the CPU's on the same random tensors: every format, level, layout, policy, axis
 * and stride, one copy and two, the mean, and back to numbers. Bytes are compared, and guards around outputs.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "check_cuda.h"
#include "core/tensor.h"
#include "format/format.h"

typedef struct copy_pair {
    const mxa_format_info *info;
    mxa_quant_opts opts;
    mxa_packed_size size;
    check_buf want[4], got[4]; /* codes, scales, g, nonfinite_tiles */
    mxa_cuda_copy device;
} copy_pair;

static const char *const part_names[] = { "codes", "scales", "g", "nonfinite_tiles" };

static mxa_packed packed_of(uint8_t *const parts[4], const mxa_packed_size *size)
{
    return (mxa_packed){ parts[0], size->scale_bytes ? parts[1] : NULL,
                         size->g_count ? (float *)(void *)parts[2] : NULL, parts[3] };
}

static mxa_level pick_level(const mxa_format_info *info, mxa_axis axis)
{
    if (!info->quantized)
        return MXA_LEVEL_NONE;
    const bool needs = info->scale == MXA_SCALE_NONE;
    for (;;) {
        const mxa_level level = (mxa_level)check_pick(MXA_LEVEL_DEFAULT, MXA_LEVEL_TOKEN);
        const mxa_level resolved = mxa_level_resolve(info, level);
        if ((needs && resolved == MXA_LEVEL_NONE) || (axis == MXA_AXIS_TOKEN && resolved == MXA_LEVEL_TOKEN))
            continue;
        return level;
    }
}

static void pick_options(copy_pair *c, const source *s, mxa_axis axis, mxa_nonfinite policy)
{
    mxa_quant_default(&c->opts);
    c->opts.axis = axis;
    c->opts.nonfinite = policy;
    c->opts.fill_tail = true;
    c->opts.rotate = check_pick(0, 1);
    c->opts.level = pick_level(c->info, axis);
    if (c->info->block)
        c->opts.layout = (mxa_layout)(check_pick(0, 2) ? MXA_LAYOUT_ROW : check_pick(0, 2));
    if (mxa_format_is_mx(c->info))
        c->opts.rule = (mxa_rule)check_pick(MXA_RULE_DEFAULT, MXA_RULE_EVEN);
    if (c->info->format == MXA_FORMAT_NVFP4 && check_pick(0, 2) == 0)
        c->opts.nvfp4 = (unsigned)check_pick(0, 15);
    c->opts.mean = c->info->quantized ? s->mean : NULL;
    if (mxa_packed_sizes(c->info->format, &c->opts, s->host.shape, &c->size) != MXA_OK)
        check_fail("sizes: %s", mxa_error_text());
}

/* Factors as a caller has them: legal, near what the tensor needs, or anywhere. */
static const float *pick_factors(int64_t n, double scale)
{
    const check_buf g = check_bytes((size_t)n * sizeof(float));
    const bool wild = check_pick(0, 3) == 0;
    for (int64_t i = 0; i < n; i++) {
        const int e = (int)(wild ? check_pick(-116, 116) : check_pick(-3, 3));
        const double v = ldexp(1 + (double)check_pick(0, 1 << 20) / (1 << 20), e) * (wild ? 1 : scale);
        ((float *)(void *)g.data)[i] = (float)fmin(fmax(v, 0x1p-117), 0x1p117);
    }
    return (const float *)(const void *)g.data;
}

static void make_parts(copy_pair *c, const source *s)
{
    const size_t bytes[4] = { (size_t)c->size.code_bytes, (size_t)c->size.scale_bytes,
                              (size_t)c->size.g_count * sizeof(float), (size_t)c->size.tile_count };
    uint8_t *device[4];
    for (int i = 0; i < 4; i++) {
        c->want[i] = check_bytes(bytes[i]);
        c->got[i] = check_bytes(bytes[i]);
        device[i] = upload(c->got[i], i == 2 || check_pick(0, 7) ? 0 : 1);
    }
    const mxa_quant_opts *o = &c->opts;
    c->device = (mxa_cuda_copy){
        .copy = { .spec = { c->info, mxa_rule_resolve(c->info, o->rule), o->nvfp4 },
                  .level = mxa_level_resolve(c->info, o->level),
                  .axis = o->axis,
                  .layout = o->layout,
                  .rotate = o->rotate,
                  .mean = o->mean ? s->device_mean : NULL,
                  .g_given = upload_floats(o->g, c->size.g_count),
                  .out = packed_of(device, &c->size) },
        .form = MXA_CUDA_CODES,
        .row_bytes = c->size.row_bytes,
        .g_written = mxa_level_resolve(c->info, o->level),
    };
}

static void make_copy(copy_pair *c, const mxa_format_info *info, const source *s, mxa_axis axis,
                      mxa_nonfinite policy)
{
    c->info = info;
    pick_options(c, s, axis, policy);
    if (c->size.g_count > 0 && check_pick(0, 3) == 0)
        c->opts.g = pick_factors(c->size.g_count, info->scale == MXA_SCALE_E8M0 ? 1 : 0x1p-7);
    make_parts(c, s);
}

static mxa_packed want_of(const copy_pair *c)
{
    uint8_t *const parts[4] = { c->want[0].data, c->want[1].data, c->want[2].data, c->want[3].data };
    return packed_of(parts, &c->size);
}

static void compare(copy_pair *c, bool written)
{
    const mxa_packed *const out = &c->device.copy.out;
    const uint8_t *const device[4] = { out->codes, out->scales, (const uint8_t *)out->g,
                                       out->nonfinite_tiles };
    for (int i = 0; i < 4; i++) {
        if (!device[i])
            continue;
        const check_buf before = check_bytes(c->got[i].bytes);
        memcpy(before.data, c->got[i].data, before.bytes);
        download(device[i], c->got[i]);
        check_same(part_names[i], written ? c->want[i] : before, c->got[i]);
    }
}

/* Both sides; n is 1 or 2. */
static void run_copies(const source *s, int n, copy_pair *c, mxa_nonfinite policy)
{
    const mxa_packed want[2] = { want_of(&c[0]), n > 1 ? want_of(&c[1]) : (mxa_packed){ 0 } };
    int64_t want_bad[2] = { 0 }, got_bad[2] = { -1, -1 };
    const mxa_status cpu = n == 1 ? mxa_quantize(&s->host, c[0].info->format, &c[0].opts, &want[0], want_bad)
                                  : mxa_quantize_pair(&s->host, c[0].info->format, &c[0].opts, &want[0],
                                                      c[1].info->format, &c[1].opts, &want[1], want_bad);
    const mxa_cuda_rows rows = rows_of(&s->device);
    const mxa_cuda_copy copies[2] = { c[0].device, n > 1 ? c[1].device : c[0].device };
    const check_buf bad = check_bytes(sizeof got_bad);
    uint8_t *const device_bad = upload(bad, 0);
    char text[256] = "";
    if (cpu != MXA_OK)
        snprintf(text, sizeof text, "%s", mxa_error_text());
    mxa_cuda_chain chain = { 0 };
    const mxa_status gpu = mxa_cuda_quantize(&rows, policy, n, copies, NULL, (int64_t *)(void *)device_bad,
                                             work_for(&rows, policy, n, copies), &chain);
    if (gpu == MXA_ERR_UNSUPPORTED)
        return;
    if (cpu != gpu || (cpu != MXA_OK && strcmp(text, mxa_error_text()) != 0))
        check_fail("status: want %d %s, got %d %s", cpu, text, gpu, mxa_error_text());
    must(cudaDeviceSynchronize(), "quantise");
    download(device_bad, bad);
    memcpy(got_bad, bad.data, sizeof got_bad);
    for (int i = 0; i < n; i++) {
        compare(&c[i], cpu == MXA_OK);
        if (cpu == MXA_OK && got_bad[i] != want_bad[i])
            check_fail("n_bad: want %lld, got %lld", (long long)want_bad[i], (long long)got_bad[i]);
    }
}

static mxa_nonfinite pick_policy(void)
{
    return check_pick(0, 2) ? MXA_NONFINITE_PROPAGATE : (mxa_nonfinite)check_pick(0, 2);
}

/* ---------------------------------------------------------------- the checks */

static void check_one(const mxa_format_info *info, mxa_axis axis)
{
    if (!check_entry(axis == MXA_AXIS_HEAD ? "quantize" : "quantize-token", "cuda", info->name, 0))
        return;
    while (check_round()) {
        arena_clear();
        source s = pick_source(pick_dim());
        if (check_pick(0, 1))
            add_mean(&s);
        const mxa_nonfinite policy = pick_policy();
        copy_pair c;
        make_copy(&c, info, &s, axis, policy);
        run_copies(&s, 1, &c, policy);
    }
}

static void check_pair(const mxa_format_info *low)
{
    if (!check_entry("quantize-pair", "cuda", low->name, 0))
        return;
    while (check_round()) {
        arena_clear();
        source s = pick_source(pick_dim());
        if (check_pick(0, 1))
            add_mean(&s);
        const mxa_nonfinite policy = pick_policy();
        copy_pair c[2];
        make_copy(&c[0], low, &s, MXA_AXIS_HEAD, policy);
        make_copy(&c[1], mxa_format_get((mxa_format)check_pick(MXA_FORMAT_F32, MXA_FORMAT_INT8)), &s,
                  MXA_AXIS_HEAD, policy);
        run_copies(&s, 2, c, policy);
    }
}

/* Decoded by the GPU from the CPU's bytes, as the CPU does. */
static void check_dequantize(const mxa_format_info *info)
{
    if (!check_entry("dequantize", "cuda", info->name, 0))
        return;
    while (check_round()) {
        arena_clear();
        source s = pick_source(pick_dim());
        if (check_pick(0, 1))
            add_mean(&s);
        const mxa_axis axis = (mxa_axis)check_pick(0, 1);
        copy_pair c;
        make_copy(&c, info, &s, axis, MXA_NONFINITE_PROPAGATE);
        const mxa_packed packed = want_of(&c);
        if (mxa_quantize(&s.host, info->format, &c.opts, &packed, NULL) != MXA_OK)
            check_fail("%s", mxa_error_text());
        for (int i = 0; i < 4; i++)
            if (c.want[i].bytes > 0 && check_pick(0, 3) == 0 && i < 2)
                c.want[i].data[check_pick(0, (int64_t)c.want[i].bytes - 1)] = (uint8_t)check_random();
        mxa_copy copy = c.device.copy;
        copy.out = (mxa_packed){ upload(c.want[0], 0), upload(c.want[1], 0),
                                 (float *)(void *)upload(c.want[2], 0), NULL };
        mxa_tensor out = s.host, device_out;
        out.stride[1] = out.shape[2] * out.stride[2]; /* no output overlaps itself */
        out.stride[2] = out.shape[3] + 3;
        out.stride[1] = out.shape[2] * out.stride[2];
        out.stride[0] = out.shape[1] * out.stride[1];
        const size_t bytes = (size_t)(out.shape[0] * out.stride[0] * mxa_dtype_bytes(out.dtype));
        const check_buf want = check_bytes(bytes), got = check_bytes(bytes);
        memcpy(got.data, want.data, bytes);
        device_out = out;
        out.data = want.data;
        device_out.data = upload(got, 0);
        const mxa_status cpu = mxa_dequantize(&packed, info->format, &c.opts, &out);
        const mxa_status gpu = mxa_cuda_dequantize(&copy, &device_out, NULL);
        if (gpu == MXA_ERR_UNSUPPORTED)
            continue;
        if (cpu != gpu)
            check_fail("status: want %d, got %d %s", cpu, gpu, mxa_error_text());
        must(cudaDeviceSynchronize(), "dequantise");
        download(device_out.data, got);
        check_same("out", want, got);
    }
}

static void check_mean(void)
{
    if (!check_entry("channel-mean", "cuda", "any", 0))
        return;
    while (check_round()) {
        arena_clear();
        const source s = pick_source(pick_dim());
        const int64_t n = s.host.shape[0] * s.host.shape[1] * s.host.shape[3], tokens = check_pick(0, 200);
        const check_buf want = check_bytes((size_t)n * sizeof(float)),
                        got = check_bytes((size_t)n * sizeof(float));
        uint8_t *const device = upload(got, 0);
        const mxa_cuda_rows rows = rows_of(&s.device);
        const check_buf zeros = check_bytes((size_t)(16 * check_pick(0, 300))),
                        cleared = check_bytes(zeros.bytes);
        memset(zeros.data, 0, zeros.bytes);
        uint8_t *const clear = upload(cleared, 0);
        mxa_cuda_chain chain = { 0 };
        if (mxa_channel_mean(&s.host, tokens, (float *)(void *)want.data) != MXA_OK ||
            mxa_cuda_channel_mean(&rows, tokens, (float *)(void *)device, clear, (int64_t)zeros.bytes,
                                  &chain) != MXA_OK)
            check_fail("%s", mxa_error_text());
        must(cudaDeviceSynchronize(), "mean");
        download(device, got);
        download(clear, cleared);
        check_same("cleared", zeros, cleared);
        check_same_floats("mean", want, got);
    }
}

void check_quantize_cuda(void)
{
    for (int format = MXA_FORMAT_F32; format <= MXA_FORMAT_INT8; format++) {
        const mxa_format_info *const info = mxa_format_get((mxa_format)format);
        check_one(info, MXA_AXIS_HEAD);
        check_one(info, MXA_AXIS_TOKEN);
        check_pair(info);
        check_dequantize(info);
    }
    check_mean();
}

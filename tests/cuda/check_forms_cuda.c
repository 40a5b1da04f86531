/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What attention kernels read: the forms of a copy, factors written finer than their level, the numbering of
 * packed sequences, and the bias of smooth-K. All of it from the CPU's codes of each sequence.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "check_cuda.h"
#include "core/tensor.h"
#include "format/container.h"
#include "format/format.h"
#include "format/mx.h"

enum { MOST_SEQUENCES = 5, MOST_ROWS = 150, PITCH_UNIT = 16 };

/* Sequences of a packed tensor, or of none: then it is a tensor of itself. */
typedef struct packing {
    int64_t n;
    mxa_sequence sequences[MOST_SEQUENCES];
    int64_t n_rows, n_blocks;
    bool of_k;
} packing;

static packing pick_packing(const source *s)
{
    const int64_t heads = s->host.shape[1], total = s->host.shape[2];
    packing p = { .n = check_pick(1, MOST_SEQUENCES), .of_k = check_pick(0, 1) };
    int64_t first = 0;
    for (int64_t i = 0; i < p.n; i++) {
        const int64_t rows = check_pick(0, 3) ? check_pick(0, (total - first) / 2 + (i + 1 == p.n)) : 0;
        mxa_sequence q = { 0 };
        *(p.of_k ? &q.map.kv_len : &q.map.q_len) = rows;
        *(p.of_k ? &q.k_first : &q.q_first) = first;
        *(p.of_k ? &q.k_rows : &q.q_rows) = p.n_rows;
        *(p.of_k ? &q.k_blocks : &q.q_blocks) = p.n_blocks;
        p.sequences[i] = q;
        first += rows;
        p.n_rows += heads * rows;
        p.n_blocks += heads * mxa_token_blocks(rows);
    }
    return p;
}

/* One sequence of the host's tensor as a tensor. */
static mxa_tensor view(const source *s, const packing *p, int64_t i)
{
    mxa_tensor x = s->host;
    const mxa_sequence *const q = &p->sequences[i];
    x.shape[2] = p->of_k ? q->map.kv_len : q->map.q_len;
    x.data = mxa_row(&s->host, 0, 0, p->of_k ? q->k_first : q->q_first);
    return x;
}

/* The CPU's copy of one sequence, and what it decodes to without g. */
typedef struct reference {
    mxa_packed_size size;
    check_buf codes, scales, g, tiles, values;
} reference;

static reference make_reference(const mxa_tensor *x, const mxa_format_info *info, const mxa_quant_opts *opts)
{
    reference r;
    if (mxa_packed_sizes(info->format, opts, x->shape, &r.size) != MXA_OK)
        check_fail("sizes: %s", mxa_error_text());
    r.codes = check_bytes((size_t)r.size.code_bytes);
    r.scales = check_bytes((size_t)r.size.scale_bytes);
    r.g = check_bytes((size_t)r.size.g_count * sizeof(float));
    r.tiles = check_bytes((size_t)r.size.tile_count);
    const int64_t n = r.size.matrices * r.size.rows * r.size.cols;
    r.values = check_bytes((size_t)n * sizeof(float));
    mxa_packed out = { r.codes.data, r.scales.data, (float *)(void *)r.g.data, r.tiles.data };
    if (mxa_quantize(x, info->format, opts, &out, NULL) != MXA_OK)
        check_fail("quantise: %s", mxa_error_text());

    mxa_quant_opts plain = *opts;
    plain.rotate = false;
    plain.mean = NULL;
    const check_buf ones = check_bytes((size_t)(r.size.g_count + 1) * sizeof(float));
    for (int64_t i = 0; i <= r.size.g_count; i++)
        ((float *)(void *)ones.data)[i] = 1.0f;
    out.g = (float *)(void *)ones.data;
    const mxa_tensor values = mxa_tensor_contiguous(r.values.data, MXA_DTYPE_F32, x->shape[0], x->shape[1],
                                                    x->shape[2], x->shape[3]);
    if (mxa_dequantize(&out, info->format, &plain, &values) != MXA_OK)
        check_fail("dequantise: %s", mxa_error_text());
    return r;
}

/* The container of 128 rows, from the codes by format/container.h; returns its exponent. */
static int fold_tile(const mxa_format_info *info, mxa_container container, const reference *r, int64_t matrix,
                     int64_t first, int64_t rows, uint8_t *out, int64_t pitch)
{
    const int64_t cols = r->size.cols;
    int exponent = -1024;
    uint8_t codes[512];
    for (int64_t i = first; i < first + rows; i++) {
        const int64_t row = matrix * r->size.rows + i;
        mxa_unpack_codes(info->format, r->codes.data + row * r->size.row_bytes, 1, cols, codes);
        for (int64_t d = 0; d < cols; d++) {
            const int scale = r->scales.data[row * r->size.scale_cols + d / info->block];
            const float element = fabsf(mxa_mx_decode(info->format, codes[d]));
            if (scale != MXA_E8M0_NAN && element > 0 && ilogbf(element) + scale - 127 > exponent)
                exponent = ilogbf(element) + scale - 127;
        }
    }
    const int row_scale = exponent == -1024 ? 0 : mxa_fold_row_scale(info->format, container, exponent);
    for (int64_t i = first; i < first + rows; i++) {
        const int64_t row = matrix * r->size.rows + i;
        mxa_unpack_codes(info->format, r->codes.data + row * r->size.row_bytes, 1, cols, codes);
        for (int64_t d = 0; d < cols; d++) {
            const uint8_t scale = r->scales.data[row * r->size.scale_cols + d / info->block];
            out[(i - first) * pitch + d] = scale == MXA_E8M0_NAN ? MXA_FP8_NAN
                                                                 : mxa_fold(info->format, container, codes[d],
                                                                            row_scale - (scale - 127));
        }
    }
    return row_scale;
}

/* What all sequences should become. */
typedef struct expected {
    check_buf codes, scales, g, tiles;
} expected;

typedef struct form_case {
    const mxa_format_info *info;
    mxa_cuda_form form;
    mxa_quant_opts opts;
    mxa_level g_written;
    int64_t pitch, scale_cols;
    const float *g_given; /* numbered as an attention call has them */
} form_case;

static int64_t factor_number(mxa_level level, int64_t row0, int64_t block0, int64_t matrix, int64_t i)
{
    return level == MXA_LEVEL_TOKEN         ? row0 + i
           : level == MXA_LEVEL_TOKEN_BLOCK ? block0 + i / MXA_TILE
           : level == MXA_LEVEL_HEAD        ? matrix
                                            : 0;
}

static void expect_sequence(const form_case *f, const reference *r, int64_t row0, int64_t block0,
                            int64_t matrix0, expected *e)
{
    const int64_t rows = r->size.rows, cols = r->size.cols, blocks = mxa_token_blocks(rows);
    const float *const values = (const float *)(const void *)r->values.data;
    float *const g = (float *)(void *)e->g.data;
    const mxa_level own = mxa_level_resolve(f->info, f->opts.level);
    const bool folds = f->form == MXA_CUDA_E5M2 || f->form == MXA_CUDA_E4M3;
    for (int64_t m = 0; m < r->size.matrices; m++) {
        int row_scale = 0;
        if (rows == 0 && own == MXA_LEVEL_HEAD && f->g_written == MXA_LEVEL_HEAD)
            g[matrix0 + m] = 1;
        for (int64_t i = 0; i < rows; i++) {
            uint8_t *const to = e->codes.data + (row0 + m * rows + i) * f->pitch;
            const int64_t own_g = own == MXA_LEVEL_TOKEN         ? m * rows + i
                                  : own == MXA_LEVEL_TOKEN_BLOCK ? m * blocks + i / MXA_TILE
                                  : own == MXA_LEVEL_HEAD        ? m
                                                                 : 0;
            if (folds && i % MXA_TILE == 0)
                row_scale =
                    fold_tile(f->info, f->form == MXA_CUDA_E5M2 ? MXA_CONTAINER_E5M2 : MXA_CONTAINER_E4M3, r,
                              m, i, rows - i < MXA_TILE ? rows - i : MXA_TILE, to, f->pitch);
            if (f->form == MXA_CUDA_CODES) {
                memcpy(to, r->codes.data + (m * rows + i) * r->size.row_bytes, (size_t)r->size.row_bytes);
                memcpy(e->scales.data + (row0 + m * rows + i) * f->scale_cols,
                       r->scales.data + (m * rows + i) * f->scale_cols, (size_t)f->scale_cols);
            }
            for (int64_t d = 0; !folds && f->form != MXA_CUDA_CODES && d < cols; d++) {
                const float v = values[(m * rows + i) * cols + d];
                const uint16_t half = f->form == MXA_CUDA_BF16 ? mxa_bf16_from_f32(v) : mxa_f16_from_f32(v);
                memcpy(to + 2 * d, &half, sizeof half);
            }
            if (own != MXA_LEVEL_NONE || folds)
                g[factor_number(f->g_written, row0 + m * rows, block0 + m * blocks, matrix0 + m, i)] =
                    folds ? ldexpf(1, row_scale) : ((const float *)(const void *)r->g.data)[own_g];
            if (i % MXA_TILE == 0)
                e->tiles.data[block0 + m * blocks + i / MXA_TILE] = r->tiles.data[m * blocks + i / MXA_TILE];
        }
    }
}

static form_case pick_case(const mxa_format_info *info, mxa_cuda_form form, const source *s)
{
    form_case f = { .info = info, .form = form };
    mxa_quant_default(&f.opts);
    f.opts.fill_tail = true;
    f.opts.rotate = check_pick(0, 1);
    if (mxa_format_is_mx(info))
        f.opts.rule = (mxa_rule)check_pick(MXA_RULE_DEFAULT, MXA_RULE_EVEN);
    else if (info->quantized)
        f.opts.level = (mxa_level)check_pick(MXA_LEVEL_TENSOR, MXA_LEVEL_TOKEN);
    const mxa_level own = mxa_level_resolve(info, f.opts.level);
    f.g_written = own == MXA_LEVEL_NONE ? MXA_LEVEL_TOKEN_BLOCK : (mxa_level)check_pick(own, MXA_LEVEL_TOKEN);
    f.pitch = mxa_round_up(mxa_cuda_form_row_bytes(info, form, s->host.shape[3]), PITCH_UNIT);
    f.scale_cols = form == MXA_CUDA_CODES ? mxa_scale_cols(info, s->host.shape[3]) : 0;
    return f;
}

static void check_form(const mxa_format_info *info, mxa_cuda_form form, bool packed)
{
    static const char *const names[] = { "tensor", "codes", "e5m2", "e4m3", "bf16", "f16" };
    char name[64];
    snprintf(name, sizeof name, "%s-%s", info->name, names[form]);
    if (mxa_cuda_form_refuses(info, form) || !check_entry(packed ? "form-packed" : "form", "cuda", name, 0))
        return;
    while (check_round()) {
        arena_clear();
        source s = pick_source(pick_dim());
        if (packed)
            s.host.shape[0] = s.device.shape[0] = 1;
        form_case f = pick_case(info, form, &s);
        if (packed && mxa_level_resolve(info, f.opts.level) == MXA_LEVEL_TENSOR)
            f.opts.level = f.g_written = MXA_LEVEL_HEAD; /* the CPU would see one sequence at a time */
        const packing p = packed ? pick_packing(&s) : (packing){ .n = 1 };
        mxa_cuda_rows rows = rows_of(&s.device);
        if (packed) {
            const check_buf table = check_bytes((size_t)p.n * sizeof p.sequences[0]);
            memcpy(table.data, p.sequences, table.bytes);
            rows.sequences = (const mxa_sequence *)(const void *)upload(table, 0);
            rows.n_sequences = p.n;
            rows.n_rows = p.n_rows;
            rows.n_blocks = p.n_blocks;
            rows.of_k = p.of_k;
        }
        const int64_t heads = s.host.shape[1];
        const size_t n_g = (size_t)(f.g_written == MXA_LEVEL_TOKEN         ? rows.n_rows
                                    : f.g_written == MXA_LEVEL_TOKEN_BLOCK ? rows.n_blocks
                                    : f.g_written == MXA_LEVEL_HEAD        ? rows.n_sequences * heads
                                                                           : 1);
        expected want = { check_bytes((size_t)(rows.n_rows * f.pitch)),
                          check_bytes((size_t)(rows.n_rows * f.scale_cols)), check_bytes(n_g * sizeof(float)),
                          check_bytes((size_t)rows.n_blocks) };
        const expected got = { check_bytes(want.codes.bytes), check_bytes(want.scales.bytes),
                               check_bytes(want.g.bytes), check_bytes(want.tiles.bytes) };
        memcpy(got.codes.data, want.codes.data, want.codes.bytes);
        memcpy(got.g.data, want.g.data, want.g.bytes);
        for (int64_t i = 0; i < p.n; i++) {
            const mxa_tensor x = packed ? view(&s, &p, i) : s.host;
            const mxa_sequence *const q = &p.sequences[i];
            const reference r = make_reference(&x, info, &f.opts);
            expect_sequence(&f, &r, p.of_k ? q->k_rows : q->q_rows, p.of_k ? q->k_blocks : q->q_blocks,
                            i * heads, &want);
        }
        const mxa_packed out = { upload(got.codes, 0), upload(got.scales, 0),
                                 (float *)(void *)upload(got.g, 0), upload(got.tiles, 0) };
        const mxa_cuda_copy copy = {
            .copy = { .spec = { info, mxa_rule_resolve(info, f.opts.rule), 0 },
                      .level = mxa_level_resolve(info, f.opts.level),
                      .rotate = f.opts.rotate,
                      .out = out },
            .form = form,
            .row_bytes = f.pitch,
            .g_written = f.g_written,
        };
        mxa_cuda_chain chain = { 0 };
        if (mxa_cuda_quantize(&rows, MXA_NONFINITE_PROPAGATE, 1, &copy, NULL, NULL,
                              work_for(&rows, MXA_NONFINITE_PROPAGATE, 1, &copy), &chain) != MXA_OK)
            check_fail("%s", mxa_error_text());
        must(cudaDeviceSynchronize(), "quantise");
        download(out.codes, got.codes);
        download(out.scales, got.scales);
        download(out.g, got.g);
        download(out.nonfinite_tiles, got.tiles);
        check_same("codes", want.codes, got.codes);
        if (f.scale_cols > 0)
            check_same("scales", want.scales, got.scales);
        check_same_floats("g", want.g, got.g);
        check_same("nonfinite_tiles", want.tiles, got.tiles);
    }
}

/* Beside an INT8 copy and alone. A sum of dim products has an error of dim roundings, in fp64 or fp32. */
static void check_bias(void)
{
    if (!check_entry("bias", "cuda", "any", 0))
        return;
    while (check_round()) {
        arena_clear();
        source s = pick_source(pick_dim());
        const int64_t heads = s.host.shape[1], dim = s.host.shape[3], per_kv = check_pick(0, 1) ? 1 : heads;
        const int64_t heads_kv = heads / per_kv, n = s.host.shape[0] * heads * s.host.shape[2];
        const check_buf mean = check_bytes((size_t)(s.host.shape[0] * heads_kv * dim) * sizeof(float));
        for (size_t i = 0; i < mean.bytes / sizeof(float); i++)
            ((float *)(void *)mean.data)[i] = check_normal();
        const check_buf got = check_bytes((size_t)n * sizeof(float));
        const mxa_cuda_bias bias = { (float *)(void *)upload(got, 0),
                                     (const float *)(const void *)upload(mean, 0), per_kv, 0.125f,
                                     check_pick(0, 1) };
        const check_buf codes = check_bytes((size_t)(n * dim)), g = check_bytes((size_t)n * sizeof(float));
        const mxa_cuda_copy copy = {
            .copy = { .spec = { mxa_format_get(MXA_FORMAT_INT8), MXA_RULE_DEFAULT, 0 },
                      .level = MXA_LEVEL_TOKEN,
                      .rotate = true,
                      .out = { .codes = upload(codes, 0), .g = (float *)(void *)upload(g, 0) } },
            .form = MXA_CUDA_CODES,
            .row_bytes = dim,
            .g_written = MXA_LEVEL_TOKEN
        };
        const mxa_cuda_rows rows = rows_of(&s.device);
        mxa_cuda_chain chain = { 0 };
        if (mxa_cuda_quantize(&rows, MXA_NONFINITE_PROPAGATE, (int)check_pick(0, 1), &copy, &bias, NULL, NULL,
                              &chain) != MXA_OK)
            check_fail("%s", mxa_error_text());
        must(cudaDeviceSynchronize(), "bias");
        download(bias.bias, got);
        float row[512];
        for (int64_t i = 0; i < n; i++) {
            const int64_t matrix = i / s.host.shape[2], b = matrix / heads, h = matrix % heads;
            const float *const mu =
                (const float *)(const void *)mean.data + (b * heads_kv + h / per_kv) * dim;
            mxa_row_load(&s.host, b, h, i % s.host.shape[2], row);
            double dot = 0, size = 0;
            for (int64_t d = 0; d < dim; d++) {
                dot += (double)row[d] * (double)mu[d];
                size += fabs((double)row[d] * (double)mu[d]);
            }
            const double want = 0.125 * dot, ulp = 0x1p-23, eps = bias.in_fp32 ? 0x1p-24 : 0x1p-53;
            const float value = ((const float *)(const void *)got.data)[i];
            /* Beyond fp32 the CPU gives Inf as well. */
            if (!check_close("bias", i, (double)(float)want, (double)value,
                             ulp * fabs(want) + 0.125 * (double)dim * eps * size))
                break;
        }
        check_guards("bias", got);
    }
}

void check_forms_cuda(void)
{
    for (int format = MXA_FORMAT_F32; format <= MXA_FORMAT_INT8; format++)
        for (int form = MXA_CUDA_CODES; form <= MXA_CUDA_F16; form++)
            for (int packed = 0; packed <= 1; packed++)
                check_form(mxa_format_get((mxa_format)format), (mxa_cuda_form)form, packed);
    check_bias();
}

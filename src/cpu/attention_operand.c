/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of the copies of Q and K, as kernels ask for them. */
#include "cpu/attention_cpu.h"

static mxa_rows rows_of(const mxa_operand *op, int64_t row, int64_t unit, int64_t batch, int64_t head,
                        int64_t first)
{
    return (mxa_rows){
        .operand = op,
        .codes = op->codes ? op->codes + row * op->row_bytes : NULL,
        .scales = op->scales ? op->scales + row * op->scale_cols : NULL,
        .g = op->g ? op->g + unit : NULL,
        .batch = batch,
        .head = head,
        .first = first,
    };
}

/* The first factor of a matrix: row its first row, block its first block, matrix its number. */
static int64_t first_unit(mxa_level level, int64_t matrix, int64_t block, int64_t row)
{
    switch (level) {
    case MXA_LEVEL_HEAD: return matrix;
    case MXA_LEVEL_TOKEN_BLOCK: return block;
    case MXA_LEVEL_TOKEN: return row;
    default: return 0;
    }
}

static int64_t blocks(int64_t rows)
{
    return (rows + MXA_TILE - 1) / MXA_TILE;
}

mxa_rows mxa_job_q(const mxa_attention_job *job, int copy, const mxa_sequence *s, int64_t h)
{
    const mxa_operand *const op = &job->q[copy];
    const int64_t row = s->q_rows + h * s->map.q_len, block = s->q_blocks + h * blocks(s->map.q_len);
    const int64_t matrix = (s - job->plan->sequences) * job->plan->problem.heads + h;
    return rows_of(op, row, first_unit(op->plan->level, matrix, block, row), s->batch, h, s->q_first);
}

mxa_rows mxa_job_k(const mxa_attention_job *job, int copy, const mxa_sequence *s, int64_t h_kv)
{
    const mxa_operand *const op = &job->k[copy];
    const int64_t row = s->k_rows + h_kv * s->map.kv_len, block = s->k_blocks + h_kv * blocks(s->map.kv_len);
    const int64_t matrix = (s - job->plan->sequences) * job->plan->problem.heads_kv + h_kv;
    return rows_of(op, row, first_unit(op->plan->level, matrix, block, row), s->batch, h_kv, s->k_first);
}

/* As mxa_bf16_from_f32, without branches. */
static void round_bf16(int64_t n, float *row)
{
    for (int64_t d = 0; d < n; d++) {
        const uint32_t bits = mxa_f32_bits(row[d]), mag = bits & 0x7FFFFFFFu;
        const uint32_t rounded = (bits + 0x7FFFu + (bits >> 16 & 1u)) & 0xFFFF0000u;
        const uint32_t largest = (bits & 0x80000000u) | 0x7F7F0000u;
        const uint32_t finite = mag < 0x7F7F8000u ? rounded : largest;
        row[d] = mxa_f32_from_bits(mag < MXA_F32_INF ? finite : bits);
    }
}

void mxa_row_load_as(const mxa_tensor *x, int64_t b, int64_t h, int64_t i, mxa_dtype type, float *row)
{
    const int64_t dim = x->shape[3];
    mxa_row_load(x, b, h, i, row);
    if (type == x->dtype || type == MXA_DTYPE_F32)
        return;
    if (type == MXA_DTYPE_BF16)
        round_bf16(dim, row);
    else
        for (int64_t d = 0; d < dim; d++)
            row[d] = mxa_f32_from_f16(mxa_f16_from_f32(row[d]));
}

static mxa_dtype plain_type(mxa_format format)
{
    return format == MXA_FORMAT_F32   ? MXA_DTYPE_F32
           : format == MXA_FORMAT_F16 ? MXA_DTYPE_F16
                                      : MXA_DTYPE_BF16;
}

void mxa_rows_load(const mxa_rows *rows, int64_t first, int64_t n, float *out, int64_t stride)
{
    const mxa_operand *const op = rows->operand;
    const int64_t dim = op->x->shape[3];
    if (rows->codes) {
        const uint8_t *const scales = rows->scales ? rows->scales + first * op->scale_cols : NULL;
        op->decode->fn(op->plan->info, rows->codes + first * op->row_bytes, scales, n, dim, out, stride);
        return;
    }
    for (int64_t r = 0; r < n; r++)
        mxa_row_load_as(op->x, rows->batch, rows->head, rows->first + first + r,
                        plain_type(op->plan->info->format), out + r * stride);
}

float mxa_rows_factor(const mxa_rows *rows, int64_t i)
{
    if (!rows->g)
        return 1.0f;
    switch (rows->operand->plan->level) {
    case MXA_LEVEL_TOKEN: return rows->g[i];
    case MXA_LEVEL_TOKEN_BLOCK: return rows->g[i / MXA_TILE];
    default: return rows->g[0];
    }
}

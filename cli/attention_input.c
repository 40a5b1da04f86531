/* SPDX-License-Identifier: Apache-2.0 */
#include "attention_input.h"

#include "cli.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    mxa_dtype dtype;
    int bytes;
} dtypes[] = { { "F32", MXA_DTYPE_F32, 4 }, { "F16", MXA_DTYPE_F16, 2 }, { "BF16", MXA_DTYPE_BF16, 2 } };

bool input_dtype(const st_tensor *tensor, mxa_dtype *dtype)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++)
        if (strcmp(tensor->dtype->name, dtypes[i].name) == 0) {
            *dtype = dtypes[i].dtype;
            return true;
        }
    return false;
}

int input_dtype_bytes(mxa_dtype dtype)
{
    return dtypes[dtype].bytes;
}

const char *input_dtype_name(mxa_dtype dtype)
{
    return dtypes[dtype].name;
}

/* Load q, k or v as [batch][heads][seq][dim]. */
static bool load_operand(attention_input *input, const char *name, mxa_tensor *out)
{
    const st_tensor *tensor = st_require(&input->file, name);
    mxa_dtype dtype;
    if (tensor == NULL)
        return false;
    if (!input_dtype(tensor, &dtype)) {
        cli_fail("%s: tensor \"%s\" is %s; it must be F32, F16 or BF16", input->file.path, name,
                 tensor->dtype->name);
        return false;
    }
    if (tensor->rank != 3 && tensor->rank != 4) {
        cli_fail(
            "%s: tensor \"%s\" has %zu dimensions; it must be [heads, seq, dim] or [batch, heads, seq, dim]",
            input->file.path, name, tensor->rank);
        return false;
    }
    if (input->rank != 0 && tensor->rank != input->rank) {
        cli_fail("%s: tensor \"%s\" has %zu dimensions and \"q\" has %zu; they must have as many",
                 input->file.path, name, tensor->rank, input->rank);
        return false;
    }
    input->rank = tensor->rank;
    void *data = st_load(&input->file, tensor);
    if (data == NULL)
        return false;
    const int64_t *shape = tensor->shape + (tensor->rank - 3);
    const int64_t batch = tensor->rank == 4 ? tensor->shape[0] : 1;
    *out = mxa_tensor_contiguous(data, dtype, batch, shape[0], shape[1], shape[2]);
    return true;
}

/* "tensor a has 3 heads, b 2" if one size of two tensors differs. */
static bool same_size(const attention_input *input, int axis, const char *what, const char *a_name,
                      const mxa_tensor *a, const char *b_name, const mxa_tensor *b)
{
    if (a->shape[axis] == b->shape[axis])
        return true;
    cli_fail("%s: tensor \"%s\" has %s %" PRId64 " and \"%s\" has %" PRId64 "; they must be equal",
             input->file.path, a_name, what, a->shape[axis], b_name, b->shape[axis]);
    return false;
}

static bool check_shapes(const attention_input *input)
{
    const mxa_tensor *q = &input->q, *k = &input->k, *v = &input->v;
    if (!same_size(input, 0, "batch size", "q", q, "k", k) || !same_size(input, 3, "dim", "q", q, "k", k) ||
        !same_size(input, 0, "batch size", "k", k, "v", v) || !same_size(input, 1, "heads", "k", k, "v", v) ||
        !same_size(input, 2, "length", "k", k, "v", v))
        return false;
    if (k->shape[1] > 0 && q->shape[1] % k->shape[1] == 0)
        return true;
    cli_fail("%s: tensor \"q\" has %" PRId64 " heads, which is no multiple of the %" PRId64 " of \"k\"",
             input->file.path, q->shape[1], k->shape[1]);
    return false;
}

/* A tensor of one dimension and one dtype, with 4-byte elements, if the file has it. */
static bool load_vector(attention_input *input, const char *name, const char *dtype, void **out,
                        int64_t *length)
{
    const st_tensor *tensor = st_find(&input->file, name);
    if (tensor == NULL)
        return true;
    if (strcmp(tensor->dtype->name, dtype) != 0 || tensor->rank != 1) {
        cli_fail("%s: tensor \"%s\" is %s with %zu dimensions; it must be %s with 1", input->file.path, name,
                 tensor->dtype->name, tensor->rank, dtype);
        return false;
    }
    *length = tensor->shape[0];
    *out = st_load(&input->file, tensor);
    return *out != NULL;
}

static bool load_sinks(attention_input *input)
{
    int64_t length = 0;
    if (!load_vector(input, "sinks", "F32", (void **)&input->sinks, &length))
        return false;
    if (input->sinks == NULL || length == input->q.shape[1])
        return true;
    cli_fail("%s: tensor \"sinks\" has %" PRId64 " elements; it must have one for each of the %" PRId64
             " heads of \"q\"",
             input->file.path, length, input->q.shape[1]);
    return false;
}

/* Offsets ascend from 0 and stay within the rows of q or k. */
static bool check_offsets(const attention_input *input, const char *name, const int32_t *offsets,
                          int64_t length, int64_t rows)
{
    for (int64_t i = 0; i < length; i++) {
        if (i == 0 ? offsets[0] == 0 : offsets[i] >= offsets[i - 1] && offsets[i] <= rows)
            continue;
        cli_fail("%s: tensor \"%s\": element %" PRId64 " is %" PRId32
                 "; offsets must ascend from 0 to at most %" PRId64,
                 input->file.path, name, i, offsets[i], rows);
        return false;
    }
    return true;
}

static bool load_offsets(attention_input *input)
{
    static const char *const names[2] = { "cu_seqlens_q", "cu_seqlens_k" };
    const int64_t rows[2] = { input->q.shape[2], input->k.shape[2] };
    int64_t length[2] = { 0, 0 };
    for (int i = 0; i < 2; i++)
        if (!load_vector(input, names[i], "I32", (void **)&input->cu_seqlens[i], &length[i]))
            return false;
    if (input->cu_seqlens[0] == NULL && input->cu_seqlens[1] == NULL)
        return true;
    if (length[0] != length[1] || length[0] == 0) {
        cli_fail("%s: \"cu_seqlens_q\" has %" PRId64 " elements and \"cu_seqlens_k\" %" PRId64
                 "; both must have one more than there are sequences",
                 input->file.path, length[0], length[1]);
        return false;
    }
    if (input->rank != 3) {
        cli_fail("%s: tensor \"q\" has 4 dimensions; with cu_seqlens it must be [heads, total, dim]",
                 input->file.path);
        return false;
    }
    return check_offsets(input, names[0], input->cu_seqlens[0], length[0], rows[0]) &&
           check_offsets(input, names[1], input->cu_seqlens[1], length[1], rows[1]) &&
           (input->seq_count = length[0] - 1, true);
}

static void set_problem(attention_input *input, const attention_options *options)
{
    const mxa_tensor *q = &input->q, *k = &input->k, *v = &input->v;
    mxa_problem *p = &input->problem;
    mxa_problem_default(p, input->seq_count, q->shape[1], k->shape[1], q->shape[2], k->shape[2], q->shape[3]);
    p->head_dim_v = v->shape[3];
    p->q_dtype = p->out_dtype = q->dtype;
    p->k_dtype = k->dtype;
    p->v_dtype = v->dtype;
    p->cu_seqlens_q = input->cu_seqlens[0];
    p->cu_seqlens_k = input->cu_seqlens[1];
    attention_options_apply(options, p);
}

bool input_open(attention_input *input, const char *path, const attention_options *options)
{
    *input = INPUT_NONE;
    if (!st_open(&input->file, path) || !load_operand(input, "q", &input->q) ||
        !load_operand(input, "k", &input->k) || !load_operand(input, "v", &input->v) ||
        !check_shapes(input) || !load_sinks(input))
        return false;
    input->seq_count = input->q.shape[0];
    if (!load_offsets(input))
        return false;
    input->matrices = input->q.shape[0] * input->q.shape[1];
    set_problem(input, options);
    return true;
}

void input_close(attention_input *input)
{
    st_close(&input->file);
    free(input->q.data);
    free(input->k.data);
    free(input->v.data);
    free(input->sinks);
    free(input->cu_seqlens[0]);
    free(input->cu_seqlens[1]);
}

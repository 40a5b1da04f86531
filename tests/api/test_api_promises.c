/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the library promises beyond the formula: views of any stride, rows independent of their
 * batch mates, chunks, inputs left alone.
 */
#include "api_support.h"

#include <math.h>
#include <string.h>

enum { DIM = 64 };

/* [batch][seq][heads][dim] memory seen as [batch][heads][seq][dim], rows pad elements longer than dim. */
static mxa_tensor transposed(const mxa_tensor *t, int64_t pad)
{
    const int64_t *n = t->shape, row = n[3] + pad;
    mxa_tensor view = api_tensor(t->dtype, n[0], n[2], n[1], row);
    memcpy(view.shape, n, sizeof view.shape);
    view.stride[1] = row;
    view.stride[2] = n[1] * row;
    api_copy(&view, t);
    return view;
}

/* The rows from last to first. */
static mxa_tensor reversed(const mxa_tensor *t)
{
    mxa_tensor view = api_tensor(t->dtype, t->shape[0], t->shape[1], t->shape[2], t->shape[3]);
    view.data = (char *)view.data + (t->shape[2] - 1) * t->shape[3] * (t->dtype == MXA_DTYPE_F32 ? 4 : 2);
    view.stride[2] = -t->shape[3];
    api_copy(&view, t);
    return view;
}

static api_call causal_call(const char *recipe, int64_t batch, int64_t q_len, int64_t kv_len)
{
    api_call call = api_call_new(batch, 4, 2, q_len, kv_len, DIM);
    call.recipe = recipe;
    call.problem.causal = true;
    api_random_inputs(&call, 21);
    return call;
}

static void test_strides(void **state)
{
    for (int r = 0; api_recipes[r] != NULL; r++)
        for (int pad = 0; pad < 10; pad += 9) {
            api_call call = causal_call(api_recipes[r], 2, 20, 150);
            api_attend(&call);
            api_call view = call;
            view.q = transposed(&call.q, pad);
            view.k = reversed(&call.k);
            view.v = transposed(&call.v, 3 * pad);
            view.out = pad == 0 ? reversed(&call.out) : transposed(&call.out, pad);
            api_set_all(&view.out, NAN);
            api_attend(&view);
            api_same_bits(&call.out, &view.out);
            api_teardown(state);
        }
}

/* One q row read for all queries, one K and V for all batches: stride 0. */
static void test_broadcast_inputs(void **state)
{
    for (int r = 0; api_recipes[r] != NULL; r++) {
        api_call call = causal_call(api_recipes[r], 2, 20, 150);
        api_call view = call;
        view.q.stride[2] = view.k.stride[0] = view.v.stride[0] = 0;
        api_copy(&call.q, &view.q);
        api_copy(&call.k, &view.k);
        api_copy(&call.v, &view.v);
        api_attend(&call);
        view.out = api_tensor(MXA_DTYPE_F32, 2, 4, 20, DIM);
        api_attend(&view);
        api_same_bits(&call.out, &view.out);
        api_teardown(state);
    }
}

/* q, k and v are slices of one packed [seq][q heads, k heads, v heads][dim]. */
static void test_packed_qkv(void **state)
{
    (void)state;
    api_call call = causal_call("dma8", 1, 150, 150);
    api_attend(&call);
    const mxa_tensor packed = api_tensor(MXA_DTYPE_F32, 1, 150, 4 + 2 + 2, DIM);
    api_call view = call;
    mxa_tensor *const slices[] = { &view.q, &view.k, &view.v };
    const mxa_tensor *const sources[] = { &call.q, &call.k, &call.v };
    int64_t first = 0;
    for (int i = 0; i < 3; i++) {
        slices[i]->data = (float *)packed.data + first * DIM;
        slices[i]->stride[1] = DIM;
        slices[i]->stride[2] = 8 * DIM;
        api_copy(slices[i], sources[i]);
        first += sources[i]->shape[1];
    }
    view.out = api_tensor(MXA_DTYPE_F32, 1, 4, 150, DIM);
    api_attend(&view);
    api_same_bits(&call.out, &view.out);
}

/* The stride of an axis of size 1 is never used, whatever it is; so is any stride of an empty tensor. */
static void test_strides_of_single_elements(void **state)
{
    (void)state;
    static const int64_t odd[] = { 0, -7, INT64_MAX, INT64_MIN };
    api_call call = causal_call("dma8", 1, 1, 9);
    api_attend(&call);
    for (int i = 0; i < 4; i++) {
        api_call view = call;
        view.out = api_tensor(MXA_DTYPE_F32, 1, 4, 1, DIM);
        view.q.stride[0] = view.k.stride[0] = view.v.stride[0] = view.out.stride[0] = odd[i];
        view.q.stride[2] = view.out.stride[2] = odd[i];
        api_attend(&view);
        api_same_bits(&call.out, &view.out);
        api_call empty = causal_call("dma8", 0, 1, 9);
        empty.q.stride[1] = empty.k.stride[2] = empty.out.stride[2] = odd[i];
        api_attend(&empty);
    }
}

/* The plan keeps offsets of its own. */
static void test_offsets_are_copied(void **state)
{
    (void)state;
    int32_t cu_q[] = { 0, 7, 20 }, cu_k[] = { 0, 100, 150 };
    api_call call = causal_call("dma8", 1, 20, 150);
    call.problem.batch = 2;
    call.problem.cu_seqlens_q = cu_q;
    call.problem.cu_seqlens_k = cu_k;
    api_attend(&call);
    const mxa_tensor out = api_tensor(MXA_DTYPE_F32, 1, 4, 20, DIM);
    mxa_attention_args args = { .size = sizeof args, .q = &call.q, .k = &call.k, .v = &call.v, .out = &out };
    mxa_plan *plan;
    api_ok(mxa_plan_create(&call.problem, NULL, &plan));
    memset(cu_q, 0xFF, sizeof cu_q);
    memset(cu_k, 0x7F, sizeof cu_k);
    args.work_bytes = mxa_plan_work_bytes(plan);
    args.work = api_bytes(args.work_bytes);
    api_ok(mxa_attention(plan, &args));
    api_same_bits(&call.out, &out);
    mxa_plan_free(plan);
}

static void test_batch_mates(void **state)
{
    for (int r = 0; api_recipes[r] != NULL; r++) {
        api_call both = causal_call(api_recipes[r], 2, 20, 200);
        for (int64_t h = 0; h < 4; h++)
            api_set_row(&both.q, 0, h, 3, NAN);
        api_attend(&both);
        api_call alone = causal_call(api_recipes[r], 1, 20, 200);
        alone.q = both.q;
        alone.k = both.k;
        alone.v = both.v;
        alone.q.shape[0] = alone.k.shape[0] = alone.v.shape[0] = 1;
        alone.q.data = (float *)both.q.data + both.q.stride[0];
        alone.k.data = (float *)both.k.data + both.k.stride[0];
        alone.v.data = (float *)both.v.data + both.v.stride[0];
        api_attend(&alone);
        assert_memory_equal(alone.out.data, (float *)both.out.data + both.out.stride[0],
                            4 * 20 * DIM * sizeof(float));
        assert_memory_equal(alone.lse, both.lse + 4 * 20, 4 * 20 * sizeof(float));
        api_teardown(state);
    }
}

/* Sequences packed behind each other give the bits that each gives alone; rows past the last are 0, -inf. */
static void test_packed_sequences(void **state)
{
    enum { Q_ROWS = 200, K_ROWS = 420, SEQUENCES = 5 };
    static const int32_t cu_q[] = { 0, 0, 70, 71, 76, 160 }, cu_k[] = { 0, 3, 203, 333, 333, 400 };
    for (int r = 0; api_recipes[r] != NULL; r++) {
        api_call packed = causal_call(api_recipes[r], 1, Q_ROWS, K_ROWS);
        packed.problem.batch = SEQUENCES;
        packed.problem.cu_seqlens_q = cu_q;
        packed.problem.cu_seqlens_k = cu_k;
        api_attend(&packed);
        for (int s = 0; s < SEQUENCES; s++) {
            const int64_t q_len = cu_q[s + 1] - cu_q[s], kv_len = cu_k[s + 1] - cu_k[s];
            api_call alone = causal_call(api_recipes[r], 1, q_len, kv_len);
            alone.q = api_rows(&packed.q, cu_q[s], q_len);
            alone.k = api_rows(&packed.k, cu_k[s], kv_len);
            alone.v = api_rows(&packed.v, cu_k[s], kv_len);
            api_attend(&alone);
            const mxa_tensor part = api_rows(&packed.out, cu_q[s], q_len);
            api_same_bits(&alone.out, &part);
            for (int64_t i = 0; i < 4 * q_len; i++)
                assert_memory_equal(&alone.lse[i], &packed.lse[i / q_len * Q_ROWS + cu_q[s] + i % q_len],
                                    sizeof(float));
        }
        for (int64_t i = 160; i < Q_ROWS; i++)
            for (int64_t h = 0; h < 4; h++) {
                assert_true(api_get(&packed.out, 0, h, i, 0) == 0 &&
                            api_get(&packed.out, 0, h, i, DIM - 1) == 0);
                assert_true(packed.lse[h * Q_ROWS + i] == -INFINITY);
            }
        api_teardown(state);
    }
}

/*
 * Chunks of a prefill and single steps read the same operands as the whole, so they differ by summation
 * only.
 */
static void test_chunks(void **state)
{
    enum { LEN = 300 };
    static const int64_t chunk_ends[] = { 1, 128, 200, LEN };
    for (int r = 0; api_recipes[r] != NULL; r++) {
        api_call whole = causal_call(api_recipes[r], 1, LEN, LEN);
        api_attend(&whole);
        api_tolerance tolerance = api_tolerance_of(&whole);
        tolerance.dot *= 2;
        tolerance.logit *= 2;
        tolerance.p = 2 * tolerance.p + ldexp(1, -23); /* both results are rounded */
        tolerance.sum *= 2;
        tolerance.exp2 *= 2;
        int64_t first = 0;
        for (int c = 0; c < 4; c++) {
            const int64_t end = chunk_ends[c], q_len = end - first;
            api_call chunk = causal_call(api_recipes[r], 1, q_len, end);
            chunk.q = api_rows(&whole.q, first, q_len);
            chunk.k = api_rows(&whole.k, 0, end);
            chunk.v = api_rows(&whole.v, 0, end);
            api_attend(&chunk);
            api_expected want = api_oracle(&chunk);
            for (int64_t row = 0; row < want.rows; row++) {
                want.lse[row] = whole.lse[row / q_len * LEN + first + row % q_len];
                for (int64_t d = 0; d < DIM; d++)
                    want.o[row * DIM + d] = api_get(&whole.out, 0, row / q_len, first + row % q_len, d);
            }
            api_check(&chunk, &want, tolerance);
            first = end;
        }
        api_teardown(state);
    }
}

/*
 * Windows up to the largest integer hide nothing; positions far away see all keys of a causal call, or none.
 */
static void test_large_windows_and_offsets(void **state)
{
    static const int64_t large[] = { INT64_MAX, INT64_MAX - 1, INT64_C(1) << 62 };
    const int64_t far = INT64_C(1) << 50;
    for (int r = 0; api_recipes[r] != NULL; r++) {
        api_call call = causal_call(api_recipes[r], 1, 5, 300);
        call.problem.causal = false;
        api_attend(&call);
        api_call other = call;
        other.out = api_tensor(MXA_DTYPE_F32, 1, 4, 5, DIM);
        for (int i = 0; i < 9; i++) {
            other.problem.window_left = large[i % 3];
            other.problem.window_right = large[i / 3];
            api_attend(&other);
            api_same_bits(&call.out, &other.out);
        }
        call.problem.q_offset = other.problem.q_offset = far;
        other.problem.causal = true;
        api_attend(&call);
        api_attend(&other);
        api_same_bits(&call.out, &other.out);
        other.problem.q_offset = -far;
        api_attend(&other);
        api_set_all(&call.out, 0);
        api_same_bits(&call.out, &other.out);
        api_teardown(state);
    }
}

static void test_inputs_stay(void **state)
{
    for (int r = 0; api_recipes[r] != NULL; r++) {
        api_call call = causal_call(api_recipes[r], 1, 20, 200);
        const size_t q_bytes = 4 * 20 * DIM * sizeof(float), k_bytes = 2 * 200 * DIM * sizeof(float);
        void *const q = memcpy(api_bytes(q_bytes), call.q.data, q_bytes);
        void *const k = memcpy(api_bytes(k_bytes), call.k.data, k_bytes);
        void *const v = memcpy(api_bytes(k_bytes), call.v.data, k_bytes);
        api_attend(&call);
        assert_memory_equal(q, call.q.data, q_bytes);
        assert_memory_equal(k, call.k.data, k_bytes);
        assert_memory_equal(v, call.v.data, k_bytes);
        api_teardown(state);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        API_TEST(test_strides),
        API_TEST(test_broadcast_inputs),
        API_TEST(test_packed_qkv),
        API_TEST(test_strides_of_single_elements),
        API_TEST(test_offsets_are_copied),
        API_TEST(test_batch_mates),
        API_TEST(test_packed_sequences),
        API_TEST(test_chunks),
        API_TEST(test_large_windows_and_offsets),
        API_TEST(test_inputs_stay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

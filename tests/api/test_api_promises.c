/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the library promises beyond the formula: views of any stride, memory that masks hide, rows
 * independent of their batch mates, chunks, inputs left alone.
 */
#include "api_support.h"

#include <math.h>
#include <string.h>

enum { DIM = 64 };

static void copy_into(const mxa_tensor *to, const mxa_tensor *from)
{
    const int64_t *n = to->shape;
    for (int64_t i = 0; i < n[0] * n[1] * n[2] * n[3]; i++) {
        const int64_t b = i / (n[1] * n[2] * n[3]), h = i / (n[2] * n[3]) % n[1], s = i / n[3] % n[2],
                      d = i % n[3];
        api_set(to, b, h, s, d, api_get(from, b, h, s, d));
    }
}

/* [batch][seq][heads][dim] memory seen as [batch][heads][seq][dim], rows pad elements longer than dim. */
static mxa_tensor transposed(const mxa_tensor *t, int64_t pad)
{
    const int64_t *n = t->shape, row = n[3] + pad;
    mxa_tensor view = api_tensor(t->dtype, n[0], n[2], n[1], row);
    memcpy(view.shape, n, sizeof view.shape);
    view.stride[1] = row;
    view.stride[2] = n[1] * row;
    copy_into(&view, t);
    return view;
}

/* The rows from last to first. */
static mxa_tensor reversed(const mxa_tensor *t)
{
    mxa_tensor view = api_tensor(t->dtype, t->shape[0], t->shape[1], t->shape[2], t->shape[3]);
    view.data = (char *)view.data + (t->shape[2] - 1) * t->shape[3] * (t->dtype == MXA_DTYPE_F32 ? 4 : 2);
    view.stride[2] = -t->shape[3];
    copy_into(&view, t);
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
            view.out = transposed(&call.out, pad);
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
        copy_into(&call.q, &view.q);
        copy_into(&call.k, &view.k);
        copy_into(&call.v, &view.v);
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
        copy_into(slices[i], sources[i]);
        first += sources[i]->shape[1];
    }
    view.out = api_tensor(MXA_DTYPE_F32, 1, 4, 150, DIM);
    api_attend(&view);
    api_same_bits(&call.out, &view.out);
}

/* Causal, window: what no row sees may hold anything, also inside a tile that others see in part. */
static void test_masked_memory(void **state)
{
    static const float poison[] = { NAN, INFINITY, -INFINITY };
    for (int r = 0; api_recipes[r] != NULL; r++)
        for (int i = 0; i < 3; i++) {
            api_call clean = causal_call(api_recipes[r], 1, 20, 300), dirty = clean;
            const int64_t offset = 200; /* keys 220 to 299 lie in the future of all rows */
            clean.problem.q_offset = dirty.problem.q_offset = offset;
            dirty.k = api_tensor(MXA_DTYPE_F32, 1, 2, 300, DIM);
            dirty.v = api_tensor(MXA_DTYPE_F32, 1, 2, 300, DIM);
            dirty.out = api_tensor(MXA_DTYPE_F32, 1, 4, 20, DIM);
            for (int64_t j = offset + 20; j < 300; j++)
                for (int64_t h = 0; h < 2; h++) {
                    api_set_row(&clean.k, 0, h, j, 0);
                    api_set_row(&clean.v, 0, h, j, 0);
                }
            copy_into(&dirty.k, &clean.k);
            copy_into(&dirty.v, &clean.v);
            for (int64_t j = offset + 20; j < 300; j++)
                for (int64_t h = 0; h < 2; h++) {
                    api_set_row(&dirty.k, 0, h, j, poison[i]);
                    api_set_row(&dirty.v, 0, h, j, poison[i]);
                }
            api_attend(&clean);
            dirty.lse = api_floats(4 * 20);
            api_attend(&dirty);
            api_same_bits(&clean.out, &dirty.out);
            assert_memory_equal(clean.lse, dirty.lse, 4 * 20 * sizeof(float));
            api_teardown(state);
        }
}

/*
 * NaN in a key reaches the rows that see it, whole; NaN in a value its channel of them; the rest stays as it
 * was.
 */
static void test_visible_nan(void **state)
{
    enum { KEY = 290, SEES = 10 }; /* rows 10 to 19 of 20 see key 290 of 300 */
    for (int r = 0; api_recipes[r] != NULL; r++) {
        api_call clean = causal_call(api_recipes[r], 1, 20, 300), dirty = clean;
        api_set_row(&clean.k, 0, 0, KEY, 0);
        api_set(&clean.v, 0, 1, KEY, 7, 0);
        api_attend(&clean);
        api_set(&dirty.k, 0, 0, KEY, 5, NAN);
        api_set(&dirty.v, 0, 1, KEY, 7, NAN);
        dirty.out = api_tensor(MXA_DTYPE_F32, 1, 4, 20, DIM);
        dirty.lse = api_floats(4 * 20);
        api_attend(&dirty);
        for (int64_t i = 0; i < 4 * 20 * DIM; i++) {
            const int64_t h = i / (20 * DIM), s = i / DIM % 20, d = i % DIM;
            const double got = api_get(&dirty.out, 0, h, s, d), was = api_get(&clean.out, 0, h, s, d);
            if (s >= SEES && (h < 2 || d == 7))
                assert_true(isnan(got));
            else
                assert_true(got == was);
            assert_int_equal(s >= SEES && h < 2, isnan(dirty.lse[h * 20 + s]));
        }
        api_teardown(state);
    }
}

/* An infinite value reaches its channel even where its weight underflows; both signs give NaN. */
static void test_visible_infinity(void **state)
{
    for (int r = 0; api_recipes[r] != NULL; r++) {
        api_call call = causal_call(api_recipes[r], 1, 1, 200);
        api_set_all(&call.q, 8);
        api_set_all(&call.k, 8);
        for (int64_t h = 0; h < 2; h++)
            api_set_row(&call.k, 0, h, 150, -8);
        api_set(&call.v, 0, 0, 150, 3, INFINITY);
        api_set(&call.v, 0, 1, 150, 4, -INFINITY);
        api_set(&call.v, 0, 1, 160, 4, INFINITY);
        api_attend(&call);
        assert_true(api_get(&call.out, 0, 0, 0, 3) == INFINITY);
        assert_true(api_get(&call.out, 0, 1, 0, 3) == INFINITY);
        assert_true(isnan(api_get(&call.out, 0, 2, 0, 4)));
        assert_true(isfinite(api_get(&call.out, 0, 0, 0, 5)));
        api_teardown(state);
    }
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
        API_TEST(test_strides),       API_TEST(test_broadcast_inputs), API_TEST(test_packed_qkv),
        API_TEST(test_masked_memory), API_TEST(test_visible_nan),      API_TEST(test_visible_infinity),
        API_TEST(test_batch_mates),   API_TEST(test_packed_sequences), API_TEST(test_chunks),
        API_TEST(test_inputs_stay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host side of attention on CUDA without a GPU: which entry a plan takes, what lies where in the
 * workspace, what a call queues in which order, and that it neither allocates nor waits nor changes the
 * current device. The CUDA runtime (fake_cudart.c), the quantiser and the two entries here only write down
 * what they are asked for.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "cuda/attention_plan_cuda.h"
#include "fake_cudart.h"

enum { BATCH = 2, HEADS = 4, HEADS_KV = 2, TOKENS = 200, DIM = 64, WORK_LEFT = 7, ENTRY_WORK = 1000 };

/* ------------------------------------------------------------------ what is asked for */

/* "mean k q v fast" in the order of the calls. */
static char queued[64];
static mxa_cuda_copy copies_made[3][MXA_COPIES]; /* of Q, K, V */
static mxa_cuda_rows rows_seen[3];
static mxa_cuda_job job_seen;
static const float *mean_seen;
static mxa_status launch_status;

typedef struct part {
    const void *data;
    int64_t bytes;
} part;

static part cleared;

static void note(const char *word)
{
    strcat(queued, *queued ? " " : "");
    strcat(queued, word);
}

mxa_status mxa_cuda_channel_mean(const mxa_cuda_rows *rows, int64_t n_tokens, float *mean, void *clear,
                                 int64_t clear_bytes, mxa_cuda_chain *chain)
{
    assert_true(rows->of_k && n_tokens == MXA_TILE && !chain->open);
    mean_seen = mean;
    cleared = (part){ clear, clear_bytes };
    note("mean");
    return MXA_OK;
}

mxa_status mxa_cuda_quantize(const mxa_cuda_rows *rows, mxa_nonfinite policy, int n,
                             const mxa_cuda_copy *copies, const mxa_cuda_bias *bias, int64_t *n_bad,
                             void *work, mxa_cuda_chain *chain)
{
    assert_true(chain->may_overlap == (fake.arch >= MXA_CUDA_OVERLAP_ARCH));
    assert_true(policy == MXA_NONFINITE_PROPAGATE && !n_bad && work);
    const int which = !rows->of_k                           ? MXA_CUDA_Q
                      : copies[0].copy.spec.info->quantized ? MXA_CUDA_K
                                                            : MXA_CUDA_V;
    for (int i = 0; i < n; i++)
        assert_true(copies[i].tiles_are_zero);
    memcpy(copies_made[which], copies, (size_t)n * sizeof *copies);
    rows_seen[which] = *rows;
    assert_int_equal(bias != NULL, which == MXA_CUDA_Q);
    if (bias)
        assert_true(bias->mean == mean_seen && bias->heads_per_kv == HEADS / HEADS_KV);
    static const char *const words[] = { "q", "k", "v" };
    note(words[which]);
    return MXA_OK;
}

int64_t mxa_cuda_quantize_work_bytes(const mxa_cuda_rows *rows, mxa_nonfinite policy, int n,
                                     const mxa_cuda_copy *copies)
{
    (void)rows, (void)policy, (void)n, (void)copies;
    return WORK_LEFT;
}

const char *mxa_cuda_form_refuses(const mxa_format_info *info, mxa_cuda_form form)
{
    const bool folds = form == MXA_CUDA_E5M2 || form == MXA_CUDA_E4M3;
    return folds && info->format != MXA_FORMAT_MXFP4 ? "does not fold" : NULL;
}

int64_t mxa_cuda_form_row_bytes(const mxa_format_info *info, mxa_cuda_form form, int64_t dim)
{
    return form == MXA_CUDA_BF16 || form == MXA_CUDA_F16 ? 2 * dim
           : form == MXA_CUDA_CODES                      ? (dim * info->element_bits + 7) / 8
                                                         : dim;
}

mxa_status mxa_cuda_fill_rows(const mxa_tensor *out, float *lse, const float *sinks, int64_t first,
                              cudaStream_t stream)
{
    (void)out, (void)lse, (void)stream;
    note(sinks ? "empty-with-sinks" : first > 0 ? "tail" : "empty");
    return MXA_OK;
}

/* ------------------------------------------------------------------ two entries */

/* One that takes MXFP4 keys folded, head dims to 128, and no odd strides. */
static const char *fast_refuses(const mxa_plan *plan)
{
    return plan->problem.head_dim > 128 ? "has no head_dim above 128" : NULL;
}

static mxa_cuda_forms fast_forms(const mxa_plan *plan)
{
    return (mxa_cuda_forms){
        .q = { MXA_CUDA_CODES, MXA_CUDA_TENSOR },
        .k = { plan->recipe.low_k == MXA_FORMAT_MXFP4 ? MXA_CUDA_E5M2 : MXA_CUDA_CODES, MXA_CUDA_TENSOR },
        .v = plan->problem.v_dtype == MXA_DTYPE_F32 ? MXA_CUDA_BF16 : MXA_CUDA_TENSOR,
        .nonfinite_tiles = true,
    };
}

static const char *fast_unsuited(const mxa_cuda_job *job)
{
    const bool reads_tensor = job->q[MXA_HIGH].form == MXA_CUDA_TENSOR;
    return reads_tensor && job->q[MXA_HIGH].x.stride[2] % 8 != 0 ? "rows of Q are not 16-byte aligned" : NULL;
}

static mxa_status fast_run(const mxa_cuda_job *job, cudaStream_t stream)
{
    (void)stream;
    job_seen = *job;
    note("fast");
    return launch_status == MXA_OK ? MXA_OK : mxa_fail(launch_status, "fast: launch failure");
}

static int64_t fast_table_bytes(const mxa_plan *plan, const mxa_cuda_device *device)
{
    return plan->n_tiles + device->multiprocessors;
}

static void fast_table(const mxa_plan *plan, const mxa_cuda_device *device, void *out)
{
    memset(out, 0x5A, (size_t)fast_table_bytes(plan, device));
}

static mxa_cuda_forms any_forms(const mxa_plan *plan)
{
    (void)plan;
    return (mxa_cuda_forms){ .q = { MXA_CUDA_BF16, MXA_CUDA_BF16 },
                             .k = { MXA_CUDA_BF16, MXA_CUDA_BF16 },
                             .v = MXA_CUDA_TENSOR,
                             .q_factors = { MXA_LEVEL_TOKEN, MXA_LEVEL_TOKEN } };
}

static int64_t any_work_bytes(const mxa_plan *plan, const mxa_cuda_device *device)
{
    (void)plan, (void)device;
    return ENTRY_WORK;
}

static mxa_status any_run(const mxa_cuda_job *job, cudaStream_t stream)
{
    (void)stream;
    job_seen = *job;
    note("any");
    return MXA_OK;
}

const mxa_cuda_attention_impl mxa_cuda_attention_impls[] = {
    { .name = "fast",
      .arch = 90,
      .arch_exact = true,
      .refuses = fast_refuses,
      .forms = fast_forms,
      .unsuited = fast_unsuited,
      .table_bytes = fast_table_bytes,
      .table = fast_table,
      .run = fast_run },
    { .name = "any", .arch = 80, .forms = any_forms, .work_bytes = any_work_bytes, .run = any_run },
    { .name = NULL },
};

/* ------------------------------------------------------------------ problems */

typedef struct call {
    mxa_plan *plan;
    mxa_tensor q, k, v, out;
    mxa_attention_args args;
} call;

static int setup(void **state)
{
    (void)state;
    fake_reset();
    *queued = 0;
    launch_status = MXA_OK;
    return 0;
}

static mxa_status build(const char *recipe_text, mxa_problem p, mxa_plan **plan)
{
    mxa_recipe recipe;
    assert_int_equal(mxa_recipe_parse(recipe_text, &recipe), MXA_OK);
    assert_int_equal(mxa_plan_build(&p, &recipe, plan), MXA_OK);
    return mxa_cuda_attention_plan(*plan, NULL);
}

static mxa_problem problem(int64_t q_len, int64_t kv_len)
{
    mxa_problem p;
    mxa_problem_default(&p, BATCH, HEADS, HEADS_KV, q_len, kv_len, DIM);
    p.q_dtype = p.k_dtype = p.out_dtype = MXA_DTYPE_BF16;
    p.device = (mxa_device)(MXA_DEVICE_CUDA_0 + 1);
    return p;
}

static mxa_tensor device_tensor(mxa_dtype dtype, int64_t batch, int64_t heads, int64_t len)
{
    const size_t bytes = (size_t)(batch * heads * len * DIM * mxa_dtype_bytes(dtype));
    return mxa_tensor_contiguous(fake_memory(1, bytes), dtype, batch, heads, len, DIM);
}

static void open_call(call *c, const char *recipe, mxa_problem p)
{
    *c = (call){ .plan = NULL };
    assert_int_equal(build(recipe, p, &c->plan), MXA_OK);
    assert_int_equal(fake.copies_under_way, 0); /* the call's stream may be one that does not wait */
    const int64_t batch = p.cu_seqlens_q ? 1 : p.batch;
    c->q = device_tensor(p.q_dtype, batch, p.heads, p.q_len);
    c->k = device_tensor(p.k_dtype, batch, p.heads_kv, p.kv_len);
    c->v = device_tensor(p.v_dtype, batch, p.heads_kv, p.kv_len);
    c->out = device_tensor(p.out_dtype, batch, p.heads, p.q_len);
    c->args = (mxa_attention_args){ .size = sizeof c->args,
                                    .q = &c->q,
                                    .k = &c->k,
                                    .v = &c->v,
                                    .out = &c->out,
                                    .work = fake_memory(1, c->plan->work_bytes),
                                    .work_bytes = c->plan->work_bytes };
    fake.alloc_calls = fake.waits = 0;
}

static void close_call(call *c)
{
    mxa_plan_free(c->plan);
}

/* ------------------------------------------------------------------ tests */

static void test_order(void **state)
{
    (void)state;
    call c;
    open_call(&c, "dma4", problem(TOKENS, TOKENS)); /* V is F32 */
    fake.context = fake_context(0);
    assert_int_equal(mxa_cuda_attention(c.plan, &c.args), MXA_OK);
    assert_string_equal(queued, "mean k q v fast");
    assert_int_equal(fake.alloc_calls, 0);
    assert_int_equal(fake.waits, 0);
    assert_ptr_equal(fake.context, fake_context(0));
    const mxa_cuda_copy *const q = copies_made[MXA_CUDA_Q], *const k = copies_made[MXA_CUDA_K];
    assert_int_equal(q[0].form, MXA_CUDA_CODES);
    assert_int_equal(q[0].g_written, MXA_LEVEL_TOKEN);
    assert_true(q[0].copy.rotate && !q[0].copy.mean && k[0].copy.rotate && k[0].copy.mean == mean_seen);
    assert_int_equal(k[0].form, MXA_CUDA_E5M2);
    assert_int_equal(k[0].g_written, MXA_LEVEL_TOKEN_BLOCK);
    assert_int_equal(copies_made[MXA_CUDA_V][0].copy.spec.info->format, MXA_FORMAT_BF16);
    assert_ptr_equal(job_seen.k[MXA_LOW].codes, k[0].copy.out.codes);
    assert_ptr_equal(job_seen.v.codes, copies_made[MXA_CUDA_V][0].copy.out.codes);
    assert_int_equal(job_seen.v.form, MXA_CUDA_BF16);
    assert_ptr_equal(job_seen.q[MXA_HIGH].x.data, c.q.data);
    assert_int_equal(((const uint8_t *)job_seen.table)[0], 0x5A);
    assert_int_equal(job_seen.sequences[1].batch, 1);
    close_call(&c);
    assert_int_equal(fake.waits, 0);
}

/* Parts lie in the workspace, aligned, and none touches another. */
static void check_parts(const mxa_attention_args *args, const part *parts, int n)
{
    const char *const work = args->work;
    for (int i = 0; i < n; i++) {
        const char *const a = parts[i].data;
        assert_true(a >= work && a + parts[i].bytes <= work + args->work_bytes);
        assert_int_equal((a - work) % 128, 0);
        for (int j = 0; j < i; j++) {
            const char *const b = parts[j].data;
            assert_true(a + parts[i].bytes <= b || b + parts[j].bytes <= a);
        }
    }
}

static void test_layout(void **state)
{
    (void)state;
    call c;
    open_call(&c, "dma4", problem(TOKENS, TOKENS));
    assert_int_equal(mxa_cuda_attention(c.plan, &c.args), MXA_OK);
    enum { Q_ROWS = BATCH * HEADS * TOKENS, K_ROWS = BATCH * HEADS_KV * TOKENS, BLOCKS = 2 };
    const mxa_cuda_operand *const q = &job_seen.q[MXA_LOW], *const k = &job_seen.k[MXA_LOW];
    const part parts[] = {
        { mean_seen, BATCH * HEADS_KV * DIM * 4 },
        { job_seen.bias, Q_ROWS * 4 },
        { q->codes, Q_ROWS * DIM },
        { q->g, Q_ROWS * 4 },
        { q->nonfinite_tiles, BATCH * HEADS * BLOCKS },
        { k->codes, K_ROWS * DIM },
        { k->g, BATCH * HEADS_KV * BLOCKS * 4 },
        { k->nonfinite_tiles, BATCH * HEADS_KV * BLOCKS },
        { job_seen.v.codes, K_ROWS * DIM * 2 },
        { job_seen.work, WORK_LEFT },
        { job_seen.counters, MXA_CUDA_COUNTER_BYTES },
    };
    check_parts(&c.args, parts, sizeof parts / sizeof parts[0]);
    const part zeros[] = { parts[10], parts[4], parts[7] };
    for (int i = 0; i < 3; i++) {
        const char *const first = cleared.data, *const data = zeros[i].data;
        assert_true(data >= first && data + zeros[i].bytes <= first + cleared.bytes);
    }
    assert_int_equal(cleared.bytes % 16, 0);
    close_call(&c);
}

/* Without a mean nothing clears them on the way. */
static void test_zeros(void **state)
{
    (void)state;
    call c;
    open_call(&c, "bf16", problem(TOKENS, TOKENS));
    assert_int_equal(mxa_cuda_attention(c.plan, &c.args), MXA_OK);
    assert_string_equal(queued, "v fast");
    for (int i = 0; i < MXA_CUDA_COUNTER_BYTES / (int)sizeof(int); i++)
        assert_int_equal(job_seen.counters[i], 0);
    close_call(&c);
}

/* Tensors that the first entry cannot take go to the second, within the same workspace. */
static void test_unsuited(void **state)
{
    (void)state;
    call c;
    open_call(&c, "dma4", problem(TOKENS, TOKENS));
    c.q.stride[2] = DIM + 1;
    assert_int_equal(mxa_cuda_attention(c.plan, &c.args), MXA_OK);
    assert_string_equal(queued, "mean k q any");
    assert_int_equal(copies_made[MXA_CUDA_K][0].form, MXA_CUDA_BF16);
    assert_int_equal(copies_made[MXA_CUDA_K][0].g_written, MXA_LEVEL_NONE);
    assert_null(job_seen.k[MXA_LOW].g);
    assert_true((char *)job_seen.work + ENTRY_WORK <= (char *)c.args.work + c.args.work_bytes);
    char text[400];
    mxa_text out = { text, sizeof text, 0 };
    mxa_cuda_attention_describe(c.plan, &out);
    assert_non_null(strstr(text, "attention: fast, or any for tensors"));
    assert_non_null(strstr(text, "k low mxfp4: folded into e5m2"));
    close_call(&c);
}

/* Of rows that never are 16-byte aligned the first entry has copies. */
static void test_copies(void **state)
{
    (void)state;
    enum { ODD_DIM = 44 };
    mxa_problem p = problem(TOKENS, TOKENS);
    p.head_dim = p.head_dim_v = ODD_DIM;
    p.v_dtype = MXA_DTYPE_F16;
    call c;
    open_call(&c, "dma4", p);
    mxa_tensor *const tensors[] = { &c.q, &c.k, &c.v, &c.out };
    for (int i = 0; i < 4; i++)
        *tensors[i] = mxa_tensor_contiguous(tensors[i]->data, tensors[i]->dtype, BATCH, tensors[i]->shape[1],
                                            TOKENS, ODD_DIM);
    assert_int_equal(mxa_cuda_attention(c.plan, &c.args), MXA_OK);
    assert_string_equal(queued, "mean k q v fast");
    const mxa_cuda_copy *const q = copies_made[MXA_CUDA_Q];
    assert_int_equal(q[1].copy.spec.info->format, MXA_FORMAT_BF16);
    assert_int_equal(q[1].row_bytes, (ODD_DIM * 2 + 15) / 16 * 16);
    assert_ptr_equal(job_seen.q[MXA_HIGH].codes, q[1].copy.out.codes);
    assert_int_equal(job_seen.v.form, MXA_CUDA_F16);
    char text[400];
    mxa_text out = { text, sizeof text, 0 };
    mxa_cuda_attention_describe(c.plan, &out);
    assert_non_null(strstr(text, "attention: fast, or fast with copies for tensors"));
    close_call(&c);
}

static void test_packed(void **state)
{
    (void)state;
    static const int32_t ends[] = { 0, 50, 50, 130 };
    mxa_problem p = problem(TOKENS, TOKENS);
    p.batch = 3;
    p.cu_seqlens_q = p.cu_seqlens_k = ends;
    call c;
    open_call(&c, "dma4", p);
    assert_int_equal(mxa_cuda_attention(c.plan, &c.args), MXA_OK);
    assert_string_equal(queued, "tail mean k q v fast");
    assert_ptr_equal(rows_seen[MXA_CUDA_K].sequences, job_seen.sequences);
    assert_int_equal(rows_seen[MXA_CUDA_K].n_rows, HEADS_KV * 130);
    assert_int_equal(rows_seen[MXA_CUDA_K].n_blocks, HEADS_KV * 2);
    assert_int_equal(job_seen.sequences[2].k_first, 50);
    close_call(&c);
}

static void test_no_keys(void **state)
{
    (void)state;
    call c;
    open_call(&c, "dma4", problem(TOKENS, 0));
    c.args.sinks = fake_memory(1, HEADS * sizeof(float));
    assert_int_equal(mxa_cuda_attention(c.plan, &c.args), MXA_OK);
    assert_string_equal(queued, "empty-with-sinks");
    close_call(&c);
    *queued = 0;
    open_call(&c, "dma4", problem(0, TOKENS));
    assert_int_equal(mxa_cuda_attention(c.plan, &c.args), MXA_OK);
    assert_string_equal(queued, "");
    close_call(&c);
}

static void expect_words(mxa_status got, mxa_status want, const char *words)
{
    if (got != want || !strstr(mxa_error_text(), words))
        print_error("%s: %s\n", mxa_status_name(got), mxa_error_text());
    assert_int_equal(got, want);
    assert_non_null(strstr(mxa_error_text(), words));
    assert_int_equal(fake.last, cudaSuccess);
}

static void test_memory(void **state)
{
    (void)state;
    call c;
    float host[HEADS];
    open_call(&c, "dma4", problem(TOKENS, TOKENS));
    void *const mine = c.k.data;
    c.k.data = fake_memory(0, 1);
    expect_words(mxa_cuda_attention(c.plan, &c.args), MXA_ERR_ARG,
                 "is memory of cuda:0, memory of cuda:1 is needed");
    c.k.data = mine;
    c.args.lse = host;
    expect_words(mxa_cuda_attention(c.plan, &c.args), MXA_ERR_ARG, "lse: ");
    expect_words(mxa_cuda_attention(c.plan, &c.args), MXA_ERR_ARG,
                 "is host memory, memory of cuda:1 is needed");
    assert_string_equal(queued, "");
    assert_null(fake.context);
    assert_int_equal(fake.used, 1 << 1); /* cuda:1 alone got a context */
    close_call(&c);
}

static void test_failing_launch(void **state)
{
    (void)state;
    call c;
    open_call(&c, "dma4", problem(TOKENS, TOKENS));
    launch_status = MXA_ERR_DEVICE;
    expect_words(mxa_cuda_attention(c.plan, &c.args), MXA_ERR_DEVICE, "fast: launch failure");
    assert_null(fake.context); /* as before the call, although there was none */
    close_call(&c);
}

/* What a plan says, and that it leaves no memory behind. */
static void expect_plan(const char *recipe, int64_t dim, mxa_status status, const char *words)
{
    mxa_plan *plan = NULL;
    mxa_problem p = problem(TOKENS, TOKENS);
    p.head_dim = p.head_dim_v = dim;
    const int live = fake.live;
    expect_words(build(recipe, p, &plan), status, words);
    mxa_plan_free(plan);
    assert_int_equal(fake.live, live);
    assert_null(fake.context);
}

static void test_plan_errors(void **state)
{
    (void)state;
    fake.arch = 75;
    expect_plan(
        "dma4", DIM, MXA_ERR_DEVICE,
        "no kernel runs this plan on cuda:1, which is sm_75 (fast: needs sm_90; any: needs sm_80 or later)");
    fake_reset();
    fake.alloc_error = cudaErrorMemoryAllocation;
    expect_plan("dma4", DIM, MXA_ERR_MEMORY, "plan: cudaMalloc of tables: out of memory");
    fake_reset();
    fake.devices = 1;
    expect_plan("dma4", DIM, MXA_ERR_DEVICE, "cuda:1 is not there, CUDA shows 1");
    fake_reset();
    fake.driver = 0;
    expect_plan("dma4", DIM, MXA_ERR_DEVICE, "no NVIDIA driver is installed");
    fake_reset();
    fake.driver = 11000;
    fake.count_error = cudaErrorInsufficientDriver;
    expect_plan("dma4", DIM, MXA_ERR_DEVICE, "the NVIDIA driver is one for CUDA 11.0");
    fake_reset();
    fake.count_error = cudaErrorNoDevice;
    expect_plan("dma4", DIM, MXA_ERR_DEVICE, "it shows no GPU");
}

static void test_choice(void **state)
{
    (void)state;
    call c;
    fake.arch = 120;
    open_call(&c, "dma4", problem(TOKENS, TOKENS));
    assert_int_equal(mxa_cuda_attention(c.plan, &c.args), MXA_OK);
    assert_string_equal(queued, "mean k q any");
    close_call(&c);
    mxa_plan *plan = NULL;
    fake_reset();
    mxa_problem p = problem(TOKENS, TOKENS);
    p.head_dim = 192;
    assert_int_equal(build("dma4", p, &plan), MXA_OK);
    const mxa_cuda_plan *const cuda = plan->backend;
    assert_string_equal(cuda->choices[0].impl->name, "any");
    assert_int_equal(cuda->n_choices, 1);
    mxa_plan_free(plan);
}

#define TEST(test) cmocka_unit_test_setup(test, setup)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_order),  TEST(test_layout),         TEST(test_zeros),       TEST(test_unsuited),
        TEST(test_copies), TEST(test_packed),         TEST(test_no_keys),     TEST(test_memory),
        TEST(test_choice), TEST(test_failing_launch), TEST(test_plan_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

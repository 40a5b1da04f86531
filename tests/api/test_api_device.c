/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What calls on a CUDA device answer where something is missing, by a library without CUDA in place of
 * libmxattn_cuda.so (tests/cuda/fake_backend.c). The library is loaded once in a process, so every case has a
 * process of its own.
 */
#include "api_support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { HEADS = 2, TOKENS = 4, DIM = 32, ELEMENTS = HEADS * TOKENS * DIM };

typedef struct answer {
    int status;
    char text[512];
} answer;

static mxa_tensor small_tensor(void *data)
{
    return mxa_tensor_contiguous(data, MXA_DTYPE_F32, 1, HEADS, TOKENS, DIM);
}

static mxa_status count_devices(void)
{
    return mxa_device_count() == 1 ? MXA_OK : MXA_ERR_DEVICE;
}

static mxa_status make_plan(mxa_device device, mxa_plan **plan)
{
    mxa_problem p;
    mxa_problem_default(&p, 1, HEADS, HEADS, TOKENS, TOKENS, DIM);
    p.device = device;
    return mxa_plan_create(&p, NULL, plan);
}

static mxa_status plan_on_0(void)
{
    mxa_plan *plan = NULL;
    const mxa_status status = make_plan(MXA_DEVICE_CUDA_0, &plan);
    mxa_plan_free(plan);
    return status;
}

static mxa_status plan_on_3(void)
{
    mxa_plan *plan = NULL;
    return make_plan((mxa_device)(MXA_DEVICE_CUDA_0 + 3), &plan);
}

static mxa_status attend(void)
{
    static float q[ELEMENTS], out[ELEMENTS];
    char text[512];
    mxa_plan *plan = NULL;
    mxa_status status = make_plan(MXA_DEVICE_CUDA_0, &plan);
    if (status != MXA_OK)
        return status;
    const mxa_tensor in = small_tensor(q), result = small_tensor(out);
    const mxa_attention_args args = { .size = sizeof args, .q = &in, .k = &in, .v = &in, .out = &result };
    mxa_plan_describe(plan, text, sizeof text);
    status = strstr(text, "device: cuda:0\n") && strstr(text, "attention: fake\n")
                 ? mxa_attention(plan, &args)
                 : MXA_ERR_ARG;
    mxa_plan_free(plan);
    return status;
}

static mxa_status quantize(void)
{
    static float x[ELEMENTS], g[HEADS * TOKENS];
    static uint8_t codes[ELEMENTS];
    int64_t n_bad = 1;
    mxa_quant_opts opts;
    mxa_quant_default(&opts);
    opts.device = MXA_DEVICE_CUDA_0;
    const mxa_tensor in = small_tensor(x);
    const mxa_packed packed = { .codes = codes, .g = g };
    const mxa_status status = mxa_quantize(&in, MXA_FORMAT_INT8, &opts, &packed, &n_bad);
    return status == MXA_OK && n_bad != 0 ? MXA_ERR_ARG : status;
}

static mxa_status quantize_pair(void)
{
    static float x[ELEMENTS], g[2][HEADS * TOKENS];
    static uint8_t codes[2][ELEMENTS];
    mxa_quant_opts opts;
    mxa_quant_default(&opts);
    opts.device = MXA_DEVICE_CUDA_0;
    const mxa_tensor in = small_tensor(x);
    const mxa_packed low = { .codes = codes[0], .g = g[0] }, high = { .codes = codes[1], .g = g[1] };
    return mxa_quantize_pair(&in, MXA_FORMAT_INT8, &opts, &low, MXA_FORMAT_FP8, &opts, &high, NULL);
}

static mxa_status dequantize(void)
{
    static float x[ELEMENTS], g[HEADS * TOKENS]; /* factors of 0, which are not looked at */
    static uint8_t codes[ELEMENTS];
    mxa_quant_opts opts;
    mxa_quant_default(&opts);
    opts.device = MXA_DEVICE_CUDA_0;
    const mxa_tensor out = small_tensor(x);
    const mxa_packed packed = { .codes = codes, .g = g };
    return mxa_dequantize(&packed, MXA_FORMAT_INT8, &opts, &out);
}

static mxa_status channel_mean(void)
{
    static float x[ELEMENTS], mean[HEADS * DIM];
    const mxa_tensor in = small_tensor(x);
    return mxa_device_channel_mean(MXA_DEVICE_CUDA_0, &in, -1, mean, NULL);
}

static mxa_status use_memory(void)
{
    static const char text[] = "there and back";
    char back[sizeof text] = "";
    void *memory = NULL;
    mxa_status status = mxa_device_alloc(MXA_DEVICE_CUDA_0, sizeof text, &memory);
    if (status == MXA_OK)
        status = mxa_device_copy(MXA_DEVICE_CUDA_0, memory, text, sizeof text);
    if (status == MXA_OK)
        status = mxa_device_copy(MXA_DEVICE_CUDA_0, back, memory, sizeof text);
    if (status == MXA_OK)
        status = mxa_device_synchronize(MXA_DEVICE_CUDA_0, NULL);
    if (status == MXA_OK)
        status = mxa_device_free(MXA_DEVICE_CUDA_0, memory);
    return status == MXA_OK && strcmp(text, back) != 0 ? MXA_ERR_ARG : status;
}

static mxa_status query(void)
{
    mxa_device_info info = { 0 };
    const mxa_status status = mxa_device_query(MXA_DEVICE_CUDA_0, &info);
    return status == MXA_OK && strcmp(info.name, "fake") != 0 ? MXA_ERR_ARG : status;
}

/* The answer of a call in a process that finds this library and this mistake in it. */
static answer ask(const char *library, const char *mistake, mxa_status (*call)(void))
{
    int ends[2];
    answer a = { -1, "" };
    assert_int_equal(pipe(ends), 0);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        setenv("MXA_CUDA_LIBRARY", library, 1);
        setenv("MXA_FAKE", mistake, 1);
        a.status = call();
        snprintf(a.text, sizeof a.text, "%s", mxa_error_text());
        _exit(write(ends[1], &a, sizeof a) == (ssize_t)sizeof a ? 0 : 1);
    }
    close(ends[1]);
    assert_int_equal(read(ends[0], &a, sizeof a), sizeof a);
    close(ends[0]);
    assert_int_equal(waitpid(child, NULL, 0), child);
    return a;
}

static void expect(const char *library, const char *mistake, mxa_status (*call)(void), mxa_status status,
                   const char *words)
{
    const answer a = ask(library, mistake, call);
    if (a.status != (int)status || !strstr(a.text, words))
        print_error("%s: %s\n", mxa_status_name((mxa_status)a.status), a.text);
    assert_int_equal(a.status, status);
    assert_non_null(strstr(a.text, words));
}

static mxa_status (*const calls[])(void) = { count_devices, query,         use_memory, plan_on_0,   attend,
                                             quantize,      quantize_pair, dequantize, channel_mean };
enum { N_CALLS = sizeof calls / sizeof calls[0] };

static void test_all_is_well(void **state)
{
    (void)state;
    for (int i = 0; i < N_CALLS; i++)
        expect(FAKE_BACKEND, "", calls[i], MXA_OK, "");
}

/* Every call says the same of a library that is not there or not ours. */
static void test_library(void **state)
{
    (void)state;
    static const struct {
        const char *library, *mistake, *words;
    } cases[] = {
        { "/nowhere/libx.so", "", "MXA_CUDA_LIBRARY names \"/nowhere/libx.so\", which cannot be loaded: " },
        { "libm.so.6", "", "is not mxattn's: it has no mxa_cuda_backend_table" },
        { FAKE_BACKEND, "number", "both must come from one build" },
        { FAKE_BACKEND, "version", "both must come from one build" },
        { FAKE_BACKEND, "driver", "no NVIDIA driver is installed" },
    };
    enum { LIBRARIES = 4, DEVICE_CALLS = 4 };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++)
        for (int i = 0; i < (c < LIBRARIES ? N_CALLS : DEVICE_CALLS); i++)
            expect(cases[c].library, cases[c].mistake, calls[i], MXA_ERR_DEVICE, cases[c].words);
}

static void test_device(void **state)
{
    (void)state;
    expect(FAKE_BACKEND, "", plan_on_3, MXA_ERR_DEVICE, "cuda:3 is not there");
    expect(FAKE_BACKEND, "old", plan_on_0, MXA_ERR_DEVICE, "which is sm_70");
    expect(FAKE_BACKEND, "launch", attend, MXA_ERR_DEVICE, "attention: unspecified launch failure");
    expect(FAKE_BACKEND, "launch", quantize, MXA_ERR_DEVICE, "quantize: unspecified launch failure");
    expect(FAKE_BACKEND, "launch", dequantize, MXA_ERR_DEVICE, "dequantize: unspecified launch failure");
    expect(FAKE_BACKEND, "launch", channel_mean, MXA_ERR_DEVICE, "channel_mean: unspecified launch failure");
}

/* These do not get as far as the library. */
static void test_arguments(void **state)
{
    (void)state;
    mxa_device_info info;
    char byte = 0;
    void *memory;
    assert_int_equal(mxa_device_query(MXA_DEVICE_CPU, &info), MXA_ERR_ARG);
    assert_int_equal(mxa_device_query(MXA_DEVICE_CUDA_0, NULL), MXA_ERR_ARG);
    assert_int_equal(mxa_device_alloc(MXA_DEVICE_AUTO, 1, &memory), MXA_ERR_ARG);
    assert_int_equal(mxa_device_alloc(MXA_DEVICE_CUDA_0, 1, NULL), MXA_ERR_ARG);
    assert_int_equal(mxa_device_free(MXA_DEVICE_CPU, &byte), MXA_ERR_ARG);
    assert_int_equal(mxa_device_copy(MXA_DEVICE_CPU, &byte, &byte, 1), MXA_ERR_ARG);
    assert_int_equal(mxa_device_copy(MXA_DEVICE_CUDA_0, NULL, &byte, 1), MXA_ERR_ARG);
    assert_int_equal(mxa_device_copy(MXA_DEVICE_CUDA_0, &byte, NULL, 1), MXA_ERR_ARG);
    assert_int_equal(mxa_device_synchronize(MXA_DEVICE_CPU, NULL), MXA_ERR_ARG);
    float x[DIM] = { 0 };
    const mxa_tensor row = mxa_tensor_contiguous(x, MXA_DTYPE_F32, 1, 1, 1, DIM);
    assert_int_equal(mxa_device_channel_mean(MXA_DEVICE_CPU, &row, -1, x, NULL), MXA_ERR_ARG);
    assert_int_equal(mxa_device_channel_mean(MXA_DEVICE_CUDA_0, &row, -1, NULL, NULL), MXA_ERR_ARG);
    mxa_quant_opts opts;
    mxa_quant_default(&opts);
    assert_int_equal(opts.device, MXA_DEVICE_CPU);
    opts.device = (mxa_device)-3;
    mxa_packed_size size;
    assert_int_equal(mxa_packed_sizes(MXA_FORMAT_INT8, &opts, row.shape, &size), MXA_ERR_ARG);
    assert_non_null(strstr(mxa_error_text(), "device -3"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_is_well),
        cmocka_unit_test(test_library),
        cmocka_unit_test(test_device),
        cmocka_unit_test(test_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

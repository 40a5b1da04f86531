/* SPDX-License-Identifier: Apache-2.0 */
/* Statuses and their numbers, version, devices, and the lists of what this machine runs. */
#include "api_support.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Numbers that files, bindings and other languages rely on. */
static_assert(MXA_DTYPE_F32 == 0 && MXA_DTYPE_F16 == 1 && MXA_DTYPE_BF16 == 2, "dtypes");
static_assert(MXA_FORMAT_NONE == 0 && MXA_FORMAT_MXFP4 == 8 && MXA_FORMAT_INT8 == 12, "formats");
static_assert(MXA_TILE_SKIP == 0 && MXA_TILE_LOW == 1 && MXA_TILE_HIGH == 2, "precisions");
static_assert(MXA_DEVICE_AUTO == -2 && MXA_DEVICE_CPU == -1 && MXA_DEVICE_CUDA_0 == 0, "devices");

static void test_version(void **state)
{
    (void)state;
    char want[32];
    snprintf(want, sizeof want, "%d.%d.%d", MXA_VERSION_MAJOR, MXA_VERSION_MINOR, MXA_VERSION_PATCH);
    assert_string_equal(mxa_version(), want);
}

static void test_status_names(void **state)
{
    (void)state;
    static const char *const names[] = {
        "MXA_OK",         "MXA_ERR_ARG",         "MXA_ERR_SHAPE",     "MXA_ERR_FORMAT",
        "MXA_ERR_RULE",   "MXA_ERR_LAYOUT",      "MXA_ERR_ALIGN",     "MXA_ERR_NONFINITE",
        "MXA_ERR_SCALE",  "MXA_ERR_UNSUPPORTED", "MXA_ERR_WORKSPACE", "MXA_ERR_MEMORY",
        "MXA_ERR_DEVICE", "MXA_ERR_FILE"
    };
    for (int i = 0; i < 14; i++)
        assert_string_equal(mxa_status_name((mxa_status)i), names[i]);
    assert_string_equal(mxa_status_name((mxa_status)14), "unknown status");
    assert_string_equal(mxa_status_name((mxa_status)-1), "unknown status");
}

static void test_no_sentence_at_first(void **state)
{
    (void)state;
    assert_string_equal(mxa_error_text(), "");
}

/* However long a caller's text is, the sentence is one line that ends. */
static void test_long_sentence(void **state)
{
    (void)state;
    enum { LENGTH = 100000 };
    char *const text = memset(api_bytes(LENGTH + 1), 'x', LENGTH + 1);
    text[LENGTH] = 0;
    mxa_recipe recipe;
    mxa_device device;
    assert_int_equal(mxa_recipe_parse(text, &recipe), MXA_ERR_ARG);
    assert_in_range(strlen(mxa_error_text()), 1, LENGTH);
    assert_int_equal(mxa_device_parse(text, &device), MXA_ERR_ARG);
    assert_in_range(strlen(mxa_error_text()), 1, LENGTH);
    memcpy(text, "dma4\n%s%n", 10);
    assert_int_equal(mxa_recipe_parse(text, &recipe), MXA_ERR_ARG);
    assert_null(strchr(mxa_error_text(), '\n'));
}

static void test_tensor_contiguous(void **state)
{
    (void)state;
    float x[1];
    const mxa_tensor t = mxa_tensor_contiguous(x, MXA_DTYPE_BF16, 2, 3, 5, 7);
    assert_ptr_equal(t.data, x);
    assert_int_equal(t.dtype, MXA_DTYPE_BF16);
    assert_memory_equal(t.shape, ((int64_t[]){ 2, 3, 5, 7 }), sizeof t.shape);
    assert_memory_equal(t.stride, ((int64_t[]){ 105, 35, 7, 1 }), sizeof t.stride);
    mxa_tensor_contiguous(NULL, MXA_DTYPE_F32, INT64_MAX, INT64_MAX, -1, INT64_MAX);
}

static void test_device_parse(void **state)
{
    (void)state;
    static const char *const words[] = { "auto", "cpu", "cuda:0", "cuda:1", "cuda:15" };
    static const int devices[] = { MXA_DEVICE_AUTO, MXA_DEVICE_CPU, 0, 1, 15 };
    mxa_device device;
    for (int i = 0; i < 5; i++) {
        api_ok(mxa_device_parse(words[i], &device));
        assert_int_equal(device, devices[i]);
    }
    static const char *const refused[] = { "gpu", "CPU", "cuda", "cuda:x", "cuda:1x", "cuda:99999999999" };
    for (int i = 0; i < 6; i++) {
        mxa_device *const untouched = api_bytes(sizeof *untouched);
        api_refused(mxa_device_parse(refused[i], untouched), MXA_ERR_ARG, refused[i], NULL);
        assert_non_null(strstr(mxa_error_text(), "cuda:N"));
        api_untouched(untouched);
    }
    static const char *const odd[] = { "", "cuda:", "cuda:-1", "cuda: 1", "cuda:+1", "cpu " };
    for (int i = 0; i < 6; i++)
        assert_int_equal(mxa_device_parse(odd[i], &device), MXA_ERR_ARG);
    api_refused(mxa_device_parse(NULL, &device), MXA_ERR_ARG, "text", "NULL");
    api_refused(mxa_device_parse("cpu", NULL), MXA_ERR_ARG, "device", "NULL");
}

/* Each list ends with an entry that runs everywhere; every name and format is a word. */
static void test_lists(void **state)
{
    (void)state;
    static const char *const ops[] = { "quantize", "decode", "attention", "cache" };
    for (int op = 0; op < MXA_OP_COUNT; op++) {
        mxa_impl_info info = { 0 };
        int count = 0;
        for (; mxa_impl_at((mxa_op)op, count, &info); count++) {
            assert_string_equal(info.op, ops[op]);
            assert_true(strlen(info.name) > 0);
            assert_true(strcmp(info.format, "any") == 0 || mxa_format_find(info.format) != NULL);
            assert_non_null(info.needs);
            if (strcmp(info.needs, "") == 0)
                assert_true(info.available);
        }
        assert_true(count > 0);
        assert_string_equal(info.name, "ref");
        assert_string_equal(info.format, "any");
        assert_true(info.available);
        assert_false(mxa_impl_at((mxa_op)op, -1, &info));
        assert_false(mxa_impl_at((mxa_op)op, count + 100, &info));
    }
    mxa_impl_info info;
    assert_false(mxa_impl_at(MXA_OP_COUNT, 0, &info));
    assert_false(mxa_impl_at((mxa_op)-1, 0, &info));
    assert_false(mxa_impl_at(MXA_OP_QUANTIZE, 0, NULL));
}

static void test_cpu_features(void **state)
{
    (void)state;
    static const char *const known[] = {
        "avx2", "fma", "f16c", "avx512", "avx512_bf16", "avx512_vnni", "amx"
    };
    char text[256] = { 0 };
    assert_non_null(mxa_cpu_features());
    strncpy(text, mxa_cpu_features(), sizeof text - 1);
    for (char *word = strtok(text, " "); word != NULL; word = strtok(NULL, " ")) {
        int found = 0;
        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            found += strcmp(word, known[i]) == 0;
        if (found != 1)
            fail_msg("unknown feature \"%s\"", word);
    }
    assert_int_equal(mxa_cpu_amx_reason()[0] == 0, strstr(mxa_cpu_features(), "amx") != NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        API_TEST(test_no_sentence_at_first),
        API_TEST(test_version),
        API_TEST(test_status_names),
        API_TEST(test_long_sentence),
        API_TEST(test_tensor_contiguous),
        API_TEST(test_device_parse),
        API_TEST(test_lists),
        API_TEST(test_cpu_features),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

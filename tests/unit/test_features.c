/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The words of MXA_CPU, and which entries run under them. Features are read once, so each case has a process.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cpu/features.h"
#include "cpu/kernels.h"

typedef bool case_fn(void);

static void run_masked(const char *word, case_fn *holds)
{
    const pid_t child = fork();
    if (child == 0) {
        if (word)
            setenv("MXA_CPU", word, 1);
        else
            unsetenv("MXA_CPU");
        _exit(holds() ? EXIT_SUCCESS : EXIT_FAILURE);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != EXIT_SUCCESS)
        fail_msg("MXA_CPU=%s", word ? word : "(unset)");
}

/* All entries run that need a feature which is there; the first of them is picked. */
static bool lists_agree(void)
{
    for (int op = 0; op < MXA_OP_COUNT; op++) {
        mxa_impl_info info;
        int count = 0;
        while (mxa_impl_at((mxa_op)op, count, &info))
            count++;
        /* The reference comes last, needs nothing and takes every format. */
        if (count == 0 || !mxa_impl_at((mxa_op)op, count - 1, &info) || !info.available ||
            strcmp(info.name, "ref") != 0 || strcmp(info.format, "any") != 0)
            return false;
    }
    mxa_impl_info none;
    return !mxa_impl_at(MXA_OP_COUNT, 0, &none) && !mxa_impl_at(MXA_OP_DECODE, -1, &none) &&
           !mxa_impl_at(MXA_OP_DECODE, 0, NULL);
}

static bool only_reference(void)
{
    return mxa_cpu_flags() == 0 && mxa_cpu_mask_status() == MXA_OK && strcmp(mxa_cpu_features(), "") == 0 &&
           strcmp(mxa_quantize_pick(MXA_FORMAT_MXFP4)->name, "ref") == 0 &&
           strcmp(mxa_decode_pick(MXA_FORMAT_INT8)->name, "ref") == 0 && lists_agree();
}

static bool only_portable(void)
{
    return mxa_cpu_flags() == MXA_CPU_PORTABLE && strcmp(mxa_cpu_features(), "") == 0 &&
           strcmp(mxa_quantize_pick(MXA_FORMAT_MXFP4)->name, "portable") == 0 && lists_agree();
}

static bool no_avx512(void)
{
    return (mxa_cpu_flags() & ~(uint32_t)(MXA_CPU_PORTABLE | MXA_CPU_AVX2)) == 0 &&
           strstr(mxa_cpu_features(), "avx512") == NULL;
}

static bool no_amx(void)
{
    return (mxa_cpu_flags() & MXA_CPU_AMX) == 0 && strstr(mxa_cpu_features(), "amx") == NULL;
}

static bool everything(void)
{
    return mxa_cpu_flags() & MXA_CPU_PORTABLE && mxa_cpu_mask_status() == MXA_OK && lists_agree();
}

/* An unknown word is an error of the calls that compute, with the words that are known. */
static bool refuses(void)
{
    float x[32] = { 1 };
    uint8_t codes[16], scale;
    const mxa_tensor tensor = mxa_tensor_contiguous(x, MXA_DTYPE_F32, 1, 1, 1, 32);
    const mxa_packed out = { codes, &scale, NULL, NULL };
    return mxa_quantize(&tensor, MXA_FORMAT_MXFP4, NULL, &out, NULL) == MXA_ERR_ARG &&
           strstr(mxa_error_text(), "ref, portable, avx2, avx512, amx") != NULL;
}

static void test_words(void **state)
{
    (void)state;
    run_masked(NULL, everything);
    run_masked("", everything);
    run_masked("amx", everything);
    run_masked("ref", only_reference);
    run_masked("portable", only_portable);
    run_masked("avx2", no_avx512);
    run_masked("avx512", no_amx);
    run_masked("avx", refuses);
    run_masked("REF", refuses);
}

static void test_text(void **state)
{
    (void)state;
    char text[MXA_CPU_FLAGS_TEXT], small[8];
    assert_string_equal(mxa_cpu_flags_text(UINT32_MAX, text, sizeof text),
                        "avx2 fma f16c avx512 avx512_bf16 avx512_vnni amx fast_bf16");
    assert_string_equal(mxa_cpu_flags_text(0, text, sizeof text), "");
    assert_string_equal(mxa_cpu_flags_text(UINT32_MAX, small, sizeof small), "avx2 fm");
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_words), cmocka_unit_test(test_text) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The first entry whose format and needs fit is used. mxa_check runs and times every one. */
#include "cpu/avx2/codes_avx2.h"
#include "cpu/avx512/codes_avx512.h"
#include "cpu/features.h"
#include "cpu/kernels.h"
#include "cpu/portable/codes_portable.h"
#include "cpu/ref/codes_ref.h"

const mxa_prepare_impl mxa_prepare_impls[] = {
#if defined(__x86_64__)
    { "avx512", MXA_CPU_AVX512, mxa_prepare_avx512, mxa_dot_avx2 },
    { "avx2", MXA_CPU_AVX2, mxa_prepare_avx2, mxa_dot_avx2 },
#endif
    { "portable", MXA_CPU_PORTABLE, mxa_prepare_portable, mxa_dot_ref },
    { "ref", 0, mxa_prepare_ref, mxa_dot_ref },
    { NULL, 0, NULL, NULL },
};

const mxa_quantize_impl mxa_quantize_impls[] = {
#if defined(__x86_64__)
    { "avx512", MXA_FORMAT_INT8, MXA_CPU_AVX512, mxa_quantize_element_avx512 },
    { "avx512", MXA_FORMAT_FP8, MXA_CPU_AVX512, mxa_quantize_element_avx512 },
    { "avx512", MXA_FORMAT_MXFP4, MXA_CPU_AVX512, mxa_quantize_mx_avx512 },
    { "avx512", MXA_FORMAT_MXFP8_E4M3, MXA_CPU_AVX512, mxa_quantize_mx_avx512 },
    { "avx512", MXA_FORMAT_MXFP8_E5M2, MXA_CPU_AVX512, mxa_quantize_mx_avx512 },
    { "avx512", MXA_FORMAT_MXFP6_E3M2, MXA_CPU_AVX512, mxa_quantize_mx_avx512 },
    { "avx512", MXA_FORMAT_MXFP6_E2M3, MXA_CPU_AVX512, mxa_quantize_mx_avx512 },
    { "avx512", MXA_FORMAT_MXINT8, MXA_CPU_AVX512, mxa_quantize_mx_avx512 },
    { "avx512", MXA_FORMAT_NVFP4, MXA_CPU_AVX512, mxa_quantize_nvfp4_avx512 },
    { "avx512", MXA_FORMAT_BF16, MXA_CPU_AVX512, mxa_quantize_half_avx512 },
    { "avx512", MXA_FORMAT_F16, MXA_CPU_AVX512, mxa_quantize_half_avx512 },
    { "avx2", MXA_FORMAT_INT8, MXA_CPU_AVX2, mxa_quantize_element_avx2 },
    { "avx2", MXA_FORMAT_FP8, MXA_CPU_AVX2, mxa_quantize_element_avx2 },
    { "avx2", MXA_FORMAT_MXFP4, MXA_CPU_AVX2, mxa_quantize_mx_avx2 },
    { "avx2", MXA_FORMAT_MXFP8_E4M3, MXA_CPU_AVX2, mxa_quantize_mx_avx2 },
    { "avx2", MXA_FORMAT_MXFP8_E5M2, MXA_CPU_AVX2, mxa_quantize_mx_avx2 },
    { "avx2", MXA_FORMAT_MXFP6_E3M2, MXA_CPU_AVX2, mxa_quantize_mx_avx2 },
    { "avx2", MXA_FORMAT_MXFP6_E2M3, MXA_CPU_AVX2, mxa_quantize_mx_avx2 },
    { "avx2", MXA_FORMAT_MXINT8, MXA_CPU_AVX2, mxa_quantize_mx_avx2 },
    { "avx2", MXA_FORMAT_NVFP4, MXA_CPU_AVX2, mxa_quantize_nvfp4_avx2 },
    { "avx2", MXA_FORMAT_BF16, MXA_CPU_AVX2, mxa_quantize_half_avx2 },
    { "avx2", MXA_FORMAT_F16, MXA_CPU_AVX2, mxa_quantize_half_avx2 },
#endif
    { "portable", MXA_FORMAT_NONE, MXA_CPU_PORTABLE, mxa_quantize_portable },
    { "ref", MXA_FORMAT_NONE, 0, mxa_quantize_ref },
    { NULL, MXA_FORMAT_NONE, 0, NULL },
};

const mxa_decode_impl mxa_decode_impls[] = {
#if defined(__x86_64__)
    { "avx512", MXA_FORMAT_NONE, MXA_CPU_AVX512, mxa_decode_avx512 },
    { "avx2", MXA_FORMAT_NONE, MXA_CPU_AVX2, mxa_decode_avx2 },
#endif
    { "portable", MXA_FORMAT_NONE, MXA_CPU_PORTABLE, mxa_decode_portable },
    { "ref", MXA_FORMAT_NONE, 0, mxa_decode_ref },
    { NULL, MXA_FORMAT_NONE, 0, NULL },
};

static bool fits(mxa_format wanted, mxa_format format, uint32_t needs)
{
    return (format == MXA_FORMAT_NONE || format == wanted) && mxa_cpu_has(needs);
}

const mxa_prepare_impl *mxa_prepare_pick(void)
{
    const mxa_prepare_impl *impl = mxa_prepare_impls;
    while (!mxa_cpu_has(impl->needs))
        impl++;
    return impl;
}

const mxa_quantize_impl *mxa_quantize_pick(mxa_format format)
{
    const mxa_quantize_impl *impl = mxa_quantize_impls;
    while (!fits(format, impl->format, impl->needs))
        impl++;
    return impl;
}

const mxa_decode_impl *mxa_decode_pick(mxa_format format)
{
    const mxa_decode_impl *impl = mxa_decode_impls;
    while (!fits(format, impl->format, impl->needs))
        impl++;
    return impl;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Public calls that say what this machine runs. */
#include <pthread.h>

#include "cpu/attention_cpu.h"
#include "cpu/features.h"
#include "cpu/kernels.h"
#include "cpu/kv_attend_cpu.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static char features[MXA_CPU_FLAGS_TEXT];

static void write_features(void)
{
    mxa_cpu_flags_text(mxa_cpu_flags(), features, sizeof features);
}

const char *mxa_cpu_features(void)
{
    pthread_once(&once, write_features);
    return features;
}

/* The texts of the few sets of features that entries need. */
static const char *needs_text(uint32_t needs)
{
    static const struct {
        uint32_t flag;
        const char *text;
    } texts[] = {
        { MXA_CPU_AMX, "amx" },
        { MXA_CPU_AVX512_BF16, "avx512 avx512_bf16" },
        { MXA_CPU_AVX512_VNNI, "avx512 avx512_vnni" },
        { MXA_CPU_AVX512, "avx512" },
        { MXA_CPU_AVX2, "avx2 fma f16c" },
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        if (needs & texts[i].flag)
            return texts[i].text;
    return "";
}

static void describe(const char *op, const char *name, mxa_format format, uint32_t needs, mxa_impl_info *info)
{
    *info = (mxa_impl_info){ op, name, format == MXA_FORMAT_NONE ? "any" : mxa_format_get(format)->name,
                             needs_text(needs), mxa_cpu_has(needs) };
}

static bool quantize_at(int i, mxa_impl_info *info)
{
    for (const mxa_quantize_impl *impl = mxa_quantize_impls; impl->name; impl++)
        if (i-- == 0) {
            describe("quantize", impl->name, impl->format, impl->needs, info);
            return true;
        }
    return false;
}

static bool decode_at(int i, mxa_impl_info *info)
{
    for (const mxa_decode_impl *impl = mxa_decode_impls; impl->name; impl++)
        if (i-- == 0) {
            describe("decode", impl->name, impl->format, impl->needs, info);
            return true;
        }
    return false;
}

static bool attention_at(int i, mxa_impl_info *info)
{
    for (const mxa_attention_impl *impl = mxa_attention_impls; impl->name; impl++)
        if (i-- == 0) {
            describe("attention", impl->name, MXA_FORMAT_NONE, impl->needs, info);
            return true;
        }
    return false;
}

static bool cache_at(int i, mxa_impl_info *info)
{
    for (const mxa_kv_impl *impl = mxa_kv_impls; impl->name; impl++)
        if (i-- == 0) {
            describe("cache", impl->name, MXA_FORMAT_NONE, impl->needs, info);
            return true;
        }
    return false;
}

bool mxa_impl_at(mxa_op op, int i, mxa_impl_info *info)
{
    if (!info || i < 0)
        return false;
    switch (op) {
    case MXA_OP_QUANTIZE: return quantize_at(i, info);
    case MXA_OP_DECODE: return decode_at(i, info);
    case MXA_OP_ATTENTION: return attention_at(i, info);
    case MXA_OP_CACHE: return cache_at(i, info);
    default: return false;
    }
}

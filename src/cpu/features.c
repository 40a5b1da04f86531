/* SPDX-License-Identifier: Apache-2.0 */
#include "cpu/features.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Linux gives a process the tile registers on request: asm/prctl.h. */
#define ARCH_REQ_XCOMP_PERM  0x1023
#define XFEATURE_TILE_DATA   18
#define XCR0_TILE_STATE      (3u << 17)
#define LEAF7_EDX_AMX        (1u << 22 | 1u << 24 | 1u << 25) /* BF16, TILE, INT8 */
#define LEAF1_ECX_OSXSAVE    (1u << 27)
#define LEAF1_ECX_F16C       (1u << 29)
#define CPUID_STRUCTURED_EXT 7

static bool tiles_enabled(void)
{
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & LEAF1_ECX_OSXSAVE))
        return false;
    if (!__get_cpuid_count(CPUID_STRUCTURED_EXT, 0, &a, &b, &c, &d) || (d & LEAF7_EDX_AMX) != LEAF7_EDX_AMX)
        return false;
    uint32_t xcr0, high;
    __asm__ volatile("xgetbv" : "=a"(xcr0), "=d"(high) : "c"(0));
    return (xcr0 & XCR0_TILE_STATE) == XCR0_TILE_STATE &&
           syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_TILE_DATA) == 0;
}

static uint32_t detect(void)
{
    uint32_t flags = MXA_CPU_PORTABLE;
    unsigned a, b, c, d;
    const bool f16c = __get_cpuid(1, &a, &b, &c, &d) && c & LEAF1_ECX_F16C; /* clang 14 has no name for it */
    __builtin_cpu_init();
    if (f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        flags |= MXA_CPU_AVX2;
    if (flags & MXA_CPU_AVX2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512cd"))
        flags |= MXA_CPU_AVX512;
    if (flags & MXA_CPU_AVX512 && __builtin_cpu_supports("avx512bf16"))
        flags |= MXA_CPU_AVX512_BF16;
    /*
     * GFLOP/s of a core, vdpbf16ps to vfmadd231ps: Zen 4 235 to 117, Emerald Rapids 88 to 163 (docs/kernels_cpu.md).
     */
    if (flags & MXA_CPU_AVX512_BF16 && __builtin_cpu_is("amd"))
        flags |= MXA_CPU_FAST_BF16;
    if (flags & MXA_CPU_AVX512 && __builtin_cpu_supports("avx512vnni"))
        flags |= MXA_CPU_AVX512_VNNI;
    if (flags & MXA_CPU_AVX512 && tiles_enabled())
        flags |= MXA_CPU_AMX;
    return flags;
}
#else
static uint32_t detect(void)
{
    return MXA_CPU_PORTABLE;
}
#endif

typedef struct level {
    const char *word;
    uint32_t flags;
} level;

static const level levels[] = {
    { "ref", 0 },
    { "portable", MXA_CPU_PORTABLE },
    { "avx2", MXA_CPU_PORTABLE | MXA_CPU_AVX2 },
    { "avx512", UINT32_MAX & ~(uint32_t)MXA_CPU_AMX },
    { "amx", UINT32_MAX },
};
static const level no_mask = { "", UINT32_MAX };

/* NULL if MXA_CPU is no known word. */
static const level *mask_level(void)
{
    const char *word = getenv("MXA_CPU");
    if (!word || !*word)
        return &no_mask;
    for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++)
        if (strcmp(levels[i].word, word) == 0)
            return &levels[i];
    return NULL;
}

static pthread_once_t once = PTHREAD_ONCE_INIT;
static uint32_t found;
static bool mask_known;

static void find(void)
{
    const level *mask = mask_level();
    mask_known = mask != NULL;
    found = mask ? detect() & mask->flags : 0;
}

uint32_t mxa_cpu_flags(void)
{
    pthread_once(&once, find);
    return found;
}

mxa_status mxa_cpu_mask_status(void)
{
    pthread_once(&once, find);
    if (mask_known)
        return MXA_OK;
    return mxa_fail(MXA_ERR_ARG, "environment variable MXA_CPU: not one of ref, portable, avx2, avx512, amx");
}

const char *mxa_cpu_flags_text(uint32_t flags, char *text, int capacity)
{
    static const level names[] = {
        { "avx2 fma f16c", MXA_CPU_AVX2 },
        { "avx512", MXA_CPU_AVX512 },
        { "avx512_bf16", MXA_CPU_AVX512_BF16 },
        { "avx512_vnni", MXA_CPU_AVX512_VNNI },
        { "amx", MXA_CPU_AMX },
        { "fast_bf16", MXA_CPU_FAST_BF16 },
    };
    int used = 0;
    text[0] = 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0] && used < capacity; i++)
        if (flags & names[i].flags)
            used += snprintf(text + used, (size_t)(capacity - used), "%s%s", used ? " " : "", names[i].word);
    return text;
}

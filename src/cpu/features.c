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

/* Why tile instructions cannot run; NULL, and the process may use them, if they can. */
static const char *refuse_tiles(void)
{
#ifdef MXA_EMULATE_AMX
    return NULL;
#else
    unsigned a, b, c, d;
    if (!__get_cpuid_count(CPUID_STRUCTURED_EXT, 0, &a, &b, &c, &d) || (d & LEAF7_EDX_AMX) != LEAF7_EDX_AMX)
        return "the processor lacks it";
    uint32_t xcr0 = 0, high;
    if (__get_cpuid(1, &a, &b, &c, &d) && c & LEAF1_ECX_OSXSAVE)
        __asm__ volatile("xgetbv" : "=a"(xcr0), "=d"(high) : "c"(0));
    if ((xcr0 & XCR0_TILE_STATE) != XCR0_TILE_STATE)
        return "the operating system does not keep tile registers";
    if (syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_TILE_DATA) != 0)
        return "the operating system does not permit tile registers to this process";
    return NULL;
#endif
}

/* Asking for tile registers enlarges what the system saves of a thread, so a mask goes first. */
static const char *refuse_amx(uint32_t flags, uint32_t mask)
{
    if (!(mask & MXA_CPU_AMX))
        return "masked by MXA_CPU";
    const uint32_t all = MXA_CPU_AVX512 | MXA_CPU_AVX512_BF16 | MXA_CPU_AVX512_VNNI;
    return (flags & all) == all ? refuse_tiles() : "the processor lacks it, or AVX-512 beside it";
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
    /* GFLOP/s of a core by vdpbf16ps and vfmadd231ps: Zen 4 235 and 117, Emerald Rapids 88 and 176. */
    if (flags & MXA_CPU_AVX512_BF16 && __builtin_cpu_is("amd"))
        flags |= MXA_CPU_FAST_BF16;
    if (flags & MXA_CPU_AVX512 && __builtin_cpu_supports("avx512vnni"))
        flags |= MXA_CPU_AVX512_VNNI;
    return flags;
}
#else
static const char *refuse_amx(uint32_t flags, uint32_t mask)
{
    return (void)flags, (void)mask, "the processor lacks it";
}

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
static const char *amx_refusal; /* NULL: it is there */

static void find(void)
{
    const level *mask = mask_level();
    mask_known = mask != NULL;
    found = mask ? detect() & mask->flags : 0;
    amx_refusal = refuse_amx(found, mask ? mask->flags : 0);
    if (!amx_refusal)
        found |= MXA_CPU_AMX;
}

uint32_t mxa_cpu_flags(void)
{
    pthread_once(&once, find);
    return found;
}

const char *mxa_cpu_amx_reason(void)
{
    pthread_once(&once, find);
    return amx_refusal ? amx_refusal : "";
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

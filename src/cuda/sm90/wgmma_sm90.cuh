/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wgmma: descriptors, the order of products, and the products of Q K and P V. A product is asynchronous: its
 * accumulators are written until a wait.
 */
#ifndef MXA_CUDA_WGMMA_SM90_CUH
#define MXA_CUDA_WGMMA_SM90_CUH

#include <stdint.h>

/* Lists of accumulators, as text and as operands with their constraint. */
#define MXA_ACCUMULATORS_32                                                                                  \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "                      \
    "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"
#define MXA_ACCUMULATORS_64                                                                                  \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "                      \
    "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, "                       \
    "%34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "                       \
    "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}"
#define MXA_ACCUMULATORS_128                                                                                 \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "                      \
    "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, "                       \
    "%34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "                       \
    "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, "                       \
    "%66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, "                       \
    "%82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, "                       \
    "%98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, "                           \
    "%111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, "                         \
    "%124, %125, %126, %127}"
#define MXA_OPERANDS_32(c, x)                                                                                \
    c((x)[0]), c((x)[1]), c((x)[2]), c((x)[3]), c((x)[4]), c((x)[5]), c((x)[6]), c((x)[7]), c((x)[8]),       \
        c((x)[9]), c((x)[10]), c((x)[11]), c((x)[12]), c((x)[13]), c((x)[14]), c((x)[15]), c((x)[16]),       \
        c((x)[17]), c((x)[18]), c((x)[19]), c((x)[20]), c((x)[21]), c((x)[22]), c((x)[23]), c((x)[24]),      \
        c((x)[25]), c((x)[26]), c((x)[27]), c((x)[28]), c((x)[29]), c((x)[30]), c((x)[31])
#define MXA_OPERANDS_64(c, x)                                                                                \
    c((x)[0]), c((x)[1]), c((x)[2]), c((x)[3]), c((x)[4]), c((x)[5]), c((x)[6]), c((x)[7]), c((x)[8]),       \
        c((x)[9]), c((x)[10]), c((x)[11]), c((x)[12]), c((x)[13]), c((x)[14]), c((x)[15]), c((x)[16]),       \
        c((x)[17]), c((x)[18]), c((x)[19]), c((x)[20]), c((x)[21]), c((x)[22]), c((x)[23]), c((x)[24]),      \
        c((x)[25]), c((x)[26]), c((x)[27]), c((x)[28]), c((x)[29]), c((x)[30]), c((x)[31]), c((x)[32]),      \
        c((x)[33]), c((x)[34]), c((x)[35]), c((x)[36]), c((x)[37]), c((x)[38]), c((x)[39]), c((x)[40]),      \
        c((x)[41]), c((x)[42]), c((x)[43]), c((x)[44]), c((x)[45]), c((x)[46]), c((x)[47]), c((x)[48]),      \
        c((x)[49]), c((x)[50]), c((x)[51]), c((x)[52]), c((x)[53]), c((x)[54]), c((x)[55]), c((x)[56]),      \
        c((x)[57]), c((x)[58]), c((x)[59]), c((x)[60]), c((x)[61]), c((x)[62]), c((x)[63])
#define MXA_OPERANDS_128(c, x)                                                                               \
    c((x)[0]), c((x)[1]), c((x)[2]), c((x)[3]), c((x)[4]), c((x)[5]), c((x)[6]), c((x)[7]), c((x)[8]),       \
        c((x)[9]), c((x)[10]), c((x)[11]), c((x)[12]), c((x)[13]), c((x)[14]), c((x)[15]), c((x)[16]),       \
        c((x)[17]), c((x)[18]), c((x)[19]), c((x)[20]), c((x)[21]), c((x)[22]), c((x)[23]), c((x)[24]),      \
        c((x)[25]), c((x)[26]), c((x)[27]), c((x)[28]), c((x)[29]), c((x)[30]), c((x)[31]), c((x)[32]),      \
        c((x)[33]), c((x)[34]), c((x)[35]), c((x)[36]), c((x)[37]), c((x)[38]), c((x)[39]), c((x)[40]),      \
        c((x)[41]), c((x)[42]), c((x)[43]), c((x)[44]), c((x)[45]), c((x)[46]), c((x)[47]), c((x)[48]),      \
        c((x)[49]), c((x)[50]), c((x)[51]), c((x)[52]), c((x)[53]), c((x)[54]), c((x)[55]), c((x)[56]),      \
        c((x)[57]), c((x)[58]), c((x)[59]), c((x)[60]), c((x)[61]), c((x)[62]), c((x)[63]), c((x)[64]),      \
        c((x)[65]), c((x)[66]), c((x)[67]), c((x)[68]), c((x)[69]), c((x)[70]), c((x)[71]), c((x)[72]),      \
        c((x)[73]), c((x)[74]), c((x)[75]), c((x)[76]), c((x)[77]), c((x)[78]), c((x)[79]), c((x)[80]),      \
        c((x)[81]), c((x)[82]), c((x)[83]), c((x)[84]), c((x)[85]), c((x)[86]), c((x)[87]), c((x)[88]),      \
        c((x)[89]), c((x)[90]), c((x)[91]), c((x)[92]), c((x)[93]), c((x)[94]), c((x)[95]), c((x)[96]),      \
        c((x)[97]), c((x)[98]), c((x)[99]), c((x)[100]), c((x)[101]), c((x)[102]), c((x)[103]), c((x)[104]), \
        c((x)[105]), c((x)[106]), c((x)[107]), c((x)[108]), c((x)[109]), c((x)[110]), c((x)[111]),           \
        c((x)[112]), c((x)[113]), c((x)[114]), c((x)[115]), c((x)[116]), c((x)[117]), c((x)[118]),           \
        c((x)[119]), c((x)[120]), c((x)[121]), c((x)[122]), c((x)[123]), c((x)[124]), c((x)[125]),           \
        c((x)[126]), c((x)[127])

namespace mxa
{

/* Upper half of all descriptors: 128-byte swizzle, 1024 bytes from one group of 8 rows to the next. */
constexpr uint32_t descriptor_high = 1u << 30 | 1024 >> 4;

/*
 * Lower half of the descriptor of an operand: its address in 16 bytes, and how far apart panels of 64
 * channels are where one instruction spans several (V). K-major operands do not use the distance.
 */
__device__ __forceinline__ uint32_t swizzled_descriptor(uint32_t address, uint32_t panel_distance)
{
    return panel_distance >> 4 << 16 | (address & 0x3FFFF) >> 4;
}

__device__ __forceinline__ void wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Waits until at most this many committed groups are in flight. */
template <int groups>
__device__ __forceinline__ void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(groups) : "memory");
}

/* Accumulators are not read before this place: the wait itself does not name them. */
template <int n>
__device__ __forceinline__ void wgmma_results(float (&x)[n])
{
#pragma unroll
    for (int i = 0; i < n; i++)
        asm volatile("" : "+f"(x[i])::"memory");
}

template <int n>
__device__ __forceinline__ void wgmma_results(uint32_t (&x)[n])
{
#pragma unroll
    for (int i = 0; i < n; i++)
        asm volatile("" : "+r"(x[i])::"memory");
}

/* Operand types of Q K. */
enum class Product { s8, e4m3_e5m2, e4m3_e4m3, bf16, f16 };

#define MXA_QK_64(shape_types, end)                                                                          \
    "{\n"                                                                                                    \
    ".reg .pred p;\n"                                                                                        \
    ".reg .b64 da, db;\n"                                                                                    \
    "setp.ne.b32 p, %34, 0;\n"                                                                               \
    "mov.b64 da, {%32, %35};\n"                                                                              \
    "mov.b64 db, {%33, %35};\n"                                                                              \
    "wgmma.mma_async.sync.aligned.m64n64" shape_types " " MXA_ACCUMULATORS_32 ", da, db, p" end ";\n"        \
    "}"

/*
 * 64 rows of A by 64 columns of B, both in shared memory and K-major, 32 bytes of a row: s (+)= A B^T. The
 * accumulators are kept as bit patterns, since a kernel holds int32 and fp32 scores in the same registers.
 */
template <Product product>
__device__ __forceinline__ void wgmma_qk(uint32_t (&s)[32], uint32_t a, uint32_t b, int accumulate)
{
    if constexpr (product == Product::s8)
        asm volatile(MXA_QK_64("k32.s32.s8.s8", "")
                     : MXA_OPERANDS_32("+r", s)
                     : "r"(a), "r"(b), "r"(accumulate), "n"(descriptor_high));
    else if constexpr (product == Product::e4m3_e5m2)
        asm volatile(MXA_QK_64("k32.f32.e4m3.e5m2", ", 1, 1")
                     : MXA_OPERANDS_32("+r", s)
                     : "r"(a), "r"(b), "r"(accumulate), "n"(descriptor_high));
    else if constexpr (product == Product::e4m3_e4m3)
        asm volatile(MXA_QK_64("k32.f32.e4m3.e4m3", ", 1, 1")
                     : MXA_OPERANDS_32("+r", s)
                     : "r"(a), "r"(b), "r"(accumulate), "n"(descriptor_high));
    else if constexpr (product == Product::bf16)
        asm volatile(MXA_QK_64("k16.f32.bf16.bf16", ", 1, 1, 0, 0")
                     : MXA_OPERANDS_32("+r", s)
                     : "r"(a), "r"(b), "r"(accumulate), "n"(descriptor_high));
    else
        asm volatile(MXA_QK_64("k16.f32.f16.f16", ", 1, 1, 0, 0")
                     : MXA_OPERANDS_32("+r", s)
                     : "r"(a), "r"(b), "r"(accumulate), "n"(descriptor_high));
}

#define MXA_QK_128(shape_types, end)                                                                         \
    "{\n"                                                                                                    \
    ".reg .pred p;\n"                                                                                        \
    ".reg .b64 da, db;\n"                                                                                    \
    "setp.ne.b32 p, %66, 0;\n"                                                                               \
    "mov.b64 da, {%64, %67};\n"                                                                              \
    "mov.b64 db, {%65, %67};\n"                                                                              \
    "wgmma.mma_async.sync.aligned.m64n128" shape_types " " MXA_ACCUMULATORS_64 ", da, db, p" end ";\n"       \
    "}"

/* The same by 128 columns. */
template <Product product>
__device__ __forceinline__ void wgmma_qk(uint32_t (&s)[64], uint32_t a, uint32_t b, int accumulate)
{
    if constexpr (product == Product::s8)
        asm volatile(MXA_QK_128("k32.s32.s8.s8", "")
                     : MXA_OPERANDS_64("+r", s)
                     : "r"(a), "r"(b), "r"(accumulate), "n"(descriptor_high));
    else if constexpr (product == Product::e4m3_e5m2)
        asm volatile(MXA_QK_128("k32.f32.e4m3.e5m2", ", 1, 1")
                     : MXA_OPERANDS_64("+r", s)
                     : "r"(a), "r"(b), "r"(accumulate), "n"(descriptor_high));
    else if constexpr (product == Product::e4m3_e4m3)
        asm volatile(MXA_QK_128("k32.f32.e4m3.e4m3", ", 1, 1")
                     : MXA_OPERANDS_64("+r", s)
                     : "r"(a), "r"(b), "r"(accumulate), "n"(descriptor_high));
    else if constexpr (product == Product::bf16)
        asm volatile(MXA_QK_128("k16.f32.bf16.bf16", ", 1, 1, 0, 0")
                     : MXA_OPERANDS_64("+r", s)
                     : "r"(a), "r"(b), "r"(accumulate), "n"(descriptor_high));
    else
        asm volatile(MXA_QK_128("k16.f32.f16.f16", ", 1, 1, 0, 0")
                     : MXA_OPERANDS_64("+r", s)
                     : "r"(a), "r"(b), "r"(accumulate), "n"(descriptor_high));
}

#define MXA_PV_64(types)                                                                                     \
    "{\n"                                                                                                    \
    ".reg .pred p;\n"                                                                                        \
    ".reg .b64 db;\n"                                                                                        \
    "setp.ne.b32 p, %38, 0;\n"                                                                               \
    "mov.b64 db, {%36, %37};\n"                                                                              \
    "wgmma.mma_async.sync.aligned.m64n64k16.f32." types " " MXA_ACCUMULATORS_32                              \
    ", {%32, %33, %34, %35}, db, p, 1, 1, 1;\n"                                                              \
    "}"

/* o (+)= P V: P in registers, V [16 keys][64 channels] in shared memory, channels contiguous. */
template <bool is_f16>
__device__ __forceinline__ void wgmma_pv(float (&o)[32], const uint32_t (&a)[4], uint32_t b, int accumulate)
{
    if constexpr (is_f16)
        asm volatile(MXA_PV_64("f16.f16")
                     : MXA_OPERANDS_32("+f", o)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "n"(descriptor_high),
                       "r"(accumulate));
    else
        asm volatile(MXA_PV_64("bf16.bf16")
                     : MXA_OPERANDS_32("+f", o)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "n"(descriptor_high),
                       "r"(accumulate));
}

#define MXA_PV_128(types)                                                                                    \
    "{\n"                                                                                                    \
    ".reg .pred p;\n"                                                                                        \
    ".reg .b64 db;\n"                                                                                        \
    "setp.ne.b32 p, %70, 0;\n"                                                                               \
    "mov.b64 db, {%68, %69};\n"                                                                              \
    "wgmma.mma_async.sync.aligned.m64n128k16.f32." types " " MXA_ACCUMULATORS_64                             \
    ", {%64, %65, %66, %67}, db, p, 1, 1, 1;\n"                                                              \
    "}"

template <bool is_f16>
__device__ __forceinline__ void wgmma_pv(float (&o)[64], const uint32_t (&a)[4], uint32_t b, int accumulate)
{
    if constexpr (is_f16)
        asm volatile(MXA_PV_128("f16.f16")
                     : MXA_OPERANDS_64("+f", o)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "n"(descriptor_high),
                       "r"(accumulate));
    else
        asm volatile(MXA_PV_128("bf16.bf16")
                     : MXA_OPERANDS_64("+f", o)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "n"(descriptor_high),
                       "r"(accumulate));
}

#define MXA_PV_256(types)                                                                                    \
    "{\n"                                                                                                    \
    ".reg .pred p;\n"                                                                                        \
    ".reg .b64 db;\n"                                                                                        \
    "setp.ne.b32 p, %134, 0;\n"                                                                              \
    "mov.b64 db, {%132, %133};\n"                                                                            \
    "wgmma.mma_async.sync.aligned.m64n256k16.f32." types " " MXA_ACCUMULATORS_128                            \
    ", {%128, %129, %130, %131}, db, p, 1, 1, 1;\n"                                                          \
    "}"

template <bool is_f16>
__device__ __forceinline__ void wgmma_pv(float (&o)[128], const uint32_t (&a)[4], uint32_t b, int accumulate)
{
    if constexpr (is_f16)
        asm volatile(MXA_PV_256("f16.f16")
                     : MXA_OPERANDS_128("+f", o)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "n"(descriptor_high),
                       "r"(accumulate));
    else
        asm volatile(MXA_PV_256("bf16.bf16")
                     : MXA_OPERANDS_128("+f", o)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "n"(descriptor_high),
                       "r"(accumulate));
}

} // namespace mxa

#endif

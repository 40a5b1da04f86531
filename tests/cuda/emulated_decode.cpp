/* SPDX-License-Identifier: Apache-2.0 */
/* A CUDA runtime that runs decode kernels on the host, and their list. */
#include <cstdio>
#include <cstdlib>

#include "emulated_decode.h"

#include "check_decode_cuda.h"
#include "cuda/decode/decode_config_sm90.cuh"
#include "cuda/decode/decode_launch_sm90.h"

emulated_index gridDim;

namespace mxa
{

enum { MEMORY_BYTES = 232448 };
alignas(128) uint8_t memory[MEMORY_BYTES];

namespace
{

float from_f16(uint32_t pair, int i)
{
    return mxa_f32_from_f16(uint16_t(pair >> 16 * i));
}

} // namespace

void barrier_wait(uint32_t bar, uint32_t parity)
{
    if ((barrier_at(bar) - 1) % 2 != parity) {
        printf("a warp waits for what was not asked for\n");
        exit(1);
    }
}

uint32_t pack_f16(float low, float high)
{
    return pack_two_f16(low, high);
}

uint32_t pack_bf16(float low, float high)
{
    return pack_two_bf16(low, high);
}

uint32_t transpose_matrix(uint32_t x)
{
    const auto *const all = static_cast<const uint32_t *>(emulated_exchange(&x, sizeof x));
    const int row = emulated_lane() / 4, column = emulated_lane() % 4 * 2;
    uint32_t y = 0;
    for (int e = 0; e < 2; e++)
        y |= (all[(column + e) * 4 + row / 2] >> 16 * (row % 2) & 0xFFFF) << 16 * e;
    emulated_done();
    return y;
}

void multiply_f16(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
{
    mma_f16(c, { a0, a1, a2, a3 }, b0, b1);
}

void multiply_bf16(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                   uint32_t b1)
{
    mma_bf16(c, { a0, a1, a2, a3 }, b0, b1);
}

void multiply_s8(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
{
    struct Fragments {
        uint32_t a[4], b[2];
    } mine = { { a0, a1, a2, a3 }, { b0, b1 } };
    const auto *const all = static_cast<const Fragments *>(emulated_exchange(&mine, sizeof mine));
    for (int i = 0; i < 4; i++) {
        const int row = emulated_lane() / 4 + i / 2 * 8, column = emulated_lane() % 4 * 2 + i % 2;
        for (int k = 0; k < 32; k++) {
            const uint32_t x = all[row % 8 * 4 + k % 16 / 4].a[row / 8 + k / 16 * 2];
            const uint32_t y = all[column * 4 + k % 16 / 4].b[k / 16];
            c[i] += int(int8_t(x >> k % 4 * 8)) * int(int8_t(y >> k % 4 * 8));
        }
    }
    emulated_done();
}

uint32_t multiply_pairs_f16(uint32_t x, uint32_t y)
{
    return pack_two_f16(from_f16(x, 0) * from_f16(y, 0), from_f16(x, 1) * from_f16(y, 1));
}

uint32_t subtract_pairs_f16(uint32_t x, uint32_t y)
{
    return pack_two_f16(from_f16(x, 0) - from_f16(y, 0), from_f16(x, 1) - from_f16(y, 1));
}

uint32_t pair_of_e4m3(uint16_t codes)
{
    return pack_two_f16(mxa_element_decode(mxa_element_e4m3(), codes & 0xFF),
                        mxa_element_decode(mxa_element_e4m3(), codes >> 8));
}

uint16_t e4m3_of_pair(float low, float high)
{
    const mxa_element e = mxa_element_e4m3();
    return uint16_t(mxa_element_encode(e, low) | mxa_element_encode(e, high) << 8);
}

} // namespace mxa

extern "C" {

extern const int check_shorter = 12;

const mxa_cuda_decode_impl mxa_cuda_decode_impls[] = {
    { "sm90", 90, true, mxa_decode_sm90_refuses, mxa_decode_sm90_work_bytes, mxa_decode_sm90 },
    { nullptr, 0, false, nullptr, nullptr, nullptr },
};

mxa_status mxa_cuda_check(cudaError_t error, const char *)
{
    return error == cudaSuccess ? MXA_OK : MXA_ERR_DEVICE;
}

mxa_status mxa_cuda_device_read(int, mxa_cuda_device *device)
{
    *device = { 0, 90, 7, 50 << 20, mxa::MEMORY_BYTES };
    return MXA_OK;
}

int check_times(const mxa_cuda_device *, int, char **)
{
    return 1;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = 1;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int)
{
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **memory, size_t bytes)
{
    *memory = aligned_alloc(128, (bytes + 127) & ~size_t(127));
    return cudaSuccess;
}

cudaError_t cudaFree(void *memory)
{
    free(memory);
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind)
{
    std::memcpy(to, from, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemset(void *to, int x, size_t bytes)
{
    std::memset(to, x, bytes);
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t)
{
    return "an error";
}

cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute, int)
{
    return kernel ? cudaSuccess : cudaErrorInvalidDeviceFunction;
}

/* Kernels have one argument, their parameters by value. */
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *kernel, void **args)
{
    using Kernel = void(mxa::DecodeParams);
    auto *const run = reinterpret_cast<Kernel *>(const_cast<void *>(kernel));
    const auto &params = *static_cast<const mxa::DecodeParams *>(args[0]);
    gridDim = { config->gridDim.x, 1 };
    emulated_launch(config->gridDim.x, 1, [&] { run(params); });
    return cudaSuccess;
}
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Times the CUDA quantiser beside a device copy: quantize_bench [ROWS [DIM [HEADS]]]. Random normal numbers
 * in bf16; each time is the median of single calls between events, with the middle half's width. The speed is
 * bytes read once and written once over the time; the share is of the speed of a copy in the same run.
 */
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "core/tensor.h"
#include "cuda/quantize_cuda.h"
#include "format/format.h"

namespace
{

constexpr int repeats = 21;

struct Problem {
    mxa_cuda_rows rows;
    float *mean, *g, *bias;
    uint8_t *codes[2], *scales[2], *tiles, *work;
    double copy_rate; /* bytes a second, read and written */
};

void must(cudaError_t error)
{
    if (error != cudaSuccess) {
        std::fprintf(stderr, "%s\n", cudaGetErrorString(error));
        std::exit(1);
    }
}

template <class T>
T *device_memory(int64_t n)
{
    void *p;
    must(cudaMalloc(&p, size_t(n) * sizeof(T)));
    return static_cast<T *>(p);
}

Problem make_problem(int64_t heads, int64_t tokens, int64_t dim)
{
    const int64_t n = heads * tokens * dim;
    std::vector<uint16_t> x(static_cast<size_t>(n));
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<uint16_t> some(1 << 16); /* drawn from over and over: drawing takes longer than all else */
    for (auto &v : some)
        v = mxa_bf16_from_f32(normal(random));
    for (auto &v : x)
        v = some[random() % some.size()];
    Problem p{};
    void *data = device_memory<uint16_t>(n);
    must(cudaMemcpy(data, x.data(), x.size() * 2, cudaMemcpyHostToDevice));
    p.rows.x = { data, MXA_DTYPE_BF16, { 1, heads, tokens, dim }, { n, tokens * dim, dim, 1 } };
    p.rows.n_sequences = 1;
    p.rows.n_rows = heads * tokens;
    p.rows.n_blocks = heads * mxa_token_blocks(tokens);
    p.mean = device_memory<float>(heads * dim);
    must(cudaMemset(p.mean, 0, size_t(heads * dim) * sizeof(float)));
    p.g = device_memory<float>(2 * p.rows.n_rows);
    p.bias = device_memory<float>(p.rows.n_rows);
    p.tiles = device_memory<uint8_t>(p.rows.n_blocks);
    p.work = device_memory<uint8_t>(p.rows.n_rows * 4 + 128);
    for (int i = 0; i < 2; i++) {
        p.codes[i] = device_memory<uint8_t>(n * 4);
        p.scales[i] = device_memory<uint8_t>(n / 16);
    }
    return p;
}

struct Times {
    double median, spread; /* seconds */
};

template <class Call>
Times time_calls(Call call)
{
    std::vector<cudaEvent_t> events(2 * repeats);
    for (auto &e : events)
        must(cudaEventCreate(&e));
    for (int i = 0; i < 3; i++)
        call();
    for (int i = 0; i < repeats; i++) {
        must(cudaEventRecord(events[2 * i]));
        call();
        must(cudaEventRecord(events[2 * i + 1]));
    }
    must(cudaDeviceSynchronize());
    std::vector<double> t;
    for (int i = 0; i < repeats; i++) {
        float ms;
        must(cudaEventElapsedTime(&ms, events[2 * i], events[2 * i + 1]));
        t.push_back(ms * 1e-3);
    }
    for (auto &e : events)
        must(cudaEventDestroy(e));
    std::sort(t.begin(), t.end());
    return { t[repeats / 2], t[repeats * 3 / 4] - t[repeats / 4] };
}

mxa_cuda_copy make_copy(const Problem &p, int i, mxa_format format, mxa_level level, mxa_cuda_form form,
                        bool rotate, bool mean)
{
    const mxa_format_info *const info = mxa_format_get(format);
    mxa_cuda_copy c{};
    c.copy.spec = { info, info->default_rule, 0 };
    c.copy.level = level == MXA_LEVEL_DEFAULT ? info->default_level : level;
    c.copy.rotate = rotate;
    c.copy.mean = mean ? p.mean : nullptr;
    c.copy.out = { p.codes[i], p.scales[i], p.g + i * p.rows.n_rows, nullptr };
    c.form = form;
    c.row_bytes = mxa_cuda_form_row_bytes(info, form, p.rows.x.shape[3]);
    c.g_written = form == MXA_CUDA_E5M2 || form == MXA_CUDA_E4M3 ? MXA_LEVEL_TOKEN_BLOCK : c.copy.level;
    return c;
}

double bytes_written(const Problem &p, const mxa_cuda_copy &c)
{
    const double rows = double(p.rows.n_rows);
    const int64_t scales = c.form == MXA_CUDA_CODES ? mxa_scale_cols(c.copy.spec.info, p.rows.x.shape[3]) : 0;
    return rows * double(c.row_bytes + scales) + (c.g_written == MXA_LEVEL_TOKEN ? 4 * rows : 0);
}

double input_bytes(const Problem &p)
{
    return double(p.rows.n_rows * p.rows.x.shape[3] * mxa_dtype_bytes(p.rows.x.dtype));
}

void report(const char *name, const Problem &p, Times t, double bytes)
{
    const double rate = bytes / t.median;
    std::printf("%-44s %9.1f us +- %4.1f %8.0f GB/s %6.2f\n", name, t.median * 1e6, t.spread * 1e6,
                rate * 1e-9, p.copy_rate > 0 ? rate / p.copy_rate : 1.0);
}

void run(const char *name, const Problem &p, std::vector<mxa_cuda_copy> copies, bool with_bias = false)
{
    const mxa_cuda_bias bias = { p.bias, p.mean, 1, 0.125f, true };
    double bytes = input_bytes(p) + (with_bias ? 4.0 * double(p.rows.n_rows) : 0);
    for (const auto &c : copies)
        bytes += bytes_written(p, c);
    mxa_cuda_chain chain{};
    const Times t = time_calls([&] {
        if (mxa_cuda_quantize(&p.rows, MXA_NONFINITE_PROPAGATE, int(copies.size()), copies.data(),
                              with_bias ? &bias : nullptr, nullptr, p.work, &chain) != MXA_OK) {
            std::fprintf(stderr, "%s: %s\n", name, mxa_error_text());
            std::exit(1);
        }
    });
    report(name, p, t, bytes);
}

/* The same two copies in three passes: rotated to fp32, then each format from that. */
void run_chain(const Problem &p)
{
    Problem wide = p;
    const int64_t n = p.rows.n_rows * p.rows.x.shape[3];
    wide.rows.x.data = device_memory<float>(n);
    wide.rows.x.dtype = MXA_DTYPE_F32;
    mxa_cuda_copy rotated = make_copy(p, 0, MXA_FORMAT_F32, MXA_LEVEL_NONE, MXA_CUDA_CODES, true, false);
    rotated.copy.out.codes = static_cast<uint8_t *>(wide.rows.x.data);
    const mxa_cuda_copy low = make_copy(p, 0, MXA_FORMAT_MXFP4, MXA_LEVEL_NONE, MXA_CUDA_CODES, false, false);
    const mxa_cuda_copy high =
        make_copy(p, 1, MXA_FORMAT_MXFP8_E4M3, MXA_LEVEL_NONE, MXA_CUDA_CODES, false, false);
    mxa_cuda_chain chain{};
    const Times t = time_calls([&] {
        mxa_cuda_quantize(&p.rows, MXA_NONFINITE_PROPAGATE, 1, &rotated, nullptr, nullptr, p.work, &chain);
        mxa_cuda_quantize(&wide.rows, MXA_NONFINITE_PROPAGATE, 1, &low, nullptr, nullptr, p.work, &chain);
        mxa_cuda_quantize(&wide.rows, MXA_NONFINITE_PROPAGATE, 1, &high, nullptr, nullptr, p.work, &chain);
    });
    report("the same, in three passes through fp32", p, t,
           input_bytes(p) + bytes_written(p, low) + bytes_written(p, high));
    must(cudaFree(wide.rows.x.data));
}

void run_all(Problem &p)
{
    const Times copy = time_calls([&] {
        must(cudaMemcpyAsync(p.codes[0], p.rows.x.data, size_t(input_bytes(p)), cudaMemcpyDeviceToDevice,
                             nullptr));
    });
    p.copy_rate = 2 * input_bytes(p) / copy.median;
    report("device copy", p, copy, 2 * input_bytes(p));

    const auto codes = [&](int i, mxa_format format, mxa_level level, bool mean) {
        return make_copy(p, i, format, level, MXA_CUDA_CODES, true, mean);
    };
    const mxa_level own = MXA_LEVEL_DEFAULT;
    const mxa_cuda_copy high = codes(1, MXA_FORMAT_MXFP8_E4M3, own, false);
    run("mxfp4 + mxfp8, rotated", p, { codes(0, MXA_FORMAT_MXFP4, own, false), high });
    run_chain(p);
    run("nvfp4 + mxfp8, rotated", p, { codes(0, MXA_FORMAT_NVFP4, own, false), high });
    run("int8 + mxfp8, rotated", p, { codes(0, MXA_FORMAT_INT8, own, false), high });
    run("mxfp4 rotated + f16", p,
        { codes(0, MXA_FORMAT_MXFP4, own, false),
          make_copy(p, 1, MXA_FORMAT_F16, own, MXA_CUDA_CODES, false, false) });
    run("int8, rotated", p, { codes(0, MXA_FORMAT_INT8, own, false) });
    run("int8, rotated, mean", p, { codes(0, MXA_FORMAT_INT8, own, true) });
    run("int8 a token block, rotated, mean", p, { codes(0, MXA_FORMAT_INT8, MXA_LEVEL_TOKEN_BLOCK, true) });
    run("int8 a head, rotated, mean", p, { codes(0, MXA_FORMAT_INT8, MXA_LEVEL_HEAD, true) });
    run("int8, rotated, bias", p, { codes(0, MXA_FORMAT_INT8, own, false) }, true);
    run("fp8, rotated", p, { codes(0, MXA_FORMAT_FP8, own, false) });
    run("fp8, rotated, bias", p, { codes(0, MXA_FORMAT_FP8, own, false) }, true);
    run("mxfp4, rotated", p, { codes(0, MXA_FORMAT_MXFP4, own, false) });
    run("mxfp4 folded into e5m2, rotated, mean", p,
        { make_copy(p, 0, MXA_FORMAT_MXFP4, own, MXA_CUDA_E5M2, true, true) });
    run("mxfp4 folded into e4m3, rotated, mean", p,
        { make_copy(p, 0, MXA_FORMAT_MXFP4, own, MXA_CUDA_E4M3, true, true) });
    run("mxfp8, rotated", p, { codes(0, MXA_FORMAT_MXFP8_E4M3, own, false) });
    run("mxint8, rotated", p, { codes(0, MXA_FORMAT_MXINT8, own, false) });
    run("nvfp4, rotated", p, { codes(0, MXA_FORMAT_NVFP4, own, false) });
    run("nvfp4 in bf16, rotated", p, { make_copy(p, 0, MXA_FORMAT_NVFP4, own, MXA_CUDA_BF16, true, false) });
    run("int8, as it is", p, { make_copy(p, 0, MXA_FORMAT_INT8, own, MXA_CUDA_CODES, false, false) });
    run("mxfp6, rotated (any shape)", p, { codes(0, MXA_FORMAT_MXFP6_E3M2, own, false) });

    mxa_cuda_chain chain{};
    const Times mean =
        time_calls([&] { mxa_cuda_channel_mean(&p.rows, MXA_TILE, p.mean, nullptr, 0, &chain); });
    report("mean of 128 tokens", p, mean, double(p.rows.x.shape[1] * MXA_TILE * p.rows.x.shape[3] * 2));
    const Times all =
        time_calls([&] { mxa_cuda_channel_mean(&p.rows, p.rows.x.shape[2], p.mean, nullptr, 0, &chain); });
    report("mean of all tokens", p, all, input_bytes(p));
}

} // namespace

int main(int argc, char **argv)
{
    const auto number = [&](int i, int64_t usual) { return argc > i ? std::atoll(argv[i]) : usual; };
    const int64_t tokens = number(1, 32768), dim = number(2, 128), heads = number(3, 32);
    Problem p = make_problem(heads, tokens, dim);
    std::printf("[%lld x %lld x %lld] bf16\n", (long long)heads, (long long)tokens, (long long)dim);
    run_all(p);
    return 0;
}

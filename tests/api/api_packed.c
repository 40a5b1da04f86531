/* SPDX-License-Identifier: Apache-2.0 */
#include "api_support.h"

#include <string.h>

const mxa_format api_formats[API_FORMATS] = {
    MXA_FORMAT_F32,        MXA_FORMAT_F16,        MXA_FORMAT_BF16,       MXA_FORMAT_MXFP8_E4M3,
    MXA_FORMAT_MXFP8_E5M2, MXA_FORMAT_MXFP6_E3M2, MXA_FORMAT_MXFP6_E2M3, MXA_FORMAT_MXFP4,
    MXA_FORMAT_MXINT8,     MXA_FORMAT_NVFP4,      MXA_FORMAT_FP8,        MXA_FORMAT_INT8,
};

mxa_quant_opts api_opts(void)
{
    mxa_quant_opts opts;
    mxa_quant_default(&opts);
    return opts;
}

api_packed api_packed_new(mxa_format format, const mxa_quant_opts *opts, const int64_t shape[4])
{
    api_packed p = { 0 };
    api_ok(mxa_packed_sizes(format, opts, shape, &p.size));
    p.data.codes = api_bytes((size_t)p.size.code_bytes);
    p.data.scales = p.size.scale_bytes == 0 ? NULL : api_bytes((size_t)p.size.scale_bytes);
    p.data.g = p.size.g_count == 0 ? NULL : api_floats((size_t)p.size.g_count);
    p.data.nonfinite_tiles = api_bytes((size_t)p.size.tile_count);
    return p;
}

void api_packed_same(const api_packed *a, const api_packed *b)
{
    assert_memory_equal(&a->size, &b->size, sizeof a->size);
    assert_memory_equal(a->data.codes, b->data.codes, (size_t)a->size.code_bytes);
    if (a->data.scales != NULL)
        assert_memory_equal(a->data.scales, b->data.scales, (size_t)a->size.scale_bytes);
    if (a->data.g != NULL)
        assert_memory_equal(a->data.g, b->data.g, (size_t)a->size.g_count * sizeof(float));
    assert_memory_equal(a->data.nonfinite_tiles, b->data.nonfinite_tiles, (size_t)a->size.tile_count);
}

void api_packed_untouched(const api_packed *p)
{
    api_untouched(p->data.codes);
    if (p->data.scales != NULL)
        api_untouched(p->data.scales);
    if (p->data.g != NULL)
        api_untouched(p->data.g);
    api_untouched(p->data.nonfinite_tiles);
}

api_packed api_quantize(const mxa_tensor *x, mxa_format format, const mxa_quant_opts *opts)
{
    const api_packed p = api_packed_new(format, opts, x->shape);
    api_ok(mxa_quantize(x, format, opts, &p.data, NULL));
    return p;
}

mxa_tensor api_dequantize(const api_packed *p, mxa_format format, const mxa_quant_opts *opts, mxa_dtype dtype,
                          const int64_t shape[4])
{
    const mxa_tensor y = api_tensor(dtype, shape[0], shape[1], shape[2], shape[3]);
    api_ok(mxa_dequantize(&p->data, format, opts, &y));
    return y;
}

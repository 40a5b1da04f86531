# SPDX-License-Identifier: Apache-2.0
"""Tokens of ggml and vLLM caches into ours and back: bytes where formats are the same, else values."""

import numpy as np
import pytest

import inputs
import mxa
import mxa_cache
import oracle_cache as oc
import oracle_formats as of
import oracle_layouts as ol

HEADS, DIM = 2, 64
LOW_MXFP4 = "low_q=int8,low_k=mxfp4,v=mxfp4"
LOW_NVFP4 = "low_q=fp8,low_k=nvfp4,v=nvfp4"


def random_codes(rng, n, block, scales):
    """Codes [n * HEADS][DIM] and scales of rows, token by token: any that a format has, not only ours."""
    codes = rng.integers(0, 16, (n * HEADS, DIM), np.uint8)
    return codes, rng.integers(*scales, (n * HEADS, DIM // block), np.uint8)


def mxfp4_rows(rng, n):
    codes, scales = random_codes(rng, n, 32, (115, 135))
    scales[0, 0], scales[1, 1] = 0, 0xFF if n > 200 else 254
    return codes, scales, ol.ggml_mxfp4(codes, scales)


def numbers(codes, scales):
    """[HEADS][n][DIM] of MXFP4."""
    with np.errstate(invalid="ignore"):
        x = of.saturate(of.decode("e2m1", codes) * np.repeat(of.decode_e8m0(scales), 32, axis=1))
    return x.astype(np.float32).reshape(-1, HEADS, DIM).transpose(1, 0, 2)


def stored(cache, b, operand, text_parts, rows):
    """Codes, scales and factors [HEADS][rows] of low rows."""
    tokens = cache.opts.page_tokens
    k, v, head_bytes = text_parts
    _, _, pages = cache.table(b)
    heads = [[], [], []]
    for h in range(HEADS):
        parts = []
        for t in rows:
            memory = cache.page(mxa_cache.LOW, pages[0][t // tokens], head_bytes * HEADS)
            parts.append(
                oc.page_rows(memory, (k, v)[operand], head_bytes, h, range(t % tokens, t % tokens + 1))
            )
        for i in range(3):
            heads[i].append(np.concatenate([p[i] for p in parts]))
    return [np.stack(x) for x in heads]


def parts_of(fmt, page_tokens):
    k, at = oc.part_layout(fmt, DIM, page_tokens, 0)
    v, at = oc.part_layout(fmt, DIM, page_tokens, at)
    return k, v, at


@pytest.mark.parametrize("n", [7, 300])
def test_mxfp4_rows_keep_their_bytes(n):
    rng = np.random.default_rng(n)
    k, v = mxfp4_rows(rng, n), mxfp4_rows(rng, n)
    cache = mxa_cache.Cache(2, HEADS, DIM, LOW_MXFP4, page_tokens=48)
    size, first = k[2].size // n, n // 3
    for a, b in ((0, first), (first, n)):
        cut = [("ggml_mxfp4", x[2][a * size : b * size].copy()) for x in (k, v)]
        cache.import_rows(1, b - a, *cut)
    np.testing.assert_array_equal(cache.lengths(2), [0, n])
    for operand, (codes, scales, _) in enumerate((k, v)):
        got = stored(cache, 1, operand, parts_of("mxfp4", 48), range(n))
        want = [ol.pack_codes(4, codes), scales]
        for x, y in zip(got, want):
            np.testing.assert_array_equal(x, y.reshape(n, HEADS, -1).transpose(1, 0, 2))
    a, b = n // 4, n - 1
    out = cache.export_rows(1, a, b - a, *[("ggml_mxfp4", (b - a) * size)] * 2)
    for x, y in zip(out, (k, v)):
        np.testing.assert_array_equal(x, y[2][a * size : b * size])


@pytest.mark.parametrize("text", ["dma4,v=int8", "dma8", "low_q=int8,low_k=mxfp4,v=mxfp4,rotate,rotate-v"])
@pytest.mark.parametrize("layout", ["ggml_mxfp4", "ggml_q8_0"])
def test_values_as_append_takes_them(text, layout, tmp_path):
    n, rng = 200, np.random.default_rng(5)
    if layout == "ggml_q8_0":
        data = [ol.ggml_q8_0(rng.standard_normal((n, HEADS, DIM))) for _ in range(2)]
        values = [ol.from_ggml_q8_0(x).reshape(n, HEADS, DIM).transpose(1, 0, 2) for x in data]
    else:
        rows = [mxfp4_rows(rng, n) for _ in range(2)]
        data, values = [r[2] for r in rows], [numbers(*r[:2]) for r in rows]
    files = []
    for way in ("import", "append"):
        cache = mxa_cache.Cache(1, HEADS, DIM, text)
        if way == "import":
            cache.import_rows(0, n, *((layout, np.ascontiguousarray(x).reshape(-1)) for x in data))
        else:
            cache.append(*(np.ascontiguousarray(x)[None] for x in values))
        cache.save(tmp_path / way)
        files.append((tmp_path / way).read_bytes())
    assert files[0] == files[1]


def test_windows_keep_codes():
    """V of the windows has 16-bit rows, which hold MXFP4 exactly; its low rows keep the foreign codes."""
    n, rng = 420, np.random.default_rng(6)
    rows = [mxfp4_rows(rng, n) for _ in range(2)]
    for _, scales, _ in rows:
        scales[...] = np.clip(scales, 115, 135)
    data = [ol.ggml_mxfp4(*r[:2]) for r in rows]
    cache = mxa_cache.Cache(1, HEADS, DIM, "low_q=int8,low_k=mxfp4,high=bf16,v=mxfp4", rewind=0)
    cache.import_rows(0, n, *(("ggml_mxfp4", x) for x in data))
    size = data[0].size // n
    out = cache.export_rows(0, 128, n - 128, *[("ggml_mxfp4", size * (n - 128))] * 2)
    for x, y in zip(out, data):
        np.testing.assert_array_equal(x, y[128 * size :])
    out = cache.export_rows(0, 0, 128, *[("ggml_q8_0", 128 * HEADS * DIM // 32 * 34)] * 2)
    for x, (codes, scales, _) in zip(out, rows):
        values = numbers(codes, scales)[:, :128].transpose(1, 0, 2)
        np.testing.assert_array_equal(x.reshape(-1, 34), ol.ggml_q8_0(values))


@pytest.mark.parametrize("text", ["dma4,v=int8", "dma4,v=mxfp4,rotate-v", "dma8,v=fp8"])
def test_export_of_smoothed_and_rotated_keys(text):
    """What is exported is the held copy turned back, with its mean; the windows' tokens come from 16 bits."""
    n, low = 500, slice(128, 256)
    low_k, v_format = ("mxfp4" if "dma4" in text else "int8"), text.split("v=")[1].split(",")[0]
    k, v = (inputs.make(9 + i, (1, HEADS, n, DIM), "biased", "f32") for i in range(2))
    cache = mxa_cache.Cache(1, HEADS, DIM, text)
    cache.append(k, v)
    cache.append(k[:, :, :1], v[:, :, :1])
    mean = of.channel_mean(of.round_plain(k, "bf16"), 128)
    copy = of.dequantize(of.quantize(of.prepare(k, mean, True), low_k), DIM)
    want_k = of.rotate(copy.astype(np.float32)) + mean[:, :, None]
    turned = "rotate-v" in text
    want_v = of.dequantize(of.quantize(of.prepare(v, rotated=turned), v_format), DIM).astype(np.float32)
    want_v = of.rotate(want_v) if turned else want_v
    size = HEADS * DIM // 32 * 34
    got = cache.export_rows(0, low.start, 128, *[("ggml_q8_0", 128 * size)] * 2)
    for x, want in zip(got, (want_k, want_v)):
        np.testing.assert_array_equal(x.reshape(-1, 34), ol.ggml_q8_0(want[0, :, low].transpose(1, 0, 2)))
    near = cache.export_rows(0, 400, 100, *[("ggml_q8_0", 100 * size)] * 2)
    want = of.round_plain(k, "bf16").astype(np.float32)[0, :, 400:].transpose(1, 0, 2)
    np.testing.assert_array_equal(near[0].reshape(-1, 34), ol.ggml_q8_0(want))


@pytest.mark.parametrize("turned", [False, True])
def test_export_of_values_with_channel_factors(turned):
    rng = np.random.default_rng(11)
    g_v = rng.uniform(0.01, 0.1, (HEADS, DIM)).astype(np.float32)
    k, v = rng.standard_normal((2, 1, HEADS, 40, DIM)).astype(np.float32)
    text = "low_q=int8,low_k=int8,v=int8" + ",rotate-v" * turned
    cache = mxa_cache.Cache(1, HEADS, DIM, text, g_v=g_v)
    cache.append(k, v)
    size = 40 * HEADS * DIM // 32 * 34
    got = cache.export_rows(0, 0, 40, ("ggml_q8_0", size), ("ggml_q8_0", size))[1]
    codes = of.dequantize(oc.channel_codes(v, "int8", turned, g_v), DIM).astype(np.float32)
    want = codes * g_v[None, :, None]
    want = (of.rotate(want) if turned else want)[0].transpose(1, 0, 2)
    np.testing.assert_array_equal(got.reshape(-1, 34), ol.ggml_q8_0(want))


def test_q8_0_is_that_of_gguf():
    gguf = pytest.importorskip("gguf")
    rng = np.random.default_rng(3)
    x = rng.standard_normal((1, HEADS, 90, DIM)).astype(np.float32) * np.exp2(rng.integers(-20, 12, (90, 1)))
    x = x.astype(np.float32)
    x[0, 0, 0] = 0
    cache = mxa_cache.Cache(1, HEADS, DIM, "bf16,high=f32,v=f32")
    cache.append(x, -x)
    size = 90 * HEADS * DIM // 32 * 34
    got = cache.export_rows(0, 0, 90, ("ggml_q8_0", size), ("ggml_q8_0", size))
    for data, values in zip(got, (x, -x)):
        flat = np.ascontiguousarray(values[0].transpose(1, 0, 2)).reshape(-1, DIM)
        want = gguf.quants.quantize(flat, gguf.GGMLQuantizationType.Q8_0)
        np.testing.assert_array_equal(data.reshape(want.shape), want)
        back = gguf.quants.dequantize(want, gguf.GGMLQuantizationType.Q8_0)
        np.testing.assert_array_equal(ol.from_ggml_q8_0(data).reshape(back.shape), back)
    codes, scales = random_codes(rng, 8, 32, (115, 135))
    rows = ol.ggml_mxfp4(codes, scales).reshape(8 * HEADS, -1)
    values = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType.MXFP4)
    np.testing.assert_array_equal(values.reshape(8, HEADS, DIM).transpose(1, 0, 2), numbers(codes, scales))


def test_q8_0_of_what_it_cannot_hold():
    x = np.ones((1, 1, 16, 32), np.float32)
    x[0, 0, 0, 3], x[0, 0, 1, 4], x[0, 0, 2], x[0, 0, 3] = np.nan, -np.inf, 3e38, 1e-42
    cache = mxa_cache.Cache(1, 1, 32, "bf16,high=f32,v=f32")
    cache.append(x, x)
    got = cache.export_rows(0, 0, 16, ("ggml_q8_0", 16 * 34), ("ggml_q8_0", 16 * 34))[0]
    values = ol.from_ggml_q8_0(got)
    assert np.isnan(values[:2]).all() and (values[2] == 65504 * 127.0).all() and (values[3] == 0).all()
    np.testing.assert_allclose(values[4:], 1, rtol=1e-3)


def test_vllm_pages():
    rng, tokens, n, factors = np.random.default_rng(8), 16, 13, (0.03125, 0.7)
    k, v = (
        [x.reshape(tokens, HEADS, -1).transpose(1, 0, 2) for x in random_codes(rng, tokens, 16, (1, 0x7E))]
        for _ in range(2)
    )
    page = ol.vllm_page(ol.pack_codes(4, k[0]), k[1], ol.pack_codes(4, v[0]), v[1])
    cache = mxa_cache.Cache(2, HEADS, DIM, LOW_NVFP4, page_tokens=32)
    for _ in range(3):
        cache.import_vllm(0, n, page, tokens, *factors)
    for operand, (codes, scales) in enumerate((k, v)):
        got = stored(cache, 0, operand, parts_of("nvfp4", 32), range(n, 2 * n))
        np.testing.assert_array_equal(got[0], ol.pack_codes(4, codes)[:, :n])
        np.testing.assert_array_equal(got[1], scales[:, :n])
        assert (got[2].view(np.float32) == np.float32(factors[operand])).all()
    blank = [[np.where(np.arange(tokens)[:, None] < n, x, 0) for x in both] for both in (k, v)]
    want = ol.vllm_page(*(y for x in blank for y in (ol.pack_codes(4, x[0]), x[1])))
    np.testing.assert_array_equal(cache.export_vllm(0, n, n, page.size, tokens, *factors), want)
    other = cache.export_vllm(0, n, n, page.size, tokens, factors[0], 1.5)
    half = page.size // 2
    np.testing.assert_array_equal(other[:half], want[:half])
    decoded = of.decode("e2m1", v[0]).astype(np.float32)
    step = of.decode_ue4m3(v[1]).astype(np.float32) * np.float32(factors[1])
    values = (np.repeat(step, 16, axis=-1) * decoded)[:, :n]
    packed = mxa.quantize(
        np.ascontiguousarray(values)[None], "nvfp4", level="tensor", g=np.full(1, 1.5, np.float32)
    )
    codes = np.zeros((HEADS, tokens, DIM // 2), np.uint8)
    scales = np.zeros((HEADS, tokens, DIM // 16), np.uint8)
    codes[:, :n] = packed.codes.reshape(HEADS, n, -1)
    scales[:, :n] = packed.scales.reshape(HEADS, n, -1)
    again = ol.vllm_page(ol.pack_codes(4, k[0]), k[1], codes, scales)
    np.testing.assert_array_equal(other[half:], again[half:])


def test_vllm_pages_of_keys_without_factors():
    """Their factor is 1: with another one in the page, keys go by values."""
    rng, tokens, g = np.random.default_rng(12), 16, 0.03125
    size, text = HEADS * tokens * (DIM // 2 + DIM // 16), "low_q=fp8,low_k=nvfp4,level_k=none,v=nvfp4"
    x = rng.uniform(0.5, 1, (1, HEADS, tokens, DIM)).astype(np.float32)
    one, other, back = (mxa_cache.Cache(1, HEADS, DIM, t) for t in (text, LOW_NVFP4, text))
    one.append(x, x)
    page = one.export_vllm(0, 0, tokens, 2 * size, tokens, g, g)
    for cache in other, back:
        cache.import_vllm(0, tokens, page, tokens, g, g)
        rows = cache.export_rows(0, 0, tokens, *[("ggml_q8_0", tokens * HEADS * DIM // 32 * 34)] * 2)
        for data in rows:
            values = ol.from_ggml_q8_0(data).reshape(tokens, HEADS, DIM).transpose(1, 0, 2)
            assert np.abs(values / x[0] - 1).max() < 0.5

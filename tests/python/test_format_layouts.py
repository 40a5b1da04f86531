# SPDX-License-Identifier: Apache-2.0
"""The table of formats, packing, scale layouts and importers, against reshapes and against ml_dtypes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import inputs
import mxa
import oracle_formats as of
import oracle_layouts as ol
import vectors

SCALE_NONE, SCALE_E8M0, SCALE_UE4M3 = 0, 1, 2


def element_of(fmt):
    return of.ELEMENTS[of.FORMATS[fmt].element]


@pytest.mark.parametrize("name", list(mxa.FORMATS)[1:])
def test_table(name):
    info = mxa.lib().mxa_format_find(name.encode()).contents
    assert info.name.decode() == name and info.format == mxa.FORMATS[name]
    assert mxa.lib().mxa_format_get(mxa.FORMATS[name]).contents.name == info.name
    if name in of.PLAIN_FORMATS:
        assert not info.quantized and info.element_bits == of.PLAIN_TYPES[name].itemsize * 8
        assert (info.block, info.scale) == (0, SCALE_NONE)
        return
    fmt, element = of.FORMATS[name], element_of(name)
    assert info.quantized and info.element_bits == element.bits and info.block == fmt.block
    assert info.largest == (127.0 if name == "int8" else element.largest)
    assert info.scale == (SCALE_UE4M3 if name == "nvfp4" else SCALE_E8M0 if fmt.block else SCALE_NONE)
    assert info.default_rule == mxa.RULES[fmt.rule or "default"]
    assert info.default_level == mxa.LEVELS[fmt.level]


def test_unknown_formats():
    for name in (b"", b"MXFP4", b"mxfp5", b"mxfp4 "):
        assert not mxa.lib().mxa_format_find(name)
    for number in (-1, 13, 1000):
        assert not mxa.lib().mxa_format_get(number)


@pytest.mark.parametrize("fmt", [name for name in of.FORMATS if name not in ("int8", "fp8")])
def test_every_code_survives(fmt):
    """Decode, then encode: identity, with a scale of 1 kept by the largest code in each block."""
    element, block = of.FORMATS[fmt].element, of.FORMATS[fmt].block
    values = of.decode(element, np.arange(2 ** element_of(fmt).bits, dtype=np.uint8))
    values = values[np.isfinite(values)]
    if fmt == "mxint8":
        values = values[values >= -127 / 64]  # -2 is read, never written
    largest = element_of(fmt).largest
    x = np.full((1, 1, len(values), block), largest, np.float32)
    x[0, 0, :, 0] = values
    got = mxa.quantize(x, fmt, **({"level": "tensor", "g": [1.0]} if fmt == "nvfp4" else {}))
    assert np.unique(got.scales) == (0x38 if fmt == "nvfp4" else 127)
    out = mxa.dequantize(got)
    np.testing.assert_array_equal(out.view(np.uint32), x.view(np.uint32))


@pytest.mark.parametrize("fmt", list(of.FORMATS))
@given(rows=st.integers(0, 5), cols=st.integers(0, 200), seed=inputs.seeds)
def test_pack(fmt, rows, cols, seed):
    bits = element_of(fmt).bits
    codes = np.random.default_rng(seed).integers(0, 2**bits, (rows, cols)).astype(np.uint8)
    filled = np.pad(codes, ((0, 0), (0, -cols % (of.FORMATS[fmt].block or 1))))
    want = ol.pack_codes(bits, filled)
    np.testing.assert_array_equal(mxa.pack_codes(fmt, codes), want)
    np.testing.assert_array_equal(mxa.unpack_codes(fmt, want, cols), codes)


LAYOUT_NAMES = st.sampled_from(list(mxa.LAYOUTS))


@given(
    rows=st.integers(0, 600),
    cols=st.integers(0, 20),
    source=LAYOUT_NAMES,
    target=LAYOUT_NAMES,
    seed=inputs.seeds,
)
def test_relayout(rows, cols, source, target, seed):
    scales = np.random.default_rng(seed).integers(1, 256, (rows, cols)).astype(np.uint8)
    data, want = ol.layout_scales(scales, source), ol.layout_scales(scales, target)
    assert mxa.scale_bytes(target, rows, cols) == want.size
    np.testing.assert_array_equal(mxa.relayout_scales(rows, cols, source, data, target), want)


def random_codes(rng, rows, cols):
    return rng.integers(0, 16, (rows, cols)).astype(np.uint8)


@given(rows=st.integers(1, 5), blocks=st.integers(1, 5), seed=inputs.seeds)
def test_import_rows(rows, blocks, seed):
    rng = np.random.default_rng(seed)
    cols = 64 * blocks
    codes = random_codes(rng, rows, cols)
    packed = ol.pack_codes(4, codes)
    scales = rng.integers(0, 256, (rows, cols // 32)).astype(np.uint8)
    scales[0, 0] = 0xFF  # stays NaN
    sources = {"ggml_mxfp4": ol.ggml_mxfp4(codes, scales)}
    sources["gpt_oss"] = np.concatenate([packed.reshape(-1), scales.reshape(-1)])
    for kind, data in sources.items():
        got_codes, got_scales = mxa.import_rows(kind, data, rows, cols, 32)
        np.testing.assert_array_equal(got_codes, packed)
        np.testing.assert_array_equal(got_scales, scales)
    nv_scales = rng.integers(0, 128, (rows, cols // 16)).astype(np.uint8)
    nv_scales[0, 0] = 0x7F  # zero there
    got_codes, got_scales = mxa.import_rows("ggml_nvfp4", ol.ggml_nvfp4(codes, nv_scales), rows, cols, 16)
    np.testing.assert_array_equal(got_codes, packed)
    np.testing.assert_array_equal(got_scales, np.where(nv_scales == 0x7F, 0, nv_scales))


@given(heads=st.integers(1, 4), tokens=st.integers(1, 5), dim=st.integers(1, 4), seed=inputs.seeds)
def test_import_vllm_page(heads, tokens, dim, seed):
    rng = np.random.default_rng(seed)
    tokens, dim = 4 * tokens, 64 * dim
    parts = [rng.integers(0, 256, (heads, tokens, n)).astype(np.uint8) for n in (dim // 2, dim // 16) * 2]
    for got, want in zip(mxa.import_vllm_page(ol.vllm_page(*parts), heads, tokens, dim), parts):
        np.testing.assert_array_equal(got, want)


def test_stored_layouts():
    """The bytes of the golden file through the library."""
    stored = vectors.load("layouts.json")
    block = stored["block_B"]
    x = np.array(vectors.fp32(block["in"])).reshape(1, 1, 1, 32)
    got = mxa.quantize(x, "mxfp4", rule="floor")
    assert got.codes.tobytes().hex().upper() == block["even_low"]
    assert got.scales.tobytes().hex().upper() == block["scale"]
    codes, scales = mxa.import_rows("ggml_mxfp4", vectors.codes(block["ggml_mxfp4"]), 1, 32, 32)
    assert codes.tobytes().hex().upper() == block["even_low"] and scales[0, 0] == 0x80


def test_multipliers():
    m = np.array([1.0, 3.0, 448.0, 2688.0, 2.0**100, 2.0**-117], np.float32)
    np.testing.assert_array_equal(mxa.import_multipliers(m), np.float32(1) / m)
    for bad in (0.0, np.inf, np.nan, 2.0**118, 2.0**-118):
        with pytest.raises(mxa.MxaError) as error:
            mxa.import_multipliers([1.0, bad])
        assert error.value.status == "ERR_SCALE"


def test_vllm_conditions():
    for heads, tokens, dim in ((1, 5, 64), (1, 4, 32)):
        size = heads * tokens * (dim // 2 + dim // 16) * 2
        with pytest.raises(mxa.MxaError) as error:
            mxa.import_vllm_page(np.zeros(size, np.uint8), heads, tokens, dim)
        assert error.value.status == "ERR_LAYOUT"
    with pytest.raises(mxa.MxaError) as error:
        mxa.import_vllm_page(np.zeros(100, np.uint8), 1, 4, 64)
    assert error.value.status == "ERR_SHAPE"


@pytest.mark.parametrize(
    "fmt", ["mxfp8", "mxfp8-e5m2", "mxfp6", "mxfp6-e2m3", "mxfp4", "fp8", "nvfp4", "mxint8"]
)
def test_all_scale_and_code_bytes_decode(fmt):
    """Every code with every scale byte, NaN ones included, through mxa_dequantize."""
    element = element_of(fmt)
    codes = np.tile(np.arange(2**element.bits, dtype=np.uint8), max(1, 32 // 2**element.bits))
    n_scales = 1 if fmt == "fp8" else 256
    shape = (1, 1, n_scales, len(codes))
    packed = mxa.PackedArrays(
        fmt, mxa.quant_opts(level="tensor", g=[1.5]) if fmt in ("fp8", "nvfp4") else mxa.quant_opts(), shape
    )
    wide = np.broadcast_to(codes, (1, 1) + (n_scales, len(codes)))
    packed.guards["codes"].array[...] = ol.pack_codes(element.bits, wide).reshape(
        packed.size.matrices, n_scales, -1
    )
    scales = None
    if fmt != "fp8":
        scales = np.broadcast_to(np.arange(256, dtype=np.uint8)[:, None], (256, packed.size.scale_cols))
        packed.guards["scales"].array[...] = scales.reshape(1, -1)
        scales = scales[None, None]
    if fmt in ("fp8", "nvfp4"):
        packed.guards["g"].array[...] = 1.5
    g = np.full((1, 1, 1, 1), 1.5 if fmt in ("fp8", "nvfp4") else 1.0, np.float32)
    want = of.dequantize(of.Quantized(fmt, wide, scales, g))
    np.testing.assert_array_equal(vectors.bits(mxa.dequantize(packed)), vectors.bits(want))

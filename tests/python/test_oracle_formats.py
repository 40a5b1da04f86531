# SPDX-License-Identifier: Apache-2.0
"""The oracle itself against the stored vectors: neither was made from the other."""

import hashlib

import numpy as np
import pytest

import oracle_formats as of
import oracle_layouts as ol
import vectors

NVFP4_OPTIONS = {"default": 0, "scale_up": 1, "flush_tiny": 2, "four_over_six": 8}
RULES = ("floor", "rceil", "even")


def element_name(text):
    return text.lower()


def test_elements():
    for case in vectors.load("elements.json"):
        got = of.encode(element_name(case["format"]), vectors.fp32("".join(case["in"])))
        np.testing.assert_array_equal(got, vectors.codes("".join(case["codes"])), err_msg=str(case))


def test_midpoints():
    for name, value, code in vectors.rows("midpoints.txt"):
        assert of.encode(element_name(name), vectors.fp32(value))[0] == int(code, 16), (name, value)


def test_decode_tables():
    tables = vectors.load("decode.json")
    for name, table in tables.items():
        if name == "E8M0":
            got = of.decode_e8m0(np.arange(256)).astype(np.float32)
        elif name == "UE4M3":
            got = of.decode_ue4m3(np.arange(256))
        else:
            got = of.decode(element_name(name), np.arange(len(table), dtype=np.uint8))
        np.testing.assert_array_equal(vectors.bits(got), vectors.bits(vectors.fp32("".join(table))), name)


def test_scales():
    for case in vectors.load("scales.json"):
        if case["case"] == 17:
            assert (
                of.decode_e8m0(int(case["e8m0"], 16)) == vectors.fp32(case["fp32"])[0] or case["e8m0"] == "FF"
            )
        elif case["case"] == "g":
            amax = vectors.fp32(case["amax"])
            assert of.second_level("nvfp4", amax) == vectors.fp32(case["g"]), case
            assert of.second_level("nvfp4", amax, pow2=True) == vectors.fp32(case["g_pow2"]), case
        else:
            amax = vectors.fp32(case["amax"])
            for rule in RULES:
                got = 0 if amax[0] == 0 else of.mx_scale(element_name(case["format"]), rule, amax)[0]
                assert got == int(case[rule.upper()], 16), (case, rule)


def finite_patterns(kind):
    patterns = np.arange(65536, dtype=np.uint16).view(of.PLAIN_TYPES[kind])
    wide = patterns.astype(np.float32)
    return wide[np.isfinite(wide)]


def test_streams():
    stored = vectors.load("streams_sha256.json")
    for name, streams in stored["elements"].items():
        for source, expected in streams.items():
            kind = "f16" if source == "fp16" else source
            stream = of.encode(element_name(name), finite_patterns(kind)).tobytes()
            assert len(stream) == expected["bytes"]
            assert hashlib.sha256(stream).hexdigest() == expected["sha256"], (name, source)
    amax = (np.arange(0x7F80, dtype=np.uint32) << 16).view(np.float32)
    for name, rules in stored["scales"].items():
        for rule, streams in rules.items():
            bytes_ = np.where(amax == 0, 0, of.mx_scale(element_name(name), rule.lower(), amax)).astype(
                np.uint8
            )
            digest = hashlib.sha256(bytes_.tobytes()).hexdigest()
            assert digest == streams["bf16"]["sha256"], (name, rule)


def check_block(fmt, got, scale, codes, out, what):
    n = len(codes)
    np.testing.assert_array_equal(got.codes.reshape(-1)[:n], codes, err_msg=what)
    if scale is not None:
        assert got.scales.reshape(-1)[0] == scale, what
    decoded = of.dequantize(got).reshape(-1)[: len(out)]
    np.testing.assert_array_equal(vectors.bits(decoded), vectors.bits(out), err_msg=what)


def one_row(x):
    return x.reshape(1, 1, 1, -1)


def test_blocks():
    for case in vectors.load("blocks.json"):
        fmt = vectors.FORMAT_OF[case["format"]]
        x = vectors.fp32("".join(case["in"]))
        block = of.FORMATS[fmt].block or len(x)
        x = np.concatenate([x, np.zeros(block - len(x), np.float32)])
        kwargs = {"rule": case["rule"].lower()} if "rule" in case else {}
        if "g" in case:
            kwargs.update(level="tensor", g=vectors.fp32(case["g"]))
        if "options" in case:
            kwargs.update(options=sum(NVFP4_OPTIONS[name.lower()] for name in case["options"]))
        got = of.quantize(one_row(x), fmt, **kwargs)
        scale = int(case["scale"], 16) if "scale" in case else None
        check_block(
            fmt,
            got,
            scale,
            vectors.codes("".join(case["codes"])),
            vectors.fp32("".join(case["out"])),
            str(case),
        )
        if case.get("g_from_row"):
            assert of.quantize(one_row(x), fmt, level="token").units.item() == kwargs["g"][0], case


@pytest.mark.parametrize("fmt", of.MX_FORMATS)
@pytest.mark.parametrize("rule", RULES)
def test_mx_files(fmt, rule):
    element = of.FORMATS[fmt].element
    for x, scale, codes, out in vectors.rows(f"mx_{element}_{rule}.txt"):
        got = of.quantize(one_row(vectors.fp32(x)), fmt, rule=rule)
        check_block(fmt, got, int(scale, 16), vectors.codes(codes), vectors.fp32(out), x)


@pytest.mark.parametrize("option", NVFP4_OPTIONS)
def test_nvfp4_files(option):
    for g, x, scale, codes, out in vectors.rows(f"nvfp4_{option}.txt"):
        kwargs = {"level": "tensor", "g": vectors.fp32(g), "options": NVFP4_OPTIONS[option]}
        got = of.quantize(one_row(vectors.fp32(x)), "nvfp4", **kwargs)
        check_block("nvfp4", got, int(scale, 16), vectors.codes(codes), vectors.fp32(out), g + " " + x)


@pytest.mark.parametrize("fmt", ["fp8", "int8"])
def test_scalar_files(fmt):
    for kind, g, x, codes, out in vectors.rows(f"{fmt}_rows.txt"):
        given = {"level": "tensor", "g": vectors.fp32(g)} if kind == "given" else {}
        got = of.quantize(one_row(vectors.fp32(x)), fmt, **given)
        assert got.units.item() == vectors.fp32(g)[0]
        check_block(fmt, got, None, vectors.codes(codes), vectors.fp32(out), x)


def test_rotation():
    for dim, x, rotated in vectors.rows("rotation.txt"):
        x = vectors.fp32(x).reshape(-1, int(dim))
        np.testing.assert_array_equal(
            vectors.bits(of.rotate(x)).reshape(-1), vectors.bits(vectors.fp32(rotated))
        )


def test_dual_rows():
    for line in vectors.rows("dual_rows.txt"):
        x, g, scales, codes, out, high_scales, high_codes, high_out = line
        x = one_row(vectors.bf16(x))
        low = of.quantize(x, "nvfp4")
        assert low.units.item() == vectors.fp32(g)[0]
        np.testing.assert_array_equal(low.scales.reshape(-1), vectors.codes(scales))
        check_block("nvfp4", low, None, vectors.codes(codes), vectors.fp32(out), "low")
        high = of.quantize(x, "mxfp8")
        np.testing.assert_array_equal(high.scales.reshape(-1), vectors.codes(high_scales))
        check_block("mxfp8", high, None, vectors.codes(high_codes), vectors.fp32(high_out), "high")


def test_layouts():
    stored = vectors.load("layouts.json")
    block = stored["block_B"]
    codes = vectors.codes(block["codes"])[None]
    scale = vectors.codes(block["scale"])[None]
    assert ol.pack_codes(4, codes).tobytes().hex().upper() == block["even_low"]
    assert ol.ggml_mxfp4(codes, scale).tobytes().hex().upper() == block["ggml_mxfp4"]
    nvfp4 = np.tile(np.arange(16, dtype=np.uint8), 4)[None]
    scales = vectors.codes(stored["ggml_nvfp4"]["bytes"][:8])[None]
    assert ol.ggml_nvfp4(nvfp4, scales).tobytes().hex().upper() == stored["ggml_nvfp4"]["bytes"]
    for case in stored["fp6"]:
        codes = vectors.codes(case["codes"])
        assert ol.pack_codes(6, codes).tobytes().hex().upper() == case["bytes"]
        np.testing.assert_array_equal(ol.unpack_codes(6, vectors.codes(case["bytes"]), len(codes)), codes)


def test_scale_layouts():
    """A matrix that is 1 at one place says where that place is stored."""
    stored = vectors.load("layouts.json")
    for layout, key in (("tile_128x4", "scale_128x4"), ("amd", "scale_amd")):
        case = stored[key]
        table = next(name for name in case if name.startswith("offsets_of_rows_"))
        row_names = [int(r) for r in table.removeprefix("offsets_of_rows_").split("_")]
        number = np.arange(1, case["rows"] * case["cols"] + 1, dtype=np.int64).reshape(
            case["rows"], case["cols"]
        )
        placed = ol.layout_scales(number, layout)
        assert placed.size == case["bytes"]
        for row, offsets in zip(row_names, case[table]):
            np.testing.assert_array_equal(placed[offsets], number[row])


def test_vllm_layout():
    stored = vectors.load("layouts.json")["vllm_v_scale"]
    tokens, blocks = stored["page"], stored["per_head"]
    scales = np.arange(tokens * blocks, dtype=np.int64).reshape(1, tokens, blocks)
    empty = np.zeros((1, tokens, 0), np.int64)
    page = ol.vllm_page(empty, empty, empty, scales)
    for token, offsets in enumerate(stored["offsets"]):
        np.testing.assert_array_equal(page[offsets], scales[0, token])

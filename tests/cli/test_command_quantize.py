# SPDX-License-Identifier: Apache-2.0
"""quantize and dequantize: what the file holds, byte for byte where a few lines of NumPy define it."""
import ml_dtypes
import numpy as np
import pytest
from command import DTYPES, FAILED, call, load, refuse, save, succeed

BLOCK = {"nvfp4": 16, "fp8": 0, "int8": 0}  # 32 in the MX formats
BITS = {"mxfp4": 4, "nvfp4": 4, "mxfp6": 6, "mxfp6-e2m3": 6}  # 8 in the others
FORMATS = "mxfp8 mxfp8-e5m2 mxfp6 mxfp6-e2m3 mxfp4 mxint8 nvfp4 fp8 int8".split()
RULES = {"mxfp4": "even", "nvfp4": None, "fp8": None, "int8": None}  # rceil in the others


def random_keys(shape=(2, 5, 64), dtype="F32", seed=3):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape) * np.exp2(rng.integers(-6, 6, shape[:-1] + (1,)))
    return x.astype(DTYPES[dtype])


def quantize(tmp_path, x, *options):
    source = save(tmp_path / "in", {"k": x, "other": np.zeros(2, np.float32)})
    assert succeed("quantize", source, "-o", tmp_path / "q", "--tensor", "k", *options) == ""
    return load(tmp_path / "q")


def dequantize(tmp_path, *options):
    succeed("dequantize", tmp_path / "q", "-o", tmp_path / "x", *options)
    tensors, _ = load(tmp_path / "x")
    assert list(tensors) == ["k"]
    return tensors["k"]


def nibbles(codes):
    return np.stack([codes & 15, codes >> 4], -1).reshape(*codes.shape[:-1], -1)


def e2m1(codes):
    return codes.astype(np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float64)


def hadamard(dim):
    h = np.ones((1, 1))
    while len(h) < dim:
        h = np.block([[h, h], [h, -h]])
    return h / np.sqrt(dim)


@pytest.mark.parametrize("name", FORMATS)
def test_names_shapes_and_metadata(tmp_path, name):
    tensors, metadata = quantize(tmp_path, random_keys(dtype="BF16"), "--format", name)
    block, factors = BLOCK.get(name, 32), name in ("nvfp4", "fp8", "int8")
    assert set(tensors) == {"k.codes"} | ({"k.scales"} if block else set()) | ({"k.g"} if factors else set())
    assert tensors["k.codes"].shape == (2, 5, 64 * BITS.get(name, 8) // 8) and tensors["k.codes"].dtype == np.uint8
    if block:
        assert tensors["k.scales"].shape == (2, 5, 64 // block) and tensors["k.scales"].dtype == np.uint8
    if factors:
        assert tensors["k.g"].shape == (2, 5) and tensors["k.g"].dtype == np.float32
    expected = {
        "k.format": name,
        "k.level": "token" if factors else "none",
        "k.layout": "row",
        "k.axis": "head",
        "k.rotated": "false",
        "k.shape": "[2, 5, 64]",
        "k.dtype": "BF16",
    }
    rule = RULES.get(name, "rceil")
    assert metadata == ({**expected, "k.rule": rule} if rule else expected)


def test_mxfp4_bytes(tmp_path):
    """Scale: amax rounded to one mantissa bit, then its exponent less 2. Element: the nearest code, ties to even."""
    x = random_keys()
    x[0, 0, :32] = 0
    tensors, _ = quantize(tmp_path, x, "--format", "mxfp4")
    blocks = x.astype(np.float64).reshape(2, 5, 2, 32)
    amax = np.abs(blocks).max(-1)
    mantissa, exponent = np.frexp(np.where(amax > 0, amax, 1))
    power = exponent - 1 - 2 + (2 * mantissa >= 1.75)
    assert np.array_equal(tensors["k.scales"], np.where(amax > 0, power + 127, 0))
    scaled = (blocks / np.exp2(power)[..., None]).astype(np.float32)
    codes = scaled.clip(-6, 6).astype(ml_dtypes.float4_e2m1fn).view(np.uint8) & 15
    assert np.array_equal(nibbles(tensors["k.codes"]), codes.reshape(2, 5, 64))
    decoded = e2m1(codes) * np.exp2(power)[..., None]
    assert np.array_equal(dequantize(tmp_path), decoded.reshape(x.shape).astype(np.float32))


@pytest.mark.parametrize("rule, code", [("floor", 6), ("rceil", 4), ("even", 4)])
def test_rules(tmp_path, rule, code):
    """7 is over 6, so floor saturates where the others double the scale."""
    x = np.zeros((1, 1, 32), np.float32)
    x[0, 0, 3] = 7
    quantize(tmp_path, x, "--format", "mxfp4", "--rule", rule)
    assert dequantize(tmp_path)[0, 0, 3] == {6: 6, 4: 8}[code]


@pytest.mark.parametrize("level, shape", [("tensor", (1,)), ("head", (2,)), ("token_block", (2, 3)), ("token", (2, 300))])
def test_levels(tmp_path, level, shape):
    """INT8: g is the largest magnitude of its region over 127, a code x / g rounded to an integer."""
    x = random_keys((2, 300, 64))
    tensors, metadata = quantize(tmp_path, x, "--format", "int8", "--level", level)
    rows = np.abs(x).max(-1)
    padded = np.pad(rows, [(0, 0), (0, 84)]).reshape(2, 3, 128)
    amax = {"tensor": rows.max(), "head": rows.max(1), "token_block": padded.max(2), "token": rows}[level]
    g = amax / np.float32(127)
    assert metadata["k.level"] == level and tensors["k.g"].shape == shape
    assert np.array_equal(tensors["k.g"], g.reshape(shape))
    by_row = {"head": g.reshape(-1, 1), "token_block": np.repeat(g, 128, -1)[..., :300]}
    row_g = np.broadcast_to(by_row.get(level, g), rows.shape)
    codes = np.rint(x / row_g[..., None]).clip(-127, 127)
    assert np.array_equal(tensors["k.codes"].view(np.int8), codes)
    assert np.array_equal(dequantize(tmp_path), codes.astype(np.float32) * row_g[..., None])


def test_given_factor(tmp_path):
    x = random_keys()
    tensors, metadata = quantize(tmp_path, x, "--format", "fp8", "--level", "tensor", "--g", "0.25")
    assert tensors["k.g"].tolist() == [0.25] and metadata["k.level"] == "tensor"
    codes = (x / np.float32(0.25)).clip(-448, 448).astype(ml_dtypes.float8_e4m3fn)
    assert np.array_equal(tensors["k.codes"], codes.view(np.uint8))
    assert np.array_equal(dequantize(tmp_path), codes.astype(np.float32) * np.float32(0.25))


def test_factor_of_mx_and_none_of_nvfp4(tmp_path):
    tensors, metadata = quantize(tmp_path, random_keys(), "--format", "mxfp8", "--level", "head")
    assert tensors["k.g"].shape == (2,) and metadata["k.level"] == "head"
    tensors, metadata = quantize(tmp_path, random_keys(), "--format", "nvfp4", "--level", "none")
    assert "k.g" not in tensors and metadata["k.level"] == "none"


@pytest.mark.parametrize("given", ["0", "-1", "1e38", "1e-38"])
def test_factors_out_of_range(tmp_path, given):
    source = save(tmp_path / "in", {"k": random_keys()})
    words = ["--tensor", "k", "--format", "int8", "--level", "tensor", "--g", given]
    refuse(FAILED, "quantize", source, "-o", tmp_path / "q", *words)
    assert not (tmp_path / "q").exists()


def tile_offset(r, c, columns):
    return ((r // 128) * (columns // 4) + c // 4) * 512 + (r % 32) * 16 + ((r % 128) // 32) * 4 + c % 4


def amd_offset(m, n, columns):
    lane = ((((m // 32) * (columns // 8) + n // 8) * 4 + n % 4) * 16 + m % 16) * 2
    return (lane + (n % 8) // 4) * 2 + (m % 32) // 16


@pytest.mark.parametrize(
    "layout, rows, columns, offset", [("tile_128x4", 128, 4, tile_offset), ("amd", 256, 8, amd_offset)]
)
def test_layouts_hold_per_matrix(tmp_path, layout, rows, columns, offset):
    x = random_keys((2, 130, 160))
    plain, _ = quantize(tmp_path, x, "--format", "mxfp8")
    expected_values = dequantize(tmp_path)
    tiled, metadata = quantize(tmp_path, x, "--format", "mxfp8", "--layout", layout)
    padded = (-(-130 // rows) * rows, -(-5 // columns) * columns)
    expected = np.zeros((2, padded[0] * padded[1]), np.uint8)
    for h in range(2):
        for r in range(130):
            for c in range(5):
                expected[h, offset(r, c, padded[1])] = plain["k.scales"][h, r, c]
    assert metadata["k.layout"] == layout and np.array_equal(tiled["k.scales"], expected)
    assert np.array_equal(tiled["k.codes"], plain["k.codes"])
    assert np.array_equal(dequantize(tmp_path), expected_values)


def test_token_axis_stores_the_transpose(tmp_path):
    x = random_keys((2, 70, 48))
    tensors, metadata = quantize(tmp_path, x, "--format", "mxfp4", "--axis", "token", "--fill-tail")
    assert metadata["k.axis"] == "token" and metadata["k.shape"] == "[2, 70, 48]"
    assert tensors["k.codes"].shape == (2, 48, 48) and tensors["k.scales"].shape == (2, 48, 3)
    values = dequantize(tmp_path)
    turned = np.ascontiguousarray(x.transpose(0, 2, 1))
    quantize(tmp_path, turned, "--format", "mxfp4", "--fill-tail")
    assert np.array_equal(values, dequantize(tmp_path).transpose(0, 2, 1))


@pytest.mark.parametrize("name", FORMATS)
def test_filled_tail(tmp_path, name):
    x = random_keys((2, 3, 40))
    block = BLOCK.get(name, 32)
    tensors, _ = quantize(tmp_path, x, "--format", name, "--fill-tail")
    columns = -(-40 // block) * block if block else 40
    assert tensors["k.codes"].shape[-1] == columns * BITS.get(name, 8) // 8
    assert dequantize(tmp_path).shape == x.shape
    if block:
        source = save(tmp_path / "in", {"k": x})
        text = refuse(FAILED, "quantize", source, "-o", tmp_path / "none", "--tensor", "k", "--format", name)
        assert "40" in text and not (tmp_path / "none").exists()


def test_short_token_blocks_need_the_tail_filled(tmp_path):
    source = save(tmp_path / "in", {"k": random_keys((1, 33, 32))})
    words = ["--tensor", "k", "--format", "mxfp4", "--axis", "token"]
    assert "33" in refuse(FAILED, "quantize", source, "-o", tmp_path / "q", *words)


def test_rotation(tmp_path):
    x = random_keys((2, 9, 64))
    _, metadata = quantize(tmp_path, x, "--format", "mxfp8", "--rotate")
    assert metadata["k.rotated"] == "true"
    turned = dequantize(tmp_path)
    assert np.abs(turned - x @ hadamard(64)).max() < 0.07 * np.abs(x).max()
    back = dequantize(tmp_path, "--unrotate")
    assert np.allclose(back, turned.astype(float) @ hadamard(64), atol=1e-5 * np.abs(x).max())
    quantize(tmp_path, x, "--format", "mxfp8")
    assert "not rotated" in refuse(FAILED, "dequantize", tmp_path / "q", "-o", tmp_path / "x", "--unrotate")


def test_policies(tmp_path):
    x = random_keys((1, 2, 64))
    x[0, 0, 3], x[0, 1, 40] = np.nan, np.inf
    source = save(tmp_path / "in", {"k": x})
    words = ["quantize", source, "-o", tmp_path / "q", "--tensor", "k", "--format", "mxfp4"]
    done = call(*words)
    assert done.returncode == 0 and "2 blocks" in done.stderr
    values = dequantize(tmp_path)
    assert np.isnan(values[0, 0, :32]).all() and np.isnan(values[0, 1, 32:]).all()
    assert np.isfinite(values[0, 0, 32:]).all() and np.isfinite(values[0, 1, :32]).all()
    refuse(FAILED, *words[:3], tmp_path / "none", *words[4:], "--policy", "error")
    assert not (tmp_path / "none").exists()
    quantize(tmp_path, x, "--format", "mxfp4", "--policy", "sanitize")
    values = dequantize(tmp_path)
    assert values[0, 0, 3] == 0 and values[0, 1, 40] > 1e38


@pytest.mark.parametrize("option", ["scale-up", "flush-tiny", "pow2-g", "four-over-six"])
def test_nvfp4_options_change_bytes(tmp_path, option):
    x = random_keys((2, 40, 64))
    x[:, :, 16:32] *= 1e-6
    plain, _ = quantize(tmp_path, x, "--format", "nvfp4", "--level", "head")
    changed, _ = quantize(tmp_path, x, "--format", "nvfp4", "--level", "head", "--option", option)
    assert any(not np.array_equal(plain[n], changed[n]) for n in plain)
    if option == "scale-up":
        assert (changed["k.scales"] >= plain["k.scales"]).all()
    if option == "pow2-g":
        assert (np.frexp(changed["k.g"])[0] == 0.5).all() and (changed["k.g"] >= plain["k.g"]).all()
    if option == "flush-tiny":
        assert (changed["k.scales"] == 0).any() and (plain["k.scales"] > 0).all()


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_types(tmp_path, name, dtype):
    x = random_keys((2, 3, 4, 64), dtype=dtype)
    _, metadata = quantize(tmp_path, x, "--format", name)
    assert metadata["k.dtype"] == dtype and metadata["k.shape"] == "[2, 3, 4, 64]"
    wide = dequantize(tmp_path)
    assert wide.dtype == np.float32 and wide.shape == x.shape
    for short in ("f16", "bf16"):
        narrow = dequantize(tmp_path, "--dtype", short)
        assert np.array_equal(narrow, wide.astype(DTYPES[short.upper()]))


@pytest.mark.parametrize("name", ["f32", "f16", "bf16"])
def test_plain_formats(tmp_path, name):
    x = random_keys()
    tensors, metadata = quantize(tmp_path, x, "--format", name)
    narrow = x.astype(DTYPES[name.upper()])
    assert set(tensors) == {"k.codes"} and tensors["k.codes"].tobytes() == narrow.tobytes()
    assert metadata["k.level"] == "none" and "k.rule" not in metadata
    assert np.array_equal(dequantize(tmp_path), narrow.astype(np.float32))


def test_factors_along_tokens_cannot_be_per_token(tmp_path):
    source = save(tmp_path / "in", {"k": random_keys((1, 32, 32))})
    words = ["--tensor", "k", "--format", "int8", "--axis", "token"]
    assert "level" in refuse(FAILED, "quantize", source, "-o", tmp_path / "q", *words)
    tensors, _ = quantize(tmp_path, random_keys((1, 32, 32)), "--format", "int8", "--axis", "token", "--level", "head")
    assert tensors["k.g"].shape == (1,)


def test_names(tmp_path):
    for name in ("x" * 240, "a.codes", "größe", 'quo"te\\'):
        source = save(tmp_path / "in", {name: random_keys()})
        succeed("quantize", source, "-o", tmp_path / "q", "--tensor", name, "--format", "mxfp4")
        succeed("dequantize", tmp_path / "q", "-o", tmp_path / "x")
        assert list(load(tmp_path / "x")[0]) == [name]
    source = save(tmp_path / "in", {"x" * 241: random_keys()})
    words = ["--tensor", "x" * 241, "--format", "mxfp4"]
    assert "240" in refuse(FAILED, "quantize", source, "-o", tmp_path / "none", *words)


def test_empty_tensors(tmp_path):
    for shape in ((2, 0, 64), (0, 5, 64)):
        quantize(tmp_path, np.zeros(shape, np.float32), "--format", "nvfp4")
        assert dequantize(tmp_path).shape == shape


def test_tensors_that_cannot_be_quantised(tmp_path):
    source = save(tmp_path / "in", {"a": np.zeros(64, np.float32), "b": np.zeros((2, 2, 32), np.int32)})
    for name, named in [("a", "1 dimensions"), ("b", "I32"), ("c", "a b")]:
        words = ["--tensor", name, "--format", "mxfp4"]
        assert named in refuse(FAILED, "quantize", source, "-o", tmp_path / "q", *words)


def damage(tmp_path, tensors, metadata, **changes):
    """The sentence of dequantize about a file with some metadata changed, None: left out."""
    metadata = {**metadata, **{f"k.{key}": value for key, value in changes.items()}}
    source = save(tmp_path / "bad", tensors, {k: v for k, v in metadata.items() if v is not None})
    text = refuse(FAILED, "dequantize", source, "-o", tmp_path / "none")
    assert not (tmp_path / "none").exists()
    return text


@pytest.mark.parametrize(
    "key, value",
    [
        ("format", "mxfp5"),
        ("format", "mxfp8"),
        ("level", "row"),
        ("level", None),
        ("level", "none"),
        ("level", "head"),
        ("layout", "x"),
        ("layout", None),
        ("layout", "amd"),
        ("axis", "seq"),
        ("axis", None),
        ("axis", "token"),
        ("rotated", "True"),
        ("rotated", None),
        ("dtype", "f32"),
        ("dtype", None),
        ("shape", "2, 5, 64"),
        ("shape", "[2, 5]"),
        ("shape", "[2, 5, 64.0]"),
        ("shape", "[2, -5, 64]"),
        ("shape", "[1, 1, 2, 5, 64]"),
        ("shape", "[2, 5, 32]"),
        ("shape", "[4611686018427387904, 4, 64]"),
        ("shape", "[4611686018427387904, 4611686018427387904, 0]"),
        ("shape", "[0, 4611686018427387904, 4611686018427387904]"),
        ("shape", None),
    ],
)
def test_metadata_that_does_not_fit(tmp_path, key, value):
    tensors, metadata = quantize(tmp_path, random_keys(), "--format", "nvfp4")
    if (key, value) == ("level", "none"):
        tensors = {"k.codes": tensors["k.codes"]}
    assert '"k' in damage(tmp_path, tensors, metadata, **{key: value})


def test_parts_that_do_not_fit(tmp_path):
    tensors, metadata = quantize(tmp_path, random_keys(), "--format", "nvfp4")
    for name in tensors:
        assert name in damage(tmp_path, {n: t for n, t in tensors.items() if n != name}, metadata)
        assert name in damage(tmp_path, {**tensors, name: tensors[name][:1]}, metadata)
        assert name in damage(tmp_path, {**tensors, name: np.zeros(tensors[name].shape, np.float16)}, metadata)
    assert "k.rule" in damage(tmp_path, tensors, metadata, format="mxfp4")
    nan = np.full(tensors["k.g"].shape, np.nan, np.float32)
    assert '"k"' in damage(tmp_path, {**tensors, "k.g": nan}, metadata)


def test_files_without_quantised_tensors(tmp_path):
    source = save(tmp_path / "in", {"k": random_keys()})
    assert "NAME.format" in refuse(FAILED, "dequantize", source, "-o", tmp_path / "x")


def test_several_tensors_of_a_file(tmp_path):
    """A file put together from two is decoded as a whole."""
    merged, notes, expected = {}, {}, {}
    for name, form in [("k", "mxfp4"), ("v.0", "int8")]:
        source = save(tmp_path / "in", {name: random_keys()})
        succeed("quantize", source, "-o", tmp_path / "q", "--tensor", name, "--format", form)
        tensors, metadata = load(tmp_path / "q")
        succeed("dequantize", tmp_path / "q", "-o", tmp_path / "x")
        expected[name] = load(tmp_path / "x")[0][name]
        merged.update(tensors)
        notes.update(metadata)
    succeed("dequantize", save(tmp_path / "both", merged, notes), "-o", tmp_path / "x")
    both = load(tmp_path / "x")[0]
    assert set(both) == set(expected)
    assert all(np.array_equal(both[n], expected[n]) for n in both)

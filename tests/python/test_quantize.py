# SPDX-License-Identifier: Apache-2.0
"""Quantise and dequantise: the oracle's bytes for every format, option, axis, policy, type and stride."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import inputs
import mxa
import oracle_formats as of
import oracle_layouts as ol

QUANTIZED = list(of.FORMATS)
ALL_FORMATS = QUANTIZED + of.PLAIN_FORMATS
POLICIES = st.sampled_from(["propagate", "propagate", "sanitize"])
RULES = st.sampled_from(["default", "floor", "rceil", "even"])


@st.composite
def tensors(draw, kinds=inputs.WILD):
    shape = (draw(st.integers(0, 2)), draw(st.integers(1, 3)), draw(st.integers(0, 300)), draw(inputs.dims))
    x = inputs.make(
        draw(inputs.seeds), shape, draw(st.sampled_from(kinds)), draw(inputs.dtypes), draw(inputs.rates)
    )
    return inputs.strided(x, draw(st.sampled_from(inputs.STRIDES)))


@st.composite
def option_sets(draw, fmt):
    options = {"policy": draw(POLICIES), "rotate": draw(st.booleans()), "fill_tail": True}
    options["layout"] = "row"
    if fmt in of.PLAIN_FORMATS:
        return options
    if of.FORMATS[fmt].block:
        options["layout"] = draw(st.sampled_from(list(mxa.LAYOUTS)))
    options["axis"] = draw(st.sampled_from(["head", "head", "token"]))
    levels = ["tensor", "head", "token_block"]
    if options["axis"] == "head":
        levels += ["token", "default"]
    if fmt in of.MX_FORMATS or fmt == "nvfp4":
        levels += ["none"]
    options["level"] = draw(st.sampled_from(levels))
    if fmt in of.MX_FORMATS:
        options["rule"] = draw(RULES)
    if fmt == "nvfp4":
        options["options"] = draw(st.integers(0, 15))
    return options


def oracle(x, fmt, options, mean=None, g=None):
    kind = next(k for k, dtype in of.PLAIN_TYPES.items() if dtype == x.dtype)
    with np.errstate(all="ignore"):
        prepared = of.prepare(x, mean, options["rotate"], options["policy"], kind)
    rule = None if options.get("rule", "default") == "default" else options["rule"]
    axis, level = options.get("axis", "head"), options.get("level")
    return prepared, of.quantize(
        prepared, fmt, rule=rule, level=level, axis=axis, options=options.get("options", 0), g=g
    )


def check_packed(got, fmt, prepared, want, options, what=""):
    matrices = got.size.matrices
    packed = ol.pack_codes(of.ELEMENTS[of.FORMATS[fmt].element].bits, want.codes)
    if want.scales is not None:
        rows, cols = want.scales.shape[-2:]
        expected = [ol.layout_scales(m, options["layout"]) for m in want.scales.reshape(matrices, rows, cols)]
        np.testing.assert_array_equal(
            got.scales, np.array(expected, np.uint8).reshape(got.scales.shape), what + "scales"
        )
    if want.units is not None:
        np.testing.assert_array_equal(got.g, want.units.reshape(-1), what + "g")
    np.testing.assert_array_equal(got.codes, packed.reshape(got.codes.shape), what + "codes")
    assert got.bad == want.bad, what
    batch, heads, seq, dim = prepared.shape
    tiles = -(-seq // of.TILE)
    padded = np.zeros((batch * heads, tiles * of.TILE, dim), np.float32)
    padded[:, :seq] = prepared.reshape(batch * heads, seq, dim)
    nonfinite = ~np.isfinite(padded.reshape(batch * heads, tiles, of.TILE * dim)).all(axis=2)
    np.testing.assert_array_equal(got.nonfinite_tiles, nonfinite.reshape(-1).astype(np.uint8), what + "tiles")


@pytest.mark.parametrize("fmt", QUANTIZED)
@given(data=st.data())
def test_bytes(fmt, data):
    x, options = data.draw(tensors()), data.draw(option_sets(fmt))
    prepared, want = oracle(x, fmt, options)
    got = mxa.quantize(x, fmt, **options)
    check_packed(got, fmt, prepared, want, options)


@pytest.mark.parametrize("fmt", QUANTIZED)
@given(data=st.data())
def test_mean_and_given_g(fmt, data):
    """smooth-K with the caller's mean, and the caller's factors, also at the ends of the legal range."""
    x, options = data.draw(tensors()), data.draw(option_sets(fmt))
    rng = np.random.default_rng(data.draw(inputs.seeds))
    mean = rng.standard_normal((x.shape[0], x.shape[1], x.shape[3])).astype(np.float32) * 100
    level = of.resolve_level(fmt, options["level"])
    g = None
    if level != "none":
        units = of.level_units(of.widen(x), level)
        g = np.ldexp(rng.uniform(1, 2, units.shape), rng.choice([-117, -10, 0, 5, 116], units.shape))
        g = g.astype(np.float32)
    prepared, want = oracle(x, fmt, options, mean, g)
    got = mxa.quantize(x, fmt, mean=mean, g=g, **options)
    check_packed(got, fmt, prepared, want, options)


@pytest.mark.parametrize("fmt", QUANTIZED)
@given(data=st.data())
def test_dequantize(fmt, data):
    x, options = data.draw(tensors(inputs.TAME + ("subnormal",))), data.draw(option_sets(fmt))
    mean = None
    if data.draw(st.booleans()):
        rng = np.random.default_rng(data.draw(inputs.seeds))
        mean = rng.standard_normal((x.shape[0], x.shape[1], x.shape[3])).astype(np.float32)
    _, want = oracle(x, fmt, options, mean)
    with np.errstate(all="ignore"):
        y = of.dequantize(want, x.shape[2] if options["axis"] == "token" else x.shape[3])
        y = np.swapaxes(y, 2, 3) if options["axis"] == "token" else y
        y = of.rotate(y) if options["rotate"] else y
        y = y if mean is None else y + mean[:, :, None]
    got = mxa.quantize(x, fmt, mean=mean, **options)
    kind = data.draw(inputs.dtypes)
    out = mxa.dequantize(got, of.PLAIN_TYPES[kind])
    check_values(out, of.round_plain(y, kind))


def check_values(got, want):
    """Equal bits; any quiet NaN for a NaN."""
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    unsigned = np.uint32 if got.itemsize == 4 else np.uint16
    bits = [np.where(np.isnan(a), 0, np.ascontiguousarray(a).view(unsigned)) for a in (got, want)]
    np.testing.assert_array_equal(*bits)


@pytest.mark.parametrize("fmt", of.PLAIN_FORMATS)
@given(data=st.data())
def test_plain_copies(fmt, data):
    x, options = data.draw(tensors()), data.draw(option_sets(fmt))
    kind = next(k for k, dtype in of.PLAIN_TYPES.items() if dtype == x.dtype)
    with np.errstate(all="ignore"):
        want = of.round_plain(of.prepare(x, None, options["rotate"], options["policy"], kind), fmt)
    got = mxa.quantize(x, fmt, **options)
    check_values(got.codes.view(of.PLAIN_TYPES[fmt]).reshape(x.shape), want)
    check_values(mxa.dequantize(got, opts=mxa.quant_opts()), want.astype(np.float32))


def test_nan_bits():
    """A NaN scale, and a NaN element, give the quiet NaN of the output type."""
    x = np.ones((1, 1, 1, 32), np.float32)
    x[..., 3] = np.nan
    quiet = {"f32": 0x7FC00000, "f16": 0x7E00, "bf16": 0x7FC0}
    for fmt in QUANTIZED:
        packed = mxa.quantize(x, fmt)
        for kind, pattern in quiet.items():
            out = mxa.dequantize(packed, of.PLAIN_TYPES[kind])
            assert out.view(np.uint32 if kind == "f32" else np.uint16)[0, 0, 0, 3] == pattern, (fmt, kind)


@given(data=st.data())
def test_pair(data):
    """The fused quantiser writes the bytes of two calls."""
    low, high = data.draw(st.sampled_from(QUANTIZED)), data.draw(st.sampled_from(ALL_FORMATS))
    x = data.draw(tensors())
    low_options, high_options = data.draw(option_sets(low)), data.draw(option_sets(high))
    for options in (low_options, high_options):
        options.update(axis="head", policy=low_options["policy"])
    mean = None
    if high in of.FORMATS and data.draw(st.booleans()):
        mean = np.ascontiguousarray(of.channel_mean(x))  # one vector for both copies
        low_options["mean"] = high_options["mean"] = mean
    pair = mxa.quantize_pair(x, low, low_options, high, high_options)
    for got, fmt, options in ((pair[0], low, low_options), (pair[1], high, high_options)):
        alone = mxa.quantize(x, fmt, **options)
        for name in ("codes", "scales", "g", "nonfinite_tiles"):
            a, b = getattr(got, name), getattr(alone, name)
            np.testing.assert_array_equal(a.view(np.uint8), b.view(np.uint8), f"{fmt} {name}")
        assert got.bad == alone.bad
        if fmt in of.FORMATS:
            options.pop("mean", None)
            check_packed(got, fmt, *oracle(x, fmt, options, mean), options)


@pytest.mark.parametrize("fmt", QUANTIZED)
def test_threads_and_repeats(fmt):
    x = inputs.make(7, (2, 3, 300, 64), "binades", "bf16", bad=3)
    for level in ("tensor", "token_block"):
        runs = [mxa.quantize(x, fmt, level=level, rotate=True, threads=n) for n in (1, 2, 2)]
        for other in runs[1:]:
            for name in ("codes", "scales", "g", "nonfinite_tiles"):
                a, b = getattr(runs[0], name), getattr(other, name)
                np.testing.assert_array_equal(a.view(np.uint8), b.view(np.uint8), name)


@pytest.mark.parametrize("fmt", QUANTIZED)
def test_policy_error(fmt):
    """Nothing is written when anything is NaN or Inf, also where only the rotation overflows."""
    clean = inputs.make(1, (1, 2, 40, 64), "normal")
    mxa.quantize(clean, fmt, policy="error")
    overflowing = clean.copy()
    overflowing[0, 1, 39] = 3e38
    for x, rotate in ((inputs.make(1, (1, 2, 40, 64), "normal", bad=1), False), (overflowing, True)):
        packed = mxa.PackedArrays(fmt, mxa.quant_opts(policy="error", rotate=rotate), x.shape)
        status = mxa.lib().mxa_quantize(
            mxa.C.byref(mxa.tensor(x)),
            mxa.FORMATS[fmt],
            mxa.C.byref(packed.opts),
            mxa.C.byref(packed.struct),
            None,
        )
        assert mxa.STATUSES[status] == "ERR_NONFINITE"
        packed.done(0)
        for name in ("codes", "scales", "g", "nonfinite_tiles"):
            assert (getattr(packed, name).view(np.uint8) == 0xFF).all(), name


@given(x=tensors(inputs.WILD), data=st.data())
def test_steps_apart(x, data):
    """Mean, subtraction and rotation as single calls: the order of section "smooth-K and rotation"."""
    n_tokens = data.draw(st.sampled_from([-1, 0, 1, 128]))
    n_tokens = min(n_tokens, x.shape[2])
    mean = mxa.channel_mean(x, n_tokens)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(mean, of.channel_mean(x, n_tokens))
        smooth = mxa.subtract_mean(x, mean)
        check_values(smooth, of.prepare(x, mean))
        check_values(mxa.rotate(x), of.rotate(x))


@pytest.mark.parametrize("dim", [1, 3, 64, 80, 96, 128, 192, 256])
def test_rotation_is_its_own_inverse(dim):
    x = inputs.make(dim, (1, 2, 50, dim))
    np.testing.assert_allclose(mxa.rotate(mxa.rotate(x)), x, rtol=0, atol=dim * 2.0**-22)


def test_unfused_chain_is_the_fused_quantiser():
    x = inputs.make(3, (1, 2, 200, 96), "biased", "bf16")
    mean = mxa.channel_mean(x, 128)
    apart = mxa.quantize(mxa.rotate(mxa.subtract_mean(x, mean)), "mxfp4")
    fused = mxa.quantize(x, "mxfp4", mean=mean, rotate=True)
    np.testing.assert_array_equal(apart.codes, fused.codes)
    np.testing.assert_array_equal(apart.scales, fused.scales)


@pytest.mark.parametrize("fmt", QUANTIZED)
def test_contradicting_levels(fmt):
    """TOKEN has no meaning along tokens; FP8 and INT8 need a factor; a factor has a legal range."""
    x = inputs.make(1, (1, 1, 64, 64))
    wrong = [({"axis": "token", "level": "token"}, "ERR_ARG")]
    if fmt in ("fp8", "int8"):
        wrong += [({"level": "none"}, "ERR_ARG"), ({"layout": "amd"}, "ERR_LAYOUT")]
    for g in (0.0, -1.0, np.nan, np.inf, 2.0**118, 2.0**-118):
        wrong.append(({"level": "tensor", "g": [g]}, "ERR_SCALE"))
    for options, status in wrong:
        with pytest.raises(mxa.MxaError) as error:
            mxa.quantize(x, fmt, **options)
        assert error.value.status == status, (options, error.value)
    for g in (2.0**117, 2.0**-117):
        mxa.quantize(x, fmt, level="tensor", g=[g])

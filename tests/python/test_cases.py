# SPDX-License-Identifier: Apache-2.0
"""Inputs that made published attention and quantisation libraries wrong, one test per case.

Cases that need a second GPU, a captured graph or a framework adapter are not here. LQ is tried where a case
leaves the number of queries open; "parts" takes the keys in one call, and in several that are merged.
"""

from dataclasses import replace

import numpy as np
import pytest

import inputs
import mxa
import oracle_attention as oa
import oracle_formats as of
import oracle_map as om
from problems import Case

BY_NAME = pytest.mark.parametrize("name", list(om.RECIPES))
LQ = pytest.mark.parametrize("q_len", [1, 7, 64, 128, 129])
PARTS = pytest.mark.parametrize("parts", [1, 3])
CAUSAL = om.Mask(causal=True)
# Recipes that hold blocks of E2M1 values with a largest one of 6 exactly: no rotation, no factor 6 / 127.
LOSSLESS = [n for n, r in om.RECIPES.items() if not r.rotate and n not in ("int8", "fp8")]
RATIO_LSE = 1e-3 / 256  # the tolerance of LSE grows with |LSE| beyond 256


def zeros(*shape, kind="bf16"):
    return np.zeros(shape, of.PLAIN_TYPES[kind])


def ramp(kv_len, dim=64):
    """v[j] = j in fp16, whose integers are exact up to 2048."""
    v = zeros(1, 1, kv_len, dim, kind="f16")
    v[...] = np.arange(kv_len)[:, None]
    return v


def lossless(seed, *shape):
    """bf16 values that MXFP4, NVFP4 and MXFP8 hold exactly: E2M1 values, 6 in each block of 16."""
    rng = np.random.default_rng(seed)
    x = of.decode("e2m1", rng.integers(0, 16, shape).astype(np.uint8))
    x[..., ::16] = np.copysign(6, x[..., ::16])
    return x.astype(of.PLAIN_TYPES["bf16"])


def attend(name, q, k, v, mask=CAUSAL, parts=1, sinks=None, **options):
    """One call, or calls over disjoint keys merged; sink logits count once."""
    kv_len = k.shape[2]
    if parts == 1:
        return Case(q, k, v, om.RECIPES[name], mask, "f32", {**options, "sinks": sinks}).run()
    offset = mask.position(q.shape[2], kv_len)
    cuts = np.linspace(0, kv_len, parts + 1).astype(int)
    results = []
    for a, b in zip(cuts, cuts[1:]):
        moved = om.Mask(mask.causal, mask.left, mask.right, offset - int(a))
        results.append(Case(q, k[:, :, a:b], v[:, :, a:b], om.RECIPES[name], moved, "f32", options).run())
    return mxa.merge([r[0] for r in results], [r[1] for r in results], sinks)


def check_rows(got, want, tol=1e-3):
    o, lse = got
    np.testing.assert_allclose(o, np.broadcast_to(want[0], o.shape), rtol=1e-6, atol=tol)
    np.testing.assert_allclose(lse, np.broadcast_to(want[1], lse.shape), rtol=RATIO_LSE, atol=tol)


@BY_NAME
@PARTS
@pytest.mark.parametrize("q_len, kv_len", [(1, 16), (2, 5), (5, 2), (129, 1000), (1000, 129)])
def test_s01_causal_corner(name, parts, q_len, kv_len):
    k = inputs.make(1, (1, 1, kv_len, 64), kind="normal", dtype="bf16")
    n = np.clip(np.arange(q_len) + kv_len - q_len + 1, 0, None)
    with np.errstate(divide="ignore"):
        want = np.maximum(n - 1, 0)[:, None] / 2, np.log(n)
    check_rows(attend(name, zeros(1, 1, q_len, 64), k, ramp(kv_len), parts=parts), want)


@BY_NAME
@LQ
@PARTS
def test_s02_no_finite_minus_infinity(name, q_len, parts):
    q, k, v = zeros(1, 1, q_len, 64), zeros(1, 1, 64, 64), zeros(1, 1, 64, 64)
    q[..., 0], k[..., 0], v[...] = 4, -32768, 1
    # int8 and fp8 factors round the logit itself: 2^-24 each of 131072.
    want, tol = -131072 + np.log(64), 0.02 if name in LOSSLESS else 0.04
    for mask in (om.Mask(), om.Mask(right=63, offset=0)):
        if mask.right >= 0:  # one more key, of logit 0, that no query may see
            if q_len > 1:
                continue
            k, v = (np.concatenate([x, np.zeros_like(x[:, :, :1])], axis=2) for x in (k, v))
        o, lse = attend(name, q, k, v, mask, parts, scale=1.0)
        np.testing.assert_allclose(o, 1, atol=1e-3)
        np.testing.assert_allclose(lse, want, atol=tol)


@BY_NAME
@PARTS
@pytest.mark.parametrize("kv_len", [17, 0])
def test_s03_empty_rows(name, parts, kv_len):
    q, k = lossless(1, 1, 2, 65, 64), lossless(2, 1, 2, kv_len, 64)
    o, lse = attend(name, q, k, lossless(3, 1, 2, kv_len, 64), parts=parts)
    empty = 65 - kv_len
    assert not o[:, :, :empty].any() and np.isneginf(lse[:, :, :empty]).all()
    assert np.isfinite(o).all() and np.isfinite(lse[:, :, empty:]).all()


def test_s04_merging_empty_states():
    zero, none = np.zeros((1, 1, 1, 4), np.float32), np.full((1, 1, 1), -np.inf, np.float32)
    x, three = np.full_like(zero, 1.7), np.full_like(none, 3)
    o, lse = mxa.merge([zero, zero], [none, none])
    assert not o.any() and np.isneginf(lse).all()
    for order in ([0, 1], [1, 0]):
        o, lse = mxa.merge([[x, zero][i] for i in order], [[three, none][i] for i in order])
        assert (o == x).all() and (lse == 3).all()
    o, lse = mxa.merge([zero] * 5 + [x] + [zero] * 2, [none] * 5 + [three] + [none] * 2)
    assert (o == x).all() and (lse == 3).all()
    low, high = np.full_like(none, -1000), np.full_like(none, 1000)
    o, lse = mxa.merge([x, -x], [high, low])
    assert (o == x).all() and (lse == 1000).all()
    o, lse = mxa.merge([x, -x, zero], [low, low, none])
    np.testing.assert_allclose(o, 0, atol=1e-6)
    np.testing.assert_allclose(lse, -1000 + np.log(2), rtol=1e-6)


@BY_NAME
@pytest.mark.parametrize(
    "q_lens, k_lens",
    [((0, 1, 0, 1), (0, 3, 0, 5)), ((5,), (0,)), ((0,), (5,)), ((0, 0), (0, 0)), ((1, 0, 0), (1, 0, 0))],
)
def test_s05_zero_lengths(name, q_lens, k_lens):
    cu = {"cu_q": np.cumsum((0,) + q_lens), "cu_k": np.cumsum((0,) + k_lens)}
    q, k, v = lossless(1, 1, 9, cu["cu_q"][-1], 64), *(lossless(s, 1, 3, cu["cu_k"][-1], 64) for s in (2, 3))
    Case(q, k, v, om.RECIPES[name], CAUSAL, "f32", cu).check()


@BY_NAME
@PARTS
def test_s06_leading_tiles_outside_the_window(name, parts):
    i = np.arange(600)
    want = np.where(i < 9, i / 2, i - 4.5)[:, None], np.log(np.minimum(i + 1, 10))
    k = lossless(1, 1, 1, 600, 64)
    check_rows(attend(name, zeros(1, 1, 600, 64), k, ramp(600), om.Mask(True, 9), parts), want)


@BY_NAME
def test_s07_window_meaning(name):
    q, k, v = (lossless(s, 1, 1, 300, 64) for s in (1, 2, 3))
    runs = [
        attend(name, q, k, v, mask)
        for mask in (CAUSAL, om.Mask(False, -1, 0), om.Mask(False, 300, 0), om.Mask(False, 299, 0))
    ]
    for o, lse in runs[1:]:
        np.testing.assert_array_equal(o, runs[0][0])
        np.testing.assert_array_equal(lse, runs[0][1])
    i = np.arange(300)
    four = np.where(i < 3, i / 2, i - 1.5)[:, None], np.log(np.minimum(i + 1, 4))
    check_rows(attend(name, zeros(1, 1, 300, 64), k, ramp(300), om.Mask(False, 3, 0)), four)
    # Fewer queries than keys: the window follows the bottom-right diagonal.
    check_rows(
        attend(name, zeros(1, 1, 20, 64), k, ramp(300), om.Mask(True, 3)), (four[0][-20:], four[1][-20:])
    )


@BY_NAME
def test_s08_softcap_before_mask(name):
    want = np.arange(4)[:, None] / 2, np.log(np.arange(1, 5))
    o, lse = attend(name, zeros(1, 1, 4, 64), lossless(1, 1, 1, 4, 64), ramp(4), softcap=1.0)
    check_rows((o, lse), want, 1e-6)
    assert not o[0, 0, 0].any()


def test_s09_e2m1_ties_to_even():
    ties = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    x = zeros(1, 1, 1, 32, kind="f32")
    x[0, 0, 0, :15] = [6, *ties, *-ties]
    want = np.array([0, 1, 1, 2, 2, 4, 4])
    for fmt, options in (("mxfp4", {"rule": r}) for r in ("floor", "rceil", "even")):
        out = mxa.dequantize(mxa.quantize(x, fmt, **options))[0, 0, 0]
        np.testing.assert_array_equal(out[:15], [6, *want, *-want])
        assert np.signbit(out[8])  # -0.25 becomes -0
    out = mxa.dequantize(mxa.quantize(x, "nvfp4", level="tensor", g=[1.0]))[0, 0, 0]
    np.testing.assert_array_equal(out[:15], [6, *want, *-want])


def test_s10_next_above_a_tie():
    """All codes: test_every_code_survives."""
    x = zeros(1, 1, 1, 32, kind="f32")
    x[..., 0], x[..., 1] = 6, 0.25000006
    assert mxa.dequantize(mxa.quantize(x, "mxfp4"))[0, 0, 0, 1] == 0.5


@pytest.mark.parametrize("rule", ["floor", "rceil", "even"])
def test_s11_top_of_a_block(rule):
    x = zeros(1, 1, 1, 32, kind="f32")
    for value, want in ((7.0, 6 if rule == "floor" else 8), (6.25, 6)):
        x[..., 0] = value
        assert mxa.dequantize(mxa.quantize(x, "mxfp4", rule=rule))[0, 0, 0, 0] == want
    x[...] = 1.984375
    out = mxa.dequantize(mxa.quantize(x, "mxfp8", rule=rule))
    assert (out == (1.75 if rule == "floor" else 2.0)).all()
    for value in (464.0, 465.0):
        assert (
            mxa.dequantize(mxa.quantize(np.full_like(x, value), "fp8", level="tensor", g=[1.0])).max() == 448
        )


def test_s12_nibble_order():
    x = zeros(1, 1, 1, 32, kind="f32")
    x[0, 0, 0, :2] = 1.0, 6.0
    assert mxa.quantize(x, "mxfp4", rule="floor").codes[0, 0, 0] == 0x72


@BY_NAME
@LQ
@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_s13_zero_blocks(name, q_len, zero):
    q, k, v = (np.full((1, 1, n, 64), zero, of.PLAIN_TYPES["bf16"]) for n in (q_len, 200, 200))
    check_rows(attend(name, q, k, v, om.Mask()), (0.0, np.log(200)), 1e-5)
    k[...] = lossless(1, 1, 1, 200, 64)
    k[..., :32] = zero
    Case(lossless(2, 1, 1, q_len, 64), k, lossless(3, 1, 1, 200, 64), om.RECIPES[name]).check()


@BY_NAME
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_s14_nonfinite_key(name, value):
    q, k, v = (lossless(s, 1, 1, 200, 64) for s in (1, 2, 3))
    k[0, 0, 150, 7] = value
    case = Case(q, k, v, om.RECIPES[name], CAUSAL)
    o, lse = case.run()
    assert np.isfinite(o[:, :, :150]).all() and np.isfinite(lse[:, :, :150]).all()
    if np.isnan(value):
        assert np.isnan(o[:, :, 150:]).all() and np.isnan(lse[:, :, 150:]).all()
    assert oa.compare(o, lse, case.expected()) is None


@BY_NAME
@LQ
@PARTS
def test_s15_lse_base(name, q_len, parts):
    k, v = lossless(1, 1, 1, 128, 64), lossless(2, 1, 1, 128, 64)
    _, lse = attend(name, zeros(1, 1, q_len, 64), k, v, om.Mask(), parts)
    np.testing.assert_allclose(lse, 4.852030, atol=2e-6)


@pytest.mark.parametrize("heads, heads_kv", [(3, 2), (33, 2), (2, 4), (2, 0)])
def test_s16_head_counts(heads, heads_kv):
    q, k = zeros(1, heads, 4, 64), zeros(1, heads_kv, 4, 64)
    with pytest.raises(mxa.MxaError) as error:
        mxa.attention(q, k, k)
    assert error.value.status == "ERR_SHAPE" and "heads" in error.value.text


@BY_NAME
@pytest.mark.parametrize("kind", ["bshd", "packed_qkv", "padded_rows", "reversed"])
def test_s17_strides(name, kind):
    q, k, v = (lossless(s, 1, 2, 129, 256) for s in (1, 2, 3))
    want = attend(name, q, k, v)
    got = attend(name, *(inputs.strided(x, kind) for x in (q, k, v)))
    for a, b in zip(want, got):
        np.testing.assert_array_equal(a, b)


@BY_NAME
@LQ
def test_s19_every_element_is_written(name, q_len):
    """Outputs start as NaN: mxa.Guarded fills them."""
    ones = np.ones((2, 3, 150, 40), of.PLAIN_TYPES["bf16"])
    q, k = inputs.make(1, (2, 6, q_len, 64), dtype="bf16"), inputs.make(2, (2, 3, 150, 64), dtype="bf16")
    o, lse = attend(name, q, k, ones, om.Mask())
    np.testing.assert_allclose(o, 1, atol=1e-2)
    assert np.isfinite(lse).all()


def test_s20_refused_not_replaced():
    shape = (1, 1, 4, 64)
    for options, status in (
        ({"device": 99}, "ERR_DEVICE"),
        ({"head_dim": 257}, "ERR_UNSUPPORTED"),
        ({"device": -7}, "ERR_ARG"),
    ):
        with pytest.raises(mxa.MxaError) as error:
            mxa.Plan(mxa.make_problem(shape, shape, 64, **options))
        assert error.value.status == status and str(next(iter(options.values()))) in error.value.text
    for name, recipe in om.RECIPES.items():
        text = mxa.Plan(mxa.make_problem(shape, shape, 64), mxa.recipe_struct(recipe)).describe()
        assert any(entry in text for entry, _, _ in mxa.impls(2)), (name, text)


@BY_NAME
@LQ
def test_s21_scale_zero_negative_nan(name, q_len):
    q, k, v = lossless(1, 1, 1, q_len, 64), lossless(2, 1, 1, 100, 64), ramp(100)
    check_rows(attend(name, q, k, v, om.Mask(), scale=0.0), (49.5, np.log(100)), 1e-4)
    q[...], k[...] = 0, 0
    q[..., 0], k[..., 0] = 10, np.where(np.arange(100) % 2, 10, -10)  # logits +-100
    case = Case(q, k, v, om.RECIPES[name], om.Mask(), "f32", {"scale": -1.0})
    case.check()
    even = np.arange(0, 100, 2).mean()
    np.testing.assert_allclose(case.run()[0], even, atol=1e-3)
    for bad in (np.nan, np.inf):
        with pytest.raises(mxa.MxaError) as error:
            attend(name, q, k, v, om.Mask(), scale=bad)
        assert error.value.status == "ERR_ARG"


@BY_NAME
def test_s22_rows_past_the_last_sequence(name):
    q, k, v = (inputs.make(s, (1, 2, 200, 64), dtype="bf16") for s in (1, 2, 3))
    for x in (q, k, v):
        x[:, :, 160:] = np.nan
    cu = {"cu_q": np.array([0, 60, 160]), "cu_k": np.array([0, 60, 160])}
    o, lse = Case(q, k, v, om.RECIPES[name], CAUSAL, "f32", cu).run()
    assert np.isfinite(o[:, :, :160]).all()
    assert not o[:, :, 160:].any() and np.isneginf(lse[:, :, 160:]).all()


def biased_keys(seed, spread=1.0):
    k = inputs.make(seed, (1, 1, 512, 64)).astype(np.float64)
    k[..., [3, 17, 35, 60]] *= spread
    k[..., [3, 17, 35, 60]] += 600
    return k.astype(np.float32)


def relative_error(q, k, v, recipe):
    o, _ = Case(q, k, v, recipe, CAUSAL).run()
    want = Case(q, k, v, om.RECIPES["exact"], CAUSAL).expected().o
    return np.linalg.norm(o - want) / np.linalg.norm(want)


@pytest.mark.parametrize("name", ["dma8", "dma4", "dma8-fp8", "dma4-fp8"])
@pytest.mark.parametrize("q_len", [1, 7, 64, 128, 129])
def test_s24_large_constant_bias(name, q_len):
    """With smoothing the error is that of K without the bias; the copies without smoothing lose it."""
    q, v = inputs.make(1, (1, 1, q_len, 64)), inputs.make(3, (1, 1, 512, 64))
    bias = np.zeros(64, np.float32)
    bias[[3, 17, 35, 60]] = 600
    k = biased_keys(2)
    recipe = replace(om.RECIPES[name], high_q="f32", high_k="f32", smooth="given", pv="f16")
    plain = relative_given(q, k - bias, v, recipe, np.zeros(64, np.float32))
    smooth = relative_given(q, k, v, recipe, bias)
    rough = relative_error(q, k, v, replace(recipe, smooth=None))
    assert smooth < 1.3 * plain + 1e-3
    assert rough > 2 * smooth


def relative_given(q, k, v, recipe, mean):
    case = Case(q, k, v, recipe, CAUSAL, "f32", {"mean": mean.reshape(1, 1, 64)})
    case.check()
    want = Case(q, k, v, om.RECIPES["exact"], CAUSAL).expected().o
    return np.linalg.norm(case.run()[0] - want) / np.linalg.norm(want)


@pytest.mark.parametrize("spread", [1.0, 100.0])
def test_s24_prefix_mean_is_fixed(spread):
    """Decode with the prefix mean: the low copy of a key does not drift as tokens are appended."""
    q, k, v = inputs.make(1, (1, 1, 512, 64)), biased_keys(2, spread), inputs.make(3, (1, 1, 512, 64))
    recipe = om.RECIPES["dma4"]
    want = Case(q, k, v, recipe, CAUSAL).expected()
    for n in (129, 300, 384, 512):
        got = Case(q[:, :, n - 1 : n], k[:, :, :n], v[:, :, :n], recipe, CAUSAL).run()
        row = oa.Result(*(x[:, :, n - 1 : n] for x in (want.o, want.lse, want.o_tol, want.lse_tol)))
        assert oa.compare(*got, row) is None


@pytest.mark.parametrize("name", LOSSLESS)
@LQ
@PARTS
def test_lossless_inputs(name, q_len, parts):
    """Where every copy is exact, the low-bit path equals the exact one."""
    q, k, v = lossless(1, 1, 1, q_len, 64), lossless(2, 1, 1, 300, 64), lossless(3, 1, 1, 300, 64)
    want = Case(q, k, v, om.RECIPES["exact"], CAUSAL, "f32", {"scale": 0.01}).expected()
    o, lse = attend(name, q, k, v, parts=parts, scale=0.01)
    p_rounding = 0.0 if name == "exact" else 2.0**-8 * np.abs(v.astype(np.float64)).max() / 2
    np.testing.assert_allclose(lse, want.lse, atol=1e-3)
    np.testing.assert_allclose(o, want.o, atol=1e-3 + p_rounding)

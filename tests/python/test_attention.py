# SPDX-License-Identifier: Apache-2.0
"""mxa_attention against the float64 oracle, each element within the bound computed from its inputs."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import inputs
import mxa
import oracle_attention as oa
import oracle_formats as of
import oracle_map as om
from golden import attention_cases, golden_mask, golden_recipes
from problems import Case, cases, packed_cases


@given(case=cases())
def test_drawn(case):
    case.check()


@given(case=cases(recipe=st.just(om.RECIPES["exact"])))
def test_drawn_exact(case):
    case.check()


@given(case=cases(bad=True))
def test_drawn_nonfinite(case):
    """Visible NaN and Inf show, those of masked keys do not."""
    case.check()


@given(case=packed_cases())
def test_drawn_packed(case):
    case.check()


@pytest.mark.parametrize("case", attention_cases(), ids=lambda c: f"{c.name}-{c.kv_len}")
def test_golden(case):
    """The stored rows; the bound comes from the oracle, whose own value equals the stored one."""
    for name, recipe, g in golden_recipes(case):
        options = {"scale": case.sm_scale, "softcap": case.softcap, "sinks": case.sink_logits}
        run = Case(case.q, case.k, case.v, recipe, golden_mask(case), "f32", {**options, "g_q": g, "g_k": g})
        want = run.expected()
        for h, (rows, lse) in enumerate(zip(case.o, case.lse)):
            want.o[0, h][case.rows], want.lse[0, h] = rows, lse
        o, lse = run.run()
        assert oa.compare(o, lse, want) is None, name


@pytest.mark.parametrize("name", list(om.RECIPES))
@pytest.mark.parametrize("kind", inputs.TAME)
def test_named_recipes(name, kind):
    """Long enough for low, high and skipped tiles, in each kind of data."""
    q = inputs.make(1, (1, 2, 300, 64), "normal" if kind == "biased" else kind, "bf16")
    k, v = inputs.make(2, (1, 1, 700, 64), kind, "bf16"), inputs.make(3, (1, 1, 700, 64), "normal", "bf16")
    Case(q, k, v, om.RECIPES[name], om.Mask(causal=True), "bf16").check()


@pytest.mark.parametrize("low_q", list(of.FORMATS) + of.PLAIN_FORMATS)
@pytest.mark.parametrize("low_k", list(of.FORMATS) + of.PLAIN_FORMATS)
def test_every_pair(low_q, low_k):
    q, k, v = (inputs.make(i, (1, 1, n, 72), "outlier_channel", "f32") for i, n in enumerate((70, 200, 200)))
    Case(q, k, v, om.Recipe(low_q, low_k), om.Mask(causal=True)).check()
    high = om.Recipe("int8", "int8", low_q, low_k, diag=1, rotate=True)
    Case(q, k, v, high, om.Mask(causal=True)).check()


@given(
    seed=inputs.seeds,
    level_q=st.sampled_from(["tensor", "head", "token_block", "token"]),
    level_k=st.sampled_from(["tensor", "head", "token_block", "token"]),
    low=st.sampled_from(["nvfp4", "fp8", "int8"]),
)
def test_given_factors(seed, level_q, level_k, low):
    q, k, v = (
        inputs.make(seed + i, (2, h, n, 48), "normal", "bf16")
        for i, (h, n) in enumerate(((4, 150), (2, 300), (2, 300)))
    )
    rng = np.random.default_rng(seed)
    g_q, g_k = (
        rng.uniform(0.001, 0.1, of.level_units(of.widen(x), level).shape).astype(np.float32)
        for x, level in ((q, level_q), (k, level_k))
    )
    recipe = om.Recipe(low, low, "bf16", "bf16", 64, 0, level_q=level_q, level_k=level_k)
    Case(q, k, v, recipe, om.Mask(causal=True), "f32", {"g_q": g_q, "g_k": g_k}).check()


@given(seed=inputs.seeds, fmt=st.sampled_from(list(of.FORMATS)), rotate=st.booleans())
def test_given_mean(seed, fmt, rotate):
    q, k, v = (inputs.make(seed + i, (2, 2, n, 64), "normal") for i, n in enumerate((140, 400, 400)))
    mean = np.random.default_rng(seed).standard_normal((2, 2, 64)).astype(np.float32) * 20
    k = k + mean[:, :, None]
    recipe = om.Recipe("int8", fmt, "bf16", "bf16", 128, 0, rotate=rotate, smooth="given")
    Case(q, k, v, recipe, om.Mask(causal=True), "f32", {"mean": mean}).check()


@given(case=packed_cases())
def test_packed_is_each_alone(case):
    """A packed sequence has the operands, the map and the bits of a call of its own (level TENSOR apart)."""
    recipe = replace(case.recipe, level_q=None, level_k=None)
    case = Case(case.q, case.k, case.v, recipe, case.mask, case.out, case.options)
    o, lse = case.run()
    options = {name: value for name, value in case.options.items() if name not in ("cu_q", "cu_k")}
    cu_q, cu_k = case.options["cu_q"], case.options["cu_k"]
    for a, b, c, d in zip(cu_q, cu_q[1:], cu_k, cu_k[1:]):
        alone = Case(
            case.q[:, :, a:b], case.k[:, :, c:d], case.v[:, :, c:d], recipe, case.mask, case.out, options
        )
        one_o, one_lse = alone.run()
        np.testing.assert_array_equal(o[:, :, a:b], one_o)
        np.testing.assert_array_equal(lse[:, :, a:b], one_lse)
    assert not o[:, :, cu_q[-1] :].any() and np.isneginf(lse[:, :, cu_q[-1] :]).all()


def test_long_sequence():
    """Many tiles of one row: sums over 20000 keys stay within the bound."""
    q = inputs.make(1, (1, 2, 3, 64), "normal", "bf16")
    k, v = (inputs.make(i, (1, 1, 20000, 64), "normal", "bf16") for i in (2, 3))
    for name in ("dma8", "dma4", "paper-nvfp4", "exact"):
        Case(q, k, v, om.RECIPES[name], om.Mask(causal=True)).check()


def test_default_recipe_is_dma8():
    q, k, v = (inputs.make(i, (1, 1, 300, 64), "normal") for i in range(3))
    o, lse = mxa.attention(q, k, v, None, causal=True)
    same_o, same_lse = mxa.attention(q, k, v, "dma8", causal=True)
    np.testing.assert_array_equal(o, same_o)
    np.testing.assert_array_equal(lse, same_lse)


@pytest.mark.parametrize("name", ["exact", "dma8", "f32"])
def test_torch_sdpa(name):
    torch = pytest.importorskip("torch")
    q, k, v = (
        inputs.make(i, (2, h, n, 64), "normal", "bf16")
        for i, (h, n) in enumerate(((6, 200), (2, 333), (2, 333)))
    )
    recipe = om.RECIPES.get(name) or om.Recipe("f32", "f32")
    mask = om.Mask(causal=True, left=250)
    o, _ = Case(q, k, v, recipe, mask).run()
    wide = [torch.from_numpy(x.astype(np.float64)) for x in (q, k, v)]
    seen = torch.from_numpy(mask.visible(200, 333))
    want = torch.nn.functional.scaled_dot_product_attention(*wide, seen, enable_gqa=True).numpy()
    error = np.linalg.norm(o - want) / np.linalg.norm(want)
    # Rounding to fp32; P and V in bf16 otherwise, and int8 rows: 1 / 254 / sqrt(3) of their maximum.
    assert error < {"exact": 1e-6, "f32": 3e-3, "dma8": 1.5e-2}[name]


@given(data=st.data(), seed=inputs.seeds)
def test_packed_with_given_factors_and_mean(data, seed):
    """One factor and one mean per sequence, head or token of a packed call."""
    levels = st.sampled_from(["tensor", "head", "token"])
    level_q, level_k = data.draw(levels), data.draw(levels)
    cu_q, cu_k = np.array([0, 30, 30, 200]), np.array([0, 200, 210, 500])
    shapes = ((1, 4, 200, 64), (1, 2, 510, 64), (1, 2, 510, 64))
    q, k, v = (inputs.make(seed + i, shape, "normal", "bf16") for i, shape in enumerate(shapes))
    rng = np.random.default_rng(seed)
    counts = {"tensor": lambda h, n: (1,), "head": lambda h, n: (3, h), "token": lambda h, n: (1, h, n)}
    g_q = rng.uniform(0.01, 0.05, counts[level_q](4, 200)).astype(np.float32)
    g_k = rng.uniform(0.01, 0.05, counts[level_k](2, 510)).astype(np.float32)
    mean = rng.standard_normal((3, 2, 64)).astype(np.float32)
    recipe = om.Recipe("int8", "int8", "bf16", "bf16", 1, 0, smooth="given", level_q=level_q, level_k=level_k)
    options = {"cu_q": cu_q, "cu_k": cu_k, "mean": mean, "g_q": g_q, "g_k": g_k}
    Case(q, k, v, recipe, om.Mask(causal=True), "f32", options).check()


FAR = 2**57  # positions up to 2^58 are accepted


@pytest.mark.parametrize("name", ["exact", "dma8", "mxfp4"])
@pytest.mark.parametrize(
    "mask",
    [
        om.Mask(True, -1, -1, FAR),
        om.Mask(True, -1, -1, -FAR),
        om.Mask(False, FAR, FAR, None),
        om.Mask(False, FAR, -1, FAR),
        om.Mask(False, FAR - 5, 3, FAR),
        om.Mask(True, 2**31, -1, 2**31),
        om.Mask(False, 0, 2**33, -(2**33)),
    ],
)
def test_far_positions(name, mask):
    """Offsets and windows beyond 32 bits."""
    q, k, v = (inputs.make(i, (1, 1, n, 32), "normal", "bf16") for i, n in enumerate((150, 300, 300)))
    Case(q, k, v, om.RECIPES[name], mask).check()


@pytest.mark.parametrize("name", list(om.RECIPES))
def test_nan_key_under_a_softcap(name):
    q, k, v = (inputs.make(i, (1, 1, n, 64), "normal", "bf16") for i, n in enumerate((150, 300, 300)))
    k[0, 0, 200, 5] = np.nan
    Case(q, k, v, om.RECIPES[name], om.Mask(causal=True), "f32", {"softcap": 5.0}).check()


@pytest.mark.parametrize("name", list(om.RECIPES))
@pytest.mark.parametrize("pv", ["f16", "bf16"])
def test_large_values(name, pv):
    """V above the largest fp16: saturated where P and V meet in fp16, and in an fp16 output."""
    q, k = (inputs.make(i, (1, 1, n, 64), "normal") for i, n in enumerate((20, 200)))
    v = inputs.make(2, (1, 1, 200, 64), "normal") * np.float32(1e6)
    for out in ("f16", "f32"):
        Case(q, k, v, replace(om.RECIPES[name], pv=pv), om.Mask(), out).check()


def test_a_key_with_an_infinite_logit():
    """+Inf makes the row NaN, -Inf counts as masked, whatever lies in its V."""
    q, k, v = (np.ones((1, 1, n, 32), np.float32) for n in (2, 5, 5))
    k[0, 0, 3, 0], v[0, 0, 3, 4] = -np.inf, np.nan
    for name in ("exact", "bf16"):
        case = Case(q, k, v, om.RECIPES[name])
        case.check()
        np.testing.assert_allclose(case.run()[0], 1, rtol=2**-8)
        Case(q, k[:, :, 3:4], v[:, :, 3:4], om.RECIPES[name]).check()  # an empty row
        Case(-q, k, v, om.RECIPES[name]).check()

# SPDX-License-Identifier: Apache-2.0
"""mxa_attention against the float64 oracle, each element within the bound computed from its inputs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import inputs
import mxa
import oracle_attention as oa
import oracle_formats as of
from golden import attention_cases, golden_mask, golden_recipes
from problems import Case, cases, packed_cases


@given(case=cases())
def test_drawn(case):
    case.check()


@given(case=cases(recipe=st.just(oa.RECIPES["exact"])))
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


@pytest.mark.parametrize("name", list(oa.RECIPES))
@pytest.mark.parametrize("kind", inputs.TAME)
def test_named_recipes(name, kind):
    """Long enough for low, high and skipped tiles, in each kind of data."""
    q = inputs.make(1, (1, 2, 300, 64), "normal" if kind == "biased" else kind, "bf16")
    k, v = inputs.make(2, (1, 1, 700, 64), kind, "bf16"), inputs.make(3, (1, 1, 700, 64), "normal", "bf16")
    Case(q, k, v, oa.RECIPES[name], oa.Mask(causal=True), "bf16").check()


@pytest.mark.parametrize("low_q", list(of.FORMATS) + of.PLAIN_FORMATS)
@pytest.mark.parametrize("low_k", list(of.FORMATS) + of.PLAIN_FORMATS)
def test_every_pair(low_q, low_k):
    q, k, v = (inputs.make(i, (1, 1, n, 72), "outlier_channel", "f32") for i, n in enumerate((70, 200, 200)))
    Case(q, k, v, oa.Recipe(low_q, low_k), oa.Mask(causal=True)).check()
    high = oa.Recipe("int8", "int8", low_q, low_k, diag=1, rotate=True)
    Case(q, k, v, high, oa.Mask(causal=True)).check()


@given(seed=inputs.seeds, level_q=st.sampled_from(["tensor", "head", "token_block", "token"]), level_k=st.sampled_from(["tensor", "head", "token_block", "token"]), low=st.sampled_from(["nvfp4", "fp8", "int8"]))
def test_given_factors(seed, level_q, level_k, low):
    q, k, v = (inputs.make(seed + i, (2, h, n, 48), "normal", "bf16") for i, (h, n) in enumerate(((4, 150), (2, 300), (2, 300))))
    rng = np.random.default_rng(seed)
    g_q, g_k = (
        rng.uniform(0.001, 0.1, of.level_units(of.widen(x), level).shape).astype(np.float32)
        for x, level in ((q, level_q), (k, level_k))
    )
    recipe = oa.Recipe(low, low, "bf16", "bf16", 64, 0, level_q=level_q, level_k=level_k)
    Case(q, k, v, recipe, oa.Mask(causal=True), "f32", {"g_q": g_q, "g_k": g_k}).check()


@given(seed=inputs.seeds, fmt=st.sampled_from(list(of.FORMATS)), rotate=st.booleans())
def test_given_mean(seed, fmt, rotate):
    q, k, v = (inputs.make(seed + i, (2, 2, n, 64), "normal") for i, n in enumerate((140, 400, 400)))
    mean = np.random.default_rng(seed).standard_normal((2, 2, 64)).astype(np.float32) * 20
    k = k + mean[:, :, None]
    recipe = oa.Recipe("int8", fmt, "bf16", "bf16", 128, 0, rotate=rotate, smooth="given")
    Case(q, k, v, recipe, oa.Mask(causal=True), "f32", {"mean": mean}).check()


@given(case=packed_cases())
def test_packed_is_each_alone(case):
    """A packed sequence has the operands, the map and the bits of a call of its own (level TENSOR apart)."""
    recipe = oa.with_options(case.recipe, level_q=None, level_k=None)
    case = Case(case.q, case.k, case.v, recipe, case.mask, case.out, case.options)
    o, lse = case.run()
    options = {name: value for name, value in case.options.items() if name not in ("cu_q", "cu_k")}
    cu_q, cu_k = case.options["cu_q"], case.options["cu_k"]
    for a, b, c, d in zip(cu_q, cu_q[1:], cu_k, cu_k[1:]):
        alone = Case(case.q[:, :, a:b], case.k[:, :, c:d], case.v[:, :, c:d], recipe, case.mask, case.out, options)
        one_o, one_lse = alone.run()
        np.testing.assert_array_equal(o[:, :, a:b], one_o)
        np.testing.assert_array_equal(lse[:, :, a:b], one_lse)
    assert not o[:, :, cu_q[-1] :].any() and np.isneginf(lse[:, :, cu_q[-1] :]).all()


def test_long_sequence():
    """Many tiles of one row: sums over 20000 keys stay within the bound."""
    q = inputs.make(1, (1, 2, 3, 64), "normal", "bf16")
    k, v = (inputs.make(i, (1, 1, 20000, 64), "normal", "bf16") for i in (2, 3))
    for name in ("dma8", "dma4", "paper-nvfp4", "exact"):
        Case(q, k, v, oa.RECIPES[name], oa.Mask(causal=True)).check()


def test_default_recipe_is_dma8():
    q, k, v = (inputs.make(i, (1, 1, 300, 64), "normal") for i in range(3))
    o, lse = mxa.attention(q, k, v, None, causal=True)
    same_o, same_lse = mxa.attention(q, k, v, "dma8", causal=True)
    np.testing.assert_array_equal(o, same_o)
    np.testing.assert_array_equal(lse, same_lse)


@pytest.mark.parametrize("name", ["exact", "dma8", "f32"])
def test_torch_sdpa(name):
    torch = pytest.importorskip("torch")
    q, k, v = (inputs.make(i, (2, h, n, 64), "normal", "bf16") for i, (h, n) in enumerate(((6, 200), (2, 333), (2, 333))))
    recipe = oa.RECIPES.get(name) or oa.Recipe("f32", "f32")
    mask = oa.Mask(causal=True, left=250)
    o, _ = Case(q, k, v, recipe, mask).run()
    wide = [torch.from_numpy(x.astype(np.float64)) for x in (q, k, v)]
    seen = torch.from_numpy(mask.visible(200, 333))
    want = torch.nn.functional.scaled_dot_product_attention(*wide, seen, enable_gqa=True).numpy()
    error = np.linalg.norm(o - want) / np.linalg.norm(want)
    # 2^-24 for exact; P and V in bf16 otherwise, and the error of an int8 row, 1 / 254 / sqrt(3) of its maximum.
    assert error < {"exact": 1e-6, "f32": 3e-3, "dma8": 1.5e-2}[name]

# SPDX-License-Identifier: Apache-2.0
"""The attention oracle against the stored vectors and, where it is installed, PyTorch in float64."""

from dataclasses import replace

import numpy as np
import pytest

import inputs
import oracle_attention as oa
import oracle_map as om
import oracle_operands
import vectors
from golden import attention_cases, golden_mask, golden_recipes


@pytest.mark.parametrize("case", vectors.load("tile_map.json"), ids=lambda c: f"{c['q_len']}x{c['kv_len']}")
def test_tile_maps(case):
    recipe = om.Recipe(diag=case["diag_window"], sink=case["sink_window"])
    offset = case.get("q_offset")
    mask = om.Mask(left=case["window_left"], right=case["window_right"], offset=offset)
    first, rows = om.tile_rows(recipe, mask, case["q_len"], case["kv_len"])
    assert (first, rows) == (case["first_query_tile"], case["map"])


@pytest.mark.parametrize("case", attention_cases(), ids=lambda c: f"{c.name}-{c.kv_len}")
def test_golden(case):
    for name, recipe, g in golden_recipes(case):
        want = oa.attend(
            case.q,
            case.k,
            case.v,
            recipe,
            golden_mask(case),
            scale=case.sm_scale,
            softcap=case.softcap,
            sinks=case.sink_logits,
            g_q=g,
            g_k=g,
        )
        for h, (rows, lse) in enumerate(zip(case.o, case.lse)):
            np.testing.assert_allclose(want.o[0, h][case.rows], rows, rtol=1e-12, atol=1e-12, err_msg=name)
            np.testing.assert_allclose(want.lse[0, h], lse, rtol=1e-12, atol=1e-12, err_msg=name)


DMA4, CAUSAL = om.RECIPES["dma4"], om.Mask(causal=True)


def expected(recipe=DMA4, mask=CAUSAL):
    q = inputs.make(1, (1, 1, 200, 64))
    k, v = (inputs.make(i, (1, 1, 600, 64)) + np.float32(i) for i in (2, 3))
    return oa.attend(q, k, v, recipe, mask)


MISTAKES = {
    "a longer diagonal window": lambda m: expected(replace(DMA4, diag=130)),
    "a longer sink": lambda m: expected(replace(DMA4, sink=129)),
    "another scale rule": lambda m: expected(replace(DMA4, rule_k="rceil")),
    "another level": lambda m: expected(replace(DMA4, level_q="tensor")),
    "no rotation": lambda m: expected(replace(DMA4, rotate=False)),
    "high copies in fp16": lambda m: expected(replace(DMA4, high_q="f16", high_k="f16")),
    "top-left alignment": lambda m: expected(mask=om.Mask(causal=True, offset=0)),
    "one key more": lambda m: expected(mask=om.Mask(right=1)),
    "mean over 127 keys": lambda m: m.setattr(oracle_operands, "PREFIX_KEYS", 127) or expected(),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_exceed_the_bound(mistake, monkeypatch):
    """The bound is tight enough to show each of these."""
    want, wrong = expected(), MISTAKES[mistake](monkeypatch)
    assert oa.compare(want.o, want.lse, want) is None
    assert oa.compare(wrong.o, wrong.lse, want) is not None


def test_torch_float64():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(2)
    q = rng.standard_normal((2, 6, 40, 24))
    k, v = (rng.standard_normal((2, 2, 70, 24)) for _ in range(2))
    mask = om.Mask(causal=True, left=33)
    want = oa.attend(
        q.astype(np.float32), k.astype(np.float32), v.astype(np.float32), om.RECIPES["exact"], mask
    )
    q, k, v = (torch.from_numpy(x.astype(np.float32).astype(np.float64)) for x in (q, k, v))
    seen = torch.from_numpy(mask.visible(40, 70))
    scale = float(np.float32(1 / np.sqrt(24)))
    got = torch.nn.functional.scaled_dot_product_attention(q, k, v, seen, scale=scale, enable_gqa=True)
    np.testing.assert_allclose(want.o, got.numpy(), rtol=1e-10, atol=1e-12)

# SPDX-License-Identifier: Apache-2.0
"""The attention oracle against the stored vectors and, where it is installed, PyTorch in float64."""

from dataclasses import replace

import numpy as np
import pytest

import oracle_attention as oa
import oracle_map as om
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


def test_low_and_high_matter():
    """The tolerance is far below the difference that a wrong tile choice makes."""
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((1, 1, 512, 64)).astype(np.float32) for _ in range(3))
    mask = om.Mask(causal=True)
    mixed = oa.attend(q, k, v, om.RECIPES["paper-mxfp4"], mask)
    other = oa.attend(q, k, v, replace(om.RECIPES["paper-mxfp4"], diag=130), mask)
    rows = slice(384, 512)  # query tile 3: the longer window makes key tile 1 high, too
    difference = np.abs(mixed.lse - other.lse)[0, 0, rows]
    assert np.median(difference / mixed.lse_tol[0, 0, rows]) > 20


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

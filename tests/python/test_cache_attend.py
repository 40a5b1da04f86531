# SPDX-License-Identifier: Apache-2.0
"""Attention to a KV cache against the float64 model."""

import numpy as np
import pytest

from cache_problems import BY_TEXT, RECIPE_LIST, Pair

BY_RECIPE = pytest.mark.parametrize("recipe", RECIPE_LIST, ids=lambda r: r.text)


@BY_RECIPE
@pytest.mark.parametrize("page_tokens", [16, 48, 64, 256])
def test_prefill_then_decode(recipe, page_tokens):
    rng = np.random.default_rng(1)
    pair = Pair(recipe, page_tokens=page_tokens)
    pair.append(rng, [300, 77])
    pair.attend(rng, [300, 77])
    for counts in ([1, 1], [1, 70], [5, 0], [129, 3], [1, 1]):
        pair.append(rng, counts)
        pair.attend(rng, counts)
    pair.check_bytes()


@BY_RECIPE
def test_shapes_and_masks(recipe):
    rng = np.random.default_rng(2)
    for dim, dim_v, heads_kv, group in ((80, 48, 1, 3), (256, 250, 1, 1), (32, 256, 2, 5), (128, 128, 1, 70)):
        pair = Pair(recipe, batch=1, heads_kv=heads_kv, group=group, dim=dim, dim_v=dim_v)
        pair.append(rng, [419], dtype="f32", strides="bshd")
        pair.attend(rng, [3])
        pair.attend(rng, [3], softcap=2.0, left=140, scale=-0.3, out="bf16")
        pair.attend(rng, [1], sinks=rng.standard_normal(pair.heads), left=0, dtype="f32", out="f16")


@pytest.mark.parametrize("text", ["dma4,v=int8", "dma8,v=f16"])
def test_many_segments(text):
    rng = np.random.default_rng(3)
    pair = Pair(BY_TEXT[text], batch=2, heads_kv=1, group=4)
    pair.append(rng, [5000, 2048])
    pair.attend(rng, [16, 1])
    pair.attend(rng, [1, 1], sinks=rng.standard_normal(4))
    pair.attend(rng, [40, 17], left=2100)

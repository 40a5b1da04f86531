# SPDX-License-Identifier: Apache-2.0
"""Attention to a KV cache against the float64 model."""

import numpy as np
import pytest

import mxa_cache
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


@pytest.mark.parametrize("left", [290, 315, -1])
def test_window_past_a_part_of_the_sink(left):
    """The tile that ends the sink window is low for queries whose window begins after its part of it."""
    rng = np.random.default_rng(6)
    pair = Pair(BY_TEXT["dma4-fp8,sink=200,v=fp8"], batch=1, page_tokens=48)
    pair.append(rng, [530])
    pair.attend(rng, [30], left=left)
    pair.check_bytes()


@pytest.mark.parametrize("text", ["dma4,v=int8", "dma8,v=f16"])
def test_many_segments(text):
    rng = np.random.default_rng(3)
    pair = Pair(BY_TEXT[text], batch=2, heads_kv=1, group=4)
    pair.append(rng, [5000, 2048])
    pair.attend(rng, [16, 1])
    pair.attend(rng, [1, 1], sinks=rng.standard_normal(4))
    pair.attend(rng, [40, 17], left=2100)


@pytest.mark.parametrize("text", ["dma4,v=int8", "bf16,v=int8", "int8,v=mxint8"])
def test_pages_left_behind(text):
    """A window moves on, the pages before it are given back: the results are those of the whole cache."""
    rng = np.random.default_rng(4)
    pair = Pair(BY_TEXT[text], batch=1, page_tokens=48)
    pair.append(rng, [700])
    before = pair.cache.used_bytes()
    first = -(-pair.recipe.scores.sink // 48)
    pair.cache.remove(0, first, (700 - 300) // 48 - first)
    assert pair.cache.used_bytes() < before
    for _ in range(3):
        pair.attend(rng, [1], left=250)
        pair.append(rng, [60])
    pair.attend(rng, [40], left=200)


def test_tables_of_the_caller():
    """An engine moves the pages of a cache and hands them to another sequence."""
    rng = np.random.default_rng(5)
    pair = Pair(BY_TEXT["dma4,v=int8"], page_tokens=32, pages=(60, 60))
    pair.append(rng, [333, 5])
    length, high_first, pages = pair.cache.table(0)
    moved = []
    for kind, numbers in enumerate(pages):
        size = mxa_cache.sizes(pair.cache.opts).page_bytes[kind]
        free = [p for p in range(59, -1, -1) if p not in set(numbers) | set(pair.cache.table(1)[2][kind])]
        moved.append([free.pop(0) if p >= 0 else -1 for p in numbers])
        for source, target in zip(numbers, moved[-1]):
            if source >= 0:
                pair.cache.page(kind, target, size)[:] = pair.cache.page(kind, source, size)
    pair.cache.set_table(1, length, high_first, moved)
    pair.k[1], pair.v[1] = pair.k[0], pair.v[0]
    pair.append(rng, [3, 7])
    pair.attend(rng, [3, 7])
    pair.check_bytes()

# SPDX-License-Identifier: Apache-2.0
"""Recipes, masks and the precision map, from docs/numerics.md: it looks at every pair of every tile."""

from dataclasses import dataclass

import numpy as np

from oracle_formats import TILE

ALL = 2**63 - 1  # diag window: every tile is high


@dataclass(frozen=True)
class Recipe:
    low_q: str | None = None
    low_k: str | None = None
    high_q: str | None = None
    high_k: str | None = None
    diag: int = 0
    sink: int = 0
    rotate: bool = False
    smooth: str | None = None
    rule_q: str | None = None
    rule_k: str | None = None
    level_q: str | None = None
    level_k: str | None = None
    pv: str | None = None
    exact: bool = False


def dma(low_q, low_k):
    return Recipe(low_q, low_k, "bf16", "bf16", 128, 128, rotate=True, smooth="prefix")


def paper(low):
    return Recipe(low, low, "mxfp8", "mxfp8", 128, 128)


RECIPES = {
    "dma8": dma("int8", "int8"),
    "dma4": dma("int8", "mxfp4"),
    "dma8-fp8": dma("fp8", "fp8"),
    "dma4-fp8": dma("fp8", "mxfp4"),
    "paper-mxfp4": paper("mxfp4"),
    "paper-nvfp4": paper("nvfp4"),
    **{name: Recipe(name, name) for name in "int8 fp8 mxint8 mxfp8 mxfp6 mxfp4 nvfp4".split()},
    "bf16": Recipe(high_q="bf16", high_k="bf16", diag=ALL),
    "exact": Recipe(exact=True),
}


@dataclass(frozen=True)
class Mask:
    """right = 0 with causal; -1 is no limit. offset: position of query 0, None is bottom-right."""

    causal: bool = False
    left: int = -1
    right: int = -1
    offset: int | None = None

    def position(self, q_len, kv_len):
        return kv_len - q_len if self.offset is None else self.offset

    def window(self):
        return self.left, 0 if self.causal else self.right

    def visible(self, q_len, kv_len):
        left, right = self.window()
        distance = self.position(q_len, kv_len) + np.arange(q_len)[:, None] - np.arange(kv_len)[None, :]
        seen = np.ones((q_len, kv_len), bool)
        if left >= 0:
            seen &= distance <= left
        if right >= 0:
            seen &= distance >= -right
        return seen


def tile_is_high(recipe, mask, m, n):
    """Every one of the 128 x 128 pairs is looked at, whether or not it exists."""
    left, right = mask.window()
    keys = TILE * n + np.arange(TILE)[None, :]
    distance = TILE * m + np.arange(TILE)[:, None] - keys
    seen = np.ones((TILE, TILE), bool)
    if left >= 0:
        seen &= distance <= left
    if right >= 0:
        seen &= distance >= -right
    return bool((seen & ((np.abs(distance) < recipe.diag) | (keys < recipe.sink))).any())


def tile_rows(recipe, mask, q_len, kv_len):
    """The map: first query tile and, for each query tile, a string of H, L and '.' (skipped)."""
    if q_len == 0:
        return 0, []
    first = mask.position(q_len, kv_len)
    tiles_q = range(first // TILE, (first + q_len - 1) // TILE + 1)
    seen = mask.visible(q_len, kv_len)
    rows = []
    for m in tiles_q:
        row = ""
        for n in range(-(-kv_len // TILE)):
            q0, q1 = max(TILE * m - first, 0), TILE * (m + 1) - first
            part = seen[q0:q1, TILE * n : TILE * (n + 1)]
            row += "." if not part.any() else "H" if tile_is_high(recipe, mask, m, n) else "L"
        rows.append(row)
    return tiles_q.start, rows


def high_pairs(recipe, mask, q_len, kv_len):
    """bool [q_len, kv_len]: which pairs use the high copies (skipped ones do not matter)."""
    first, rows = tile_rows(recipe, mask, q_len, kv_len)
    if not rows or kv_len == 0:
        return np.zeros((q_len, kv_len), bool)
    letters = np.array([list(row) for row in rows])
    m = (mask.position(q_len, kv_len) + np.arange(q_len)) // TILE - first
    return (letters == "H")[m[:, None], (np.arange(kv_len) // TILE)[None, :]]

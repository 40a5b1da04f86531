# SPDX-License-Identifier: Apache-2.0
"""A KV cache in NumPy: every token as it came, and what attention to it gives in float64."""

from dataclasses import dataclass

import numpy as np

import oracle_attention as oa
import oracle_formats as of
from oracle_map import Mask, Recipe, high_pairs
from oracle_operands import Copy, Operands, make_copy, pair_is_rotated


@dataclass(frozen=True)
class CacheRecipe:
    """scores: that of Q and K; v: a format; text: the library's."""

    text: str
    scores: Recipe
    v: str = "bf16"
    rotate_v: bool = False
    by_channel: bool = False  # V's factors are given, one for each channel

    @property
    def v_windows(self):
        """V has 16-bit rows in high tiles only where others are low."""
        r = self.scores
        return bool(self.v not in of.PLAIN_FORMATS and r.low_k and r.high_k and (r.diag or r.sink))

    @property
    def pv(self):
        return self.scores.pv or ("f16" if self.v == "f16" else "bf16")


def plain(x, fmt):
    return of.round_plain(of.widen(x), fmt)


def prefix_mean(k, recipe):
    """mu [1, heads, dim] from the keys in their high format, None while there is none."""
    if recipe.smooth != "prefix" or k.shape[2] < of.TILE:
        return None
    return of.channel_mean(plain(k, recipe.high_k), of.TILE)


def k_copy(k, recipe, part, mean):
    """One copy of K [1, heads, len, dim], None if the recipe has none."""
    fmt, partner = getattr(recipe, part + "_k"), getattr(recipe, part + "_q")
    if fmt is None:
        return None
    rotated = pair_is_rotated(recipe, fmt, partner)
    if part == "low" and recipe.smooth and mean is None:
        mean = np.zeros((1, k.shape[1], k.shape[3]), np.float32)  # no low tile is visible yet
    used = mean if fmt not in of.PLAIN_FORMATS and recipe.smooth else None
    return make_copy(k, fmt, "f32", rotated, used, recipe.rule_k, recipe.level_k, None)


def q_copy(q, recipe, part):
    fmt, partner = getattr(recipe, part + "_q"), getattr(recipe, part + "_k")
    if fmt is None:
        return None
    return make_copy(
        q, fmt, "f32", pair_is_rotated(recipe, fmt, partner), None, recipe.rule_q, recipe.level_q, None
    )


def channel_codes(v, fmt, rotated, g_v):
    """V [1, heads, len, dim] over the factors of its channels, as FP8 or INT8 with g = 1."""
    x = of.prepare(v, rotated=rotated) / g_v[None, :, None]
    return of.quantize(x, fmt, level="tensor", g=np.ones(1, np.float32))


def v_copy(v, fmt, rotated, g_v=None):
    """V [1, heads, len, dim] as stored, decoded to float64."""
    if g_v is not None:
        codes = of.dequantize(channel_codes(v, fmt, rotated, g_v), v.shape[3])
        return codes.astype(np.float64)[0] * g_v[:, None].astype(np.float64)
    x = of.prepare(v, rotated=rotated)
    if fmt in of.PLAIN_FORMATS:
        return of.round_plain(x, fmt).astype(np.float64)[0]
    return of.dequantize(of.quantize(x, fmt), v.shape[3]).astype(np.float64)[0]


def attend(q, k, v, recipe, scale, softcap=0.0, sinks=None, left=-1, g_v=None):
    """q [heads, n, dim], k and v [heads_kv, len, dim] as float32: an oracle_attention.Result of the n newest."""
    r, mask = recipe.scores, Mask(causal=True, left=left)
    n, length, group = q.shape[1], k.shape[1], q.shape[0] // k.shape[0]
    q, k, v = q[None], k[None], v[None]
    mean = prefix_mean(k, r)
    copies = {p + "_k": k_copy(k, r, p, mean) for p in ("low", "high")}
    copies |= {p + "_q": q_copy(q, r, p) for p in ("low", "high")}
    ops = Operands(**copies, mean=None if mean is None else mean[0])
    seen, high = mask.visible(n, length), high_pairs(r, mask, n, length)
    own = v_copy(v, recipe.v, recipe.rotate_v, g_v)
    near = v_copy(v, recipe.pv, recipe.rotate_v) if recipe.v_windows else own
    result = oa.Result(*(np.zeros(s) for s in ((q.shape[1], n, v.shape[3]), (q.shape[1], n)) * 2))
    scale = float(np.float32(scale))
    for h in range(q.shape[1]):
        logits = oa.head_logits(ops, high, q[0], h, h // group, scale)
        s = logits.value if softcap == 0 else softcap * np.tanh(logits.value / softcap)
        p, lse, used, bad = oa.softmax_rows(s, seen, None if sinks is None else float(sinks[h]))
        parts = [oa.weighted_values(p * m, used & m, x[h // group]) for m, x in ((high, near), (~high, own))]
        o, o_scale = (sum(part[i] for part in parts) for i in range(2))
        v_max = np.maximum(np.abs(near[h // group]), np.abs(own[h // group]))
        o_tol, lse_tol = oa.bounds(
            logits.value, logits.magnitude, used, softcap, o_scale, v_max, lse, q.shape[3], "f32"
        )
        if recipe.rotate_v:  # turning back is orthonormal: an element's error is at most that of the row
            o_tol = np.broadcast_to(np.sqrt((o_tol**2).sum(-1, keepdims=True)), o_tol.shape)
            o_tol = o_tol + 16 * oa.UNIT["f32"] * np.sqrt((o**2).sum(-1, keepdims=True))
            o = of.rotate(o.astype(np.float64)) if np.isfinite(o).all() else of.rotate(o)
        result.o[h], result.lse[h] = np.where(bad[:, None], np.nan, o), lse
        result.o_tol[h], result.lse_tol[h] = o_tol, lse_tol
    return result


# ---------------------------------------------------------------- stored bytes


@dataclass
class Part:
    """Where rows of K or V lie in a head's record: offsets in bytes, as docs/cache.md draws them."""

    codes: int
    scales: int
    g: int
    row_bytes: int
    scale_cols: int
    has_g: bool


def part_layout(fmt, dim, tokens, at, by_channel=False):
    """The part that starts at an offset, and the offset after it."""
    if fmt is None:
        return None, at
    if fmt in of.PLAIN_FORMATS:
        row_bytes, cols, has_g = dim * of.PLAIN_TYPES[fmt].itemsize, 0, False
    else:
        bits = {"mxfp4": 4, "nvfp4": 4, "mxfp6": 6, "mxfp6-e2m3": 6}.get(fmt, 8)
        block = {"nvfp4": 16, "fp8": 0, "int8": 0}.get(fmt, 32)
        cols = -(-dim // block) if block else 0
        row_bytes = (cols * block if block else dim) * bits // 8
        has_g = fmt in ("nvfp4", "fp8", "int8") and not by_channel
    parts = [tokens * row_bytes, tokens * cols, 4 * tokens * has_g]
    starts = np.cumsum([at] + [-(-n // 64) * 64 for n in parts])
    return Part(*(int(s) for s in starts[:3]), row_bytes, cols, has_g), int(starts[3])


def head_layout(recipe, kind, dim, dim_v, tokens):
    """Parts of K and V in a page of a kind (0 low, 1 high), and the bytes of a head."""
    r = recipe.scores
    has = (r.low_k, r.high_k and (r.diag or r.sink) and r.high_k)[kind]
    k, at = part_layout(has or None, dim, tokens, 0)
    v_fmt = recipe.v if kind == 0 else recipe.pv if recipe.v_windows else None
    v, at = part_layout(v_fmt, dim_v, tokens, at, recipe.by_channel and kind == 0)
    return k, v, at


def expected_rows(library, x, fmt, rotated, mean):
    """Bytes of codes, scales and g of every row of x [heads, len, dim] by the library's quantiser."""
    packed = library.quantize(x[None], fmt, rotate=rotated, mean=mean, fill_tail=True)
    heads, n = x.shape[:2]
    codes = packed.codes.reshape(heads, n, -1)
    scales = packed.scales.reshape(heads, n, -1) if packed.scales.size else np.zeros((heads, n, 0), np.uint8)
    g = packed.g.reshape(heads, n, -1) if packed.g.size else np.zeros((heads, n, 0), np.float32)
    return codes, scales, np.ascontiguousarray(g).view(np.uint8).reshape(heads, n, -1)


def page_rows(page, part, head_bytes, head, rows):
    """The same of some rows of a page."""
    base = page[head * head_bytes : (head + 1) * head_bytes]

    def matrix(start, width):
        row = np.arange(rows.start, rows.stop)[:, None]
        return base[start + row * width + np.arange(width)[None, :]]

    return (
        matrix(part.codes, part.row_bytes),
        matrix(part.scales, part.scale_cols),
        matrix(part.g, 4 * part.has_g),
    )

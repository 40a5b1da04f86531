# SPDX-License-Identifier: Apache-2.0
"""The copies of Q and K that a recipe makes, decoded to float64: smooth-K, rotation, formats, factors."""

from dataclasses import dataclass

import numpy as np

import oracle_formats as of

PREFIX_KEYS = 128


@dataclass
class Copy:
    values: np.ndarray  # float64 [heads, rows, dim], block scales multiplied in
    g: np.ndarray  # float64 [heads, rows]
    quantized: bool


def make_copy(x, fmt, kind, rotated, mean, rule, level, g):
    """One copy of [1, heads, rows, dim]; g: given units of the level, or None."""
    dim = x.shape[3]
    if fmt in of.PLAIN_FORMATS:
        values = of.round_plain(of.prepare(x, rotated=rotated), fmt).astype(np.float64)
        return Copy(values[0], np.ones(x.shape[1:3]), False)
    prepared = of.prepare(x, mean, rotated, kind=kind)
    if of.FORMATS[fmt].rule:
        level, g = "none", None
    q = of.quantize(prepared, fmt, rule=rule, level=level, g=g)
    values = of.dequantize(q, dim, with_g=False).astype(np.float64)
    return Copy(values[0], q.g[0, :, :, 0].astype(np.float64), True)


def pair_is_rotated(recipe, a, b):
    return recipe.rotate and any(f is not None and f not in of.PLAIN_FORMATS for f in (a, b))


def kind_of(x):
    return next(kind for kind, dtype in of.PLAIN_TYPES.items() if dtype == x.dtype)


def tensor_level_g(parts, fmt, kind, rotated, means):
    """g of level TENSOR covers all sequences of the call."""
    prepared = [of.prepare(x, mean, rotated, kind=kind) for x, mean in zip(parts, means)]
    amax = max((of.finite_max(p, (0, 1, 2, 3)).item() for p in prepared), default=0.0)
    return of.second_level(fmt, np.array([amax], np.float32))


def copies_of(parts, fmt, rotated, means, rule, level, given):
    """A copy of each sequence. given: a function from sequence number to g units, or None."""
    if fmt is None:
        return [None] * len(parts)
    kind = kind_of(parts[0])
    quantized = fmt not in of.PLAIN_FORMATS
    level = of.resolve_level(fmt, level) if quantized else None
    if quantized and level == "tensor" and given is None and not of.FORMATS[fmt].rule:
        shared = tensor_level_g(parts, fmt, kind, rotated, means)
        return [make_copy(x, fmt, kind, rotated, m, rule, level, shared) for x, m in zip(parts, means)]
    return [
        make_copy(x, fmt, kind, rotated, m, rule, level, given and given(b))
        for b, (x, m) in enumerate(zip(parts, means))
    ]


def smooth_means(recipe, k_parts, mean):
    """mu [1, heads_kv, dim] of each sequence, or None."""
    if recipe.smooth == "given":
        return [np.asarray(mean, np.float32)[b : b + 1] for b in range(len(k_parts))]
    if recipe.smooth in ("prefix", "full"):
        return [of.channel_mean(k, PREFIX_KEYS if recipe.smooth == "prefix" else -1) for k in k_parts]
    return [None] * len(k_parts)


@dataclass
class Operands:
    """Copies of one sequence, and mu [heads_kv, dim]."""

    low_q: Copy | None
    low_k: Copy | None
    high_q: Copy | None
    high_k: Copy | None
    mean: np.ndarray | None


def given_units(g, level, batch, parts):
    """g of sequence b in the shape of its units, from the array of the whole call."""
    if g is None:
        return None
    g = np.asarray(g, np.float32)
    if level == "tensor":
        return lambda b: g.reshape(1)
    if level == "token" and batch == 1 and len(parts) > 1:  # packed: [1, heads, all rows]
        starts = np.cumsum([0] + [p.shape[2] for p in parts])
        return lambda b: g[:, :, starts[b] : starts[b + 1]]
    return lambda b: g[b : b + 1]


def make_operands(q_parts, k_parts, recipe, mean=None, g_q=None, g_k=None, packed=False):
    means = smooth_means(recipe, k_parts, mean)
    none = [None] * len(q_parts)
    copies = {}
    for part in ("low", "high"):
        fmt_q, fmt_k = getattr(recipe, part + "_q"), getattr(recipe, part + "_k")
        rotated = pair_is_rotated(recipe, fmt_q, fmt_k)
        batch = 1 if packed else len(q_parts)
        for name, fmt, parts, mu, g in (("q", fmt_q, q_parts, none, g_q), ("k", fmt_k, k_parts, means, g_k)):
            rule, level = getattr(recipe, "rule_" + name), getattr(recipe, "level_" + name)
            scaled = fmt in ("nvfp4", "fp8", "int8")
            given = given_units(g, of.resolve_level(fmt, level), batch, parts) if scaled else None
            copies[part + "_" + name] = copies_of(parts, fmt, rotated, mu, rule, level, given)
    return [
        Operands(**{name: c[b] for name, c in copies.items()}, mean=None if m is None else m[0])
        for b, m in enumerate(means)
    ]

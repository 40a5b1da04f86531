# SPDX-License-Identifier: Apache-2.0
"""Attention in NumPy float64 and the error that a kernel may have, written from docs/numerics.md."""

from dataclasses import dataclass

import numpy as np

import oracle_formats as of
from oracle_map import Mask, high_pairs
from oracle_operands import Copy, Operands, kind_of, make_operands

# Unit roundoffs, relative to the exact value: half a step over the smallest significand.
UNIT = {"f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8, "f64": 2.0**-53}
SUBNORMAL = {"f32": 2.0**-150, "f16": 2.0**-25, "bf16": 2.0**-134}
# P rounded to the type in which it meets V: relative and absolute.
P_ERROR = {"f16": (2.0**-11, 2.0**-25), "bf16": (2.0**-8, 0.0)}
EXP_ERROR = 2.0**-21  # relative, of a polynomial exp2 in float32 and of the factor that rescales older tiles
TANH_ERROR = 2.0**-20  # relative to the softcap
# Roundings of a logit outside its dot product: scale, two factors, their product, log2(e), bias, the maximum.
LOGIT_ROUNDINGS = 8
EXP_UNDERFLOW = 2.0**-126  # a weight below the smallest normal number may become 0
PRODUCT_UNDERFLOW = 2.0**-149  # of a product of P and V, and of a rescaled sum, next to subnormal numbers


# ---------------------------------------------------------------- one sequence


@dataclass
class Logits:
    """t [q_len, kv_len], and the sum of absolute products that bounds its error."""

    value: np.ndarray
    magnitude: np.ndarray


def dot_logits(q, k, q_head, k_head, scale):
    g = q.g[q_head][:, None] * k.g[k_head][None, :]
    a, b = q.values[q_head], k.values[k_head].T
    return Logits(scale * g * (a @ b), abs(scale) * g * (np.abs(a) @ np.abs(b)))


def head_logits(ops, high, q, q_head, k_head, scale):
    """The logits of one head before softcap, each pair by its tile's copies."""
    parts = {}
    for name in ("low", "high"):
        copy_q, copy_k = getattr(ops, name + "_q"), getattr(ops, name + "_k")
        if copy_q is None:
            continue
        logits = dot_logits(copy_q, copy_k, q_head, k_head, scale)
        if ops.mean is not None and copy_k.quantized:
            mu, row = ops.mean[k_head].astype(np.float64), q[q_head].astype(np.float64)
            logits.value = logits.value + (scale * (row @ mu))[:, None]
            logits.magnitude = logits.magnitude + (abs(scale) * (np.abs(row) @ np.abs(mu)))[:, None]
        parts[name] = logits
    if len(parts) == 1:
        return next(iter(parts.values()))
    low, high_logits = parts["low"], parts["high"]
    return Logits(
        np.where(high, high_logits.value, low.value), np.where(high, high_logits.magnitude, low.magnitude)
    )


@dataclass
class Result:
    """o and lse in float64; o_tol and lse_tol bound the error of a kernel, output rounding left out."""

    o: np.ndarray
    lse: np.ndarray
    o_tol: np.ndarray
    lse_tol: np.ndarray


def softmax_rows(s, seen, sink):
    """Weights over visible finite logits, LSE, and which rows are NaN. A -inf logit counts as masked."""
    bad = (seen & (np.isnan(s) | np.isposinf(s))).any(axis=1)
    used = seen & np.isfinite(s)
    top = np.max(np.where(used, s, -np.inf), axis=1, initial=-np.inf)
    top = np.maximum(top, -np.inf if sink is None else sink)
    base = np.where(np.isfinite(top), top, 0)
    p = np.where(used, np.exp(np.where(used, s, 0) - base[:, None]), 0)
    total = p.sum(axis=1) + (0 if sink is None else np.exp(sink - base))
    lse = np.where(total > 0, base + np.log(np.where(total > 0, total, 1)), -np.inf)
    p = p / np.where(total > 0, total, 1)[:, None]
    return p, np.where(bad, np.nan, lse), used, bad


def weighted_values(p, used, v):
    """P V where a NaN or Inf of a used key shows in its channel and one of any other key does not."""
    finite = np.isfinite(v)
    if finite.all():
        return p @ v, p @ np.abs(v)
    o = p @ np.where(finite, v, 0)
    seen = used.astype(np.float64)
    nan, plus, minus = (seen @ kind(v) > 0 for kind in (np.isnan, np.isposinf, np.isneginf))
    o = np.where(minus, -np.inf, np.where(plus, np.inf, o))
    return np.where(nan | (plus & minus), np.nan, o), p @ np.where(finite, np.abs(v), 0)


def bounds(t, magnitude, used, softcap, o_scale, v, lse, dim, p_type):
    """Section "Attention tolerance": o and LSE bounds of each row.

    gamma: head_dim products summed in float32 in any order err by at most head_dim unit roundoffs of their
    absolute sum, the rounding of each product included. Sums over n keys likewise err by n.
    """
    unit = UNIT["f64"] if p_type is None else UNIT["f32"]
    exp_error = EXP_ERROR * unit / UNIT["f32"]
    n = used.sum(axis=1)
    worst = np.max(np.where(used, magnitude, 0), axis=1, initial=0)
    largest = np.max(np.where(used, np.abs(t), 0), axis=1, initial=0)
    lse_size = np.abs(np.where(np.isfinite(lse), lse, 0))
    delta = (dim + 1) * unit * worst + LOGIT_ROUNDINGS * unit * (largest + lse_size)
    delta += softcap * TANH_ERROR * unit / UNIT["f32"]
    sum_error = (n + of.TILE) * unit
    p_rel, p_abs = P_ERROR.get(p_type, (0.0, 0.0))
    v_max = np.abs(np.where(np.isfinite(v), v, 0)).max(axis=0, initial=0)
    relative = np.expm1(2 * delta) + p_rel + 2 * exp_error + 2 * sum_error
    o_tol = relative[:, None] * o_scale + (n * (p_abs + EXP_UNDERFLOW))[:, None] * v_max
    o_tol += ((n + of.TILE) * PRODUCT_UNDERFLOW)[:, None]
    lse_tol = delta + exp_error + sum_error + 2.0**-22 * lse_size
    return o_tol, lse_tol


def attend_sequence(q, k, v, ops, recipe, mask, scale, softcap, sinks, p_type):
    """q [heads, q_len, dim], k and v [heads_kv, kv_len, ...] of one sequence."""
    heads, q_len, dim = q.shape
    kv_len, group = k.shape[1], heads // max(k.shape[0], 1)
    seen = mask.visible(q_len, kv_len)
    high = None if recipe.exact else high_pairs(recipe, mask, q_len, kv_len)
    v = v if p_type is None else of.round_plain(v, p_type)
    v = v.astype(np.float64)
    result = Result(*(np.zeros(s) for s in ((heads, q_len, v.shape[2]), (heads, q_len)) * 2))
    for h in range(heads):
        logits = head_logits(ops, high, q, h, h // group, scale)
        s = logits.value if softcap == 0 else softcap * np.tanh(logits.value / softcap)
        sink = None if sinks is None or np.isneginf(sinks[h]) else float(sinks[h])
        p, lse, used, bad = softmax_rows(s, seen, sink)
        o, o_scale = weighted_values(p, used, v[h // group])
        o_tol, lse_tol = bounds(
            logits.value, logits.magnitude, used, softcap, o_scale, v[h // group], lse, dim, p_type
        )
        result.o[h], result.lse[h] = np.where(bad[:, None], np.nan, o), lse
        result.o_tol[h], result.lse_tol[h] = o_tol, lse_tol
    return result


# ---------------------------------------------------------------- a call


def split_rows(x, cu):
    return (
        [x[b : b + 1] for b in range(x.shape[0])]
        if cu is None
        else [x[:, :, a:b] for a, b in zip(cu, cu[1:])]
    )


def exact_operands(q, k):
    high_q, high_k = (Copy(x[0].astype(np.float64), np.ones(x.shape[1:3]), False) for x in (q, k))
    return Operands(None, None, high_q, high_k, None)


def pv_type(recipe, v):
    if recipe.exact:
        return None
    return recipe.pv or ("f16" if kind_of(v) == "f16" else "bf16")


def attend(
    q,
    k,
    v,
    recipe,
    mask=Mask(),
    *,
    scale=None,
    softcap=0.0,
    sinks=None,
    mean=None,
    g_q=None,
    g_k=None,
    cu_q=None,
    cu_k=None,
):
    """What mxa_attention is to give, in the shape of its outputs; packed rows past the end are 0, -inf."""
    scale = float(np.float32(1 / np.sqrt(q.shape[3]) if scale is None else scale))
    softcap = float(np.float32(softcap))
    sinks = None if sinks is None else np.asarray(sinks, np.float32).astype(np.float64)
    q_parts, k_parts, v_parts = split_rows(q, cu_q), split_rows(k, cu_k), split_rows(v, cu_k)
    with np.errstate(all="ignore"):
        if recipe.exact:
            operands = [exact_operands(a, b) for a, b in zip(q_parts, k_parts)]
        else:
            operands = make_operands(q_parts, k_parts, recipe, mean, g_q, g_k, packed=cu_q is not None)
        results = [
            attend_sequence(a[0], b[0], c[0], ops, recipe, mask, scale, softcap, sinks, pv_type(recipe, v))
            for a, b, c, ops in zip(q_parts, k_parts, v_parts, operands)
        ]
    if cu_q is None:
        fields = [[getattr(r, f) for r in results] for f in ("o", "lse", "o_tol", "lse_tol")]
        shape_o, shape_lse = q.shape[:3] + (v.shape[3],), q.shape[:3]
        return Result(*(np.array(f).reshape(s) for f, s in zip(fields, (shape_o, shape_lse) * 2)))
    total = Result(*(np.zeros(s) for s in (q.shape[:3] + (v.shape[3],), q.shape[:3]) * 2))
    total.lse[:] = -np.inf
    for r, a, b in zip(results, cu_q, cu_q[1:]):
        for f in ("o", "lse", "o_tol", "lse_tol"):
            getattr(total, f)[0, :, a:b] = getattr(r, f)
    return total


def merge(os, lses, sinks=None):
    """Float64 merge of partial results [batch, heads, len, dim]; sinks [heads]."""
    lses = np.array(lses, np.float64)
    extra = (
        np.full(lses.shape[1:], -np.inf)
        if sinks is None
        else np.broadcast_to(np.asarray(sinks, np.float64)[None, :, None], lses.shape[1:])
    )
    top = np.maximum(lses.max(axis=0), extra)
    base = np.where(np.isfinite(top), top, 0)
    weights = np.exp(lses - base)
    total = weights.sum(axis=0) + np.exp(extra - base)
    o = (weights[..., None] * np.array(os, np.float64)).sum(axis=0)
    with np.errstate(divide="ignore"):
        return o / np.where(total > 0, total, 1)[..., None], base + np.log(total)


# ---------------------------------------------------------------- comparing


def compare(o, lse, want, out_kind="f32"):
    """Inf and NaN patterns first, then every element within its bound. None, or what is wrong."""
    o, lse = o.astype(np.float64), lse.astype(np.float64)
    limit = of.FLT_MAX if out_kind == "f32" else of.LARGEST_16[out_kind]
    expected = np.where(np.isfinite(want.o), np.clip(want.o, -limit, limit), want.o)
    for name, got, wanted, tol in (
        ("lse", lse, want.lse, want.lse_tol),
        ("o", o, expected, want.o_tol + UNIT[out_kind] * (np.abs(want.o) + want.o_tol) + SUBNORMAL[out_kind]),
    ):
        same = (got == wanted) | (np.isnan(got) & np.isnan(wanted))
        finite = np.isfinite(got) & np.isfinite(wanted)
        with np.errstate(invalid="ignore"):
            good = same | (finite & (np.abs(got - wanted) <= tol))
        if not good.all():
            at = tuple(int(i) for i in np.argwhere(~good)[0])
            bound = f"expected {wanted[at]!r} within {tol[at]:.3g}; {(~good).sum()} differ"
            return f"{name}{list(at)}: {got[at]!r}, {bound}"
    return None

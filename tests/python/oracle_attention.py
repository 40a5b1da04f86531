# SPDX-License-Identifier: Apache-2.0
"""Attention in NumPy float64 and the tolerance of a kernel, written from docs/numerics.md (map, softmax, bounds)."""

from dataclasses import dataclass, replace

import numpy as np

import oracle_formats as of

TILE = 128
ALL = 2**63 - 1
PREFIX_KEYS = 128

# Unit roundoffs, relative to the exact value: half a step over the smallest significand.
UNIT = {"f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8, "f64": 2.0**-53}
SUBNORMAL = {"f32": 2.0**-150, "f16": 2.0**-25, "bf16": 2.0**-134}
# P rounded to the type in which it meets V: relative and absolute.
P_ERROR = {"f16": (2.0**-11, 2.0**-25), "bf16": (2.0**-8, 0.0)}
EXP_ERROR = 2.0**-21  # relative, of a polynomial exp2 in float32 and of the factor that rescales older tiles
TANH_ERROR = 2.0**-20  # relative to the softcap
# Roundings of one logit outside its dot product: scale, two factors, their product, log2(e), bias, max subtracted.
LOGIT_ROUNDINGS = 8
EXP_UNDERFLOW = 2.0**-126  # a weight below the smallest normal number may become 0
PRODUCT_UNDERFLOW = 2.0**-149  # of a product of P and V, and of a rescaled sum, next to subnormal numbers


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


# ---------------------------------------------------------------- operands


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
    pick = lambda field: np.where(high, getattr(parts["high"], field), getattr(parts["low"], field))
    return Logits(pick("value"), pick("magnitude"))


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
    seen_in = lambda flags: used.astype(float) @ flags.astype(float) > 0
    nan, plus, minus = seen_in(np.isnan(v)), seen_in(np.isposinf(v)), seen_in(np.isneginf(v))
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
    sum_error = (n + TILE) * unit
    p_rel, p_abs = P_ERROR.get(p_type, (0.0, 0.0))
    v_max = np.abs(np.where(np.isfinite(v), v, 0)).max(axis=0, initial=0)
    relative = np.expm1(2 * delta) + p_rel + 2 * exp_error + 2 * sum_error
    o_tol = relative[:, None] * o_scale + (n * (p_abs + EXP_UNDERFLOW))[:, None] * v_max
    o_tol += ((n + TILE) * PRODUCT_UNDERFLOW)[:, None]
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
    return [x[b : b + 1] for b in range(x.shape[0])] if cu is None else [x[:, :, a:b] for a, b in zip(cu, cu[1:])]


def exact_operands(q, k):
    plain = lambda x: Copy(x[0].astype(np.float64), np.ones(x.shape[1:3]), False)
    return Operands(None, None, plain(q), plain(k), None)


def pv_type(recipe, v):
    if recipe.exact:
        return None
    return recipe.pv or ("f16" if kind_of(v) == "f16" else "bf16")


def attend(q, k, v, recipe, mask=Mask(), *, scale=None, softcap=0.0, sinks=None, mean=None, g_q=None, g_k=None,
           cu_q=None, cu_k=None):
    """The expected result of mxa_attention in the shape of its outputs; packed rows past the end are 0, -inf."""
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
    extra = np.full(lses.shape[1:], -np.inf) if sinks is None else np.broadcast_to(
        np.asarray(sinks, np.float64)[None, :, None], lses.shape[1:])
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
            return f"{name}{list(at)}: {got[at]!r}, expected {wanted[at]!r} within {tol[at]:.3g}; {(~good).sum()} differ"
    return None


def with_options(recipe, **changes):
    return replace(recipe, **changes)

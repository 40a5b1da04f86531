# SPDX-License-Identifier: Apache-2.0
"""Formats and quantisers in NumPy, written from docs/numerics.md: ml_dtypes does every element cast.

Codes are one per byte here; pack_codes() makes the stored rows. A matrix is [rows][cols], blocks along cols.
"""

from dataclasses import dataclass, field

import ml_dtypes
import numpy as np

F32 = np.float32
FLT_MAX = np.finfo(F32).max
TILE = 128
G_MIN, G_MAX = F32(2.0**-117), F32(2.0**117)
TINY_NORMAL = 2.0**-126
E8M0_NAN, UE4M3_NAN, FP8_NAN, INT8_NAN = 0xFF, 0x7F, 0x7F, 0x80
SCALE_UP, FLUSH_TINY, POW2_G, FOUR_OVER_SIX = 1, 2, 4, 8
LARGEST_16 = {"f16": 65504.0, "bf16": float(ml_dtypes.finfo(ml_dtypes.bfloat16).max)}
PLAIN_TYPES = {"f32": np.dtype(F32), "f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}


@dataclass(frozen=True)
class Element:
    bits: int
    mantissa: int  # M
    emax: int  # exponent of the largest value
    largest: float
    dtype: object  # None: the integers of MXINT8, value n / 64


ELEMENTS = {
    "e4m3": Element(8, 3, 8, 448.0, ml_dtypes.float8_e4m3fn),
    "e5m2": Element(8, 2, 15, 57344.0, ml_dtypes.float8_e5m2),
    "e3m2": Element(6, 2, 4, 28.0, ml_dtypes.float6_e3m2fn),
    "e2m3": Element(6, 3, 2, 7.5, ml_dtypes.float6_e2m3fn),
    "e2m1": Element(4, 1, 2, 6.0, ml_dtypes.float4_e2m1fn),
    "int8": Element(8, 6, 0, 127 / 64, None),
}


@dataclass(frozen=True)
class Format:
    element: str
    block: int  # 0: no block scale
    largest: float  # element times the largest block scale, which a computed g brings the region's maximum to
    rule: str = ""
    level: str = "none"


FORMATS = {
    "mxfp8": Format("e4m3", 32, 448.0, "rceil"),
    "mxfp8-e5m2": Format("e5m2", 32, 57344.0, "rceil"),
    "mxfp6": Format("e3m2", 32, 28.0, "rceil"),
    "mxfp6-e2m3": Format("e2m3", 32, 7.5, "rceil"),
    "mxfp4": Format("e2m1", 32, 6.0, "even"),
    "mxint8": Format("int8", 32, 127 / 64, "rceil"),
    "nvfp4": Format("e2m1", 16, 2688.0, level="token"),
    "fp8": Format("e4m3", 0, 448.0, level="token"),
    "int8": Format("int8", 0, 127.0, level="token"),
}
MX_FORMATS = [name for name, fmt in FORMATS.items() if fmt.rule]
PLAIN_FORMATS = list(PLAIN_TYPES)


# ---------------------------------------------------------------- elements and scales


def encode(element, x):
    """Nearest code, ties to even, saturating; float32 subnormals become signed zeros. x is free of NaN."""
    e = ELEMENTS[element]
    x = np.asarray(x, F32)
    if e.dtype is None:
        return np.clip(np.rint(x.astype(np.float64) * 64), -127, 127).astype(np.int8).view(np.uint8)
    x = np.where(np.abs(x) < TINY_NORMAL, np.copysign(F32(0), x), x)
    return np.clip(x, -e.largest, e.largest).astype(F32).astype(e.dtype).view(np.uint8)


def decode(element, codes):
    codes = np.asarray(codes, np.uint8)
    e = ELEMENTS[element]
    if e.dtype is None:
        return codes.view(np.int8).astype(F32) / F32(64)
    return codes.view(e.dtype).astype(F32)


def decode_e8m0(scales):
    value = np.ldexp(1.0, np.asarray(scales, np.int32) - 127)
    return np.where(np.asarray(scales) == E8M0_NAN, np.nan, value)


def decode_ue4m3(scales):
    return decode("e4m3", np.asarray(scales, np.uint8) & 0x7F)


def mx_scale(element, rule, amax):
    """The E8M0 byte of a block, from exact float64 comparisons."""
    e = ELEMENTS[element]
    a = np.asarray(amax, F32).astype(np.float64)
    significand, exponent = np.frexp(a)
    floor_exponent = exponent - 1
    if rule == "floor":
        k = floor_exponent - e.emax
    elif rule == "rceil":
        k = floor_exponent - e.emax - 1
        for _ in range(2):
            k = k + (a > np.ldexp(e.largest, k))
    elif rule == "even":
        rounded = np.rint(np.ldexp(significand, e.mantissa + 1))
        k = floor_exponent + (rounded >= 2 ** (e.mantissa + 1)) - e.emax
    else:
        raise ValueError(rule)
    k = np.where(a < TINY_NORMAL, -127, np.clip(k, -127, 127))
    return (k + 127).astype(np.uint8)


def second_level(fmt, amax, pow2=False):
    """g of a region whose largest finite magnitude is amax."""
    amax = np.asarray(amax, F32)
    g = np.clip(amax / F32(FORMATS[fmt].largest), G_MIN, G_MAX)
    if pow2:
        significand, exponent = np.frexp(g)
        g = np.ldexp(F32(1), exponent - (significand == 0.5)).astype(F32)
    return np.where(amax == 0, F32(1), g).astype(F32)


def saturate(x):
    """Overflow to the largest finite float32; NaN stays."""
    return np.clip(x, -FLT_MAX, FLT_MAX).astype(F32)


def round_plain(x, kind):
    """Round once to f32, f16 or bf16; finite overflow saturates, NaN and Inf stay."""
    x = np.asarray(x)
    if kind == "f32":
        return np.where(np.isfinite(x), np.clip(x, -FLT_MAX, FLT_MAX), x).astype(F32)
    limit = LARGEST_16[kind]
    return np.where(np.isfinite(x), np.clip(x, -limit, limit), x).astype(F32).astype(PLAIN_TYPES[kind])


# ---------------------------------------------------------------- the steps before


def widen(x):
    return np.asarray(x).astype(F32)


def sanitize(x, kind):
    limit = FLT_MAX if kind == "f32" else LARGEST_16[kind]
    return np.nan_to_num(x, nan=0.0, posinf=limit, neginf=-limit).astype(F32)


def channel_mean(x, n_tokens=-1):
    """[..., seq, dim] to [..., dim]: float64 sum of finite values in token order, one division, float32."""
    x = widen(x)
    x = x if n_tokens < 0 else x[..., :n_tokens, :]
    finite = np.isfinite(x)
    if x.shape[-2] == 0:
        return np.zeros(x.shape[:-2] + x.shape[-1:], F32)
    total = np.add.accumulate(np.where(finite, x, 0).astype(np.float64), axis=-2)[..., -1, :]
    count = finite.sum(axis=-2)
    return np.where(count > 0, total / np.maximum(count, 1), 0).astype(F32)


def rotation_size(dim):
    return dim & -dim


def rotate(x):
    """Orthonormal Hadamard along the last axis in groups of the largest power of two that divides it."""
    x = widen(x)
    size = rotation_size(x.shape[-1])
    if size <= 1:
        return x
    groups = x.reshape(x.shape[:-1] + (x.shape[-1] // size, size))
    step = 1
    while step < size:
        pairs = groups.reshape(groups.shape[:-1] + (size // (2 * step), 2, step))
        low, high = pairs[..., 0, :], pairs[..., 1, :]
        groups = np.stack([low + high, low - high], axis=-2).reshape(groups.shape)
        step *= 2
    return (groups * F32(1 / np.sqrt(size))).reshape(x.shape)


def prepare(x, mean=None, rotated=False, policy="propagate", kind="f32"):
    """float32 values that a copy is quantised from: sanitised, minus the mean, rotated."""
    x = widen(x)
    if policy == "sanitize":
        x = sanitize(x, kind)
    if mean is not None:
        x = x - np.asarray(mean, F32)[..., None, :]
    return rotate(x) if rotated else x


# ---------------------------------------------------------------- quantising prepared matrices


@dataclass
class Quantized:
    """codes [..., rows, cols] one per byte, scales [..., rows, blocks], g [..., rows, 1] float32."""

    fmt: str
    codes: np.ndarray
    scales: np.ndarray | None
    g: np.ndarray
    bad: int = 0
    units: np.ndarray | None = field(default=None)  # g as stored, one per unit of the level


def finite_max(x, axis):
    return np.max(np.where(np.isfinite(x), np.abs(x), 0), axis=axis, initial=0, keepdims=True).astype(F32)


def level_units(x, level):
    """Largest finite magnitude of each unit of [batch, heads, seq, dim]; None at level none."""
    batch, heads, seq, _ = x.shape
    if level == "none":
        return None
    if level == "tensor":
        return finite_max(x, (0, 1, 2, 3)).reshape(1)
    if level == "head":
        return finite_max(x, (2, 3)).reshape(batch, heads)
    rows = finite_max(x, 3).reshape(batch, heads, seq)
    if level == "token":
        return rows
    tiles = -(-seq // TILE)
    padded = np.zeros((batch, heads, tiles * TILE), F32)
    padded[:, :, :seq] = rows
    return padded.reshape(batch, heads, tiles, TILE).max(axis=3)


def spread_units(units, level, shape):
    """g of each row, [batch, heads, seq, 1], from the stored units."""
    batch, heads, seq, _ = shape
    if level == "none":
        return np.ones((batch, heads, seq, 1), F32)
    if level == "tensor":
        rows = np.broadcast_to(units.reshape(1, 1, 1), (batch, heads, seq))
    elif level == "head":
        rows = np.broadcast_to(units.reshape(batch, heads, 1), (batch, heads, seq))
    elif level == "token_block":
        rows = np.repeat(units.reshape(batch, heads, -(-seq // TILE)), TILE, axis=2)[:, :, :seq]
    else:
        rows = units.reshape(batch, heads, seq)
    return rows[..., None].astype(F32)


def to_blocks(x, block, fill):
    """[..., cols] to [..., blocks, block], a short last block filled."""
    cols = x.shape[-1]
    short = -cols % block
    padded = np.concatenate([x, np.full(x.shape[:-1] + (short,), fill, x.dtype)], axis=-1)
    return padded.reshape(x.shape[:-1] + (padded.shape[-1] // block, block))


def from_blocks(x):
    return x.reshape(x.shape[:-2] + (x.shape[-2] * x.shape[-1],))


def quantize_mx(fmt, rule, x, g):
    element = FORMATS[fmt].element
    bad = ~np.isfinite(to_blocks(x, 32, F32(0))).all(axis=-1)
    scaled = x if g is None else saturate(np.where(np.isfinite(x), x / g, 0))
    blocks = to_blocks(scaled, 32, F32(0))
    blocks = np.where(bad[..., None], F32(0), blocks)
    amax = np.abs(blocks).max(axis=-1)
    scales = np.where(amax == 0, 0, mx_scale(element, rule, amax)).astype(np.uint8)
    exact = np.ldexp(blocks.astype(np.float64), 127 - scales.astype(np.int32)[..., None])
    codes = encode(element, exact.astype(F32))
    scales = np.where(bad, E8M0_NAN, scales).astype(np.uint8)
    codes = np.where(bad[..., None], 0, codes).astype(np.uint8)
    return from_blocks(codes), scales, int(bad.sum())


def nvfp4_candidate(blocks, amax, g, peak, options):
    """Scale, codes, squared error and unrounded scale for a block maximum that is to land on `peak`."""
    u = amax / (F32(peak) * g)
    scales = encode("e4m3", u)
    if options & SCALE_UP:
        below = decode("e4m3", scales) < u
        scales = np.where(below & (scales < 0x7E), scales + 1, scales).astype(np.uint8)
    if not options & FLUSH_TINY:
        scales = np.where((scales == 0) & (amax > 0), 1, scales).astype(np.uint8)
    divisor = (decode("e4m3", scales) * g).astype(F32)[..., None]
    zero = np.copysign(F32(0), blocks)
    ratio = np.where(scales[..., None] == 0, zero, blocks / np.where(divisor == 0, F32(1), divisor))
    codes = encode("e2m1", ratio)
    error = blocks.astype(np.float64) - saturate(divisor * decode("e2m1", codes)).astype(np.float64)
    return scales, codes, np.add.accumulate(error * error, axis=-1)[..., -1], u


def quantize_nvfp4(x, g, options):
    """x [..., cols] and g broadcasting against [..., blocks]."""
    blocks = to_blocks(x, 16, F32(0))
    bad = ~np.isfinite(blocks).all(axis=-1)
    blocks = np.where(bad[..., None], F32(0), blocks)
    amax = np.abs(blocks).max(axis=-1)
    scales, codes, error, _ = nvfp4_candidate(blocks, amax, g, 6, options)
    if options & FOUR_OVER_SIX:
        scales4, codes4, error4, u4 = nvfp4_candidate(blocks, amax, g, 4, options)
        four = (u4 <= 448) & (error4 < error)
        scales = np.where(four, scales4, scales)
        codes = np.where(four[..., None], codes4, codes)
    zero = amax == 0
    signs = np.where(np.signbit(blocks), 8, 0)
    codes = np.where(zero[..., None], signs, codes)
    scales = np.where(zero, 0, scales)
    scales = np.where(bad, UE4M3_NAN, scales).astype(np.uint8)
    codes = np.where(bad[..., None], 0, codes).astype(np.uint8)
    return from_blocks(codes), scales, int(bad.sum())


def quantize_scalar(fmt, x, g):
    """FP8 and INT8: one factor, no block scale."""
    bad = ~np.isfinite(x)
    ratio = np.where(bad, F32(0), x) / g
    if fmt == "fp8":
        codes, nan = encode("e4m3", ratio), FP8_NAN
    else:
        codes, nan = np.clip(np.rint(ratio), -127, 127).astype(np.int8).view(np.uint8), INT8_NAN
    return np.where(bad, nan, codes).astype(np.uint8), int(bad.sum())


def resolve_level(fmt, level):
    return FORMATS[fmt].level if level in (None, "default") else level


def quantize(x, fmt, *, rule=None, level=None, axis="head", options=0, g=None):
    """Quantise prepared float32 values [batch, heads, seq, dim]; g: given units of the level."""
    level = resolve_level(fmt, level)
    x = widen(x)
    units = level_units(x, level)
    if units is not None:
        units = second_level(fmt, units, bool(options & POW2_G)) if g is None else np.asarray(g, F32)
    rows_g = spread_units(units, level, x.shape)
    if axis == "token":
        # Columns are tokens, so g varies along columns; it is constant inside a block.
        x = np.swapaxes(x, 2, 3)
        rows_g = np.broadcast_to(np.swapaxes(rows_g, 2, 3), x.shape)
    with np.errstate(all="ignore"):
        if fmt in ("fp8", "int8"):
            codes, bad = quantize_scalar(fmt, x, rows_g)
            scales = None
        elif fmt == "nvfp4":
            block_g = rows_g if axis == "head" else rows_g[..., ::16]
            codes, scales, bad = quantize_nvfp4(x, block_g, options)
        else:
            codes, scales, bad = quantize_mx(
                fmt, rule or FORMATS[fmt].rule, x, None if level == "none" else rows_g
            )
    return Quantized(fmt, codes, scales, rows_g, bad, units)


def dequantize(q, cols=None, with_g=True):
    """float32 [..., rows, cols], before any turning back; with_g False: element times block scale."""
    fmt = FORMATS[q.fmt]
    element = decode(fmt.element, q.codes)
    g = q.g if with_g else np.ones_like(q.g)
    with np.errstate(all="ignore"):
        if q.fmt in ("fp8", "int8"):
            if q.fmt == "int8":
                element = np.where(q.codes == INT8_NAN, F32(np.nan), element * F32(64))
            y = saturate(g * element)
        elif q.fmt == "nvfp4":
            scale = decode_ue4m3(np.repeat(q.scales, 16, axis=-1))
            wide_g = g if g.shape[-1] == 1 else to_blocks(g, 16, F32(1)).reshape(scale.shape)
            y = saturate((scale * wide_g).astype(F32) * element)
        else:
            scale = decode_e8m0(np.repeat(q.scales, 32, axis=-1))
            wide_g = g if g.shape[-1] == 1 else to_blocks(g, 32, F32(1)).reshape(scale.shape)
            y = saturate(saturate(element.astype(np.float64) * scale) * wide_g)
            y = np.where(np.isinf(element) & ~np.isnan(scale), element, y)
    return y if cols is None else y[..., :cols]

# SPDX-License-Identifier: Apache-2.0
"""What the tests draw: values made to break quantisers, and views of memory with unusual strides."""

import numpy as np
from hypothesis import strategies as st

import oracle_formats as of

TAME = ("normal", "outlier_channel", "ties", "zeros", "tiny", "biased", "binades")
WILD = TAME + ("subnormal", "saturating", "huge")
STRIDES = ("contiguous", "bshd", "packed_qkv", "padded_rows", "reversed", "broadcast")


def values(rng, shape, kind):
    """float32 values of one kind."""
    x = rng.standard_normal(shape)
    if kind == "outlier_channel":
        x[..., rng.integers(shape[-1])] *= 100
    elif kind == "ties":  # multiples of a quarter, scaled per row: halfway between codes of every format
        x = np.rint(x * 8) / 4 * np.exp2(rng.integers(-4, 5, shape[:-1] + (1,)))
    elif kind == "zeros":
        x = np.where(rng.random(shape) < 0.9, np.copysign(0, x), x)
    elif kind == "tiny":
        x *= 2.0**-100
    elif kind == "biased":  # a few channels with a constant of 600, as key projections with a bias give
        x[..., rng.integers(shape[-1], size=4)] += 600
    elif kind == "binades":
        x *= np.exp2(rng.integers(-20, 8, shape))
    elif kind == "subnormal":
        x = np.ldexp(np.rint(x * 1000), -149)
    elif kind == "saturating":  # next to the largest codes and to the thresholds of the scale rules
        top = rng.choice([6.0, 7.5, 28.0, 448.0, 57344.0, 1.75, 1.875, 1.9375, 127 / 64], shape)
        x = np.nextafter(
            top.astype(np.float32), np.float32(np.inf) * np.sign(x).astype(np.float32)
        ) * np.sign(x)
        x = np.where(rng.random(shape) < 0.5, x, x / 16)
    elif kind == "huge":
        x = np.clip(x * 1e38, -of.FLT_MAX, of.FLT_MAX)
    return x.astype(np.float32)


def make(seed, shape, kind="normal", dtype="f32", bad=0):
    """An array of a type; `bad` elements are replaced by NaN and infinities."""
    rng = np.random.default_rng(seed)
    x = of.round_plain(values(rng, shape, kind), dtype)
    if bad and x.size:
        x.reshape(-1)[rng.integers(x.size, size=bad)] = rng.choice([np.nan, np.inf, -np.inf], bad).astype(
            x.dtype
        )
    return x


def strided(x, kind):
    """The values of x [batch, heads, seq, dim] in a view whose gaps are NaN; "broadcast" repeats head 0."""
    batch, heads, seq, dim = x.shape
    if kind == "broadcast":
        return np.broadcast_to(x[:, :1], x.shape)
    if kind == "contiguous" or x.size == 0:
        return x

    def gap(*shape):
        return np.full(int(np.prod(shape)) * x.itemsize, 0xFF, np.uint8).view(x.dtype).reshape(shape)

    view = {
        "bshd": lambda: gap(batch, seq, heads, dim).transpose(0, 2, 1, 3),
        "packed_qkv": lambda: gap(batch, seq, 3, heads, dim)[:, :, 1].transpose(0, 2, 1, 3),
        "padded_rows": lambda: gap(batch, heads, seq + 3, dim + 5)[:, :, 2:-1, 1 : dim + 1],
        "reversed": lambda: gap(batch, heads, seq, dim)[:, ::-1, ::-1],
    }[kind]()
    view[...] = x
    return view


seeds = st.integers(0, 2**32 - 1)
dtypes = st.sampled_from(of.PLAIN_FORMATS)
dims = st.one_of(st.sampled_from([1, 16, 32, 64, 80, 96, 128, 192, 256]), st.integers(1, 256))
rates = st.sampled_from([0, 0, 0, 1, 5])

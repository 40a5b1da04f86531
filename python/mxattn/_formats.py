# SPDX-License-Identifier: Apache-2.0
"""Quantised tensors: MXFP8, MXFP6, MXFP4, MXINT8, NVFP4, FP8, INT8."""

from __future__ import annotations

import ctypes as C
from dataclasses import dataclass, field
from typing import Any

from ._arrays import CODES, LAYOUTS, Array, arrays_of, choice, same_kind, tensors_of
from ._library import check, lib
from ._plans import c_int
from ._structures import (
    AXES,
    DEVICE_CPU,
    LEVELS,
    NONFINITE,
    NVFP4_OPTIONS,
    RULES,
    SCALE_LAYOUTS,
    PackedBuffers,
    PackedSize,
    QuantOpts,
)


@dataclass(frozen=True)
class Quantized:
    """A quantised tensor: value = element * block scale * g (docs/formats.md says how the bytes lie).

    codes   [batch * heads, rows, row bytes] of uint8; rows are tokens, or channels with axis="token"
    scales  [batch * heads, scale bytes] of uint8, None where the format has none
    g       second-level factors, float32; None at level "none"
    n_bad   blocks (FP8, INT8: elements) that held NaN or Inf; None on a GPU, where asking would wait
    shape   [batch, heads, seq, dim] of the input
    options what quantize() was told
    """

    format: str
    shape: tuple[int, ...]
    codes: Array
    scales: Array | None
    g: Array | None
    n_bad: int | None = 0
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in (self.codes, self.scales, self.g) if part is not None)


def formats() -> tuple[str, ...]:
    """Names of the formats that quantize() takes."""
    names: list[str] = []
    while info := lib.mxa_format_get(len(names) + 1):
        names.append(info.contents.name.decode())
    return tuple(names)


def format_number(name: str) -> int:
    info = lib.mxa_format_find(name.encode()) if isinstance(name, str) else None
    if not info:
        raise ValueError(f"format: {name!r} is not one of {', '.join(formats())}")
    return info.contents.format


def read_options(
    arrays: Any,
    shape: tuple[int, ...],
    *,
    rule: str | None = None,
    level: str | None = None,
    axis: str = "head",
    nonfinite: str = "propagate",
    scale_layout: str = "row",
    nvfp4: tuple[str, ...] = (),
    fill_tail: bool = False,
    rotate: bool = False,
    mean: Array | None = None,
    threads: int = 0,
) -> QuantOpts:
    opts = QuantOpts()
    lib.mxa_quant_default(C.byref(opts))
    opts.rule, opts.level = choice("rule", rule, RULES), choice("level", level, LEVELS)
    opts.axis, opts.nonfinite = choice("axis", axis, AXES), choice("nonfinite", nonfinite, NONFINITE)
    opts.layout = choice("scale_layout", scale_layout, SCALE_LAYOUTS)
    for option in (nvfp4,) if isinstance(nvfp4, str) else nvfp4:
        opts.nvfp4 |= choice("nvfp4", option, NVFP4_OPTIONS)
    opts.fill_tail, opts.rotate, opts.threads = bool(fill_tail), bool(rotate), c_int("threads", threads, 32)
    if mean is not None:
        opts.kept_mean, opts.mean = arrays.small("mean", mean, (shape[0], shape[1], shape[3]))
    opts.device, opts.stream = arrays.device, arrays.stream()
    return opts


def packed_size(format_: int, opts: QuantOpts, shape: tuple[int, ...]) -> PackedSize:
    size = PackedSize()
    check(lib.mxa_packed_sizes(format_, C.byref(opts), (C.c_int64 * 4)(*shape), C.byref(size)))
    return size


def byte_shapes(size: PackedSize) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    codes = (size.matrices, size.rows, size.row_bytes)
    return codes, (size.matrices, size.matrix_scale_bytes) if size.scale_bytes else None


def quantize(
    x: Array,
    format: str,
    *,
    rule: str | None = None,
    level: str | None = None,
    axis: str = "head",
    nonfinite: str = "propagate",
    scale_layout: str = "row",
    nvfp4: tuple[str, ...] = (),
    fill_tail: bool = False,
    rotate: bool = False,
    mean: Array | None = None,
    g: Array | None = None,
    layout: str = "bhsd",
    threads: int = 0,
) -> Quantized:
    """Quantise x [batch, heads, seq, dim] (layout "bshd": [batch, seq, heads, dim]).

    x is float32, float16 or bfloat16, a NumPy array or a torch tensor; the result's parts are of its kind.

    format        one of formats(): "mxfp4", "nvfp4", ...
    rule          scale rule of MX formats: "floor", "rceil", "even"; None: the format's own
    level         what shares a second-level factor: "none", "tensor", "head", "token_block", "token";
                  None: the format's own
    axis          what a block lies along: "head" (dim) or "token"
    nonfinite     NaN and Inf: "propagate" (their block becomes NaN), "error" (ValueError), "sanitize"
                  (0 and the largest number)
    scale_layout  "row", "tile_128x4", "amd"
    nvfp4         any of "scale_up", "flush_tiny", "pow2_g", "four_over_six"
    fill_tail     allow a short last block, filled with zeros
    rotate        multiply by a Hadamard matrix along dim first
    mean          [batch, heads, dim] to subtract first
    g             second-level factors of the level; None: computed

    Rounds to nearest, ties to even; what is too large becomes the largest code. The same bytes on every
    machine (docs/numerics.md; the formats are those of OCP Microscaling 1.0 and of NVIDIA).
    ValueError a bad argument, named with its value and the rule; RuntimeError memory.
    """
    arrays, x = arrays_of("x", x)
    view = arrays.view("x", x, choice("layout", layout, LAYOUTS))
    shape, number = view[2], format_number(format)
    options: dict[str, Any] = {
        "rule": rule,
        "level": level,
        "axis": axis,
        "nonfinite": nonfinite,
        "scale_layout": scale_layout,
        "nvfp4": nvfp4,
        "fill_tail": fill_tail,
        "rotate": rotate,
        "mean": mean,
        "threads": threads,
    }
    opts = read_options(arrays, shape, **options)
    size = packed_size(number, opts, shape)
    codes_shape, scales_shape = byte_shapes(size)
    if g is not None:
        opts.kept_g, opts.g = arrays.small("g", g, (size.g_count,))
    codes = arrays.bytes(codes_shape)
    scales = None if scales_shape is None else arrays.bytes(scales_shape)
    factors = arrays.floats((size.g_count,)) if size.g_count else None
    buffers = PackedBuffers(
        *(None if part is None else arrays.address(part) for part in (codes, scales, factors))
    )
    n_bad = C.c_int64() if arrays.device == DEVICE_CPU else None
    count = None if n_bad is None else C.byref(n_bad)
    check(lib.mxa_quantize(tensors_of(view), number, C.byref(opts), C.byref(buffers), count))
    return Quantized(format, shape, codes, scales, factors, None if n_bad is None else n_bad.value, options)


def part_address(arrays: Any, name: str, x: Array | None, n_bytes: int) -> int | None:
    """Where a part's bytes are, which must be as many as the format has, one after the other."""
    if n_bytes == 0:
        return None
    if x is None:
        raise ValueError(f"{name}: is None, {n_bytes} bytes belong there")
    x = same_kind(arrays, name, x, "codes")
    if x.nbytes != n_bytes:
        raise ValueError(f"{name}: has {x.nbytes} bytes, not {n_bytes}")
    if not arrays.contiguous(x):
        raise ValueError(f"{name}: is not contiguous")
    return arrays.address(x)


def dequantize(
    x: Quantized, *, dtype: str = "float32", out: Array | None = None, layout: str = "bhsd"
) -> Array:
    """Back to numbers: an array of the kind of x.codes, [batch, heads, seq, dim] (or layout "bshd").

    dtype is "float32", or "float16" or "bfloat16", rounded once; out, if given, has the say. A rotation is
    turned back and a mean added. NaN codes and scales give NaN. Errors as quantize().
    """
    axes = choice("layout", layout, LAYOUTS)
    arrays, _ = arrays_of("codes", x.codes)
    number, opts = format_number(x.format), read_options(arrays, x.shape, **x.options)
    size = packed_size(number, opts, x.shape)
    buffers = PackedBuffers(
        part_address(arrays, "codes", x.codes, size.code_bytes),
        part_address(arrays, "scales", x.scales, size.scale_bytes),
        part_address(arrays, "g", x.g, size.g_count * C.sizeof(C.c_float)),
    )
    if out is None:
        code = choice("dtype", dtype, CODES)
        out = arrays.new(tuple(x.shape[axis] for axis in axes if axis is not None), arrays.dtype(code))
    else:
        out = same_kind(arrays, "out", out, "codes")
        arrays.writable("out", out)
    view = arrays.view("out", out, axes)
    if view[2] != tuple(x.shape):
        raise ValueError(f"out: shape {view[2]} is not {tuple(x.shape)} in the order b, h, s, d")
    check(lib.mxa_dequantize(C.byref(buffers), number, C.byref(opts), tensors_of(view)))
    return out

# SPDX-License-Identifier: Apache-2.0
"""Attention, and what can be asked about it."""

from __future__ import annotations

import ctypes as C
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ._arrays import (
    LAYOUTS,
    PACKED_LAYOUTS,
    Array,
    Geometry,
    arrange,
    arrays_of,
    choice,
    same_kind,
    tensors_of,
)
from ._library import check, lib, text_of
from ._plans import PLANS_KEPT, Call, Offsets, Plan, c_int, make_problem, parse_recipe, read_options
from ._structures import DEVICE_CPU, DTYPE_F32, Tensor, TileRange

TENSOR_BYTES = C.sizeof(Tensor)
HIGHEST_OFFSET = 2**31 - 1


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides in elements."""
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


# A call made ready, kept by what it depends on. Errors are not kept.
@lru_cache(maxsize=PLANS_KEPT, typed=True)
def prepare(
    arrays: Any,
    q: Geometry,
    k: Geometry,
    v: Geometry,
    out: Geometry | None,
    offsets: Offsets | None,
    layout: str,
    *options: Any,
) -> Call:
    """out None: a new array like q with the head_dim of v. options: those of read_options."""
    axes = choice("layout", layout, LAYOUTS if offsets is None else PACKED_LAYOUTS)
    views = [arrays.read(*named, axes) for named in (("q", q), ("k", k), ("v", v))]
    (q_dtype, q_shape, _), (k_dtype, k_shape, _), (v_dtype, v_shape, _) = views
    out_shape = (*q[1][:-1], v_shape[3])
    if out is None:
        steps = row_major(out_shape)
        views.append((q_dtype, arrange("out", out_shape, axes, 1), arrange("out", steps, axes, 0)))
    else:
        views.append(arrays.read("out", out, axes))
    batch, heads, q_len, head_dim = q_shape
    rows = q_shape[:3]
    if offsets is not None:
        batch, rows = len(offsets[0]) - 1, rows[1:]
    sizes = batch, heads, k_shape[1], q_len, k_shape[2], head_dim, v_shape[3]
    dtypes = q_dtype, k_dtype, v_dtype, views[3][0]
    plan = Plan(sizes, dtypes, read_options(*options), offsets, arrays.device)
    return Call(plan, views, (out_shape, rows, (heads,), (k_shape[0], k_shape[1], head_dim)))


def compute(
    q: Array,
    k: Array,
    v: Array,
    out: Array | None,
    offsets: Offsets | None,
    sinks: Array | None,
    mean: Array | None,
    return_lse: bool,
    layout: str,
    *options: Any,
) -> Any:
    arrays, q = arrays_of("q", q)
    k, v = same_kind(arrays, "k", k), same_kind(arrays, "v", v)
    geometry = arrays.geometry
    key = arrays, geometry("q", q), geometry("k", k), geometry("v", v)
    if out is not None:
        out = same_kind(arrays, "out", out)
        arrays.writable("out", out)
    call = find_call(*key, None if out is None else geometry("out", out), offsets, layout, *options)
    if out is None:
        out = arrays.new(call.out_shape, q.dtype)
    lse = arrays.floats(call.lse_shape) if return_lse else None
    address = arrays.address
    call.run(
        arrays,
        (address(q), address(k), address(v), address(out)),
        0 if lse is None else address(lse),
        sinks,
        mean,
    )
    return out if lse is None else (out, lse)


def find_call(*key: Any) -> Call:
    try:
        return prepare(*key)
    except TypeError:  # an option that is no key, as a list is none
        return prepare.__wrapped__(*key)


def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool = False,
    softmax_scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    sinks: Array | None = None,
    mean: Array | None = None,
    q_offset: int | None = None,
    recipe: str = "dma8",
    return_lse: bool = False,
    out: Array | None = None,
    layout: str = "bhsd",
    threads: int = 0,
) -> Any:
    """softmax(mask(softcap(softmax_scale * q k^T))) v, by a recipe.

    q [batch, heads, q_len, head_dim]
    k [batch, heads_kv, kv_len, head_dim]
    v [batch, heads_kv, kv_len, head_dim_v]

    NumPy arrays or torch tensors in host memory, all of one kind, float32, float16 or bfloat16 each, of any
    strides with unit stride in the last axis. They are not copied. layout "bshd": [batch, len, heads, dim].
    Query head h reads key head h // (heads // heads_kv). head_dim is at most 256.

    causal         query i stands at position i + kv_len - q_len (bottom right) and sees no later key
    softmax_scale  default 1 / sqrt(head_dim)
    window_size    keys seen to the (left, right) of a query's position; -1: all
    softcap        c > 0: c * tanh(score / c)
    sinks          [heads]: logits that take part in each row's softmax and have no value
    mean           [batch, heads_kv, head_dim]: subtracted from k before it is quantised, with smooth-k=given
    q_offset       position of query 0 instead of kv_len - q_len
    recipe         "dma8", "dma4,diag=256", ...: recipes() lists the names, docs/algorithm.md the keys
    out            where the result goes, in the layout; its type need not be q's
    threads        0: as OpenMP decides

    Returns the output in q's type and layout, and with return_lse also float32 [batch, heads, q_len], the
    natural logarithm of each row's sum of exponentials. A query that sees no key gives 0 and -inf.
    sinks and mean may be of any of the three types; small as they are, they are converted to float32.

    ValueError a bad argument, named with its value and the rule; RuntimeError memory or devices.
    The method is that of arXiv 2604.03950.
    """
    options = causal, softmax_scale, window_size, softcap, q_offset, recipe, threads
    return compute(q, k, v, out, None, sinks, mean, return_lse, layout, *options)


def read_offsets(name: str, cu_seqlens: Any) -> tuple[int, ...]:
    """Offsets of packed sequences as a key of plans; the library checks that they ascend."""
    values = cu_seqlens.tolist() if hasattr(cu_seqlens, "tolist") else cu_seqlens
    if not isinstance(values, (list, tuple)) or not all(type(n) is int for n in values):
        raise ValueError(f"{name}: is not a row of integers")
    if len(values) < 2:
        raise ValueError(f"{name}: has {len(values)} offsets, but is batch + 1 long")
    for n in values:
        if not 0 <= n <= HIGHEST_OFFSET:
            raise ValueError(f"{name}: {n} is outside 0..{HIGHEST_OFFSET}")
    return tuple(values)


def varlen_attention(
    q: Array,
    k: Array,
    v: Array,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    *,
    causal: bool = False,
    softmax_scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    sinks: Array | None = None,
    q_offset: int | None = None,
    recipe: str = "dma8",
    return_lse: bool = False,
    out: Array | None = None,
    layout: str = "shd",
    threads: int = 0,
) -> Any:
    """Attention of sequences of different lengths, packed one after the other.

    q [all q_len, heads, head_dim]
    k [all kv_len, heads_kv, head_dim]
    v [all kv_len, heads_kv, head_dim_v]

    layout "hsd": [heads, all len, dim]. cu_seqlens_q and cu_seqlens_k are batch + 1 ascending offsets from 0,
    a list or an array of integers in host memory: sequence b has the rows cu_seqlens[b] up to
    cu_seqlens[b + 1]. Rows past the last offset are not read, and 0 in the output. Positions, windows and
    tiles count inside each sequence.

    Everything else as in attention(); the log-sum-exp is float32 [heads, all q_len].
    """
    offsets = read_offsets("cu_seqlens_q", cu_seqlens_q), read_offsets("cu_seqlens_k", cu_seqlens_k)
    if len(offsets[0]) != len(offsets[1]):
        raise ValueError(
            f"cu_seqlens_k: has {len(offsets[1])} offsets, but cu_seqlens_q has {len(offsets[0])}"
        )
    options = causal, softmax_scale, window_size, softcap, q_offset, recipe, threads
    return compute(q, k, v, out, offsets, sinks, None, return_lse, layout, *options)


def explain(
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool = False,
    softmax_scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    q_offset: int | None = None,
    recipe: str = "dma8",
    layout: str = "bhsd",
    threads: int = 0,
) -> str:
    """Which kernel runs each part of attention() with these arguments, and why the faster ones do not."""
    arrays, q = arrays_of("q", q)
    k, v = same_kind(arrays, "k", k), same_kind(arrays, "v", v)
    key = arrays, arrays.geometry("q", q), arrays.geometry("k", k), arrays.geometry("v", v), None, None
    options = causal, softmax_scale, window_size, softcap, q_offset, recipe, threads
    return find_call(*key, layout, *options).plan.describe()


def recipes() -> dict[str, str]:
    """The named recipes, each written out in full."""
    texts: dict[str, str] = {}
    while (name := lib.mxa_recipe_name(len(texts))) is not None:
        texts[name.decode()] = text_of(lib.mxa_recipe_text, C.byref(parse_recipe(name.decode())))
    return texts


class TileMap(NamedTuple):
    """precision [q_tiles, k_tiles] of uint8: 0 skipped, 1 low, 2 high. Row 0 is the query tile q_first."""

    q_first: int
    precision: np.ndarray[Any, Any]


def tile_map(
    q_len: int,
    kv_len: int,
    *,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    q_offset: int | None = None,
    recipe: str = "dma8",
) -> TileMap:
    """Which tiles of 128 queries x 128 keys are high, low or skipped. Tiles are counted from position 0."""
    sizes = 1, 1, 1, c_int("q_len", q_len), c_int("kv_len", kv_len), 1, 1
    options = read_options(causal, None, window_size, 0.0, q_offset, recipe, 0)
    problem, parsed = make_problem(sizes, (DTYPE_F32,) * 4, options, None), parse_recipe(recipe)
    tiles, precision = TileRange(), C.c_int()
    first = C.c_int64(0)
    check(lib.mxa_tile_map_range(C.byref(problem), first, C.byref(tiles)))
    result = np.empty((tiles.q_count, tiles.k_count), np.uint8)
    for row in range(tiles.q_count):
        for column in range(tiles.k_count):
            where = C.c_int64(tiles.q_first + row), C.c_int64(column)
            check(lib.mxa_tile_map_at(C.byref(problem), C.byref(parsed), first, *where, C.byref(precision)))
            result[row, column] = precision.value
    return TileMap(tiles.q_first, result)


def merge(
    outs: list[Array],
    lses: list[Array],
    *,
    sinks: Array | None = None,
    out: Array | None = None,
    layout: str = "bhsd",
) -> tuple[Array, Array]:
    """Merge attention over disjoint keys, each part weighted by exp(LSE).

    outs    parts [batch, heads, len, dim] (or layout "bshd"), of the types that attention() takes
    lses    their log-sum-exps, contiguous float32 [batch, heads, len]
    sinks   [heads]: sink logits that no part has counted
    out     where the result goes; default: an array like the first part

    Returns (output, log-sum-exp). A part (0, -inf) changes nothing.
    """
    if len(outs) == 0 or len(outs) != len(lses):
        raise ValueError(f"lses: {len(lses)} log-sum-exps for {len(outs)} parts; at least one, and as many")
    axes = choice("layout", layout, LAYOUTS)
    arrays, first = arrays_of("outs[0]", outs[0])
    parts = [same_kind(arrays, f"outs[{i}]", part, "outs[0]") for i, part in enumerate(outs)]
    views = [arrays.view(f"outs[{i}]", part, axes) for i, part in enumerate(parts)]
    rows = views[0][2][:3]
    n = len(parts)
    addresses = (C.c_void_p * n)(
        *(lse_address(arrays, f"lses[{i}]", lse, rows) for i, lse in enumerate(lses))
    )
    if arrays.device != DEVICE_CPU:
        raise ValueError(f"outs[0]: is a {arrays.kind}; parts are merged on the CPU")
    _given, address = (None, None) if sinks is None else arrays.small("sinks", sinks, rows[1:2])
    if out is None:
        out = arrays.new(tuple(first.shape), first.dtype)
    else:
        out = same_kind(arrays, "out", out, "outs[0]")
        arrays.writable("out", out)
    tensors, lse = tensors_of(*views, arrays.view("out", out, axes)), arrays.floats(rows)
    sinks_pointer = C.c_void_p(address)
    lse_pointer = C.c_void_p(arrays.address(lse))
    check(
        lib.mxa_merge(n, tensors, addresses, sinks_pointer, C.byref(tensors, n * TENSOR_BYTES), lse_pointer)
    )
    return out, lse


def lse_address(arrays: Any, name: str, lse: Array, rows: tuple[int, ...]) -> int:
    lse = same_kind(arrays, name, lse, "outs[0]")
    arrays.geometry(name, lse)
    if arrays.code(name, lse.dtype) != DTYPE_F32 or tuple(lse.shape) != rows or not arrays.contiguous(lse):
        raise ValueError(f"{name}: is not contiguous float32 of shape {rows}")
    return arrays.address(lse)

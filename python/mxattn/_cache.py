# SPDX-License-Identifier: Apache-2.0
"""The quantised KV cache of one layer."""

from __future__ import annotations

import ctypes as C
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from ._arrays import LAYOUTS, Array, NumpyArrays, arrays_of, choice, same_kind, tensors_of
from ._library import check, lib
from ._plans import c_float, c_int, parse_recipe
from ._structures import DEVICE_CPU, DEVICE_CUDA_0, PAGE_KINDS, CacheAttendArgs, CacheOpts, Tensor

ARGS_BYTES, TENSOR_BYTES = C.sizeof(CacheAttendArgs), C.sizeof(Tensor)
SIZES = "batch", "heads_kv", "head_dim", "head_dim_v", "page_tokens", "rewind"
LENGTH_BYTES = 8  # of a safetensors file: how long its header is
LARGEST_HEADER = 100 << 20  # bytes, as safetensors itself has it


def c_int64(name: str, value: Any) -> C.c_int64:
    return C.c_int64(c_int(name, value))


def file_fields(path: str) -> dict[str, Any]:
    """What a saved cache was made with; the library checks it, and what else the file holds."""
    try:
        with Path(path).open("rb") as file:
            header = int.from_bytes(file.read(LENGTH_BYTES), "little")
            metadata = json.loads(file.read(min(header, LARGEST_HEADER)))["__metadata__"]
        return {"recipe": metadata["recipe"]} | {name: int(metadata[name]) for name in SIZES}
    except OSError as error:
        raise RuntimeError(f"path: {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise RuntimeError(f"path: {path} is no saved cache: its header has no sizes") from error


def parse_device(device: Any) -> int:
    """MXA_DEVICE_... of "cpu", "cuda:1" or a torch.device; "cuda" is the first."""
    number, text = C.c_int(), str(device)
    check(lib.mxa_device_parse(f"{text}:0".encode() if text == "cuda" else text.encode(), C.byref(number)))
    return max(number.value, DEVICE_CPU)


def read_row(name: str, row: Any, n: int) -> np.ndarray[Any, Any]:
    """n integers as int64."""
    values = row.tolist() if hasattr(row, "tolist") else row
    if not isinstance(values, (list, tuple)) or not all(type(x) is int for x in values):
        raise ValueError(f"{name}: is not a row of integers")
    if len(values) != n:
        raise ValueError(f"{name}: has {len(values)} numbers, not {n}")
    return np.array([c_int(name, x) for x in values], np.int64)


class Cache:
    """Keys and values of one layer, quantised as they come; new queries attend to them as they are stored.

    batch, heads_kv, head_dim, head_dim_v   sizes, fixed for the cache's life; head_dim_v: head_dim
    recipe        "dma4", "dma4,v=int8", ...: v=... is the format of V, and 16 bits where there is none
    page_tokens   tokens of a page, a multiple of 16 from 16 to 256
    rewind        tokens that truncate() can always take back
    mean          [heads_kv, head_dim]: subtracted from keys, with smooth-k=given
    pages         (low, high) pages to allocate now; 0: as many as tokens need, as they come
    threads       0: as OpenMP decides
    device        "cpu", or "cuda:0", ...: where the pages are, and the tensors of calls; these queue their work
                  on torch's current stream

    One thread at a time may use a cache. ValueError a bad argument; RuntimeError memory and files. docs/cache.md
    says what a token costs and what stays exact.
    """

    def __init__(
        self,
        batch: int,
        heads_kv: int,
        head_dim: int,
        head_dim_v: int | None = None,
        *,
        recipe: str = "dma4",
        page_tokens: int = 64,
        rewind: int = 16,
        mean: Array | None = None,
        pages: tuple[int, int] = (0, 0),
        threads: int = 0,
        device: Any = "cpu",
    ) -> None:
        self.handle = C.c_void_p()
        if not isinstance(recipe, str):
            raise ValueError(f"recipe: {recipe!r} is not a text such as 'dma4' or 'dma4,v=int8'")
        parsed, opts = parse_recipe(recipe), CacheOpts()
        sizes = c_int("batch", batch), c_int("heads_kv", heads_kv), c_int("head_dim", head_dim)
        lib.mxa_cache_default(C.byref(opts), *map(C.c_int64, sizes))
        if head_dim_v is not None:
            opts.head_dim_v = c_int("head_dim_v", head_dim_v)
        opts.recipe, opts.page_tokens = C.addressof(parsed), c_int("page_tokens", page_tokens)
        opts.rewind, opts.threads = c_int("rewind", rewind), c_int("threads", threads, 32)
        opts.pages[:] = read_row("pages", pages, PAGE_KINDS)
        self.device = opts.device = parse_device(device)
        if mean is not None:
            mean, opts.mean = NumpyArrays.small("mean", mean, sizes[1:])
        check(lib.mxa_cache_create(C.byref(opts), C.byref(self.handle)))
        self.batch, self.heads_kv, self.head_dim = sizes
        self.head_dim_v, self.recipe = opts.head_dim_v, recipe
        self.page_tokens, self.rewind = opts.page_tokens, opts.rewind

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, device: Any = "cpu") -> Cache:
        """The cache that save() wrote, with its recipe. RuntimeError says what in the file is wrong."""
        path, cache, opts = os.fspath(path), cls.__new__(cls), CacheOpts()
        cache.handle, cache.device = C.c_void_p(), parse_device(device)
        vars(cache).update(file_fields(path))
        parsed = parse_recipe(cache.recipe)
        sizes = cache.batch, cache.heads_kv, cache.head_dim
        lib.mxa_cache_default(C.byref(opts), *map(C.c_int64, sizes))
        opts.recipe, opts.device, opts.head_dim_v = C.addressof(parsed), cache.device, cache.head_dim_v
        opts.page_tokens, opts.rewind = cache.page_tokens, cache.rewind
        given = None if cache.device == DEVICE_CPU else C.byref(opts)
        check(lib.mxa_cache_load(os.fsencode(path), given, C.byref(cache.handle)))
        return cache

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one safetensors file, complete or not at all."""
        check(lib.mxa_cache_save(self.handle, os.fsencode(path)))

    def __del__(self, free: Any = lib.mxa_cache_free) -> None:  # globals may be gone when Python ends
        if getattr(self, "handle", None):
            free(self.handle)

    def __reduce__(self) -> Any:
        raise TypeError("mxattn.Cache: cannot be copied or pickled; use fork(), or save() and load()")

    def __repr__(self) -> str:
        return (
            f"mxattn.Cache(batch={self.batch}, heads_kv={self.heads_kv}, head_dim={self.head_dim}, "
            f"lengths={self.lengths.tolist()}, used_bytes={self.used_bytes})"
        )

    @property
    def lengths(self) -> np.ndarray[Any, Any]:
        """Tokens of each sequence, int64 [batch]."""
        lengths = np.empty(self.batch, np.int64)
        check(lib.mxa_cache_lengths(self.handle, C.c_void_p(lengths.ctypes.data)))
        return lengths

    @property
    def used_bytes(self) -> int:
        """Bytes of the pages that hold tokens; pages that sequences share count once."""
        return lib.mxa_cache_used_bytes(self.handle)

    def queue(self, name: str, arrays: Any) -> None:
        """Calls with these arrays come next, on their stream."""
        if arrays.device != self.device:
            place = "host memory" if self.device == DEVICE_CPU else f"cuda:{self.device - DEVICE_CUDA_0}"
            raise ValueError(f"{name}: is a {arrays.kind}, but the cache is in {place}")
        if self.device != DEVICE_CPU:
            check(lib.mxa_cache_set_stream(self.handle, C.c_void_p(arrays.stream())))

    def append(self, k: Array, v: Array, *, counts: Any = None, layout: str = "bhsd") -> None:
        """Append tokens: k [batch, heads_kv, n, head_dim], v [batch, heads_kv, n, head_dim_v].

        counts [batch]: sequence b takes the first counts[b] of the n rows; None: all. layout "bshd":
        [batch, n, heads_kv, dim]. The cache is as it was after an error.
        """
        axes = choice("layout", layout, LAYOUTS)
        arrays, k = arrays_of("k", k)
        self.queue("k", arrays)
        v = same_kind(arrays, "v", v, "k")
        tensors = tensors_of(arrays.view("k", k, axes), arrays.view("v", v, axes))
        rows = None if counts is None else read_row("counts", counts, self.batch)
        check(
            lib.mxa_cache_append(
                self.handle,
                C.byref(tensors),
                C.byref(tensors, TENSOR_BYTES),
                None if rows is None else C.c_void_p(rows.ctypes.data),
            )
        )

    def attend(
        self,
        q: Array,
        *,
        counts: Any = None,
        softmax_scale: float | None = None,
        window_left: int = -1,
        softcap: float = 0.0,
        sinks: Array | None = None,
        return_lse: bool = False,
        out: Array | None = None,
        layout: str = "bhsd",
    ) -> Any:
        """Attention of the newest tokens' queries q [batch, heads, n, head_dim] to the cache.

        Query i of sequence b stands at token lengths[b] - counts[b] + i and sees it and those before it, at most
        window_left of them unless that is -1. counts [batch], None: n; rows past counts[b] are 0. Append the
        queries' own tokens first. The other arguments and the result as in attention().
        """
        axes = choice("layout", layout, LAYOUTS)
        arrays, q = arrays_of("q", q)
        self.queue("q", arrays)
        view = arrays.view("q", q, axes)
        if out is None:
            out = arrays.new((*q.shape[:-1], self.head_dim_v), q.dtype)
        else:
            out = same_kind(arrays, "out", out)
            arrays.writable("out", out)
        tensors = tensors_of(view, arrays.view("out", out, axes))
        _, heads, n, head_dim = view[2]
        scale = head_dim**-0.5 if softmax_scale is None else c_float("softmax_scale", softmax_scale)
        rows = None if counts is None else read_row("counts", counts, self.batch)
        _given, sinks_at = (None, None) if sinks is None else arrays.small("sinks", sinks, (heads,))
        lse = arrays.floats(view[2][:3]) if return_lse else None
        args = CacheAttendArgs(ARGS_BYTES, C.addressof(tensors), C.addressof(tensors) + TENSOR_BYTES)
        args.counts = None if rows is None else rows.ctypes.data
        args.lse = None if lse is None else arrays.address(lse)
        args.sinks = sinks_at
        args.softmax_scale, args.softcap = scale, c_float("softcap", softcap)
        args.window_left = c_int("window_left", window_left)
        self.run(arrays, args, heads, n)
        return out if lse is None else (out, lse)

    def run(self, arrays: Any, args: CacheAttendArgs, heads: int, n: int) -> None:
        longest = int(self.lengths.max(initial=0))
        sizes = C.c_int64(heads), C.c_int64(n), C.c_int64(longest)
        args.work_bytes = lib.mxa_cache_work_bytes(self.handle, *sizes)
        _kept, args.work = arrays.work(args.work_bytes)
        try:
            check(lib.mxa_cache_attend(self.handle, C.byref(args)))
        finally:
            arrays.done()

    def truncate(self, b: int, length: int) -> None:
        """Cut sequence b to length tokens: at most rewind before the last append, or all past the sink window."""
        check(lib.mxa_cache_truncate(self.handle, c_int64("b", b), c_int64("length", length)))

    def fork(self, source: int, target: int) -> None:
        """Sequence target becomes a copy of sequence source; they share pages until they differ."""
        check(lib.mxa_cache_fork(self.handle, c_int64("source", source), c_int64("target", target)))

    def reorder(self, sources: Any) -> None:
        """Sequence b becomes what sequence sources[b] was, for all b at once."""
        rows = read_row("sources", sources, self.batch)
        check(lib.mxa_cache_reorder(self.handle, C.c_void_p(rows.ctypes.data)))

    def remove(self, b: int, first: int, n: int) -> None:
        """Give back n pages of sequence b from page first on, which no later query may see."""
        numbers = c_int64("b", b), c_int64("first", first), c_int64("n", n)
        check(lib.mxa_cache_remove(self.handle, *numbers))

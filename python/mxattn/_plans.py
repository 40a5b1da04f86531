# SPDX-License-Identifier: Apache-2.0
"""Plans of the library, kept by their problem, and the workspace of each thread."""

from __future__ import annotations

import ctypes as C
import threading
from functools import lru_cache
from operator import index
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ._arrays import WORK_ALIGNMENT
from ._library import check, lib, text_of
from ._structures import DEVICE_CPU, OFFSET_AUTO, Problem, Recipe

PLANS_KEPT = 128  # a plan takes a few kilobytes
WORK_KEPT = 64 << 20  # bytes that a thread keeps between calls; larger workspaces are given back

Sizes: TypeAlias = "tuple[int, ...]"  # batch, heads, heads_kv, q_len, kv_len, head_dim, head_dim_v
Offsets: TypeAlias = "tuple[tuple[int, ...], tuple[int, ...]]"  # cu_seqlens of q and k


class Options(NamedTuple):
    """What a call may choose, as plain numbers and texts: part of a plan's key."""

    causal: bool = False
    softmax_scale: float | None = None
    window_left: int = -1
    window_right: int = -1
    softcap: float = 0.0
    q_offset: int = OFFSET_AUTO
    recipe: str = "dma8"
    threads: int = 0


def c_float(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name}: {value!r} is not a number") from None


def c_int(name: str, value: Any, bits: int = 64) -> int:
    try:
        number = index(value)
    except TypeError:
        raise ValueError(f"{name}: {value!r} is not an integer") from None
    if not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise ValueError(f"{name}: {number} does not fit {bits} bits")
    return number


def read_options(
    causal: Any, softmax_scale: Any, window_size: Any, softcap: Any, q_offset: Any, recipe: Any, threads: Any
) -> Options:
    try:
        left, right = window_size
    except (TypeError, ValueError):
        raise ValueError(f"window_size: {window_size!r} is not a pair (left, right)") from None
    if not isinstance(recipe, str):
        raise ValueError(f"recipe: {recipe!r} is not a text such as 'dma8' or 'dma4,diag=256'")
    return Options(
        bool(causal),
        None if softmax_scale is None else c_float("softmax_scale", softmax_scale),
        c_int("window_size", left),
        c_int("window_size", right),
        c_float("softcap", softcap),
        OFFSET_AUTO if q_offset is None else c_int("q_offset", q_offset),
        recipe,
        c_int("threads", threads, 32),
    )


def parse_recipe(text: str) -> Recipe:
    recipe = Recipe()
    check(lib.mxa_recipe_parse(text.encode(), C.byref(recipe)))
    return recipe


def make_problem(sizes: Sizes, dtypes: tuple[int, ...], options: Options, offsets: Offsets | None) -> Problem:
    problem = Problem()
    lib.mxa_problem_default(C.byref(problem), *(C.c_int64(n) for n in sizes[:-1]))
    problem.head_dim_v = sizes[-1]
    problem.q_dtype, problem.k_dtype, problem.v_dtype, problem.out_dtype = dtypes
    if options.softmax_scale is not None:
        problem.softmax_scale = options.softmax_scale
    problem.softcap, problem.causal = options.softcap, options.causal
    problem.window_left, problem.window_right = options.window_left, options.window_right
    problem.q_offset = options.q_offset
    if offsets is not None:
        problem.arrays = [(C.c_int32 * len(cu))(*cu) for cu in offsets]
        problem.cu_seqlens_q, problem.cu_seqlens_k = map(C.addressof, problem.arrays)
    problem.device, problem.threads = DEVICE_CPU, options.threads
    return problem


class Plan:
    """A checked problem with its kernels chosen. Threads may share it."""

    def __init__(
        self, sizes: Sizes, dtypes: tuple[int, ...], options: Options, offsets: Offsets | None
    ) -> None:
        self.handle = C.c_void_p()
        problem, recipe = make_problem(sizes, dtypes, options, offsets), parse_recipe(options.recipe)
        check(lib.mxa_plan_create(C.byref(problem), C.byref(recipe), C.byref(self.handle)))
        self.work_bytes: int = lib.mxa_plan_work_bytes(self.handle)

    def __del__(self, free: Any = lib.mxa_plan_free) -> None:  # globals may be gone when Python ends
        if self.handle:
            free(self.handle)

    def describe(self) -> str:
        return text_of(lib.mxa_plan_describe, self.handle)


# Errors are not kept. Equal numbers are equal keys, and give the same problem.
plan_of = lru_cache(maxsize=PLANS_KEPT)(Plan)


class Workspace(threading.local):
    """Aligned memory for one call at a time of one thread."""

    def __init__(self) -> None:
        self.bytes = self.address = 0
        self.memory: np.ndarray[Any, Any] | None = None

    def reserve(self, n_bytes: int) -> int:
        if n_bytes > self.bytes:
            self.memory = None
            memory = np.empty(n_bytes + WORK_ALIGNMENT, np.uint8)
            self.memory, start = memory, memory.ctypes.data
            self.address, self.bytes = start + -start % WORK_ALIGNMENT, n_bytes
        return self.address

    def release(self) -> None:
        if self.bytes > WORK_KEPT:
            self.bytes = self.address = 0
            self.memory = None


workspace = Workspace()

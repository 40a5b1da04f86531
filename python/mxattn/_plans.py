# SPDX-License-Identifier: Apache-2.0
"""Problems and plans of the library, and the arguments of its calls."""

from __future__ import annotations

import ctypes as C
from collections.abc import Sequence
from operator import index
from typing import Any, NamedTuple, TypeAlias

from ._arrays import TENSOR
from ._library import check, lib, text_of
from ._structures import DEVICE_CPU, OFFSET_AUTO, AttentionArgs, Problem, Recipe

PLANS_KEPT = 128  # a plan takes a few kilobytes
TENSORS = 4  # of a call: q, k, v, out
WORD = 8  # bytes
ARGS_AT = TENSORS * TENSOR.size
WORDS = (ARGS_AT + C.sizeof(AttentionArgs)) // WORD
Q_WORD, K_WORD, V_WORD, OUT_WORD = (i * TENSOR.size // WORD for i in range(TENSORS))
LSE_WORD, SINKS_WORD, MEAN_WORD, WORK_WORD, STREAM_WORD = (
    (ARGS_AT + getattr(AttentionArgs, name).offset) // WORD
    for name in ("lse", "sinks", "mean", "work", "stream")
)

Sizes: TypeAlias = "tuple[int, ...]"  # batch, heads, heads_kv, q_len, kv_len, head_dim, head_dim_v
View: TypeAlias = "tuple[int, tuple[int, ...], tuple[int, ...]]"  # DTYPE_..., shape, strides
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


def make_problem(
    sizes: Sizes, dtypes: tuple[int, ...], options: Options, offsets: Offsets | None, device: int = DEVICE_CPU
) -> Problem:
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
    problem.device, problem.threads = device, options.threads
    return problem


class Plan:
    """A checked problem with its kernels chosen. Threads may share it."""

    def __init__(
        self,
        sizes: Sizes,
        dtypes: tuple[int, ...],
        options: Options,
        offsets: Offsets | None,
        device: int,
    ) -> None:
        self.handle = C.c_void_p()
        problem, recipe = make_problem(sizes, dtypes, options, offsets, device), parse_recipe(options.recipe)
        check(lib.mxa_plan_create(C.byref(problem), C.byref(recipe), C.byref(self.handle)))
        self.work_bytes: int = lib.mxa_plan_work_bytes(self.handle)

    def __del__(self, free: Any = lib.mxa_plan_free) -> None:  # globals may be gone when Python ends
        if self.handle:
            free(self.handle)

    def describe(self) -> str:
        return text_of(lib.mxa_plan_describe, self.handle)


class Arguments:
    """A call's tensors and mxa_attention_args in one piece of memory, in which a call sets the numbers that are
    its own: a fraction of the time that making them anew takes."""

    def __init__(self, plan: Plan, tensors: bytes) -> None:
        self.words = (C.c_uint64 * WORDS)()
        first = C.addressof(self.words)
        C.memmove(first, tensors, len(tensors))
        args = AttentionArgs.from_buffer(self.words, ARGS_AT)
        args.size, args.work_bytes = C.sizeof(AttentionArgs), plan.work_bytes
        args.q, args.k, args.v, args.out = (first + i * TENSOR.size for i in range(TENSORS))
        self.pointer = C.c_void_p(first + ARGS_AT)


class Call:
    """A plan, and the tensors of one geometry for it. Threads may share it: arguments are taken and put back."""

    def __init__(self, plan: Plan, views: Sequence[View], shapes: tuple[tuple[int, ...], ...]) -> None:
        self.plan = plan
        self.tensors = b"".join(TENSOR.pack(0, code, *shape, *strides) for code, shape, strides in views)
        self.out_shape, self.lse_shape, self.sinks_shape, self.mean_shape = shapes
        self.free: list[Arguments] = []

    def run(self, arrays: Any, addresses: tuple[int, ...], lse: int, sinks: Any, mean: Any) -> None:
        """q, k, v and out at these addresses; lse: an address or 0."""
        plan = self.plan
        try:
            arguments = self.free.pop()
        except IndexError:
            arguments = Arguments(plan, self.tensors)
        words = arguments.words
        words[Q_WORD], words[K_WORD], words[V_WORD], words[OUT_WORD] = addresses
        words[LSE_WORD], words[STREAM_WORD] = lse, arrays.stream()
        words[SINKS_WORD] = words[MEAN_WORD] = 0
        if sinks is not None:
            sinks, words[SINKS_WORD] = arrays.small("sinks", sinks, self.sinks_shape)
        if mean is not None:
            mean, words[MEAN_WORD] = arrays.small("mean", mean, self.mean_shape)
        _kept, words[WORK_WORD] = arrays.work(plan.work_bytes)
        try:
            check(lib.mxa_attention(plan.handle, arguments.pointer))
        finally:
            arrays.done()
        self.free.append(arguments)

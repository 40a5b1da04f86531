# SPDX-License-Identifier: Apache-2.0
"""mxattn's KV cache: a decode step from tokens that it has quantised beforehand."""

import ctypes
import sys
from pathlib import Path

import ml_dtypes
import numpy as np

from attention_problem import from_bf16, to_bf16

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/python"))
import mxa  # noqa: E402
import mxa_cache  # noqa: E402

RECIPES = "dma4,v=int8", "dma4,v=mxfp4,rotate-v", "dma8,v=int8", "dma8", "bf16"
FILL_TOKENS = 512  # a cache holds the high rows of an append all together


def version():
    return "mxattn " + mxa.lib().mxa_version().decode()


class Call:
    def __init__(self, problem, tensors, threads, recipe):
        p, (q, k, v) = problem, tensors
        self.cache = mxa_cache.Cache(1, p.heads_kv, p.dim, recipe, threads=threads)
        for first in range(0, p.kv_len, FILL_TOKENS):
            last = min(first + FILL_TOKENS, p.kv_len - 1)
            self.cache.append(k[:, :, first:last], v[:, :, first:last])
        self.cache.append(k[:, :, -1:], v[:, :, -1:])
        self.out = np.empty(q.shape, ml_dtypes.bfloat16)
        sizes = (ctypes.c_int64(n) for n in (p.heads, 1, p.kv_len))
        n_bytes = mxa_cache.lib().mxa_cache_work_bytes(self.cache.handle, *sizes)
        self.work = np.empty(n_bytes + 64, np.uint8)
        self.held = q, [mxa.tensor(x) for x in (q, self.out)]
        views = (ctypes.pointer(x) for x in self.held[1])
        self.args = mxa_cache.AttendArgs(ctypes.sizeof(mxa_cache.AttendArgs), *views)
        self.args.softmax_scale, self.args.window_left = p.dim**-0.5, mxa_cache.UNLIMITED
        self.args.work = self.work.ctypes.data + -self.work.ctypes.data % 64
        self.args.work_bytes = n_bytes
        self.bytes = self.cache.used_bytes() / p.kv_len / p.heads_kv

    def __call__(self):
        mxa.check(mxa_cache.lib().mxa_cache_attend(self.cache.handle, ctypes.byref(self.args)))

    def result(self):
        return from_bf16(self.out[0].view(np.uint16))

    def note(self):
        return f"{self.bytes:.0f}"


def variants(problem, inputs, threads):
    tensors = [to_bf16(x).view(ml_dtypes.bfloat16)[None] for x in inputs]
    return {recipe: lambda recipe=recipe: Call(problem, tensors, threads, recipe) for recipe in RECIPES}

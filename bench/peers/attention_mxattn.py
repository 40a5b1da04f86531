# SPDX-License-Identifier: Apache-2.0
"""mxattn through its C interface: bf16 in and out, quantisation of Q and K in every call."""

import ctypes
import sys
from pathlib import Path

import ml_dtypes
import numpy as np

from attention_problem import from_bf16, to_bf16

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/python"))
import mxa  # noqa: E402

RECIPES = "dma8", "dma4", "bf16"


def version():
    return "mxattn " + mxa.lib().mxa_version().decode()


class Call:
    def __init__(self, problem, tensors, threads, recipe):
        options = {"causal": problem.causal, "threads": threads}
        bf16 = mxa.DTYPES[np.dtype(ml_dtypes.bfloat16)]
        types = dict.fromkeys(("q_dtype", "k_dtype", "v_dtype", "out_dtype"), bf16)
        shapes = [x.shape for x in tensors]
        self.plan = mxa.Plan(
            mxa.make_problem(shapes[0], shapes[1], problem.dim, **types, **options), mxa.parse_recipe(recipe)
        )
        self.out = np.empty(shapes[0], ml_dtypes.bfloat16)
        work = mxa.lib().mxa_plan_work_bytes(self.plan.handle)
        self.work = np.empty(work + 64, np.uint8)
        self.arrays = *tensors, self.out
        self.views = [mxa.tensor(x) for x in self.arrays]
        self.args = mxa.AttentionArgs(
            ctypes.sizeof(mxa.AttentionArgs), *(ctypes.pointer(view) for view in self.views)
        )
        self.args.work = self.work.ctypes.data + -self.work.ctypes.data % 64
        self.args.work_bytes = work

    def __call__(self):
        mxa.check(mxa.lib().mxa_attention(self.plan.handle, ctypes.byref(self.args)))

    def result(self):
        return from_bf16(self.out[0].view(np.uint16))

    def note(self):
        """The entry that runs, the word after "attention:" in the plan's description."""
        lines = [line.split() for line in self.plan.describe().splitlines()]
        return next(words[1].rstrip(";") for words in lines if words and words[0] == "attention:")


def variants(problem, inputs, threads):
    tensors = [to_bf16(x).view(ml_dtypes.bfloat16)[None] for x in inputs]
    return {recipe: lambda recipe=recipe: Call(problem, tensors, threads, recipe) for recipe in RECIPES}

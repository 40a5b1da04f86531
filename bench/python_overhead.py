# SPDX-License-Identifier: Apache-2.0
"""What a call of the Python package costs over the C call: python_overhead.py [--json FILE]

Microseconds, each the least of many rounds in one process, the two sides in turn. The C call is
mxa_attention by ctypes with arguments made once, less what ctypes takes for a call that does nothing. Parts:
the steps of the call, each alone.
"""

import argparse
import json
import sys
from pathlib import Path
from time import perf_counter_ns

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

import mxattn
from mxattn._arrays import WORK_ALIGNMENT, arrays_of
from mxattn._attention import find_call
from mxattn._library import check, lib
from mxattn._plans import K_WORD, OUT_WORD, Q_WORD, V_WORD, WORK_WORD, Arguments

ROUNDS, CALLS = 300, 20
SHAPES = {
    "1 query, 32 keys": (4, 1, 32, 64),
    "1 query, 1024 keys": (8, 1, 1024, 64),
    "64 queries, 64 keys": (8, 64, 64, 64),
}


def least(*functions):
    """Microseconds of each function, in turn."""
    best = [float("inf")] * len(functions)
    for _ in range(ROUNDS):
        for i, function in enumerate(functions):
            begun = perf_counter_ns()
            for _ in range(CALLS):
                function()
            best[i] = min(best[i], (perf_counter_ns() - begun) / CALLS / 1000)
    return best


def nothing():
    lib.mxa_plan_work_bytes(None)


OPTIONS = (True, None, (-1, -1), 0.0, None, "dma8", 1)


def make_key(arrays, q, k, v):
    geometry = arrays.geometry
    return arrays, geometry("q", q), geometry("k", k), geometry("v", v), None, None, "bhsd", *OPTIONS


def prepared_call(q, k, v):
    """mxa_attention with all arguments made."""
    arrays, _ = arrays_of("q", q)
    call = find_call(*make_key(arrays, q, k, v))
    made, out = Arguments(call.plan, call.tensors), arrays.new(call.out_shape, q.dtype)
    memory = np.empty(call.plan.work_bytes + WORK_ALIGNMENT, np.uint8)
    for word, x in zip((Q_WORD, K_WORD, V_WORD, OUT_WORD), (q, k, v, out)):
        made.words[word] = arrays.address(x)
    made.words[WORK_WORD] = memory.ctypes.data + -memory.ctypes.data % WORK_ALIGNMENT
    pointer, handle, run = made.pointer, call.plan.handle, lib.mxa_attention

    def function():
        if run(handle, pointer):
            check(1)

    function.kept = call, made, memory, q, k, v, out
    return function


def parts(q, k, v):
    arrays, _ = arrays_of("q", q)
    key = make_key(arrays, q, k, v)
    call = find_call(*key)
    out = arrays.new(call.out_shape, q.dtype)
    functions = {
        "what q, k, v are": lambda: make_key(arrays, q, k, v),
        "the call made ready": lambda: find_call(*key),
        "output": lambda: arrays.new(call.out_shape, q.dtype),
        "addresses": lambda: tuple(map(arrays.address, (q, k, v, out))),
        "workspace": lambda: (arrays.work(call.plan.work_bytes), arrays.done()),
    }
    return dict(zip(functions, least(*functions.values())))


def measure(shape, kind):
    heads, q_len, kv_len, dim = shape
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, heads, n, dim), dtype=np.float32) for n in (q_len, kv_len, kv_len))
    if kind == "torch":
        import torch

        q, k, v = map(torch.from_numpy, (q, k, v))
    c_call, python, empty = least(
        prepared_call(q, k, v), lambda: mxattn.attention(q, k, v, causal=True, threads=1), nothing
    )
    c_call -= empty
    return {
        "c_us": c_call,
        "python_us": python,
        "overhead_us": python - c_call,
        "ratio": python / c_call,
        "parts_us": parts(q, k, v),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    kinds = ["numpy"]
    try:
        import torch  # noqa: F401

        kinds.append("torch")
    except ImportError:
        print("without torch, which is not installed")
    results = {}
    print(f"{'':20} {'':6} {'C call':>9} {'Python':>9} {'over':>7} {'ratio':>6}   microseconds, 1 thread")
    for name, shape in SHAPES.items():
        for kind in kinds:
            r = results[f"{name}, {kind}"] = measure(shape, kind)
            times = f"{r['c_us']:9.1f} {r['python_us']:9.1f} {r['overhead_us']:7.1f} {r['ratio']:6.2f}"
            print(f"{name:20} {kind:6} {times}")
    for kind in kinds:
        print(f"parts of the overhead, {kind}:")
        for part, us in next(r for n, r in results.items() if n.endswith(kind))["parts_us"].items():
            print(f"    {part:24} {us:5.1f}")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Compare `mxattn bench` with PyTorch's scaled_dot_product_attention in fp32, on the attention shapes of shapes.txt.

    python bench/peer_torch.py build/release/mxattn [--threads N] [--shape NAME]...

Both run with the same number of threads, one after the other, on a machine that should do nothing else. PyTorch gets
fp32 tensors: on a CPU that is its fastest exact path. Prints medians and the ratio PyTorch / mxattn for each recipe.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

SHAPES = Path(__file__).with_name("shapes.txt")
WARM_UPS = 2
LEAST_RUNS = 10
LEAST_SECONDS = 1.0


def read_shapes():
    """{name: sizes} of the attention lines."""
    shapes = {}
    for line in SHAPES.read_text().splitlines():
        words = line.split("#")[0].split()
        if words and words[0] == "attention":
            sizes = {"batch": 1, "causal": 1} | {k: int(v) for k, v in (w.split("=") for w in words[2:]) if k != "type"}
            sizes.setdefault("heads_kv", sizes["heads"])
            sizes.setdefault("kv_len", sizes["q_len"])
            sizes.setdefault("dim_v", sizes["dim"])
            shapes[words[1]] = sizes
    return shapes


def time_torch(torch, s):
    """Median milliseconds of one call."""
    generator = torch.Generator().manual_seed(1)
    rand = lambda heads, rows, dim: torch.randn(s["batch"], heads, rows, dim, generator=generator)
    q = rand(s["heads"], s["q_len"], s["dim"])
    k, v = rand(s["heads_kv"], s["kv_len"], s["dim"]), rand(s["heads_kv"], s["kv_len"], s["dim_v"])
    options = {"enable_gqa": s["heads"] != s["heads_kv"]}
    if s["causal"] and s["q_len"] == s["kv_len"]:
        options["is_causal"] = True
    elif s["causal"] and s["q_len"] > 1:  # is_causal would be top-left here
        options["attn_mask"] = torch.ones(s["q_len"], s["kv_len"], dtype=torch.bool).tril(s["kv_len"] - s["q_len"])
    call = lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)
    times = []
    with torch.inference_mode():
        for _ in range(WARM_UPS):
            call()
        while len(times) < LEAST_RUNS or sum(times) < LEAST_SECONDS:
            begun = time.perf_counter()
            call()
            times.append(time.perf_counter() - begun)
    return 1e3 * statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--shape", action="append")
    arguments = parser.parse_args()
    try:
        import torch
    except ImportError:
        print("peer_torch: this Python has no PyTorch, so nothing is compared (make bench PYTHON=...)")
        return 0
    torch.set_num_threads(arguments.threads)
    shapes = read_shapes()
    print(f"PyTorch {torch.__version__}, fp32, {arguments.threads} threads\n")
    print(f"{'shape':<20} {'recipe':<12} {'mxattn ms':>10} {'torch ms':>10} {'torch / mxattn':>15}")
    for name in arguments.shape or shapes:
        ours = json.loads(subprocess.run(
            [arguments.command, "bench", "--json", "--shapes", SHAPES, "--shape", name], check=True,
            stdout=subprocess.PIPE, env=os.environ | {"OMP_NUM_THREADS": str(arguments.threads)}).stdout)
        theirs = time_torch(torch, shapes[name])
        for result in ours:
            print(f"{name:<20} {result['variant']:<12} {result['median_ms']:>10.2f} {theirs:>10.2f} "
                  f"{theirs / result['median_ms']:>15.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

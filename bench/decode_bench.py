# SPDX-License-Identifier: Apache-2.0
"""Time a decode step from a quantised KV cache against PyTorch on the processor at hand.

    MXATTN_LIB=build/release/libmxattn.so python bench/decode_bench.py [--threads 1] [--length 32768]

One query of 32 heads, 8 KV heads of dim 128, random normal keys and values that bf16 holds; larger than the caches
of most processors, so that every step reads memory. Contenders take turns, so that whatever else the machine does
meets all of them. PyTorch runs its attention call, and the same as two products by hand, which is several times as
fast; the better one is the bar. Prints medians, the shortest times, ratios, bytes a token and the error.
"""

import argparse
import os
import statistics
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/python"))

RECIPES = "dma4,v=int8", "dma4,v=mxfp4,rotate-v", "dma8,v=int8", "dma8", "bf16"
HEADS, HEADS_KV, DIM = 32, 8, 128


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--length", type=int, default=32768, help="tokens in the cache (default 32768)")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--recipes", nargs="*", default=RECIPES)
    return parser.parse_args()


def mxattn_steps(recipes, q, k, v, threads):
    """(a step, bytes a token and KV head) of each recipe."""
    import mxa_cache

    steps = {}
    for text in recipes:
        cache = mxa_cache.Cache(1, HEADS_KV, DIM, text, threads=threads)
        cache.append(k[:, :, :-1], v[:, :, :-1])
        cache.append(k[:, :, -1:], v[:, :, -1:])
        n_bytes = cache.used_bytes() / k.shape[2] / HEADS_KV
        steps[text] = (lambda cache=cache: cache.attend(q, DIM)[0], n_bytes)
    return steps


def torch_steps(q, k, v, threads):
    import torch

    torch.set_num_threads(threads)
    steps = {}
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        tq, tk, tv = (torch.from_numpy(np.asarray(x, np.float32)).to(dtype)[0] for x in (q, k, v))
        grouped = tq.view(HEADS_KV, HEADS // HEADS_KV, DIM)

        def by_hand(q=grouped, k=tk, v=tv, dtype=dtype):
            logits = torch.matmul(q, k.transpose(1, 2)).float() * DIM**-0.5
            return (
                torch.matmul(torch.softmax(logits, -1).to(dtype), v).float().numpy().reshape(1, HEADS, 1, DIM)
            )

        def call(q=tq, k=tk, v=tv):
            attention = torch.nn.functional.scaled_dot_product_attention
            return attention(q[None], k[None], v[None], enable_gqa=True).float().numpy()

        steps[f"PyTorch {name}, by hand"] = by_hand, 2 * DIM * tk.element_size()
        steps[f"PyTorch {name}"] = call, 2 * DIM * tk.element_size()
    return steps


def exact(q, k, v):
    """float64, a KV head at a time."""
    out = np.empty(q.shape[:3] + (DIM,))
    for h in range(HEADS):
        keys, values = (x[0, h // (HEADS // HEADS_KV)].astype(np.float64) for x in (k, v))
        s = keys @ q[0, h, 0].astype(np.float64) * DIM**-0.5
        p = np.exp(s - s.max())
        out[0, h, 0] = p @ values / p.sum()
    return out


def main():
    options = parse_arguments()
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    import ml_dtypes

    rng = np.random.default_rng(0)
    shapes = (1, HEADS, 1, DIM), *[(1, HEADS_KV, options.length, DIM)] * 2
    q, k, v = (rng.standard_normal(s, np.float32).astype(ml_dtypes.bfloat16) for s in shapes)
    steps = mxattn_steps(options.recipes, q, k, v, options.threads) | torch_steps(q, k, v, options.threads)
    want = exact(q, k, v)
    errors = {name: np.linalg.norm(step() - want) / np.linalg.norm(want) for name, (step, _) in steps.items()}
    times = {name: [] for name in steps}
    for _ in range(options.rounds):
        for name, (step, _) in steps.items():
            start = time.perf_counter()
            step()
            times[name].append((time.perf_counter() - start) * 1e3)
    least_bar = min(min(t) for n, t in times.items() if n.startswith("PyTorch"))
    median_bar = min(statistics.median(t) for n, t in times.items() if n.startswith("PyTorch"))
    print(
        f"{options.length} tokens, {options.threads} threads; best of PyTorch / it: by medians, by shortest times\n"
    )
    print("| | median ms | shortest ms | by medians | by shortest | bytes a token and KV head | error |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for name, (_, n_bytes) in steps.items():
        median, least = statistics.median(times[name]), min(times[name])
        ratios = f"{median_bar / median:.2f} | {least_bar / least:.2f}"
        print(f"| {name} | {median:.2f} | {least:.2f} | {ratios} | {n_bytes:.0f} | {errors[name]:.1e} |")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Decode steps on a GPU against PyTorch's best bf16 decode, in one run.

decode_gpu.py PROGRAM [--out FILE.json] [SHAPE ...]: PROGRAM is check_decode_cuda; a table goes to stdout.
"""
import argparse
import json
import statistics
import subprocess

import torch
import torch.nn.functional as functional
from torch.nn.attention import SDPBackend, sdpa_kernel

HEADS, HEADS_KV, DIM = 32, 8, 128
SHAPES = {"b1_32k": (1, 32768), "b1_128k": (1, 131072), "b32_8k": (32, 8192), "b8_32k": (8, 32768)}
BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
ROTATED_BYTES = 400 << 20  # several times the L2
LAUNCHES, ROUNDS = 24, 15


def time_graph(step):
    """Median us of one of LAUNCHES calls of step(i) in a graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for i in range(3):
            step(i)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(LAUNCHES):
            step(i)
    times = []
    for _ in range(ROUNDS + 3):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1000 / LAUNCHES)
    return statistics.median(times[3:])


def time_torch(batch, length):
    """us of each backend of PyTorch's attention that takes the shape."""
    pair_bytes = 2 * batch * HEADS_KV * length * DIM * 2
    rotations = min(LAUNCHES, ROTATED_BYTES // pair_bytes + 1)

    def make(heads, n):
        return torch.randn(batch, heads, n, DIM, device="cuda", dtype=torch.bfloat16)

    q = make(HEADS, 1)
    pairs = [(make(HEADS_KV, length), make(HEADS_KV, length)) for _ in range(rotations)]
    times = {}
    for name, backend in BACKENDS.items():
        def step(i):
            functional.scaled_dot_product_attention(q, *pairs[i % rotations], enable_gqa=True)

        try:
            with sdpa_kernel(backend):
                times[name] = time_graph(step)
        except RuntimeError as error:
            print(f"# {name}: {str(error).splitlines()[0]}")
    return times


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("shapes", nargs="*", default=list(SHAPES))
    parser.add_argument("--out")
    args = parser.parse_args()
    rows = []
    print(f"{'shape':8} {'cache':32} {'pages':9} {'us':>7} {'least':>7} {'most':>7} {'GB/s':>5} {'/read':>6} "
          f"{'times bf16':>10}")
    for shape in args.shapes:
        torch_us = time_torch(*SHAPES[shape])
        torch.cuda.empty_cache()
        print(f"{shape:8} " + ", ".join(f"{name} {us:.1f} us" for name, us in torch_us.items()), flush=True)
        lines = subprocess.run([args.program, shape], check=True, capture_output=True, text=True).stdout
        for line in lines.splitlines():
            row = json.loads(line)
            row["bf16_us"] = torch_us
            row["times_bf16"] = min(torch_us.values()) / row["us"]
            rows.append(row)
            print(f"{shape:8} {row['recipe']:32} {row['pages']:9} {row['us']:7.1f} {row['least']:7.1f} "
                  f"{row['most']:7.1f} {row['gb_s']:5.0f} {row['of_read']:6.2f} {row['times_bf16']:10.2f}", flush=True)
    if args.out:
        with open(args.out, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()

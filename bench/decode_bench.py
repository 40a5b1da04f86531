# SPDX-License-Identifier: Apache-2.0
"""Time a decode step from a quantised KV cache against other software on the processor at hand.

    python bench/decode_bench.py --build build/release [--threads 1] [--length 32768] [--python PYTHON ...]

One query of 32 heads, 8 KV heads of dim 128, random normal keys and values that bf16 holds; larger than the caches
of most processors, so that every step reads memory. Contenders are processes that take turns (bench/peers), so that
whatever else the machine does meets all of them; K and V are in the type of each before the step. Each Python given
is asked for the peers that it has. Prints medians, the shortest times, ratios, bytes a token and KV head, the error
against float64, and which floors are met.
"""

import argparse
import os
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "bench/peers"))
from attention_contest import Gone, compete, enter, leave, start  # noqa: E402
from attention_problem import Problem, load_inputs, right_rows, save_inputs  # noqa: E402

PEERS = "torch", "onnxruntime", "openvino", "llama"
HEADS, HEADS_KV, DIM = 32, 8, 128
BAR = "torch", "onnxruntime", "openvino"  # the best of these
FLOORS = {  # recipe: floor and goal against the bar, against llama.cpp in f16
    "dma4,v=int8": ((3.5, 5), (7, 10)),
    "dma4,v=mxfp4,rotate-v": ((4, 6), (7, 10)),
}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build/release", help="where mxattn is built")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--length", type=int, default=32768, help="tokens in the cache (default 32768)")
    parser.add_argument("--peers", nargs="*", default=PEERS, choices=PEERS)
    parser.add_argument("--python", action="append", default=[], help="to look for peers in, may be repeated")
    parser.add_argument("--seconds", type=float, default=5, help="of a contender (default 5)")
    parser.add_argument(
        "--cpu-time", dest="clock", action="store_const", const="cpu", default="wall",
        help="for a machine that others use, with one thread: what the process ran, not what passed",
    )  # fmt: skip
    return parser.parse_args()


@dataclass
class Row:
    peer: str
    name: str
    variant: str
    ms: list
    note: str
    error: float

    def median(self):
        return statistics.median(self.ms)


def measure(options, folder, missing):
    problem = Problem(HEADS, HEADS_KV, 1, options.length, DIM)
    save_inputs(problem, folder)
    environment = {
        "OMP_NUM_THREADS": str(options.threads),
        "MXATTN_LIB": str(options.build / "libmxattn.so"),
    }
    contenders = start(["cache", *options.peers], [sys.executable, *options.python], environment, missing)
    if "cache" not in contenders:
        sys.exit(f"decode_bench: {missing[0]}")
    entries = [e for c in contenders.values() for e in enter(c, problem, folder, options.threads, missing)]
    want, file = right_rows(problem, load_inputs(folder), [0]), folder / "rows.npy"
    rows = []
    for e in compete(entries, options.seconds, missing, clock=options.clock):
        try:
            e.contender.ask(rows=e.place, of=[0], to=str(file))
        except Gone:
            continue
        error = float(np.linalg.norm(np.load(file) - want) / np.linalg.norm(want))
        rows.append(Row(e.contender.name, e.contender.version, e.place[1], e.ms, e.note, error))
    leave(entries)
    for c in contenders.values():
        c.stop()
    return rows


def best(rows, peers, variant=None):
    """By medians and by shortest times; None if nobody ran."""
    chosen = [r for r in rows if r.peer in peers and variant in (None, r.variant)]
    return chosen and (min(r.median() for r in chosen), min(min(r.ms) for r in chosen))


def ratios(row, bar):
    return f"{bar[0] / row.median():.2f}; {bar[1] / min(row.ms):.2f}" if bar else "-"


def print_table(options, rows):
    bar, llama = best(rows, BAR), best(rows, ("llama",), "f16")
    print(f"{options.length} tokens, {options.threads} threads; ratios by medians; by shortest times\n")
    print(
        "| | | median ms | shortest | runs | best peer / it | llama.cpp f16 / it | bytes a token and head | error |"
    )
    print("|---|---|--:|--:|--:|--:|--:|--:|--:|")
    for r in rows:
        times = f"{r.median():.2f} | {min(r.ms):.2f} | {len(r.ms)}"
        print(
            f"| {r.name} | {r.variant} | {times} | {ratios(r, bar)} | {ratios(r, llama)} | {r.note} | {r.error:.1e} |"
        )
    print()
    for r in rows:
        for (floor, goal), against, name in zip(
            FLOORS.get(r.variant, ()), (bar, llama), ("best peer", "llama.cpp f16")
        ):
            if against:
                value = against[0] / r.median()
                met = "goal met" if value >= goal else "floor met" if value >= floor else "below the floor"
                print(f"{r.variant}: {name} / it {value:.2f}, floor {floor:g}, goal {goal:g}: {met}")


def main():
    options, missing = parse_arguments(), []
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(options, Path(folder), missing)
    print_table(options, rows)
    for sentence in missing:
        print(f"left out: {sentence}")


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Time attention through libmxattn_cuda.so on the GPU; FlashAttention-3 and cuDNN, bf16 and FP8, are the peers.

    bench/gpu.sh [--shapes NAME ...] [--recipes TEXT ...] [--repeats N] [--no-peers]

Quantization of Q and K is in the times. Results go to bench/results.
"""

import argparse
import datetime
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

from attention_gpu import Attention, Shape, load, random_inputs
from peers_gpu import PEERS, peers

IDLE_S = 0.03
BURST_MS, SUSTAINED_MS = 2.0, 150.0
CLOCK_PERIOD_MS = 20
PROFILED_CALLS = 3
GROWTH = ("8k", "32k-mha")  # of equal heads
# The Triton code published with arXiv 2604.03950 on an H200, shape 8k, MXFP4 in every tile (its mixed mode does not
# compile there).
PUBLISHED_MS = 15.4

SHAPES = {
    "2k": Shape(32, 32, 2048),
    "8k": Shape(32, 32, 8192),
    "8k-gqa": Shape(64, 8, 8192),
    "32k": Shape(32, 8, 32768),
    "32k-mha": Shape(32, 32, 32768),
    "32k-gqa": Shape(64, 8, 32768),
    "16k-full": Shape(32, 32, 16384, causal=False),
    "8k-d64": Shape(32, 32, 8192, dim=64),
    "8k-d256": Shape(16, 16, 8192, dim=256),
    "8k-d192": Shape(16, 16, 8192, dim=192, dim_v=128),
}
RECIPES = ["bf16", "dma8", "dma8,level_k=token_block", "dma8-fp8", "dma4-fp8", "dma4"]


class Clocks:
    """What nvidia-smi says of the SM clock and the power while contenders run."""

    def __init__(self):
        query = ["stdbuf", "-oL", "nvidia-smi", "--id=0", "--query-gpu=timestamp,clocks.sm,power.draw.instant",
                 "--format=csv,noheader,nounits", f"--loop-ms={CLOCK_PERIOD_MS}"]
        self.spans = []
        try:
            self.log = subprocess.Popen(query, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        except FileNotFoundError:
            self.log = None

    def stop(self):
        """{contender: (median MHz, median W)}."""
        if self.log is None:
            return {}
        self.log.terminate()
        readings = []
        for line in self.log.communicate()[0].splitlines():
            try:
                at, mhz, watts = line.split(", ")
                readings.append((datetime.datetime.strptime(at, "%Y/%m/%d %H:%M:%S.%f"), int(mhz), float(watts)))
            except ValueError:  # a line cut off, a value not available
                continue
        medians = {}
        for name in {name for name, _, _ in self.spans}:
            inside = [r[1:] for r in readings for n, begun, ended in self.spans if n == name and begun <= r[0] <= ended]
            if inside:
                medians[name] = tuple(statistics.median(values) for values in zip(*inside))
        return medians


class Contender:
    """A call, recorded in a CUDA graph about BURST_MS long, so that no host is in its time."""

    def __init__(self, call):
        call()
        torch.cuda.synchronize()
        self.replay, self.calls = call, 1
        self.calls = max(1, int(BURST_MS / self.milliseconds(1)))
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            for _ in range(self.calls):
                call()
        self.replay = self.graph.replay
        self.milliseconds(1)
        self.burst, self.sustained = [], []

    def milliseconds(self, replays):
        """Of one call."""
        begun, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begun.record()
        for _ in range(replays):
            self.replay()
        ended.record()
        torch.cuda.synchronize()
        return begun.elapsed_time(ended) / replays / self.calls

    def measure(self):
        """Returns the second half of the sustained part, in which the clock has settled: begin, end."""
        time.sleep(IDLE_S)
        self.burst.append(self.milliseconds(1))
        begun = datetime.datetime.now()
        self.sustained.append(self.milliseconds(max(3, round(SUSTAINED_MS / (self.burst[-1] * self.calls)))))
        ended = datetime.datetime.now()
        return begun + (ended - begun) / 2, ended


def kernel_times(call):
    """Microseconds of each kind of kernel in a call; kernels that begin early overlap, and their waiting counts."""
    kinds = {"mean": "mean", "quantize": "copies", "bias": "copies", "attention_ref": "rows again",
             "prefill": "attention", "attention": "attention"}
    call()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(PROFILED_CALLS):
            call()
        torch.cuda.synchronize()
    times = {}
    for event in profile.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            kind = next((kind for word, kind in kinds.items() if word in event.name), "other")
            times[kind] = times.get(kind, 0) + event.time_range.elapsed_us() / PROFILED_CALLS
    return times


def summarize(values, flops):
    middle = statistics.median(values)
    return {"ms": middle, "tflops": flops / middle / 1e9, "spread": (max(values) - min(values)) / middle, "all": values}


def time_shape(library, name, recipes, repeats, with_peers):
    shape = SHAPES[name]
    torch.manual_seed(2)
    inputs = random_inputs(shape)
    ours = {recipe: Attention(library, shape, recipe, inputs) for recipe in recipes}
    contenders = {recipe: Contender(call) for recipe, call in ours.items()}
    if with_peers:
        contenders |= {peer: Contender(call) for peer, call in peers(shape, *inputs).items()}
    clocks = Clocks()
    for _ in range(repeats):
        for contender, c in contenders.items():
            clocks.spans.append((contender, *c.measure()))
    medians = clocks.stop()
    rows = []
    for contender, c in contenders.items():
        row = {"shape": name, "problem": str(shape), "contender": contender, "calls_in_graph": c.calls,
               "burst": summarize(c.burst, shape.flops()), "sustained": summarize(c.sustained, shape.flops())}
        row["sm_mhz"], row["watts"] = medians.get(contender, (None, None))
        for kind in ("burst", "sustained"):
            for peer in set(PEERS) & set(contenders) - {contender}:
                theirs = statistics.median(getattr(contenders[peer], kind))
                row[kind][f"times_{peer}"] = theirs / row[kind]["ms"]
        if contender in ours:
            row |= {"error": ours[contender].error(), "kernel": ours[contender].kernel(),
                    "kernels_us": kernel_times(ours[contender])}
        rows.append(row)
    return rows


def ratio(row, kind, peer):
    value = row[kind].get(f"times_{peer}")
    return "-" if value is None else f"{value:.2f}"


def table(rows):
    lines = ["| shape | contender | ms | TFLOP/s sustained | spread | x FA3 | x cuDNN | TFLOP/s burst | spread "
             "| x FA3 | x cuDNN | SM MHz | W | error |", "|---|---|" + "--:|" * 12]
    for r in rows:
        number = lambda value, form: "-" if value is None else format(value, form)
        s, b = r["sustained"], r["burst"]
        lines.append(
            f"| {r['problem']} | {r['contender']} | {s['ms']:.3f} | {s['tflops']:.0f} | {100 * s['spread']:.1f} % "
            f"| {ratio(r, 'sustained', 'fa3')} | {ratio(r, 'sustained', 'cudnn')} | {b['tflops']:.0f} "
            f"| {100 * b['spread']:.1f} % | {ratio(r, 'burst', 'fa3')} | {ratio(r, 'burst', 'cudnn')} "
            f"| {number(r['sm_mhz'], '.0f')} | {number(r['watts'], '.0f')} | {number(r.get('error'), '.1e')} |")
    return "\n".join(lines)


def growth_table(rows):
    """Time at the longer length over that at the shorter one, sustained."""
    times = {(r["shape"], r["contender"]): r["sustained"]["ms"] for r in rows}
    short, long = GROWTH
    both = [c for s, c in times if s == short and (long, c) in times]
    if not both:
        return ""
    lines = [f"## {SHAPES[short]} to {SHAPES[long]}", "", "| contender | times as long |", "|---|--:|"]
    return "\n".join([*lines, *(f"| {c} | {times[long, c] / times[short, c]:.1f} |" for c in both), ""])


def kernel_table(rows):
    """Where the time of our calls goes."""
    kinds = ("mean", "copies", "attention", "rows again", "other")
    lines = ["## Kernels of a call, us", "",
             "By PyTorch's profiler, one call after another, unthrottled. Times overlap.", "",
             "| shape | recipe | " + " | ".join(kinds) + " |", "|---|---|" + "--:|" * len(kinds)]
    for r in rows:
        if "kernels_us" in r:
            times = " | ".join(f"{r['kernels_us'].get(kind, 0):.1f}" for kind in kinds)
            lines.append(f"| {r['problem']} | {r['contender']} | {times} |")
    return "\n".join([*lines, ""])


def published_table(rows):
    found = [r for r in rows if r["shape"] == GROWTH[0] and r["contender"] not in PEERS]
    if not found:
        return ""
    lines = [f"## Beside the published kernel ({PUBLISHED_MS} ms, MXFP4, {SHAPES[GROWTH[0]]})", "",
             "| contender | its time over ours |", "|---|--:|"]
    lines += [f"| {r['contender']} | {PUBLISHED_MS / r['sustained']['ms']:.1f} |" for r in found]
    return "\n".join([*lines, ""])


def report(head, rows):
    return "\n".join([
        f"# Prefill on {head['gpu']}, {head['date']}", "",
        f"Commit {head['commit']}; `{head['command']}`; driver {head['driver']}, PyTorch {head['torch']}, cuDNN "
        f"{head['cudnn']}, FlashAttention-3 {head['fa3']}.", "",
        "Quantization of Q and K is in the times. bf16 tensors, random normal inputs. Burst: "
        f"{BURST_MS:g} ms of calls after {1e3 * IDLE_S:g} ms idle; sustained: {SUSTAINED_MS:g} ms back to back; both "
        f"from CUDA graphs, contenders alternating, median of {head['repeats']}; spread is (largest - smallest) / "
        "median. x FA3, x cuDNN: their time over ours, bf16. SM clock and power: medians of what nvidia-smi gives in "
        "the second half of the sustained part. Error: relative L2 to attention in float64 on the inputs. FP8 peers: "
        "E4M3, one scale a tensor, which is not in their time.", "",
        table(rows), "", growth_table(rows), published_table(rows), kernel_table(rows)])


def output_of(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def command_of(words):
    """Without what depends on the machine."""
    kept = [word for last, word in zip(["", *words], words) if not {last, word} & {"--commit", "--out"}]
    return " ".join(["bench/gpu.sh", *kept])


def write_results(folder, head, rows):
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{head['date']}_{head['gpu'].split()[-1].lower()}_prefill"
    (folder / f"{stem}.md").write_text(report(head, rows))
    (folder / f"{stem}.json").write_text(json.dumps(head | {"times": rows}, indent=1) + "\n")


def describe(arguments):
    try:
        from importlib.metadata import version
        fa3 = version("fa3-fwd")
    except ImportError:
        fa3 = "absent"
    return {"date": datetime.date.today().isoformat(), "gpu": torch.cuda.get_device_name(),
            "repeats": arguments.repeats,
            "commit": arguments.commit or output_of("git", "describe", "--always", "--dirty", "--abbrev=12"),
            "command": command_of(sys.argv[2:]),
            "driver": output_of("nvidia-smi", "--id=0", "--query-gpu=driver_version", "--format=csv,noheader"),
            "torch": torch.__version__, "cudnn": torch.backends.cudnn.version(), "fa3": fa3}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", type=Path, help="libmxattn.so, with libmxattn_cuda.so beside it")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--recipes", nargs="+", default=RECIPES)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--commit", help="where git is not at hand")
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    arguments = parser.parse_args()

    library = load(arguments.library.resolve())
    head, rows = describe(arguments), []
    for name in arguments.shapes:
        rows += time_shape(library, name, arguments.recipes, arguments.repeats, not arguments.no_peers)
    print(table(rows))
    write_results(arguments.out, head, rows)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Check and time the sm_90a prefill kernel on the GPU; FlashAttention-3 and cuDNN in bf16 are the peers.

    bench/gpu.sh [--shapes NAME ...] [--modes MODE ...] [--repeats N] [--no-checks | --no-times] [--no-peers] [--small]

Quantization is not in the times: operands are quantized beforehand. Exit status 1 if a check fails. Results are
written where there are times.
"""

import argparse
import ctypes
import datetime
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from prefill_problem import FAR, MODES, Problem, Shape, random_inputs

# Relative L2 error of the output, and error of the LSE over max(1, |LSE|). P and the output are rounded to bf16, each
# by at most 2^-9 of itself; a sum of logits off by as much as the LSE may be is one such rounding of P.
OUT_BOUND = 2.0**-8
LSE_BOUND = 2.0**-9
REFERENCE_ROWS = 2048  # at a time
IDLE_S = 0.03
BURST_MS, SUSTAINED_MS = 2.0, 150.0
SMALL = 512  # longest sequence of --small
CLOCK_PERIOD_MS = 20

SHAPES = {
    "2k": Shape(32, 32, 2048, 2048),
    "8k": Shape(32, 32, 8192, 8192),
    "8k-gqa": Shape(64, 8, 8192, 8192),
    "32k": Shape(32, 8, 32768, 32768),
    "16k-full": Shape(32, 32, 16384, 16384, window_right=-1),
}
CHECKS = [
    Shape(2, 1, 512, 512),
    Shape(2, 2, 1024, 1024, window_right=-1),
    Shape(8, 2, 4096, 4096),
    Shape(4, 2, 640, 640, batch=3),
    # ragged lengths and chunks
    Shape(2, 1, 300, 300),
    Shape(4, 2, 700, 901, window_right=-1),
    Shape(2, 1, 1, 300),
    Shape(2, 1, 128, 1024),
    Shape(2, 1, 77, 3001),
    # windows of the mask, windows of high precision
    Shape(2, 1, 1024, 1024, window_left=300),
    Shape(2, 1, 1024, 1024, window_left=130, diag=0, sink=0),
    Shape(2, 1, 1024, 1024, window_right=-1, window_left=500, diag=1, sink=100),
    Shape(2, 1, 256, 1024, window_right=-1, window_left=0, diag=200, sink=0),
    Shape(2, 1, 1000, 1000, window_right=200, diag=1, sink=1),
    Shape(2, 2, 896, 896, diag=300, sink=200),
    Shape(2, 2, 896, 896, diag=0, sink=0),
    # a sink that reaches beyond the diagonal's tiles
    Shape(2, 1, 512, 512, window_right=-1, sink=400),
    Shape(2, 1, 1024, 1024, window_right=-1, window_left=500, diag=1, sink=900),
    # the bias of smooth-K, peaked rows
    Shape(2, 1, 512, 512, bias=True),
    Shape(2, 1, 1024, 1024, diag=0, sink=0, bias=True),
    Shape(2, 1, 1024, 1024, peak=16),
]
# Reported without a bound: the kernel has no path yet for rows whose logits jump by more than 2^127 in a step.
BEYOND = Shape(2, 1, 1024, 1024, diag=0, sink=0, peak=24)


def compare(problem, exact=False):
    """Largest errors over some heads: output, LSE, and rows that are not finite."""
    s, out_error, lse_error, bad_rows = problem.shape, 0.0, 0.0, 0
    for b, h in {(0, 0), (s.batch - 1, s.heads - 1)}:
        error = norm = 0.0
        for rows in torch.arange(s.q_len, device="cuda").split(REFERENCE_ROWS):
            want, want_lse = problem.reference(b, h, rows, exact)
            got, got_lse = problem.out[b, h, rows].double(), problem.lse[b, h, rows].double()
            good = got.isfinite().all(1) & got_lse.isfinite()
            bad_rows += int((~good).sum())
            error += (got - want)[good].square().sum().item()
            norm += want[good].square().sum().item()
            off = ((got_lse - want_lse).abs() / want_lse.abs().clamp(min=1))[good]
            lse_error = max([lse_error, *off.tolist()])
        out_error = max(out_error, (error / norm) ** 0.5 if norm else 0.0)
    return {"out": out_error, "lse": lse_error, "rows_not_finite": bad_rows}


def within_bounds(errors):
    return errors["out"] <= OUT_BOUND and errors["lse"] <= LSE_BOUND and errors["rows_not_finite"] == 0


def run_check(library, shape, mode, bounded=True):
    torch.manual_seed(1)
    problem = Problem(library, shape, mode, random_inputs(shape))
    problem()
    torch.cuda.synchronize()
    result = {"shape": str(shape), "mode": mode, "bounded": bounded} | compare(problem)
    result["guards"] = problem.guards_intact()
    result["passed"] = not bounded or (within_bounds(result) and result["guards"])
    if not result["passed"] or not bounded:
        print(f"{'check' if bounded else 'beyond'} {mode} {shape}: out {result['out']:.2e}, LSE {result['lse']:.2e}, "
              f"{result['rows_not_finite']} rows not finite, guards {result['guards']}", flush=True)
    return result


def run_checks(library, modes, longest):
    shapes = [shape for shape in CHECKS if shape.kv_len <= longest]
    results = [run_check(library, shape, mode) for shape in shapes for mode in modes]
    results += [run_check(library, BEYOND, mode, bounded=False) for mode in modes]
    bounded = [r for r in results if r["bounded"]]
    print(f"checks: {sum(r['passed'] for r in bounded)} of {len(bounded)} passed", flush=True)
    return results


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


def peers(shape, q, k, v):
    """{name: call} of the bf16 baselines that this Python has."""
    causal = shape.window_right == 0

    def cudnn():
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=shape.heads != shape.heads_kv)

    calls = {"cudnn": cudnn}
    try:
        from fa3_fwd_interface import flash_attn_func
        rows_first = [t.transpose(1, 2).contiguous() for t in (q, k, v)]
        calls["fa3"] = lambda: flash_attn_func(*rows_first, causal=causal)
    except ImportError:
        print("fa3_fwd_interface cannot be imported: no FlashAttention-3", flush=True)
    return calls


def summarize(values, flops):
    middle = statistics.median(values)
    return {"ms": middle, "tflops": flops / middle / 1e9, "spread": (max(values) - min(values)) / middle, "all": values}


def time_shape(library, name, modes, repeats, with_peers):
    shape = SHAPES[name]
    torch.manual_seed(2)
    inputs = random_inputs(shape)
    problems = {mode: Problem(library, shape, mode, inputs) for mode in modes}
    contenders = {mode: Contender(problem) for mode, problem in problems.items()}
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
            for peer in {"fa3", "cudnn"} & set(contenders) - {contender}:
                theirs = statistics.median(getattr(contenders[peer], kind))
                row[kind][f"times_{peer}"] = theirs / row[kind]["ms"]
        if contender in problems:
            row["error"] = compare(problems[contender])
            row["error_exact"] = compare(problems[contender], exact=True)["out"]
            row["passed"] = within_bounds(row["error"])
        rows.append(row)
    return rows


def ratio(row, kind, peer):
    value = row[kind].get(f"times_{peer}")
    return "-" if value is None else f"{value:.2f}"


def table(rows):
    lines = ["| shape | contender | ms | TFLOP/s sustained | spread | x FA3 | x cuDNN | TFLOP/s burst | spread "
             "| x FA3 | x cuDNN | SM MHz | W | error | error to exact |", "|---|---|" + "--:|" * 13]
    for r in rows:
        number = lambda value, form: "-" if value is None else format(value, form)
        s, b = r["sustained"], r["burst"]
        error = r.get("error", {}).get("out")
        lines.append(
            f"| {r['problem']} | {r['contender']} | {s['ms']:.3f} | {s['tflops']:.0f} | {100 * s['spread']:.1f} % "
            f"| {ratio(r, 'sustained', 'fa3')} | {ratio(r, 'sustained', 'cudnn')} | {b['tflops']:.0f} "
            f"| {100 * b['spread']:.1f} % | {ratio(r, 'burst', 'fa3')} | {ratio(r, 'burst', 'cudnn')} "
            f"| {number(r['sm_mhz'], '.0f')} | {number(r['watts'], '.0f')} "
            f"| {number(error, '.1e')} | {number(r.get('error_exact'), '.1e')} |")
    return "\n".join(lines)


def check_table(checks):
    lines = ["| shape | mode | output, relative L2 | LSE | rows not finite | |", "|---|---|--:|--:|--:|---|"]
    for c in checks:
        word = ("passed" if c["passed"] else "FAILED") if c["bounded"] else "no bound"
        lines.append(f"| {c['shape']} | {c['mode']} | {c['out']:.2e} | {c['lse']:.1e} | {c['rows_not_finite']} "
                     f"| {word} |")
    return "\n".join(lines)


def report(head, checks, rows):
    lines = [f"# Prefill on {head['gpu']}, {head['date']}", "",
             f"Commit {head['commit']}; `{head['command']}`; driver {head['driver']}, PyTorch {head['torch']}, cuDNN "
             f"{head['cudnn']}, FlashAttention-3 {head['fa3']}.", ""]
    if rows:
        lines += ["**Quantization is not in these times.** Head dim 128, random normal inputs, high windows of 128 "
                  f"keys at the diagonal and the sink. Burst: {BURST_MS:g} ms of calls after {1e3 * IDLE_S:g} ms "
                  f"idle; sustained: {SUSTAINED_MS:g} ms back to back; both from CUDA graphs, contenders alternating, "
                  f"median of {head['repeats']}; spread is (largest - smallest) / median. x FA3, x cuDNN: their time "
                  "over ours, bf16. SM clock and power: medians of what nvidia-smi gives in the second half of the "
                  "sustained part. Error: relative L2 to attention in float64 on the dequantized operands, and on "
                  "the inputs.", "", table(rows), ""]
    if checks:
        lines += ["Checks against attention in float64 on the dequantized operands; bounds "
                  f"{OUT_BOUND:.2e} (output, relative L2) and {LSE_BOUND:.2e} (LSE, over max(1, |LSE|)).",
                  "", check_table(checks), ""]
    return "\n".join(lines)


def output_of(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def command_of(words):
    """Without what depends on the machine."""
    kept = [word for last, word in zip(["", *words], words) if not {last, word} & {"--commit", "--out"}]
    return " ".join(["bench/gpu.sh", *kept])


def write_results(folder, head, checks, rows):
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{head['date']}_{head['gpu'].split()[-1].lower()}_prefill"
    (folder / f"{stem}.md").write_text(report(head, checks, rows))
    (folder / f"{stem}.json").write_text(json.dumps(head | {"checks": checks, "times": rows}, indent=1) + "\n")


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
    parser.add_argument("library", type=Path)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--no-checks", action="store_true")
    parser.add_argument("--no-times", action="store_true")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--small", action="store_true", help=f"checks of at most {SMALL} keys, for a sanitizer")
    parser.add_argument("--commit", help="where git is not at hand")
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    arguments = parser.parse_args()

    library = ctypes.CDLL(str(arguments.library.resolve()))
    head = describe(arguments)
    checks = [] if arguments.no_checks else run_checks(library, arguments.modes, SMALL if arguments.small else FAR)
    rows = []
    for name in [] if arguments.no_times else arguments.shapes:
        rows += time_shape(library, name, arguments.modes, arguments.repeats, not arguments.no_peers)
    if rows:
        print(table(rows))
        write_results(arguments.out, head, checks, rows)
    return not all(result.get("passed", True) for result in checks + rows)


if __name__ == "__main__":
    sys.exit(main())

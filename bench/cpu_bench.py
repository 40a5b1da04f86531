# SPDX-License-Identifier: Apache-2.0
"""Time mxattn against PyTorch, OpenVINO and llama.cpp on the processor at hand, and against what it can do.

    python bench/cpu_bench.py [--build build/release] [--quick]

All contenders get the same random inputs, numbers that bf16 holds, and the same number of threads; they take
turns on each shape, each in a process of its own. mxattn quantises Q and K in every call. A peer that no --python
can import is named as missing. Prints a table and the figures that follow from it; writes both, all times and a
plot to --out.
"""

import argparse
import datetime
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import cpu_report

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "bench/peers"))
from attention_contest import Gone, compete, enter, leave, start  # noqa: E402
from attention_problem import Problem, load_inputs, right_rows, save_inputs  # noqa: E402

GEOMETRIES = {"9/3 heads, dim 64": (9, 3, 64), "8/2 heads, dim 128": (8, 2, 128)}
LENGTHS = 512, 1024, 2048, 4096, 8192
QUICK_LENGTH = 4096  # the longest of --quick
QUANTIZERS = "keys-32k-d128-int8", "keys-32k-d128"
CHECKED_ROWS = 8
SCALING_ROUNDS = 3
PEERS = "torch", "openvino", "llama"


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n", 1)[0], epilog=__doc__.split("\n\n", 1)[1],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--build", type=Path, default=ROOT / "build/release", help="where mxattn is built")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--peers", nargs="*", default=PEERS, choices=PEERS)
    parser.add_argument("--python", action="append", default=[], help="to look for peers in, may be repeated")
    parser.add_argument("--seconds", type=float, default=10, help="of a contender on a shape (default 10)")
    parser.add_argument("--lengths", type=int, nargs="*", default=LENGTHS, help="of the table, in tokens")
    parser.add_argument("--quick", action="store_true", help="nothing beyond 4096 tokens")
    parser.add_argument(
        "--cpu-time", dest="clock", action="store_const", const="cpu", default="wall",
        help="for a machine that others use, with one thread: what the process ran, not what passed",
    )  # fmt: skip
    parser.add_argument("--name", help="of the processor, in file names (default: from the system)")
    parser.add_argument("--out", type=Path, default=ROOT / "bench/results", help="folder for the results")
    return parser.parse_args()


def slug(cpu):
    """A processor's name for file names: intel-xeon-platinum-8592."""
    return re.sub(r"[^a-z0-9]+", "-", re.sub(r"\(\w+\)|CPU|@.*", "", cpu).lower()).strip("-")


def command_line(arguments):
    """Without what names folders of one machine."""
    words = ["python bench/cpu_bench.py", f"--threads {arguments.threads}"]
    words += ["--quick"] * arguments.quick + ["--cpu-time"] * (arguments.clock == "cpu")
    lengths = " ".join(str(n) for n in arguments.lengths)
    return " ".join([*words, f"--seconds {arguments.seconds:g}", f"--lengths {lengths}"])


def commit():
    try:
        words = ["git", "-C", ROOT, "describe", "--always", "--dirty"]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def machine(arguments):
    text = Path("/proc/cpuinfo").read_text()
    fields = dict(re.findall(r"^(model name|cpu family|model|stepping)\s*: (.*)$", text, re.MULTILINE))
    cpu = fields.get("model name", "unknown")
    return {
        "cpu": cpu,
        "family_model_stepping": "/".join(fields.get(k, "?") for k in ("cpu family", "model", "stepping")),
        "slug": arguments.name or slug(cpu),
        "cores": len(os.sched_getaffinity(0)),
        "threads": arguments.threads,
        "MXA_CPU": os.environ.get("MXA_CPU", ""),
        "commit": commit(),
        "date": datetime.date.today().isoformat(),
    }


def run_json(*words):
    return json.loads(subprocess.run([str(w) for w in words], check=True, stdout=subprocess.PIPE).stdout)


def measure_error(entry, inputs, folder):
    """Relative L2 error of some rows against float64; None if the contender is gone."""
    n = entry.problem.q_len
    rows = sorted({round(i * (n - 1) / (CHECKED_ROWS - 1)) for i in range(CHECKED_ROWS)})
    want, file = right_rows(entry.problem, inputs, rows), folder / "rows.npy"
    try:
        entry.contender.ask(rows=entry.place, of=rows, to=str(file))
    except Gone:
        return None
    return float(np.linalg.norm(np.load(file) - want) / np.linalg.norm(want))


def describe(entry, geometry):
    return {
        "geometry": geometry,
        "length": entry.problem.q_len,
        "contender": entry.contender.name,
        "version": entry.contender.version,
        "variant": entry.place[1],
        "entry": entry.note,
        "flops_of_a_product": entry.problem.flops(),
        "ms": entry.ms,
    }


class Bench:
    def __init__(self, arguments, folder):
        self.arguments, self.folder, self.missing = arguments, folder, []
        environment = {
            "OMP_NUM_THREADS": str(arguments.threads),
            "MXATTN_LIB": str(arguments.build / "libmxattn.so"),
        }
        pythons = [sys.executable, *arguments.python]
        self.contenders = start(["mxattn", *arguments.peers], pythons, environment, self.missing)
        if "mxattn" not in self.contenders:
            sys.exit(f"cpu_bench: {self.missing[0]}")

    def shape(self, geometry, length):
        """All contenders on causal attention of this length."""
        heads, heads_kv, dim = GEOMETRIES[geometry]
        problem = Problem(heads, heads_kv, length, length, dim)
        save_inputs(problem, self.folder)
        entries = [
            entry
            for contender in self.contenders.values()
            for entry in enter(contender, problem, self.folder, self.arguments.threads, self.missing)
        ]
        done = compete(entries, self.arguments.seconds, self.missing, clock=self.arguments.clock)
        inputs = load_inputs(self.folder)
        rows = [describe(e, geometry) | {"error": measure_error(e, inputs, self.folder)} for e in done]
        leave(entries)
        print(f"{geometry}, {length} tokens: timed", file=sys.stderr)
        return rows

    def alternate(self, geometry, ways, recipes):
        """{recipe: medians} of mxattn for ways (length, threads) that take turns."""
        heads, heads_kv, dim = GEOMETRIES[geometry]
        groups = []
        for length, threads in ways:
            problem = Problem(heads, heads_kv, length, length, dim)
            save_inputs(problem, self.folder)
            mine = self.contenders["mxattn"]
            groups.append(enter(mine, problem, self.folder, threads, self.missing, recipes))
        entries = [entry for group in groups for entry in group]
        compete(entries, self.arguments.seconds, self.missing, SCALING_ROUNDS, self.arguments.clock)
        leave(entries)
        medians = [(e.place[1], statistics.median(e.ms)) for group in groups for e in group]
        return {r: [ms for recipe, ms in medians if recipe == r] for r in recipes}

    def scaling(self):
        """Lists of figures: name, value, floor, goal."""
        threads, recipes, found = self.arguments.threads, ("dma8", "dma4"), []
        for geometry in GEOMETRIES:
            short = self.alternate(geometry, [(512, threads), (4096, threads)], recipes)
            for recipe, (few, many) in short.items():
                rate = (512 / 4096) ** 2 * many / few
                found.append((f"GFLOP/s at 512 / at 4096, {recipe}, {geometry}", rate, 0.7, 0.85))
            if self.arguments.quick:
                continue
            for recipe, (one, two) in self.alternate(geometry, [(8192, 1), (8192, 2)], recipes).items():
                found.append((f"1 thread / 2 threads at 8192, {recipe}, {geometry}", one / two, 1.85, 1.95))
            long = self.alternate(geometry, [(8192, threads), (32768, threads)], recipes)
            for recipe, (near, far) in long.items():
                found.append((f"time at 32k / at 8k, {recipe}, {geometry}", far / near, 17, 16))
            print(f"{geometry}: scaling timed", file=sys.stderr)
        return found

    def quantizers(self):
        words = [word for shape in QUANTIZERS for word in ("--shape", shape)]
        try:
            rows = run_json(self.arguments.build / "mxattn", "bench", "--json", "--threads", 1, *words)
        except (OSError, subprocess.CalledProcessError) as error:
            self.missing.append(f"quantisers: {error}")
            return []
        return [
            (f"fused quantiser / memcpy on one core, {row['shape']}", row["of_memcpy"], 0.4, 0.8)
            for row in rows
            if row["variant"] == "fused"
        ]

    def peaks(self):
        return run_json(self.arguments.build / "mxattn_peak", "--json", "--threads", self.arguments.threads)

    def run(self):
        before = self.peaks()
        lengths = [n for n in self.arguments.lengths if n <= QUICK_LENGTH or not self.arguments.quick]
        rows = [row for geometry in GEOMETRIES for n in lengths for row in self.shape(geometry, n)]
        figures = self.scaling() + self.quantizers()
        return {
            "machine": machine(self.arguments),
            "peaks": cpu_report.best_peaks(before, self.peaks()),
            "clock": self.arguments.clock,
            "rows": rows,
            "figures": figures,
            "missing": list(dict.fromkeys(self.missing)),
        }


def main():
    arguments = parse_arguments()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(arguments, Path(folder))
        results = bench.run()
        for contender in bench.contenders.values():
            contender.stop()
    cpu_report.finish(results)
    text = cpu_report.text(results)
    print(text)
    arguments.out.mkdir(parents=True, exist_ok=True)
    stem = "{date}_{slug}_cpu".format(**results["machine"])
    (arguments.out / f"{stem}.md").write_text(cpu_report.page(results, text, command_line(arguments)))
    (arguments.out / f"{stem}.json").write_text(json.dumps(results, indent=1) + "\n")
    written = [".md", ".json"]
    try:
        cpu_report.plot(results, arguments.out / f"{stem}.png")
        written.append(".png")
    except ImportError as error:
        print(f"no plot: {error}")
    print(f"written: {arguments.out / stem}{{{','.join(written)}}}")


if __name__ == "__main__":
    main()

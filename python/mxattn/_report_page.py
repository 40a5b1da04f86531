# SPDX-License-Identifier: Apache-2.0
"""A report as one HTML page: tables and sentences here, pictures within it."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from html import escape
from typing import Any

from ._advice import (
    LEAST_ERROR,
    OUTLIER,
    REMEDIES,
    Budget,
    HeadAdvice,
    Result,
    by_layers,
    measured,
    part_order,
    size,
    smallest,
    worst,
)

HEADS_NAMED = 6  # of a recipe; the heat map frames all

STYLE = """
:root { --ink: #1f2933; --soft: #6b7785; --line: #e4e8ec; --accent: #2563a8; --pale: #eef4fb; }
* { box-sizing: border-box; }
body { margin: 0; background: #f6f7f9; color: var(--ink);
  font: 16px/1.55 system-ui, "Segoe UI", "Helvetica Neue", "DejaVu Sans", sans-serif; }
main { max-width: 1040px; margin: 0 auto; padding: 40px 20px 64px; }
h1 { font-size: 30px; line-height: 1.2; margin: 0 0 6px; letter-spacing: -0.01em; }
h2 { font-size: 20px; margin: 0 0 10px; }
p { margin: 0 0 12px; max-width: 76ch; }
.setup { color: var(--soft); margin-bottom: 26px; max-width: none; }
section { background: #fff; border: 1px solid var(--line); border-radius: 12px; padding: 24px 26px; margin: 0 0 20px; }
section.answer { background: var(--pale); border-color: #cfe0f3; }
.answer .recipe { font-size: 25px; font-weight: 650; color: var(--accent); margin: 2px 0 8px;
  overflow-wrap: anywhere; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(170px, 1fr)); gap: 12px; margin: 14px 0; }
.facts div { background: #fff; border-radius: 9px; padding: 10px 14px; }
.facts b { display: block; font-size: 20px; font-variant-numeric: tabular-nums; }
.facts span { color: var(--soft); font-size: 13.5px; }
figure { margin: 6px 0 18px; }
figure img { display: block; max-width: 100%; height: auto; }
figcaption, .note { color: var(--soft); font-size: 14px; max-width: 84ch; }
.scroll { overflow-x: auto; margin: 0 0 12px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 6px 8px; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--soft); font-weight: 600; vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; }
td:first-child { white-space: normal; min-width: 150px; }
tr.best td { background: var(--pale); font-weight: 600; }
td.over { color: #b3422e; }
code { font: 13px/1.5 ui-monospace, "DejaVu Sans Mono", monospace; background: #f0f2f5; padding: 1px 5px;
  border-radius: 5px; overflow-wrap: anywhere; }
pre { background: #f0f2f5; border-radius: 9px; padding: 12px 14px; overflow-x: auto; margin: 8px 0 12px; }
pre code { background: none; padding: 0; white-space: pre-wrap; }
ul { margin: 0 0 12px; padding-left: 20px; }
footer { color: var(--soft); font-size: 13.5px; }
"""


def page(setup: dict[str, Any] | None, sections: Iterable[str]) -> str:
    title = "mxattn report" if setup is None else f"mxattn on {setup['model']}"
    about = "" if setup is None else describe_setup(setup)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{escape(title)}</h1>\n{about}\n" + "\n".join(sections) + "\n</main>\n</body>\n</html>\n"
    )


def describe_setup(setup: dict[str, Any]) -> str:
    facts = (
        f"{setup['parameters'] / 1e6:.4g} million parameters in {setup['dtype']}; "
        f"{setup['windows']} window{'s' * (setup['windows'] > 1)} of {setup['length']} tokens of “{setup['text']}”; mxattn {setup['mxattn']}"
    )
    return f'<p class="setup">{escape(facts)}</p>'


def section(heading: str, *parts: str, kind: str = "") -> str:
    body = "\n".join(part for part in parts if part)
    return f'<section class="{kind}">\n<h2>{escape(heading)}</h2>\n{body}\n</section>'


def picture(png: bytes, caption: str, width: int) -> str:
    """width: pixels of the page; the picture itself may have more."""
    data = base64.b64encode(png).decode()
    return (
        f'<figure><img src="data:image/png;base64,{data}" width="{width}" '
        f'alt="{escape(caption)}">'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def percent(share: float, error: float | None = None) -> str:
    text = f"{100 * share:+.2f}"
    return text + (" %" if error is None else f" ± {100 * error:.2f} %")


def number(x: float) -> str:
    return f"{x:.1e}" if x < 1e-3 else f"{x:.4f}"


def answer(results: list[Result], budget: Budget) -> str:
    """The smallest recipe within the budget, in large letters."""
    best = smallest(results, budget)
    heading = f"Smallest recipe within {budget}"
    if best is None:
        return section(
            heading, "<p>None of the recipes that were measured keeps within it.</p>", kind="answer"
        )
    name, part = max(measured(best).items(), key=lambda item: item[1][budget.measure])
    facts = [
        (f"{size(best):.2f} bits", "a cached value, against 16"),
        (percent(part["change"], part["change_error"]), f"perplexity ({label(name)})"),
        (number(part["kl"]), "KL divergence, nats a token"),
        (f"{100 * part['top1']:.1f} %", "same likeliest token"),
    ]
    cells = "".join(f"<div><b>{escape(value)}</b><span>{escape(what)}</span></div>" for value, what in facts)
    note = (
        "<p class='note'>The budget holds for what was measured plus two standard errors, in the worst of the "
        f"passes. Written out: <code>{escape(best['written'])}</code></p>"
    )
    recipe = f'<p class="recipe">{escape(best["recipe"])}</p>'
    return section(heading, recipe, f'<div class="facts">{cells}</div>', note, kind="answer")


def breakable(recipe: str) -> str:
    """A recipe whose lines end behind a comma."""
    return escape(recipe).replace(",", ",<wbr>")


def label(part: str) -> str:
    return "one shot" if part == "prefill" else part


def quality_table(results: list[Result], budget: Budget) -> str:
    """All recipes, fewest bits first; those over the budget in red."""
    best = smallest(results, budget)
    names = part_order(results)
    head = "".join(
        f"<th>{escape(label(name))}:<br>perplexity</th><th><br>KL</th><th><br>top-1</th>" for name in names
    )
    rows = []
    for result in sorted(results, key=lambda r: (size(r), r["recipe"])):
        cost = worst(result, budget)
        over = "over" if cost is not None and cost > budget.limit else ""
        cells = "".join(quality_cells(result, name, over) for name in names)
        size_cell = next((p["cache_bytes"] for p in result["parts"].values() if "cache_bytes" in p), None)
        cells += f"<td>{'' if size_cell is None else f'{size_cell / 1e6:.1f} MB'}</td>"
        kind = ' class="best"' if result is best else ""
        rows.append(
            f"<tr{kind}><td>{breakable(result['recipe'])}</td><td>{result['bits_k']:.2f}</td>"
            f"<td>{result['bits_v']:.2f}</td>{cells}</tr>"
        )
    return (
        '<div class="scroll"><table><thead><tr><th>recipe</th><th>bits<br>of K</th><th>bits<br>of V</th>'
        f"{head}<th>cache of<br>a window</th></tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
        "<p class='note'>Change of perplexity with its standard error, KL divergence (nats a token) and the share of "
        f"positions with the same likeliest token, all against the model's own attention. Red: beyond {budget}.</p>"
    )


def quality_cells(result: Result, name: str, over: str) -> str:
    part = measured(result).get(name)
    if part is None:
        return "<td></td><td></td><td></td>"
    change = percent(part["change"], part["change_error"])
    return (
        f'<td class="{over}">{change}</td><td class="{over}">{number(part["kl"])}</td>'
        f"<td>{100 * part['top1']:.1f} %</td>"
    )


def time_table(results: list[Result]) -> str:
    names = part_order(results)
    head = "".join(f"<th>{escape(label(name))}</th><th>own</th>" for name in names)
    rows = []
    for result in results:
        cells = ""
        for name in names:
            part = result["parts"].get(name, {})
            times = (part.get(key) for key in ("seconds_per_token", "own_seconds_per_token"))
            cells += "".join(f"<td>{'' if t is None else f'{1e3 * t:.3g}'}</td>" for t in times)
        rows.append(f"<tr><td>{escape(result['recipe'])}</td>{cells}</tr>")
    return (
        f'<div class="scroll"><table><thead><tr><th>milliseconds a token</th>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
        "<p class='note'>The fastest window of each pass, the whole model; own: the model's own attention in one shot, "
        "in the same run. Other programs that ran at the time count too.</p>"
    )


def head_list(result: Result, advice: list[HeadAdvice]) -> str:
    """What to do about the heads of one recipe that stand out."""
    recipe = f"<code>{escape(result['recipe'])}</code>"
    if not advice:
        return f"<p>{recipe}: no head stands out.</p>"
    items = []
    for one in advice[:HEADS_NAMED]:
        if one.remedy is None:
            what = "neither remedy helps"
        else:
            what = f"{REMEDIES[one.remedy]} brings it to {one.remedied:.3f}"
        items.append(f"<li>layer {one.layer}, head {one.head}: error {one.error:.3f}; {what}</li>")
    more = len(advice) - HEADS_NAMED
    if more > 0:
        items.append(f"<li>and {more} more</li>")
    layers = sorted({one.layer for one in advice})
    command = f"mxattn eval --recipes '{by_layers(result, advice)}'"
    return (
        f"<p>{recipe}: {len(advice)} heads in {len(layers)} layers stand out.</p><ul>{''.join(items)}</ul>"
        "<p>The same recipe with these remedies in those layers alone, to be measured by</p>"
        f"<pre><code>{escape(command)}</code></pre>"
    )


def head_note(result: Result) -> str:
    recipes = result["parts"]["heads"]["recipes"]
    remedies = "; ".join(
        f"{REMEDIES[name]}, <code>{escape(recipes[name])}</code>" for name in REMEDIES if name in recipes
    )
    return (
        f"<p class='note'>A head stands out above {OUTLIER:g} times the median of all heads, and above "
        f"{LEAST_ERROR:g}. Remedies tried on the same inputs: {remedies}.</p>"
        if remedies
        else ""
    )

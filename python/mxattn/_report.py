# SPDX-License-Identifier: Apache-2.0
"""A page with pictures and advice from the files of evaluations and benchmarks."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from . import _advice as advice
from ._report_files import Inputs, read_files

DPI, PAGE_DPI = 200, 100
BUDGET = "1%"
BESIDE = 4  # maps of heads or of retrieval in a row


def report(
    files: Iterable[str | os.PathLike[str]],
    out: str | os.PathLike[str] = "report.html",
    *,
    budget: str = BUDGET,
) -> Path:
    """Write one HTML page that needs no other file, and beside it its pictures as PNG in NAME_files/.

    files    JSON of evaluate(), of mxattn bench --json, bench/cpu_bench.py and bench/gpu.sh; or folders of them
    budget   what quality may cost: "0.5%" of perplexity, or "kl=0.01" nats a token

    Returns the page's path. ValueError a file that is none of these, or evaluations of several models;
    ImportError where matplotlib is missing.
    """
    limit, inputs = advice.read_budget(budget), read_files(files)
    if not inputs.results and not inputs.speeds:
        raise ValueError("files: none is given, or none has points to draw")
    setup = one_setup(inputs.results)
    from . import _report_page as pages  # not before the arguments are known to be right

    out = Path(out)
    pictures = Pictures(out.with_name(out.stem + "_files"))
    sections = [*quality_sections(inputs.results, limit, pictures), *speed_sections(inputs, pictures)]
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(pages.page(setup, sections), encoding="utf-8")
    return out


def one_setup(results: list[dict[str, Any]]) -> dict[str, Any] | None:
    setups = [result["setup"] for result in results]
    if any(setup != setups[0] for setup in setups):
        raise ValueError("files: evaluations of different models, texts or lengths do not go on one page")
    return setups[0] if setups else None


class Pictures:
    """Figures as PNG, in a folder and in the page."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, name: str, figure: Any, caption: str) -> str:
        from ._report_page import picture

        memory = io.BytesIO()
        figure.savefig(memory, format="png", dpi=DPI)
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / f"{name}.png").write_bytes(memory.getvalue())
        return picture(memory.getvalue(), caption, int(PAGE_DPI * figure.get_figwidth()))


def quality_sections(
    results: list[dict[str, Any]], budget: advice.Budget, pictures: Pictures
) -> Iterator[str]:
    from . import _report_figures as figures
    from . import _report_page as pages

    compared = [result for result in results if advice.measured(result)]
    if compared:
        yield pages.answer(compared, budget)
        picture = pictures.add(
            "quality",
            figures.quality(compared),
            "Each point is a recipe; the lines join those that no smaller recipe beats. Chunks go through the "
            "quantised cache, as decoding does it.",
        )
        caption = "Dots with two standard errors; recipes in the order of their KL divergence."
        changes = pictures.add("changes", figures.changes(compared), caption)
        yield pages.section("Quality", picture, changes, pages.quality_table(compared, budget))
        yield positions_section(compared, pictures)
        yield pages.section("Time of this run", pages.time_table(compared))
    yield from heads_sections(results, pictures)
    asked = [r for r in results if any(name.startswith("passkey") for name in r["parts"])]
    if asked:
        caption = "Share of the hidden numbers that greedy decoding writes in full."
        grids = [
            pictures.add(f"passkey{i}", figures.passkeys(asked[i : i + BESIDE]), caption)
            for i in range(0, len(asked), BESIDE)
        ]
        yield pages.section("Retrieval", *grids)
    if results:
        best = advice.smallest(compared, budget) or results[0]
        recipe = best["recipe"].partition(";")[0]
        caption = "Causal attention in tiles of 128 queries and 128 keys. What the mask hides is skipped."
        figure = figures.tiles(recipe, best["setup"]["length"])
        yield pages.section("Which tiles are high", pictures.add("tiles", figure, caption))


def positions_section(results: list[dict[str, Any]], pictures: Pictures) -> str:
    from . import _report_figures as figures
    from . import _report_page as pages

    drawn = []
    for i, name in enumerate(advice.part_order(results)):
        caption = "KL divergence of tokens by their position; the band is two standard errors."
        drawn.append(pictures.add(f"positions{i}", figures.positions(results, name), caption))
    return pages.section("By position", *drawn)


def heads_sections(results: list[dict[str, Any]], pictures: Pictures) -> Iterator[str]:
    from . import _report_figures as figures
    from . import _report_page as pages

    shown = [(r, advice.heads_in_need(r)) for r in results if "heads" in r["parts"]]
    if not shown:
        return
    caption = "Error of each head's output against exact attention on the same inputs. Frames: heads that stand out."
    maps = [
        pictures.add(f"heads{i}", figures.heads(shown[i : i + BESIDE]), caption)
        for i in range(0, len(shown), BESIDE)
    ]
    texts = [
        text
        for r, found in shown
        for text in (pages.head_list(r, found), pages.head_note(r) if found else "")
    ]
    yield pages.section("Heads and layers", *maps, *texts)


def speed_sections(inputs: Inputs, pictures: Pictures) -> Iterator[str]:
    if not inputs.speeds:
        return
    from . import _report_figures as figures
    from . import _report_page as pages

    panels = list(dict.fromkeys(speed.panel for speed in inputs.speeds))
    drawn = []
    for i, panel in enumerate(panels):
        points = [speed for speed in inputs.speeds if speed.panel == panel]
        caption = "Operations of visible scores a second: higher is faster."
        drawn.append(pictures.add(f"speed{i}", figures.speed(panel, points), caption))
    yield pages.section("Speed against length", *drawn)

# SPDX-License-Identifier: Apache-2.0
"""The figures of a report."""

from __future__ import annotations

from typing import Any

import numpy as np

try:
    from matplotlib.axes import Axes
    from matplotlib.colors import LinearSegmentedColormap, ListedColormap, LogNorm
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullFormatter
except ImportError as error:
    raise ImportError("mxattn: a report needs matplotlib: pip install mxattn[eval]") from error

from ._advice import HeadAdvice, Result, measured, part_order, size
from ._attention import tile_map
from ._report_files import Speed
from ._structures import TILE

INK, SOFT, GRID = "#1f2933", "#6b7785", "#e4e8ec"
COLORS = "#2563a8", "#d9622b", "#2f8f5b", "#8a4fb5", "#b8860b", "#c23b5a", "#12879a", "#5b6770"
MARKS = "osD^v"
TILES = ListedColormap(["#f3f5f7", "#9cc3e6", "#1d4f86"])  # skipped, low, high
SHARES = LinearSegmentedColormap.from_list("shares", ["#f2b8a6", "#fbeecb", "#a9d8b4"])
LEAST_KL = 1e-7  # of the axis: float32 sums differ by so much
MOST_LINES, MOST_LABELS = 8, 14
TILES_SHOWN = 4096  # tokens of the tile map


def start(width: float, height: float, columns: int = 1, **options: Any) -> tuple[Figure, Any]:
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    axes = figure.subplots(1, columns, **options)
    for ax in np.ravel(axes):
        ax.spines[["top", "right"]].set_visible(False)
        ax.spines[["left", "bottom"]].set_color(SOFT)
        ax.tick_params(colors=SOFT, labelsize=9)
        ax.xaxis.label.set_color(INK)
        ax.yaxis.label.set_color(INK)
    return figure, axes


def title(ax: Axes, text: str) -> None:
    ax.set_title(text, loc="left", fontsize=11, fontweight="bold", color=INK, pad=10)


def part_style(names: list[str]) -> dict[str, tuple[str, str, str]]:
    """Marker, colour and label of each part that was measured."""
    styles = {}
    for i, name in enumerate(names):
        label = "one shot" if name == "prefill" else name
        styles[name] = MARKS[i % len(MARKS)], COLORS[i % len(COLORS)], label
    return styles


def quality(results: list[Result]) -> Figure:
    """KL divergence against bits, with the best of each size joined and named."""
    figure, ax = start(9.6, 5.0)
    styles = part_style(part_order(results))
    for name, (mark, color, label) in styles.items():
        shown = [(size(r), measured(r)[name], r["recipe"]) for r in results if name in measured(r)]
        ax.scatter(
            [bits for bits, _, _ in shown],
            [max(part["kl"], LEAST_KL) for _, part, _ in shown],
            s=46,
            marker=mark,
            color=color,
            edgecolor="white",
            linewidth=0.8,
            label=label,
            zorder=3,
        )
        front = best_of_sizes([(bits, max(part["kl"], LEAST_KL), recipe) for bits, part, recipe in shown])
        ax.plot([x for x, _, _ in front], [y for _, y, _ in front], color=color, linewidth=1.1, alpha=0.45)
    points: dict[tuple[float, str], float] = {}
    for r in results:
        for part in measured(r).values():
            key = size(r), r["recipe"]
            points[key] = max(points.get(key, 0), part["kl"], LEAST_KL)
    label_points(ax, best_of_sizes([(bits, kl, recipe) for (bits, recipe), kl in points.items()]))
    ax.set_yscale("log")
    ax.grid(axis="y", color=GRID)
    ax.set_xlabel("bits of a cached value, mean of K and V, in long sequences")
    ax.set_ylabel("KL divergence (nats a token)")
    ax.margins(x=0.09, y=0.12)
    ax.legend(frameon=False, fontsize=9, labelcolor=INK)
    title(ax, "Quality against bits: lower left is better")
    return figure


def best_of_sizes(points: list[tuple[float, float, str]]) -> list[tuple[float, float, str]]:
    """Those that no other point beats in both."""
    front: list[tuple[float, float, str]] = []
    for point in sorted(points):
        if not front or point[1] < front[-1][1]:
            front.append(point)
    return front


def label_points(ax: Axes, points: list[tuple[float, float, str]]) -> None:
    """Above and below the points in turn, so that neighbours do not meet."""
    for i, (bits, kl, recipe) in enumerate(points[:MOST_LABELS]):
        offset = (7, 7) if i % 2 == 0 else (7, -14)
        ax.annotate(recipe, (bits, kl), offset, textcoords="offset points", fontsize=8.5, color=INK, zorder=4)


def changes(results: list[Result]) -> Figure:
    """Change of perplexity and KL divergence of every recipe, as dots with two standard errors."""
    ordered = sorted(results, key=lambda r: -max((p["kl"] for p in measured(r).values()), default=0))
    figure, (left, right) = start(9.6, 1.4 + 0.3 * len(ordered), 2, sharey=True)
    styles = part_style(part_order(results))
    rows = np.arange(len(ordered))
    for i, (name, (mark, color, label)) in enumerate(styles.items()):
        shift = 0.16 * (i - (len(styles) - 1) / 2)
        at = [row for row in rows if name in measured(ordered[row])]
        parts = [measured(ordered[row])[name] for row in at]
        options = {"fmt": mark, "color": color, "markersize": 5, "elinewidth": 1.4, "label": label}
        y = np.array(at) + shift
        left.errorbar(
            [100 * p["change"] for p in parts], y, xerr=[200 * p["change_error"] for p in parts], **options
        )
        right.errorbar(
            [max(p["kl"], LEAST_KL) for p in parts], y, xerr=[2 * p["kl_error"] for p in parts], **options
        )
    left.axvline(0, color=SOFT, linewidth=0.9)
    left.set_xscale("symlog", linthresh=0.1, linscale=0.6)
    left.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    right.set_xscale("log")
    left.set_yticks(rows, [r["recipe"] for r in ordered], fontsize=9, color=INK)
    left.set_ylim(-0.6, len(ordered) - 0.4)
    left.set_xlabel("change of perplexity, % (linear below 0.1)")
    right.set_xlabel("KL divergence (nats a token)")
    for ax in (left, right):
        ax.grid(color=GRID)
        ax.set_axisbelow(True)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside upper right", ncols=5, frameon=False, fontsize=9, labelcolor=INK
    )
    title(left, "Perplexity")
    title(right, "KL divergence")
    return figure


def positions(results: list[Result], name: str) -> Figure:
    """KL divergence by position in the window; of many recipes those with the shortest texts, the named ones."""
    figure, ax = start(9.6, 4.2)
    shown = [r for r in results if name in measured(r)]
    shown = sorted(shown, key=lambda r: r["recipe"].count(","))[:MOST_LINES]
    for color, result in zip(COLORS, shown):
        buckets = result["parts"][name]["buckets"]
        x = np.arange(len(buckets))
        y = np.array([max(b["kl"], LEAST_KL) for b in buckets])
        error = 2 * np.array([b["kl_error"] for b in buckets])
        ax.plot(x, y, color=color, marker="o", markersize=5, linewidth=1.7, label=result["recipe"])
        ax.fill_between(x, np.maximum(y - error, y / 4), y + error, color=color, alpha=0.13, linewidth=0)
        ax.set_xticks(x, [f"{b['first']}–{b['end']}" for b in buckets])
    ax.set_yscale("log")
    ax.grid(axis="y", color=GRID)
    ax.set_xlabel("position in the window, tokens")
    ax.set_ylabel("KL divergence (nats a token)")
    ax.legend(frameon=False, fontsize=9, labelcolor=INK, loc="center left", bbox_to_anchor=(1.0, 0.5))
    title(ax, f"Where in the text: {'one shot' if name == 'prefill' else name}")
    return figure


def heads(results: list[tuple[Result, list[HeadAdvice]]]) -> Figure:
    """Error of each layer's heads, one map a recipe on one colour scale; heads that stand out are framed."""
    maps = [np.array(r["parts"]["heads"]["errors"]["recipe"]) for r, _ in results]
    layers, count = maps[0].shape
    figure, axes = start(9.6, 1.3 + 0.16 * layers, len(maps), sharey=True)
    seen = np.concatenate([np.ravel(m) for m in maps])
    norm = LogNorm(max(seen.min(), 1e-5), max(seen.max(), 1e-4))
    for ax, (result, advice), errors in zip(np.ravel(axes), results, maps):
        image = ax.imshow(errors, norm=norm, cmap="YlOrRd", aspect="auto")
        for one in advice:
            ax.add_patch(frame(one.head, one.layer))
        ax.set_xlabel("head")
        ax.set_xticks(range(0, count, max(1, count // 8)))
        ax.spines[:].set_visible(False)
        title(ax, result["recipe"])
    np.ravel(axes)[0].set_ylabel("layer")
    bar = figure.colorbar(image, ax=np.ravel(axes).tolist(), pad=0.015, aspect=32)
    bar.set_label("relative error of the output", color=INK)
    bar.ax.tick_params(colors=SOFT, labelsize=9)
    bar.outline.set_visible(False)
    return figure


def frame(column: int, row: int) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor=INK, linewidth=1.3)


def passkeys(results: list[Result]) -> Figure:
    """Share of keys found, by depth and length; below the recipes the model's own attention."""
    grids = [(r["recipe"], retrieval(r, "found")) for r in results]
    grids.append(("own attention", retrieval(results[0], "own_found")))
    figure, axes = start(9.6, 2.7, len(grids), sharey=True)
    for ax, (name, (depths, lengths, share)) in zip(np.ravel(axes), grids):
        ax.imshow(share, vmin=0, vmax=1, cmap=SHARES, aspect="auto")
        for (row, column), value in np.ndenumerate(share):
            ax.text(column, row, f"{100 * value:.0f} %", ha="center", va="center", fontsize=9, color=INK)
        ax.set_xticks(range(len(lengths)), lengths)
        ax.set_yticks(range(len(depths)), [f"{100 * d:.0f} %" for d in depths])
        ax.set_xlabel("tokens")
        ax.spines[:].set_visible(False)
        title(ax, name)
    np.ravel(axes)[0].set_ylabel("depth of the key")
    return figure


def retrieval(result: Result, which: str) -> tuple[list[float], list[int], np.ndarray]:
    parts = {
        int(name.rsplit(" ", 1)[1]): rows
        for name, rows in result["parts"].items()
        if name.startswith("passkey")
    }
    lengths = sorted(parts)
    depths = [row["depth"] for row in parts[lengths[0]]]
    share = [[row[which] / row["trials"] for row in parts[length]] for length in lengths]
    return depths, lengths, np.array(share).T


def tiles(recipe: str, length: int) -> Figure:
    """Which tiles of a causal window are high and low."""
    length = min(length, TILES_SHOWN)
    precision = tile_map(length, length, causal=True, recipe=recipe).precision
    figure, ax = start(5.2, 4.7)
    rows, columns = (TILE * n for n in precision.shape)
    ax.imshow(precision, cmap=TILES, vmin=0, vmax=2, extent=(0, columns, rows, 0))
    ax.set_xlabel("key")
    ax.set_ylabel("query")
    ax.spines[:].set_visible(False)
    shares = [(precision == p).sum() / max((precision > 0).sum(), 1) for p in (2, 1)]
    labels = [f"high, {100 * shares[0]:.0f} % of the tiles", f"low, {100 * shares[1]:.0f} %"]
    handles = [ax.scatter([], [], marker="s", s=70, color=TILES(p)) for p in (2, 1)]
    ax.legend(handles, labels, frameon=False, fontsize=9, labelcolor=INK, loc="upper right")
    title(ax, f"Tiles of {recipe} over {length} tokens")
    return figure


def speed(panel: str, speeds: list[Speed]) -> Figure:
    if len({s.length for s in speeds}) == 1:
        return speed_at_one_length(panel, speeds)
    figure, ax = start(9.6, 4.2)
    names = list(dict.fromkeys(s.contender for s in speeds))
    for i, name in enumerate(names):
        points = sorted((s.length, s.rate) for s in speeds if s.contender == name)
        style = "-" if i < len(COLORS) else "--"
        x, y = zip(*points)
        ax.plot(
            x, y, style, marker="o", markersize=5, color=COLORS[i % len(COLORS)], linewidth=1.7, label=name
        )
    lengths = sorted({s.length for s in speeds})
    ax.set_xscale("log", base=2)
    ax.set_xticks(lengths, [f"{n >> 10}k" if n % 1024 == 0 else str(n) for n in lengths])
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_ylim(bottom=0)
    ax.grid(axis="y", color=GRID)
    ax.set_xlabel("tokens")
    ax.set_ylabel(speeds[0].unit)
    ax.legend(frameon=False, fontsize=9, labelcolor=INK, loc="center left", bbox_to_anchor=(1.0, 0.5))
    title(ax, panel)
    return figure


def speed_at_one_length(panel: str, speeds: list[Speed]) -> Figure:
    ordered = sorted(speeds, key=lambda s: s.rate)
    figure, ax = start(9.6, 1.2 + 0.32 * len(ordered))
    bars = ax.barh([s.contender for s in ordered], [s.rate for s in ordered], color=COLORS[0], height=0.62)
    ax.bar_label(bars, fmt="%.0f", padding=4, fontsize=9, color=INK)
    ax.set_xlabel(ordered[0].unit)
    title(ax, f"{panel}, {ordered[0].length} tokens")
    return figure

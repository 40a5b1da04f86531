# SPDX-License-Identifier: Apache-2.0
"""The table, the figures and the plot of bench/cpu_bench.py."""

import statistics

# Floor and goal of each figure; a machine with AMX has a faster PyTorch.
OF_PEER = {"dma8": (2.5, 3.3), "dma4": (2.5, 3.3), "bf16": (2.0, 2.5)}
OF_PEER_AMX = {"dma8": (1.2, 1.6), "dma4": (1.2, 1.6)}
OF_PEAK = 0.60, 0.80
OF_FP32_AVX2 = 1.0, 1.5
COMPARED_LENGTH = 4096

# What Q K is multiplied in, as mxattn_peak names it; P V is "half" throughout, by fp32 instructions where these are
# faster or the only ones. AMX multiplies decoded MXFP4 as bf16.
USES = {"dma8": "int", "dma4": "int", "bf16": "half"}
USES_AMX = USES | {"dma4": "half"}


def best_peaks(*runs):
    """Of several runs of mxattn_peak, since other programs only take away."""
    best = dict(runs[0])
    for other in runs[1:]:
        for key in ("read_gbs", "copy_gbs"):
            best[key] = max(best[key], other[key])
        best["peaks"] = [
            a if (a["gops"] or 0) >= (b["gops"] or 0) else b for a, b in zip(best["peaks"], other["peaks"])
        ]
    return best


def level_of(entry):
    """avx512 for the entry avx512_bf16."""
    return entry.split("_")[0]


def mixed_peak(peaks, level, recipe):
    """GFLOP/s if Q K and P V took turns at their peaks; None for levels that mxattn_peak does not have."""
    found = {(p["level"], p["use"]): p["gops"] for p in peaks["peaks"] if p["gops"]}
    use = (USES_AMX if level == "amx" else USES)[recipe]
    half = max(found.get((level, "half"), 0), found.get((level, "f32"), 0))
    products = half if use == "half" else found.get((level, use))
    return 2 / (1 / products + 1 / half) if products and half else None


def spread(ms):
    """From the 10th to the 90th percentile, as a share of the median."""
    ordered, tenth = sorted(ms), len(ms) // 10
    return (ordered[-1 - tenth] - ordered[tenth]) / statistics.median(ms)


def finish(results):
    """Add rates, ratios and the figures that the rows give."""
    for row in results["rows"]:
        row["median_ms"], row["spread"] = statistics.median(row["ms"]), spread(row["ms"])
        row["gflops"] = 2e-6 * row["flops_of_a_product"] / row["median_ms"]
        row["share_of_peak"] = None
        if row["contender"] == "mxattn":
            peak = mixed_peak(results["peaks"], level_of(row["entry"]), row["variant"])
            row["share_of_peak"] = peak and row["gflops"] / peak
    for geometry, length in shapes(results):
        rows = rows_of(results, geometry, length)
        ours = {r["variant"]: r["median_ms"] for r in rows if r["contender"] == "mxattn"}
        for row in rows:
            row["times_ours"] = {recipe: row["median_ms"] / ms for recipe, ms in ours.items()}
    found = [figure for geometry in geometries(results) for figure in compared(results, geometry)]
    results["figures"] = found + results["figures"]


def geometries(results):
    return list(dict.fromkeys(row["geometry"] for row in results["rows"]))


def shapes(results):
    return list(dict.fromkeys((row["geometry"], row["length"]) for row in results["rows"]))


def rows_of(results, geometry, length):
    return [r for r in results["rows"] if (r["geometry"], r["length"]) == (geometry, length)]


def compared(results, geometry):
    """Figures at the compared length: against the best peer, and against the peak."""
    rows = rows_of(results, geometry, COMPARED_LENGTH)
    peers = [r for r in rows if r["contender"] != "mxattn"]
    fp32 = [r["median_ms"] for r in peers if r["contender"] == "torch" and r["variant"].startswith("fp32")]
    found = []
    for row in (r for r in rows if r["contender"] == "mxattn"):
        recipe, where = row["variant"], f"{row['variant']}, {geometry}"
        aims = OF_PEER | (OF_PEER_AMX if row["entry"] == "amx" else {})
        if peers:
            best = min(peers, key=lambda r: r["median_ms"])
            name = f"best peer ({label(best)}) / mxattn, {where}"
            found.append((name, best["median_ms"] / row["median_ms"], *aims[recipe]))
        if row["share_of_peak"]:
            found.append((f"share of the mixed peak, {where}", row["share_of_peak"], *OF_PEAK))
        if row["entry"] == "avx2" and fp32:
            found.append(
                (f"PyTorch fp32 / mxattn on AVX2, {where}", min(fp32) / row["median_ms"], *OF_FP32_AVX2)
            )
    return found


def label(row):
    return f"{row['contender']} {row['variant']}"


def number(x, form):
    return "-" if x is None else format(x, form)


def table(titles, rows):
    """First column to the left, others to the right."""
    widths = [max(len(row[i]) for row in (titles, *rows)) for i in range(len(titles))]
    padded = [[f"{c:>{w}}" for c, w in zip(row, widths)] for row in (titles, *rows)]
    return ["  ".join((cells[0].strip().ljust(widths[0]), *cells[1:])).rstrip() for cells in padded]


def shown(results, geometry, length):
    """All contenders at the compared length; elsewhere mxattn and the fastest peer."""
    rows = rows_of(results, geometry, length)
    ours = [r for r in rows if r["contender"] == "mxattn"]
    peers = [r for r in rows if r["contender"] != "mxattn"]
    return ours + (peers if length == COMPARED_LENGTH else sorted(peers, key=lambda r: r["median_ms"])[:1])


def line(row, recipes):
    return (
        f"{row['geometry']}, {row['length']}: {label(row)}",
        f"{row['median_ms']:.2f}",
        f"{100 * row['spread']:.0f} %",
        str(len(row["ms"])),
        f"{row['gflops']:.1f}",
        number(row["share_of_peak"], ".2f"),
        *(f"{row['times_ours'][recipe]:.2f}" for recipe in recipes),
        number(row["error"], ".1e"),
    )


FIGURE_TITLES = "figure", "value", "floor", "goal"


def text(results):
    m, peaks = results["machine"], results["peaks"]
    versions = list(dict.fromkeys(row["version"] for row in results["rows"]))
    lines = [
        f"{m['cpu']} (family/model/stepping {m['family_model_stepping']}), {m['threads']} of {m['cores']} cores, "
        f"commit {m['commit']}, {m['date']}",
        ", ".join(versions),
        "",
        *table(
            ("instruction", "Gop/s"),
            [(f"{p['level']} {p['use']}: {p['instruction']}", number(p["gops"], ".0f")) for p in peaks["peaks"]],
        ),
        f"memory: read {peaks['read_gbs']:.1f} GB/s, copy {peaks['copy_gbs']:.1f} GB/s",
    ]  # fmt: skip
    recipes = list(dict.fromkeys(r["variant"] for r in results["rows"] if r["contender"] == "mxattn"))
    body = [line(row, recipes) for shape in shapes(results) for row in shown(results, *shape)]
    titles = [
        f"causal attention, {results['clock']} time",
        "median ms",
        "spread",
        "runs",
        "GFLOP/s",
        "of peak",
    ]
    titles += [*(f"/ {recipe}" for recipe in recipes), "error"]
    lines += ["", *table(titles, body)]
    lines += [
        "",
        *table(FIGURE_TITLES, [(n, *(f"{x:.2f}" for x in values)) for n, *values in results["figures"]]),
        "",
        *[f"not compared: {why}" for why in results["missing"]],
    ]
    return "\n".join(lines).rstrip()


NOTES = """\
Contenders take turns on each shape, with the same inputs (normal, numbers that bf16 holds) and threads. The
spread is from the 10th to the 90th percentile, as a share of the median; the clock is {clock} time. mxattn
quantises Q and K in every call; llama.cpp gets K and V as they lie in its cache, and PyTorch and OpenVINO get
K and V expanded where it says so. GFLOP/s counts visible scores only. "of peak" is the share of what the
level's own instructions reach in the same run if Q K and P V take turns: Q K in integers for low bits, in 16
bits for `bf16`; P V in 16 bits or fp32, whichever is faster. "/ dma8" is a row's time by that of mxattn's
recipe. error: relative L2 of some rows against float64. All shapes and times are in the JSON file; below 4096
tokens and above it, the table has the fastest peer.
"""


def page(results, body, command):
    notes = NOTES.format(clock=results["clock"])
    return f"# CPU attention: {results['machine']['cpu']}\n\n`{command}`\n\n```\n{body}\n```\n\n{notes}"


def best_rows(results, geometry, length):
    """{series: row}: each recipe of mxattn, and the fastest variant of each peer and type."""
    found = {}
    for row in sorted(rows_of(results, geometry, length), key=lambda r: -r["median_ms"]):
        found[f"{row['contender']} {row['variant'].split()[0]}"] = row
    return found


LEGEND_SHARE = 0.05  # of the height


def plot(results, file):
    """Speed and share of the peak over the length, a column for each geometry."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    columns = geometries(results)
    figure, axes = plt.subplots(2, len(columns), figsize=(6 * len(columns), 8), sharex=True, squeeze=False)
    names = sorted({n for g, length in shapes(results) for n in best_rows(results, g, length)},
                   key=lambda n: (not n.startswith("mxattn"), n))  # fmt: skip
    for column, geometry in enumerate(columns):
        lengths = [length for g, length in shapes(results) if g == geometry]
        for i, name in enumerate(names):
            rows = [best_rows(results, geometry, n).get(name) for n in lengths]
            ours = name.startswith("mxattn")
            style = {"color": f"C{i}", "marker": "o", "markersize": 4, "linestyle": "-" if ours else "--"}
            for axis, key in ((axes[0][column], "gflops"), (axes[1][column], "share_of_peak")):
                points = [(n, row[key]) for n, row in zip(lengths, rows) if row and row[key] is not None]
                if points:
                    axis.plot(*zip(*points), label=name, **style)
        axes[0][column].set(title=f"causal, {geometry}", ylabel="GFLOP/s")
        axes[1][column].set(ylabel="share of the level's mixed peak", xlabel="tokens", ylim=(0, 1))
        for axis in axes[:, column]:
            axis.set_xscale("log", base=2)
            axis.set_xticks(lengths, [str(n) for n in lengths])
            axis.set_ylim(bottom=0)
            axis.grid(alpha=0.3)
    machine = results["machine"]
    figure.suptitle(f"{machine['cpu']}, threads: {machine['threads']}, {machine['date']}")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="lower center", ncol=len(names))
    figure.tight_layout(rect=(0, LEGEND_SHARE, 1, 1))
    figure.savefig(file, dpi=120)

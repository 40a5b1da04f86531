# SPDX-License-Identifier: Apache-2.0
"""mxattn report."""

from __future__ import annotations

import argparse

from ._report import BUDGET, report
from ._report_files import read_files
from ._report_table import markdown


def run(arguments: list[str]) -> int:
    p = argparse.ArgumentParser(
        prog="mxattn report",
        description="One HTML page with pictures and advice, from what mxattn eval, mxattn bench --json, "
        "bench/cpu_bench.py and bench/gpu.sh wrote.",
        epilog="Example: mxattn report mxattn-eval -o report.html --budget 0.5%%",
    )
    p.add_argument("files", nargs="+", help="JSON files, or folders of them")
    p.add_argument("-o", "--out", default="report.html", metavar="FILE", help="the page (report.html)")
    p.add_argument("--budget", default=BUDGET, metavar="B", help='"0.5%%" of perplexity or "kl=0.01" (1%%)')
    p.add_argument("--markdown", action="store_true", help="no page: print a table of the evaluations")
    options = p.parse_args(arguments)
    if options.markdown:
        print(markdown(read_files(options.files).results))
        return 0
    print(report(options.files, options.out, budget=options.budget))
    return 0

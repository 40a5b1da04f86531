# SPDX-License-Identifier: Apache-2.0
"""Sum the results that tools/test.sh left in a folder: one line, and exit status 1 if anything failed.

steps.txt has a line for each step: "check NAME STATUS" is one test (77 means skipped), "suite NAME STATUS" has its
tests in NAME.xml (JUnit). A program that counts its own tests (cmocka, mxa_check) is as many tests as it prints.
"""

import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

SKIPPED = 77
CMOCKA = {kind: re.compile(rf"\[ *{kind} *\] (\d+) test") for kind in ("PASSED", "FAILED", "SKIPPED")}
HARNESS = re.compile(r"^mxa_check: (\d+) passed, (\d+) failed, (\d+) skipped$", re.MULTILINE)


def count_case(case):
    """[passed, failed, skipped] of one JUnit test case."""
    skip = case.find("skipped")
    # CTest also says "skipped" of a program that was never built.
    not_built = skip is not None and case.get("status") == "notrun" and "SKIP_" not in skip.get("message", "")
    failed = not_built or case.find("failure") is not None or case.find("error") is not None
    output = case.findtext("system-out") or ""
    harness = HARNESS.search(output)
    if harness:
        counts = [int(n) for n in harness.groups()]
    else:
        counts = [sum(int(n) for n in CMOCKA[kind].findall(output)) for kind in ("PASSED", "FAILED", "SKIPPED")]
    if failed and counts[1] == 0:  # a crash, or a program without counts
        counts[1] = 1
    elif sum(counts) == 0:
        counts = [1, 0, 0] if skip is None else [0, 0, 1]
    return counts


def count_suite(path, status):
    if not path.exists():
        return [0, 1, 0]
    totals = [sum(column) for column in zip([0, 0, 0], *(count_case(c) for c in ET.parse(path).iter("testcase")))]
    if status != 0 and totals[1] == 0:  # it failed outside its tests
        totals[1] = 1
    return totals


def main(folder):
    totals = [0, 0, 0]
    for line in (folder / "steps.txt").read_text().splitlines():
        kind, name, status = line.split()
        status = int(status)
        if kind == "suite":
            counts = count_suite(folder / f"{name}.xml", status)
        else:
            counts = [status == 0, status not in (0, SKIPPED), status == SKIPPED]
        totals = [a + b for a, b in zip(totals, counts)]
    print(f"{totals[0]} passed, {totals[1]} failed, {totals[2]} skipped")
    return totals[1] > 0 or totals[0] == 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

# SPDX-License-Identifier: Apache-2.0
"""The verbs eval and report of the command mxattn; all others belong to the C program of that name."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ._version import __version__

DONE, FAILED, WRONG_LINE = 0, 1, 2
HELP = """Usage: mxattn VERB [OPTION...]

  eval        what recipes cost a language model in quality, on this machine's files
  report      a page with pictures and advice from the results

  mxattn VERB --help    the options of a verb
  mxattn --version      the version

Other verbs are those of the C program mxattn, which is called for them if PATH has it."""


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0 done, 1 failed, 2 the command line is wrong."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] in (["--help"], ["-h"]):
        print(HELP)
        return DONE
    if arguments[:1] == ["--version"]:
        print(f"mxattn {__version__}")
        return DONE
    if arguments[:1] not in (["eval"], ["report"]):
        return run_program(arguments)
    try:
        if arguments[0] == "eval":
            from ._evaluate_command import run
        else:
            from ._report_command import run
        return run(arguments[1:])
    except (ValueError, ImportError, RuntimeError, OSError) as error:
        print(f"mxattn: {str(error).removeprefix('mxattn: ')}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("mxattn: interrupted; the same command goes on from here", file=sys.stderr)
        return FAILED


def run_program(arguments: list[str]) -> int:
    """Become the C program mxattn, the first in PATH that is not this script."""
    this = Path(sys.argv[0]).resolve()
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        program = Path(folder) / "mxattn"
        if folder and os.access(program, os.X_OK) and program.is_file() and not is_script(program, this):
            os.execv(program, ["mxattn", *arguments])
    verb = f"verb {arguments[0]!r}" if arguments else "no verb"
    print(
        f"mxattn: {verb}; this package has eval and report, and PATH has no C program mxattn for others",
        file=sys.stderr,
    )
    return WRONG_LINE


def is_script(program: Path, this: Path) -> bool:
    """Whether it is this script, or that of another environment: both start with #!, which no binary does."""
    with program.open("rb") as file:
        return program.resolve() == this or file.read(2) == b"#!"

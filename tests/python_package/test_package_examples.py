# SPDX-License-Identifier: Apache-2.0
"""The Python examples run, and print what they are about."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers", minversion="5.6")

TREE = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name,lines", [("generate_quantized", 3), ("patch_model", 7)])
def test_example(name, lines):
    done = subprocess.run(
        [sys.executable, TREE / "examples" / f"{name}.py"],
        env=os.environ | {"PYTHONPATH": str(TREE / "python")},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == lines

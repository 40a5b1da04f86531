# SPDX-License-Identifier: Apache-2.0
"""The library that the package opens, and what is not there."""

import ctypes as C
import os
import re
import subprocess
import sys
from pathlib import Path

import mxa
import mxa_cache
import mxa_header
import mxattn
import pytest
from mxattn import _arrays, _structures

TREE = Path(__file__).resolve().parents[2]


def python(code, **environment):
    """Run code in a new interpreter that finds the package in the tree."""
    variables = os.environ | {"PYTHONPATH": str(TREE / "python")} | environment
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=variables, check=False, timeout=120
    )


def test_one_version():
    version = mxattn.__version__
    assert mxa.lib().mxa_version().decode() == version
    assert f"project(mxattn VERSION {version} " in (TREE / "CMakeLists.txt").read_text()
    assert f'\nversion = "{version}"\n' in (TREE / "pyproject.toml").read_text()


def test_a_library_of_another_version(tmp_path):
    other = tmp_path / "libother.so"
    data = Path(mxa.lib()._name).read_bytes()
    other.write_bytes(data.replace(mxattn.__version__.encode() + b"\0", b"9.9.9\0"))
    done = python("import mxattn", MXATTN_LIB=str(other))
    last = done.stderr.splitlines()[-1]
    assert last == (
        f"ImportError: mxattn: the package is {mxattn.__version__}, its library {other} is 9.9.9; "
        "reinstall the package"
    )


def test_no_library(tmp_path):
    for content in (None, b"no library"):
        path = tmp_path / "libmxattn.so"
        if content:
            path.write_bytes(content)
        done = python("import mxattn", MXATTN_LIB=str(path))
        assert done.stderr.splitlines()[-1].startswith(f"ImportError: mxattn: {path} cannot be loaded (")
    done = python("import mxattn", MXATTN_LIB="")
    beside = TREE / "python/mxattn/libmxattn.so"
    assert f"ImportError: mxattn: {beside} cannot be loaded" in done.stderr


def test_no_cuda_library(tmp_path):
    absent = tmp_path / "libmxattn_cuda.so"
    done = python("import mxattn; mxattn.Cache(1, 1, 64, device='cuda:0')", MXA_CUDA_LIBRARY=str(absent))
    last = done.stderr.splitlines()[-1]
    assert last.startswith("RuntimeError: ") and str(absent) in last


def test_importing_needs_numpy_only():
    done = python("import sys, mxattn; print('torch' in sys.modules, 'ml_dtypes' in sys.modules)")
    assert done.stdout == "False False\n"


def test_without_ml_dtypes():
    done = python(
        "import sys, numpy as np; sys.modules['ml_dtypes'] = None; import mxattn\n"
        "packed = mxattn.quantize(np.zeros((1, 1, 1, 32), np.float32), 'mxfp4')\n"
        "mxattn.dequantize(packed, dtype='bfloat16')"
    )
    last = done.stderr.splitlines()[-1]
    assert last == "ImportError: mxattn: bfloat16 in NumPy needs ml_dtypes: pip install mxattn[bfloat16]"


PAIRS = {
    _structures.Tensor: mxa_header.Tensor,
    _structures.FormatInfo: mxa_header.FormatInfo,
    _structures.QuantOpts: mxa_header.QuantOpts,
    _structures.PackedBuffers: mxa_header.Packed,
    _structures.PackedSize: mxa_header.PackedSize,
    _structures.Recipe: mxa_header.RecipeStruct,
    _structures.Problem: mxa_header.Problem,
    _structures.AttentionArgs: mxa_header.AttentionArgs,
    _structures.TileRange: mxa_header.TileRange,
    _structures.CacheOpts: mxa_cache.Opts,
    _structures.CacheAttendArgs: mxa_cache.AttendArgs,
}


@pytest.mark.parametrize("ours", PAIRS, ids=lambda s: s.__name__)
def test_structures(ours):
    """Fields and offsets are those of the tests' own reading of the header."""
    theirs = PAIRS[ours]
    assert C.sizeof(ours) == C.sizeof(theirs)
    offsets = [[(name, getattr(s, name).offset) for name, *_ in s._fields_] for s in (ours, theirs)]
    assert offsets[0] == offsets[1]


def test_sizes_that_the_library_writes():
    problem, recipe, opts = _structures.Problem(), _structures.Recipe(), _structures.QuantOpts()
    cache = _structures.CacheOpts()
    mxa.lib().mxa_problem_default(C.byref(problem), *(C.c_int64(1) for _ in range(6)))
    mxa.lib().mxa_recipe_default(C.byref(recipe))
    mxa.lib().mxa_quant_default(C.byref(opts))
    mxa.lib().mxa_cache_default(C.byref(cache), *(C.c_int64(1) for _ in range(3)))
    for made in (problem, recipe, opts, cache):
        assert made.size == C.sizeof(made)
    assert _arrays.TENSOR.size == C.sizeof(_structures.Tensor)


def test_numbers_of_the_header():
    header = (TREE / "include/mxattn/mxattn.h").read_text()
    for name, value in (
        ("ERR_MEMORY", _structures.ERR_MEMORY),
        ("ERR_DEVICE", _structures.ERR_DEVICE),
        ("ERR_FILE", _structures.ERR_FILE),
        ("DTYPE_BF16", _structures.DTYPE_BF16),
        ("AXIS_TOKEN", _structures.AXES["token"]),
        ("RULE_EVEN", _structures.RULES["even"]),
        ("LEVEL_TOKEN", _structures.LEVELS["token"]),
        ("NONFINITE_SANITIZE", _structures.NONFINITE["sanitize"]),
        ("LAYOUT_AMD", _structures.SCALE_LAYOUTS["amd"]),
        ("NVFP4_FOUR_OVER_SIX", _structures.NVFP4_OPTIONS["four_over_six"]),
        ("DEVICE_CPU", _structures.DEVICE_CPU),
    ):
        assert re.search(rf"\bMXA_{name} = {value}\b", header), name

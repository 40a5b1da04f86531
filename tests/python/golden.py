# SPDX-License-Identifier: Apache-2.0
"""The attention cases of tests/vectors as arrays, and the recipes in which each case is exact."""

from types import SimpleNamespace

import numpy as np

import oracle_formats as of
import oracle_map as om
import vectors


def operand(stored, heads, rows, dim):
    if "e2m1" in stored:
        digits = [np.array([int(c, 16) for c in text], np.uint8) for text in stored["e2m1"]]
        parts = [np.ldexp(of.decode("e2m1", d), stored["log2_scale"]) for d in digits]
    else:
        ((kind, texts),) = stored.items()
        parts = [vectors.fp32(t) if kind == "fp32" else vectors.bf16(t) for t in texts]
    return np.array(parts, np.float32).reshape(1, heads, rows, dim)


def attention_case(c):
    case = SimpleNamespace(**{name: value for name, value in c.items() if name not in ("q", "k", "v")})
    case.name = c["case"]
    case.q = operand(c["q"], c["heads"], c["q_len"], c["head_dim"])
    stored = [operand(c[x], c["heads_kv"], c["kv_rows"], c["head_dim"]) for x in ("k", "v")]
    case.k, case.v = (x[:, :, : c["kv_len"]] for x in stored)  # the rows behind are padding
    case.rows = c["expected"]["rows"]
    case.o = [np.array([[float(v) for v in row] for row in head]) for head in c["expected"]["o"]]
    case.lse = [np.array([float(v) for v in head]) for head in c["expected"]["lse"]]
    return case


def attention_cases():
    return [attention_case(c) for c in vectors.load("attention.json")]


def golden_mask(case):
    return om.Mask(left=case.window_left, right=case.window_right)


def golden_recipes(case):
    """(name, recipe, g) in which the quantised operands are the stored ones; X6 is the mixed run itself."""
    diag, sink = case.diag_window, case.sink_window
    if case.name == "X6":
        return [("mixed", om.Recipe("nvfp4", "nvfp4", "mxfp8", "mxfp8", diag, sink), None)]
    found = [
        ("exact", om.RECIPES["exact"], None),
        ("f32", om.Recipe("f32", "f32", "f32", "f32", diag, sink), None),
    ]
    exact_q, exact_k = case.exact_in["q"], case.exact_in["k"]
    if case.smooth_k:
        exact_k = exact_q  # K minus its mean is exact in all formats
    smooth = "full" if case.smooth_k else None
    for name in exact_q:
        if name in exact_k:
            fmt = vectors.FORMAT_OF[name]
            level = None if of.FORMATS[fmt].rule else "tensor"
            recipe = om.Recipe(fmt, fmt, fmt, fmt, diag, sink, smooth=smooth, level_q=level, level_k=level)
            found.append((name, recipe, level and np.ones(1, np.float32)))
    return found

# SPDX-License-Identifier: Apache-2.0
"""mxa_tile_map_at against a brute-force look at every pair of every tile."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mxa
import oracle_map as om
import vectors

BF16_LOW = om.Recipe("mxfp4", "mxfp4", "bf16", "bf16")


def problem_of(q_len, kv_len, mask, cu_q=None, cu_k=None):
    offset = mxa.OFFSET_AUTO if mask.offset is None else mask.offset
    shapes = (1, 1, q_len, 64), (1, 1, kv_len, 64)
    return mxa.make_problem(
        *shapes,
        64,
        causal=mask.causal,
        window_left=mask.left,
        window_right=mask.right,
        q_offset=offset,
        cu_q=cu_q,
        cu_k=cu_k,
    )


def library_map(q_len, kv_len, mask, recipe, b=0, **cu):
    return mxa.tile_map(problem_of(q_len, kv_len, mask, **cu), mxa.recipe_struct(recipe), b)


@pytest.mark.parametrize("case", vectors.load("tile_map.json"), ids=lambda c: f"{c['q_len']}x{c['kv_len']}")
def test_golden(case):
    mask = om.Mask(left=case["window_left"], right=case["window_right"], offset=case.get("q_offset"))
    recipe = replace(BF16_LOW, diag=case["diag_window"], sink=case["sink_window"])
    got = library_map(case["q_len"], case["kv_len"], mask, recipe)
    assert got == (case["first_query_tile"], case["map"])


WINDOWS = st.one_of(st.just(-1), st.integers(0, 3), st.integers(0, 700))
EDGES = st.one_of(st.sampled_from([0, 1, 2, 127, 128, 129, 130, 255, 256, 257]), st.integers(0, 900))


@st.composite
def masks(draw):
    offset = draw(st.one_of(st.none(), st.integers(-700, 900)))
    return om.Mask(draw(st.booleans()), draw(WINDOWS), draw(WINDOWS), offset)


@given(q_len=EDGES, kv_len=EDGES, mask=masks(), diag=EDGES, sink=EDGES)
def test_brute_force(q_len, kv_len, mask, diag, sink):
    recipe = replace(BF16_LOW, diag=diag, sink=sink)
    first, rows = library_map(q_len, kv_len, mask, recipe)
    want_first, want_rows = om.tile_rows(recipe, mask, q_len, kv_len)
    assert rows == want_rows
    assert not rows or first == want_first


@given(
    lengths=st.lists(st.tuples(EDGES, EDGES), min_size=1, max_size=3), mask=masks(), diag=EDGES, sink=EDGES
)
def test_packed_sequences(lengths, mask, diag, sink):
    """Tiles count inside each sequence."""
    recipe = replace(BF16_LOW, diag=diag, sink=sink)
    cu_q, cu_k = (np.cumsum([0] + [pair[i] for pair in lengths]) for i in (0, 1))
    for b, (q_len, kv_len) in enumerate(lengths):
        got = library_map(cu_q[-1] + 3, cu_k[-1] + 5, mask, recipe, b, cu_q=cu_q, cu_k=cu_k)
        want = om.tile_rows(recipe, mask, q_len, kv_len)
        assert got[1] == want[1]


@given(
    total=st.integers(1, 900),
    split=st.integers(1, 200),
    causal=st.booleans(),
    left=WINDOWS,
    diag=EDGES,
    sink=EDGES,
)
def test_chunks_and_decode_agree_with_one_shot(total, split, causal, left, diag, sink):
    """A pair has the same precision in every call that holds it."""
    recipe = replace(BF16_LOW, diag=diag, sink=sink)
    _, whole = library_map(total, total, om.Mask(causal, left, 0 if causal else -1), recipe)
    for start in range(0, total, split):
        end = min(start + split, total)
        mask = om.Mask(causal, left, 0 if causal else -1, offset=start)
        first, rows = library_map(end - start, end, mask, recipe)
        for m, row in enumerate(rows, first):
            for n, letter in enumerate(row):
                assert letter == "." or letter == whole[m][n]


def test_out_of_range():
    problem, struct = problem_of(100, 300, om.Mask()), mxa.recipe_struct(BF16_LOW)
    precision = mxa.C.c_int()
    for b, m, n in ((1, 1, 0), (-1, 1, 0), (0, 0, 0), (0, 3, 0), (0, 1, 3), (0, 1, -1)):
        where = [mxa.C.c_int64(x) for x in (b, m, n)]
        status = mxa.lib().mxa_tile_map_at(
            mxa.C.byref(problem), mxa.C.byref(struct), *where, mxa.C.byref(precision)
        )
        assert mxa.STATUSES[status] == "ERR_ARG", (b, m, n)


@pytest.mark.parametrize("name, letter", [("bf16", "H"), ("mxfp4", "L"), ("nvfp4", "L")])
def test_one_precision(name, letter):
    _, rows = library_map(300, 300, om.Mask(causal=True), om.RECIPES[name])
    assert rows == [letter + "..", letter * 2 + ".", letter * 3]

# SPDX-License-Identifier: Apache-2.0
"""mxa_merge: against float64, and split keys merged against one call."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import inputs
import mxa
import oracle_attention as oa
import oracle_formats as of
import oracle_map as om
from problems import Case

LSES = st.sampled_from([-np.inf, -1000.0, -3.5, 0.0, 3.0, 80.0, 1000.0])


def check_merge(o, lse, want_o, want_lse, kind="f32", scale=0.0):
    """Sums of at most ten terms in double, rounded once."""
    finite = np.isfinite(want_lse)
    np.testing.assert_array_equal(lse[~finite], want_lse[~finite])
    np.testing.assert_allclose(lse[finite], want_lse[finite], rtol=2.0**-23, atol=2.0**-23)
    tol = oa.UNIT[kind] * np.abs(want_o) * 1.01 + oa.SUBNORMAL[kind] + 2.0**-48 * scale
    assert (np.abs(o.astype(np.float64) - want_o) <= tol).all()


@given(
    seed=inputs.seeds,
    data=st.data(),
    n=st.integers(1, 8),
    kind=inputs.dtypes,
    part_kind=inputs.dtypes,
    shape=st.tuples(st.integers(0, 2), st.integers(1, 3), st.integers(0, 5), st.integers(1, 70)),
    sink=st.booleans(),
)
def test_drawn(seed, data, n, kind, part_kind, shape, sink):
    batch, heads, length, _ = shape
    parts = [inputs.make(seed + i, shape, "normal", part_kind) for i in range(n)]
    rng = np.random.default_rng(seed)
    lses = [rng.normal(data.draw(LSES), 1, (batch, heads, length)).astype(np.float32) for _ in range(n)]
    parts = [np.where(np.isneginf(s)[..., None], np.zeros_like(p), p) for p, s in zip(parts, lses)]
    parts = [
        inputs.strided(p, data.draw(st.sampled_from(["contiguous", "bshd", "padded_rows"]))) for p in parts
    ]
    sinks = rng.normal(0, 5, heads).astype(np.float32) if sink else None
    want_o, want_lse = oa.merge(parts, lses, sinks)
    o, lse = mxa.merge(parts, lses, sinks, of.PLAIN_TYPES[kind])
    check_merge(o, lse, want_o, want_lse, kind, 4.0 * n)


@pytest.mark.parametrize("name", list(om.RECIPES))
@pytest.mark.parametrize("cuts", [(0, 300), (0, 128, 300), (0, 1, 17, 128, 256, 257, 300)])
def test_split_keys(name, cuts):
    """Parts over disjoint keys, their positions moved by q_offset; each part within its own bound."""
    q, k, v = (inputs.make(i, (1, 4, n, 64), "normal", "bf16") for i, n in enumerate((129, 300, 300)))
    sinks = np.array([1.0, -2.0, 0.0, 30.0], np.float32)
    parts, wants = [], []
    for a, b in zip(cuts, cuts[1:]):
        mask = om.Mask(causal=True, left=200, offset=300 - 129 - a)
        part = Case(q, k[:, :, a:b], v[:, :, a:b], om.RECIPES[name], mask)
        parts.append(part.run())
        wants.append(part.expected())
    o, lse = mxa.merge([p[0] for p in parts], [p[1] for p in parts], sinks)
    want_o, want_lse = oa.merge([w.o for w in wants], [w.lse for w in wants], sinks)
    lse_tol = max(w.lse_tol.max() for w in wants)
    o_tol = max(w.o_tol.max() for w in wants) + 2 * lse_tol * np.abs(v.astype(np.float64)).max()
    assert np.abs(lse - want_lse).max() <= lse_tol + 2.0**-22 * np.abs(want_lse).max()
    assert np.abs(o - want_o).max() <= o_tol
    if name == "exact":
        whole = Case(q, k, v, om.RECIPES[name], om.Mask(causal=True, left=200), "f32", {"sinks": sinks})
        wrong = oa.compare(*whole.run(), whole.expected())
        assert wrong is None
        np.testing.assert_allclose(o, whole.expected().o, rtol=0, atol=1e-6)


def test_in_place():
    parts = [inputs.make(i, (1, 2, 3, 8)) for i in range(2)]
    lses = [np.full((1, 2, 3), x, np.float32) for x in (0.5, 1.5)]
    want_o, want_lse = oa.merge(parts, lses)
    tensors = (mxa.Tensor * 2)(*(mxa.tensor(p) for p in parts))
    pointers = (mxa.C.c_void_p * 2)(*(x.ctypes.data for x in lses))
    mxa.check(mxa.lib().mxa_merge(2, tensors, pointers, None, mxa.C.byref(tensors[0]), None))
    check_merge(parts[0], want_lse.astype(np.float32), want_o, want_lse, scale=8.0)

# SPDX-License-Identifier: Apache-2.0
"""attention(), varlen_attention() and merge() on NumPy arrays."""

from concurrent.futures import ThreadPoolExecutor

import mxa
import mxattn
import numpy as np
import pytest
from package_inputs import BF16, formula, random_qkv

ROUNDING = 2.0**-22  # float32 output of float64 sums, on values of a few units
MASKS = [
    {},
    {"causal": True},
    {"window_size": (40, 7)},
    {"causal": True, "window_size": (64, -1), "softcap": 3.0},
    {"softmax_scale": 0.3, "q_offset": 20, "causal": True},
    {"causal": True, "sinks": np.linspace(-1, 2, 4, dtype=np.float32)},
    {"causal": True, "q_offset": -20},  # the first queries see no key
]


def bits(x):
    return np.ascontiguousarray(x).view(np.uint8)


@pytest.mark.parametrize("options", MASKS)
def test_formula(options):
    q, k, v = random_qkv(dim_v=32)
    out, lse = mxattn.attention(q, k, v, recipe="exact", return_lse=True, **options)
    want, want_lse = formula(q, k, v, **options)
    assert out.dtype == lse.dtype == np.float32
    assert out.shape == want.shape and lse.shape == want_lse.shape
    np.testing.assert_allclose(out, want, rtol=ROUNDING, atol=ROUNDING)
    np.testing.assert_allclose(lse, want_lse, rtol=ROUNDING, atol=ROUNDING)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BF16])
@pytest.mark.parametrize("recipe", [*mxattn.recipes(), "dma4,diag=256,rotate=off"])
def test_bits_of_the_c_call(recipe, dtype):
    q, k, v = random_qkv(dtype=dtype, batch=1)
    out, lse = mxattn.attention(q, k, v, causal=True, recipe=recipe, return_lse=True)
    want, want_lse = mxa.attention(q, k, v, recipe, out_dtype=dtype, causal=True)
    assert out.dtype == dtype
    assert (bits(out) == bits(want)).all() and (bits(lse) == bits(want_lse)).all()


def test_a_given_mean():
    q, k, v = random_qkv()
    mean = k.mean(axis=2)
    out = mxattn.attention(q, k, v, recipe="dma8,smooth-k=given", mean=mean.astype(np.float16))
    mean = mean.astype(np.float16).astype(np.float32)
    assert (out == mxa.attention(q, k, v, "dma8,smooth-k=given", mean=mean)[0]).all()


def test_layouts_and_strides_are_views():
    q, k, v = random_qkv()
    want = mxattn.attention(q, k, v, causal=True)
    tokens = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, k, v)]
    got = mxattn.attention(*tokens, causal=True, layout="bshd")
    assert got.flags.c_contiguous and (got.swapaxes(1, 2) == want).all()
    wide = [np.full((*x.shape[:3], 200), np.nan, np.float32) for x in (q, k, v)]
    for x, y in zip(wide, (q, k, v)):
        x[..., 3:67] = y
    assert (mxattn.attention(*(x[..., 3:67] for x in wide), causal=True) == want).all()
    one = [np.broadcast_to(x[:1], (3, *x.shape[1:])) for x in (q, k, v)]
    assert (mxattn.attention(*one, causal=True) == want[:1]).all()
    assert (mxattn.attention(q[::-1], k[::-1], v[::-1], causal=True) == want[::-1]).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BF16])
def test_out_is_written_in_place(dtype):
    q, k, v = random_qkv()
    wide = np.zeros((*q.shape[:3], 80), dtype)
    out = wide[..., 8:72]
    assert mxattn.attention(q, k, v, out=out) is out
    assert (bits(out) == bits(mxa.attention(q, k, v, out_dtype=dtype)[0])).all()
    assert (wide[..., :8] == 0).all() and (wide[..., 72:] == 0).all()


def test_inputs_may_be_read_only_and_empty():
    q, k, v = random_qkv()
    want = mxattn.attention(q, k, v)
    for x in (q, k, v):
        x.flags.writeable = False
    assert (mxattn.attention(q, k, v) == want).all()
    out, lse = mxattn.attention(q, k[:, :, :0], v[:, :, :0], return_lse=True)
    assert (out == 0).all() and np.isneginf(lse).all()
    assert mxattn.attention(q[:, :, :0], k, v).shape == (2, 4, 0, 64)
    assert mxattn.attention(q[:0], k[:0], v[:0]).shape == (0, 4, 150, 64)


class OnlyDLPack:
    """An array of some other package in host memory."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_dlpack():
    q, k, v = random_qkv()
    assert (mxattn.attention(*map(OnlyDLPack, (q, k, v))) == mxattn.attention(q, k, v)).all()


@pytest.mark.parametrize("layout", ["shd", "hsd"])
def test_packed_sequences(layout):
    lengths_q, lengths_k = [3, 0, 140, 1], [200, 5, 140, 77]
    cu_q, cu_k = (np.concatenate([[0], np.cumsum(n)]) for n in (lengths_q, lengths_k))
    rng = np.random.default_rng(0)
    q = rng.standard_normal((4, 150, 64), dtype=np.float32)  # 6 rows more than the sequences have
    k, v = (rng.standard_normal((2, 422, 64), dtype=np.float32) for _ in range(2))
    arrays = (
        (q, k, v) if layout == "hsd" else tuple(np.ascontiguousarray(x.swapaxes(0, 1)) for x in (q, k, v))
    )
    options = {"causal": True, "return_lse": True, "layout": layout}
    out, lse = mxattn.varlen_attention(*arrays, cu_q, cu_k.tolist(), **options)
    heads = out if layout == "hsd" else out.swapaxes(0, 1)
    for b in range(4):
        rows, keys = slice(cu_q[b], cu_q[b + 1]), slice(cu_k[b], cu_k[b + 1])
        one = q[None, :, rows], k[None, :, keys], v[None, :, keys]
        want, want_lse = mxattn.attention(*one, causal=True, return_lse=True)
        assert (heads[:, rows] == want[0]).all() and (lse[:, rows] == want_lse[0]).all()
    assert (heads[:, 144:] == 0).all() and np.isneginf(lse[:, 144:]).all()
    given = np.empty_like(out)
    assert mxattn.varlen_attention(*arrays, cu_q, cu_k, causal=True, layout=layout, out=given) is given
    assert (given == out).all()


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_merge_gives_the_whole(layout):
    q, k, v = random_qkv()
    sinks = np.array([0.5, -1, 0, 2], np.float32)
    want, want_lse = formula(q, k, v, sinks=sinks)
    parts = [
        mxattn.attention(q, k[:, :, a:b], v[:, :, a:b], recipe="exact", return_lse=True)
        for a, b in ((0, 100), (100, 100), (100, 300))
    ]
    outs, lses = zip(*parts)
    if layout == "bshd":
        outs, want = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in outs], want.swapaxes(1, 2)
    out, lse = mxattn.merge(outs, lses, sinks=sinks, layout=layout)
    np.testing.assert_allclose(out, want, rtol=4 * ROUNDING, atol=4 * ROUNDING)
    np.testing.assert_allclose(lse, want_lse, rtol=4 * ROUNDING, atol=4 * ROUNDING)
    again, _ = mxattn.merge(outs, lses, sinks=sinks, layout=layout, out=outs[0])
    assert again is outs[0] and (again == out).all()


def test_threads_share_plans():
    """More problems than plans are kept, from several threads at once."""
    inputs = [random_qkv(batch=1, q_len=n, kv_len=n + 9, dim=32, dim_v=32, seed=n) for n in range(1, 160)]
    want = [mxattn.attention(*x, causal=True, threads=1) for x in inputs]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(2):
            got = pool.map(lambda x: mxattn.attention(*x, causal=True, threads=1), inputs)
            assert all((a == b).all() for a, b in zip(got, want))


@pytest.mark.parametrize("options", [{"causal": True}, {"window_size": (130, 0), "q_offset": 77}])
def test_tile_map(options):
    first, precision = mxattn.tile_map(500, 600, recipe="dma4,diag=64", **options)
    left, right = options.get("window_size", (-1, -1))
    names = {"window_left": left, "window_right": right}
    names |= {name: value for name, value in options.items() if name != "window_size"}
    problem = mxa.make_problem((1, 1, 500, 1), (1, 1, 600, 1), 1, **names)
    want_first, rows = mxa.tile_map(problem, mxa.parse_recipe("dma4,diag=64"))
    assert first == want_first
    assert ["".join(".LH"[n] for n in row) for row in precision] == rows


def test_explain_and_recipes():
    q, k, v = random_qkv()
    text = mxattn.explain(q, k, v, causal=True, recipe="dma4")
    assert "recipe: " + mxattn.recipes()["dma4"] in text and "attention: " in text
    assert list(mxattn.recipes()) == mxa.recipe_names()
    for name, written in mxattn.recipes().items():
        assert mxa.recipe_text(mxa.parse_recipe(name)) == written

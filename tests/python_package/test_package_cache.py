# SPDX-License-Identifier: Apache-2.0
"""Cache: the bits and the files of the C calls, and every refusal."""

import copy
import pickle

import mxa_cache
import mxattn
import numpy as np
import pytest
from package_inputs import BF16, formula, random_qkv

RECIPES = ["dma4", "dma4,v=int8", "dma8,v=mxfp4,rotate-v", "bf16"]
ROUNDING = 2.0**-7  # of scores and weights of a few units, from 8-bit significands


def bits(x):
    return np.ascontiguousarray(x).view(np.uint8)


def filled(recipe="dma4", counts=None, **options):
    """A cache and the C calls' own, both with random keys."""
    _, k, v = random_qkv(kv_len=300, dim_v=32)
    ours = mxattn.Cache(2, 2, 64, 32, recipe=recipe, **options)
    theirs = mxa_cache.Cache(2, 2, 64, recipe=recipe, head_dim_v=32, **options)
    for first, end in ((0, 200), (200, 300)):
        part = k[:, :, first:end], v[:, :, first:end]
        given = None if counts is None else [min(n, end - first) for n in counts]
        ours.append(*part, counts=given)
        theirs.append(*part, counts=given)
    return ours, theirs


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("counts", [None, [70, 100]])
def test_bits_and_files_of_the_c_calls(recipe, counts, tmp_path):
    ours, theirs = filled(recipe, counts=counts)
    q = random_qkv(q_len=5)[0]
    options = {"sinks": np.array([0.5, -1, 0, 2], np.float32), "softcap": 4.0}
    out, lse = ours.attend(q, window_left=150, softmax_scale=0.2, return_lse=True, **options)
    want, want_lse = theirs.attend(q, 32, scale=0.2, left=150, **options)
    assert (bits(out) == bits(want)).all() and (bits(lse) == bits(want_lse)).all()
    assert ours.lengths.tolist() == theirs.lengths(2).tolist()
    assert ours.used_bytes == theirs.used_bytes() > 0
    files = [tmp_path / name for name in ("ours", "theirs")]
    ours.save(files[0])
    theirs.save(files[1])
    assert files[0].read_bytes() == files[1].read_bytes()
    again = mxattn.Cache.load(files[0])
    assert (again.attend(q, window_left=150, softmax_scale=0.2, **options) == out).all()
    assert repr(again) == repr(ours)


def test_near_the_formula():
    q, k, v = random_qkv(q_len=9, kv_len=200)
    cache = mxattn.Cache(2, 2, 64, recipe="bf16")
    cache.append(k, v)
    want = formula(q, k, v, causal=True)[0]
    np.testing.assert_allclose(cache.attend(q), want, rtol=ROUNDING, atol=ROUNDING)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BF16])
def test_layout_and_out(dtype):
    q, k, v = random_qkv(q_len=3, dtype=dtype)
    caches = [mxattn.Cache(2, 2, 64) for _ in range(2)]
    caches[0].append(k, v)
    caches[1].append(*(np.ascontiguousarray(x.swapaxes(1, 2)) for x in (k, v)), layout="bshd")
    out = np.zeros((2, 3, 4, 80), dtype)[..., 8:72]
    assert caches[1].attend(q.swapaxes(1, 2), layout="bshd", out=out) is out
    want = caches[0].attend(q)
    assert want.dtype == dtype and (bits(out.swapaxes(1, 2)) == bits(want)).all()


def test_cut_fork_reorder_remove():
    cache, _ = filled()
    q = random_qkv(q_len=1)[0]
    before = cache.attend(q)
    cache.fork(1, 0)
    after = cache.attend(np.repeat(q[1:], 2, axis=0))
    assert (after == before[1]).all()
    cache.truncate(0, 290)
    assert cache.lengths.tolist() == [290, 300]
    cut = cache.attend(q)
    cache.reorder([1, 0])
    assert cache.lengths.tolist() == [300, 290] and (cache.attend(q[::-1]) == cut[::-1]).all()
    used = cache.used_bytes
    cache.remove(0, 2, 1)
    cache.remove(1, 2, 1)  # the sequences share the page
    assert cache.used_bytes < used
    with pytest.raises(ValueError, match="page"):
        cache.attend(q)
    cache.attend(q, window_left=40)


def test_given_mean_and_fixed_pages():
    _, k, v = random_qkv()
    mean = k.mean(axis=(0, 2))
    cache = mxattn.Cache(2, 2, 64, recipe="dma4,smooth-k=given", mean=mean, pages=(10, 10))
    cache.append(k, v)
    with pytest.raises(RuntimeError, match="page"):
        cache.append(k, v)
    assert cache.lengths.tolist() == [300, 300]


CREATE = {
    "batch": ({"batch": -1}, "batch"),
    "heads": ({"heads_kv": 2.5}, "heads_kv: 2.5 is not an integer"),
    "head_dim": ({"head_dim": 300}, "head_dim"),
    "recipe": ({"recipe": "dma5"}, "dma5"),
    "recipe type": ({"recipe": None}, "recipe: None is not a text"),
    "no cache's recipe": ({"recipe": "exact"}, "recipe"),
    "page_tokens": ({"page_tokens": 20}, "page_tokens"),
    "rewind": ({"rewind": -1}, "rewind"),
    "pages": ({"pages": (-1, 0)}, "pages"),
    "one page": ({"pages": 3}, "pages: is not a row of integers"),
    "no mean": ({"recipe": "dma4,smooth-k=given"}, "mean"),
    "mean": ({"mean": np.zeros((2, 64), np.float32)}, "mean"),
    "mean shape": ({"mean": np.zeros(64, np.float32)}, r"mean: shape \(64,\) is not \(2, 64\)"),
    "threads": ({"threads": -1}, "threads"),
    "device": ({"device": "tpu"}, "tpu"),
}


@pytest.mark.parametrize("name", CREATE)
def test_bad_caches(name):
    changes, sentence = CREATE[name]
    with pytest.raises(ValueError, match=sentence):
        mxattn.Cache(**({"batch": 2, "heads_kv": 2, "head_dim": 64} | changes))


Q, K, V = random_qkv(q_len=3, kv_len=5)
CALLS = {
    "k type": (lambda c: c.append(K.astype(np.float64), V), "k: dtype <f8"),
    "v shape": (lambda c: c.append(K, V[..., :32]), "v: size 32 of axis 3"),
    "k heads": (lambda c: c.append(K[:, :1], V), "k: size 1 of axis 1"),
    "layout": (lambda c: c.append(K, V, layout="shd"), "layout: 'shd' is not one of"),
    "counts": (lambda c: c.append(K, V, counts=[1, 6]), r"counts\[1\]: 6 is outside 0..5"),
    "fewer counts": (lambda c: c.append(K, V, counts=[1]), "counts: has 1 numbers, not 2"),
    "broken counts": (lambda c: c.append(K, V, counts=[1, 0.5]), "counts: is not a row of integers"),
    "no queries' tokens": (lambda c: c.attend(np.repeat(Q, 9, axis=2)), "27 queries are more than"),
    "q heads": (lambda c: c.attend(Q[:, :3]), "q: heads 3"),
    "q dim": (lambda c: c.attend(Q[..., :32]), "q: size 32 of axis 3"),
    "scale": (lambda c: c.attend(Q, softmax_scale=float("inf")), "softmax_scale"),
    "scale type": (lambda c: c.attend(Q, softmax_scale="x"), "softmax_scale: 'x' is not a number"),
    "softcap": (lambda c: c.attend(Q, softcap=-1), "softcap"),
    "window": (lambda c: c.attend(Q, window_left=-2), "window_left"),
    "sinks": (lambda c: c.attend(Q, sinks=np.zeros(2, np.float32)), r"sinks: shape \(2,\) is not \(4,\)"),
    "out": (lambda c: c.attend(Q, out=np.zeros((2, 4, 3, 32), np.float32)), "out: size 32 of axis 3"),
    "out read-only": (
        lambda c: c.attend(Q, out=np.broadcast_to(np.float32(0), Q.shape)),
        "out: is read-only",
    ),
    "truncate": (lambda c: c.truncate(0, 6), "length"),
    "truncate where": (lambda c: c.truncate(2, 1), "b: 2"),
    "fork": (lambda c: c.fork(0, 5), "5"),
    "reorder": (lambda c: c.reorder([0, 2]), "2"),
    "reorder none": (lambda c: c.reorder(None), "sources: is not a row of integers"),
    "remove": (lambda c: c.remove(0, 3, 1), "first 3"),
}


@pytest.mark.parametrize("name", CALLS)
def test_refused_and_unchanged(name):
    call, sentence = CALLS[name]
    cache = mxattn.Cache(2, 2, 64)
    cache.append(K, V)
    want = cache.attend(Q)
    with pytest.raises(ValueError, match=sentence):
        call(cache)
    assert cache.lengths.tolist() == [5, 5] and (cache.attend(Q) == want).all()


def test_files_that_are_none(tmp_path):
    cache, _ = filled()
    path = tmp_path / "cache"
    cache.save(path)
    whole = path.read_bytes()
    for data in (b"", whole[:7], whole[:100], b"\x02" + bytes(7) + b"{}", whole[:-9], whole[:-1] + b"\1"):
        path.write_bytes(data)
        with pytest.raises(RuntimeError, match=str(path)):
            mxattn.Cache.load(path)
    with pytest.raises(RuntimeError, match="path: .*/nothing: No such file"):
        mxattn.Cache.load(tmp_path / "nothing")
    with pytest.raises(RuntimeError, match="nowhere"):
        cache.save(tmp_path / "nowhere" / "cache")


@pytest.mark.parametrize("function", [copy.copy, copy.deepcopy, pickle.dumps])
def test_no_copies(function):
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        function(mxattn.Cache(1, 1, 32))

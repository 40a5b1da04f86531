# SPDX-License-Identifier: Apache-2.0
"""Promises beside accuracy: bits do not depend on neighbours, threads, chunks or masked memory."""

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

import inputs
import mxa
import oracle_attention as oa
import oracle_formats as of
import oracle_layouts as ol
import oracle_map as om
from problems import Case, cases

NAMES = list(om.RECIPES)
BY_NAME = pytest.mark.parametrize("name", NAMES)


def operands(seed, batch, heads, heads_kv, q_len, kv_len, dim=64, kind="bf16"):
    shapes = ((heads, q_len), (heads_kv, kv_len), (heads_kv, kv_len))
    return [inputs.make(seed + i, (batch, h, n, dim), "normal", kind) for i, (h, n) in enumerate(shapes)]


def same_bits(a, b):
    """Equal bits; any NaN for a NaN, any zero for a zero (a zero's sign is free)."""
    for x, y in zip(a, b):
        np.testing.assert_array_equal(x.astype(np.float32), y.astype(np.float32))


@BY_NAME
def test_repeats_and_threads(name):
    q, k, v = operands(1, 1, 6, 2, 333, 700)
    case = Case(q, k, v, om.RECIPES[name], om.Mask(causal=True), "bf16")
    first = case.run(threads=1)
    for threads in (1, 2, 2, 3, 0):
        same_bits(first, case.run(threads=threads))


@BY_NAME
def test_batch_mates(name):
    """A row alone and among others, as batch items, as heads and as packed sequences."""
    q, k, v = operands(2, 3, 4, 2, 200, 400)
    recipe, mask = om.RECIPES[name], om.Mask(causal=True, left=300)
    o, lse = Case(q, k, v, recipe, mask).run()
    for b in range(3):
        alone = Case(q[b : b + 1], k[b : b + 1], v[b : b + 1], recipe, mask).run()
        same_bits((o[b : b + 1], lse[b : b + 1]), alone)
        head = Case(q[b : b + 1, 3:], k[b : b + 1, 1:], v[b : b + 1, 1:], recipe, mask).run()
        same_bits((o[b : b + 1, 3:], lse[b : b + 1, 3:]), head)
    packed = [np.concatenate(list(x), axis=1)[None] for x in (q, k, v)]
    cu = {"cu_q": np.arange(4) * 200, "cu_k": np.arange(4) * 400}
    packed_o, packed_lse = Case(*packed, recipe, mask, "f32", cu).run()
    for b in range(3):
        rows = slice(200 * b, 200 * (b + 1))
        same_bits((o[b], lse[b]), (packed_o[0, :, rows], packed_lse[0, :, rows]))


@BY_NAME
def test_query_mates(name):
    """A query row does not depend on the other rows of its call or block."""
    q, k, v = operands(3, 1, 2, 1, 150, 400)
    recipe = om.RECIPES[name]
    o, lse = Case(q, k, v, recipe, om.Mask(causal=True, offset=250)).run()
    for a, b in ((0, 1), (5, 12), (6, 7), (127, 131), (149, 150)):
        part = Case(q[:, :, a:b], k, v, recipe, om.Mask(causal=True, offset=250 + a)).run()
        same_bits((o[:, :, a:b], lse[:, :, a:b]), part)


@BY_NAME
@pytest.mark.parametrize("chunk", [1, 100, 128, 300])
def test_chunked_prefill(name, chunk):
    """Chunks and token-by-token decode of a causal prefill stay within the bounds of the one-shot result."""
    q, k, v = operands(4, 1, 2, 1, 600, 600)
    recipe = om.RECIPES[name]
    if recipe.smooth == "full":
        pytest.skip("the mean over all keys belongs to one call")
    want = Case(q, k, v, recipe, om.Mask(causal=True)).expected()
    starts = range(0, 600, chunk) if chunk > 1 else (0, 1, 127, 128, 129, 383, 599)
    for a in starts:
        b = min(a + chunk, 600)
        got = Case(q[:, :, a:b], k[:, :, :b], v[:, :, :b], recipe, om.Mask(causal=True)).run()
        rows = oa.Result(*(x[:, :, a:b] for x in (want.o, want.lse, want.o_tol, want.lse_tol)))
        assert oa.compare(*got, rows) is None, (a, b)


def poison(x, where):
    """NaN and infinities in whole rows [..., where, :]."""
    bad = np.array([np.nan, np.inf, -np.inf], np.float32).astype(x.dtype)
    x = x.copy()
    x[:, :, where] = np.resize(bad, x.shape[3])
    return x


def poisoned(case, where):
    zeroed = [x.copy() for x in (case.k, case.v)]
    for x in zeroed:
        x[:, :, where] = 0
    k, v = poison(case.k, where), poison(case.v, where)
    return replace(case, k=zeroed[0], v=zeroed[1]), replace(case, k=k, v=v)


@BY_NAME
@pytest.mark.parametrize("keys", [[130], [299], [128, 200, 201, 290], list(range(256, 300))])
def test_masked_keys(name, keys):
    """Rows that do not see the poisoned keys have the bits they have over zeros; the others are NaN."""
    q, k, v = operands(5, 2, 2, 1, 300, 300)
    zeroed, bad = poisoned(Case(q, k, v, om.RECIPES[name], om.Mask(causal=True)), keys)
    clean, dirty = zeroed.run(), bad.run()
    blind = slice(0, keys[0])
    same_bits([x[:, :, blind] for x in clean], [x[:, :, blind] for x in dirty])
    assert np.isnan(dirty[1][:, :, keys[0] :]).all() and np.isnan(dirty[0][:, :, keys[0] :]).all()


@BY_NAME
def test_masked_by_windows(name):
    """Keys that fall out of a sliding window on either side, inside partly visible tiles."""
    q, k, v = operands(6, 1, 2, 2, 200, 500, kind="f32")
    keys = [150, 260, 310, 311, 480]
    recipe = replace(om.RECIPES[name], smooth=None)
    zeroed, bad = poisoned(Case(q, k, v, recipe, om.Mask(left=9, right=5)), keys)
    clean, dirty = zeroed.run(), bad.run()
    seen = zeroed.mask.visible(200, 500)[:, keys].any(axis=1)
    same_bits([x[:, :, ~seen] for x in clean], [x[:, :, ~seen] for x in dirty])
    assert np.isnan(dirty[1][:, :, seen]).all()
    assert oa.compare(*dirty, bad.expected()) is None


@BY_NAME
def test_masked_values_alone(name):
    """NaN in V only, in some channels of some keys: the channels of the rows that see them, no other."""
    q, k, v = operands(7, 1, 2, 1, 260, 260)
    v[0, 0, 100, 3], v[0, 0, 200, 5], v[0, 0, 258, 7] = np.nan, np.inf, -np.inf
    case = Case(q, k, v, om.RECIPES[name], om.Mask(causal=True))
    o, lse = case.run()
    assert oa.compare(o, lse, case.expected()) is None
    clean = v.copy()
    clean[0, 0, [100, 200, 258], [3, 5, 7]] = 0
    same_o, same_lse = Case(q, k, clean, om.RECIPES[name], om.Mask(causal=True)).run()
    np.testing.assert_array_equal(lse, same_lse)
    finite = np.isfinite(o)
    np.testing.assert_array_equal(o[finite], same_o[finite])
    assert (
        np.isnan(o[0, :, 100:, 3]).all()
        and np.isposinf(o[0, :, 200:, 5]).all()
        and np.isneginf(o[0, :, 258:, 7]).all()
    )
    assert (~finite).sum() == 2 * (160 + 60 + 2)


@given(case=cases(), seed=inputs.seeds)
def test_drawn_masked_keys(case, seed):
    """Any mask, any recipe: keys that no row sees may hold anything."""
    q_len, kv_len = case.q.shape[2], case.k.shape[2]
    unseen = np.flatnonzero(~case.mask.visible(q_len, kv_len).any(axis=0))
    if case.recipe.smooth:  # the mean counts finite values only, so NaN and zero differ there
        case.recipe = replace(case.recipe, smooth=None)
    rng = np.random.default_rng(seed)
    where = unseen[rng.random(unseen.size) < 0.5]
    zeroed, bad = poisoned(case, where)
    same_bits(zeroed.run(), bad.run())


@pytest.mark.parametrize("kind", ["bshd", "packed_qkv", "padded_rows", "reversed"])
@BY_NAME
def test_strides(name, kind):
    """The bits of the contiguous copy; an output with strides keeps what lies in its gaps."""
    q, k, v = operands(8, 2, 4, 2, 130, 260)
    mask = om.Mask(causal=True)
    want = Case(q, k, v, om.RECIPES[name], mask, "bf16").run()
    views = [inputs.strided(x, kind) for x in (q, k, v)]
    base = np.full((2, 140, 3, 4, 70), 7, of.PLAIN_TYPES["bf16"])
    out = base[:, 3:133, 1, :, 2:66].transpose(0, 2, 1, 3)
    got = Case(*views, om.RECIPES[name], mask, "bf16").run(out=out)
    same_bits(want, got)
    inside = np.zeros(base.shape, bool)
    inside[:, 3:133, 1, :, 2:66] = True
    assert (base[~inside] == 7).all()


@BY_NAME
def test_dim_stride_is_refused(name):
    q, k, v = operands(9, 1, 1, 1, 4, 4, dim=128)
    with pytest.raises(mxa.MxaError) as error:
        Case(q[..., ::2], k[..., ::2], v[..., ::2], om.RECIPES[name]).run()
    assert error.value.status in ("ERR_ARG", "ERR_SHAPE", "ERR_ALIGN") and "q" in error.value.text


def test_inputs_are_not_written():
    q, k, v = operands(10, 1, 2, 1, 100, 200)
    before = [x.tobytes() for x in (q, k, v)]
    for name in NAMES:
        Case(q, k, v, om.RECIPES[name], om.Mask(causal=True)).run()
    assert before == [x.tobytes() for x in (q, k, v)]


def call_at_level(level, function):
    """Run a function of this file in a process of its own, since the features are read once."""
    script = f"import test_promises; test_promises.{function}()"
    folder = os.path.dirname(os.path.abspath(__file__))
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=folder,
        env={**os.environ, "MXA_CPU": level},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("level", ["ref", "portable", "avx2", "avx512", "amx"])
def test_cpu_levels(level):
    """Each level that MXA_CPU allows gives the same bytes when quantising and stays within the bound."""
    call_at_level(level, "check_level")


def test_unknown_cpu_level_lists_the_known_ones():
    call_at_level("sse9", "check_unknown_level")


def check_unknown_level():
    x = np.zeros((1, 1, 4, 32), np.float32)
    for call in (lambda: mxa.attention(x, x, x), lambda: mxa.quantize(x, "mxfp4")):
        with pytest.raises(mxa.MxaError) as error:
            call()
        assert error.value.status == "ERR_ARG"
        assert all(word in error.value.text for word in "MXA_CPU ref portable avx2 avx512 amx".split())


def check_level():
    q, k, v = operands(11, 1, 3, 1, 140, 300, dim=80)
    for name in NAMES:
        Case(q, k, v, om.RECIPES[name], om.Mask(causal=True, left=200)).check()
    for fmt in of.FORMATS:
        want = of.quantize(of.prepare(k, rotated=True), fmt)
        got = mxa.quantize(k, fmt, rotate=True, fill_tail=True)
        packed = ol.pack_codes(of.ELEMENTS[of.FORMATS[fmt].element].bits, want.codes)
        np.testing.assert_array_equal(got.codes, packed.reshape(got.codes.shape))

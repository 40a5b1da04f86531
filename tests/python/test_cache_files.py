# SPDX-License-Identifier: Apache-2.0
"""Files of caches: readable as safetensors, refused when cut or altered, never half written; sizes and plans."""

import os
import stat

import numpy as np
import pytest
from safetensors import safe_open

import mxa
import mxa_cache
from cache_problems import BY_TEXT, Pair


@pytest.fixture
def saved(tmp_path):
    pair = Pair(BY_TEXT["dma4,v=int8"], 2, 1, 2, 32, page_tokens=16)
    pair.append(np.random.default_rng(1), [150, 20])
    path = tmp_path / "cache.safetensors"
    pair.cache.save(path)
    return pair, path


def refused(path, *parts, **fields):
    with pytest.raises(mxa.MxaError) as error:
        mxa_cache.Cache(*fields.pop("args", ()), load=path, **fields)
    assert error.value.status == fields.get("status", "ERR_FILE"), error.value
    for part in parts:
        assert part in error.value.text
    return error.value


def test_is_safetensors(saved):
    pair, path = saved
    with safe_open(path, "np") as f:
        meta = f.metadata()
        assert meta["lengths"] == "150 20" and meta["heads_kv"] == "1" and "low_k=mxfp4" in meta["recipe"]
        low, index = f.get_tensor("0.low"), f.get_tensor("0.low_index")
    assert (index[:, 0] == np.arange(10)).all()
    _, _, pages = pair.cache.table(0)
    for stored, number in zip(low[:-1], pages[0]):
        np.testing.assert_array_equal(stored, pair.cache.page(0, number, low.shape[1]))
    assert [p.name for p in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_permissions(saved, mask):
    pair, path = saved
    before = os.umask(mask)
    try:
        pair.cache.save(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o666 & ~mask


def test_cut_and_altered(saved):
    _, path = saved
    data = path.read_bytes()
    header = int.from_bytes(data[:8], "little")
    rng = np.random.default_rng(2)
    for size in (0, 7, 8, 8 + header - 1, 8 + header, len(data) - 1):
        path.write_bytes(data[:size])
        refused(path)
    path.write_bytes(data + b"\0")
    refused(path, "another number of bytes")
    places = [*range(0, 8 + header, 3), *rng.integers(8 + header, len(data), 100)]
    for at in places:
        altered = bytearray(data)
        altered[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(altered)
        refused(path)
    path.write_bytes(data)
    mxa_cache.Cache(load=path)


def checksum(data):
    """FNV-1a, 64 bits."""
    total = 0xCBF29CE484222325
    for byte in data:
        total = (total ^ byte) * 0x100000001B3 & (1 << 64) - 1
    return b"%016x" % total


def test_pages_of_a_kind_that_the_recipe_has_not(tmp_path):
    """The file claims a high page of 0 bytes; its checksum is right."""
    path, x = tmp_path / "a", np.ones((1, 1, 16, 32), np.float32)
    cache = mxa_cache.Cache(1, 1, 32, "low_q=int8,low_k=mxfp4,v=mxfp4", page_tokens=16)
    cache.append(x, x)
    cache.save(path)
    data = path.read_bytes()
    at = 8 + int.from_bytes(data[:8], "little")
    header, data = data[8:at].rstrip(), data[at:]
    end = len(data)
    for before, after in (
        ('"high_pages":"0"', '"high_pages":"1"'),
        (f'[0,1],"data_offsets":[{end},{end}]', f'[1,1],"data_offsets":[{end},{end + 4}]'),
        (f'[0,0],"data_offsets":[{end},{end}]', f'[1,0],"data_offsets":[{end + 4},{end + 4}]'),
    ):
        assert header.count(before.encode()) == 1
        header = header.replace(before.encode(), after.encode())
    header += b" " * (-len(header) % 8)
    data += bytes(4)
    digits = header.index(b'"checksum":"') + len('"checksum":"')
    before, after = header[:digits], header[digits + 16 :]
    total = checksum(before + b"0" * 16 + after + data)
    path.write_bytes(len(header).to_bytes(8, "little") + before + total + after + data)
    refused(path, "has pages of a kind")


def test_other_shapes(saved):
    _, path = saved
    args = (2, 1, 32, "dma4,v=int8")
    mxa_cache.Cache(*args, load=path, page_tokens=16)
    for changed, fields, word in (
        ((3, 1, 32, args[3]), {"page_tokens": 16}, "batch"),
        ((2, 2, 32, args[3]), {"page_tokens": 16}, "heads_kv"),
        (args, {"page_tokens": 32}, "page_tokens"),
        (args, {"page_tokens": 16, "rewind": 3}, "rewind"),
        ((2, 1, 32, "dma4,v=fp8"), {"page_tokens": 16}, "recipe"),
    ):
        with pytest.raises(mxa.MxaError) as error:
            mxa_cache.Cache(*changed, load=path, **fields)
        assert error.value.status == "ERR_ARG" and word in error.value.text
    with pytest.raises(mxa.MxaError) as error:
        mxa_cache.Cache(*args, load=path, page_tokens=16, pages=(3, 100))
    assert error.value.status == "ERR_MEMORY"


def test_paths(saved, tmp_path):
    pair, path = saved
    refused(tmp_path / "none", "No such file")
    refused(tmp_path, "path")
    for target in (tmp_path / "none" / "cache", tmp_path):
        with pytest.raises(mxa.MxaError) as error:
            pair.cache.save(target)
        assert error.value.status == "ERR_FILE"
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_given_mean(tmp_path):
    mean = np.random.default_rng(3).standard_normal((1, 32)).astype(np.float32)
    text = "low_q=int8,low_k=mxfp4,high=bf16,diag=128,sink=128,rotate,smooth-k=given"
    cache = mxa_cache.Cache(1, 1, 32, text, mean=mean)
    x = np.ones((1, 1, 300, 32), np.float32)
    cache.append(x, x)
    cache.save(tmp_path / "a")
    mxa_cache.Cache(load=tmp_path / "a").save(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    q = np.full((1, 1, 1, 32), 0.1, np.float32)
    o, lse = cache.attend(q, 32)
    again = mxa_cache.Cache(load=tmp_path / "a").attend(q, 32)
    np.testing.assert_array_equal(o, again[0])
    args = (1, 1, 32, text)
    for same in (None, mean):
        mxa_cache.Cache(*args, load=tmp_path / "a", mean=same)
    refused(tmp_path / "a", "mean", args=args, status="ERR_ARG", mean=mean + 1)
    assert abs(lse[0, 0, 0] - (np.log(300) + 3.2 * 32**-0.5)) < 2e-2


def test_given_factors(tmp_path):
    """Factors of V's channels are in the file, a tensor of their own, and refused where they are others."""
    rng, args = np.random.default_rng(5), (2, 2, 32, "dma4,v=int8,rotate-v")
    g_v = rng.uniform(0.01, 0.1, (2, 32)).astype(np.float32)
    cache = mxa_cache.Cache(*args, g_v=g_v)
    cache.append(*rng.standard_normal((2, 2, 2, 300, 32)).astype(np.float32))
    cache.save(tmp_path / "a")
    with safe_open(tmp_path / "a", "np") as f:
        np.testing.assert_array_equal(f.get_tensor("g_v"), g_v)
        assert f.metadata()["level_v"] == "channel"
    q = np.full((2, 4, 1, 32), 0.1, np.float32)
    want = cache.attend(q, 32)
    for fields in ({}, {"args": args}, {"args": args, "g_v": g_v}):
        again = mxa_cache.Cache(*fields.pop("args", ()), load=tmp_path / "a", **fields)
        again.save(tmp_path / "b")
        assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
        for x, y in zip(again.attend(q, 32), want):
            np.testing.assert_array_equal(x, y)
    refused(tmp_path / "a", "g_v", args=args, status="ERR_ARG", g_v=g_v * 2)
    mxa_cache.Cache(*args).save(tmp_path / "c")
    refused(tmp_path / "c", "g_v", args=args, status="ERR_ARG", g_v=g_v)
    altered = (tmp_path / "a").read_bytes().replace(b"channel", b"channem")
    (tmp_path / "a").write_bytes(altered)
    refused(tmp_path / "a")


def test_window_of_a_long_sequence(tmp_path):
    """Its first 2^31 tokens were removed: the window has the bits that it has at the start, also from a file."""
    length, page, shift = 1000, 256, 1 << 31
    text = "low_q=int8,low_k=mxfp4,high=bf16,diag=128,sink=0,rotate,v=int8"
    x = np.random.default_rng(4).standard_normal((2, 1, 1, length, 32)).astype(np.float32)
    q = np.ones((1, 1, 1, 32), np.float32)
    cache = mxa_cache.Cache(1, 1, 32, text, page_tokens=page, pages=(4, 4))
    cache.append(*x)
    want = cache.attend(q, 32, left=300)
    _, high_first, pages = cache.table(0)
    removed = np.full(shift // page, -1, np.int32)
    cache.set_table(0, length + shift, high_first + shift, [np.concatenate([removed, p]) for p in pages])
    cache.remove(0, shift // page, 2)
    with pytest.raises(mxa.MxaError, match="removed"):
        cache.attend(q, 32)
    cache.save(tmp_path / "window")
    for c in cache, mxa_cache.Cache(load=tmp_path / "window"):
        for got, expected in zip(c.attend(q, 32, left=300), want):
            np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("text, ratio", [("dma4,v=int8", 0.41), ("dma4,v=mxfp4,rotate-v", 0.285)])
def test_bytes_against_bf16(text, ratio):
    """A layer of 8 heads of 128, 32k tokens, diag 256: the share of two bf16 tensors, and what a plan says."""
    length, heads, dim = 32768, 8, 128
    opts = mxa_cache.make_opts(1, heads, dim, text + ",diag=256")
    size = mxa_cache.sizes(opts)
    total = length * size.token_bytes[0] + size.high_tokens * size.token_bytes[1]
    bf16 = length * heads * dim * 2 * 2
    assert total / bf16 < ratio
    tokens = mxa_cache.plan_tokens(opts, total)
    assert length - 64 <= tokens <= length + 64
    cache = mxa_cache.Cache(1, heads, dim, text + ",diag=256")
    x = np.zeros((1, heads, 2048, dim), np.float32)
    for _ in range(16):
        cache.append(x, x)
    cache.append(x[:, :, :1], x[:, :, :1])
    assert cache.used_bytes() <= total + size.page_bytes[0]

# SPDX-License-Identifier: Apache-2.0
"""Files that are no safetensors files, or do not hold what they must: one sentence, nothing written, no crash."""
import numpy as np
import pytest
from command import FAILED, qkv, raw_file, refuse, save

ONE = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}


def refuse_run(tmp_path, source):
    """The sentence about a file that run refuses. It names the file, and nothing is left behind."""
    before = set(tmp_path.iterdir())
    text = refuse(FAILED, "run", source, "-o", tmp_path / "out")
    assert str(source) in text and set(tmp_path.iterdir()) == before
    return text


def entry(**changes):
    return {"t": {**ONE, **changes}}


HEADERS = {
    "not JSON": (b"hello", b"", "JSON"),
    "truncated JSON": (b'{"a": ', b"", "JSON"),
    "a list": (b"[1, 2]", b"", "object"),
    "spaces first": (b"  {}", b"", "first byte"),
    "a key twice": (b'{"t":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"t":{}}', b"", "JSON"),
    "bytes that are not UTF-8": (b'{"\xff\xfe": 1}', b"", "JSON"),
    "deep nesting": (b'{"t":' + b"[" * 100000, b"", "JSON"),
    "an entry that is a number": ({"t": 3}, b"", '"t"'),
    "no dtype": ({"t": {"shape": [4], "data_offsets": [0, 4]}}, b"1234", "dtype"),
    "dtype that is a number": (entry(dtype=4), b"1234", "dtype"),
    "unknown dtype": (entry(dtype="F31"), b"1234", "F31"),
    "no shape": ({"t": {"dtype": "U8", "data_offsets": [0, 4]}}, b"1234", "shape"),
    "shape that is a number": (entry(shape=4), b"1234", "shape"),
    "negative size": (entry(shape=[-4]), b"1234", "shape"),
    "fractional size": (entry(shape=[4.0]), b"1234", "shape"),
    "size as text": (entry(shape=["4"]), b"1234", "shape"),
    "size over 64 bits": (entry(shape=[1 << 64]), b"1234", "JSON"),
    "overflowing shape": (entry(shape=[1 << 40, 1 << 40]), b"1234", "2^64"),
    "half a byte": (entry(dtype="F4", shape=[7]), b"1234", "whole bytes"),
    "no offsets": ({"t": {"dtype": "U8", "shape": [4]}}, b"1234", "data_offsets"),
    "one offset": (entry(data_offsets=[0]), b"1234", "data_offsets"),
    "three offsets": (entry(data_offsets=[0, 4, 4]), b"1234", "data_offsets"),
    "negative offset": (entry(data_offsets=[-1, 3]), b"1234", "data_offsets"),
    "descending offsets": (entry(data_offsets=[4, 0]), b"1234", "data_offsets"),
    "offsets past the end": (entry(data_offsets=[0, 5], shape=[5]), b"1234", "4 bytes of data"),
    "huge offset": (entry(data_offsets=[0, (1 << 63) - 1], shape=[(1 << 63) - 1]), b"1234", "2^64"),
    "offsets that do not fit the shape": (entry(data_offsets=[0, 3]), b"123", "4"),
    "an overlap": ({"a": ONE, "b": {**ONE, "data_offsets": [2, 6]}}, b"123456", "overlaps"),
    "the same bytes twice": ({"a": ONE, "b": ONE}, b"1234", "overlaps"),
    "a gap": ({"a": ONE, "b": {**ONE, "data_offsets": [5, 9]}}, b"123456789", "gap"),
    "a gap at the start": ({"a": {**ONE, "data_offsets": [1, 5]}}, b"12345", "gap"),
    "bytes after the last tensor": ({"a": ONE}, b"12345", "1 bytes follow"),
    "metadata that is a list": ({"__metadata__": [], "a": ONE}, b"1234", "__metadata__"),
    "metadata that is no text": ({"__metadata__": {"k": 1}, "a": ONE}, b"1234", '"k"'),
}


@pytest.mark.parametrize("name", HEADERS)
def test_headers(tmp_path, name):
    header, data, named = HEADERS[name]
    assert named in refuse_run(tmp_path, raw_file(tmp_path / "in", header, data))


@pytest.mark.parametrize(
    "length, named",
    [(0, "0 bytes"), (3, "JSON"), (99, "99"), (100_000_000, "truncated"), (100_000_001, "limit"), ((1 << 64) - 1, "limit")],
)
def test_lengths(tmp_path, length, named):
    assert named in refuse_run(tmp_path, raw_file(tmp_path / "in", b'{"a":{}}', length=length))


@pytest.mark.parametrize("size", [0, 1, 7])
def test_files_without_room_for_a_length(tmp_path, size):
    source = tmp_path / "in"
    source.write_bytes(b"\x01" * size)
    assert f"{size} bytes" in refuse_run(tmp_path, source)


def test_every_truncation(tmp_path):
    whole = save(tmp_path / "in", qkv(heads=1, heads_kv=1, q_len=1, kv_len=1, dim=2)).read_bytes()
    for size in range(len(whole)):
        source = tmp_path / "in"
        source.write_bytes(whole[:size])
        refuse_run(tmp_path, source)


def test_paths_that_cannot_be_read(tmp_path):
    assert "No such file" in refuse_run(tmp_path, tmp_path / "nowhere")
    assert "regular" in refuse_run(tmp_path, tmp_path)
    assert "regular" in refuse_run(tmp_path, "/dev/zero")


def changed(**changes):
    tensors = qkv()
    tensors.update(changes)
    return {name: array for name, array in tensors.items() if array is not None}


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


INPUTS = {
    "no v": (changed(v=None), '"v"'),
    "q with two dimensions": (changed(q=zeros(4, 4)), '"q"'),
    "q with five dimensions": (changed(q=zeros(1, 1, 4, 200, 64)), '"q"'),
    "q of float64": (changed(q=zeros(4, 200, 64, dtype=np.float64)), "F64"),
    "k of bytes": (changed(k=zeros(2, 200, 64, dtype=np.uint8)), "U8"),
    "k with a batch axis": (changed(k=zeros(1, 2, 200, 64)), '"k"'),
    "heads that do not divide": (changed(q=zeros(5, 200, 64)), "5 heads"),
    "fewer query heads": (changed(q=zeros(1, 200, 64)), "1 heads"),
    "no key heads": (changed(k=zeros(0, 200, 64), v=zeros(0, 200, 64)), "0"),
    "another dim of k": (changed(k=zeros(2, 200, 32)), "dim"),
    "another length of v": (changed(v=zeros(2, 199, 64)), "length"),
    "other heads of v": (changed(v=zeros(1, 200, 64)), "heads"),
    "dim 0": (changed(q=zeros(4, 200, 0), k=zeros(2, 200, 0)), "dim"),
    "dim 257": (changed(q=zeros(4, 20, 257), k=zeros(2, 20, 257), v=zeros(2, 20, 257)), "257"),
    "another batch of k": ({"q": zeros(2, 1, 9, 32), "k": zeros(3, 1, 9, 32), "v": zeros(3, 1, 9, 32)}, "batch"),
    "too few sinks": (changed(sinks=zeros(3)), '"sinks"'),
    "sinks of another type": (changed(sinks=zeros(4, dtype=np.float16)), "F32"),
    "sinks with two dimensions": (changed(sinks=zeros(4, 1)), "sinks"),
    "cu_seqlens_q alone": (changed(cu_seqlens_q=zeros(2, dtype=np.int32)), "cu_seqlens_k"),
    "cu_seqlens of floats": (changed(cu_seqlens_q=zeros(2), cu_seqlens_k=zeros(2)), "I32"),
    "cu_seqlens of two lengths": (
        changed(cu_seqlens_q=zeros(2, dtype=np.int32), cu_seqlens_k=zeros(3, dtype=np.int32)),
        "cu_seqlens",
    ),
    "cu_seqlens not from 0": (
        changed(cu_seqlens_q=np.array([1, 5], np.int32), cu_seqlens_k=np.array([0, 5], np.int32)),
        "element 0 is 1",
    ),
    "cu_seqlens that descend": (
        changed(cu_seqlens_q=np.array([0, 5], np.int32), cu_seqlens_k=np.array([0, -5], np.int32)),
        "element 1 is -5",
    ),
    "cu_seqlens past the end": (
        changed(cu_seqlens_q=np.array([0, 201], np.int32), cu_seqlens_k=np.array([0, 5], np.int32)),
        "201",
    ),
}


@pytest.mark.parametrize("name", INPUTS)
def test_inputs_of_an_attention(tmp_path, name):
    tensors, named = INPUTS[name]
    assert named in refuse_run(tmp_path, save(tmp_path / "in", tensors))


def test_cu_seqlens_need_packed_tensors(tmp_path):
    offsets = np.array([0, 5], np.int32)
    tensors = {**qkv(batch=1), "cu_seqlens_q": offsets, "cu_seqlens_k": offsets}
    assert "cu_seqlens" in refuse_run(tmp_path, save(tmp_path / "in", tensors))


def test_shapes_whose_zeros_hide_an_overflow(tmp_path):
    """No bytes, but strides and counts of elements beyond 64 bits."""
    big = 1 << 62
    for shape in ([0, big, big], [0, big, 4], [big, 0, big], [0, 0, big], [0, big, 64]):
        header = {name: {"dtype": "U8", "shape": shape, "data_offsets": [0, 0]} for name in "qkv"}
        for info in header.values():
            info["dtype"] = "BF16"
        source = raw_file(tmp_path / "in", header)
        refuse(FAILED, "run", source, "-o", tmp_path / "out")
        refuse(FAILED, "quantize", source, "-o", tmp_path / "out", "--tensor", "q", "--format", "mxfp4")
        assert not (tmp_path / "out").exists()

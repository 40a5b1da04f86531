# SPDX-License-Identifier: Apache-2.0
"""Run the command and make its files. The file format is written and read here byte by byte, from its description."""
import json
import os
import pathlib
import struct
import subprocess

import ml_dtypes
import numpy as np
import pytest

TREE = pathlib.Path(__file__).resolve().parents[2]
DATA = TREE / "data"
DTYPES = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I32": np.dtype("<i4"),
    "U8": np.dtype("u1"),
    "F64": np.dtype("<f8"),
}
DONE, FAILED, USAGE = 0, 1, 2


def executable():
    """The command of MXATTN_COMMAND, or of a build folder."""
    places = [os.environ.get("MXATTN_COMMAND"), TREE / "build/gcc/mxattn", TREE / "build/release/mxattn"]
    for place in places:
        if place and pathlib.Path(place).exists():
            return str(place)
    pytest.skip("no mxattn command: set MXATTN_COMMAND")


def call(*args, **options):
    """Run the command; its output is text."""
    words = [executable(), *map(str, args)]
    return subprocess.run(words, capture_output=True, text=True, timeout=300, check=False, **options)


def succeed(*args, **options):
    """Run the command, which must succeed without a word on stderr; returns what it printed."""
    done = call(*args, **options)
    assert (done.returncode, done.stderr) == (DONE, "")
    return done.stdout


def refuse(status, *args, **options):
    """Run the command, which must end with this status and one sentence on stderr, which is returned."""
    done = call(*args, **options)
    assert done.returncode == status, done.stderr
    assert done.stderr.startswith("mxattn: ") and done.stderr.count("\n") == 1 and done.stderr.endswith("\n")
    return done.stderr


def raw_file(path, header, data=b"", length=None):
    """A file with this header, an object or bytes, whatever it says."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def save(path, tensors, metadata=None):
    """Write arrays; the dtype is the array's."""
    names = {dtype: name for name, dtype in DTYPES.items()}
    header, data = {}, b""
    if metadata:
        header["__metadata__"] = metadata
    for name, array in tensors.items():
        begin = len(data)
        data += np.ascontiguousarray(array).tobytes()
        header[name] = {"dtype": names[array.dtype], "shape": list(array.shape), "data_offsets": [begin, len(data)]}
    return raw_file(path, header, data)


def load(path):
    """All tensors and the metadata of a file."""
    raw = pathlib.Path(path).read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    assert length % 8 == 0
    header = json.loads(raw[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, info in header.items():
        begin, end = (8 + length + offset for offset in info["data_offsets"])
        tensors[name] = np.frombuffer(raw[begin:end], DTYPES[info["dtype"]]).reshape(info["shape"])
    return tensors, metadata


def sample_data(path, tokens):
    """The first tokens of the middle layer of the sample data."""
    tensors, _ = load(DATA / "smollm2-135m_layer15_2048.safetensors")
    return save(path, {name: array[:, :tokens] for name, array in tensors.items()})


def qkv(heads=4, heads_kv=2, q_len=200, kv_len=200, dim=64, dim_v=None, batch=None, dtype="F32", seed=1):
    """Random normal q, k and v."""
    rng = np.random.default_rng(seed)
    lead = () if batch is None else (batch,)
    shapes = {
        "q": (*lead, heads, q_len, dim),
        "k": (*lead, heads_kv, kv_len, dim),
        "v": (*lead, heads_kv, kv_len, dim_v or dim),
    }
    return {name: rng.standard_normal(shape).astype(DTYPES[dtype]) for name, shape in shapes.items()}


def attention(q, k, v, causal=False, window=(-1, -1), scale=None, softcap=0, q_offset=None, sinks=None):
    """float64 attention and its log-sum-exp, of [heads][seq][dim] arrays."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    group = q.shape[0] // k.shape[0]
    k, v = np.repeat(k, group, 0), np.repeat(v, group, 0)
    s = np.einsum("hid,hjd->hij", q, k) * (q.shape[2] ** -0.5 if scale is None else scale)
    if softcap:
        s = softcap * np.tanh(s / softcap)
    offset = k.shape[1] - q.shape[1] if q_offset is None else q_offset
    distance = (np.arange(q.shape[1]) + offset)[:, None] - np.arange(k.shape[1])[None, :]
    visible = np.ones(distance.shape, bool)
    if causal or window[1] >= 0:
        visible &= -distance <= (0 if causal else window[1])
    if window[0] >= 0:
        visible &= distance <= window[0]
    s = np.where(visible, s, -np.inf)
    top = s.max(axis=2, initial=-np.inf)
    if sinks is not None:
        top = np.maximum(top, sinks[:, None])
    top = np.where(np.isfinite(top), top, 0)
    p = np.exp(s - top[..., None])
    z = p.sum(2) + (0 if sinks is None else np.exp(sinks[:, None] - top))
    with np.errstate(divide="ignore"):
        lse = top + np.log(z)
    return np.einsum("hij,hjd->hid", p, v) / np.where(z > 0, z, 1)[..., None], lse


def rel_l2(result, reference):
    """|result - reference| / |reference|."""
    r = reference.astype(np.float64)
    return np.linalg.norm(result.astype(np.float64) - r) / np.linalg.norm(r)

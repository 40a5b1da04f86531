# SPDX-License-Identifier: Apache-2.0
"""Each bad argument is refused with a sentence that names it, before anything is written."""

import mxattn
import numpy as np
import pytest
from package_inputs import random_qkv

Q, K, V = random_qkv(batch=1, q_len=20, kv_len=30)
PACKED = Q[0].swapaxes(0, 1), K[0].swapaxes(0, 1), V[0].swapaxes(0, 1)

ATTENTION = {
    "no array": ({"q": [[1.0]]}, "q: list is neither"),
    "dtype": ({"q": Q.astype(np.float64)}, "q: dtype <f8 .float64. is not float32"),
    "integers": ({"k": K.astype(np.int32)}, "k: dtype <i4"),
    "foreign byte order": ({"v": V.astype(">f4")}, "v: dtype >f4"),
    "dimensions": ({"q": Q[0]}, "q: has 3 dimensions, not 4"),
    "last axis": (
        {"k": K.swapaxes(2, 3).copy().swapaxes(2, 3)},
        r"k: stride\[3\] is 30, dim must have stride 1",
    ),
    "heads": ({"q": Q[:, :3]}, "heads"),
    "head_dim": ({"k": K[..., :32]}, "k: size 32 of axis 3 is not the plan's 64"),
    "batch": ({"k": np.repeat(K, 2, axis=0)}, "k: size 2 of axis 0"),
    "lengths": ({"v": V[:, :, :9]}, "v: size 9 of axis 2"),
    "wide heads": ({"q": np.zeros((1, 4, 20, 300), np.float32)}, "head_dim"),
    "layout": ({"layout": "sbhd"}, "layout: 'sbhd' is not one of 'bhsd', 'bshd'"),
    "packed layout": ({"layout": "shd"}, "layout: 'shd' is not one of"),
    "recipe": ({"recipe": "dma5"}, "dma5"),
    "recipe type": ({"recipe": None}, "recipe: None is not a text"),
    "recipe list": ({"recipe": ["dma4"]}, "recipe: .* is not a text"),
    "no window": ({"window_size": 5}, "window_size: 5 is not a pair"),
    "window": ({"window_size": (-7, 0)}, "window_left"),
    "fraction of a window": ({"window_size": (1.5, 0)}, "window_size: 1.5 is not an integer"),
    "scale": ({"softmax_scale": float("nan")}, "softmax_scale"),
    "scale type": ({"softmax_scale": "big"}, "softmax_scale: 'big' is not a number"),
    "softcap": ({"softcap": -1.0}, "softcap"),
    "offset": ({"q_offset": 2**63}, "q_offset: .* does not fit 64 bits"),
    "threads": ({"threads": -1}, "threads"),
    "sinks": ({"sinks": np.zeros(3, np.float32)}, r"sinks: shape \(3,\) is not \(4,\)"),
    "sinks type": ({"sinks": np.zeros(4)}, "sinks: dtype <f8"),
    "mean": ({"mean": np.zeros((1, 2, 64), np.float32)}, "mean"),
    "no mean": ({"recipe": "dma8,smooth-k=given"}, "mean"),
    "out shape": ({"out": np.zeros((1, 4, 21, 64), np.float32)}, "out: size 21 of axis 2"),
    "out type": ({"out": np.zeros(Q.shape)}, "out: dtype <f8"),
    "out read-only": ({"out": np.broadcast_to(np.float32(0), Q.shape)}, "out: is read-only"),
    "out overlaps": (
        {"out": np.lib.stride_tricks.as_strided(np.zeros(Q.shape, np.float32), Q.shape, (0, 0, 256, 4))},
        "out: ",
    ),
}


@pytest.mark.parametrize("name", ATTENTION)
def test_attention(name):
    changes, sentence = ATTENTION[name]
    out = np.full(Q.shape, 7, np.float32)
    arguments = {"q": Q, "k": K, "v": V, "out": out} | changes
    for _ in range(2):  # the second call meets what the first has cached
        with pytest.raises(ValueError, match=sentence):
            mxattn.attention(**arguments)
    assert (out == 7).all()


def test_what_equals_an_option_that_was_taken():
    mxattn.attention(Q, K, V, threads=1)
    with pytest.raises(ValueError, match="threads: 1.0 is not an integer"):
        mxattn.attention(Q, K, V, threads=1.0)
    want = mxattn.attention(Q, K, V, window_size=(9, 3))
    assert (mxattn.attention(Q, K, V, window_size=[9, np.int64(3)]) == want).all()


def test_a_stride_between_elements():
    bytes_ = np.zeros(1 * 2 * 30 * 258 + 8, np.uint8)
    k = np.ndarray((1, 2, 30, 64), np.float32, bytes_, 0, (0, 30 * 258, 258, 4))
    with pytest.raises(ValueError, match="k: a stride of 258 bytes is no multiple of its 4-byte elements"):
        mxattn.attention(Q, k, V)


@pytest.mark.parametrize(
    "cu_q,cu_k,sentence",
    [
        ([0, 10, 20], [0, 30], "cu_seqlens_k: has 2 offsets, but cu_seqlens_q has 3"),
        ([0], [0], "cu_seqlens_q: has 1 offsets"),
        ([0, 15, 10], [0, 10, 30], "cu_seqlens_q"),
        ([0, 10, 21], [0, 10, 30], "cu_seqlens_q"),
        ([1, 10, 20], [0, 10, 30], "cu_seqlens_q"),
        ([0, 10, 20], [0, 10, 2**31], "cu_seqlens_k: 2147483648 is outside"),
        ([0, -1, 20], [0, 10, 30], "cu_seqlens_q: -1 is outside"),
        (np.array([0.0, 10, 20]), [0, 10, 30], "cu_seqlens_q: is not a row of integers"),
        (np.array([[0, 10, 20]]), [0, 10, 30], "cu_seqlens_q: is not a row of integers"),
        (None, [0, 30], "cu_seqlens_q: is not a row of integers"),
    ],
)
def test_offsets(cu_q, cu_k, sentence):
    with pytest.raises(ValueError, match=sentence):
        mxattn.varlen_attention(*PACKED, cu_q, cu_k)


def test_packed_dimensions_and_layout():
    with pytest.raises(ValueError, match="q: has 4 dimensions, not 3"):
        mxattn.varlen_attention(Q, K, V, [0, 20], [0, 30])
    with pytest.raises(ValueError, match="layout: 'bhsd' is not one of 'shd', 'hsd'"):
        mxattn.varlen_attention(*PACKED, [0, 20], [0, 30], layout="bhsd")


QUANTIZE = {
    "format": ({"format": "mxfp5"}, "format: 'mxfp5' is not one of f32, "),
    "format type": ({"format": 8}, "format: 8 is not one of"),
    "rule": ({"rule": "ceil"}, "rule: 'ceil' is not one of None, 'floor'"),
    "rule of a format": ({"format": "nvfp4", "rule": "even"}, "rule"),
    "level": ({"level": "row"}, "level: 'row' is not one of"),
    "axis": ({"axis": "batch"}, "axis: 'batch' is not one of 'head', 'token'"),
    "policy": ({"nonfinite": "ignore"}, "nonfinite: 'ignore' is not one of"),
    "scales": ({"scale_layout": "col"}, "scale_layout: 'col' is not one of"),
    "nvfp4": ({"format": "nvfp4", "nvfp4": ("up",)}, "nvfp4: 'up' is not one of"),
    "tail": ({"x": Q[..., :33]}, "33"),
    "mean": ({"mean": np.zeros((1, 4, 65), np.float32)}, "mean: shape"),
    "factors": ({"format": "int8", "g": np.zeros(3, np.float32)}, r"g: shape \(3,\) is not \(80,\)"),
    "factor": ({"format": "int8", "level": "tensor", "g": np.zeros(1, np.float32)}, "g"),
    "layout": ({"layout": "shd"}, "layout: 'shd' is not one of"),
    "dimensions": ({"x": Q[0]}, "x: has 3 dimensions, not 4"),
    "dtype": ({"x": Q.astype(np.float64)}, "x: dtype <f8"),
}


@pytest.mark.parametrize("name", QUANTIZE)
def test_quantize(name):
    changes, sentence = QUANTIZE[name]
    with pytest.raises(ValueError, match=sentence):
        mxattn.quantize(**({"x": Q, "format": "mxfp4"} | changes))


def test_dequantize():
    packed = mxattn.quantize(Q, "nvfp4")
    parts = {name: getattr(packed, name) for name in ("format", "shape", "codes", "scales", "g")}
    for changes, sentence in (
        ({"codes": packed.codes[:, :5]}, "codes: has 640 bytes, not 2560"),
        ({"codes": np.repeat(packed.codes, 2, axis=2)[:, :, ::2]}, "codes: is not contiguous"),
        ({"scales": None}, "scales: is None, 320 bytes belong there"),
        ({"g": packed.g[:1]}, "g: has 4 bytes, not 320"),
        ({"format": "nvfp5"}, "format: 'nvfp5'"),
        ({"shape": (1, 4, 21, 64)}, "codes: has 2560 bytes"),
    ):
        with pytest.raises(ValueError, match=sentence):
            mxattn.dequantize(mxattn.Quantized(**(parts | changes)))
    with pytest.raises(ValueError, match="dtype: 'float64' is not one of"):
        mxattn.dequantize(packed, dtype="float64")
    with pytest.raises(ValueError, match="out: shape"):
        mxattn.dequantize(packed, out=np.zeros((1, 4, 21, 64), np.float32))


def test_merge():
    out, lse = mxattn.attention(Q, K, V, return_lse=True)
    for outs, lses, options, sentence in (
        ([], [], {}, "lses: 0 log-sum-exps for 0 parts"),
        ([out], [lse, lse], {}, "lses: 2 log-sum-exps for 1 parts"),
        ([out, out[:, :2]], [lse, lse], {}, r"o\[1\]|axis 1"),
        ([out], [lse[:, :, :5]], {}, r"lses\[0\]: is not contiguous float32 of shape"),
        ([out], [lse.astype(np.float16)], {}, r"lses\[0\]: is not contiguous float32"),
        ([out], [lse.swapaxes(1, 2).copy().swapaxes(1, 2)], {}, r"lses\[0\]: is not contiguous"),
        ([out], [lse], {"sinks": np.zeros(5, np.float32)}, "sinks: shape"),
        ([out], [lse], {"out": out[:, :2]}, "axis 1|out"),
    ):
        with pytest.raises(ValueError, match=sentence):
            mxattn.merge(outs, lses, **options)


def test_tile_map():
    for arguments, sentence in (
        ((-1, 5), "q_len"),
        ((5, 2.5), "kv_len: 2.5 is not an integer"),
        ((5, 2**63), "kv_len: .* does not fit 64 bits"),
    ):
        with pytest.raises(ValueError, match=sentence):
            mxattn.tile_map(*arguments)
    with pytest.raises(ValueError, match="dma5"):
        mxattn.tile_map(5, 5, recipe="dma5")

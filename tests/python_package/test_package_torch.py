# SPDX-License-Identifier: Apache-2.0
"""The same calls with torch tensors in host memory."""

import mxattn
import numpy as np
import pytest
from package_inputs import random_qkv

torch = pytest.importorskip("torch")

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def tensors(dtype=torch.float32, **sizes):
    return [torch.from_numpy(x).to(dtype) for x in random_qkv(**sizes)]


def to_numpy(x):
    if x.dtype is not torch.bfloat16:
        return x.numpy()
    import ml_dtypes

    return x.view(torch.int16).numpy().view(ml_dtypes.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_bits_of_numpy(dtype, layout):
    q, k, v = tensors(dtype)
    if layout == "bshd":
        q, k, v = (x.transpose(1, 2).contiguous() for x in (q, k, v))
    options = {"causal": True, "layout": layout, "return_lse": True}
    out, lse = mxattn.attention(q, k, v, **options)
    want, want_lse = mxattn.attention(*map(to_numpy, (q, k, v)), **options)
    assert out.dtype is dtype and lse.dtype is torch.float32
    assert (to_numpy(out).view(np.uint8) == want.view(np.uint8)).all() and (lse.numpy() == want_lse).all()


def test_sdpa():
    q, k, v = tensors(q_len=200, kv_len=200)
    want = torch.nn.functional.scaled_dot_product_attention(
        *(x.double() for x in (q, k, v)), is_causal=True, enable_gqa=True
    )
    got = mxattn.attention(q, k, v, causal=True, recipe="exact")
    torch.testing.assert_close(got.double(), want, rtol=2.0**-22, atol=2.0**-22)


@pytest.mark.parametrize("dtype", DTYPES)
def test_views_out_and_sinks(dtype):
    q, k, v = tensors(dtype)
    want = mxattn.attention(q, k, v, sinks=np.ones(4, np.float32))
    tokens = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    out = torch.zeros(2, 4, 150, 70, dtype=dtype)[..., :64]
    sinks = torch.nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    with torch.no_grad():
        got = mxattn.attention(*tokens, sinks=sinks, out=out)
    assert got is out and torch.equal(got, want)
    expanded = [x[:1].expand(2, -1, -1, -1) for x in (q, k, v)]
    assert torch.equal(mxattn.attention(*expanded)[1], mxattn.attention(q, k, v)[0])


def test_packed_and_merge():
    q, k, v = (x[0].transpose(0, 1) for x in tensors(batch=1, q_len=300))
    cu = torch.tensor([0, 120, 300], dtype=torch.int32)
    out, lse = mxattn.varlen_attention(q, k, v, cu, cu, causal=True, return_lse=True)
    want = mxattn.varlen_attention(*(x.numpy() for x in (q, k, v)), [0, 120, 300], cu.numpy(), causal=True)
    assert (out.numpy() == want).all() and lse.shape == (4, 300)
    whole, lse = mxattn.attention(*tensors(), return_lse=True)
    merged, _ = mxattn.merge([whole, whole], [lse, lse])
    torch.testing.assert_close(merged, whole)


@pytest.mark.parametrize("name", ["mxfp4", "nvfp4", "int8"])
def test_formats(name):
    x = tensors(torch.bfloat16)[0]
    packed, want = mxattn.quantize(x, name), mxattn.quantize(to_numpy(x), name)
    assert isinstance(packed.codes, torch.Tensor) and (packed.codes.numpy() == want.codes).all()
    back = mxattn.dequantize(packed, dtype="bfloat16")
    assert back.dtype is torch.bfloat16
    assert (back.float().numpy() == mxattn.dequantize(want, dtype="float32").astype(to_numpy(x).dtype)).all()


def test_refusals():
    q, k, v = tensors()
    for error, changes, sentence in (
        (ValueError, {"k": k.numpy()}, "k: is a NumPy array, but q is a torch tensor in host memory"),
        (ValueError, {"out": np.zeros(q.shape, np.float32)}, "out: is a NumPy array"),
        (ValueError, {"q": q.double()}, "q: dtype torch.float64 is not torch.float32"),
        (RuntimeError, {"v": v.to("meta")}, "v: is on meta"),
        (ValueError, {"q": q.to_sparse()}, "q: layout torch.sparse_coo"),
        (ValueError, {"k": k.clone().requires_grad_()}, "k: requires grad, and there is no backward pass"),
        (ValueError, {"sinks": torch.zeros(4, requires_grad=True)}, "sinks: requires grad"),
        (ValueError, {"q": q.transpose(2, 3)}, r"q: stride\[3\]"),
        (ValueError, {"q": torch._neg_view(q)}, "q: its sign is pending"),
    ):
        with pytest.raises(error, match=sentence):
            mxattn.attention(**({"q": q, "k": k, "v": v} | changes))
    with torch.no_grad():
        mxattn.attention(q, k.clone().requires_grad_(), v)
    with torch.inference_mode():
        mxattn.attention(q, k, v)
    with pytest.raises(ValueError, match="k: is a torch tensor in host memory, but q is a NumPy array"):
        mxattn.attention(q.numpy(), k, v)

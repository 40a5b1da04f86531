# SPDX-License-Identifier: Apache-2.0
"""The PyTorch operator and the stand-in for scaled_dot_product_attention."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import mxattn
import pytest

torch = pytest.importorskip("torch")

import mxattn.torch as mt

OP, SDPA = torch.ops.mxattn.attention, torch.nn.functional.scaled_dot_product_attention
CLOSE = {"rtol": 2.0**-20, "atol": 2.0**-20}


def qkv(q_len=40, kv_len=70, heads=4, heads_kv=2, dim=32, dtype=torch.float32):
    torch.manual_seed(0)
    shapes = (2, heads, q_len, dim), (2, heads_kv, kv_len, dim), (2, heads_kv, kv_len, dim)
    return [torch.randn(shape).to(dtype) for shape in shapes]


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_operator_is_the_call(layout, dtype):
    q, k, v = qkv(dtype=dtype)
    if layout == "bshd":
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    options = {"causal": True, "softmax_scale": 0.2, "softcap": 5.0, "sinks": torch.ones(4), "layout": layout}
    want, want_lse = mxattn.attention(q, k, v, window_size=(30, -1), return_lse=True, **options)
    out, lse = OP(q, k, v, window_left=30, **options)
    assert torch.equal(out, want) and torch.equal(lse, want_lse)


@pytest.mark.parametrize("options", [{}, {"causal": True, "layout": "bshd", "recipe": "dma4", "threads": 1}])
def test_opcheck(options):
    q, k, v = qkv(heads_kv=4, q_len=4, kv_len=4)
    torch.library.opcheck(OP.default, (q, k, v[..., :16]), options)


def test_compile_keeps_one_graph():
    def layer(q, k, v):
        return OP(q * 2, k, v, causal=True, recipe="dma4")[0] + 1

    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    for kv_len in (70, 71, 200):
        inputs = qkv(kv_len=kv_len)
        assert torch.equal(compiled(*inputs), layer(*inputs))


def test_compile_with_the_stand_in():
    def layer(q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q * 2, k, v, is_causal=True) + 1

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    inputs = qkv(heads_kv=4)
    with mt.replace_sdpa("dma4"):
        got, want = compiled(*inputs), layer(*inputs)
    assert torch.equal(got, want) and torch.equal(compiled(*inputs), layer(*inputs))
    assert not torch.equal(got, layer(*inputs))


def test_no_backward():
    q, k, v = qkv()
    out, _ = OP(q.requires_grad_(), k, v)
    with pytest.raises(RuntimeError, match="mxattn has no backward pass"):
        out.sum().backward()
    with pytest.raises(ValueError, match="q: requires grad"):
        mxattn.attention(q, k, v)


def test_errors_of_the_operator():
    q, k, v = qkv()
    with pytest.raises(ValueError, match="dma5"):
        OP(q, k, v, recipe="dma5")


SUPPORTED = {
    "plain": (qkv(), {"enable_gqa": True}),
    "causal": (qkv(40, 40), {"is_causal": True, "enable_gqa": True}),
    "causal, fewer queries": (qkv(40, 70), {"is_causal": True, "enable_gqa": True}),
    "causal, more queries": (qkv(70, 40), {"is_causal": True, "enable_gqa": True}),
    "scale": (qkv(heads_kv=4), {"scale": 0.5, "dropout_p": 0.0}),
    "3 dimensions": ([x[0] for x in qkv(heads_kv=4)], {"is_causal": True}),
}


@pytest.mark.parametrize("name", SUPPORTED)
def test_replaced(name, monkeypatch):
    inputs, options = SUPPORTED[name]
    want = SDPA(*(x.double() for x in inputs), **options)
    calls = []
    monkeypatch.setattr(mt, "attention_op", lambda *args, **named: calls.append(1) or OP(*args, **named))
    with warnings.catch_warnings(), mt.replace_sdpa("exact"):
        warnings.simplefilter("error")
        got = torch.nn.functional.scaled_dot_product_attention(*inputs, **options)
        direct = SDPA(*inputs, **options)
    assert len(calls) == 2 and torch.equal(got, direct)
    torch.testing.assert_close(got.double(), want, **CLOSE)
    SDPA(*inputs, **options)
    assert len(calls) == 2


Q, K, V = qkv(heads_kv=4)
LEFT = {
    "mask tensor": ((Q, K, V, torch.ones(40, 70, dtype=torch.bool)), {}),
    "dropout": ((Q, K, V), {"dropout_p": 0.5}),
    "backward": ((Q.clone().requires_grad_(), K, V), {}),
    "float64": ((Q.double(), K.double(), V.double()), {}),
    "on the CPU": ((Q.to("meta"), K.to("meta"), V.to("meta")), {}),
    "3 or 4 dimensions": ((Q[None], K[None], V[None]), {}),
    "not contiguous": ((Q, K.transpose(2, 3).contiguous().transpose(2, 3), V), {}),
    "above 256": ((Q.repeat(1, 1, 1, 9), K.repeat(1, 1, 1, 9), V), {}),
    "broadcast": ((Q, K[:, :1], V[:, :1]), {}),
}


@pytest.mark.parametrize("reason", LEFT)
def test_left_to_torch_and_said_once(reason):
    args, options = LEFT[reason]
    with warnings.catch_warnings(record=True) as said, mt.replace_sdpa("dma4"):
        warnings.simplefilter("always")
        for _ in range(2):
            torch.manual_seed(1)
            got = SDPA(*args, **options)
    assert len(said) == 1 and reason in str(said[0].message) and said[0].filename == __file__
    torch.manual_seed(1)
    want = SDPA(*args, **options)
    assert got.device.type == "meta" or torch.equal(got, want)


def test_a_module_and_a_bad_recipe():
    layer = torch.nn.TransformerDecoderLayer(64, 4, 64, 0.0, batch_first=True).requires_grad_(False)
    x = torch.randn(2, 30, 64)
    want = layer(x, x)
    with warnings.catch_warnings(), mt.replace_sdpa("exact"):
        warnings.simplefilter("error")
        got = layer(x, x)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="dma5"):
        mt.replace_sdpa("dma5")


def test_without_torch():
    code = "import sys; sys.modules['torch'] = None; import mxattn, mxattn.torch"
    path = str(Path(__file__).resolve().parents[2] / "python")
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    last = done.stderr.splitlines()[-1]
    assert last == "ImportError: mxattn: mxattn.torch needs PyTorch: pip install mxattn[torch]"

# SPDX-License-Identifier: Apache-2.0
"""torch tensors on a CUDA device: the numbers of the CPU, torch's current stream, CUDA graphs. bench/gpu.sh runs it."""

import mxattn
import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

import mxattn.torch as mt

pytestmark = pytest.mark.cuda
OP = torch.ops.mxattn.attention
# The CPU's fast kernels and the GPU's round the same operands' products and weights in another order and to
# other types: |difference| / |output|.
CLOSE = {"exact": 2.0**-20, "bf16": 2.0**-7, "dma8": 2.0**-7, "dma4": 2.0**-6}


def qkv(q_len=300, kv_len=700, heads=4, heads_kv=2, dim=64, dtype=torch.bfloat16, batch=2):
    generator = torch.Generator().manual_seed(0)
    shapes = (batch, heads, q_len, dim), (batch, heads_kv, kv_len, dim), (batch, heads_kv, kv_len, dim)
    return [torch.randn(shape, generator=generator).to("cuda", dtype) for shape in shapes]


def host(*tensors):
    return [x.cpu() for x in tensors]


def error(got, want):
    got, want = got.cpu().double(), want.cpu().double()
    return ((got - want).norm() / want.norm()).item()


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("recipe", CLOSE)
def test_near_the_cpu(recipe, layout):
    tensors = qkv()
    if layout == "bshd":
        tensors = [x.transpose(1, 2).contiguous() for x in tensors]
    sinks = torch.linspace(-1, 2, 4, dtype=torch.bfloat16, device="cuda")
    options = {"causal": True, "window_size": (500, -1), "softcap": 8.0, "layout": layout, "recipe": recipe}
    out, lse = mxattn.attention(*tensors, sinks=sinks, return_lse=True, **options)
    want, want_lse = mxattn.attention(*host(*tensors), sinks=sinks.cpu(), return_lse=True, **options)
    assert out.is_cuda and lse.is_cuda and out.dtype is torch.bfloat16 and out.shape == want.shape
    assert error(out, want) < CLOSE[recipe] and error(lse, want_lse) < CLOSE[recipe]
    given = torch.empty_like(out, dtype=torch.float32)
    assert mxattn.attention(*tensors, sinks=sinks, out=given, **options) is given
    assert error(given, want) < CLOSE[recipe] + 2.0**-8


def test_packed_sequences_and_views():
    q, k, v = (x[0].transpose(0, 1) for x in qkv(q_len=300, kv_len=300, batch=1))
    cu = [0, 120, 300]
    out = mxattn.varlen_attention(q, k, v, cu, torch.tensor(cu, device="cuda"), causal=True)
    assert error(out, mxattn.varlen_attention(*host(q, k, v), cu, cu, causal=True)) < CLOSE["dma8"]
    with_gaps = torch.zeros(2, 4, 300, 80, dtype=torch.bfloat16, device="cuda")[..., 8:72]
    tensors = qkv()
    assert mxattn.attention(*tensors, out=with_gaps) is with_gaps
    assert torch.equal(with_gaps, mxattn.attention(*tensors))


@pytest.mark.parametrize("name", ["mxfp4", "mxfp8_e4m3", "nvfp4", "int8"])
def test_formats_to_the_byte(name):
    x = qkv()[1]
    packed, want = mxattn.quantize(x, name), mxattn.quantize(x.cpu(), name)
    assert packed.codes.is_cuda and packed.n_bad is None
    for part in ("codes", "scales", "g"):
        mine, theirs = getattr(packed, part), getattr(want, part)
        assert (mine is None) == (theirs is None) and (mine is None or torch.equal(mine.cpu(), theirs))
    back = mxattn.dequantize(packed, dtype="bfloat16")
    assert back.is_cuda and torch.equal(back.cpu(), mxattn.dequantize(want, dtype="bfloat16"))


def test_the_current_stream():
    """Work is queued behind what the stream has to do, and nothing waits for it."""
    q, k, v = qkv()
    want = mxattn.attention(q * 2, k, v)
    doubled, stream = torch.zeros_like(q), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        doubled.copy_(q * 2)
        out = mxattn.attention(doubled, k, v)
        assert not stream.query()
    stream.synchronize()
    assert torch.equal(out, want)


def test_a_cuda_graph():
    tensors, out = qkv(), torch.empty(2, 4, 300, 64, dtype=torch.bfloat16, device="cuda")
    mxattn.attention(*tensors, causal=True, recipe="dma4", out=out)  # makes the plan
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        mxattn.attention(*tensors, causal=True, recipe="dma4", out=out)
    for _ in range(2):
        for x in tensors:
            x.copy_(torch.randn_like(x))
        graph.replay()
        assert torch.equal(out, mxattn.attention(*tensors, causal=True, recipe="dma4"))


def test_the_operator_and_the_stand_in():
    q, k, v = qkv(heads_kv=4, q_len=40, kv_len=40)
    torch.library.opcheck(OP.default, (q, k, v), {"causal": True})

    def layer(q, k, v):
        return OP(q * 2, k, v, causal=True, recipe="dma4")[0] + 1

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(q, k, v), layer(q, k, v))
    sdpa = torch.nn.functional.scaled_dot_product_attention
    with mt.replace_sdpa("bf16"):
        got = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert error(got, sdpa(q, k, v, is_causal=True)) < CLOSE["bf16"]


def test_refusals():
    q, k, v = qkv()
    calls = [
        (
            ValueError,
            lambda: mxattn.attention(q, k.cpu(), v),
            "k: is a torch tensor in host memory, but q is",
        ),
        (ValueError, lambda: mxattn.attention(q.cpu(), k, v), "k: is a torch tensor on cuda:0, but q is"),
        (ValueError, lambda: mxattn.attention(q, k, v, out=torch.empty_like(q, device="cpu")), "out: is a"),
        (ValueError, lambda: mxattn.attention(q, k, v, sinks=torch.zeros(4)), "sinks: is a torch tensor in"),
        (
            ValueError,
            lambda: mxattn.attention(*host(q, k, v), sinks=torch.zeros(4, device="cuda")),
            "sinks: ",
        ),
        (ValueError, lambda: mxattn.merge([q], [q[..., 0].float()]), "merged on the CPU"),
        (ValueError, lambda: mxattn.attention(q.requires_grad_(), k, v), "q: requires grad"),
        (ValueError, lambda: mxattn.Cache(2, 2, 64).append(k, v), "k: is a torch tensor on cuda:0, but the"),
        (RuntimeError, lambda: mxattn.Cache(2, 2, 64, device="cuda:99"), "cuda:99"),
    ]
    for kind, call, sentence in calls:
        with pytest.raises(kind, match=sentence):
            call()


@pytest.mark.parametrize("recipe", ["bf16", "dma8,v=int8", "dma4"])
def test_the_cache(recipe, tmp_path):
    q, k, v = qkv(q_len=3)
    caches = [mxattn.Cache(2, 2, 64, recipe=recipe, device=device) for device in ("cuda:0", "cpu")]
    for cache, tensors in zip(caches, ((k, v), host(k, v))):
        for first, end in ((0, 600), (600, 601), (601, 700)):
            cache.append(*(x[:, :, first:end] for x in tensors))
    options = {"window_left": 500, "softcap": 8.0, "return_lse": True}
    for queries in (q, q[:, :, :1], q[:, :, :1].repeat(1, 1, 40, 1)):
        out, lse = caches[0].attend(queries, **options)
        want, want_lse = caches[1].attend(queries.cpu(), **options)
        assert out.is_cuda and error(out, want) < 2.0**-6 and error(lse, want_lse) < 2.0**-6
    files = [tmp_path / "device", tmp_path / "host"]
    for cache, file in zip(caches, files):
        cache.fork(1, 0)
        cache.truncate(1, 695)
        cache.reorder([1, 0])
        cache.save(file)
    assert files[0].read_bytes() == files[1].read_bytes()
    again = mxattn.Cache.load(files[1], device="cuda:0")
    assert torch.equal(again.attend(q)[0], caches[0].attend(q)[0])
    with pytest.raises(ValueError, match="q: is a torch tensor in host memory, but the cache is in cuda:0"):
        caches[0].attend(q.cpu())


def test_generation():
    pytest.importorskip("transformers", minversion="5.6")
    from mxattn.transformers import QuantizedCache
    from tiny_models import logits, padding, tiny, tokens

    model, ids, mask = tiny("llama"), tokens(2, 60), padding(60, left=(20, 0))
    want = logits(model, "mxattn-bf16", ids, attention_mask=mask)[mask.bool()]
    try:
        model.to("cuda")
        ids, seen = ids.cuda(), mask.cuda()
        assert error(logits(model, "mxattn-bf16", ids, attention_mask=seen)[mask.bool()], want) < 2.0**-6
        options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "attention_mask": seen}
        found = model.generate(ids, cache=QuantizedCache(model.config, "bf16"), **options)
        assert found.shape == (2, 66)
    finally:
        model.to("cpu")

# SPDX-License-Identifier: Apache-2.0
"""The peers on the GPU: FlashAttention-3 (fa3-fwd wheel) and cuDNN, in bf16 and in FP8.

FP8 peers take E4M3 tensors with one scale each, made beforehand: what they need to quantize is in no time.
"""

import math

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

E4M3_LARGEST = 448.0


def to_fp8(x):
    """E4M3 codes and the factor that decodes them."""
    factor = x.abs().amax().float() / E4M3_LARGEST
    return (x.float() / factor).to(torch.float8_e4m3fn), factor


def rows_first(x):
    """[batch][heads][seq][dim] stored as [batch][seq][heads][dim]."""
    return x.transpose(1, 2).contiguous()


def cudnn_bf16(shape, q, k, v):
    def call():
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            F.scaled_dot_product_attention(q, k, v, is_causal=shape.causal, enable_gqa=shape.heads != shape.heads_kv)
    return call


def fa3_bf16(shape, q, k, v):
    from fa3_fwd_interface import flash_attn_func
    tensors = [rows_first(x) for x in (q, k, v)]
    return lambda: flash_attn_func(*tensors, causal=shape.causal)


def fa3_fp8(shape, q, k, v):
    from fa3_fwd_interface import flash_attn_func
    codes, factors = zip(*(to_fp8(rows_first(x)) for x in (q, k, v)))
    names = ("q_descale", "k_descale", "v_descale")
    descale = {name: f.expand(1, shape.heads_kv).contiguous() for name, f in zip(names, factors)}
    return lambda: flash_attn_func(*codes, causal=shape.causal, **descale)


def cudnn_fp8(shape, q, k, v):
    import cudnn
    handle = cudnn.create_handle()
    graph = cudnn.pygraph(io_data_type=cudnn.data_type.FP8_E4M3, intermediate_data_type=cudnn.data_type.FLOAT,
                          compute_data_type=cudnn.data_type.FLOAT, handle=handle)
    codes, factors = zip(*(to_fp8(x) for x in (q, k, v)))
    inputs = [graph.tensor(dim=list(x.shape), stride=list(x.stride()), data_type=cudnn.data_type.FP8_E4M3)
              for x in codes]
    scalar = {"dim": [1, 1, 1, 1], "stride": [1, 1, 1, 1], "data_type": cudnn.data_type.FLOAT}
    scales = [graph.tensor(**scalar) for _ in range(6)]
    names = ("descale_q", "descale_k", "descale_v", "descale_s", "scale_s", "scale_o")
    out, _, amax_s, amax_o = graph.sdpa_fp8(
        q=inputs[0], k=inputs[1], v=inputs[2], **dict(zip(names, scales)), generate_stats=False,
        attn_scale=1 / math.sqrt(shape.dim), use_causal_mask=shape.causal)
    result = torch.empty((*q.shape[:3], v.shape[3]), dtype=torch.float8_e4m3fn, device="cuda")
    out.set_output(True).set_dim(list(result.shape)).set_stride(list(result.stride()))
    for amax in (amax_s, amax_o):
        amax.set_output(True).set_dim([1, 1, 1, 1]).set_stride([1, 1, 1, 1]).set_data_type(cudnn.data_type.FLOAT)
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    graph.check_support()
    graph.build_plans()
    numbers = [*factors, *(torch.tensor(x, device="cuda") for x in (1 / E4M3_LARGEST, E4M3_LARGEST, 1.0))]
    memory = dict(zip(inputs, codes)) | {s: x.float().reshape(1, 1, 1, 1) for s, x in zip(scales, numbers)}
    memory |= {out: result, amax_s: torch.empty(1, 1, 1, 1, device="cuda"),
               amax_o: torch.empty(1, 1, 1, 1, device="cuda")}
    work = torch.empty(graph.get_workspace_size(), dtype=torch.uint8, device="cuda")

    def call():
        cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
        graph.execute(memory, work, handle=handle)
    return call


PEERS = {"cudnn": cudnn_bf16, "fa3": fa3_bf16, "cudnn fp8": cudnn_fp8, "fa3 fp8": fa3_fp8}


def peers(shape, q, k, v):
    """{name: call} of those that this Python has and that run the shape."""
    calls = {}
    for name, make in PEERS.items():
        try:
            call = make(shape, q, k, v)
            call()
            torch.cuda.synchronize()
            calls[name] = call
        except Exception as error:  # a missing package, a shape that the peer refuses: each has its own kind
            print(f"{shape}: no {name}: {(str(error) or repr(error)).splitlines()[0]}", flush=True)
    return calls

# SPDX-License-Identifier: Apache-2.0
"""PyTorch: an operator that torch.compile keeps whole, and a stand-in for scaled_dot_product_attention."""

from __future__ import annotations

import warnings
from typing import Any

try:
    import torch
except ImportError as error:
    raise ImportError("mxattn: mxattn.torch needs PyTorch: pip install mxattn[torch]") from error
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from ._arrays import LAYOUTS, choice
from ._attention import attention
from ._plans import parse_recipe
from ._torch_arrays import CODES

LARGEST_HEAD_DIM = 256
NO_BACKWARD = "mxattn has no backward pass: use torch.no_grad() or detach()"


def compute_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    sinks: torch.Tensor | None = None,
    *,
    window_left: int = -1,
    window_right: int = -1,
    **options: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    window = window_left, window_right
    return attention(q, k, v, sinks=sinks, window_size=window, return_lse=True, **options)


# torch.ops.mxattn.attention: (output, log-sum-exp). Arguments as those of mxattn.attention.
attention_op = torch.library.custom_op(
    "mxattn::attention",
    compute_attention,
    mutates_args=(),
    device_types=("cpu", "cuda"),
    schema="(Tensor q, Tensor k, Tensor v, Tensor? sinks=None, *, bool causal=False, "
    "float? softmax_scale=None, SymInt window_left=-1, SymInt window_right=-1, float softcap=0.0, "
    "SymInt? q_offset=None, str recipe='dma8', str layout='bhsd', int threads=0) -> (Tensor, Tensor)",
)


@attention_op.register_fake
def attention_fake(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: Any = None, *, layout: str = "bhsd", **_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    rows = [q.shape[axis] for axis in choice("layout", layout, LAYOUTS)[:3]]
    return q.new_empty([*q.shape[:3], v.shape[3]]), q.new_empty(rows, dtype=torch.float32)


def refuse_backward(context: Any, *gradients: Any) -> None:
    raise RuntimeError(NO_BACKWARD)


attention_op.register_autograd(refuse_backward)


class replace_sdpa(TorchFunctionMode):
    """Within `with replace_sdpa("dma4"):` torch's scaled_dot_product_attention is mxattn's, on this thread.

    A call that mxattn cannot do stays torch's, and a warning says why, once for each reason: a mask tensor,
    dropout, gradients, tensors that are neither on the CPU nor on one CUDA device, other types, a head_dim above
    256, shapes that broadcast.
    torch's causal mask is top-left, and so it is here.
    """

    def __init__(self, recipe: str = "dma8", threads: int = 0) -> None:
        super().__init__()
        parse_recipe(recipe)
        self.recipe, self.threads = recipe, threads
        self.said: set[str] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not F.scaled_dot_product_attention:
            return func(*args, **kwargs)
        reason = why_not(*args, **kwargs)
        if reason is None:
            return self.attend(*args, **kwargs)
        if reason not in self.said:
            self.said.add(reason)
            warnings.warn(f"mxattn: scaled_dot_product_attention stays PyTorch's: {reason}", stacklevel=2)
        return func(*args, **kwargs)

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        flat = query.dim() == 3
        q, k, v = (x[None] if flat else x for x in (query, key, value))
        out, _ = attention_op(
            q,
            k,
            v,
            causal=is_causal,
            softmax_scale=scale,
            q_offset=0 if is_causal else None,
            recipe=self.recipe,
            threads=self.threads,
        )
        return out[0] if flat else out


def why_not(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> str | None:
    """What in a call of scaled_dot_product_attention mxattn cannot do."""
    tensors = query, key, value
    if attn_mask is not None:
        return "it has a mask tensor"
    if dropout_p:
        return "it has dropout"
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        return NO_BACKWARD
    if len({x.device for x in tensors}) > 1 or query.device.type not in ("cpu", "cuda"):
        return "its tensors are not on the CPU, nor on one CUDA device"
    if any(x.layout is not torch.strided for x in tensors):
        return "its tensors are not dense"
    if any(x.dtype not in CODES for x in tensors):
        return f"its tensors are {query.dtype}, not float32, float16 or bfloat16"
    if any(x.dim() not in (3, 4) or x.dim() != query.dim() for x in tensors):
        return "its tensors do not have 3 or 4 dimensions"
    if any(x.stride(-1) != 1 and x.shape[-1] > 1 for x in tensors):
        return "the last dimension of its tensors is not contiguous"
    return why_not_shapes(query.shape, key.shape, value.shape, enable_gqa)


def why_not_shapes(q: Any, k: Any, v: Any, enable_gqa: bool) -> str | None:
    if max(q[-1], v[-1]) > LARGEST_HEAD_DIM:
        return f"its head_dim is above {LARGEST_HEAD_DIM}"
    if k[:-1] != v[:-1] or q[-1] != k[-1]:
        return "its shapes broadcast"
    heads_fit = q[-3] == k[-3] or (enable_gqa and len(q) == 4 and k[-3] > 0 and q[-3] % k[-3] == 0)
    if not heads_fit or q[:-3] != k[:-3]:
        return "its shapes broadcast"
    return None

# SPDX-License-Identifier: Apache-2.0
"""Hugging Face Transformers: attn_implementation="mxattn", and a quantised cache for generate().

    import mxattn.transformers
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="mxattn-dma4")

Importing this module registers "mxattn" (the recipe of attention()) and "mxattn-NAME" for each named recipe.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

try:
    import torch
    from transformers import AttentionInterface, AttentionMaskInterface, __version__
except ImportError as error:
    raise ImportError(
        "mxattn: mxattn.transformers needs PyTorch and Transformers: pip install mxattn[transformers]"
    ) from error

from ._attention import attention, recipes, varlen_attention
from ._plans import parse_recipe
from ._transformers_cache import CachedStates, QuantizedCache, QuantizedLayer
from ._transformers_mask import Mask, make_mask
from .torch import attention_op

__all__ = ["QuantizedCache", "attend", "make_mask", "register"]

OLDEST = 5, 6  # before, masks were asked for by other arguments
if tuple(int(n) for n in __version__.split(".")[:2]) < OLDEST:
    raise ImportError(
        f"mxattn: mxattn.transformers needs Transformers 5.6 or later, this is {__version__}: "
        "pip install --upgrade mxattn[transformers]"
    )
REFUSED = {
    "position_bias": "a bias of positions is no mask that mxattn knows",
    "output_attentions": "attention weights are never in memory; use attn_implementation='eager' for them",
}


def register(name: str = "mxattn", recipe: str | Sequence[str] = "dma8", threads: int = 0) -> None:
    """Make attn_implementation=name this recipe, or with a sequence recipe[i] in layer i."""
    for text in [recipe] if isinstance(recipe, str) else recipe:
        parse_recipe(text)
    AttentionInterface.register(name, partial(attend, recipe=recipe, threads=threads))
    AttentionMaskInterface.register(name, make_mask)


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Mask | None,
    *,
    recipe: str | Sequence[str] = "dma8",
    threads: int = 0,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    s_aux: torch.Tensor | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """A layer's attention as Transformers calls it.

    query [batch, heads, q_len, head_dim]; key, value [batch, heads_kv, kv_len, head_dim]
    attention_mask   what make_mask returned, or None: causal as the module is, or is_causal
    s_aux            [heads] sinks

    Returns ([batch, q_len, heads, head_dim], None). ValueError for dropout, attention weights, masks that the
    library does not have, and what attention() refuses.
    """
    if dropout:
        raise ValueError(f"dropout: {dropout} is not 0; mxattn is for inference, use model.eval()")
    for name, why in REFUSED.items():
        if others.get(name) is not None and others[name] is not False:
            raise ValueError(f"{name}: {why}")
    cached = isinstance(key, CachedStates)
    if attention_mask is None:
        kv_len = key.layer.length if cached else key.shape[2]
        attention_mask = module_mask(module, query, kv_len, is_causal, sliding_window)
    if not isinstance(attention_mask, Mask):
        raise ValueError(
            f"attention_mask: a {describe(attention_mask)} is not what mxattn's mask function made; give the "
            "model a 2-D mask of padding, or none"
        )
    options = {"softmax_scale": scaling, "softcap": softcap or 0.0, "sinks": s_aux}
    if cached:
        return attend_cached(query, key.layer, attention_mask, options), None
    options["recipe"] = recipe if isinstance(recipe, str) else recipe[module.layer_idx]
    options["threads"] = threads
    if torch.compiler.is_compiling() and attention_mask.spans is None and attention_mask.offsets is None:
        return attend_compiled(query, key, value, attention_mask, options), None
    return attend_rows(query, key, value, attention_mask, options), None


def describe(mask: Any) -> str:
    return f"tensor of shape {tuple(mask.shape)}" if isinstance(mask, torch.Tensor) else type(mask).__name__


def module_mask(
    module: torch.nn.Module,
    query: torch.Tensor,
    kv_len: int,
    is_causal: bool | None,
    sliding_window: int | None,
) -> Mask:
    """The mask of a model that asks for none."""
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    left = -1 if sliding_window is None else sliding_window - 1
    return Mask(left, 0 if causal else -1, kv_len - query.shape[2])


@torch.compiler.disable
def attend_cached(
    query: torch.Tensor, layer: QuantizedLayer, mask: Mask, options: dict[str, Any]
) -> torch.Tensor:
    batch, heads, q_len, _ = query.shape
    out = query.new_empty(batch, q_len, heads, layer.cache.head_dim_v)
    layer.attend(query, mask, out.transpose(1, 2), window_left=mask.left, **options)
    return out


def attend_compiled(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Mask, options: dict[str, Any]
) -> torch.Tensor:
    """The operator, which stays in a compiled graph."""
    states = [x.transpose(1, 2) for x in (query, key, value)]
    window = {"window_left": mask.left, "window_right": mask.right}
    return attention_op(*states, **window, q_offset=mask.q_offset, layout="bshd", **options)[0]


@torch.compiler.disable
def attend_rows(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Mask, options: dict[str, Any]
) -> torch.Tensor:
    """Rows with padding are calls of their own, which see real keys alone: a row's bits are those that it has
    without padding and batch mates."""
    batch, heads, q_len, _ = query.shape
    out = query.new_empty(batch, q_len, heads, value.shape[-1])
    heads_first = out.transpose(1, 2)
    options["window_size"] = mask.left, mask.right
    if mask.offsets is not None:
        for b, cu in enumerate(mask.offsets):
            row = query[b], key[b], value[b]
            varlen_attention(*row, cu, cu, out=heads_first[b], layout="hsd", **options)
    elif mask.spans is None:
        attention(query, key, value, out=heads_first, q_offset=mask.q_offset, **options)
    else:
        for b, (first, end) in enumerate(mask.spans):
            one = slice(b, b + 1)
            real = query[one], key[one, :, first:end], value[one, :, first:end]
            attention(*real, out=heads_first[one], q_offset=mask.q_offset - first, **options)
    return out


register()
for named in recipes():
    register(f"mxattn-{named}", named)

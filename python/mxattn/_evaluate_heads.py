# SPDX-License-Identifier: Apache-2.0
"""The error of each head's output, measured inside a model's attention."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ._transformers_mask import Mask
from .transformers import attend, module_mask

ROWS = 256  # of exact scores at a time


def exact_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: Mask,
    *,
    scaling: float | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention by its formula in float32, [batch, q_len, heads, head_dim_v]; no padding."""
    batch, heads, q_len, dim = q.shape
    heads_kv, kv_len = k.shape[1:3]
    grouped = q.float().unflatten(1, (heads_kv, heads // heads_kv)) * (
        dim**-0.5 if scaling is None else scaling
    )
    keys, values = k.float()[:, :, None].transpose(3, 4), v.float()[:, :, None]
    columns = torch.arange(kv_len, device=q.device)
    out = []
    for first in range(0, q_len, ROWS):
        block = grouped[:, :, :, first : first + ROWS]
        position = torch.arange(first, first + block.shape[3], device=q.device)[:, None] + mask.q_offset
        end = kv_len if mask.right < 0 else min(kv_len, int(position[-1]) + mask.right + 1)
        scores = block @ keys[..., :end]
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        hidden = columns[:end] > position + (mask.right if mask.right >= 0 else kv_len)
        if mask.left >= 0:
            hidden |= columns[:end] < position - mask.left
        scores = scores.masked_fill(hidden, -torch.inf)
        if sinks is not None:
            logits = sinks.float().view(1, heads_kv, -1, 1, 1).expand(batch, -1, -1, block.shape[3], 1)
            scores = torch.cat([scores, logits], -1)
        weights = torch.softmax(scores, -1)[..., :end]
        out.append((weights @ values[:, :, :, :end]).flatten(1, 2))
    return torch.cat(out, 2).transpose(1, 2)


class HeadErrors:
    """An attention function of Transformers: computes by the first recipe, and adds up the squared errors of
    each head's output by it and by the others, on the same q, k and v."""

    def __init__(self, recipes: dict[str, Any], threads: int = 0) -> None:
        self.recipes, self.threads = recipes, threads
        self.squares: dict[int, dict[str, np.ndarray]] = {}  # by layer: [heads], "" holds those of the output

    def __call__(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: Mask | None,
        **options: Any,
    ) -> tuple[torch.Tensor, None]:
        mask = attention_mask
        if mask is None:
            window = options.get("sliding_window")
            mask = module_mask(module, query, key, options.get("is_causal"), window)
        want = exact_attention(
            query,
            key,
            value,
            mask,
            scaling=options.get("scaling"),
            softcap=options.get("softcap"),
            sinks=options.get("s_aux"),
        )
        sums = self.squares.setdefault(module.layer_idx, {})
        add(sums, "", want)
        outs = {
            name: attend(module, query, key, value, mask, recipe=recipe, threads=self.threads, **options)[0]
            for name, recipe in self.recipes.items()
        }
        for name, out in outs.items():
            add(sums, name, out.float() - want)
        return next(iter(outs.values())), None

    def errors(self) -> dict[str, list[list[float]]]:
        """Relative L2 errors, [layers][heads] of each recipe."""
        layers = [self.squares[i] for i in sorted(self.squares)]
        return {
            name: [
                np.sqrt(sums[name] / np.maximum(sums[""], np.finfo(float).tiny)).tolist() for sums in layers
            ]
            for name in self.recipes
        }


def add(sums: dict[str, np.ndarray], name: str, x: torch.Tensor) -> None:
    squares = x.double().square().sum((0, 1, 3)).cpu().numpy()
    sums[name] = sums.get(name, 0) + squares

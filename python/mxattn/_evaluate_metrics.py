# SPDX-License-Identifier: Apache-2.0
"""What the logits of a recipe say against those of the model's own attention, token by token and in sum."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from ._evaluate_model import Subject

ROWS = 256  # of logits at a time: 50 MB of float32 at 49152 words
BLOCK = 128  # tokens whose mean counts as one observation, since neighbours depend on each other
FIRST_BUCKET = 128

Floats = Any  # np.ndarray of float64


class Tokens:
    """Sums over windows of predictions: [windows, length - 1] of the next token at each position but the last."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Floats]] = {"nll": [], "own_nll": [], "kl": [], "same": []}

    def add(self, subject: Subject, ids: torch.Tensor, own: torch.Tensor, hidden: torch.Tensor) -> None:
        """One window: its tokens, and the hidden states [length, width] of the model's own and of ours."""
        parts: dict[str, list[torch.Tensor]] = {name: [] for name in self.rows}
        for first in range(0, len(ids) - 1, ROWS):
            rows = slice(first, min(first + ROWS, len(ids) - 1))
            ours = torch.log_softmax(subject.logits(hidden[rows]), -1)
            theirs = torch.log_softmax(subject.logits(own[rows]), -1)
            words = ids[rows.start + 1 : rows.stop + 1, None]
            parts["nll"].append(-ours.gather(1, words)[:, 0])
            parts["own_nll"].append(-theirs.gather(1, words)[:, 0])
            parts["same"].append((ours.argmax(-1) == theirs.argmax(-1)).float())
            parts["kl"].append((theirs.exp() * (theirs - ours)).sum(-1))
        for name, values in parts.items():
            self.rows[name].append(torch.cat(values).double().cpu().numpy())

    def summary(self) -> dict[str, Any]:
        """Of all positions, and of each range of positions."""
        arrays = {name: np.stack(rows) for name, rows in self.rows.items()}
        length = arrays["nll"].shape[1]
        buckets = []
        for first, end in bucket_edges(length):
            part = {name: rows[:, first:end] for name, rows in arrays.items()}
            buckets.append({"first": first, "end": end, **describe(part)})
        return describe(arrays) | {"tokens": arrays["nll"].size, "buckets": buckets}


def bucket_edges(length: int) -> list[tuple[int, int]]:
    """Ranges of positions: 0..128, 128..256, 256..512, and so on."""
    edges = [0]
    while edges[-1] < length:
        edges.append(min(max(FIRST_BUCKET, 2 * edges[-1]), length))
    return list(pairwise(edges))


def mean_and_error(rows: Floats) -> tuple[float, float]:
    """The mean, and its standard error from the means of blocks of neighbouring tokens (0 for one block)."""
    length = rows.shape[1]
    blocks = np.array_split(rows, math.ceil(length / BLOCK), axis=1)
    means = np.concatenate([block.mean(axis=1) for block in blocks])
    error = means.std(ddof=1) / math.sqrt(means.size) if means.size > 1 else 0.0
    return float(rows.mean()), float(error)


def describe(arrays: dict[str, Floats]) -> dict[str, float]:
    """Perplexity, its change against the model's own attention as a share, KL divergence in nats, the share of
    positions with the same likeliest token; each with its standard error."""
    nll, nll_error = mean_and_error(arrays["nll"])
    own, own_error = mean_and_error(arrays["own_nll"])
    difference, difference_error = mean_and_error(arrays["nll"] - arrays["own_nll"])
    kl, kl_error = mean_and_error(arrays["kl"])
    same, same_error = mean_and_error(arrays["same"])
    return {
        "perplexity": math.exp(nll),
        "perplexity_error": math.exp(nll) * nll_error,
        "own_perplexity": math.exp(own),
        "own_perplexity_error": math.exp(own) * own_error,
        "change": math.expm1(difference),
        "change_error": math.exp(difference) * difference_error,
        "kl": kl,
        "kl_error": kl_error,
        "kl_99": float(np.quantile(arrays["kl"], 0.99)),
        "top1": same,
        "top1_error": same_error,
    }

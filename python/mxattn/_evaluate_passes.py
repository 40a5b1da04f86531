# SPDX-License-Identifier: Apache-2.0
"""Passes of a model over a window of text, by its own attention or by a recipe."""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface

from ._evaluate_model import Subject
from ._transformers_mask import make_mask
from .transformers import QuantizedCache, register

ATTENTION = "mxattn-evaluation"


@contextmanager
def attention_of(subject: Subject, recipe: Any, threads: int = 0) -> Iterator[None]:
    """The model's attention is a recipe's, or a function's in its place."""
    if callable(recipe):
        AttentionInterface.register(ATTENTION, recipe)
        AttentionMaskInterface.register(ATTENTION, make_mask)
    else:
        register(ATTENTION, recipe, threads)
    own = subject.model.config._attn_implementation
    subject.model.set_attn_implementation(ATTENTION)
    try:
        yield
    finally:
        subject.model.set_attn_implementation(own)


def one_shot(subject: Subject, ids: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Hidden states [length, width] of all tokens at once, and seconds a token."""
    start = time.perf_counter()
    hidden = subject.hidden(ids, use_cache=False)
    return hidden, (time.perf_counter() - start) / len(ids)


def in_chunks(
    subject: Subject, ids: torch.Tensor, chunk: int, cache: QuantizedCache
) -> tuple[torch.Tensor, float]:
    """The same, `chunk` tokens at a time, each reading those before it from the cache."""
    parameters = inspect.signature(subject.model.base_model.forward).parameters
    name = "cache" if "cache" in parameters else "past_key_values"
    start = time.perf_counter()
    parts = [subject.hidden(part, use_cache=True, **{name: cache}) for part in ids.split(chunk)]
    return torch.cat(parts), (time.perf_counter() - start) / len(ids)

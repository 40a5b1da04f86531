# SPDX-License-Identifier: Apache-2.0
"""Masks of Transformers as the library's: which function of positions, which keys are padding.

Transformers describes a mask by a function of (batch, head, query, key) that it composes from closures. Those
of transformers.masking_utils are known here by name; any other is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import getclosurevars
from typing import Any, NamedTuple

import torch


class Mask(NamedTuple):
    """Key j (an index into the keys) is visible from query i at q_offset + i by the window, if it lies in the
    row's span of real keys, or in the sequence of the packed row to which the query belongs."""

    left: int  # keys seen before the query's position; -1: all
    right: int  # after it; 0: causal
    q_offset: int
    spans: list[tuple[int, int]] | None = None  # [batch] first real key, end of them; None: all are
    offsets: list[list[int]] | None = None  # [batch] cu_seqlens of packed rows; None: no row is packed

    ndim = 4  # Transformers asks a mask that it has made before


class Pattern(NamedTuple):
    left: int = -1
    right: int = -1
    sequences: torch.Tensor | None = None  # [batch, len]: the packed sequence of each token


def narrower(a: int, b: int) -> int:
    return b if a < 0 else a if b < 0 else min(a, b)


def read_pattern(function: Callable[..., Any]) -> Pattern:
    """The window, or ValueError for a function that is no window."""
    name = getattr(function, "__qualname__", repr(function))
    if getattr(function, "__module__", None) != "transformers.masking_utils":
        raise ValueError(f"mask_function: {name} is the model's own; mxattn knows windows and padding alone")
    cells = getclosurevars(function).nonlocals
    match name.removesuffix(".<locals>.inner_mask"):
        case "causal_mask_function":
            return Pattern(right=0)
        case "bidirectional_mask_function":
            return Pattern()
        case "sliding_window_overlay":
            return Pattern(left=cells["sliding_window"] - 1)
        case "sliding_window_bidirectional_overlay":
            return Pattern(cells["sliding_window"], cells["sliding_window"])
        case "packed_sequence_mask_function":
            return Pattern(sequences=cells["packed_sequence_mask"])
        case "remap_positions_for_packed_sequence":  # differences of positions are those of indices
            return read_pattern(cells["mask_function"])
        case "and_masks.<locals>.and_mask":
            parts = [read_pattern(part) for part in cells["mask_functions"]]
            left = right = -1
            for part in parts:
                left, right = narrower(left, part.left), narrower(right, part.right)
            packed = [part.sequences for part in parts if part.sequences is not None]
            return Pattern(left, right, packed[0] if packed else None)
    raise ValueError(
        f"mask_function: {name.split('.')[0]} is no window of keys, which is what mxattn can mask"
    )


def read_spans(padding: torch.Tensor, kv_offset: int, kv_length: int) -> list[tuple[int, int]] | None:
    """The real keys of each row of a 2-D mask: [batch, positions], False or 0 where padding is."""
    columns = padding[:, kv_offset : kv_offset + kv_length].bool()
    if columns.all() and columns.shape[1] == kv_length:
        return None
    counts = columns.sum(dim=1)
    firsts = columns.int().argmax(dim=1)  # of equal ones the first
    ends = torch.where(counts > 0, columns.shape[1] - columns.flip(1).int().argmax(dim=1), 0)
    holes = ends - firsts != counts
    if holes.any():
        text = "masks keys between keys that it does not mask; mxattn takes padding at the ends"
        raise ValueError(f"attention_mask: row {holes.int().argmax().item()} {text}")
    return list(zip(firsts.tolist(), ends.tolist()))


def read_offsets(sequences: torch.Tensor) -> list[list[int]] | None:
    """cu_seqlens of each row of packed sequences' numbers; None if no row has more than one."""
    if (sequences == sequences[:, :1]).all():
        return None
    rows = []
    for row in sequences.tolist():
        starts = [i for i in range(len(row)) if i == 0 or row[i] != row[i - 1]]
        rows.append([*starts, len(row)])
    return rows


@torch.compiler.disable
def make_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] | None = None,
    attention_mask: torch.Tensor | Mask | None = None,
    **_: Any,
) -> Mask:
    """What Transformers' mask interface calls for a model's masks; the layers get its result as their mask."""
    if isinstance(attention_mask, Mask):  # generate() has made it
        return attention_mask
    if mask_function is None:
        from transformers.masking_utils import causal_mask_function as mask_function
    pattern = read_pattern(mask_function)
    spans = None if attention_mask is None else read_spans(attention_mask, kv_offset, kv_length)
    offsets = None if pattern.sequences is None else read_offsets(pattern.sequences)
    return Mask(pattern.left, pattern.right, int(q_offset) - kv_offset, spans, offsets)

# SPDX-License-Identifier: Apache-2.0
"""Passkey retrieval: a number hidden in a long text, and asked for at its end."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch

from ._evaluate_model import Subject

HINT = " The pass key is {key}. Remember it: {key} is the pass key. "
QUESTION = "\n\nWhat is the pass key? The pass key is"
DIGITS = 5
SENTENCE_SEARCH = 64  # tokens within which the hint looks for the end of a sentence


def build(subject: Subject, text: torch.Tensor, length: int, depth: float, seed: int) -> tuple[Any, int]:
    """At most length tokens that end with the key, and how many of them are the key."""
    rng = random.Random(f"{length} {depth} {seed}")
    key = str(rng.randrange(10 ** (DIGITS - 1), 10**DIGITS))
    hint, question, answer = (
        torch.tensor(
            subject.tokenizer(words.format(key=key), add_special_tokens=False).input_ids, device=text.device
        )
        for words in (HINT, QUESTION, " {key}")
    )
    room = length - len(hint) - len(question) - len(answer)
    if room < 0 or room >= len(text):
        raise ValueError(f"passkey: {length} tokens are too few for the question, or more than the text has")
    start = rng.randrange(len(text) - room)
    filler = text[start : start + room]
    place = sentence_end(subject, filler, int(depth * room))
    return torch.cat([filler[:place], hint, filler[place:], question, answer]), len(answer)


def sentence_end(subject: Subject, tokens: torch.Tensor, place: int) -> int:
    for i in range(place, min(place + SENTENCE_SEARCH, len(tokens))):
        if subject.tokenizer.decode(tokens[i : i + 1]).endswith("."):
            return i + 1
    return place


def found(
    subject: Subject, ids: torch.Tensor, answer: int, run: Callable[[torch.Tensor], torch.Tensor]
) -> bool:
    """Whether greedy decoding writes the whole key, whose tokens are the last `answer` ones."""
    words = subject.logits(run(ids)[-answer - 1 : -1]).argmax(-1)
    return bool((words == ids[-answer:]).all())

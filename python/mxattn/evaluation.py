# SPDX-License-Identifier: Apache-2.0
"""What mxattn.evaluate() and mxattn.report() are made of, for scripts of one's own.

load_subject(model), read_tokens(subject, text)   a model whose hidden states and logits are asked for apart
measured(result), size(result), worst(...)        what results say
smallest(results, budget), heads_in_need(result)  what they advise
"""

from __future__ import annotations

from ._advice import (
    Budget,
    HeadAdvice,
    by_layers,
    heads_in_need,
    measured,
    read_budget,
    size,
    smallest,
    worst,
)
from ._evaluate_model import Subject, load_subject, read_tokens

__all__ = [
    "Budget",
    "HeadAdvice",
    "Subject",
    "by_layers",
    "heads_in_need",
    "load_subject",
    "measured",
    "read_budget",
    "read_tokens",
    "size",
    "smallest",
    "worst",
]

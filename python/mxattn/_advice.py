# SPDX-License-Identifier: Apache-2.0
"""What results of an evaluation advise: the smallest recipe within a budget, and heads that need more."""

from __future__ import annotations

import statistics
from typing import Any, NamedTuple

from ._evaluate_recipes import CACHE_KEYS, PLAIN_BITS

Result = dict[str, Any]

SIGMAS = 2  # standard errors that are added to what was measured
OUTLIER = 3.0  # a head stands out whose error is so many times the median
LEAST_ERROR = 0.01  # smaller errors of a head need no remedy
REMEDIES = {"wider": "a wider near window", "better": "a better format"}


class Budget(NamedTuple):
    measure: str  # "change" of perplexity, a share, or "kl", in nats
    limit: float

    def __str__(self) -> str:
        if self.measure == "kl":
            return f"a KL divergence of {self.limit:g}"
        return f"{100 * self.limit:g} % more perplexity"


def read_budget(text: str) -> Budget:
    """ "0.5%" is a change of perplexity, "kl=0.01" a KL divergence."""
    measure, number = ("kl", text[3:]) if text.startswith("kl=") else ("change", text.removesuffix("%"))
    try:
        limit = float(number) / (100 if measure == "change" else 1)
    except ValueError:
        limit = -1
    if not 0 < limit < float("inf"):
        raise ValueError(f'budget: {text!r} is not like "0.5%" (of perplexity) or "kl=0.01"')
    return Budget(measure, limit)


def size(result: Result) -> float:
    """Bits of a cached value, mean of K and V, in long sequences."""
    return (result["bits_k"] + result["bits_v"]) / 2


def measured(result: Result) -> dict[str, Any]:
    """Parts that hold perplexities, by name. One-shot passes do not see the stored V."""
    parts = {name: part for name, part in result["parts"].items() if "kl" in part}
    if result["bits_v"] < PLAIN_BITS:
        parts.pop("prefill", None)
    return parts


def part_order(results: list[Result]) -> list[str]:
    """Names of the parts that results have, one shot first, then by the size of chunks."""
    names = {name for result in results for name in measured(result)}
    return sorted(names, key=lambda name: (name != "prefill", len(name), name))


def worst(result: Result, budget: Budget) -> float | None:
    """The largest cost that the parts do not exclude: measured, and two standard errors."""
    costs = [
        part[budget.measure] + SIGMAS * part[f"{budget.measure}_error"] for part in measured(result).values()
    ]
    return max(costs, default=None)


def smallest(results: list[Result], budget: Budget) -> Result | None:
    """The recipe of the fewest bits within the budget; of equals that of the least KL divergence, the measure
    that varies least."""
    fits = []
    for result in results:
        cost = worst(result, budget)
        if cost is not None and cost <= budget.limit:
            kl = max(part["kl"] for part in measured(result).values())
            fits.append((size(result), kl, result["recipe"], result))
    return min(fits)[-1] if fits else None


class HeadAdvice(NamedTuple):
    layer: int
    head: int
    error: float
    remedy: str | None  # a key of REMEDIES; None: neither helps
    remedied: float


def heads_in_need(result: Result) -> list[HeadAdvice]:
    """Heads whose output error stands out, the worst first, and what brings it back to where the others are."""
    part = result["parts"].get("heads")
    if part is None:
        return []
    errors = part["errors"]
    limit = max(OUTLIER * statistics.median(e for layer in errors["recipe"] for e in layer), LEAST_ERROR)
    found = []
    for layer, row in enumerate(errors["recipe"]):
        for head, error in enumerate(row):
            if error > limit:
                others = {name: errors[name][layer][head] for name in REMEDIES if name in errors}
                found.append(HeadAdvice(layer, head, error, *choose(error, limit, others)))
    return sorted(found, key=lambda advice: -advice.error)


def choose(error: float, limit: float, others: dict[str, float]) -> tuple[str | None, float]:
    """The first remedy that is enough; a wider window costs no memory. If none is, the best that helps."""
    for name, remedied in others.items():
        if remedied <= limit:
            return name, remedied
    name = min(others, key=lambda name: others[name], default=None)
    if name is None or others[name] >= error:
        return None, error
    return name, others[name]


def by_layers(result: Result, advice: list[HeadAdvice]) -> str:
    """The recipe with remedies in the layers that need them, as the evaluation reads it."""
    recipes = result["parts"]["heads"]["recipes"]
    stored = [setting for setting in result["written"].split(",") if setting.partition("=")[0] in CACHE_KEYS]
    layers: dict[str, set[int]] = {}
    for one in advice:
        if one.remedy is not None:
            layers.setdefault(one.remedy, set()).add(one.layer)
    layers["wider"] = layers.get("wider", set()) - layers.get("better", set())
    texts = [
        f"{','.join(map(str, sorted(layers[name])))}:{','.join([recipes[name], *stored])}"
        for name in REMEDIES
        if layers.get(name)
    ]
    return ";".join([result["recipe"], *texts])

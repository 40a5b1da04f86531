# SPDX-License-Identifier: Apache-2.0
"""What an evaluation asks of a recipe: its bits, and what would be a little better."""

from __future__ import annotations

import ctypes as C
from typing import Any, NamedTuple

from ._library import lib, text_of
from ._plans import parse_recipe
from ._structures import LEVELS, TILE

ALL_TILES = 2**63 - 1
PLAIN_BITS = 16
FACTOR_BITS = 32
CACHE_KEYS = "v", "rotate-v"
LOW_COPY_KEYS = "rule_q", "rule_k", "level_q", "level_k"  # that another low format may not have
EIGHT = 8
EIGHT_BITS = {"low_q": "int8", "low_k": "int8"}
SIXTEEN_BITS = {"low_q": "bf16", "low_k": "bf16"}
WINDOWS = {"high_q": "bf16", "high_k": "bf16", "diag": str(TILE), "sink": str(TILE)}


class Facts(NamedTuple):
    """A recipe of every layer, or of each: then cache and attention are lists."""

    text: str  # as the user writes it
    written: str  # in full
    cache: str | list[str]
    attention: str | list[str]  # what an attention call takes: without the storage of V
    stores_v: bool
    bits_k: float  # of an element that is not near, with its share of scales and factors
    bits_v: float


def facts(text: str, head_dim: int, layers: int) -> Facts:
    """Of "RECIPE", or "RECIPE;LAYERS:RECIPE;..." where layers are as in 0,3,8-11. ValueError for another text."""
    base, *others = text.split(";")
    first = facts_of_one(base, head_dim)
    if not others:
        return first
    each = [first] * layers
    for other in others:
        numbers, _, recipe = other.partition(":")
        one = facts_of_one(recipe, head_dim)
        for layer in read_layers(numbers, layers, text):
            each[layer] = one
    return Facts(
        text,
        ";".join(one.written for one in each),
        [one.text for one in each],
        [str(one.attention) for one in each],
        any(one.stores_v for one in each),
        sum(one.bits_k for one in each) / layers,
        sum(one.bits_v for one in each) / layers,
    )


def read_layers(numbers: str, layers: int, text: str) -> list[int]:
    found: list[int] = []
    for part in numbers.split(","):
        first, _, last = part.partition("-")
        if not first.isdecimal() or not (last or first).isdecimal() or not int(first) <= int(last or first):
            raise ValueError(f"recipes: {text!r} has layers {part!r}; they are as in dma4;0,3,8-11:dma8")
        found += range(int(first), int(last or first) + 1)
    if max(found) >= layers:
        raise ValueError(f"recipes: {text!r} names layer {max(found)}, but the model has {layers}")
    return found


def facts_of_one(text: str, head_dim: int) -> Facts:
    recipe = parse_recipe(text)
    written = text_of(lib.mxa_recipe_text, C.byref(recipe))
    settings = read(written)
    attention = {key: value for key, value in settings.items() if key not in CACHE_KEYS}
    if recipe.exact:
        return Facts(text, written, text, written, False, PLAIN_BITS, PLAIN_BITS)
    stored = recipe.high_k if recipe.diag_window == ALL_TILES else recipe.low_k
    return Facts(
        text,
        written,
        text,
        write(attention),
        recipe.v != 0,
        bits(stored, recipe.level_k, head_dim),
        bits(recipe.v, 0, head_dim),
    )


def bits(format_number: int, level: int, head_dim: int) -> float:
    """Of an element, scales and token factors included."""
    if format_number == 0:
        return PLAIN_BITS
    info: Any = lib.mxa_format_get(format_number).contents
    scale = 8 / info.block if info.block else 0
    has_factor = (level or info.default_level) == LEVELS["token"]
    return info.element_bits + scale + (FACTOR_BITS / head_dim if has_factor else 0)


def read(written: str) -> dict[str, str]:
    pairs = (setting.partition("=") for setting in written.split(","))
    return {key: value for key, _, value in pairs}


def write(settings: dict[str, str]) -> str:
    return ",".join(key if value == "" else f"{key}={value}" for key, value in settings.items())


def remedies(recipe: Facts) -> dict[str, str]:
    """Recipes of an attention call with a wider near window, and with a better low format, where there are any."""
    if isinstance(recipe.attention, list):
        return {}
    settings = read(recipe.attention)
    if "exact" in settings or settings["diag"] == "all":
        return {}
    if settings["high_k"] == "none":
        wider = WINDOWS
    else:
        wider = {"diag": str(2 * max(int(settings["diag"]), TILE))}
    found = {"wider": change(recipe.text, wider)}
    if recipe.bits_k < PLAIN_BITS:
        found["better"] = change(recipe.text, EIGHT_BITS if recipe.bits_k < EIGHT else SIXTEEN_BITS)
    return found


def change(text: str, changes: dict[str, str]) -> str:
    """The recipe's text with these settings in the place of its own, and without the storage of V."""
    own = {key: value for key, value in read(text).items() if key not in CACHE_KEYS}
    for both in ("low", "high"):
        if both in own:
            value = own.pop(both)
            own = {f"{both}_q": value, f"{both}_k": value} | own
    if "low_k" in changes:
        own = {key: value for key, value in own.items() if key not in LOW_COPY_KEYS}
    return write(own | changes)

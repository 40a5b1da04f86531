# SPDX-License-Identifier: Apache-2.0
"""The parts of an evaluation in their order, with what is finished left alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import torch
from tqdm import tqdm

from ._evaluate import ResultFile, text_hash
from ._evaluate_heads import HeadErrors
from ._evaluate_metrics import Tokens
from ._evaluate_model import Subject, load_subject, read_tokens
from ._evaluate_passes import attention_of, in_chunks, one_shot
from ._evaluate_passkey import build, found
from ._evaluate_recipes import Facts, facts, remedies
from ._version import __version__
from .transformers import QuantizedCache

RETRIEVAL_CHUNK = 256  # tokens at a time, where a key is retrieved through the cache


class Run:
    def __init__(
        self, model: Any, tokenizer: Any, text: Any, settings: dict[str, Any], progress: bool
    ) -> None:
        self.settings, self.progress = settings, progress
        self.questions: dict[tuple[int, float, int], tuple[torch.Tensor, int, bool]] = {}
        self.subject: Subject = load_subject(model, tokenizer, settings["dtype"], settings["device"])
        name, self.text = read_tokens(self.subject, text)
        length, windows = settings["length"], settings["windows"]
        if len(self.text) < length * windows:
            raise ValueError(
                f"text: has {len(self.text)} tokens, but {windows} windows of {length} are asked for"
            )
        longest = self.subject.longest()
        if longest is not None and max([length, *settings["passkey"]]) > longest:
            raise ValueError(f"length: the model is made for at most {longest} tokens")
        config = self.subject.model.config.get_text_config()
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.layers = config.num_hidden_layers
        self.setup = {
            "model": self.subject.name,
            "parameters": sum(p.numel() for p in self.subject.model.parameters()),
            "dtype": str(self.subject.model.dtype).removeprefix("torch."),
            "text": name,
            "tokens": text_hash(self.text),
            "length": length,
            "windows": windows,
            "mxattn": __version__,
        }

    def windows(self) -> Iterator[torch.Tensor]:
        yield from self.text.split(self.settings["length"])[: self.settings["windows"]]

    @cached_property
    def own(self) -> list[tuple[torch.Tensor, float]]:
        """Hidden states and time of the model's own attention, of each window."""
        return [
            one_shot(self.subject, ids)
            for ids in tqdm([*self.windows()], "own attention", disable=self.quiet)
        ]

    @property
    def quiet(self) -> bool | None:
        return None if self.progress else True  # None: where nobody looks at the terminal

    @torch.no_grad()
    def results(self) -> list[dict[str, Any]]:
        recipes = [facts(text, self.head_dim, self.layers) for text in self.settings["recipes"]]
        files = [ResultFile(self.settings["folder"], recipe, self.setup) for recipe in recipes]
        for file in files:
            self.check_questions(file)
        todo = [
            (recipe, file, name, part)
            for recipe, file in zip(recipes, files)
            for name, part in self.parts(recipe)
            if not file.has(name)
        ]
        bar = tqdm(todo, disable=self.quiet, unit="part")
        for recipe, file, name, part in bar:
            bar.set_description(f"{recipe.text}: {name}")
            file.put(name, part())
        return [file.data for file in files]

    def parts(self, recipe: Facts) -> Iterator[tuple[str, Callable[[], Any]]]:
        settings = self.settings
        if settings["prefill"]:
            yield "prefill", lambda: self.prefill(recipe)
        for chunk in settings["chunks"]:
            yield f"chunks of {chunk}", lambda chunk=chunk: self.decode(recipe, chunk)
        if settings["heads"]:
            yield "heads", lambda: self.heads(recipe)
        for length in settings["passkey"]:
            yield f"passkey at {length}", lambda length=length: self.passkey(recipe, length)

    def check_questions(self, file: ResultFile) -> None:
        """What is there of retrieval must be of the same depths and trials."""
        asked = [(depth, self.settings["trials"]) for depth in self.settings["depths"]]
        for length in self.settings["passkey"]:
            rows = file.data["parts"].get(f"passkey at {length}")
            if rows is not None and [(row["depth"], row["trials"]) for row in rows] != asked:
                raise ValueError(
                    f"folder: {file.path} has passkey at {length} with other depths or trials; name another folder"
                )

    def measure(self, run: Callable[[torch.Tensor], tuple[torch.Tensor, float]]) -> dict[str, Any]:
        tokens, seconds = Tokens(), []
        for ids, (own, _) in zip(self.windows(), self.own):
            hidden, time = run(ids)
            tokens.add(self.subject, ids, own, hidden)
            seconds.append(time)
        times = {
            "seconds_per_token": min(seconds),
            "own_seconds_per_token": min(time for _, time in self.own),
        }
        return tokens.summary() | times

    def prefill(self, recipe: Facts) -> dict[str, Any]:
        _ = self.own  # by its own attention
        with attention_of(self.subject, recipe.attention, self.settings["threads"]):
            return self.measure(lambda ids: one_shot(self.subject, ids))

    def decode(self, recipe: Facts, chunk: int) -> dict[str, Any]:
        """The cache's bytes are those of the last window, all layers together. A recipe that no cache has is
        recorded with the library's sentence."""
        _ = self.own
        sizes = []

        def run(ids: torch.Tensor) -> tuple[torch.Tensor, float]:
            filled = self.new_cache(recipe)
            result = in_chunks(self.subject, ids, chunk, filled)
            sizes.append(filled.used_bytes)
            return result

        with attention_of(self.subject, recipe.attention, self.settings["threads"]):
            try:
                self.new_cache(recipe)
            except ValueError as error:
                return {"refused": str(error)}
            return self.measure(run) | {"cache_bytes": sizes[-1]}

    def new_cache(self, recipe: Facts) -> QuantizedCache:
        return QuantizedCache(self.subject.model.config, recipe.cache, threads=self.settings["threads"])

    def heads(self, recipe: Facts) -> dict[str, Any]:
        others = remedies(recipe)
        errors = HeadErrors({"recipe": recipe.attention} | others, self.settings["threads"])
        with attention_of(self.subject, errors):
            one_shot(self.subject, next(self.windows()))
        return {"recipes": errors.recipes, "errors": errors.errors()}

    def passkey(self, recipe: Facts, length: int) -> list[dict[str, Any]]:
        def run(ids: torch.Tensor) -> torch.Tensor:
            if not recipe.stores_v:
                return one_shot(self.subject, ids)[0]
            filled = self.new_cache(recipe)
            return in_chunks(self.subject, ids, RETRIEVAL_CHUNK, filled)[0]

        rows = []
        for depth in self.settings["depths"]:
            row = {"depth": depth, "trials": self.settings["trials"], "found": 0, "own_found": 0}
            for seed in range(self.settings["trials"]):
                ids, answer, own_found = self.question(length, depth, seed)
                row["own_found"] += own_found
                with attention_of(self.subject, recipe.attention, self.settings["threads"]):
                    row["found"] += found(self.subject, ids, answer, run)
            rows.append(row)
        return rows

    def question(self, length: int, depth: float, seed: int) -> tuple[torch.Tensor, int, bool]:
        """A text that asks for a key, the key's tokens, and whether the model finds it by its own attention."""
        key = length, depth, seed
        if key not in self.questions:
            ids, answer = build(self.subject, self.text, *key)
            own_found = found(self.subject, ids, answer, lambda ids: one_shot(self.subject, ids)[0])
            self.questions[key] = ids, answer, own_found
        return self.questions[key]

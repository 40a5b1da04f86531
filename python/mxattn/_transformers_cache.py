# SPDX-License-Identifier: Apache-2.0
"""A Transformers cache of quantised layers, which mxattn's attention function reads as they are stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import transformers
from transformers.cache_utils import CacheLayerMixin

from ._cache import Cache
from ._plans import parse_recipe
from ._structures import TILE
from ._transformers_mask import Mask

KNOWN_LAYERS = {"full_attention", "sliding_attention"}
UNREADABLE = (
    "keys and values lie in a quantised cache, which attn_implementation='mxattn' alone reads: switch the model "
    "to it (import mxattn.transformers; model.set_attn_implementation('mxattn'))"
)
METADATA = {torch.Tensor.size, torch.Tensor.dim, torch.Tensor.__repr__}


class CachedStates(torch.Tensor):
    """What update() returns: the new tokens' states, which stand for all that the layer holds. Its shape may be
    asked for; computing with it would leave out the older tokens, and is refused."""

    layer: QuantizedLayer

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in METADATA or getattr(func, "__name__", "") == "__get__":
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        raise ValueError(UNREADABLE)


class QuantizedLayer(CacheLayerMixin):
    """One layer. Tokens that update() brings are stored by the attention that follows, since padding, which is
    not stored, shows in its mask only."""

    is_croppable = True
    is_sliding = False
    supports_early_init = False

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options
        self.cache: Cache | None = None
        self.pending: tuple[torch.Tensor, torch.Tensor] | None = None
        self.length = 0  # tokens and padding, as Transformers counts

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        batch, heads_kv, _, head_dim = key_states.shape
        sizes = batch, heads_kv, head_dim, value_states.shape[-1]
        self.cache = Cache(*sizes, device=key_states.device, **self.options)
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self.pending is not None:
            raise ValueError(UNREADABLE)
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.pending = key_states, value_states
        self.length += key_states.shape[2]
        states = [x.as_subclass(CachedStates) for x in self.pending]
        for x in states:
            x.layer = self
        return states[0], states[1]

    def attend(self, query: torch.Tensor, mask: Mask, out: torch.Tensor, **options: Any) -> None:
        """query and out [batch, heads, n, head_dim] of the n newest tokens, padding among them."""
        n = query.shape[2]
        try:
            pads = self.read_pads(mask, n)
            self.store(pads)
        except (ValueError, RuntimeError):
            self.drop_pending()
            raise
        if any(pads):
            counts = [n - pad for pad in pads]
            rows = self.cache.attend(roll(query, pads, -1), counts=counts, **options)
            out.copy_(roll(rows, pads, 1))
        else:
            self.cache.attend(query, out=out, **options)
        if options["window_left"] >= 0:
            self.forget(options["window_left"])

    def read_pads(self, mask: Mask, n: int) -> list[int]:
        """Of each row, how many of the n newest tokens are padding; ValueError for a mask that no cache has."""
        if mask.right != 0 or mask.offsets is not None or mask.q_offset != self.length - n:
            raise ValueError("attention_mask: is not causal over what the cache holds and the new tokens")
        past = self.length - n
        spans = mask.spans or [(0, self.length)] * self.cache.batch
        stored = self.cache.lengths.tolist()
        upto = self.length if self.pending is None else past
        for b, (first, end) in enumerate(spans):
            if end not in (0, self.length):
                text = f"row {b} is padded on the right; tokens of a cache are padded on the left"
                raise ValueError(f"attention_mask: {text}")
            real = max(upto - first, 0) if end else 0
            if stored[b] != real:
                text = f"row {b} shows {real} earlier tokens, but the cache has stored {stored[b]}"
                raise ValueError(f"attention_mask: {text}")
        return [n if end == 0 else min(max(first - past, 0), n) for first, end in spans]

    def store(self, pads: list[int]) -> None:
        if self.pending is None:
            return
        k, v = self.pending
        if any(pads):
            self.cache.append(roll(k, pads, -1), roll(v, pads, -1), counts=[k.shape[2] - pad for pad in pads])
        else:
            self.cache.append(k, v)
        self.pending = None

    def drop_pending(self) -> None:
        if self.pending is not None:
            self.length -= self.pending[0].shape[2]
            self.pending = None

    def forget(self, window_left: int) -> None:
        """Give back pages that no later query of a sliding window sees, those of the sink window apart."""
        cache = self.cache
        sink = parse_recipe(cache.recipe).sink_window
        first = -(-(-(-sink // TILE) * TILE) // cache.page_tokens)
        for b, length in enumerate(cache.lengths.tolist()):
            pages = max(length - cache.rewind - window_left, 0) // cache.page_tokens - first
            if pages > 0:
                cache.remove(b, first, pages)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1

    get_max_cache_shape = get_max_length  # its earlier name

    def reset(self) -> None:
        self.cache = self.pending = None
        self.length, self.is_initialized = 0, False

    def crop(self, tokens: int) -> None:
        """Take back the newest -tokens tokens, or all past the first tokens; the cache's rewind bounds it."""
        if self.cache is None:
            return
        removed = max(self.length - tokens, 0) if tokens > 0 else -tokens
        for b, length in enumerate(self.cache.lengths.tolist()):
            self.cache.truncate(b, max(length - removed, 0))
        self.length -= removed

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        if self.cache is not None:
            self.cache.reorder(beam_idx)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self.reorder_cache(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        if repeats != 1 and self.cache is not None:
            text = f"the cache has {self.cache.batch} sequences, and cannot have more later"
            raise ValueError(f"repeats: {repeats} is not 1; {text}")


def roll(x: torch.Tensor, pads: list[int], sign: int) -> torch.Tensor:
    """Row b of x [batch, heads, n, dim] turned by sign * pads[b] along n: a copy."""
    return torch.stack([row.roll(sign * pad, dims=1) for row, pad in zip(x, pads)])


class QuantizedCache(transformers.Cache):
    """Keys and values of a model's layers, each a mxattn.Cache, for generate() and calls of the model.

    config        model.config
    recipe        of every layer, or a sequence with one for each
    page_tokens, rewind, threads   as in mxattn.Cache; rewind also bounds crop()

        cache = QuantizedCache(model.config, "dma4,v=int8")
        model.generate(**inputs, cache=cache)

    The model's attn_implementation must be one of mxattn's, whose own recipe is not used: tiles are as the cache
    stores them. Padding stands on the left and is not stored. Sliding layers give back pages that their window
    has left behind. The batch (times beams) is fixed by the first tokens.
    """

    def __init__(
        self,
        config: transformers.PreTrainedConfig,
        recipe: str | Sequence[str] = "dma4",
        *,
        page_tokens: int = 64,
        rewind: int = 16,
        threads: int = 0,
    ) -> None:
        config = config.get_text_config(decoder=True)
        n = config.num_hidden_layers
        others = set(getattr(config, "layer_types", None) or ()) - KNOWN_LAYERS
        if others:
            raise ValueError(f"config: layers of type {', '.join(sorted(others))} have no keys to quantise")
        texts = [recipe] * n if isinstance(recipe, str) else list(recipe)
        if len(texts) != n:
            raise ValueError(f"recipe: {len(texts)} recipes for {n} layers")
        options = {"page_tokens": page_tokens, "rewind": rewind, "threads": threads}
        for text in set(texts):
            Cache(1, 1, TILE, recipe=text, **options)  # refused here, if at all, and not in the first layer
        super().__init__(layers=[QuantizedLayer(recipe=text, **options) for text in texts])

    @property
    def used_bytes(self) -> int:
        """Bytes of all layers' pages that hold tokens."""
        return sum(layer.cache.used_bytes for layer in self.layers if layer.cache is not None)

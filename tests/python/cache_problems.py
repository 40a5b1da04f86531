# SPDX-License-Identifier: Apache-2.0
"""Recipes of caches, and a cache beside its model."""

from dataclasses import replace

import numpy as np

import inputs
import mxa
import mxa_cache
import oracle_attention as oa
import oracle_cache as oc
import oracle_formats as of
from oracle_map import ALL, RECIPES, Recipe

RECIPE_LIST = [
    oc.CacheRecipe("dma4", RECIPES["dma4"]),
    oc.CacheRecipe("dma4,v=int8", RECIPES["dma4"], "int8"),
    oc.CacheRecipe("dma4,v=mxfp4,rotate-v", RECIPES["dma4"], "mxfp4", True),
    oc.CacheRecipe("dma8,v=f16", RECIPES["dma8"], "f16"),
    oc.CacheRecipe("dma8,diag=256,v=int8,pv=f16", replace(RECIPES["dma8"], diag=256, pv="f16"), "int8"),
    oc.CacheRecipe("dma4-fp8,sink=200,v=fp8", replace(RECIPES["dma4-fp8"], sink=200), "fp8"),
    oc.CacheRecipe("paper-nvfp4,v=nvfp4", RECIPES["paper-nvfp4"], "nvfp4"),
    oc.CacheRecipe("paper-mxfp4,diag=0,v=mxfp8", replace(RECIPES["paper-mxfp4"], diag=0), "mxfp8"),
    oc.CacheRecipe("int8,v=mxint8", RECIPES["int8"], "mxint8"),
    oc.CacheRecipe("mxfp4", RECIPES["mxfp4"]),
    oc.CacheRecipe("mxfp6,v=mxfp6", RECIPES["mxfp6"], "mxfp6"),
    oc.CacheRecipe("bf16,v=int8", RECIPES["bf16"], "int8"),
    oc.CacheRecipe("bf16,high=f32,v=f32", Recipe(high_q="f32", high_k="f32", diag=ALL), "f32"),
]
BY_TEXT = {r.text: r for r in RECIPE_LIST}
BY_TEXT |= {
    r.text + ", by channel": replace(r, by_channel=True) for r in RECIPE_LIST if r.v in ("int8", "fp8")
}
BY_TEXT["dma4,v=fp8,rotate-v, by channel"] = oc.CacheRecipe(
    "dma4,v=fp8,rotate-v", RECIPES["dma4"], "fp8", True, True
)


class Pair:
    """A cache and the tokens that it was given."""

    def __init__(self, recipe, batch=2, heads_kv=2, group=2, dim=64, dim_v=None, **fields):
        self.recipe, self.batch, self.heads, self.dim = recipe, batch, heads_kv * group, dim
        self.dim_v = dim_v or dim
        fields = {"head_dim_v": self.dim_v, **fields}
        self.g_v = None
        if recipe.by_channel:
            exponents = np.random.default_rng(dim).uniform(-6, -3, (heads_kv, self.dim_v))
            self.g_v = fields["g_v"] = np.exp2(exponents).astype(np.float32)
        self.cache = mxa_cache.Cache(batch, heads_kv, dim, recipe.text, **fields)
        self.k = [np.zeros((heads_kv, 0, dim), np.float32) for _ in range(batch)]
        self.v = [np.zeros((heads_kv, 0, self.dim_v), np.float32) for _ in range(batch)]

    def length(self, b):
        return self.k[b].shape[1]

    def append(self, rng, counts, kind="normal", dtype="bf16", strides="contiguous"):
        n = max(counts)
        heads_kv = self.k[0].shape[0]
        k, v = (
            of.round_plain(inputs.values(rng, (self.batch, heads_kv, n, d), kind), dtype)
            for d in (self.dim, self.dim_v)
        )
        k, v = inputs.strided(k, strides), inputs.strided(v, strides)
        self.cache.append(k, v, counts)
        for b in range(self.batch):
            self.k[b] = np.concatenate([self.k[b], of.widen(k[b, :, : counts[b]])], axis=1)
            self.v[b] = np.concatenate([self.v[b], of.widen(v[b, :, : counts[b]])], axis=1)

    def attend(self, rng, counts, dtype="bf16", out="f32", **options):
        n = max(counts)
        q = of.round_plain(inputs.values(rng, (self.batch, self.heads, n, self.dim), "normal"), dtype)
        o, lse = self.cache.attend(q, self.dim_v, counts, dtype=of.PLAIN_TYPES[out], **options)
        options.setdefault("scale", self.dim**-0.5)
        for b, count in enumerate(counts):
            assert (o[b, :, count:] == 0).all() and np.isneginf(lse[b, :, count:]).all()
            if count == 0:
                continue
            with np.errstate(all="ignore"):
                want = oc.attend(
                    of.widen(q[b, :, :count]), self.k[b], self.v[b], self.recipe, **options, g_v=self.g_v
                )
            wrong = oa.compare(o[b, :, :count], lse[b, :, :count], want, out)
            assert wrong is None, f"sequence {b} of {self.length(b)} tokens, {count} queries: {wrong}"
        return o, lse

    def check_bytes(self):
        """Every row that is held has the bytes of a quantiser that sees all tokens at once."""
        for b in range(self.batch):
            length, high_first, pages = self.cache.table(b)
            assert length == self.length(b)
            for kind in (mxa_cache.LOW, mxa_cache.HIGH) if length else ():
                self.check_kind(b, kind, high_first, pages[kind])

    def held(self, kind, length, high_first):
        """Tokens whose rows of a kind a query may read."""
        r = self.recipe.scores
        sink_end = -(-r.sink // of.TILE) * of.TILE if r.high_k and (r.diag or r.sink) else 0
        tokens = np.arange(length)
        if kind == mxa_cache.HIGH:
            return tokens[(tokens < sink_end) | (tokens >= high_first)]
        return tokens

    def rows(self, b, kind):
        """(part, expected rows, are rows of the sink zero) of K and V in pages of a kind, and a head's bytes."""
        r, name = self.recipe.scores, ("low", "high")[kind]
        page_tokens = self.cache.opts.page_tokens
        k, v, head_bytes = oc.head_layout(self.recipe, kind, self.dim, self.dim_v, page_tokens)
        fmt_k, fmt_q = getattr(r, name + "_k"), getattr(r, name + "_q")
        mean = oc.prefix_mean(self.k[b][None], r)
        mean = mean if fmt_k not in of.PLAIN_FORMATS else None
        fmt_v = self.recipe.v if kind == 0 else self.recipe.pv
        rotated_v = self.recipe.rotate_v
        return [
            (k, k and oc.expected_rows(mxa, self.k[b], fmt_k, oc.pair_is_rotated(r, fmt_k, fmt_q), mean)),
            (v, v and self.v_rows(b, fmt_v, rotated_v)),
        ], head_bytes

    def v_rows(self, b, fmt, rotated):
        if self.g_v is None or fmt != self.recipe.v:
            return oc.expected_rows(mxa, self.v[b], fmt, rotated, None)
        codes = oc.channel_codes(self.v[b][None], fmt, rotated, self.g_v).codes[0]
        nothing = np.zeros(codes.shape[:2] + (0,), np.uint8)
        return codes.view(np.uint8), nothing, nothing

    def check_kind(self, b, kind, high_first, pages):
        r, page_tokens = self.recipe.scores, self.cache.opts.page_tokens
        parts, head_bytes = self.rows(b, kind)
        twice = [r.high_k and (r.diag or r.sink) and r.low_k, self.recipe.v_windows]
        unread_end = r.sink // of.TILE * of.TILE
        held = self.held(kind, self.length(b), high_first)
        n_bytes = head_bytes * self.k[b].shape[0]
        for page in np.unique(held // page_tokens) if n_bytes else []:
            assert pages[page] >= 0
            memory = self.cache.page(kind, pages[page], n_bytes)
            tokens = held[held // page_tokens == page]
            rows = range(tokens[0] % page_tokens, tokens[-1] % page_tokens + 1)
            for operand, (part, want) in enumerate(parts):
                for h in range(self.k[b].shape[0]) if part else []:
                    got = oc.page_rows(memory, part, head_bytes, h, rows)
                    for x, y in zip(got, want):
                        y = y[h, tokens[0] : tokens[-1] + 1]
                        if kind == mxa_cache.LOW and twice[operand]:
                            y = np.where(tokens[:, None] < unread_end, 0, y)
                        np.testing.assert_array_equal(x, y)

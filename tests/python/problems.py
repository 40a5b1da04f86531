# SPDX-License-Identifier: Apache-2.0
"""Attention problems that the tests draw, run in the library and in the oracle, and compared."""

from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

import inputs
import mxa
import oracle_attention as oa
import oracle_formats as of
import oracle_map as om

EVERY_FORMAT = list(of.FORMATS) + of.PLAIN_FORMATS
LENGTHS = st.one_of(st.sampled_from([0, 1, 2, 127, 128, 129, 256, 257]), st.integers(0, 300))
KV_LENGTHS = st.one_of(st.sampled_from([0, 1, 127, 128, 129, 256, 385]), st.integers(0, 500))
WINDOWS = st.one_of(st.just(-1), st.just(-1), st.integers(0, 4), st.integers(0, 400))


@dataclass
class Case:
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    recipe: om.Recipe = om.RECIPES["exact"]
    mask: om.Mask = om.Mask()
    out: str = "f32"
    options: dict = field(default_factory=dict)  # those of oracle_attention.attend

    def expected(self):
        return oa.attend(self.q, self.k, self.v, self.recipe, self.mask, **self.options)

    def run(self, **changes):
        """(out, lse) of the library; changes go to mxa.attention."""
        options = dict(self.options)
        if (scale := options.pop("scale", None)) is not None:
            options["softmax_scale"] = scale
        mask = self.mask
        options.update(causal=mask.causal, window_left=mask.left, window_right=mask.right)
        options["q_offset"] = mxa.OFFSET_AUTO if mask.offset is None else mask.offset
        if "out" not in changes:
            options["out_dtype"] = of.PLAIN_TYPES[self.out]
        return mxa.attention(self.q, self.k, self.v, self.recipe, **{**options, **changes})

    def check(self, **changes):
        o, lse = self.run(**changes)
        wrong = oa.compare(o, lse, self.expected(), self.out)
        assert wrong is None, f"{wrong}\n{self}"

    def __repr__(self):
        shapes = ", ".join(
            f"{n} {x.dtype} {x.shape} strides {x.strides}" for n, x in zip("qkv", (self.q, self.k, self.v))
        )
        return f"Case({shapes}, {self.recipe}, {self.mask}, out {self.out}, {self.options})"

    def _repr_pretty_(self, printer, cycle):
        """Hypothesis prints this instead of every element."""
        printer.text(repr(self))


LEVELS = st.sampled_from([None, None, "tensor", "head", "token_block", "token"])


@st.composite
def operand_choices(draw, pairs):
    """Scale rules where a copy has an MX format, levels where one has factors."""
    choices = {}
    for side in "qk":
        formats = {pairs.get(part + side) for part in ("low_", "high_")}
        if formats & set(of.MX_FORMATS):
            choices["rule_" + side] = draw(st.sampled_from([None, "floor", "rceil", "even"]))
        if formats & {"nvfp4", "fp8", "int8"}:
            choices["level_" + side] = draw(LEVELS)
    return choices


@st.composite
def recipes(draw):
    """A named one, or any legal combination."""
    if draw(st.booleans()):
        return draw(st.sampled_from(list(om.RECIPES.values())))
    fmt = st.sampled_from(EVERY_FORMAT)
    high = draw(st.sampled_from([None, "quantized", "plain"]))
    pairs = {"low_q": draw(fmt), "low_k": draw(fmt)}
    windows = {}
    smooth = draw(st.sampled_from([None, "full"]))
    if high:
        kinds = st.sampled_from(["bf16", "f16"]) if high == "plain" else fmt
        pairs.update(high_q=draw(kinds), high_k=draw(kinds))
        windows = {"diag": draw(st.integers(1, 300)), "sink": draw(st.sampled_from([0, 1, 128, 200]))}
        if high == "plain" and windows["sink"] >= 128:
            smooth = draw(st.sampled_from([None, "prefix", "full"]))
    return om.Recipe(
        **pairs,
        **windows,
        **draw(operand_choices(pairs)),
        smooth=smooth,
        rotate=draw(st.booleans()),
        pv=draw(st.sampled_from([None, "f16", "bf16"])),
    )


@st.composite
def masks(draw):
    offset = draw(st.one_of(st.none(), st.none(), st.integers(-300, 600)))
    return om.Mask(draw(st.booleans()), draw(WINDOWS), draw(WINDOWS), offset)


@st.composite
def softmax_options(draw, heads):
    options = {}
    if draw(st.booleans()):
        options["scale"] = draw(st.sampled_from([0.0, 1.0, -0.25, 0.03]))
    options["softcap"] = draw(st.sampled_from([0.0, 0.0, 0.5, 30.0]))
    if draw(st.booleans()):
        options["sinks"] = np.array(
            draw(st.lists(st.sampled_from([-np.inf, -30.0, 0.0, 2.5, 40.0]), min_size=heads, max_size=heads)),
            np.float32,
        )
    return options


@st.composite
def operands(draw, batch, heads, heads_kv, q_len, kv_len, bad):
    dim, dim_v = draw(inputs.dims), draw(inputs.dims)
    arrays = []
    for n_heads, length, width in ((heads, q_len, dim), (heads_kv, kv_len, dim), (heads_kv, kv_len, dim_v)):
        kinds = st.sampled_from(inputs.TAME)
        x = inputs.make(
            draw(inputs.seeds),
            (batch, n_heads, length, width),
            draw(kinds),
            draw(inputs.dtypes),
            draw(inputs.rates) if bad else 0,
        )
        arrays.append(inputs.strided(x, draw(st.sampled_from(inputs.STRIDES))))
    return arrays


@st.composite
def head_counts(draw):
    heads_kv = draw(st.integers(1, 2))
    return heads_kv * draw(st.integers(1, 3)), heads_kv


@st.composite
def cases(draw, bad=False, recipe=recipes()):
    heads, heads_kv = draw(head_counts())
    q, k, v = draw(operands(draw(st.integers(1, 2)), heads, heads_kv, draw(LENGTHS), draw(KV_LENGTHS), bad))
    options = draw(softmax_options(heads))
    if bad:
        options["softcap"] = 0.0
    return Case(q, k, v, draw(recipe), draw(masks()), draw(inputs.dtypes), options)


@st.composite
def packed_cases(draw):
    """Variable lengths, zero among them, and rows behind the last sequence."""
    heads, heads_kv = draw(head_counts())
    pairs = draw(st.lists(st.tuples(LENGTHS, KV_LENGTHS), min_size=1, max_size=3))
    cu_q, cu_k = (np.cumsum([0] + [pair[i] for pair in pairs]) for i in (0, 1))
    rows = [int(cu[-1]) + draw(st.sampled_from([0, 0, 7])) for cu in (cu_q, cu_k)]
    q, k, v = draw(operands(1, heads, heads_kv, *rows, bad=False))
    options = {**draw(softmax_options(heads)), "cu_q": cu_q, "cu_k": cu_k}
    return Case(q, k, v, draw(recipes()), draw(masks()), draw(inputs.dtypes), options)

# SPDX-License-Identifier: Apache-2.0
"""Recipe names and texts: the table of the specification, and texts that parse back to the same recipe."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mxa
import oracle_formats as of
import oracle_map as om

FORMAT_NAMES = list(mxa.FORMATS)[1:]
LEVEL_DEFAULTS = ("nvfp4", "fp8", "int8")


def resolved(struct):
    """Fields of a recipe with defaults written out and what has no effect left out."""
    name = {number: text for text, number in mxa.FORMATS.items()}
    if struct.exact:
        return {"exact": True}
    fields = {f: name[getattr(struct, f)] for f in ("low_q", "low_k", "high_q", "high_k")}
    no_low, no_high = fields["low_q"] == "none", fields["high_q"] == "none"
    fields["diag"] = "all" if no_low else 0 if no_high else struct.diag_window
    fields["sink"] = 0 if no_low or no_high else struct.sink_window
    fields.update(rotate=struct.rotate, smooth=struct.smooth_k, pv=struct.pv)
    for side in "qk":
        formats = [fields[f"{part}_{side}"] for part in ("low", "high")]
        level, rule = getattr(struct, "level_" + side), getattr(struct, "rule_" + side)
        if any(f in LEVEL_DEFAULTS for f in formats):
            fields["level_" + side] = level or mxa.LEVELS["token"]
        if any(f in of.MX_FORMATS for f in formats) and rule:
            fields["rule_" + side] = rule
    return fields


@pytest.mark.parametrize("name", list(om.RECIPES))
def test_named_recipes(name):
    assert resolved(mxa.parse_recipe(name)) == resolved(mxa.recipe_struct(om.RECIPES[name]))


def test_names_are_listed():
    assert set(om.RECIPES) <= set(mxa.recipe_names())
    for name in mxa.recipe_names():
        mxa.parse_recipe(name)


def test_default_is_dma8():
    struct = mxa.RecipeStruct()
    mxa.lib().mxa_recipe_default(mxa.C.byref(struct))
    assert resolved(struct) == resolved(mxa.parse_recipe("dma8"))


@pytest.mark.parametrize(
    "text, same",
    [
        ("dma4", "low_q=int8,low_k=mxfp4,high=bf16,diag=128,sink=128,rotate,smooth-k=prefix"),
        ("dma4", "low_q=int8,low_k=mxfp4,high_q=bf16,rotate,smooth-k"),
        ("paper-mxfp4", "low=mxfp4,high=mxfp8"),
        ("mxfp6", "low=mxfp6"),
        ("dma8", "dma8,diag=128"),
        ("dma8,level_k=token_block", "low=int8,high=bf16,rotate,smooth-k,level_k=token_block"),
    ],
)
def test_equal_texts(text, same):
    assert resolved(mxa.parse_recipe(text)) == resolved(mxa.parse_recipe(same))


def test_changes_to_a_name():
    struct = mxa.parse_recipe("dma4,diag=256,sink=384,rule_k=rceil,level_q=head,pv=f16,low_k=mxfp6")
    assert (struct.diag_window, struct.sink_window) == (256, 384)
    assert struct.rule_k == mxa.RULES["rceil"] and struct.level_q == mxa.LEVELS["head"]
    assert struct.pv == mxa.PV["f16"] and struct.low_k == mxa.FORMATS["mxfp6"]
    assert struct.low_q == mxa.FORMATS["int8"] and struct.rotate


@st.composite
def texts(draw):
    low = draw(st.sampled_from(FORMAT_NAMES))
    parts = [f"low={low}"]
    high = draw(st.sampled_from([None] + FORMAT_NAMES))
    if high:
        parts += [
            f"high={high}",
            f"diag={draw(st.integers(0, 2**40))}",
            f"sink={draw(st.integers(128, 2**40))}",
        ]
    parts += draw(st.lists(st.sampled_from(["rotate", "pv=bf16", "pv=f16"]), max_size=1))
    if high in ("bf16", "f16", "f32") and draw(st.booleans()):
        parts.append("smooth-k=" + draw(st.sampled_from(["prefix", "full"])))
    formats = {low, high}
    for side in "qk":
        if formats & set(of.MX_FORMATS) and draw(st.booleans()):
            parts.append(f"rule_{side}=" + draw(st.sampled_from(["floor", "rceil", "even"])))
        if formats & set(LEVEL_DEFAULTS) and draw(st.booleans()):
            parts.append(f"level_{side}=" + draw(st.sampled_from(["tensor", "head", "token"])))
    return ",".join([parts[0]] + draw(st.permutations(parts[1:])))


@given(text=texts())
def test_round_trip(text):
    struct = mxa.parse_recipe(text)
    written = mxa.recipe_text(struct)
    again = mxa.parse_recipe(written)
    assert bytes(again) == bytes(struct) or resolved(again) == resolved(struct), written
    assert mxa.recipe_text(again) == written


@pytest.mark.parametrize("name", list(om.RECIPES))
def test_names_round_trip(name):
    struct = mxa.parse_recipe(name)
    assert resolved(mxa.parse_recipe(mxa.recipe_text(struct))) == resolved(struct)


@pytest.mark.parametrize(
    "text, status",
    [
        ("", "ERR_ARG"),
        ("dma9", "ERR_ARG"),
        ("high=bf16", "ERR_ARG"),
        ("low=mxfp5", "ERR_FORMAT"),
        ("low=MXFP4", "ERR_FORMAT"),
        ("low=mxfp4,rule_q=up", "ERR_RULE"),
        ("low=mxfp4,speed=9", "ERR_ARG"),
        ("dma8,diag=-1", "ERR_ARG"),
        ("dma8,diag=99999999999999999999", "ERR_ARG"),
        ("dma8,diag=1x", "ERR_ARG"),
        ("dma8,,diag=1", "ERR_ARG"),
        ("low=int8,high=mxfp8,smooth-k=prefix", "ERR_ARG"),
        ("low=int8,high=bf16,sink=64,smooth-k=prefix", "ERR_ARG"),
    ],
)
def test_bad_texts(text, status):
    """Refused when read, or at the latest by the plan."""
    with pytest.raises(mxa.MxaError) as error:
        struct = mxa.parse_recipe(text)
        mxa.Plan(mxa.make_problem((1, 1, 4, 64), (1, 1, 4, 64), 64), struct)
    assert error.value.status == status, error.value


@given(text=st.text(st.characters(min_codepoint=1, max_codepoint=126), max_size=40))
def test_any_text_is_answered(text):
    struct = mxa.RecipeStruct()
    status = mxa.lib().mxa_recipe_parse(text.encode(), mxa.C.byref(struct))
    assert mxa.STATUSES[status] in ("OK", "ERR_ARG", "ERR_FORMAT", "ERR_RULE", "ERR_UNSUPPORTED")

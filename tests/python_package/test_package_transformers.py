# SPDX-License-Identifier: Apache-2.0
"""attn_implementation="mxattn" on models with random weights, compared with Transformers' own attention."""

import subprocess
import sys

import mxattn
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5.6")

import mxattn.transformers as mt
from tiny_models import CONFIGS, error, logits, padding, tiny, tokens
from transformers import masking_utils

# Relative errors of logits of two layers. Both sides of "exact" round to float32 and nothing else; "bf16" rounds
# q, k, v and the weights to 8 bits of significand, and the others' low tiles come on top (docs/quality.md).
CLOSE = 4e-6
BF16 = 2.0**-6
LONG = 400  # tokens: keys in low tiles
MASKS = {
    "none": None,
    "left": padding(60, left=(20, 0, 7)),
    "right": padding(60, right=(20, 0, 7)),
    "all of a row": padding(60, left=(60, 0, 7)),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", CONFIGS)
def test_logits_of_eager(name, mask):
    model, ids, mask = tiny(name), tokens(3, 60), MASKS[mask]
    real = slice(None) if mask is None else mask.bool()
    want = logits(model, "eager", ids, attention_mask=mask)[real]
    assert error(logits(model, "mxattn-exact", ids, attention_mask=mask)[real], want) < CLOSE
    assert error(logits(model, "mxattn-bf16", ids, attention_mask=mask)[real], want) < BF16


@pytest.mark.parametrize("recipe,bound", [("dma8", 2.0**-5), ("dma4", 2.0**-3)])
@pytest.mark.parametrize("name", CONFIGS)
def test_low_tiles(name, recipe, bound):
    model, ids = tiny(name), tokens(1, LONG)
    want = logits(model, "eager", ids)
    got = logits(model, f"mxattn-{recipe}", ids)
    assert error(got, want) < bound
    sees_low_tiles = name != "mistral"  # whose layers all have the window
    assert torch.equal(got, logits(model, "mxattn-bf16", ids)) != sees_low_tiles


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss"])
def test_padding_and_batch_mates_change_no_bit(name):
    model, ids, mask = tiny(name), tokens(3, 300), padding(300, left=(170, 0, 7))
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    heads = []
    hooks = [
        layer.self_attn.o_proj.register_forward_pre_hook(lambda _, x: heads.append(x[0]))
        for layer in model.model.layers[:1]
    ]
    logits(model, "mxattn-dma4", ids, attention_mask=mask, position_ids=positions)
    for b, first in enumerate((170, 0, 7)):
        logits(model, "mxattn-dma4", ids[b : b + 1, first:])
        assert torch.equal(heads[0][b, first:], heads[-1][0])
    for hook in hooks:
        hook.remove()


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_packed_sequences(name):
    """Without a mask, position_ids that begin anew are sequences of their own."""
    model, ids = tiny(name), tokens(2, 50)
    positions = torch.tensor([[*range(30), *range(20)], [*range(5), *range(45)]])
    got = logits(model, "mxattn-exact", ids, position_ids=positions, use_cache=False)
    assert error(got, logits(model, "eager", ids, position_ids=positions, use_cache=False)) < CLOSE
    one = logits(model, "eager", ids[:1, 30:], use_cache=False)
    assert error(got[:1, 30:], one) < CLOSE


@pytest.mark.parametrize(
    "name,kind", [("llama", "dynamic"), ("llama", "static"), ("gemma3", "dynamic"), ("gemma3", "static")]
)
def test_generate_with_transformers_caches(name, kind):
    """Caches that hold the last keys of a window, or zeros past the tokens."""
    model, ids, mask = tiny(name), tokens(3, 40), padding(40, left=(20, 0, 7))
    options = {"attention_mask": mask, "max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    model.set_attn_implementation("eager")
    want = model.generate(ids, **options)
    model.set_attn_implementation("mxattn-exact")
    if kind == "static":
        options |= {"cache_implementation": "static", "disable_compile": True}
    assert torch.equal(model.generate(ids, **options), want)


def test_a_bidirectional_encoder():
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4
    )
    model = transformers.BertModel(config).eval().requires_grad_(False)
    ids, mask = tokens(3, 60), padding(60, right=(20, 0, 7))
    model.set_attn_implementation("eager")
    want = model(ids, attention_mask=mask).last_hidden_state[mask.bool()]
    model.set_attn_implementation("mxattn-exact")
    assert error(model(ids, attention_mask=mask).last_hidden_state[mask.bool()], want) < CLOSE


def test_a_model_without_a_mask():
    class Layer(torch.nn.Module):
        is_causal = False

    q, k = torch.randn(1, 4, 30, 32), torch.randn(1, 2, 50, 32)
    for causal, window in ((None, None), (True, None), (True, 7)):
        out, weights = mt.attend(
            Layer(), q, k, k, None, is_causal=causal, sliding_window=window, recipe="exact"
        )
        options = {"causal": bool(causal), "window_size": (-1 if window is None else window - 1, -1)}
        want = mxattn.attention(q, k, k, recipe="exact", **options)
        assert weights is None and torch.equal(out, want.transpose(1, 2))


def test_a_recipe_for_each_layer():
    model, ids = tiny("llama"), tokens(1, LONG)
    mt.register("mine", ["bf16", "dma4,diag=64"])
    got = logits(model, "mine", ids)
    assert not torch.equal(got, logits(model, "mxattn-bf16", ids))
    mt.register("mine", "bf16")
    assert torch.equal(logits(model, "mine", ids), logits(model, "mxattn-bf16", ids))
    for recipe in ("dma5", ["bf16", "dma5"]):
        with pytest.raises(ValueError, match="dma5"):
            mt.register("mine", recipe)
    with pytest.raises(ValueError, match="dma5"):
        model.set_attn_implementation("mxattn-dma5")


def test_compile():
    """A graph for each part of the model between masks: attention is an operator in it."""
    model = tiny("llama")
    want = logits(model, "mxattn-dma4", tokens(2, LONG))
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    compiled = torch.compile(model, backend=backend)
    assert torch.equal(compiled(tokens(2, LONG), use_cache=False).logits, want)
    operators = [node.target for graph in graphs for node in graph.graph.nodes]
    assert operators.count(torch.ops.mxattn.attention.default) == 2


def test_bfloat16():
    model = tiny("llama")
    ids = tokens(2, 60)
    want = logits(model, "mxattn", ids)
    half = transformers.AutoModelForCausalLM.from_config(
        model.config, dtype=torch.bfloat16, attn_implementation="mxattn"
    ).eval()
    half.load_state_dict(model.state_dict())
    with torch.no_grad():
        assert error(half(ids).logits.float(), want) < 2.0**-4


Q = torch.randn(1, 4, 10, 32)
WHOLE = mt.make_mask(1, 10, 10)


def refuse(mask=WHOLE, query=Q, **options):
    return lambda: mt.attend(torch.nn.Module(), query, Q, Q, mask, **options)


def masks_with(**options):
    model = tiny("llama")

    def call():
        model.set_attn_implementation("mxattn")
        masking_utils.create_causal_mask(
            model.config, torch.zeros(1, 10, 8), options.pop("mask", None), None, **options
        )

    return call


HOLE = torch.tensor([[1, 1, 0, 1, 1, 1, 1, 1, 1, 1]])
REFUSED = {
    "dropout": (refuse(dropout=0.1), "dropout: 0.1 is not 0"),
    "weights": (refuse(output_attentions=True), "output_attentions: attention weights"),
    "bias": (refuse(position_bias=torch.zeros(1)), "position_bias"),
    "4-D": (refuse(torch.ones(1, 1, 10, 10)), r"attention_mask: a tensor of shape \(1, 1, 10, 10\)"),
    "2-D": (refuse(torch.ones(1, 10)), r"attention_mask: a tensor of shape \(1, 10\)"),
    "gradients": (refuse(query=Q.clone().requires_grad_()), "q: requires grad"),
    "type": (refuse(query=Q.double()), "q: dtype torch.float64"),
    "hole": (masks_with(mask=HOLE), "attention_mask: row 0 masks keys between keys"),
    "or": (masks_with(or_mask_function=lambda b, h, q, k: q >= 0), "mask_function: or_masks is no window"),
    "and": (masks_with(and_mask_function=lambda b, h, q, k: q != k), "mask_function: .* is the model's own"),
    "blocks": (masks_with(block_sequence_ids=torch.zeros(1, 10, dtype=torch.long)), "or_masks is no window"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    call, sentence = REFUSED[name]
    with pytest.raises(ValueError, match=sentence):
        call()


def test_chunked_attention_is_refused():
    function = masking_utils.chunked_causal_mask_function(4, torch.zeros(1, dtype=torch.long))
    with pytest.raises(ValueError, match="mask_function: chunked_overlay is no window"):
        mt.make_mask(1, 10, 10, mask_function=function)


def test_training_is_refused():
    model = tiny("llama")
    model.set_attn_implementation("mxattn")
    embedded = torch.randn(1, 9, 64, requires_grad=True)
    with pytest.raises(ValueError, match="q: requires grad, and there is no backward pass"):
        model(inputs_embeds=embedded)


@pytest.mark.parametrize("missing", ["torch", "transformers"])
def test_without(missing):
    code = f"import sys; sys.path[:0] = {sys.path!r}; sys.modules[{missing!r}] = None; import mxattn.transformers"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    want = "mxattn.transformers needs PyTorch and Transformers: pip install mxattn[transformers]"
    assert done.stderr.splitlines()[-1] == f"ImportError: mxattn: {want}"


def test_an_old_version():
    code = f"import sys; sys.path[:0] = {sys.path!r}; import transformers; transformers.__version__ = '5.5.1'"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; import mxattn.transformers"],
        capture_output=True,
        text=True,
        check=False,
    )
    want = "ImportError: mxattn: mxattn.transformers needs Transformers 5.6 or later, this is 5.5.1: "
    assert done.stderr.splitlines()[-1].startswith(want)

# SPDX-License-Identifier: Apache-2.0
"""QuantizedCache: generate() and chunks read the quantised cache and nothing else."""

import mxattn
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5.6")

from mxattn.transformers import QuantizedCache
from tiny_models import CONFIGS, error, logits, padding, tiny, tokens

BF16 = 2.0**-6  # as in test_package_transformers.py
LONG = 900
CHUNKS = (30, 7, 1, 22)


def in_chunks(model, cache, ids, chunks, mask=None):
    """Logits of calls with this many tokens each."""
    parts, done = [], 0
    for n in chunks:
        seen = None if mask is None else mask[:, : done + n]
        options = {"attention_mask": seen, "position_ids": torch.arange(done, done + n)[None]}
        parts.append(model(ids[:, done : done + n], cache=cache, use_cache=True, **options).logits)
        done += n
    return torch.cat(parts, dim=1)


def mx(name, implementation="mxattn"):
    model = tiny(name)
    model.set_attn_implementation(implementation)
    return model


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", CONFIGS)
def test_logits_of_eager(name, padded):
    ids = tokens(3, sum(CHUNKS))
    mask = padding(sum(CHUNKS), left=(20, 0, 37)) if padded else None
    real = mask.bool() if padded else slice(None)
    want = logits(tiny(name), "eager", ids, attention_mask=mask)[real]
    model = mx(name)
    cache = QuantizedCache(model.config, "bf16")
    assert error(in_chunks(model, cache, ids, CHUNKS, mask)[real], want) < BF16
    assert cache.get_seq_length() == sum(CHUNKS)
    whole = in_chunks(model, QuantizedCache(model.config, "bf16"), ids, [sum(CHUNKS)], mask)[real]
    assert error(whole, want) < BF16


@pytest.mark.parametrize("recipe,bound", [("dma8,v=int8", 2.0**-4), ("dma4,v=int8", 2.0**-3)])
def test_low_rows(recipe, bound):
    ids, model = tokens(2, LONG), tiny("llama")
    want = logits(model, "eager", ids)
    model = mx("llama")
    cache = QuantizedCache(model.config, recipe)
    chunks = [LONG - 40, *[8] * 5]
    assert error(in_chunks(model, cache, ids, chunks), want) < bound
    alone = mxattn.Cache(2, 2, model.model.layers[0].self_attn.head_dim, recipe=recipe)
    for n in chunks:
        alone.append(torch.ones(2, 2, n, alone.head_dim), torch.ones(2, 2, n, alone.head_dim))
    assert cache.used_bytes == len(cache) * alone.used_bytes
    with pytest.raises(ValueError, match="length"):
        cache.crop(-400)  # their high rows are gone
    stored = cache.layers[0].cache
    assert isinstance(stored, mxattn.Cache) and stored.lengths.tolist() == [LONG, LONG]
    assert cache.layers[0].keys is None and cache.layers[0].pending is None


def test_padding_and_chunks_change_no_byte(tmp_path):
    model, ids = mx("llama"), tokens(2, 300)
    mask = padding(300, left=(0, 140))
    files = []
    for rows, first, chunks in ((slice(0, 2), 0, [100, 150, 50]), (slice(1, 2), 140, [160])):
        cache = QuantizedCache(model.config, "dma4,v=int8")
        done = first
        for n in chunks:
            past = slice(first, done + n)
            positions = torch.arange(done, done + n)[None]
            model(
                ids[rows, done : done + n],
                attention_mask=mask[rows, past],
                cache=cache,
                position_ids=positions,
            )
            done += n
        stored = cache.layers[0].cache
        if stored.batch == 2:
            stored.fork(1, 0)
        stored.save(tmp_path / "cache")
        files.append((tmp_path / "cache").read_bytes())
    row = files[0].rindex(files[1][-1000:])  # the second sequence's rows end the file
    assert row == len(files[0]) - 1000


GREEDY = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}


TIE = 0.05  # of logits whose spread is about 1: how far 16 bits can move one


def forced(name, sequences, mask, new):
    """Log-probabilities by Transformers' own attention of the last tokens, given those before: [batch, new, all]."""
    seen = torch.cat([mask, torch.ones(len(mask), new, dtype=torch.long)], dim=1)
    positions = (seen.cumsum(1) - 1).clamp(min=0)
    found = logits(tiny(name), "eager", sequences, attention_mask=seen, position_ids=positions)
    return found[:, -new - 1 : -1].log_softmax(dim=-1)


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt_oss"])
@pytest.mark.parametrize("options", [{}, {"prefill_chunk_size": 16}], ids=["whole", "chunks"])
def test_greedy(name, options):
    ids, mask, model = tokens(3, 60), padding(60, left=(20, 0, 7)), mx(name)
    cache = QuantizedCache(model.config, "bf16")
    found = model.generate(ids, attention_mask=mask, cache=cache, **GREEDY, **options)
    new = found.shape[1] - 60
    likely = forced(name, found, mask, new)
    chosen = likely.gather(2, found[:, 60:, None])[..., 0]
    assert new == GREEDY["max_new_tokens"] and (likely.amax(dim=2) - chosen).max() < TIE


@pytest.mark.parametrize("name", ["llama", "gpt_oss"])
def test_beams(name):
    """The scores are those of the sequences: each beam went on with its own keys."""
    ids, mask, model = tokens(3, 60), padding(60, left=(20, 0, 7)), mx(name)
    options = GREEDY | {"num_beams": 4, "num_return_sequences": 4, "length_penalty": 0.0}
    options |= {"return_dict_in_generate": True, "output_scores": True, "eos_token_id": None}
    cache = QuantizedCache(model.config, "bf16")
    found = model.generate(ids, attention_mask=mask, cache=cache, **options)
    new = found.sequences.shape[1] - 60
    likely = forced(name, found.sequences, mask.repeat_interleave(4, dim=0), new)
    scores = likely.gather(2, found.sequences[:, 60:, None]).sum(dim=(1, 2))
    assert (scores - found.sequences_scores).abs().max() < TIE * new
    assert len({tuple(row) for row in found.sequences.tolist()}) == 12


def test_sampling_and_returned_sequences():
    model, ids = mx("qwen3", "mxattn-bf16"), tokens(2, 30)
    options = {"max_new_tokens": 8, "do_sample": True, "num_return_sequences": 2, "pad_token_id": 0}
    options["attention_mask"] = torch.ones_like(ids)
    got = []
    for cache in (None, QuantizedCache(model.config, "bf16")):
        torch.manual_seed(3)
        got.append(model.generate(ids, cache=cache, **options))
    assert torch.equal(*got)


def test_generation_goes_on_with_a_cache():
    model, ids = mx("llama"), tokens(1, 40)
    cache = QuantizedCache(model.config, "dma4,v=int8")
    first = model.generate(ids, cache=cache, **GREEDY)
    again = model.generate(first, attention_mask=torch.ones_like(first), cache=cache, **GREEDY)
    whole = model.generate(
        ids, cache=QuantizedCache(model.config, "dma4,v=int8"), **GREEDY | {"max_new_tokens": 12}
    )
    assert torch.equal(again, whole)


def test_assisted_generation_cuts_the_cache():
    model, ids = mx("llama"), tokens(1, 40)
    options = GREEDY | {"prompt_lookup_num_tokens": 4}
    want = model.generate(ids, cache=QuantizedCache(model.config, "bf16"), **GREEDY)
    assert torch.equal(model.generate(ids, cache=QuantizedCache(model.config, "bf16"), **options), want)


def test_crop_reorder_reset():
    model, ids = mx("gemma2"), tokens(2, 50)
    cache = QuantizedCache(model.config, "bf16")
    want = in_chunks(model, cache, ids, [40, 10])
    cache.crop(-10)
    assert cache.get_seq_length() == 40
    assert error(in_chunks_after(model, cache, ids, 40), want[:, 40:]) < 1e-6
    cache.crop(-10)
    cache.reorder_cache(torch.tensor([1, 0]))
    assert error(in_chunks_after(model, cache, ids.flip(0), 40), want[:, 40:].flip(0)) < 1e-6
    cache.batch_repeat_interleave(1)
    with pytest.raises(ValueError, match="repeats: 2 is not 1; the cache has 2 sequences"):
        cache.batch_repeat_interleave(2)
    cache.reset()
    assert cache.get_seq_length() == 0 and cache.used_bytes == 0
    assert torch.equal(in_chunks(model, cache, ids, [40, 10]), want)


def in_chunks_after(model, cache, ids, first):
    return model(ids[:, first:], cache=cache, position_ids=torch.arange(first, ids.shape[1])[None]).logits


def test_sliding_layers_give_pages_back():
    model, ids = mx("mistral"), tokens(1, LONG)
    cache = QuantizedCache(model.config, "dma8", page_tokens=16)
    chunks = [200, *[50] * 14]
    want = in_chunks(model, cache, ids, chunks)
    whole = logits(model, "mxattn-dma8", ids)
    assert error(want, whole) < BF16
    kept = QuantizedCache(tiny("llama").config, "dma8", page_tokens=16)
    in_chunks(mx("llama"), kept, ids, chunks)
    assert cache.used_bytes < 0.7 * kept.used_bytes


def test_other_attention_is_refused():
    model, ids = tiny("llama"), tokens(1, 9)
    for implementation in ("eager", "sdpa"):
        model.set_attn_implementation(implementation)
        cache = QuantizedCache(model.config)
        with pytest.raises(ValueError, match="keys and values lie in a quantised cache"):
            model(ids, cache=cache)
    states, _ = QuantizedCache(model.config).update(torch.ones(1, 2, 3, 32), torch.ones(1, 2, 3, 32), 0)
    assert states.shape == (1, 2, 3, 32) and states.dtype is torch.float32
    with pytest.raises(ValueError, match="keys and values lie in a quantised cache"):
        states + 1


def refused_masks():
    right = padding(20, right=(4, 0))
    earlier = padding(20)  # no row
    earlier = torch.ones(2, 20, dtype=torch.long)
    earlier[0, :3] = 0
    return {
        "right": (right, "row 0 is padded on the right; tokens of a cache are padded on the left"),
        "later": (earlier, "row 0 shows 7 earlier tokens, but the cache has stored 10"),
    }


@pytest.mark.parametrize("name", ["right", "later"])
def test_refused_masks(name):
    mask, sentence = refused_masks()[name]
    model, ids = mx("llama"), tokens(2, 20)
    cache = QuantizedCache(model.config)
    want = model(ids[:, :10], cache=cache).logits
    with pytest.raises(ValueError, match=sentence):
        model(ids[:, 10:], attention_mask=mask, cache=cache)
    assert cache.layers[0].get_seq_length() == 10 and not torch.isnan(want).any()


def test_bad_caches():
    config = tiny("llama").config
    for arguments, sentence in (
        ({"recipe": "dma5"}, "dma5"),
        ({"recipe": ["dma4"]}, "recipe: 1 recipes for 2 layers"),
        ({"recipe": "exact"}, "recipe"),
        ({"page_tokens": 20}, "page_tokens"),
        ({"rewind": -1}, "rewind"),
    ):
        with pytest.raises(ValueError, match=sentence):
            QuantizedCache(config, **arguments)
    linear = transformers.Qwen3NextConfig(
        num_hidden_layers=2, layer_types=["linear_attention", "full_attention"]
    )
    with pytest.raises(ValueError, match="config: layers of type linear_attention have no keys"):
        QuantizedCache(linear)
    model = mx("llama")
    cache = QuantizedCache(model.config)
    model(tokens(2, 9), cache=cache)
    with pytest.raises(ValueError, match="size 3 of axis 0"):
        model(tokens(3, 9), cache=cache)

# SPDX-License-Identifier: Apache-2.0
"""A model on disk with a tokenizer of single characters, and a text for it."""

import random

import torch
import transformers
from tiny_models import SIZES, VOCABULARY, tiny
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

CHARACTERS = [chr(c) for c in range(32, 127)] + ["\n"]
WORDS = "the", "a", "captain", "of", "sea", "letter", "walked", "and", "but,", "house.", "friend.", "well;"


def tokenizer():
    words = {c: i for i, c in enumerate([*CHARACTERS, "[UNK]"])}
    assert len(words) == VOCABULARY == SIZES["vocab_size"]
    own = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    own.pre_tokenizer = pre_tokenizers.Split(Regex("[\\s\\S]"), "isolated")
    return transformers.PreTrainedTokenizerFast(tokenizer_object=own, unk_token="[UNK]")


def save_model(folder, name="llama"):
    tiny(name).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def save_text(path, characters=4000):
    rng = random.Random(1)
    words = ""
    while len(words) < characters:
        words += rng.choice(WORDS) + " "
    path.write_text(words)
    return path


def logits_of(model, ids):
    with torch.no_grad():
        return model(ids[None]).logits[0].double()

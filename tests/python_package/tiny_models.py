# SPDX-License-Identifier: Apache-2.0
"""Small models with random weights, one of each architecture whose attention differs."""

from functools import cache

import torch
import transformers

VOCABULARY = 97
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
}
WINDOW = {"sliding_window": 20}
ALTERNATING = {"layer_types": ["sliding_attention", "full_attention"]}
CONFIGS = {
    "llama": ("LlamaConfig", {}),
    "qwen2": ("Qwen2Config", WINDOW | {"use_sliding_window": True, "max_window_layers": 1}),
    "qwen3": ("Qwen3Config", {"head_dim": 32}),
    "gemma2": (
        "Gemma2Config",
        WINDOW | {"head_dim": 32, "attn_logit_softcapping": 5.0, "query_pre_attn_scalar": 20},
    ),
    "gemma3": ("Gemma3TextConfig", WINDOW | ALTERNATING | {"head_dim": 32}),
    "mistral": ("MistralConfig", WINDOW),
    "gpt_oss": (
        "GptOssConfig",
        WINDOW
        | ALTERNATING
        | {
            "head_dim": 32,
            "num_local_experts": 4,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
    ),
}
SPREAD = 0.15  # of the weights: logits of about 1, attention that is neither flat nor one key's


@cache
def tiny(name):
    """The model, its attention Transformers' own ("eager")."""
    config, fields = CONFIGS[name]
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(
        getattr(transformers, config)(**SIZES | fields), attn_implementation="eager"
    ).eval()
    for parameter, weights in model.named_parameters():
        if "norm" not in parameter:
            torch.nn.init.normal_(weights, std=SPREAD)
    return model.requires_grad_(False)


def tokens(*shape, seed=0):
    """None of them padding, or one that ends a text."""
    return torch.randint(3, VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


def padding(length, left=(), right=()):
    """A mask of rows with this many padding tokens on one side."""
    mask = torch.ones(max(len(left), len(right)), length, dtype=torch.long)
    for b, n in enumerate(left):
        mask[b, :n] = 0
    for b, n in enumerate(right):
        mask[b, length - n :] = 0
    return mask


def logits(model, implementation, ids, **inputs):
    model.set_attn_implementation(implementation)
    return model(ids, **inputs).logits


def error(got, want):
    """|got - want| / |want|."""
    return ((got - want).norm() / want.norm()).item()

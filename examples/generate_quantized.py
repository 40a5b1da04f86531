# SPDX-License-Identifier: Apache-2.0
"""Generate text with a quantised KV cache, and say what the cache takes: generate_quantized.py [MODEL_FOLDER]

MODEL_FOLDER is a model of Transformers with its tokenizer. Without one, a small Llama with random weights
shows the calls and the bytes. Needs mxattn[transformers].
"""

import sys

import torch
import transformers
from mxattn.transformers import QuantizedCache

RECIPES = "bf16", "dma8,v=int8", "dma4,v=int8"
PROMPT = "A short account of how attention came to be computed in few bits:"
PROMPT_TOKENS, NEW_TOKENS = 2000, 20  # of the model with random weights


def load(folder):
    """(model, inputs, tokenizer or None)"""
    if folder is not None:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="mxattn")
        return model.eval(), tokenizer(PROMPT, return_tensors="pt"), tokenizer
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=512,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=4096,
    )
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="mxattn")
    ids = torch.randint(3, 512, (1, PROMPT_TOKENS))
    return model.eval(), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, None


def main():
    model, inputs, tokenizer = load(sys.argv[1] if len(sys.argv) > 1 else None)
    prompt = inputs["input_ids"].shape[1]
    for recipe in RECIPES:
        cache = QuantizedCache(model.config, recipe)
        found = model.generate(
            **inputs, cache=cache, max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=0
        )
        new = found[0, prompt:]
        text = tokenizer.decode(new) if tokenizer else " ".join(map(str, new.tolist()))
        print(f"{recipe:12} {cache.used_bytes / cache.get_seq_length():8.0f} bytes a token   {text}")


if __name__ == "__main__":
    main()

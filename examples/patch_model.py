# SPDX-License-Identifier: Apache-2.0
"""Put mxattn into models that exist: one of Transformers, and one that calls PyTorch's attention itself.

Needs mxattn[transformers].
"""

import mxattn.torch
import mxattn.transformers
import torch
import transformers
from torch.nn import functional as F

LENGTH = 700


def relative(got, want):
    return ((got - want).norm() / want.norm()).item()


def patch_transformers():
    """A loaded model takes another attention by name; each layer may have its own recipe."""
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=512,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
    )
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    ids = torch.randint(0, 512, (1, LENGTH))
    want = model(ids).logits
    mxattn.transformers.register("first-layer-wide", ["dma4,diag=512", "dma4"])
    for name in ("mxattn-exact", "mxattn-dma8", "mxattn-dma4", "first-layer-wide"):
        model.set_attn_implementation(name)
        print(f"Transformers, {name:17} logits differ by {relative(model(ids).logits, want):.5f}")


class Block(torch.nn.Module):
    """Attention as many models have it, written out."""

    def __init__(self, heads=4, dim=64):
        super().__init__()
        self.heads, self.project = heads, torch.nn.Linear(heads * dim, 3 * heads * dim)

    def forward(self, x):
        q, k, v = (y.unflatten(2, (self.heads, -1)).transpose(1, 2) for y in self.project(x).chunk(3, dim=2))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


def patch_pytorch():
    """Within the block, scaled_dot_product_attention is mxattn's; what it cannot do is said and left to PyTorch."""
    torch.manual_seed(0)
    block, x = Block(), torch.randn(1, LENGTH, 256)
    want = block(x)
    for recipe in ("exact", "dma8", "dma4"):
        with mxattn.torch.replace_sdpa(recipe):
            print(f"PyTorch, {recipe:22} outputs differ by {relative(block(x), want):.5f}")


with torch.no_grad():
    patch_transformers()
    patch_pytorch()

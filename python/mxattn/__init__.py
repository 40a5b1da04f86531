# SPDX-License-Identifier: Apache-2.0
"""Attention with mixed-precision scores, and the microscaling formats it needs.

On NumPy arrays and torch tensors in host memory:

attention(), varlen_attention(), merge()   attention, of packed sequences, of parts
recipes(), tile_map(), explain()           which precision goes where, and which kernel runs
Cache                                      keys and values, quantised as they come
evaluate(), report()                       what recipes cost a language model, and a page that shows it
quantize(), dequantize(), formats()        MXFP8, MXFP6, MXFP4, MXINT8, NVFP4, FP8, INT8

Importing the package does not import torch. Inference only: there is no backward pass.
"""

from ._attention import TileMap, attention, explain, merge, recipes, tile_map, varlen_attention
from ._cache import Cache
from ._evaluate import evaluate
from ._formats import Quantized, dequantize, formats, quantize
from ._report import report
from ._version import __version__

__all__ = [
    "Cache",
    "Quantized",
    "TileMap",
    "__version__",
    "attention",
    "dequantize",
    "evaluate",
    "explain",
    "formats",
    "merge",
    "quantize",
    "recipes",
    "report",
    "tile_map",
    "varlen_attention",
]

# SPDX-License-Identifier: Apache-2.0
"""Packed codes, layouts of scale bytes and the files of other software, by reshape and transpose."""

import numpy as np

from oracle_formats import from_blocks


def pack_codes(bits, codes):
    """[..., cols] one per byte to [..., row_bytes]."""
    codes = np.asarray(codes, np.uint8)
    if bits == 8:
        return codes
    stream = np.unpackbits(codes[..., None], axis=-1, bitorder="little")[..., :bits]
    return np.packbits(from_blocks(stream), axis=-1, bitorder="little")


def unpack_codes(bits, packed, cols):
    if bits == 8:
        return np.asarray(packed)[..., :cols]
    stream = np.unpackbits(packed, axis=-1, bitorder="little")[..., : cols * bits]
    codes = stream.reshape(packed.shape[:-1] + (cols, bits))
    return np.packbits(codes, axis=-1, bitorder="little")[..., 0]


def pad_matrix(scales, row_unit, col_unit):
    rows, cols = scales.shape
    return np.pad(scales, ((0, -rows % row_unit), (0, -cols % col_unit)))


def layout_scales(scales, layout):
    """The bytes of a [rows][cols] matrix of scales in a layout."""
    if layout == "row":
        return scales.reshape(-1)
    if layout == "tile_128x4":
        m = pad_matrix(scales, 128, 4)
        m = m.reshape(m.shape[0] // 128, 4, 32, m.shape[1] // 4, 4)
        return m.transpose(0, 3, 2, 1, 4).reshape(-1)
    m = pad_matrix(scales, 256, 8)
    m = m.reshape(m.shape[0] // 32, 2, 16, m.shape[1] // 8, 2, 4)
    return m.transpose(0, 3, 5, 2, 4, 1).reshape(-1)


def ggml_mxfp4(codes, scales):
    """Rows of 17-byte blocks from codes [rows][cols] and scales [rows][cols / 32]."""
    blocks = codes.reshape(codes.shape[0], -1, 32)
    halves = blocks[..., :16] | blocks[..., 16:] << 4
    return np.concatenate([scales[..., None], halves], axis=-1).reshape(-1)


def ggml_nvfp4(codes, scales):
    """Rows of 36-byte blocks of 64: four scales, then eight bytes for each 16 elements."""
    blocks = codes.reshape(codes.shape[0], -1, 4, 16)
    halves = (blocks[..., :8] | blocks[..., 8:] << 4).reshape(blocks.shape[:2] + (32,))
    return np.concatenate([scales.reshape(blocks.shape[:3]), halves], axis=-1).reshape(-1)


def ggml_q8_0(x):
    """Blocks of an fp16 step and 32 signed bytes from finite values of moderate size [..., cols]."""
    blocks = np.asarray(x, np.float32).reshape(-1, 32)
    step = np.abs(blocks).max(1, keepdims=True) / np.float32(127)
    with np.errstate(divide="ignore"):
        inverse = np.where(step > 0, np.float32(1) / step, np.float32(0))
    scaled = blocks * inverse
    codes = np.trunc(scaled + np.copysign(np.float32(0.5), scaled))  # ties away from zero
    return np.concatenate([step.astype(np.float16).view(np.uint8), codes.astype(np.int8).view(np.uint8)], 1)


def from_ggml_q8_0(data):
    blocks = np.asarray(data).reshape(-1, 34)
    return blocks[:, :2].copy().view(np.float16).astype(np.float32) * blocks[:, 2:].view(np.int8)


def vllm_page(k_codes, k_scales, v_codes, v_scales):
    """One page from packed codes and scales [head][token][...]; V's scales have four tokens interleaved."""
    heads, tokens, blocks = v_scales.shape
    swizzled = v_scales.reshape(heads, tokens // 4, 4, blocks).swapaxes(2, 3)
    return np.concatenate([part.reshape(-1) for part in (k_codes, k_scales, v_codes, swizzled)])

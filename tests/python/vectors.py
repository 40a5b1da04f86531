# SPDX-License-Identifier: Apache-2.0
"""Readers of tests/vectors; its README describes the files."""

import json
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).resolve().parent.parent / "vectors"
FORMAT_OF = {
    "MX-E4M3": "mxfp8",
    "MX-E5M2": "mxfp8-e5m2",
    "MX-E3M2": "mxfp6",
    "MX-E2M3": "mxfp6-e2m3",
    "MX-E2M1": "mxfp4",
    "MX-INT8": "mxint8",
    "NVFP4": "nvfp4",
    "FP8": "fp8",
}


def load(name):
    return json.loads((FOLDER / name).read_text())


def rows(name):
    """The fields of each line of a text file, its header left out."""
    lines = (FOLDER / name).read_text().splitlines()
    return [line.split() for line in lines if not line.startswith("#")]


def fp32(text):
    return np.frombuffer(bytes.fromhex(text), ">u4").astype(np.uint32).view(np.float32)


def bf16(text):
    bits = np.frombuffer(bytes.fromhex(text), ">u2").astype(np.uint32) << 16
    return bits.view(np.float32)


def codes(text):
    return np.frombuffer(bytes.fromhex(text), np.uint8)


def bits(x):
    """Bit patterns, every NaN the same."""
    x = np.asarray(x, np.float32)
    return np.where(np.isnan(x), np.uint32(0x7FC00000), x.view(np.uint32))

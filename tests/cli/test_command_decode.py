# SPDX-License-Identifier: Apache-2.0
"""decode: errors against float64, bytes a token, and what it refuses."""
import json

import numpy as np
import pytest
from command import DATA, FAILED, USAGE, qkv, refuse, save, succeed


def decode(source, *options):
    return json.loads(succeed("decode", source, "--json", *options))


def test_a_plain_cache_is_exact(tmp_path):
    source = save(tmp_path / "in", qkv(q_len=300, kv_len=300, dim=48, dim_v=40))
    result = decode(source, "--recipe", "bf16,high=f32,v=f32", "--tokens", 40)
    assert result["rel_l2"] < 2e-6 and result["worst_row"] < 1e-5
    assert result["attend_ms"] > 0 and result["append_ms"] > 0 and result["gb_per_s"] > 0


@pytest.mark.parametrize("recipe, most", [("dma8,v=int8", 0.005), ("dma4,v=int8", 0.05), ("int8,v=int8", 0.05)])
def test_real_data(recipe, most):
    result = decode(DATA / "smollm2-135m_layer15_2048.safetensors", "--recipe", recipe, "--tokens", 32)
    assert 1e-4 < result["rel_l2"] < most


def test_bytes_and_text(tmp_path):
    source = save(tmp_path / "in", qkv(q_len=20, kv_len=512, dim=64))
    heads_kv = 2
    assert decode(source, "--recipe", "int8,v=int8")["bytes_per_token"] == heads_kv * 2 * (64 + 4)
    text = succeed("decode", source, "--tokens", 20)
    assert "512 tokens, 20 of them one by one" in text and "bytes a token" in text and "float64" in text


def test_sinks(tmp_path):
    x = qkv(q_len=200, kv_len=200, dim=32)
    x["sinks"] = np.full(x["q"].shape[-3], 3.0, np.float32)
    source = save(tmp_path / "in", x)
    assert decode(source, "--recipe", "bf16,high=f32,v=f32")["rel_l2"] < 2e-6


def test_refused(tmp_path):
    source = save(tmp_path / "in", qkv(q_len=20, kv_len=300))
    assert "--tokens 21" in refuse(FAILED, "decode", source, "--tokens", 21)
    assert "exact" in refuse(FAILED, "decode", source, "--recipe", "exact")
    refuse(USAGE, "decode")
    refuse(USAGE, "decode", source, "--tokens", 0)

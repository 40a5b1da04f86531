# SPDX-License-Identifier: Apache-2.0
"""--device with a library without CUDA in place of the one that runs kernels (tests/cuda/fake_backend.c): what is
brought to a device and back, and what is said where something is missing. Every byte of its results is 0x3C."""
import json
import os
import pathlib

import numpy as np
import pytest
from command import FAILED, USAGE, call, executable, load, qkv, refuse, sample_data, save, succeed

FAKE_BYTE = 0x3C


def environment(mistake=""):
    fake = pathlib.Path(executable()).parent / "libfake_backend.so"
    if not fake.exists():
        pytest.skip("no libfake_backend.so beside the command")
    return os.environ | {"MXA_CUDA_LIBRARY": str(fake), "MXA_FAKE": mistake}


def from_device(array):
    return (np.frombuffer(array.tobytes(), np.uint8) == FAKE_BYTE).all()


def test_info():
    assert "cuda:0: fake, sm_70" in succeed("info", env=environment())
    (device,) = json.loads(succeed("info", "--json", env=environment()))["cuda_devices"]
    assert (device["name"], device["arch_major"], device["usable"]) == ("fake", 7, True)
    nowhere = os.environ | {"MXA_CUDA_LIBRARY": "/nowhere/libx.so"}
    assert "CUDA devices: none (device: MXA_CUDA_LIBRARY names" in succeed("info", env=nowhere)
    assert json.loads(succeed("info", "--json", env=nowhere))["cuda_devices"] == []


@pytest.mark.parametrize("heads", [4, 300])  # 300: on a CPU several calls
def test_run(tmp_path, heads):
    source = save(tmp_path / "in", qkv(heads=heads, heads_kv=2) | {"sinks": np.zeros(heads, np.float32)})
    succeed("run", source, "-o", tmp_path / "out", "--lse", "--device", "cuda:0", env=environment())
    out, _ = load(tmp_path / "out")
    assert out["o"].shape == (heads, 200, 64) and from_device(out["o"]) and from_device(out["lse"])


def test_quantize(tmp_path):
    source = save(tmp_path / "in", qkv())
    words = ("quantize", source, "-o", tmp_path / "out", "--tensor", "k", "--format", "int8", "--device", "cuda:0")
    succeed(*words, env=environment())
    assert from_device(load(tmp_path / "out")[0]["k.codes"])
    words += ("--level", "tensor", "--g", "0.5")
    succeed(*words, env=environment())


def test_compare(tmp_path):
    source = sample_data(tmp_path / "in", 256)
    words = ("compare", source, "--causal", "--recipe", "dma8", "--device", "cuda:0")
    assert "x bf16" in succeed(*words, env=environment())
    (row,) = json.loads(succeed(*words, "--json", env=environment()))
    assert row["bf16_time_ms"] > 0 and row["rel_l2"] > 0.5
    assert "bf16_time_ms" in succeed(*words, "--csv", env=environment())


def test_missing(tmp_path):
    source = save(tmp_path / "in", qkv())
    run = ("run", source, "-o", tmp_path / "out", "--device")
    quantize = ("quantize", source, "-o", tmp_path / "out", "--tensor", "k", "--format", "int8", "--device")
    assert "cuda:3 is not there" in refuse(FAILED, *run, "cuda:3", env=environment())
    assert "launch failure" in refuse(FAILED, *run, "cuda:0", env=environment("launch"))
    assert "sm_70" in refuse(FAILED, *run, "cuda:0", env=environment("old"))
    for words in (run, quantize):
        assert "no NVIDIA driver" in refuse(FAILED, *words, "cuda:0", env=environment("driver"))
        assert "one build" in refuse(FAILED, *words, "cuda:0", env=environment("number"))
        assert call(*words, "gpu").returncode == USAGE
    assert not (tmp_path / "out").exists()


def test_bench(tmp_path):
    shapes = tmp_path / "shapes"
    shapes.write_text("attention a heads=2 q_len=64 kv_len=64 dim=32\nquantize q heads=2 seq=64 dim=32\n")
    words = ("bench", "--shapes", shapes, "--device", "cuda:0")
    assert "on cuda:0, fake" in succeed(*words, env=environment())
    rows = json.loads(succeed(*words, "--json", env=environment()))
    assert [row["variant"] for row in rows][-3:] == ["fused", "unfused", "memcpy"]
    assert "no NVIDIA driver" in refuse(FAILED, *words, env=environment("driver"))

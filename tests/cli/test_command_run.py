# SPDX-License-Identifier: Apache-2.0
"""run against NumPy in float64, and against the stored figures of the sample data."""
import json

import numpy as np
import pytest
from command import DATA, DTYPES, attention, load, qkv, rel_l2, save, succeed
from safetensors.numpy import load_file, save_file

FLOAT32_ROUNDING = 2.0**-23  # two roundings to nearest of the largest value of a row


def run(tmp_path, tensors, *options):
    source = save(tmp_path / "in", tensors)
    assert succeed("run", source, "-o", tmp_path / "out", *options) == ""
    return load(tmp_path / "out")[0]


def close(result, reference):
    scale = np.abs(reference).max(initial=1e-30)
    assert np.array_equal(np.isneginf(result), np.isneginf(reference))
    finite = np.isfinite(reference)
    assert np.abs(result[finite] - reference[finite]).max(initial=0) <= FLOAT32_ROUNDING * (
        np.abs(reference[finite]).max(initial=scale) + 1e-30
    )


MASKS = {
    "": {},
    "--causal": {"causal": True},
    "--window 9,-1": {"window": (9, -1)},
    "--window 3,5": {"window": (3, 5)},
    "--window=-1,0": {"causal": True},
    "--causal --window 17,4": {"causal": True, "window": (17, 4)},
    "--scale 0": {"scale": 0.0},
    "--scale -0.25": {"scale": -0.25},
    "--softcap 1.5 --causal": {"softcap": 1.5, "causal": True},
    "--q-offset 0 --causal": {"q_offset": 0, "causal": True},
    "--q-offset=-20 --causal": {"q_offset": -20, "causal": True},
    "--threads 1 --device cpu": {},
}


@pytest.mark.parametrize("options", MASKS)
def test_exact_recipe(tmp_path, options):
    x = qkv(q_len=60, kv_len=133, dim=48, dim_v=40)
    out = run(tmp_path, x, "--recipe", "exact", "--lse", *options.split())
    o, lse = attention(x["q"], x["k"], x["v"], **MASKS[options])
    assert set(out) == {"o", "lse"} and out["o"].dtype == np.float32 and out["lse"].shape == (4, 60)
    close(out["o"], o)
    close(out["lse"], lse)


def test_batches_sinks_and_lengths(tmp_path):
    x = qkv(batch=3, q_len=20, kv_len=7)
    x["sinks"] = np.array([0.5, -1, 2, -np.inf], np.float32)
    out = run(tmp_path, x, "--recipe", "exact", "--lse", "--causal")
    assert out["o"].shape == (3, 4, 20, 64) and out["lse"].shape == (3, 4, 20)
    for b in range(3):
        o, lse = attention(x["q"][b], x["k"][b], x["v"][b], causal=True, sinks=x["sinks"].astype(float))
        close(out["o"][b], o)
        close(out["lse"][b], lse)


def test_packed_sequences_end_before_the_total(tmp_path):
    x = qkv(q_len=50, kv_len=60)
    x["cu_seqlens_q"] = np.array([0, 0, 11, 40], np.int32)
    x["cu_seqlens_k"] = np.array([0, 5, 30, 51], np.int32)
    for name in "kv":
        x[name][:, 51:] = np.nan
    out = run(tmp_path, x, "--recipe", "exact", "--lse", "--causal")
    for i in range(3):
        q, k = (slice(*x[name][i : i + 2]) for name in ("cu_seqlens_q", "cu_seqlens_k"))
        o, lse = attention(x["q"][:, q], x["k"][:, k], x["v"][:, k], causal=True)
        close(out["o"][:, q], o)
        close(out["lse"][:, q], lse)
    assert not out["o"][:, 40:].any() and np.isneginf(out["lse"][:, 40:]).all()


def test_no_sequence(tmp_path):
    x = qkv(q_len=5, kv_len=6)
    x["cu_seqlens_q"] = x["cu_seqlens_k"] = np.zeros(1, np.int32)
    out = run(tmp_path, x, "--lse")
    assert not out["o"].any() and np.isneginf(out["lse"]).all()


@pytest.mark.parametrize("q_len, kv_len", [(0, 5), (5, 0), (0, 0)])
def test_nothing(tmp_path, q_len, kv_len):
    out = run(tmp_path, qkv(q_len=q_len, kv_len=kv_len), "--lse")
    assert out["o"].shape == (4, q_len, 64) and not out["o"].any() and np.isneginf(out["lse"]).all()


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_types(tmp_path, dtype):
    x = qkv(dtype=dtype)
    o, _ = attention(x["q"], x["k"], x["v"])
    out = run(tmp_path, x, "--recipe", "exact")
    assert out["o"].dtype == DTYPES[dtype] and set(out) == {"o"}
    assert np.array_equal(out["o"], o.astype(np.float32).astype(DTYPES[dtype]))
    for name, other in [("f32", "F32"), ("f16", "F16"), ("bf16", "BF16")]:
        wide = run(tmp_path, x, "--recipe", "exact", "--out-dtype", name)
        assert wide["o"].dtype == DTYPES[other]


def test_large_inputs_run_in_parts_with_the_same_result(tmp_path):
    """Long inputs are cut by KV head for the progress bar; short ones are not. One head alone is never cut."""
    x = qkv(heads=4, heads_kv=2, q_len=1024, kv_len=2100, dim=32, dtype="BF16")
    x["sinks"] = np.array([0.5, -1, 2, 0], np.float32)
    options = ["--recipe", "dma4", "--causal", "--lse"]
    whole = run(tmp_path, x, *options)
    for h in range(2):
        heads = slice(2 * h, 2 * h + 2)
        part = {"q": x["q"][heads], "k": x["k"][h : h + 1], "v": x["v"][h : h + 1], "sinks": x["sinks"][heads]}
        alone = run(tmp_path, part, *options)
        assert np.array_equal(alone["o"], whole["o"][heads]) and np.array_equal(alone["lse"], whole["lse"][heads])


def test_output_is_a_safetensors_file_and_repeats(tmp_path):
    x = qkv(dtype="BF16")
    run(tmp_path, x, "--lse", "--out-dtype", "f16")
    first = (tmp_path / "out").read_bytes()
    assert load_file(tmp_path / "out")["o"].dtype == np.float16
    run(tmp_path, x, "--lse", "--out-dtype", "f16")
    assert (tmp_path / "out").read_bytes() == first


def test_files_that_python_writes(tmp_path):
    x = qkv(dtype="F16")
    save_file(x, tmp_path / "in", metadata={"format": "np"})
    succeed("run", tmp_path / "in", "-o", tmp_path / "out", "--recipe", "exact", "--out-dtype", "f32")
    close(load(tmp_path / "out")[0]["o"], attention(x["q"], x["k"], x["v"])[0])


def test_unaligned_tensors(tmp_path):
    x = {"a": np.zeros(3, np.uint8), **qkv()}
    o, _ = attention(x["q"], x["k"], x["v"])
    close(run(tmp_path, x, "--recipe", "exact")["o"], o)



@pytest.mark.parametrize("layer", [1, 15, 28])
def test_sample_data(tmp_path, layer):
    name = f"smollm2-135m_layer{layer:02d}_2048.safetensors"
    source = DATA / name
    reference = json.loads((DATA / "reference.json").read_text())["files"][name]
    succeed("run", source, "-o", tmp_path / "out", "--causal", "--out-dtype", "f32", "--lse", "--recipe", "low=f32,pv=f16")
    out = load(tmp_path / "out")[0]
    for row in reference["rows"]:
        h, i = row["head"], row["query"]
        assert rel_l2(out["o"][h, i], np.array(row["out"])) < 0.01
        assert abs(out["lse"][h, i] - row["lse"]) < 1e-3
    norms = np.sqrt((out["o"].astype(float) ** 2).sum((1, 2)))
    assert np.allclose(norms, reference["head_l2"], rtol=1e-3)

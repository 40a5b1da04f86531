# SPDX-License-Identifier: Apache-2.0
"""compare: its figures recomputed from the outputs of run, and its three ways to print them."""
import csv
import io
import json

import numpy as np
import pytest
from command import DONE, attention, call, load, qkv, rel_l2, sample_data, save, succeed

KEYS = (
    "recipe rel_l2 rel_l2_worst_head worst_row cosine psnr_db lse_max_abs high_share k_bits time_ms fp32_time_ms".split()
)
DEFAULT_SET = "dma8 dma4 dma8-fp8 dma4-fp8 paper-mxfp4 paper-nvfp4 int8 mxint8 mxfp8 mxfp4 nvfp4 bf16".split()


def compare(source, *options):
    return json.loads(succeed("compare", source, "--json", *options))


def one(source, recipe, *options):
    (row,) = compare(source, "--recipe", recipe, *options)
    assert list(row) == KEYS and row["recipe"] == recipe
    return row


@pytest.mark.parametrize("recipe", ["dma4", "mxfp8", "paper-nvfp4,diag=0,sink=0"])
def test_figures_are_those_of_run(tmp_path, recipe):
    x = qkv(batch=2, q_len=150, kv_len=300)
    source = save(tmp_path / "in", x)
    row = one(source, recipe, "--causal")
    succeed("run", source, "-o", tmp_path / "out", "--causal", "--recipe", recipe, "--lse")
    out = {name: t.reshape(8, 150, -1) for name, t in load(tmp_path / "out")[0].items()}
    pairs = [attention(x["q"][b], x["k"][b], x["v"][b], causal=True) for b in range(2)]
    o, lse = (np.concatenate(parts) for parts in zip(*pairs))
    errors = [rel_l2(out["o"][h], o[h]) for h in range(8)]
    difference = out["o"] - o
    rows = np.linalg.norm(difference, axis=2) / np.linalg.norm(o, axis=2)
    expected = {
        "rel_l2": np.mean(errors),
        "rel_l2_worst_head": max(errors),
        "worst_row": rows.max(),
        "cosine": (out["o"] * o).sum() / np.linalg.norm(out["o"].astype(float)) / np.linalg.norm(o),
        "psnr_db": 20 * np.log10(np.abs(o).max() / np.sqrt((difference**2).mean())),
        "lse_max_abs": np.abs(out["lse"][..., 0] - lse).max(),
    }
    for name, value in expected.items():
        assert row[name] == pytest.approx(value, rel=1e-5, abs=1e-6), name
    assert row["time_ms"] > 0 and row["fp32_time_ms"] > 0


@pytest.mark.parametrize(
    "recipe, bits",
    [
        ("dma4", 4 + 8 / 32),
        ("dma8", 8 + 32 / 64),
        ("dma8,level_k=token_block", 8 + 32 / 64 / 100),
        ("nvfp4", 4 + 8 / 16 + 32 / 64),
        ("nvfp4,level_k=none", 4 + 8 / 16),
        ("mxfp6", 6 + 8 / 32),
        ("low_q=int8,low_k=mxint8", 8 + 8 / 32),
        ("fp8,level_k=head", 8 + 32 / 64 / 100),
        ("bf16", 16),
        ("exact", 32),
        ("low=f32", 32),
    ],
)
def test_bits_of_a_stored_key(tmp_path, recipe, bits):
    source = save(tmp_path / "in", qkv(q_len=3, kv_len=100))
    assert one(source, recipe)["k_bits"] == pytest.approx(bits)


def test_share_of_high_tiles(tmp_path):
    source = save(tmp_path / "in", qkv(heads=1, heads_kv=1, q_len=512, kv_len=512, dim=32))
    assert one(source, "paper-mxfp4,diag=1,sink=0", "--causal")["high_share"] == pytest.approx(4 / 10)
    assert one(source, "paper-mxfp4,diag=1,sink=128", "--causal")["high_share"] == pytest.approx(7 / 10)
    assert one(source, "mxfp4")["high_share"] == 0 and one(source, "bf16")["high_share"] == 1


def test_packed_sequences_count_their_own_tiles(tmp_path):
    x = qkv(heads=1, heads_kv=1, q_len=600, kv_len=600, dim=32)
    x["cu_seqlens_q"] = x["cu_seqlens_k"] = np.array([0, 512, 600], np.int32)
    source = save(tmp_path / "in", x)
    assert one(source, "paper-mxfp4,diag=1,sink=0", "--causal")["high_share"] == pytest.approx(5 / 11)


def test_exact_agrees_with_itself(tmp_path):
    row = one(save(tmp_path / "in", qkv()), "exact")
    assert row["rel_l2"] == row["worst_row"] == row["lse_max_abs"] == 0 and row["psnr_db"] is None
    assert row["cosine"] == pytest.approx(1)


def test_default_set_on_sample_data(tmp_path):
    source = sample_data(tmp_path / "in", tokens=1024)
    rows = {row["recipe"]: row for row in compare(source, "--causal")}
    assert list(rows) == DEFAULT_SET
    error = {name: row["rel_l2"] for name, row in rows.items()}
    assert error["dma8"] < error["dma4"] < error["mxfp8"] < error["mxfp4"]
    assert error["dma8"] < 0.01 and error["bf16"] < 0.01 and error["mxint8"] < error["mxfp8"]
    assert error["dma4"] < error["paper-mxfp4"] and error["paper-mxfp4"] < error["mxfp4"]


def test_rows_for_each_head(tmp_path):
    source = save(tmp_path / "in", qkv(batch=2))
    rows = compare(source, "--recipe", "mxfp4", "--per-head")
    assert [(r.get("batch"), r.get("head")) for r in rows] == [(None, None)] + [(b, h) for b in range(2) for h in range(4)]
    assert rows[0]["rel_l2"] == pytest.approx(np.mean([r["rel_l2"] for r in rows[1:]]))
    assert rows[0]["rel_l2_worst_head"] == max(r["rel_l2"] for r in rows[1:])
    assert rows[0]["worst_row"] == max(r["worst_row"] for r in rows[1:])
    text = succeed("compare", source, "--recipe", "mxfp4", "--per-head")
    assert "batch 1 head 3" in text


def test_csv_and_table_say_the_same(tmp_path):
    source = save(tmp_path / "in", qkv())
    recipes = ["dma4", "low_q=int8,low_k=mxfp4"]
    options = [word for recipe in recipes for word in ("--recipe", recipe)]
    rows = list(csv.DictReader(io.StringIO(succeed("compare", source, "--csv", *options))))
    assert [row["recipe"] for row in rows] == recipes and list(rows[0]) == KEYS
    per_head = list(csv.DictReader(io.StringIO(succeed("compare", source, "--csv", "--per-head", *options))))
    assert len(per_head) == 2 * 5 and per_head[1]["head"] == "0" and per_head[0]["head"] == ""
    lines = succeed("compare", source, *options).splitlines()
    for line, row in zip(lines[1:], rows):
        words = line.split()
        assert words[0] == row["recipe"] and float(words[1]) == pytest.approx(float(row["rel_l2"]), abs=1e-5)


def test_visible_nan_is_no_error_of_a_recipe(tmp_path):
    """A row that is NaN in the reference too agrees; figures that are no numbers are null."""
    x = qkv()
    x["q"][0, 5, 7] = np.nan
    done = call("compare", save(tmp_path / "in", x), "--json", "--recipe", "bf16")
    assert done.returncode == DONE and "1 of 800 output rows hold NaN or Inf" in done.stderr
    (row,) = json.loads(done.stdout)
    assert row["rel_l2"] < 0.02 and row["worst_row"] < 0.1


def test_nothing(tmp_path):
    row = one(save(tmp_path / "in", qkv(q_len=0)), "dma4")
    assert row["rel_l2"] == 0 and row["psnr_db"] is None and row["high_share"] == 0

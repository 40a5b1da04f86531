# SPDX-License-Identifier: Apache-2.0
"""The parts of bench/cpu_bench.py: contenders, what they compute, and the arithmetic of the report."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest

import mxa

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path[:0] = [str(BENCH), str(BENCH / "peers")]
import attention_contest as contest  # noqa: E402
import cpu_report  # noqa: E402
from attention_problem import Problem, from_bf16, load_inputs, right_rows, save_inputs, to_bf16  # noqa: E402


@pytest.mark.parametrize("q_len, kv_len", [(96, 96), (1, 160), (40, 130)])
def test_a_contender_computes_the_attention(tmp_path, q_len, kv_len):
    problem, missing = Problem(4, 2, q_len, kv_len, 64), []
    save_inputs(problem, tmp_path)
    library = {"MXATTN_LIB": mxa.lib()._name}
    contenders = contest.start(["mxattn"], [sys.executable], library, missing)
    entries = contest.enter(contenders["mxattn"], problem, tmp_path, 1, missing)
    done = contest.compete(entries, 0, missing, least=2)
    assert not missing and [e.place[1] for e in done] == ["dma8", "dma4", "bf16"]
    rows = sorted({0, q_len // 2, q_len - 1})
    want = right_rows(problem, load_inputs(tmp_path), rows)
    for entry, bound in zip(done, (0.02, 0.3, 0.005)):
        assert entry.note and len(entry.ms) >= 2 and min(entry.ms) > 0
        entry.contender.ask(rows=entry.place, of=rows, to=str(tmp_path / "rows.npy"))
        got = np.load(tmp_path / "rows.npy")
        assert np.linalg.norm(got - want) < bound * np.linalg.norm(want)
    contest.leave(entries)
    contenders["mxattn"].stop()


def test_a_step_of_the_cache(tmp_path):
    problem, missing = Problem(8, 2, 1, 700, 64), []
    save_inputs(problem, tmp_path)
    contenders = contest.start(["cache"], [sys.executable], {"MXATTN_LIB": mxa.lib()._name}, missing)
    entries = contest.enter(contenders["cache"], problem, tmp_path, 1, missing)
    assert not missing and len(contest.compete(entries, 0, missing)) == len(entries) > 2
    want = right_rows(problem, load_inputs(tmp_path), [0])
    for entry, bound in zip(entries, (0.2, 0.3, 0.02, 0.02, 0.005)):
        entry.contender.ask(rows=entry.place, of=[0], to=str(tmp_path / "rows.npy"))
        got = np.load(tmp_path / "rows.npy")
        assert np.linalg.norm(got - want) < bound * np.linalg.norm(want), entry.place
        assert int(entry.note) >= 2 * 34  # bytes a token and KV head
    contest.leave(entries)
    contenders["cache"].stop()


def test_what_does_not_run_is_named():
    missing = []
    assert contest.start(["nobody"], [sys.executable], os.environ, missing) == {}
    assert missing == ["nobody: ModuleNotFoundError: No module named 'attention_nobody'"]


def test_bf16_rounds_to_nearest_even():
    x = np.array([1 + 2**-8, 1 + 3 * 2**-8, -1.0, 3.0e38], np.float32)
    assert from_bf16(to_bf16(x)).tolist() == [1.0, 1 + 2**-6, -1.0, float.fromhex("0x1.c4p+127")]


def test_flops_count_visible_scores():
    pairs = {(5, 5): 15, (1, 9): 9, (3, 6): 4 + 5 + 6}
    for (q_len, kv_len), n in pairs.items():
        assert Problem(3, 1, q_len, kv_len, 8).flops() == 2 * 3 * n * 8


def test_mixed_peak():
    rates = {("avx2", "f32"): 200.0, ("avx2", "int"): 300.0, ("amx", "half"): 2000.0, ("amx", "int"): 4000.0}
    peaks = {"peaks": [{"level": level, "use": use, "gops": gops} for (level, use), gops in rates.items()]}
    assert cpu_report.mixed_peak(peaks, "avx2", "dma8") == pytest.approx(240)
    assert cpu_report.mixed_peak(peaks, "avx2", "bf16") == pytest.approx(200)
    assert cpu_report.mixed_peak(peaks, "amx", "dma8") == pytest.approx(8000 / 3)
    assert cpu_report.mixed_peak(peaks, cpu_report.level_of("avx2"), "dma4") == pytest.approx(240)
    assert cpu_report.mixed_peak(peaks, "portable", "dma8") is None
    slow_half = {"level": "avx2", "use": "half", "gops": 100.0}
    assert cpu_report.mixed_peak({"peaks": [*peaks["peaks"], slow_half]}, "avx2", "dma8") == pytest.approx(
        240
    )
    assert cpu_report.level_of("avx512_bf16") == "avx512"

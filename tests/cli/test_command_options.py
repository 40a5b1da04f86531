# SPDX-License-Identifier: Apache-2.0
"""The command line itself: help, version, and everything that ends with exit status 2."""
import json
import re

import pytest
from command import FAILED, USAGE, call, qkv, refuse, save, succeed

VERBS = "info quantize dequantize run compare decode map bench".split()
SCREEN_LINES, SCREEN_COLUMNS = 24, 80


@pytest.mark.parametrize("verb", VERBS)
def test_help_fits_a_screen_and_has_an_example(verb):
    lines = succeed(verb, "--help").splitlines()
    assert len(lines) <= SCREEN_LINES and max(map(len, lines)) < SCREEN_COLUMNS
    assert "Example:" in "\n".join(lines) and f"mxattn {verb}" in lines[-1]


def test_help_of_the_command_lists_the_verbs():
    text = succeed("--help")
    assert all(verb in text for verb in VERBS) and len(text.splitlines()) <= SCREEN_LINES


def test_version():
    assert re.fullmatch(r"mxattn \d+\.\d+\.\d+\n", succeed("--version"))


@pytest.mark.parametrize(
    "words, named",
    [
        ("", "no verb"),
        ("sing", '"sing"'),
        ("eval", "python -m mxattn eval"),
        ("run", "IN and -o OUT"),
        ("run a", "-o OUT"),
        ("run a b -o c", '"b"'),
        ("run a -o b --fast", "--fast"),
        ("run a -o b -z", "-z"),
        ("run a -o b --recipe", "--recipe"),
        ("run a -o", "-o"),
        ("run a -o b --lse=1", "--lse"),
        ("run a -o b --recipe nope", "nope"),
        ("run a -o b --recipe dma8,sink=0", "sink"),
        ("run a -o b --scale nan", "--scale"),
        ("run a -o b --scale inf", "finite"),
        ("run a -o b --scale 1x", "1x"),
        ("run a -o b --softcap -1", "--softcap"),
        ("run a -o b --softcap nan", "--softcap"),
        ("run a -o b --softcap 1e-60", "too small"),
        ("run a -o b --window 3", "--window"),
        ("run a -o b --window -2,0", "-2,0"),
        ("run a -o b --window 1,2,3", "1,2,3"),
        ("run a -o b --q-offset x", "--q-offset"),
        ("run a -o b --q-offset 99999999999999999999", "--q-offset"),
        ("run a -o b --threads -1", "--threads"),
        ("run a -o b --device gpu", "gpu"),
        ("run a -o b --out-dtype f8", "f32 f16 bf16"),
        ("quantize a -o b --tensor k", "--format"),
        ("quantize a -o b --tensor k --format mxfp5", "mxfp8 mxfp8-e5m2 mxfp6 mxfp6-e2m3 mxfp4 mxint8 nvfp4 fp8 int8"),
        ("quantize a -o b --tensor k --format mxfp4 --rule up", "floor rceil even"),
        ("quantize a -o b --tensor k --format nvfp4 --rule even", "--rule"),
        ("quantize a -o b --tensor k --format mxfp4 --level row", "none tensor head token_block token"),
        ("quantize a -o b --tensor k --format mxfp4 --layout col", "row tile_128x4 amd"),
        ("quantize a -o b --tensor k --format mxfp4 --axis x", "head token"),
        ("quantize a -o b --tensor k --format mxfp4 --policy skip", "propagate error sanitize"),
        ("quantize a -o b --tensor k --format nvfp4 --option fast", "scale-up flush-tiny pow2-g four-over-six"),
        ("quantize a -o b --tensor k --format mxfp4 --option scale-up", "nvfp4"),
        ("quantize a -o b --tensor k --format fp8 --g 1", "--level tensor"),
        ("quantize a -o b --tensor k --format fp8 --level tensor --g nan", "--g"),
        ("dequantize a", "-o OUT"),
        ("dequantize a -o b --dtype f64", "f32 f16 bf16"),
        ("compare", "IN"),
        ("compare a --json --csv", "--csv"),
        ("compare a --recipe mxfp9", "paper-nvfp4"),
        ("map --q-len 5", "--kv-len"),
        ("map --q-len -1 --kv-len 5", "--q-len"),
        ("map --q-len 5 --kv-len 5 file", "file"),
        ("bench --shape nope", "prefill-4k-d64"),
        ("bench file", "file"),
        ("bench --decode --device cuda:0", "--decode"),
        ("bench --decode --shape prefill-2k-d64", "prefill-2k-d64"),
        ("bench --decode --layers 0", "--layers"),
        ("bench --layers 3", "--decode"),
        ("info file", "file"),
    ],
)
def test_wrong_command_lines(words, named):
    assert named in refuse(USAGE, *words.split())


def test_unknown_recipe_lists_the_known_ones():
    text = refuse(USAGE, "compare", "a", "--recipe", "dma16")
    for name in "dma8 dma4 dma8-fp8 dma4-fp8 paper-mxfp4 paper-nvfp4 mxint8 mxfp8 mxfp6 mxfp4 nvfp4 fp8 bf16 exact".split():
        assert name in text


def test_sentences_stay_on_their_line(tmp_path):
    assert "?[31m" in refuse(FAILED, "run", "no\n\033[31m\rfile", "-o", tmp_path / "o")
    refuse(USAGE, "sing" * 500)


def test_a_device_that_is_not_there(tmp_path):
    source = save(tmp_path / "in", qkv())
    assert "cuda" in refuse(FAILED, "run", source, "-o", tmp_path / "o", "--device", "cuda:99").lower()


def test_info():
    info = json.loads(succeed("info", "--json"))
    assert info["version"] == succeed("--version").split()[1]
    assert set(info["operations"]) == {"quantize", "decode", "attention", "cache"}
    for entries in info["operations"].values():
        assert entries[-1]["name"] == "ref" and entries[-1]["available"]
        for i, entry in enumerate(entries):
            before = [e for e in entries[:i] if e["available"] and e["format"] in ("any", entry["format"])]
            assert entry["runs"] == bool(entry["runs_for"])
            assert not entry["runs"] or entry["available"]
            if entry["format"] != "any":
                assert entry["runs"] == (entry["available"] and not before)
    text = succeed("info")
    assert info["version"] in text and "attention" in text and "runs" in text


def test_features_that_the_environment_masks(tmp_path):
    done = call("info", "--json", env={"MXA_CPU": "ref"})
    for entries in json.loads(done.stdout)["operations"].values():
        assert [e["name"] for e in entries if e["runs"]] == ["ref"]


@pytest.mark.parametrize("words", ["info", "info --json", "bench --shape decode-8k-d128"])
def test_unknown_word_for_the_processor_lists_the_known_ones(words):
    text = refuse(FAILED, *words.split(), env={"MXA_CPU": "sse9"})
    for word in "MXA_CPU ref portable avx2 avx512 amx".split():
        assert word in text


def test_bench(tmp_path):
    shapes = tmp_path / "shapes"
    shapes.write_text(
        "# small\n\nattention a heads=2 heads_kv=1 q_len=64 dim=32\n"
        "attention full heads=1 q_len=3 kv_len=5 dim=8 dim_v=4 causal=0 type=f16\n"
        "quantize z heads=1 seq=64 dim=64 low=nvfp4 high=fp8 type=f32\n"
    )
    names = ["--shape", "a", "--shape", "full", "--shape", "z"]
    rows = json.loads(succeed("bench", "--shapes", shapes, "--json", "--threads", 1, *names))
    assert [r["variant"] for r in rows if r["shape"] == "z"] == ["fused", "unfused", "memcpy"]
    assert {r["unit"] for r in rows if r["shape"] == "a"} == {"GFLOP/s"}
    work = {r["shape"]: r["work"] for r in rows}
    assert work == {"a": 2 * (64 * 65 // 2) * 2 * 64, "full": 2 * 15 * 12, "z": 64 * 64 * 4}
    for row in rows:
        assert row["p10_ms"] <= row["median_ms"] <= row["p90_ms"] and row["runs"] >= 10
        assert row["rate"] == pytest.approx(row["work"] / row["median_ms"] * 1e-6)
    copy = next(r for r in rows if r["variant"] == "memcpy")
    for row in rows:
        share = row["rate"] / copy["rate"] if row["shape"] == "z" else None
        assert row["of_memcpy"] == (share and pytest.approx(share))
    assert "GB/s" in succeed("bench", "--shapes", shapes, "--shape", "z")


def test_bench_of_decode_steps(tmp_path):
    shapes = tmp_path / "shapes"
    shapes.write_text(
        "attention a heads=4 heads_kv=2 q_len=1 kv_len=300 dim=64 batch=2\n"
        "attention prompt heads=1 q_len=8 dim=32\n"
        "quantize z heads=1 seq=1 dim=32\n"
    )
    words = ("bench", "--decode", "--shapes", shapes, "--layers", 2, "--threads", 1)
    rows = json.loads(succeed(*words, "--json"))
    recipes = ["dma4,v=int8", "dma4,v=mxfp4,rotate-v", "dma8,v=int8", "bf16"]
    assert [(r["shape"], r["recipe"], r["layers"]) for r in rows] == [("a", r, 2) for r in recipes]
    for row in rows:
        assert 0 < row["append_share"] and row["runs"] >= 10 and row["p10_ms"] <= row["p90_ms"]
        assert row["of_read"] == pytest.approx(row["gb_per_s"] / row["read_gb_per_s"])
    per_token = 2 * 2 * 2 * 64  # K and V of two heads in bf16; up to a page is not full
    assert per_token <= rows[3]["bytes_per_token"] <= per_token * (1 + 64 / 300)
    text = succeed(*words)
    assert "GB/s read by as many threads" in text and "prompt" not in text
    assert "1024" in refuse(FAILED, *words[:-1], 5000)
    shapes.write_text("attention prompt heads=1 q_len=8 dim=32\n")
    assert "one query" in refuse(FAILED, *words)


@pytest.mark.parametrize(
    "line, named",
    [
        ("sing a heads=1", "sing"),
        ("attention", "attention"),
        ("attention a heads=0 q_len=1 dim=1", '"0"'),
        ("attention a heads=1 dim=1", '"a"'),
        ("attention a heads=x q_len=1 dim=1", '"x"'),
        ("attention a wings=1", "wings"),
        ("attention a heads", "heads"),
        ("quantize a heads=1 seq=1 dim=1 low=mxfp5", "mxfp5"),
        ("quantize a heads=1 seq=1 dim=1 type=f64", "f64"),
        ("attention a heads=1 q_len=9999999999999 dim=1", "9999999999999"),
        ("attention a heads=100000 q_len=100000 dim=1000", '2^40 elements: "a"'),
        ("attention a heads=1 q_len=1 kv_len=1099511627776 dim=1 dim_v=2", '2^40 elements: "a"'),
        ("quantize a batch=1099511627776 heads=1099511627776 seq=1099511627776 dim=1099511627776", '"a"'),
    ],
)
def test_wrong_shapes_files(tmp_path, line, named):
    shapes = tmp_path / "shapes"
    shapes.write_text("# first\n" + line + "\n")
    text = refuse(FAILED, "bench", "--shapes", shapes)
    assert "line 2" in text and named in text


def test_missing_shapes_file(tmp_path):
    assert "nowhere" in refuse(FAILED, "bench", "--shapes", tmp_path / "nowhere")

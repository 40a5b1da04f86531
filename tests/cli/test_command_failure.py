# SPDX-License-Identifier: Apache-2.0
"""Outputs that fail or are interrupted: nothing half-written, an existing output untouched, no crash."""
import os
import pty
import resource
import signal
import stat
import subprocess
import time

import numpy as np
import pytest
from command import DONE, FAILED, executable, qkv, refuse, sample_data, save, succeed

KIB = 1 << 10
LOADER_FAILED = 127


def words_of(verb, source, output):
    more = {"run": [], "quantize": ["--tensor", "k", "--format", "mxfp8"], "dequantize": []}
    return [verb, source, "-o", output, *more[verb]]


def inputs(tmp_path, verb, **sizes):
    source = save(tmp_path / "in", qkv(**sizes))
    if verb == "dequantize":
        succeed(*words_of("quantize", source, tmp_path / "in2"))
        os.replace(tmp_path / "in2", source)
    return source


def limited(what, value):
    def limit():
        resource.setrlimit(what, (value, value))

    return limit


VERBS = ["run", "quantize", "dequantize"]


@pytest.mark.parametrize("verb", VERBS)
def test_full_disk(tmp_path, verb):
    """A limit on the size of files fails a write in the middle, as a full disk does."""
    source = inputs(tmp_path, verb)
    output = tmp_path / "out"
    output.write_bytes(b"before")
    text = refuse(FAILED, *words_of(verb, source, output), preexec_fn=limited(resource.RLIMIT_FSIZE, 4096))
    assert str(output) in text and "File too large" in text
    assert output.read_bytes() == b"before" and sorted(os.listdir(tmp_path)) == ["in", "out"]


@pytest.mark.parametrize("verb", VERBS)
def test_special_files_are_written_directly(tmp_path, verb):
    source = inputs(tmp_path, verb)
    assert "No space left" in refuse(FAILED, *words_of(verb, source, "/dev/full"))
    succeed(*words_of(verb, source, "/dev/null"))
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@pytest.mark.parametrize("verb", VERBS)
def test_outputs_that_cannot_be(tmp_path, verb):
    source = inputs(tmp_path, verb)
    folder = tmp_path / "folder"
    folder.mkdir()
    assert "directory" in refuse(FAILED, *words_of(verb, source, folder))
    assert "No such file" in refuse(FAILED, *words_of(verb, source, tmp_path / "no" / "out"))
    assert str(source) in refuse(FAILED, *words_of(verb, source, source / "out"))
    refuse(FAILED, *words_of(verb, source, tmp_path / ("x" * 300)))
    refuse(FAILED, *words_of(verb, source, ""))
    assert sorted(os.listdir(tmp_path)) == ["folder", "in"] and os.listdir(folder) == []


def test_failed_inputs_leave_an_output_untouched(tmp_path):
    output = tmp_path / "out"
    output.write_bytes(b"before")
    for verb in VERBS:
        refuse(FAILED, *words_of(verb, tmp_path / "nowhere", output))
    assert output.read_bytes() == b"before"


def test_permissions(tmp_path):
    source, output = save(tmp_path / "in", qkv()), tmp_path / "out"
    mask = os.umask(0o027)
    try:
        succeed("run", source, "-o", output)
        assert stat.S_IMODE(output.stat().st_mode) == 0o640
        output.chmod(0o604)
        succeed("run", source, "-o", output)
        assert stat.S_IMODE(output.stat().st_mode) == 0o604
    finally:
        os.umask(mask)


def test_symbolic_links_are_followed(tmp_path):
    source = save(tmp_path / "in", qkv())
    (tmp_path / "folder").mkdir()
    target, link = tmp_path / "folder" / "target", tmp_path / "link"
    target.write_bytes(b"before")
    link.symlink_to(target)
    succeed("run", source, "-o", link)
    assert link.is_symlink() and target.stat().st_size > 6


@pytest.mark.parametrize("verb", VERBS)
def test_out_of_memory(tmp_path, verb):
    """With little address space any allocation may be the one that fails: a sentence, never a signal."""
    output = tmp_path / "out"
    source = inputs(tmp_path, verb, heads=8, heads_kv=8, q_len=128, kv_len=4096)
    before = sorted(os.listdir(tmp_path))
    endings = set()
    for kib in range(6 * KIB, 32 * KIB, KIB // 2):
        done = subprocess.run(
            [executable(), *map(str, words_of(verb, source, output))],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            preexec_fn=limited(resource.RLIMIT_AS, kib * KIB),
        )
        if done.returncode == LOADER_FAILED:
            continue
        assert done.returncode in (DONE, FAILED), (kib, done.stderr)
        endings.add(done.stderr.split(",")[0])
        if done.returncode == DONE:
            break
        assert done.stderr.startswith("mxattn: out of memory") and sorted(os.listdir(tmp_path)) == before
    assert "" in endings and len(endings) > 1


def interrupt(words, folder, number):
    """Send the signal as soon as a temporary file is there; whether it came before the end."""
    child = subprocess.Popen([executable(), *map(str, words)], stderr=subprocess.PIPE)
    while child.poll() is None:
        if any(name.startswith(".mxattn") for name in os.listdir(folder)):
            child.send_signal(number)
            break
        time.sleep(0.0005)
    _, text = child.communicate()
    return child.returncode == -number and text == b""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_while_writing(tmp_path, number):
    rng = np.random.default_rng(1)
    source = save(tmp_path / "in", {"k": rng.standard_normal((1, 1 << 18, 64), np.float32)})
    output = tmp_path / "out"
    for _ in range(20):
        output.write_bytes(b"before")
        if interrupt(words_of("quantize", source, output), tmp_path, number):
            assert output.read_bytes() == b"before" and sorted(os.listdir(tmp_path)) == ["in", "out"]
            return
    pytest.skip("every run ended before the signal")


def test_interrupted_while_working(tmp_path):
    source = save(tmp_path / "in", qkv(heads=8, heads_kv=8, q_len=4096, kv_len=4096, dtype="BF16"))
    child = subprocess.Popen([executable(), "run", source, "-o", tmp_path / "out", "--recipe", "exact"])
    time.sleep(0.3)
    child.send_signal(signal.SIGINT)
    assert child.wait() == -signal.SIGINT and os.listdir(tmp_path) == ["in"]


def test_progress_bar_is_for_terminals(tmp_path):
    """Long work draws on a terminal, and removes what it drew; nothing of it reaches a pipe."""
    words = [executable(), "compare", str(sample_data(tmp_path / "in", tokens=512)), *["--recipe", "mxfp4"] * 4]
    quiet = subprocess.run(words, capture_output=True, check=True)
    assert quiet.stderr == b""
    ours, theirs = pty.openpty()
    child = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    drawn = b""
    while True:
        try:
            block = os.read(ours, 65536)
        except OSError:
            break
        drawn += block
    os.close(ours)
    assert child.wait() == 0
    assert b"%" in drawn and b"#" in drawn and drawn.endswith(b"\r\033[K")


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("name", ["in", "link", "folder/../in"])
def test_the_input_is_no_output(tmp_path, verb, name):
    source = inputs(tmp_path, verb)
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(source)
    before = open(source, "rb").read()
    assert "is the input" in refuse(FAILED, *words_of(verb, source, tmp_path / name))
    assert open(source, "rb").read() == before

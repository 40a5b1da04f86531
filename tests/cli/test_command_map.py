# SPDX-License-Identifier: Apache-2.0
"""map: the drawings of the specification, the picture, and what a terminal gets."""
import json
import os
import pty
import struct
import subprocess
import zlib

import pytest
from command import FAILED, call, executable, refuse, succeed


def lines(*words):
    """The drawing, without the counts below it."""
    return succeed("map", *words).split("\n\n")[0].splitlines()


def sizes(q_len, kv_len, diag, sink, *more):
    return ["--q-len", q_len, "--kv-len", kv_len, "--recipe", f"paper-mxfp4,diag={diag},sink={sink}", *more]


@pytest.mark.parametrize(
    "words, drawing",
    [
        (sizes(512, 512, 1, 0, "--causal"), ["H...", "LH..", "LLH.", "LLLH"]),
        (sizes(512, 512, 1, 128, "--causal"), ["H...", "HH..", "HLH.", "HLLH"]),
        (sizes(512, 512, 2, 0, "--causal"), ["H...", "HH..", "LHH.", "LLHH"]),
        (sizes(512, 512, 130, 0, "--causal"), ["H...", "HH..", "HHH.", "LHHH"]),
        (sizes(128, 384, 1, 0, "--causal"), ["LLH"]),
        (sizes(100, 300, 1, 0, "--causal"), ["LH.", "LLH"]),
        (sizes(1, 1000, 256, 128, "--causal"), ["HLLLLHHH"]),
        (sizes(1, 1000, 130, 0, "--causal"), ["LLLLLHHH"]),
        (sizes(512, 512, 1, 0), ["HLLL", "LHLL", "LLHL", "LLLH"]),
        (sizes(512, 512, 1, 0, "--window", "128,0"), ["H...", "LH..", ".LH.", "..LH"]),
        (sizes(128, 512, 1, 0, "--q-offset", "0", "--causal"), ["H..."]),
        (["--q-len", 256, "--kv-len", 256, "--recipe", "bf16"], ["HH", "HH"]),
        (["--q-len", 256, "--kv-len", 256, "--recipe", "mxfp4", "--causal"], ["L.", "LL"]),
    ],
)
def test_drawings(words, drawing):
    assert lines(*words) == drawing


def test_no_queries():
    assert succeed("map", "--q-len", 0, "--kv-len", 256).startswith("\n0 x 2 tiles")


def test_json_counts_and_shares():
    report = json.loads(succeed("map", "--json", *sizes(512, 512, 1, 128, "--causal")))
    assert (report["q_tiles"], report["k_tiles"], report["q_first"]) == (4, 4, 0)
    assert (report["high"], report["low"], report["skipped"]) == (7, 3, 6)
    assert report["high_share"] == pytest.approx(0.7) and report["low_share"] == pytest.approx(0.3)
    assert report["map"] == ["H...", "HH..", "HLH.", "HLLH"]
    text = succeed("map", *sizes(512, 512, 1, 128, "--causal"))
    assert "high 7" in text and "low 3" in text and "skipped 6" in text and "70.0 %" in text


def test_queries_before_the_first_key():
    report = json.loads(succeed("map", "--json", "--q-len", 300, "--kv-len", 100, "--causal"))
    assert report["q_first"] == -2 and report["map"][0] == "."


def decode_png(path):
    """Rows of palette colours; the command writes one IDAT stream of 8-bit palette indices."""
    raw, chunks, at = path.read_bytes(), {}, 8
    assert raw[:8] == b"\x89PNG\r\n\x1a\n"
    while at < len(raw):
        (length,) = struct.unpack(">I", raw[at : at + 4])
        name, body = raw[at + 4 : at + 8], raw[at + 8 : at + 8 + length]
        assert zlib.crc32(name + body) == struct.unpack(">I", raw[at + 8 + length : at + 12 + length])[0]
        chunks[name] = chunks.get(name, b"") + body
        at += 12 + length
    width, height, bits, colour = struct.unpack(">IIBB", chunks[b"IHDR"][:10])
    assert (bits, colour) == (8, 3)
    pixels = zlib.decompress(chunks[b"IDAT"])
    rows = [pixels[y * (width + 1) : (y + 1) * (width + 1)] for y in range(height)]
    assert all(row[0] == 0 for row in rows)
    palette = [tuple(chunks[b"PLTE"][i : i + 3]) for i in range(0, len(chunks[b"PLTE"]), 3)]
    return [[palette[p] for p in row[1:]] for row in rows]


@pytest.mark.parametrize("length", [1, 512, 3000, 150000])
def test_picture(tmp_path, length):
    words = sizes(length, length, 1, 128, "--causal")
    drawing = lines(*words, "--png", tmp_path / "map.png")
    picture = decode_png(tmp_path / "map.png")
    side = len(picture) // len(drawing)
    assert len(picture) == side * len(drawing) and len(picture[0]) == side * len(drawing[0])
    colours = {}
    for r in range(0, len(drawing), 1 + len(drawing) // 50):
        for c, letter in enumerate(drawing[r]):
            colours.setdefault(letter, set()).add(picture[r * side][c * side])
    assert all(len(seen) == 1 for seen in colours.values())
    assert len(set.union(*colours.values())) == len(colours)
    assert os.listdir(tmp_path) == ["map.png"]


def test_pictures_that_cannot_be(tmp_path):
    refuse(FAILED, "map", "--q-len", 0, "--kv-len", 5, "--png", tmp_path / "map.png")
    refuse(FAILED, "map", "--q-len", 5, "--kv-len", 5, "--png", tmp_path / "no" / "map.png")
    refuse(FAILED, "map", "--q-len", 5, "--kv-len", 5, "--png", "/dev/full")
    assert os.listdir(tmp_path) == []


def test_maps_that_are_too_large():
    assert "kv_len" in refuse(FAILED, "map", "--q-len", 5, "--kv-len", (1 << 63) - 1)
    assert "tiles" in refuse(FAILED, "map", "--q-len", 1 << 40, "--kv-len", 5)


def on_terminal(*words, **environment):
    """What the command prints on a terminal of 80 columns."""
    child, terminal = pty.fork()
    if child == 0:
        os.environ.update(TERM="xterm-256color", COLUMNS="80", **environment)
        os.execv(executable(), ["mxattn", *map(str, words)])
    printed = b""
    while True:
        try:
            block = os.read(terminal, 65536)
        except OSError:
            break
        if not block:
            break
        printed += block
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return printed.decode().replace("\r\n", "\n").split("\r\033[K")[-1]  # what stays once the progress bar is gone


def test_terminal_gets_colours_and_no_more_than_fits():
    small = on_terminal("map", *sizes(512, 512, 1, 128, "--causal"))
    assert small.count("\033[48;5;166m") == 7 + 1 and small.count("\033[48;5;31m") == 3 + 1
    large = on_terminal("map", *sizes(300000, 300000, 1, 128, "--causal"))
    assert len(large.splitlines()) <= 24 and "tiles and shows" in large
    assert max(line.count("\033[48;") for line in large.splitlines()) * 2 <= 80


def test_terminal_without_colours():
    assert "H...\nHH..\n" in on_terminal("map", *sizes(512, 512, 1, 128, "--causal"), NO_COLOR="1")


def test_output_that_cannot_be_written():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [executable(), "map", "--q-len", "512", "--kv-len", "512"], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == FAILED and done.stderr.startswith(b"mxattn: standard output")
    assert call("map", "--q-len", 5, "--kv-len", 5).returncode == 0

# SPDX-License-Identifier: Apache-2.0
"""Caches under random appends, cuts, forks and saves against the float64 model: results, bytes, lengths."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

import inputs
import mxa
from cache_problems import BY_TEXT, Pair

BATCH = 3
CHUNKS = st.one_of(st.integers(0, 3), st.integers(0, 3), st.integers(0, 200), st.sampled_from([128, 129]))
SEQUENCE = st.integers(0, BATCH - 1)
DTYPES = st.sampled_from(["bf16", "f16", "f32"])


class CacheMachine(RuleBasedStateMachine):
    texts = st.sampled_from(sorted(BY_TEXT))

    @initialize(
        text=texts, page=st.sampled_from([16, 64, 80, 256]), rewind=st.sampled_from([0, 16, 150]), dv=st.booleans()
    )
    def create(self, text, page, rewind, dv):
        self.rng = np.random.default_rng(len(text) * 1000 + page + rewind)
        self.appended = np.zeros(BATCH, int)  # tokens of the last append
        self.rewind = rewind
        self.pair = Pair(
            BY_TEXT[text], BATCH, 1, 2, 32, 64 if dv else 32, page_tokens=page, rewind=rewind, threads=1
        )

    @rule(
        counts=st.tuples(CHUNKS, CHUNKS, CHUNKS),
        kind=st.sampled_from(inputs.TAME),
        dtype=DTYPES,
        strides=st.sampled_from(["contiguous", "bshd", "packed_qkv"]),
    )
    def append(self, counts, kind, dtype, strides):
        self.pair.append(self.rng, counts, kind, dtype, strides)
        self.appended = np.where(np.array(counts) > 0, counts, self.appended)

    @rule(fractions=st.tuples(*[st.floats(0, 1)] * BATCH), softcap=st.sampled_from([0.0, 5.0]))
    def attend(self, fractions, softcap):
        most = [min(n + self.rewind, self.pair.length(b)) for b, n in enumerate(self.appended)]
        self.pair.attend(self.rng, [int(f * n) for f, n in zip(fractions, most)], softcap=softcap)

    @rule(b=SEQUENCE, back=st.integers(0, 200))
    def truncate(self, b, back):
        length = max(self.pair.length(b) - back, 0)
        try:
            self.pair.cache.truncate(b, length)
        except mxa.MxaError as refused:
            assert refused.status == "ERR_ARG" and "near window" in refused.text
            assert back > self.appended[b] + self.rewind
            return
        self.appended[b] = max(self.appended[b] - back, 0)
        self.pair.k[b], self.pair.v[b] = self.pair.k[b][:, :length], self.pair.v[b][:, :length]

    @rule(b=SEQUENCE, to=SEQUENCE)
    def fork(self, b, to):
        self.pair.cache.fork(b, to)
        self.take([b if i == to else i for i in range(BATCH)])

    @rule(source=st.tuples(*[SEQUENCE] * BATCH))
    def reorder(self, source):
        self.pair.cache.reorder(source)
        self.take(source)

    def take(self, source):
        self.pair.k = [self.pair.k[b] for b in source]
        self.pair.v = [self.pair.v[b] for b in source]
        self.appended = self.appended[list(source)]

    @rule()
    def save_and_load(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "cache.safetensors"
            self.pair.cache.save(path)
            loaded = type(self.pair.cache)(load=path)
            loaded.opts = self.pair.cache.opts
            loaded.save(path.with_name("again"))
            assert path.read_bytes() == path.with_name("again").read_bytes()
        self.pair.cache = loaded
        self.appended[:] = 0

    @invariant()
    def lengths(self):
        if hasattr(self, "pair"):
            want = [self.pair.length(b) for b in range(BATCH)]
            np.testing.assert_array_equal(self.pair.cache.lengths(BATCH), want)

    def teardown(self):
        if hasattr(self, "pair"):
            self.pair.check_bytes()


def test_states():
    run_state_machine_as_test(CacheMachine, settings=settings(stateful_step_count=14))


@pytest.mark.parametrize("text", sorted(BY_TEXT))
def test_chunks_store_the_same_file(text, tmp_path):
    """One prefill, random chunks, token by token, with forks and cuts within rewind: one file to the byte."""
    rng = np.random.default_rng(7)
    length, dim, recipe = 421, 32, BY_TEXT[text]
    k, v = (inputs.make(8 + i, (1, 1, length, dim), "biased", "f32") for i in range(2))
    files = []
    for way in ("once", "chunks", "tokens", "detours"):
        cache = Pair(recipe, 2, 1, 1, dim, page_tokens=48, rewind=20).cache
        at = 0
        while at < length:
            n = {"once": length, "tokens": 1}.get(way) or min(int(rng.integers(1, 60)), length - at)
            both = [np.repeat(x[:, :, at : at + n], 2, axis=0) for x in (k, v)]
            cache.append(*both, [n, 0])
            at += n
            if way == "detours":
                cache.fork(0, 1)
                cache.append(*(np.repeat(x[:, :, :19], 2, axis=0) for x in (v, k)), [0, 19])
                cache.append(*(np.repeat(x[:, :, :19], 2, axis=0) for x in (k, v)), [7, 0])
                cache.truncate(0, at)
        cache.fork(0, 1)
        cache.save(tmp_path / way)
        files.append((tmp_path / way).read_bytes())
    assert all(f == files[0] for f in files)

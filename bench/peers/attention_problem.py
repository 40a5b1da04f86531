# SPDX-License-Identifier: Apache-2.0
"""The attention that every contender computes: shape, random inputs in files, the right result of some rows."""

import dataclasses

import numpy as np

SEED = 1
NAMES = "q", "k", "v"


@dataclasses.dataclass(frozen=True)
class Problem:
    """One sequence, tensors [heads][length][dim]. Causal is bottom-right: the last query sees every key."""

    heads: int
    heads_kv: int
    q_len: int
    kv_len: int
    dim: int
    causal: bool = True

    def shapes(self):
        return ((self.heads, self.q_len, self.dim), *[(self.heads_kv, self.kv_len, self.dim)] * 2)

    def seen(self, row):
        """How many keys query row sees."""
        return row + self.kv_len - self.q_len + 1 if self.causal else self.kv_len

    def flops(self):
        """Of Q K and of P V each: a multiplication and an addition for every visible score and channel."""
        pairs = sum(self.seen(row) for row in (0, self.q_len - 1)) * self.q_len / 2
        return 2 * self.heads * pairs * self.dim


def to_bf16(x):
    """Round fp32 to nearest even; the upper 16 bits as uint16."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def save_inputs(problem, folder):
    """Normal numbers that bf16 holds, so that every contender gets the same ones."""
    random = np.random.default_rng(SEED)
    for name, shape in zip(NAMES, problem.shapes()):
        x = random.standard_normal(shape, np.float32)
        np.save(folder / f"{name}.npy", from_bf16(to_bf16(x)))


def load_inputs(folder):
    return [np.load(folder / f"{name}.npy") for name in NAMES]


def expand(x, problem):
    """K or V with a head for each query head."""
    return np.repeat(x, problem.heads // problem.heads_kv, axis=0)


def right_rows(problem, inputs, rows):
    """[heads][row][dim] in float64."""
    q, k, v = inputs
    out = np.empty((problem.heads, len(rows), problem.dim))
    for h in range(problem.heads):
        kv_head = h * problem.heads_kv // problem.heads
        scores = q[h, rows].astype(np.float64) @ k[kv_head].astype(np.float64).T / np.sqrt(problem.dim)
        for i, row in enumerate(rows):
            p = np.exp(scores[i, : problem.seen(row)] - scores[i, : problem.seen(row)].max())
            out[h, i] = p @ v[kv_head, : len(p)] / p.sum()
    return out

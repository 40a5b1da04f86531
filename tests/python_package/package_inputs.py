# SPDX-License-Identifier: Apache-2.0
"""Inputs, and attention in NumPy float64 straight from the formula."""

import ml_dtypes
import numpy as np

BF16 = np.dtype(ml_dtypes.bfloat16)


def random_qkv(
    heads=4, heads_kv=2, q_len=150, kv_len=300, dim=64, dim_v=64, batch=2, dtype=np.float32, seed=0
):
    rng = np.random.default_rng(seed)
    shapes = (batch, heads, q_len, dim), (batch, heads_kv, kv_len, dim), (batch, heads_kv, kv_len, dim_v)
    return tuple(rng.standard_normal(shape).astype(dtype) for shape in shapes)


def formula(
    q, k, v, causal=False, softmax_scale=None, window_size=(-1, -1), softcap=0.0, sinks=None, q_offset=None
):
    """(output, log-sum-exp) of [batch, heads, len, dim]."""
    group = q.shape[1] // k.shape[1]
    q, k, v = (x.astype(np.float64) for x in (q, k.repeat(group, axis=1), v.repeat(group, axis=1)))
    s = q @ k.swapaxes(2, 3) * (q.shape[3] ** -0.5 if softmax_scale is None else softmax_scale)
    if softcap:
        s = softcap * np.tanh(s / softcap)
    offset = k.shape[2] - q.shape[2] if q_offset is None else q_offset
    distance = np.arange(q.shape[2])[:, None] + offset - np.arange(k.shape[2])[None, :]
    left, right = window_size[0], 0 if causal else window_size[1]
    seen = ((left < 0) | (distance <= left)) & ((right < 0) | (-distance <= right))
    weights = np.exp(np.where(seen, s, -np.inf))  # scores of these inputs are far from overflow
    total = weights.sum(axis=3, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sinks.astype(np.float64))[None, :, None, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(total > 0, weights @ v / total, 0), np.log(total[..., 0])

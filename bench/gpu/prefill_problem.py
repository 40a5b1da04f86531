# SPDX-License-Identifier: Apache-2.0
"""One attention problem for the prefill kernel: random inputs, their quantized copies, the launch, the reference.

Quantization here is PyTorch's, written for the measurement: rotation by a Hadamard matrix, Q with a factor a row, K
with one a key tile. The reference is attention in float64 on what the kernel got: the dequantized operands in low
tiles, the inputs in high ones.
"""

import ctypes
import math
from dataclasses import dataclass

import torch

TILE = 128
HEAD_DIM = 128
GUARD = TILE * HEAD_DIM  # elements before and behind the output that must stay as they are
GUARD_VALUE = 7.0
FAR = 1 << 30
LOG2E = math.log2(math.e)
SOFTMAX_SCALE = 1 / math.sqrt(HEAD_DIM)

# Name: number in prefill_probe.cu.
MODES = {"bf16": 0, "int8": 1, "fp8": 2, "fp8-e4m3": 3, "fp8-raw": 4}
K_TYPES = {"fp8": torch.float8_e5m2, "fp8-e4m3": torch.float8_e4m3fn, "fp8-raw": torch.float8_e5m2}


@dataclass(frozen=True)
class Shape:
    """-1 is no window; causal is window_right 0. peak multiplies Q; bias adds one to a row's low logits."""

    heads: int
    heads_kv: int
    q_len: int
    kv_len: int
    window_right: int = 0
    window_left: int = -1
    diag: int = 128
    sink: int = 128
    batch: int = 1
    peak: float = 1.0
    bias: bool = False

    def __str__(self):
        lengths = f"{self.q_len}" if self.q_len == self.kv_len else f"{self.q_len} on {self.kv_len}"
        mask = {0: "causal", -1: "full"}.get(self.window_right, f"right {self.window_right}")
        extra = [f"left {self.window_left}"] * (self.window_left >= 0)
        extra += [f"diag {self.diag} sink {self.sink}"] * ((self.diag, self.sink) != (TILE, TILE))
        extra += [f"batch {self.batch}"] * (self.batch > 1) + [f"Q x {self.peak:g}"] * (self.peak != 1)
        return ", ".join([f"{self.heads}/{self.heads_kv} heads", f"{lengths} {mask}", *extra] + ["bias"] * self.bias)

    def flops(self):
        """Of Q K and P V; half of the score matrix where it is square and causal."""
        return 4 * self.batch * self.heads * self.q_len * self.kv_len * HEAD_DIM / (2 if self.window_right == 0 else 1)


class ProbeArgs(ctypes.Structure):
    """probe_args in prefill_probe.cu."""

    _fields_ = (
        [(name, ctypes.c_void_p) for name in "q k v q_low k_low gq gk bias_log2 out lse counter stream".split()]
        + [(name, ctypes.c_int) for name in ("batch heads heads_kv q_len kv_len window_left window_right diag_window "
                                             "sink_window mode").split()]
        + [("softmax_scale", ctypes.c_float)]
    )


def random_inputs(shape):
    """Q, K, V: normal, bf16."""
    rand = lambda heads, rows: torch.randn(shape.batch, heads, rows, HEAD_DIM, device="cuda").bfloat16()
    return (rand(shape.heads, shape.q_len) * shape.peak, rand(shape.heads_kv, shape.kv_len),
            rand(shape.heads_kv, shape.kv_len))


def rotate(x):
    """x times the normalized Hadamard matrix, in fp32."""
    h = torch.ones(1, 1, device=x.device)
    while h.shape[0] < HEAD_DIM:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)])
    return x.float() @ (h / math.sqrt(HEAD_DIM))


def encode(x, dtype):
    return torch.round(x).clamp(-127, 127).to(torch.int8) if dtype == torch.int8 else x.to(dtype)


def largest(dtype):
    return 127.0 if dtype == torch.int8 else torch.finfo(dtype).max


def quantize_rows(x, dtype):
    """Codes, factors [b][h][rows]."""
    factor = x.abs().amax(-1, keepdim=True) / largest(dtype)
    return encode(x / factor, dtype), factor.squeeze(-1).contiguous()


def quantize_tiles(x, dtype):
    """Codes, factors [b][h][tiles]; the last tile may be short."""
    batch, heads, rows, dim = x.shape
    tiles = -(-rows // TILE)
    padded = torch.nn.functional.pad(x, (0, 0, 0, tiles * TILE - rows)).view(batch, heads, tiles, TILE * dim)
    codes, factors = quantize_rows(padded, dtype)
    return codes.view(batch, heads, tiles * TILE, dim)[:, :, :rows].contiguous(), factors


def quantize_raw(q, k, k_dtype):
    """Codes and one factor each, whose product with the softmax scale and log2 e is 1."""
    scale = SOFTMAX_SCALE * LOG2E
    gk = 2.0 ** math.floor(math.log2(largest(torch.float8_e4m3fn) / (scale * q.abs().amax().item())))
    gq = 1 / (scale * gk)
    return encode(q / gq, torch.float8_e4m3fn), encode(k / gk, k_dtype), gq, gk


class Problem:
    """The operands of one mode, and a launch that repeats on them."""

    def __init__(self, library, shape, mode, inputs):
        self.library, self.shape, self.mode = library, shape, mode
        self.q, self.k, self.v = inputs
        n = self.q.numel()
        self.out_guarded = torch.full((n + 2 * GUARD,), GUARD_VALUE, device="cuda", dtype=torch.bfloat16)
        self.out = self.out_guarded[GUARD:-GUARD].view_as(self.q)
        self.out.fill_(math.nan)
        self.lse = torch.full(self.q.shape[:3], math.nan, device="cuda")
        self.counter = torch.zeros(1, device="cuda", dtype=torch.int32)
        self.q_low = self.k_low = self.gq = self.gk = self.bias = None
        if mode != "bf16":
            self.quantize()
            if shape.bias:
                self.bias = torch.randn_like(self.lse)
        pointers = [self.q, self.k, self.v, self.q_low, self.k_low, self.gq, self.gk, self.bias, self.out, self.lse,
                    self.counter]
        self.args = ProbeArgs(
            *(None if t is None else t.data_ptr() for t in pointers), None, shape.batch, shape.heads, shape.heads_kv,
            shape.q_len, shape.kv_len, shape.window_left, shape.window_right, shape.diag, shape.sink, MODES[mode],
            SOFTMAX_SCALE)

    def quantize(self):
        q, k = rotate(self.q), rotate(self.k)
        if self.mode == "fp8-raw":
            self.q_low, self.k_low, self.q_factor, self.k_factor = quantize_raw(q, k, K_TYPES[self.mode])
            return
        self.q_low, self.gq = quantize_rows(q, torch.int8 if self.mode == "int8" else torch.float8_e4m3fn)
        self.k_low, self.gk = quantize_tiles(k, K_TYPES.get(self.mode, torch.int8))
        self.q_factor = self.gq[..., None]
        self.k_factor = self.gk.repeat_interleave(TILE, -1)[:, :, : self.shape.kv_len, None]

    def __call__(self):
        self.args.stream = torch.cuda.current_stream().cuda_stream
        status = self.library.mxa_prefill_probe(ctypes.byref(self.args))
        if status:
            raise RuntimeError(f"CUDA status {status} ({self.mode}, {self.shape})")

    def guards_intact(self):
        ends = torch.cat([self.out_guarded[:GUARD], self.out_guarded[-GUARD:]])
        return bool((ends == GUARD_VALUE).all())

    def high_pairs(self, positions):
        """[positions][kv_len]: whether the pair's score tile is high, by the rule over all pairs of the tile."""
        s = self.shape
        tiles = torch.arange(positions[0] // TILE, positions[-1] // TILE + 1, device="cuda")
        row = (tiles[:, None] * TILE + torch.arange(TILE, device="cuda")).flatten()
        key = torch.arange(-(-s.kv_len // TILE) * TILE, device="cuda")
        distance = row[:, None] - key
        near = (distance.abs() < s.diag) | (key < s.sink)
        near &= self.seen(distance)
        high = near.view(len(tiles), TILE, -1, TILE).any(3).any(1)
        return high[positions // TILE - tiles[0]].repeat_interleave(TILE, 1)[:, : s.kv_len]

    def seen(self, distance):
        left = FAR if self.shape.window_left < 0 else self.shape.window_left
        right = FAR if self.shape.window_right < 0 else self.shape.window_right
        return (distance <= left) & (-distance <= right)

    def reference(self, b, h, rows, exact=False):
        """Output and LSE of some rows; exact: all tiles on the inputs."""
        s, h_kv = self.shape, h // (self.shape.heads // self.shape.heads_kv)
        positions = rows + (s.kv_len - s.q_len)
        scores = self.q[b, h, rows].double() @ self.k[b, h_kv].double().T * SOFTMAX_SCALE
        if self.mode != "bf16" and not exact:
            dequantized = lambda codes, factor, head, at: (codes[b, head].double() * (
                factor[b, head].double() if torch.is_tensor(factor) else factor))[at]
            low = (dequantized(self.q_low, self.q_factor, h, rows)
                   @ dequantized(self.k_low, self.k_factor, h_kv, slice(None)).T * SOFTMAX_SCALE)
            if self.bias is not None:
                low += self.bias[b, h, rows, None].double() / LOG2E
            scores = torch.where(self.high_pairs(positions), scores, low)
        distance = positions[:, None] - torch.arange(s.kv_len, device="cuda")
        scores.masked_fill_(~self.seen(distance), -math.inf)
        return torch.softmax(scores, -1) @ self.v[b, h_kv].double(), torch.logsumexp(scores, -1)

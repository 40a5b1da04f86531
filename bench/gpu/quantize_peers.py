# SPDX-License-Identifier: Apache-2.0
"""The CUDA quantiser beside PyTorch: both copies, MXFP4 and MXFP8 of the rotated rows, [32 x 32768 x 128] bf16.

quantize_peers.py QUANTIZE_BENCH runs that program and takes its first line; then the same by PyTorch, operation by
operation and through torch.compile. Medians of calls between events.
"""

import math
import re
import statistics
import subprocess
import sys

import torch

HEADS, TOKENS, DIM, BLOCK = 32, 32768, 128, 32
REPEATS = 11
EXPONENT_BIAS = 127


def hadamard(n):
    h = torch.ones(1, 1, device="cuda")
    while h.shape[0] < n:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)])
    return h / math.sqrt(n)


def block_exponents(blocks, threshold, emax):
    """The exponent of each block's scale: docs/numerics.md, section 3."""
    bits = blocks.abs().amax(-1, keepdim=True).view(torch.int32)
    return ((bits >> 23) - EXPONENT_BIAS - emax + ((bits & 0x7FFFFF) >= threshold)).clamp(-127, 127)


def quantize_both(x, h):
    """Codes and scales of MXFP4 (EVEN), then of MXFP8 E4M3 (RCEIL)."""
    blocks = (x.float() @ h).view(HEADS, TOKENS, DIM // BLOCK, BLOCK)
    low = block_exponents(blocks, 0x600000, 2)
    t = blocks * torch.exp2(-low.float())
    m = t.abs()
    code = torch.where(m < 2, torch.round(2 * m), torch.where(m < 4, torch.round(m) + 2, torch.round(m / 2) + 4))
    code = code.clamp(max=7).to(torch.uint8) | (torch.signbit(t).to(torch.uint8) << 3)
    codes4 = code[..., 0::2] | (code[..., 1::2] << 4)
    high = block_exponents(blocks, 0x600001, 8)
    codes8 = (blocks * torch.exp2(-high.float())).clamp(-448, 448).to(torch.float8_e4m3fn)
    return codes4, (low + EXPONENT_BIAS).to(torch.uint8), codes8, (high + EXPONENT_BIAS).to(torch.uint8)


def median_us(call):
    for _ in range(3):
        call()
    times = []
    for _ in range(REPEATS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return statistics.median(times)


def main():
    line = re.search(r"mxfp4 \+ mxfp8, rotated +([\d.]+) us", subprocess.check_output([sys.argv[1]], text=True))
    ours = float(line[1])
    x = torch.randn(HEADS, TOKENS, DIM, device="cuda").bfloat16()
    h = hadamard(DIM)
    for name, call in ("eager", quantize_both), ("torch.compile", torch.compile(quantize_both)):
        peer = median_us(lambda call=call: call(x, h))
        print(f"{name}: {peer:.0f} us, {peer / ours:.1f} times the {ours:.1f} us of mxattn", flush=True)


if __name__ == "__main__":
    main()

#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Check and time the Hopper prefill kernel: bench/gpu.sh [options of bench/gpu/prefill_bench.py]
#
# Needs an sm_90 GPU, nvcc 12.4 or later and a Python with PyTorch (PYTHON=...). LIBRARY=FILE takes a probe that was
# built before; SANITIZER=memcheck runs under compute-sanitizer (with --small --no-times: it is slow). Results go to
# bench/results; the exit status is not 0 if a check fails.
set -euo pipefail
cd "$(dirname "$0")/.."

library=${LIBRARY:-build/gpu/libprefill_probe.so}
if [ -z "${LIBRARY:-}" ]; then
    nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
    mkdir -p "$(dirname "$library")"
    "$nvcc" -std=c++17 -O3 -gencode=arch=compute_90a,code=sm_90a -Isrc -Iinclude -Xcompiler -fPIC -shared \
        -cudart static -o "$library" bench/gpu/prefill_probe.cu -L"$(dirname "$nvcc")/../lib64/stubs" -lcuda
fi
exec ${SANITIZER:+compute-sanitizer --tool "$SANITIZER" --error-exitcode 1} \
    "${PYTHON:-python3}" bench/gpu/prefill_bench.py "$library" "$@"

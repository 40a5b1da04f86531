#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Check the CUDA kernels and time attention: bench/gpu.sh [options of bench/gpu/prefill_bench.py]
#
# Needs a GPU, nvcc 12.4 or later, CMake and a Python with PyTorch and ml_dtypes (PYTHON=...); the peers are timed that
# this Python has (bench/gpu/peers_gpu.py). BUILD=FOLDER takes what was built before. CHECKS=0 leaves out the checks.
# SANITIZER="memcheck racecheck initcheck synccheck", or some of them, runs a few checks under compute-sanitizer and
# times nothing. Results go to bench/results.
set -euo pipefail
cd "$(dirname "$0")/.."

build=${BUILD:-build/gpu}
if [ -z "${BUILD:-}" ]; then
    cmake -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DMXA_CUDA=ON -DMXA_BUILD_COMMAND=OFF
    cmake --build "$build" -j "$(nproc)" --target mxattn mxattn_cuda mxa_check mxa_check_cuda check_calls_cuda
fi
if [ -n "${SANITIZER:-}" ]; then
    for tool in $SANITIZER; do
        compute-sanitizer --tool "$tool" --error-exitcode 1 "$build/mxa_check" --filter cuda --rounds 2
        compute-sanitizer --tool "$tool" --error-exitcode 1 "$build/mxa_check_cuda" --rounds 1
    done
    exit
fi
if [ "${CHECKS:-1}" != 0 ]; then
    "$build/mxa_check" --filter cuda
    "$build/mxa_check_cuda"
    "$build/check_calls_cuda"
fi
exec "${PYTHON:-python3}" bench/gpu/prefill_bench.py "$build/libmxattn.so" "$@"

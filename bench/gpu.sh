#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Check the CUDA kernels and time attention: bench/gpu.sh [options of bench/gpu/prefill_bench.py]
#
# Needs a GPU, nvcc 12.4 or later, CMake and a Python with PyTorch, pytest and ml_dtypes (PYTHON=...). BUILD=FOLDER
# takes what was built before. CHECKS=0 leaves out the checks. SANITIZER=memcheck (racecheck, initcheck, synccheck)
# runs a few checks under compute-sanitizer and times nothing. Results go to bench/results.
set -euo pipefail
cd "$(dirname "$0")/.."

build=${BUILD:-build/gpu}
if [ -z "${BUILD:-}" ]; then
    cmake -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DMXA_CUDA=ON -DMXA_BUILD_COMMAND=OFF
    cmake --build "$build" -j "$(nproc)" --target mxattn mxattn_cuda mxa_check
fi
if [ -n "${SANITIZER:-}" ]; then
    exec compute-sanitizer --tool "$SANITIZER" --error-exitcode 1 "$build/mxa_check" --filter cuda --rounds 2
fi
if [ "${CHECKS:-1}" != 0 ]; then
    "$build/mxa_check" --filter cuda
    MXATTN_LIB="$build/libmxattn.so" "${PYTHON:-python3}" -m pytest -q -rs tests/python_package/test_package_cuda.py
fi
exec "${PYTHON:-python3}" bench/gpu/prefill_bench.py "$build/libmxattn.so" "$@"

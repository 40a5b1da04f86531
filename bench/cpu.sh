#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Compare with PyTorch, OpenVINO, llama.cpp and, for decode steps, onnxruntime on this processor:
# bench/cpu.sh [options of bench/cpu_bench.py]
#
# Installs them from PyPI first (PyTorch is a large download, llama.cpp compiles for some minutes). A peer that
# PYTHON=... has already is not installed; one that cannot be installed is left out.
set -euo pipefail
cd "$(dirname "$0")/.."

# has PACKAGE: whether $PYTHON has it.
has() {
    [ -n "${PYTHON:-}" ] && "$PYTHON" -c "import importlib.metadata as m; m.version('$1')" 2>/dev/null
}

tools/venv.sh .venv-bench bench/peers/bench-requirements.txt
pythons=(${PYTHON:+--python "$PYTHON"})
# Without the parts that read images.
export CMAKE_ARGS=-DLLAVA_BUILD=OFF
for peer in torch llama-cpp-python onnxruntime; do
    if has "$peer"; then
        continue
    elif tools/venv.sh ".venv-$peer" "bench/peers/$peer-requirements.txt"; then
        pythons+=(--python ".venv-$peer/bin/python")
    fi
done
.venv-bench/bin/python bench/cpu_bench.py "${pythons[@]}" "$@"
build=build/release
words=("$@")
for i in "${!words[@]}"; do
    [ "${words[i]}" != --build ] || build=${words[i + 1]}
done
for threads in 1 $(nproc); do
    .venv-bench/bin/python bench/decode_bench.py "${pythons[@]}" --build "$build" --threads "$threads"
done

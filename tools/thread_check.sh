#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Whether loops of several threads race: tools/thread_check.sh [BUILD_FOLDER], in some minutes.
#
# ThreadSanitizer knows nothing of libgomp's barriers. With clang, LLVM's OpenMP runtime tells it about them through the
# tool Archer, which comes with libomp-dev. Two small programs show first that a race is found and a barrier is known.
set -euo pipefail
cd "$(dirname "$0")/.."

build=${1:-build/thread}
archer=$(find /usr/lib/llvm-*/lib -name libarcher.so 2>/dev/null | sort -V | tail -n 1)
if [ -z "$archer" ] || ! command -v clang >/dev/null; then
    echo "clang and libomp-dev with libarcher.so are needed"
    exit 77
fi
export OMP_TOOL_LIBRARIES=$archer OMP_NUM_THREADS=3 OMP_WAIT_POLICY=passive
export TSAN_OPTIONS="ignore_noninstrumented_modules=1 halt_on_error=1 exitcode=66"
flags="-fsanitize=thread -g -O1"

# races PROGRAM_TEXT: whether ThreadSanitizer ends the program.
races() {
    local program=$build/control status=0
    clang $flags -fopenmp -x c - -o "$program" <<<"$1"
    "$program" 2>/dev/null || status=$?
    [ "$status" = 66 ]
}

mkdir -p "$build"
loop='int x[3], y[3]; int main(void) {
#pragma omp parallel for num_threads(3)
for (int i = 0; i < 3; i++) x[i] = i;
#pragma omp parallel for num_threads(3)
for (int i = 0; i < 3; i++) y[PLACE] += x[2 - i];
return 0; }'
races "${loop/PLACE/0}" || { echo "a race was not found"; exit 1; }
! races "${loop/PLACE/i}" || { echo "a barrier was not known"; exit 1; }

CC=clang CXX=clang++ cmake -S . -B "$build" -DCMAKE_BUILD_TYPE=None -DMXA_BUILD_COMMAND=OFF \
    -DCMAKE_C_FLAGS="$flags" -DCMAKE_CXX_FLAGS="$flags" >/dev/null
cmake --build "$build" --parallel "$(nproc)" --target mxa_check test_api_threads test_api_pair
"$build/mxa_check" --rounds 10 --filter attention
"$build/test_api_threads"
"$build/test_api_pair"

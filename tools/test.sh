#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Every test there is, for `make test`. Logs and JUnit files go to build/results; the last line counts.
set -euo pipefail
cd "$(dirname "$0")/.."

results=$PWD/build/results
rm -rf "$results"
mkdir -p "$results"
jobs=$(nproc)
unset MAKEFLAGS MAKELEVEL # of the make that called
# More threads than processors would spin for each other.
export OMP_WAIT_POLICY=passive
export ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1

# run NAME COMMAND...: the command's output goes to a log that is shown if it fails. Returns its status.
run() {
    local name=$1 status=0 begun=$SECONDS
    shift
    "$@" >"$results/$name.log" 2>&1 || status=$?
    case $status in
    0) echo "ok   $name ($((SECONDS - begun)) s)" ;;
    77) echo "skip $name: $(tail -n 1 "$results/$name.log")" ;;
    *)
        tail -n 80 "$results/$name.log"
        echo "FAIL $name ($((SECONDS - begun)) s), all of it in build/results/$name.log"
        ;;
    esac
    return $status
}

# One test.
check() {
    local status=0
    run "$@" || status=$?
    echo "check $1 $status" >>"$results/steps.txt"
    return $status
}

# Many tests, which the command lists in results/NAME.xml.
suite() {
    local status=0
    run "$@" || status=$?
    echo "suite $1 $status" >>"$results/steps.txt"
}

# build NAME CC CXX CMAKE_OPTIONS...
build() {
    local name=$1 cc=$2 cxx=$3
    shift 3
    CC=$cc CXX=$cxx cmake -S . -B "build/$name" -DMXA_BUILD_TESTS=ON -DMXA_WERROR=ON "$@" &&
        cmake --build "build/$name" --parallel "$jobs"
}

# ctests NAME: the tests of one build.
ctests() {
    suite "$1-tests" ctest --test-dir "build/$1" --parallel "$jobs" --output-on-failure \
        --test-output-size-passed 1000000 --output-junit "$results/$1-tests.xml"
}

# pytests NAME BUILD OPTIONS...: tests/NAME with the library and the command of a build. A job in the background
# ignores SIGINT, and so would the programs whose end by it is tested.
python=.venv/bin/python
pytests() {
    local tests=$1 build=$2
    shift 2
    suite "$build-$tests" env --default-signal=INT MXATTN_LIB="$PWD/build/$build/libmxattn.so" \
        MXATTN_COMMAND="$PWD/build/$build/mxattn" "$python" -m pytest -q -rs "tests/$tests" \
        --junit-xml "$results/$build-$tests.xml" "$@"
}

check style tools/style.sh || true
check format tools/format_check.sh || true
check venv tools/venv.sh .venv tests/python/requirements.txt || true
if check gcc-build build gcc gcc g++; then
    check symbols tools/symbols.sh build/gcc/libmxattn.so build/gcc/libmxattn.a || true
    check package tests/package/install_test.sh build/gcc || true
    ctests gcc
    pytests python gcc
    pytests cli gcc
    # A Python with PyTorch and Transformers (MXA_TORCH_PYTHON, or what make test-torch made) skips nothing.
    torch_python=${MXA_TORCH_PYTHON:-.venv-torch/bin/python}
    if [ -n "${MXA_TORCH_PYTHON:-}" ] || [ -x "$torch_python" ]; then
        python=$torch_python pytests python_package gcc
    else
        pytests python_package gcc
    fi
fi
check wheel tests/python_package/wheel_test.sh build/wheel || true
# Kernels for vector extensions that this machine may lack, emulated by AVX2.
emulated_build() {
    CC=gcc cmake -S . -B build/emulated -DMXA_BUILD_TESTS=ON -DMXA_BUILD_COMMAND=OFF -DMXA_WERROR=ON \
        -DMXA_EMULATE_AVX512=ON &&
        cmake --build build/emulated --parallel "$jobs" --target mxa_check test_golden_attention test_attention_edges
}
if grep -qw avx2 /proc/cpuinfo && check emulated-build emulated_build; then
    check emulated-kernels build/emulated/mxa_check || true
    check emulated-vectors ctest --test-dir build/emulated --no-tests=error --output-on-failure \
        -R '^test_(golden_attention|attention_edges)$' || true
fi
# This build's tests see a machine without vector extensions, which the others leave out where it has them.
if check clang-build build clang clang clang++; then
    export MXA_CPU=portable
    ctests clang
    unset MXA_CPU
fi
if check sanitize-build build sanitize clang clang++ -DMXA_SANITIZE=ON; then
    ctests sanitize
    # An address space limit, which that one test sets, leaves no room for the sanitizer's own.
    pytests cli sanitize --deselect tests/cli/test_command_failure.py::test_out_of_memory
fi
python3 tools/count.py "$results"

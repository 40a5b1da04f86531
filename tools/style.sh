#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What clang-format cannot see: include directions, names, licence lines, blanks, left-overs. Reads what git tracks.
set -u # not -e: a grep that finds nothing is good news
shopt -s lastpipe # fail_if runs in this shell
cd "$(dirname "$0")/.."
export LC_ALL=C.UTF-8

failed=0

# fail_if TEXT: what comes in by the pipe are offences.
fail_if() {
    local offences
    offences=$(cat)
    if [ -n "$offences" ]; then
        printf '%s:\n%s\n' "$1" "$offences" | head -n 21
        failed=1
    fi
}

# search PATTERN FILES...
search() {
    local pattern=$1
    shift
    [ $# = 0 ] || grep -HnE "$pattern" -- "$@"
}

tracked() {
    git ls-files -- "$@" | while read -r file; do
        [ -f "$file" ] && echo "$file"
    done
}

mapfile -t sources < <(tracked '*.c' '*.h' '*.cpp' '*.cu' '*.cuh')
mapfile -t library < <(tracked 'src/')
mapfile -t outside_cuda < <(printf '%s\n' "${sources[@]}" | grep -vE '^((src|tests)/cuda|bench/gpu)/')
mapfile -t users < <(tracked 'cli/*.[ch]' 'tests/api/*.[ch]*' 'examples/*.[ch]')
mapfile -t scripts < <(tracked '*.py' '*.sh' '*.in' '*CMakeLists.txt' '*.cmake' '*.map' Makefile .ci/run .clang-format .clang-tidy)
# Tensors and what fuzzers feed are no text.
mapfile -t text < <(tracked | grep -vE '\.(safetensors|png)$|^data/.*\.json$|^tests/fuzz/corpus')

# Layers, lowest first. Files directly in src/ are the API. A file may include its own layer's folder and those below.
search '^ *# *include "' "${library[@]}" | awk -F: '
    BEGIN { order["core"] = 1; order["format"] = 2; order["attn"] = 3
            order["cpu"] = order["cuda"] = order["cache"] = 4; order["api"] = 5 }
    {
        n = split($1, path, "/"); from = n == 2 ? "api" : path[2]
        split($3, quoted, "\""); m = split(quoted[2], target, "/"); to = m == 1 ? "api" : target[1]
        if (!(from in order) || !(to in order) || (from != to && order[to] >= order[from])) print
    }' | fail_if "includes that point up or sideways (api -> cpu, cuda, cache -> attn -> format -> core)"
search '^ *# *include "[^"]*/' "${users[@]}" | fail_if "the command, the API tests and the examples use mxattn.h only"
search '^ *# *include <(cuda|cublas|cooperative_groups|mma\.h|nv/)' "${outside_cuda[@]}" | fail_if "CUDA headers outside src/cuda"
search '^ *# *include [<"](torch|ATen|c10)/' "${sources[@]}" | fail_if "PyTorch headers"

search '(^|[^a-z_])(f?printf|puts|perror|exit|abort)\(' "${library[@]}" | fail_if "the library prints or exits"
search '^ *# *if 0' "${sources[@]}" | fail_if "code that is switched off"
search '^MXA_API' include/mxattn/mxattn.h | grep -vE '[ *]mxa_[a-z0-9_]+\(' | fail_if "exported names without mxa_"

tracked | grep -v '^tests/fuzz/corpus' | sed 's|.*/||' |
    grep -vxE 'README\.md|CMakeLists\.txt|__init__\.py|conftest\.py' | sort | uniq -d | fail_if "file names that occur twice"

for file in "${sources[@]}" "${scripts[@]}"; do
    head -n 2 "$file" | grep -q 'SPDX-License-Identifier: Apache-2.0' || echo "$file"
done | fail_if "no SPDX line on top"

printf '%s\n' "${text[@]}" | grep -vx Makefile | xargs grep -Hn "$(printf '\t')" -- | fail_if "tabs"
search '[[:blank:]]$' "${text[@]}" | fail_if "blanks at the end of a line"
for file in "${text[@]}"; do
    [ ! -s "$file" ] || [ -z "$(tail -c 1 "$file")" ] || echo "$file"
done | fail_if "no newline at the end"
search '.{111,}' "${sources[@]}" | cut -c 1-120 | fail_if "lines over 110 columns"

# Written in two parts, so that this file passes.
search '\b(TO''DO|FIX''ME|X''XX|HA''CK|W''IP)\b' "${text[@]}" | fail_if "unfinished"
search '(^|[^[:alnum:]_.-])/(wo''rk|ro''ot|ho''me)(/|\b)|\.\./sha''red' "${text[@]}" | fail_if "paths of one machine"

tracked | grep -vE '^data/.*\.safetensors$' | while read -r file; do
    [ "$(stat -c %s "$file")" -le $((2 << 20)) ] || echo "$file"
done | fail_if "files over 2 MiB"

exit $failed

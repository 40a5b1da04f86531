#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Compile every instance of the prefill kernel for sm_90a and read what ptxas says of each: no spills, no stack, no
# warning of the C75xx kind (products that are serialized) but C7519, which only tells where an arrive was put in.
# prefill_resources_sm90.sh NVCC
set -euo pipefail
cd "$(dirname "$0")/../.."

kernels=5
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$1" -std=c++17 -O3 -arch=sm_90a -cubin -Xptxas -v -Isrc -Iinclude -o "$folder/prefill.cubin" \
    bench/gpu/prefill_probe.cu 2>&1 | tee "$folder/log" | grep -v C7519

compiled=$(grep -c 'bytes stack frame' "$folder/log")
clean=$(grep -cE '^ +0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads' "$folder/log")
warnings=$(grep -E 'C75[0-9]{2}' "$folder/log" | grep -vc C7519 || true)
echo "$compiled kernels, $clean without stack and spills, $warnings warnings"
[ "$compiled" = $kernels ] && [ "$clean" = $kernels ] && [ "$warnings" = 0 ]

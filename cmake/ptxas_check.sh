#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Run a compiler (with -Xptxas -v) and fail also where ptxas says that a kernel spills, has a stack, or has its
# products serialized (C7510 to C7520; C7519 only tells where an arrive was put in). ptxas_check.sh NVCC OPTIONS...
set -u
output=$("$@" 2>&1)
status=$?
offences=$(grep -B 1 -E '[1-9][0-9]* bytes (stack frame|spill)|\(C75(1[0-8]|20)\)' <<<"$output")
grep -vE '^ptxas info|bytes stack frame|^$' <<<"$output"
if [ -n "$offences" ]; then
    echo "$offences"
    exit 1
fi
exit $status

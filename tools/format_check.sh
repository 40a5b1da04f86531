#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Whether .clang-format would leave all C and C++ files as they are. Its layout differs between versions.
set -eu
cd "$(dirname "$0")/.."

version=14
if ! clang-format --version | grep -q "version $version\."; then
    echo "clang-format $version is not here"
    exit 77
fi
git ls-files '*.c' '*.h' '*.cpp' | xargs clang-format --dry-run -Werror

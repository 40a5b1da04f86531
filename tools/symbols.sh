#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Whether a shared library exports names with mxa_ only: tools/symbols.sh LIBRARY
set -eu

others=$(nm -D --defined-only "$1" | awk '$3 !~ /^mxa_/ { print $3 }')
if [ -n "$others" ]; then
    echo "$1 exports names without mxa_:"
    echo "$others"
    exit 1
fi

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Whether libraries define global names with mxa_ only: tools/symbols.sh SHARED STATIC
set -eu

# In the static one, OpenMP names critical sections.
others=$( (nm -D --defined-only "$1"; nm -g --defined-only "$2") |
    awk 'NF == 3 && $3 !~ /^(\.gomp_critical_user_)?mxa_/ { print $3 }')
if [ -n "$others" ]; then
    echo "global names without mxa_:"
    echo "$others"
    exit 1
fi

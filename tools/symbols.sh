#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Whether the shared library exports what mxattn.h declares and nothing else, and the static one defines global names
# with mxa_ only: tools/symbols.sh SHARED STATIC
set -eu

header=$(dirname "$0")/../include/mxattn/mxattn.h
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

sed -n 's/^MXA_API .*[ *]\(mxa_[a-z0-9_]*\)(.*/\1/p' "$header" | sort >"$work/declared"
nm -D --defined-only "$1" | awk '{ print $3 }' | sort >"$work/exported"
diff "$work/declared" "$work/exported" || { echo "declared (<) and exported (>) differ"; exit 1; }

# OpenMP names critical sections.
others=$(nm -g --defined-only "$2" | awk 'NF == 3 && $3 !~ /^(\.gomp_critical_user_)?mxa_/ { print $3 }')
[ -z "$others" ] || { echo "global names without mxa_:" "$others"; exit 1; }

#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Whether README.md shows two examples word for word, and whether links between documents lead somewhere.
set -euo pipefail
cd "$(dirname "$0")/../.."

diff <(awk '/^```/ { inside = $0 == "```c"; next } inside' README.md) \
    <(cat examples/attention_example.c examples/decode_example.c)

failed=0
for page in README.md CONTRIBUTING.md docs/*.md data/README.md tests/vectors/README.md; do
    while read -r target; do
        if [ ! -e "$(dirname "$page")/$target" ]; then
            echo "$page: no file for the link to $target"
            failed=1
        fi
    done < <(grep -oE '\]\([^)#:]+' "$page" | sed 's/^](//')
done
exit $failed

#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Whether an older machine can run the common code: tests/isa/baseline_test.sh FILE, which lists the library's objects.
#
# Objects outside src/cpu/avx2, avx512 and amx hold no instruction above x86-64's baseline. Those inside define names
# of their own level alone: an inline function that a compiler left out of line there, the linker could take for all.
set -euo pipefail
export LC_ALL=C

if [ "$(uname -m)" != x86_64 ] || ! command -v objdump >/dev/null; then
    echo "objdump and an x86-64 machine are needed"
    exit 77
fi

# VEX and EVEX forms of xmm code, registers that only they have, and what SSE3 to SSE4.2 and BMI brought.
above='\s(v[a-z0-9]+\s.*%xmm|[a-z0-9]+\s.*%([yzt]mm[0-9]|k[0-7])|(pshufb|palignr|phadd[wd]|pabs[bwd]|pmadd'
above+='ubsw|pmul(ld|dq|hrsw)|p(min|max)(s[bd]|u[wd])|pblend(w|vb)|blendv?p[sd]|round[ps][sd]|p(ext|ins)r[bdq]|'
above+='insertps|extractps|ptest|pmov[sz]x[a-z]+|movs[hl]dup|movddup|haddp[sd]|lddqu|crc32[a-z]*|popcnt[a-z]*|'
above+='andn|bextr|[lt]zcnt|pdep|pext|mulx|[rs][ahol][rl]x)\s)'

# level OBJECT: the level whose folder it comes from, or nothing.
level() {
    sed -nE 's#.*/src/cpu/(avx2|avx512|amx)/.*#\1#p' <<<"$1"
}

failed=0 common=0 levels=0
while read -r object; do
    own=$(level "$object")
    if [ -z "$own" ]; then
        common=$((common + 1))
        offences=$(objdump -d --no-show-raw-insn "$object" | grep -E "$above" | head -n 5 || true)
        what="instructions above the baseline"
    else
        levels=$((levels + 1))
        offences=$(nm -g --defined-only "$object" | awk -v own="$own" '$3 !~ own { print $3 }')
        what="names without $own"
    fi
    if [ -n "$offences" ]; then
        printf '%s: %s:\n%s\n' "$object" "$what" "$offences"
        failed=1
    fi
done <"$1"
echo "$common common objects, $levels of levels"
# With none of one kind the list, or the way to tell them apart, is wrong.
[ "$common" -gt 0 ] && [ "$levels" -gt 0 ] && [ "$failed" = 0 ]

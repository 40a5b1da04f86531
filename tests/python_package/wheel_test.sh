#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Build the wheel, install it in a clean environment, run the README's example: wheel_test.sh BUILD_FOLDER
set -euo pipefail

mkdir -p "$1"
build=$(cd "$1" && pwd)
tree=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset MXATTN_LIB PYTHONPATH
export PIP_DISABLE_PIP_VERSION_CHECK=1

python3 -m venv "$work/venv"
"$work/venv/bin/pip" wheel --quiet --no-deps -w "$work" -C build-dir="$build" -C cmake.define.MXA_CUDA=OFF \
    "$tree"
wheel=$(basename "$work"/*.whl)
echo "-- $wheel"
case $wheel in
mxattn-*-py3-none-linux_*.whl) ;;
*)
    echo "is not for every Python of this platform"
    exit 1
    ;;
esac
"$work/venv/bin/pip" install --quiet "$work/$wheel"

cd "$work"
awk '/^## /{ inside = $0 == "## In Python" } /^```/ { code = inside && $0 == "```python"; next } code' \
    "$tree/README.md" >example.py
[ -s example.py ]
venv/bin/python example.py
venv/bin/python - <<'EOF'
from importlib.metadata import files, version

import mxattn

names = sorted(str(f) for f in files("mxattn") if f.parts[0] == "mxattn" and "__pycache__" not in f.parts)
print(*names)
assert version("mxattn") == mxattn.__version__
assert {"mxattn/libmxattn.so", "mxattn/py.typed", "mxattn/__init__.py"} <= set(names)
text = {"mxattn/_text/README.md", "mxattn/_text/persuasion.txt"}
assert all(name.endswith((".py", ".so", "/py.typed")) or name in text for name in names)
EOF
venv/bin/mxattn --version
if venv/bin/mxattn eval 2>said.txt; then
    exit 1
fi
grep -F 'pip install mxattn[eval]' said.txt

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Make a Python environment hold what a requirements file pins: tools/venv.sh FOLDER FILE
set -eu

folder=$1
requirements=$2
if cmp -s "$requirements" "$folder/installed.txt"; then
    exit 0
fi
echo "venv: installing into $folder with pip: $(grep -v '^#' "$requirements" | tr '\n' ' ')"
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet --disable-pip-version-check -r "$requirements"
cp "$requirements" "$folder/installed.txt"

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Install what is missing on a Debian machine: tools/setup.sh build|test
set -eu

build_packages="cmake gcc libc6-dev make pkg-config libjansson-dev libpng-dev"
test_packages="ca-certificates g++ binutils git clang libclang-rt-dev libomp-dev clang-format libcmocka-dev libsimde-dev python3 python3-venv"
what=${1:-build}
case $what in
build) packages=$build_packages ;;
test) packages="$build_packages $test_packages" ;;
*)
    echo "usage: tools/setup.sh build|test" >&2
    exit 2
    ;;
esac

if ! command -v apt-get >/dev/null; then
    echo "setup: this is no Debian system, so nothing is installed; needed are: $packages"
    exit 0
fi

missing=
for package in $packages; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q ' installed$' || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

install="apt-get install -y --no-install-recommends$missing"
if [ "$(id -u)" = 0 ]; then
    as_root=
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    as_root="sudo -n"
else
    echo "setup: packages are missing and only root can install them. Run:" >&2
    echo "    sudo apt-get update && sudo $install" >&2
    exit 1
fi
echo "setup: installing with apt-get:$missing"
$as_root apt-get update -q
# debconf would ask questions on a bare machine.
$as_root env DEBIAN_FRONTEND=noninteractive $install
